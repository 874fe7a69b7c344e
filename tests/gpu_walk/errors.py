"""Errors of the Triton scan of B2S6's form in float32, against float64.

`python -m tests.gpu_walk.errors [SYSTEMS] [tied]`; tied: one A for all channels and 32 pairs, as
LRA's configs have it, not an A and 8 pairs for each channel.

For each largest |delta A| the root mean square of an error over that of the values, its mean over random systems of 32
steps and that mean's deviation.  The kernels are interpreted, and products that enter a sum are not rounded first, as
the GPU's compiler fuses them.
"""

import os
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from lra_ssm.bars import Bar
from lra_ssm.ops.backends import triton_call
from lra_ssm.tables import table, terminal_width
from tests.ops.scan_cases import make_inputs, run

SIZES = (1e-8, 1e-4, 1e-2, 1.0, 3.0, 10.0, 1e3)
SHOWN = ("y", "u", "delta", "A", "B", "C", "B_bias")


def fuse_products() -> None:
    """The interpreter's float32 products keep their exact value for one sum."""
    multiply = InterpreterBuilder.create_fmul

    def product(self: Any, x: TensorHandle, y: TensorHandle) -> TensorHandle:
        result = multiply(self, x, y)
        if result.data.dtype == np.float32:
            result.exact = x.data.astype(np.float64) * y.data
        return result

    def total(self: Any, x: TensorHandle, y: TensorHandle, sign: int = 1) -> TensorHandle:
        left = getattr(x, "exact", x.data)
        right = y.data if left is not x.data else getattr(y, "exact", y.data)  # one of two products
        return TensorHandle((left + sign * right).astype(x.data.dtype), x.dtype.scalar)

    def fma(self: Any, x: TensorHandle, y: TensorHandle, z: TensorHandle) -> TensorHandle:
        exact = x.data.astype(np.float64) * y.data + z.data
        return TensorHandle(exact.astype(z.data.dtype), z.dtype.scalar)

    InterpreterBuilder.create_fmul, InterpreterBuilder.create_fma = product, fma
    InterpreterBuilder.create_fadd = total
    InterpreterBuilder.create_fsub = lambda self, x, y: total(self, x, y, -1)


def errors(size: float, seed: int, tied: bool) -> list[float]:
    """Of one system, in the order of SHOWN."""
    rows, N = (1, 32) if tied else (4, 8)
    form = dict(batch=1, D=4, N=N, L=32, optional=("D", "B_bias"), seed=seed)
    groups = 1 if tied else 2
    wide = make_inputs(True, f"{groups} complex", f"{groups} real", **form)  # type: ignore[arg-type]
    random = torch.Generator().manual_seed(seed)
    length, phase, decay = torch.rand(3, rows, N, generator=random, dtype=torch.float64)
    wide["delta"] = 0.1 + 0.9 * torch.rand(wide["delta"].shape, generator=random, dtype=torch.float64)
    A = torch.polar(size * (0.1 + 0.9 * length), 1.6 + 1.4 * phase)
    wide["A"] = torch.complex(-0.05 - 0.5 * decay, A.imag) if size > 1 else A
    narrow = {k: x.to(torch.complex64 if x.is_complex() else torch.float32) for k, x in wide.items()}
    narrow["A"] = narrow["A"].expand(4, -1)
    truth = run({k: x.to(wide[k].dtype) for k, x in narrow.items()}, "reference", discretization="zoh")
    found = run(narrow, "triton", discretization="zoh")
    return [float((found[k].to(truth[k].dtype) - truth[k]).norm() / truth[k].norm()) for k in SHOWN]


def main(systems: int, tied: bool) -> None:
    fuse_products()
    triton_call.CHUNK = 16
    rows = []
    with Bar("systems", systems * len(SIZES)) as bar:
        for size in SIZES:
            of_size = []
            for seed in range(systems):
                of_size.append(errors(size, seed, tied))
                bar.advance(1)
            mean, off = np.mean(of_size, axis=0), np.std(of_size, axis=0) / np.sqrt(systems)
            rows.append([f"{size:g}", *(f"{m * 1e7:.2f} ± {d * 1e7:.2f}" for m, d in zip(mean, off, strict=True))])
    print(table(("|delta A|, e-7", *SHOWN), rows, width=terminal_width()))


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    main(numbers[0] if numbers else 40, "tied" in sys.argv)
