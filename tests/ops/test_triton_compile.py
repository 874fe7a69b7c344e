"""The Triton kernels compile for a Hopper GPU, which takes no GPU: the interpreter accepts what the compiler does not.

Run as a script, this file compiles every kernel, in each variant as the backend launches it, and prints a JSON line for
each.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

KERNELS = {"scan_kernel", "join_kernel", "adjoint_kernel", "gradient_kernel", "convolution_kernel",
           "convolution_gradient_kernel", "s4d_kernel", "s4d_gradient_kernel", "losses_kernel"}  # fmt: skip
SKIP = ("D", "z", "delta_bias")
BOUNDS = Path(__file__).with_name("instructions.json")  # the lines that this file prints; they may fall

# name: (make_inputs' arguments, dtype of u, delta, z and real variable B and C, channels last, discretization,
# segments, reset)
VARIANTS = {
    "real euler": (dict(complex_A=False, B="1 real", C="1 real", optional=SKIP), None, False, "euler", False, False),
    "real euler, channels last": (
        dict(complex_A=False, B="1 real", C="1 real", optional=SKIP), None, True, "euler", False, False),
    "real euler, N = 64, float16": (
        dict(complex_A=False, B="1 real", C="1 real", N=64, optional=SKIP), torch.float16, False, "euler", True, False),
    "real zoh, bias, bfloat16": (
        dict(complex_A=False, B="8 real", C="8 real", optional=("D", "B_bias")), torch.bfloat16, True, "zoh", False,
        False),
    "complex zoh, bias": (
        dict(complex_A=True, B="8 interleaved", C="8 interleaved", optional=("D", "B_bias")), None, True, "zoh", False,
        False),
    "B2S6": (  # as the layer calls it: A of all channels, C real
        dict(complex_A=True, B="8 complex", C="8 real", N=32, optional=("D", "delta_bias", "B_bias")), None, True,
        "zoh", False, False),
    "B2S6, segments": (
        dict(complex_A=True, B="8 complex", C="8 real", N=32, optional=("D", "delta_bias", "B_bias")), None, True,
        "zoh", True, False),
    "complex zoh, bias, N = 32, everything": (
        dict(complex_A=True, B="8 complex", C="4 complex", N=32, optional=(*SKIP, "B_bias", "initial_state")), None,
        False, "zoh", True, True),
    "complex zoh, bias, odd sizes": (  # tiles that channels, states and steps do not fill
        dict(complex_A=True, B="2 complex", C="1 real", D=6, N=3, L=1001, optional=("D", "B_bias")), None, True, "zoh",
        True, True),
    "float64": (
        dict(complex_A=True, B="1 real", C="constant", N=4, dtype=torch.float64, optional=SKIP), None, False, "zoh",
        True, False),
    "complex euler, constant B, N = 3": (
        dict(complex_A=True, B="constant", C="2 interleaved", N=3, optional=()), None, False, "euler", False, False),
    "depthwise, channels last": None,
    "depthwise, channels first": None,
    "depthwise, channels first, float64": None,
    "losses, bfloat16": None,
    "losses, float64": None,
    "S4D's kernel": None,
    "S4D's kernel, float64": None,
    "complex zoh, constant B and C": (
        dict(complex_A=True, B="constant", C="constant", N=8, optional=()), torch.bfloat16, True, "zoh", False, True),
    "one delta, constant B and C": (
        dict(complex_A=True, B="constant", C="constant", N=8, optional=()), torch.bfloat16, True, "zoh", False,
        True),
    "one delta, constant B and C, segments": (
        dict(complex_A=True, B="constant", C="constant", N=8, optional=()), torch.bfloat16, True, "zoh", True, True),
    "real euler, bfloat16, segments": (
        dict(complex_A=False, B="1 real", C="1 real", optional=SKIP), torch.bfloat16, True, "euler", True, True),
}  # fmt: skip
# All compile for a minute: those beside these are left to `pytest -m trials`.
CHOSEN = ["complex zoh, bias, odd sizes", "complex zoh, constant B and C", "real euler, bfloat16, segments",
          "depthwise, channels last", "S4D's kernel", "losses, bfloat16"]  # fmt: skip


def without_a_gpu() -> None:
    """Triton compiles for a Hopper GPU from here on."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    class Hopper:
        """What the compiler asks of a GPU's driver."""

        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self):
            return 0

        def get_current_stream(self, device=None):
            return 0

    driver.set_active(Hopper())


