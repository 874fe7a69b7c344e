"""Triton's kernels as configs launch them, compiled for a Hopper GPU.

`python -m benchmarks.gpu_walk.signatures CONFIG…` prints a line of JSON for each kernel: what it is compiled for, the
registers and bytes of stack that a lane takes, for the scan the instructions for a state (or pair of states) and step,
and the configs that launch it. `--cache=FOLDER` keeps the kernels: with FOLDER as TRITON_CACHE_DIR on a machine with a
GPU and the same Triton, nothing is compiled there. Where that Triton is not in an environment with a CPU's torch,
`… --part=walk` of one environment is piped into `… --part=compile` of another.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

SCANS = ("scan_kernel", "adjoint_kernel", "gradient_kernel")


def _plain(value: Any) -> Any:
    """Return what Triton compiles for, as JSON: a tensor's dtype; whether an integer is 1 or a multiple of 16."""
    import torch

    if isinstance(value, torch.Tensor):
        return str(value.dtype).removeprefix("torch.")
    if isinstance(value, tuple):
        values = [_plain(x) for x in value]
        return {"class": type(value).__name__, "values": values} if hasattr(value, "_fields") else values
    if isinstance(value, int) and not isinstance(value, bool):
        return 1 if value == 1 else 16 if value % 16 == 0 else 17
    return value


def _constant(value: Any) -> Any:
    """Return the same for a constexpr, which may be a Triton type."""
    return {"type": value.name} if type(value).__name__ == "dtype" else value


def walk(configs: list[str]) -> dict[str, list[str]]:
    """Return kernels, as text of their module, name and arguments, and the configs that launch each."""
    from benchmarks.gpu_walk import fake_cuda

    fake_cuda.install(fake_cuda.build())
    from benchmarks.gpu_walk.walk import count
    from lra_ssm.runs.step_cost import CountStep

    users_by_kernel: dict[str, list[str]] = {}
    real = CountStep._count_kernel

    def record(self: CountStep, kernel: Any, programs: int, **arguments: Any) -> None:
        real(self, kernel, programs, **arguments)
        constants = {kernel.arg_names[i] for i in kernel.constexprs} | {"num_warps"}
        compiled_for = {key: _constant(x) if key in constants else _plain(x) for key, x in arguments.items()}
        users = users_by_kernel.setdefault(json.dumps([kernel.__module__, kernel.__name__, compiled_for]), [])
        if config not in users:
            users.append(config)

    CountStep._count_kernel = record  # type: ignore[method-assign]
    for config in configs:
        count(Path(config))
    return users_by_kernel


def compiled_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a kernel is compiled for, from the JSON of `_plain`."""
    import torch
    import triton.language as tl
    from triton.runtime.jit import MockTensor

    from lra_ssm.ops.backends import triton_call

    def one(value: Any) -> Any:
        if isinstance(value, str):
            return MockTensor(getattr(torch, value), [1])
        if isinstance(value, dict) and "class" in value:
            return getattr(triton_call, value["class"])(*map(one, value["values"]))
        if isinstance(value, dict):
            return tl.dtype(value["type"])
        return tuple(map(one, value)) if isinstance(value, list) else value

    return {key: one(value) for key, value in arguments.items()}


def without_a_gpu() -> None:
    """Triton compiles for a Hopper GPU from here on."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    class Hopper:
        """What the compiler asks of a GPU's driver."""

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: Any = None) -> int:
            return 0

    driver.set_active(Hopper())


def compiled(module: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Compile a kernel; return its registers, its bytes of stack and, for the scan's, its instructions."""
    import triton

    kernel = getattr(import_module(module), name)
    options = {"num_warps": 1, "enable_fp_fusion": True, **compiled_arguments(arguments)}
    cubin = kernel.warmup(**options, grid=(1,)).asm["cubin"]
    dump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, code = (
            subprocess.run([dump, option, file.name], capture_output=True, text=True).stdout
            for option in ("--dump-resource-usage", "-sass")
        )
    registers, stack = (int(x) for x in re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())  # type: ignore[union-attr]
    cost = {"registers": registers, "stack": stack}
    if name in SCANS:
        states = arguments["BLOCK_D"] * arguments["BLOCK_N"] * 4 / 32  # and steps that a lane takes at once
        cost["instructions"] = round(in_inner_loops(code) / states, 1)
    return cost


def in_inner_loops(code: str) -> int:
    """Return the number of instructions in innermost loops of a cubin's text."""
    instructions = [
        (int(instruction[1], 16), instruction[2])
        for instruction in re.finditer(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\d+ )?([A-Z][^;]*);", code)
    ]
    loops = []
    for at, text in instructions:
        target = re.match(r"BRA.*(?<=\s)0x([0-9a-f]+)", text)
        if target and int(target[1], 16) < at:
            loops.append((int(target[1], 16), at))
    inner = [x for x in loops if not any(y != x and x[0] <= y[0] and y[1] <= x[1] for y in loops)]
    return sum(first <= at <= last for at, _ in instructions for first, last in inner)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", metavar="FOLDER")
    parser.add_argument("--part", choices=("walk", "compile"), help="do only this part of the work")
    parser.add_argument("configs", nargs="*", metavar="CONFIG")
    options = parser.parse_args()
    if options.part == "walk":
        print(json.dumps(walk(options.configs)))
    elif options.part == "compile":
        without_a_gpu()
        for kernel, configs in json.load(sys.stdin).items():
            module, name, arguments = json.loads(kernel)
            cost = compiled(module, name, arguments)
            print(json.dumps({"kernel": name, **cost, "configs": configs, "arguments": arguments}), flush=True)
    else:  # in two processes: torch with the stand-in for CUDA cannot compile
        line = [sys.executable, "-m", "benchmarks.gpu_walk.signatures", *sys.argv[1:]]
        walked = subprocess.run([*line, "--part=walk"], stdout=subprocess.PIPE, check=True)
        with tempfile.TemporaryDirectory() as folder:
            environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
            environment["TRITON_CACHE_DIR"] = options.cache or folder
            subprocess.run([*line, "--part=compile"], input=walked.stdout, check=True, env=environment)


if __name__ == "__main__":
    main()
