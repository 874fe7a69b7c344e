"""What an operator cannot run is refused in one line that names the argument, what it is and what it should be."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, zeros

from lra_ssm import ops
from tests.ops.operators import make_depthwise, make_linear, make_mamba3, make_ssd
from tests.ops.scan_cases import make_inputs

i, long, boolean = torch.complex64, torch.int64, torch.bool


class Checked(NamedTuple):
    functions: tuple[Callable[..., Any], ...]
    good: dict[str, Any]
    expected: dict[str, str]  # of each tensor, the shape that a refusal gives
    devices: bool = True  # whether these are compared


def with_reset(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return inputs | {"reset": zeros(2, 5, dtype=boolean)}


def selective(complex_A: bool) -> Checked:
    inputs = make_inputs(complex_A, "1 real", "1 real", N=3, L=5, dtype=torch.float32)
    matrices = "(D, N), (batch, N, L) or (batch, G, N, L), batch = 2, D = 4, N = 3, L = 5"
    expected = dict(u="(batch, D, L)", delta="(batch, D, L) = (2, 4, 5)", A="(D, N) or (N,) with D = 4", B=matrices,
                    C=matrices, D="(D,) = (4,)", z="(batch, D, L) = (2, 4, 5)", delta_bias="(D,) = (4,)",
                    B_bias="(D, N) = (4, 3)", initial_state="(batch, D, N) = (2, 4, 3)",
                    reset="(batch, L) = (2, 5)")  # fmt: skip
    return Checked((ops.selective_scan, ops.selective_scan_reference), with_reset(inputs), expected)


def linear(constant: bool) -> Checked:
    inputs = make_linear((0, 0, 0, constant), D=4, L=5, dtype=torch.float32)
    expected = dict(a="(D,) = (4,) or (B, D, L) = (2, 4, 5)", b="(B, D, L)", initial_state="(B, D) = (2, 4)",
                    reset="(B, L) = (2, 5)")  # fmt: skip
    return Checked((ops.linear_scan, ops.linear_scan_reference), with_reset(inputs), expected)


CONV = dict(u="(B, D, L)", initial="(B, D, W-1) = (2, 3, 3)", reset="(B, L) = (2, 5)")
DEPTHWISE = with_reset(make_depthwise(5, 4, D=3, dtype=torch.float32))

CHECKED = {
    "selective": selective(False),
    "selective, complex": selective(True),
    "linear": linear(True),
    "linear, varying": linear(False),
    "Mamba-2's": Checked(
        (ops.ssd_scan, ops.ssd_scan_reference), with_reset(make_ssd(L=5, dtype=torch.float32)),
        dict(x="(batch, L, H, P)", delta="(batch, L, H) = (2, 5, 4)", A="(H,) = (4,)", D="(H,) = (4,)",
             B="(batch, L, G, N)", C="(batch, L, G, N) = (2, 5, 2, 5)",
             initial_state="(batch, H, P, N) = (2, 4, 3, 5)", reset="(batch, L) = (2, 5)"),
    ),
    "Mamba-3's": Checked((ops.mamba3_scan,), make_mamba3(), {}),
    "depthwise": Checked(
        (ops.causal_depthwise_convolution, ops.causal_depthwise_convolution_reference), DEPTHWISE,
        CONV | dict(weight="(D, W) with ", bias="(D,) = (3,)"),
    ),
    "conv_state": Checked(
        (ops.conv_state,), {"W": 4, "lengths": torch.tensor([5, 2])} | {name: DEPTHWISE[name] for name in CONV},
        CONV | dict(lengths="(B,) = (2,), int64 or int32"),
    ),
    "convolution": Checked(
        (lambda u, k: ops.causal_convolution(u, k), lambda u, k: ops.bidirectional_convolution(u, k, zeros(3, 4)),
         lambda u, k: ops.bidirectional_convolution(u, zeros(3, 4), k)),
        dict(u=zeros(2, 3, 4), k=zeros(3, 4)), dict(u="(B, D, L)", k="(D, L) = (3, 4)"), devices=False,
    ),
    "S4D's kernel": Checked(
        (ops.s4d_kernel, ops.s4d_kernel_reference), dict(delta=zeros(3), A=zeros(3, 4), B=zeros(4), C=zeros(3, 4), L=5),
        dict(delta="(D,), real floating", A="(N,) or (D, N) with D = 3", B="(N,) or (D, N) with D = 3, N = 4",
             C="(N,) or (D, N) or (K, D, N) with D = 3, N = 4"), devices=False,
    ),
    "cross entropy": Checked(
        (ops.linear_cross_entropy,),
        dict(x=zeros(23, 5), weight=zeros(11, 5), bias=zeros(11), targets=zeros(23, dtype=long)),
        dict(x="(…, D)", weight="(V, D) with V >= 1 and D = 5", bias="(V,) = (11,)", targets="(23,)"),
    ),
}  # fmt: skip


REAL = ("Mamba-2's", "depthwise", "conv_state", "convolution", "cross entropy")  # which take no complex numbers


# Inputs whose first dimension other inputs are compared with.
UNRELATED = (("S4D's kernel", "delta"), ("cross entropy", "weight"))


def refuse(operator: str, change: dict[str, Any], match: str) -> None:
    for function in CHECKED[operator].functions:
        with pytest.raises(ValueError, match=match) as error:
            function(**{**CHECKED[operator].good, **change})
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("operator, name", [(of, name) for of, checked in CHECKED.items() for name in checked.expected])
def test_every_tensor_is_checked(operator, name):
    """Its type, dtype, layout, device and shape."""
    _, good, expected, devices = CHECKED[operator]
    x, first = good[name], name in ("u", "x", "b")
    named = name if operator != "convolution" or name == "u" else r"k\w*"
    other = torch.float32 if x.dtype in (boolean, long) else long
    for dtype in (other, *([i] if operator in REAL else [])):
        refuse(operator, {name: x.to(dtype)}, f"^{named}: .*{dtype}.*; expected")
    if name != "lengths":
        refuse(operator, {name: x.to_sparse()}, f"^{named}: a sparse_coo tensor; expected a dense one$")
    if devices and not first:
        refuse(operator, {name: x.to("meta")}, f"^{named}: on meta; expected cpu, where [uxb] is$")
    # One more dimension, or one more in the first, where that says nothing about the others.
    longer = [x.unsqueeze(-1)] if (operator, name) != ("cross entropy", "x") else []
    longer += [torch.cat([x, x[:1]])] if not first and (operator, name) not in UNRELATED else []
    for wrong in longer:
        shape = re.escape(str(tuple(wrong.shape)))
        refuse(operator, {name: wrong}, f"^{named}: shape {shape}.*; expected .*{re.escape(expected[name])}")
    if operator.startswith(("selective", "linear", "Mamba")):
        refuse(operator, {name: 0.5}, f"^{name}: float; expected a (bool )?tensor$")


NESTED = torch.nested.nested_tensor([zeros(5, 4), zeros(3, 4)], layout=torch.jagged).transpose(1, 2)


@pytest.mark.parametrize("operator, name, value, match", [
    ("selective", "u", None, "u: None; expected a tensor"),
    ("selective", "u", NESTED, "u: a nested tensor; expected a dense one, with the sequences padded to one length"),
    ("selective", "u", zeros(2, 4, 0), r"u: shape \(2, 4, 0\); expected .* L >= 1"),
    ("selective", "u", zeros(2, 4, 5, dtype=i), "u: dtype torch.complex64; expected a real floating"),
    ("selective", "delta", zeros(5), r"delta: shape \(5,\); expected \(D,\) = \(4,\)"),
    ("selective", "A", zeros(()), r"A: shape \(\)"),
    ("selective", "A", zeros(4, 0), r"A: shape \(4, 0\); expected .* N >= 1"),
    ("selective", "B", zeros(4, 2), r"B: shape \(4, 2\); expected constant \(D, N\) = \(4, 3\)"),
    ("selective", "B", zeros(2, 3, 10), r"B: shape \(2, 3, 10\); expected .*L = 5$"),
    ("selective, complex", "B", zeros(2, 3, 7), r"B: shape \(2, 3, 7\); expected .*2L = 10"),
    ("selective, complex", "B", zeros(2, 3, 10, dtype=i), r"B: shape \(2, 3, 10\); expected .*L = 5$"),
    ("selective", "B", zeros(2, 3, 3, 5), r"B: shape .*G dividing D = 4; G = 3 does not"),
    ("selective", "C", zeros(2, 8, 3, 5), r"C: shape .*G dividing D = 4; G = 8 does not"),
    ("selective", "C", zeros(3), r"C: shape \(3,\)"),
    *(("selective", name, zeros(*shape, dtype=i), f"{name}: dtype torch.complex64, but A is real; expected a real")
      for name, shape in dict(B=(2, 3, 5), C=(4, 3), B_bias=(4, 3), initial_state=(2, 4, 3)).items()),
    ("selective, complex", "D", zeros(4, dtype=i), "D: dtype torch.complex64"),
    ("selective", "discretization", "bilinear", "discretization: 'bilinear'; expected 'euler' or 'zoh'"),
    ("linear", "b", zeros(2, 4, 0), r"b: shape \(2, 4, 0\); .*L >= 1"),
    ("Mamba-2's", "B", zeros(2, 5, 3, 5), r"B: shape \(2, 5, 3, 5\); .*G dividing H = 4"),
    ("Mamba-2's", "delta", None, "delta: None; expected a tensor"),
    ("Mamba-3's", "A", zeros(3), r"A: shape \(3,\); expected \(batch, L, H\) = \(2, 21, 3\)"),
    ("Mamba-3's", "angles", zeros(2, 21, 4), r"angles: shape .*; expected \(batch, L, R\) with 2 R at most N = 6"),
    ("Mamba-3's", "initial_state", zeros(2, 3, 2, 6), r"initial_state: shape .* = \(2, 3, 3, 7\)"),
    ("depthwise", "u", zeros(2, 3, 0), "u: shape .*L >= 1"),
    ("depthwise", "weight", zeros(3, 0), r"weight: shape \(3, 0\).*W >= 1"),
    ("conv_state", "W", 0, "W: 0; expected a width of at least 1"),
    ("convolution", "u", zeros(2, 3, 0), "u: .*L >= 1"),
    ("S4D's kernel", "C", zeros(3, 4, dtype=i), "C: complex, but A is real"),
    ("S4D's kernel", "L", 0, "L: 0; expected at least 1"),
    ("S4D's kernel", "discretization", "euler", "discretization: 'euler'; expected 'zoh' or 'bilinear'"),
    ("cross entropy", "weight", zeros(11, 6), r"weight: shape \(11, 6\).*D = 5"),
    ("cross entropy", "targets", torch.full((23,), 11), "targets: 11 among them; expected 0 to V-1 = 10, or -100"),
    ("cross entropy", "reduction", "mean", "reduction: 'mean'; expected 'none' or 'sum'"),
    ("cross entropy", "chunk_bytes", 0, "chunk_bytes: 0; expected at least 1"),
])  # fmt: skip
def test_refused(operator, name, value, match):
    refuse(operator, {name: value}, f"^{match}")


NOT_HERE = "cannot run this call: runs tensors on a CUDA device only"


@pytest.mark.parametrize("operator, change, match", [
    ("selective", dict(backend="fast"), "backend: 'fast'; expected 'auto' or one of 'cpu', 'eager', 'mamba_ssm'"),
    ("linear", dict(backend="fast"), "backend: 'fast'; expected 'auto'"),
    *(("linear, varying", dict(backend=name), f"backend: '{name}'; expected 'auto', 'eager' or 'reference' for an a")
      for name in ("cpu", "triton", "fast")),
    ("Mamba-2's", dict(chunk_size=0), "chunk_size: 0; expected at least 1"),
    ("Mamba-2's", dict(backend="cpu"), "backend: 'cpu'; expected 'auto' or one of 'eager', 'mamba_ssm', 'reference'"),
    ("Mamba-2's", dict(backend="mamba_ssm"), f"backend: 'mamba_ssm' {NOT_HERE}; x is on cpu"),
    ("selective", dict(backend="mamba_ssm"), f"backend: 'mamba_ssm' {NOT_HERE}; u is on cpu"),
    ("S4D's kernel", dict(backend="mamba_ssm"), "backend: 'mamba_ssm'; expected 'auto' or one of 'cpu', 'eager'"),
    *(("S4D's kernel", dict(backend=name), f"'{name}' cannot run this call: it computes kernels of a complex A only")
      for name in ("triton", "cpu")),
])  # fmt: skip
def test_refused_backends(operator, change, match):
    fast, *_ = CHECKED[operator].functions
    with pytest.raises(ValueError, match=match) as error:
        fast(**CHECKED[operator].good, **change)
    assert "\n" not in str(error.value)