def counted(kernel, num_warps=1, **arguments) -> dict:
    """What a kernel takes that is compiled for these arguments."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    start = time.perf_counter()
    compiled = kernel.warmup(**arguments, grid=(1,), num_warps=num_warps, enable_fp_fusion=True)
    seconds = time.perf_counter() - start
    cubin = Path(os.environ["TRITON_CACHE_DIR"]) / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    usage, code = (
        subprocess.run([tool, option, cubin], capture_output=True, text=True).stdout
        for option in ("--dump-resource-usage", "-sass")
    )
    registers, stack = (int(x) for x in re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
    record = dict(kernel=kernel.__name__, block=arguments.get("BLOCK_D"), registers=registers, stack=stack,
                  seconds=round(seconds, 1))  # fmt: skip
    if "CHUNK" in arguments or "C_FORM" in arguments:
        states = arguments["BLOCK_D"] * arguments["BLOCK_N"] * 4 / 32  # and steps that a lane takes at once
        record["per state and step"] = round(in_inner_loops(code) / states, 1)
    if kernel.__name__ == "scan_kernel":
        record["exponentials"] = compiled.asm["ptx"].count("ex2.approx") / states
    return record


def compile_variants(names: list[str]) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    import gpu_exp
    from lra_ssm.ops.backends import triton_call, triton_scan
    from lra_ssm.ops.scan_inputs import check_scan_inputs
    from tests.ops.scan_cases import make_inputs

    without_a_gpu()
    current = []

    def compile_instead(kernel, programs, num_warps=1, **arguments):
        print(json.dumps({"variant": current[0], **counted(kernel, num_warps, **arguments)}), flush=True)

    ceiling = gpu_exp._kernel.warmup(torch.empty(gpu_exp._BLOCK), gpu_exp.ROUNDS, gpu_exp._BLOCK, grid=(1,))
    assert "ex2.approx" in ceiling.asm["ptx"], "the ceiling of benchmarks/operators.py is one of exponentials"
    triton_call.launch_kernel = compile_instead
    for variant in names:
        current[:] = [variant]
        if VARIANTS[variant] is None:
            compile_one = s4d_kernel if "S4D" in variant else losses if "losses" in variant else depthwise
            compile_one(variant)
            continue
        arguments, dtype, channels_last, discretization, segments, with_reset = VARIANTS[variant]
        triton_call.processors = lambda device, segments=segments: 132 if segments else 0
        x = make_inputs(**{"batch": 2, "D": 128, "N": 16, "L": 1024, "dtype": torch.float32, **arguments})
        for key in ("u", "delta", "z", "B", "C"):
            if key in x and x[key].dim() > 2:
                value = x[key].to(dtype) if dtype and not x[key].is_complex() else x[key]
                x[key] = value.transpose(-1, -2).contiguous().transpose(-1, -2) if channels_last else value
        if "B2S6" in variant:
            x["A"] = x["A"][:1].expand(128, -1)
        names = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")
        reset = torch.zeros(2, x["u"].shape[-1], dtype=torch.bool) if with_reset else None
        i = check_scan_inputs(*(x.get(key) for key in names), True, x.get("B_bias"), discretization,
                              x.get("initial_state"), reset)  # fmt: skip
        zoh = discretization == "zoh"
        delta = i.delta[0, :, 0] if "one delta" in variant else i.delta
        tensors = (i.u, delta, i.A, i.B, i.C, i.B_bias, i.D, i.z, i.delta_bias, i.initial_state, i.reset)
        y, last, checkpoints = triton_scan._scan(*tensors, zoh, True, True)
        triton_scan._scan_backward(*tensors, zoh, True, checkpoints, y, last)


def in_inner_loops(code: str) -> int:
    """The instructions of all loops that hold no other, in a cubin's text."""
    instructions = [
        (int(found[1], 16), found[2])
        for found in re.finditer(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\d+ )?([A-Z][^;]*);", code)
    ]
    loops = []
    for at, text in instructions:
        target = re.match(r"BRA.*(?<=\s)0x([0-9a-f]+)", text)
        if target and int(target[1], 16) < at:
            loops.append((int(target[1], 16), at))
    inner = [x for x in loops if not any(y != x and x[0] <= y[0] and y[1] <= x[1] for y in loops)]
    return sum(first <= at <= last for at, _ in instructions for first, last in inner)


