"""What an operator cannot run is refused in one line that names the argument, what it is and what it should be."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import zeros

from lra_ssm import ops
from tests.ops.operators import make_depthwise, make_linear, make_mamba3, make_ssd
from tests.ops.scan_cases import make_inputs

i, long, boolean = torch.complex64, torch.int64, torch.bool


class Checked(NamedTuple):
    functions: tuple[Callable[..., Any], ...]
    good: dict[str, Any]


def bidirectional(u, k, k_backward=None):
    return ops.bidirectional_convolution(u, k, zeros(3, 4) if k_backward is None else k_backward)


RESET = {"reset": zeros(2, 5, dtype=boolean)}
single = dict(L=5, dtype=torch.float32)
DEPTHWISE = make_depthwise(5, 4, D=3, dtype=torch.float32) | RESET
CONV = {name: DEPTHWISE[name] for name in ("u", "initial", "reset")}
CHECKED = {
    "selective": Checked((ops.selective_scan,), make_inputs(False, "1 real", "1 real", N=3, **single) | RESET),
    "selective, complex": Checked((ops.selective_scan,), make_inputs(True, "1 real", "1 real", N=3, **single) | RESET),
    "linear": Checked((ops.linear_scan,), make_linear((0, 0, 0, True), D=4, **single) | RESET),
    "linear, varying": Checked((ops.linear_scan,), make_linear((0, 0, 0, False), D=4, **single) | RESET),
    "Mamba-2's": Checked((ops.ssd_scan,), make_ssd(**single) | RESET),
    "Mamba-3's": Checked((ops.mamba3_scan,), make_mamba3(**single)),
    "depthwise": Checked((ops.causal_depthwise_convolution, ops.causal_depthwise_convolution_reference), DEPTHWISE),
    "conv_state": Checked((ops.conv_state,), CONV | {"W": 4, "lengths": torch.tensor([5, 2])}),
    "convolution": Checked((ops.causal_convolution, bidirectional), dict(u=zeros(2, 3, 4), k=zeros(3, 4))),
    "S4D's kernel": Checked(
        (ops.s4d_kernel,), dict(delta=zeros(3), A=zeros(3, 4, dtype=i), B=zeros(4), C=zeros(3, 4), L=5)
    ),
    "cross entropy": Checked(
        (ops.linear_cross_entropy,), dict(x=zeros(23, 5), weight=zeros(11, 5), targets=zeros(23, dtype=long))
    ),
}
EVERY = [
    (of, name) for of, checked in CHECKED.items() for name, x in checked.good.items() if isinstance(x, torch.Tensor)
]
REAL = ("Mamba", "depthwise", "conv", "cross")  # which take no complex numbers


def refuse(operator: str, change: dict[str, Any], match: str) -> None:
    for function in CHECKED[operator].functions:
        with pytest.raises(ValueError, match=match) as error:
            function(**{**CHECKED[operator].good, **change})
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("operator, name", EVERY)
def test_every_tensor_is_checked(operator, name):
    """Its type, dtype, layout, device and shape."""
    good = CHECKED[operator].good
    x, compared = good[name], name not in ("u", "x", "b", "delta" if operator == "S4D's kernel" else "")
    named = r"k\w*" if name == "k" else name
    other = torch.float32 if x.dtype in (boolean, long) else long
    for dtype in (other, *([i] if operator.startswith(REAL) else [])):
        refuse(operator, {name: x.to(dtype)}, f"^{named}: dtype {dtype}; expected an? .* dtype$")
    refuse(operator, {name: 0.5}, f"^{named}: float; expected a tensor$")
    refuse(operator, {name: x.to_sparse()}, f"^{named}: a sparse_coo tensor; expected a dense one$")
    # One more dimension, or one more in the first, where others are compared with that.
    wrong = [x.unsqueeze(-1)]
    if compared:
        refuse(operator, {name: x.to("meta")}, rf"^{named}: on meta; expected cpu, where \w+ is$")
        wrong += [torch.cat([x, x[:1]])] if (operator, name) != ("cross entropy", "weight") else []
    for longer in wrong if operator != "cross entropy" else []:
        refuse(operator, {name: longer}, f"^{named}: shape {re.escape(str(tuple(longer.shape)))}; expected .*[(]")


NESTED = torch.nested.nested_tensor([zeros(5, 4), zeros(3, 4)], layout=torch.jagged).transpose(1, 2)


@pytest.mark.parametrize("operator, name, value, match", [
    ("selective", "u", None, "u: None; expected a tensor"),
    ("selective", "u", NESTED, "u: a nested tensor; expected a dense one, with the sequences padded to one length"),
    ("selective", "u", zeros(2, 4, 0), r"u: shape \(2, 4, 0\); expected \(batch, D, L\) with D >= 1 and L >= 1"),
    ("selective", "u", zeros(2, 4, 5, dtype=i), "u: dtype torch.complex64; expected a real floating"),
    ("selective", "z", zeros(2, 4), r"z: shape \(2, 4\); expected \(batch, D, L\) = \(2, 4, 5\)"),
    ("selective", "delta", zeros(5), r"delta: shape \(5,\); expected \(D,\) = \(4,\)"),
    ("selective", "A", zeros(()), r"A: shape \(\)"),
    ("selective", "A", zeros(4, 0), r"A: shape \(4, 0\); expected .* N >= 1"),
    ("selective", "B", zeros(4, 2), r"B: shape \(4, 2\); expected \(D, N\) = \(4, 3\)"),
    ("selective", "B", zeros(2, 3, 10), r"B: shape \(2, 3, 10\); expected .*L = 5$"),
    ("selective, complex", "B", zeros(2, 3, 7), r"B: shape \(2, 3, 7\); expected .*2L = 10"),
    ("selective, complex", "B", zeros(2, 3, 10, dtype=i), r"B: shape \(2, 3, 10\); expected .*L = 5$"),
    ("selective", "B", zeros(2, 3, 3, 5), r"B: shape .*G dividing D = 4; G = 3 does not"),
    ("selective", "C", zeros(2, 8, 3, 5), r"C: shape .*G dividing D = 4; G = 8 does not"),
    *(("selective", name, zeros(*shape, dtype=i), f"{name}: dtype torch.complex64, but A is real; expected a real")
      for name, shape in dict(B=(2, 3, 5), C=(4, 3), B_bias=(4, 3), initial_state=(2, 4, 3)).items()),
    ("selective, complex", "D", zeros(4, dtype=i), "D: dtype torch.complex64"),
    ("selective", "discretization", "bilinear", "discretization: 'bilinear'; expected 'euler' or 'zoh'"),
    ("Mamba-2's", "B", zeros(2, 5, 3, 5), r"B: shape \(2, 5, 3, 5\); .*G dividing H = 4"),
    ("Mamba-3's", "angles", zeros(2, 5, 4), "angles: .* with 2 R at most N = 6"),
    ("conv_state", "W", 0, "W: 0; expected a width of at least 1"),
    ("S4D's kernel", "A", zeros(3, 4), "A: dtype torch.float32; expected a complex dtype"),
    ("S4D's kernel", "L", 0, "L: 0; expected at least 1"),
    ("S4D's kernel", "discretization", "euler", "discretization: 'euler'; expected 'zoh' or 'bilinear'"),
    ("cross entropy", "weight", zeros(11, 6), r"x: shape \(23, 5\); expected .*weight \(V, D\) = \(11, 6\)"),
    ("cross entropy", "targets", zeros(22, dtype=long), r"x: shape \(23, 5\); expected .*targets \(…\) = \(22,\)"),
    ("cross entropy", "targets", torch.full((23,), 11), "targets: 11 among them; expected 0 to V-1 = 10, or -100"),
    ("cross entropy", "reduction", "mean", "reduction: 'mean'; expected 'none' or 'sum'"),
    ("selective", "backend", "fast", "backend: 'fast'; expected 'auto' or one of 'cpu', 'eager', 'mamba_ssm'"),
    *(("linear, varying", "backend", name, f"backend: '{name}'; expected 'auto', 'eager' or 'reference' for an a")
      for name in ("cpu", "triton", "fast")),
    ("Mamba-2's", "chunk_size", 0, "chunk_size: 0; expected at least 1"),
    ("Mamba-2's", "backend", "cpu", "backend: 'cpu'; expected 'auto' or one of 'eager', 'mamba_ssm', 'reference'"),
    *((of, "backend", "mamba_ssm", "backend: 'mamba_ssm' cannot run this call: runs tensors on a CUDA device only")
      for of in ("Mamba-2's", "selective")),
    ("S4D's kernel", "backend", "mamba_ssm", "backend: 'mamba_ssm'; expected 'auto' or one of 'cpu', 'eager'"),
])  # fmt: skip
def test_refused(operator, name, value, match):
    refuse(operator, {name: value}, f"^{match}")
