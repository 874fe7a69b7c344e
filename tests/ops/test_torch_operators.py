"""What torch is told about our operators is so: schemas, shapes and strides of fake tensors, gradients."""

from __future__ import annotations

import pytest
import torch

from lra_ssm.ops.backends import (
    cpu_linear_scan,
    cpu_s4d_kernel,
    cpu_scan,
    triton_depthwise,
    triton_s4d_kernel,
    triton_scan,
)
from tests.ops import test_convolution, test_depthwise_convolution
from tests.ops.scan_cases import make_inputs, narrowed, needs_compiled, random_reset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = ("u", "delta", "A", "B", "C", "B_bias", "D", "z", "delta_bias", "initial_state")


def scan_inputs(x, reset=None):
    return (*(x[name] for name in NAMES), reset, True, True, True)


def linear():
    a, b = torch.rand(3, dtype=torch.complex128), torch.randn(2, 9, 3, dtype=torch.complex128)
    return a, b, b[:, 0], random_reset(2, 9)


def in_the_layers_layout():
    x = make_inputs(False, "2 real", "constant", L=9)
    return {name: v.transpose(-1, -2).contiguous().transpose(-1, -2) if v.dim() > 1 else v for name, v in x.items()}


def small(complex_A):
    """As Triton's interpreter, which takes milliseconds a step, can have it."""
    form = "1 interleaved" if complex_A else "1 real"
    x = narrowed(make_inputs(complex_A, form, form, batch=1, D=2, N=2, L=2))
    return x | {name: x[name] if x[name].dim() == 4 else x[name].unsqueeze(1) for name in "BC"}


def depthwise():
    return *test_depthwise_convolution.make(6, 3, batch=1, D=2).values(), torch.zeros(1, 6, dtype=torch.bool), True


CPU = {
    "linear scan": (cpu_linear_scan.constant_scan, linear),
    "selective scan, complex": (
        cpu_scan.operator.scan,
        lambda: scan_inputs(make_inputs(True, "2 interleaved", "constant", L=9), random_reset(2, 9)),
    ),
    "S4D": (cpu_s4d_kernel.s4d_kernel_zoh, lambda: (*test_convolution.kernel_inputs(True, several=2), 70, False)),
}  # fmt: skip
SLOW_CPU = {"selective scan, real": (cpu_scan.operator.scan, lambda: scan_inputs(in_the_layers_layout()))}
TRITON = {"selective scan, complex": (triton_scan.operator.scan, lambda: scan_inputs(small(True)))}
SLOW_TRITON = {
    "selective scan, real": (triton_scan.operator.scan, lambda: scan_inputs(small(False))),
    "S4D": (triton_s4d_kernel.s4d_kernel_zoh, lambda: (*test_convolution.kernel_inputs(True, several=2), 70, True)),
    "depthwise": (triton_depthwise.convolution, depthwise),
}


def cases(table, slow):
    return [pytest.param(*of, id=name) for name, of in table.items()] + [
        pytest.param(*of, id=name, marks=pytest.mark.slow) for name, of in slow.items()
    ]


def check(operator, arguments, device="cpu"):
    arguments = [x.to(device) if isinstance(x, torch.Tensor) else x for x in arguments]
    for x in arguments:
        if isinstance(x, torch.Tensor) and x.dtype != torch.bool:
            x.requires_grad_()
    torch.library.opcheck(operator, tuple(arguments))


@needs_compiled
@pytest.mark.parametrize("operator, arguments", cases(CPU, SLOW_CPU))
def test_operators_in_cpp(operator, arguments):
    check(operator, arguments())


@pytest.mark.parametrize("operator, arguments", cases(TRITON, SLOW_TRITON))
def test_operators_in_triton(operator, arguments, interpreter):
    check(operator, arguments(), DEVICE)