def depthwise(variant: str) -> None:
    """The depthwise convolution of a Mamba block in bfloat16, or float64, with all that it can be given."""
    from lra_ssm.ops.backends import triton_depthwise

    u, dtype = torch.zeros(2, 64, 256, dtype=torch.bfloat16), torch.float32
    if "float64" in variant:
        u, dtype = u.double(), torch.float64
    u = u.transpose(1, 2).contiguous().transpose(1, 2) if "last" in variant else u
    reset, small = torch.zeros(2, 256, dtype=torch.bool), [torch.zeros(*n, dtype=dtype) for n in ((64, 4), (64,))]
    small.append(torch.zeros(2, 64, 3, dtype=dtype))
    triton_depthwise.convolution_backward(triton_depthwise.convolution(u, *small, reset, True), u, *small, reset, True)


def losses(variant: str) -> None:
    """Cross-entropy with GPT-2's vocabulary, padded."""
    from lra_ssm.ops.backends import triton_losses

    logits = torch.zeros(4, 50272, dtype=torch.float64 if "float64" in variant else torch.bfloat16)
    scale = torch.zeros(4, dtype=torch.promote_types(logits.dtype, torch.float32))
    triton_losses.softmax_losses(logits, torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.bool), scale)


def s4d_kernel(variant: str) -> None:
    """S4D's convolution kernels of a bidirectional layer."""
    from lra_ssm.ops.backends import triton_s4d_kernel

    double = "float64" in variant
    dtype = torch.complex128 if double else torch.complex64
    A, C = torch.zeros(8, 32, dtype=dtype), torch.zeros(2, 8, 32, dtype=dtype)
    system = (A[:, 0].real, A, A, C)
    triton_s4d_kernel.s4d_kernel_zoh_backward(triton_s4d_kernel.s4d_kernel_zoh(*system, 1024, double), *system)


def compiled(tmp_path, variants) -> list[dict]:
    triton = pytest.importorskip("triton")
    if not (Path(triton.__file__).parent / "backends/nvidia/bin/ptxas").exists():
        pytest.skip("this triton comes without ptxas")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run([sys.executable, __file__, *variants], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.parametrize(
    "variants",
    [
        pytest.param(CHOSEN, marks=pytest.mark.slow, id="chosen"),
        pytest.param([name for name in VARIANTS if name not in CHOSEN], marks=pytest.mark.trials, id="the others"),
    ],
)
def test_kernels_compile_for_hopper(variants, tmp_path):
    records = compiled(tmp_path, variants)
    assert {record["variant"] for record in records} == set(variants)
    assert {record["kernel"] for record in records} == KERNELS
    version, bounds = json.loads(BOUNDS.read_text()).values()
    of_these = [bound for name in variants for bound in bounds if bound[0] == name]
    for record, (variant, kernel, instructions, _, stack) in zip(records, of_these, strict=True):
        print(record)
        assert (record["variant"], record["kernel"]) == (variant, kernel)
        if importlib.metadata.version("triton").startswith(version):  # another one compiles otherwise
            assert record.get("per state and step", 0) <= (instructions or 0) * 1.05, record
            assert record["stack"] <= stack + 32, record
        # bytes: at most some spilled registers, most in float64, and no array in local memory
        assert record["stack"] <= 1536, record
        if "float64" not in record["variant"] and "odd sizes" not in record["variant"]:
            # one for each state and step, and softplus once for all lanes (a tile of odd sizes has too few for that)
            assert record.get("exponentials", 0) <= 1.4, record


if __name__ == "__main__":
    compile_variants(sys.argv[1:] or list(VARIANTS))
