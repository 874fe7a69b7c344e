"""The Triton scan as configs call it, compiled for a Hopper GPU.

`python -m tests.gpu_walk.signatures CONFIG…` prints a line of JSON for each kind of call: instructions for a state (or
pair of states) and step of all its kernels together, the most registers and bytes of stack that one of them takes, and
the configs that call so.
"""

import json
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

# What is printed of a call's last kernel.
ABOUT = ("COMPLEX", "ZOH", "STEADY", "TIED", "B_FORM", "C_FORM", "BLOCK_D", "BLOCK_N", "u", "z", "reset", "initial",
         "B_bias", "u_strides")  # fmt: skip


def _plain(value: Any) -> Any:
    """What Triton compiles for, as JSON: a tensor's dtype; whether an integer is 1 or a multiple of 16."""
    import torch

    if isinstance(value, torch.Tensor):
        return str(value.dtype).removeprefix("torch.")
    if isinstance(value, tuple):
        return [_plain(x) for x in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return 1 if value == 1 else 16 if value % 16 == 0 else 17
    return value


def walk(configs: list[str]) -> dict[str, list[str]]:
    """Calls of the scan, as text of their kernels and arguments, and the configs of each."""
    from tests.gpu_walk import fake_cuda

    fake_cuda.install(fake_cuda.build())
    from lra_ssm.analysis.step_cost import CountStep
    from tests.gpu_walk.walk import count

    found: dict[str, list[str]] = {}
    kernels: list[Any] = []
    real = CountStep._count_kernel

    def record(self: CountStep, kernel: Any, programs: int, **arguments: Any) -> None:
        real(self, kernel, programs, **arguments)
        name = kernel.__name__
        if name not in ("scan_kernel", "join_kernel", "adjoint_kernel", "gradient_kernel"):
            return
        constants = {kernel.arg_names[i] for i in kernel.constexprs}
        compiled_for = {key: x if key in constants else _plain(x) for key, x in arguments.items()}
        kernels.append([kernel.__module__, name, compiled_for])
        if name == "gradient_kernel" or (name == "scan_kernel" and arguments["ends"] is None):  # a call's last
            users = found.setdefault(json.dumps(kernels), [])
            if config not in users:
                users.append(config)
            kernels.clear()

    CountStep._count_kernel = record  # type: ignore[method-assign]
    for config in configs:
        count(Path(config))
    return found


def compile_calls(calls: dict[str, list[str]]) -> None:
    import torch
    from triton.runtime.jit import MockTensor

    from tests.ops.test_triton_compile import counted, without_a_gpu

    without_a_gpu()
    known: dict[str, dict[str, Any]] = {}
    for call, users in calls.items():
        total, registers, stack = 0.0, 0, 0
        for module, name, arguments in json.loads(call):
            text = json.dumps([name, arguments])
            if text not in known:
                given = {
                    key: MockTensor(getattr(torch, value), [1]) if isinstance(value, str)
                    else tuple(value) if isinstance(value, list) else value
                    for key, value in arguments.items()
                }  # fmt: skip
                known[text] = counted(getattr(import_module(module), name), **given)
            total += known[text].get("per state and step", 0)
            registers, stack = max(registers, known[text]["registers"]), max(stack, known[text]["stack"])
        _, name, arguments = json.loads(call)[-1]
        about = {key: arguments.get(key) for key in ABOUT}
        kernels = [kernel[1].removesuffix("_kernel") for kernel in json.loads(call)]
        found = {"instructions": round(total, 1), "registers": registers, "stack": stack}
        print(json.dumps({"kernels": kernels, **about, **found, "configs": users}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--compile":
        compile_calls(json.load(sys.stdin))
    elif sys.argv[1] == "--walk":
        print(json.dumps(walk(sys.argv[2:])))
    else:  # a process each: the stand-in for CUDA is not one that compiles
        module = [sys.executable, "-m", "tests.gpu_walk.signatures"]
        walked = subprocess.run([*module, "--walk", *sys.argv[1:]], stdout=subprocess.PIPE, check=True)
        with tempfile.TemporaryDirectory() as folder:
            environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
            environment["TRITON_CACHE_DIR"] = folder
            subprocess.run([*module, "--compile"], input=walked.stdout, check=True, env=environment)
