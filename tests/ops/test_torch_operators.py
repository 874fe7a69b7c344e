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
from tests.ops.operators import make_depthwise, make_linear
from tests.ops.scan_cases import DEVICE, make_inputs, narrowed, needs_compiled, random_reset
from tests.ops.test_convolution import kernel_inputs

NAMES = ("u", "delta", "A", "B", "C", "B_bias", "D", "delta_bias", "initial_state")


def scan_inputs(x, reset=None):
    return (*(x[name] for name in NAMES), reset, True, True, True)


def linear():
    a, b, initial = make_linear(L=9).values()
    return a, b.transpose(1, 2), initial, random_reset(2, 9)


def in_the_layers_layout():
    x = make_inputs(False, "2 real", "constant", L=9)
    return {name: v.transpose(-1, -2).contiguous().transpose(-1, -2) if v.dim() > 1 else v for name, v in x.items()}


def small(complex_A):
    """As Triton's interpreter, which takes milliseconds a step, can have it."""
    form = "1 complex" if complex_A else "1 real"
    return narrowed(make_inputs(complex_A, form, form, batch=1, D=2, N=2, L=2))


def depthwise():
    return *make_depthwise(6, 3, batch=1, D=2).values(), torch.zeros(1, 6, dtype=torch.bool), True


OPERATORS = {
    "C++, linear scan": (cpu_linear_scan.constant_scan, linear),
    "C++, selective scan, complex": (
        cpu_scan.operator.forward,
        lambda: scan_inputs(make_inputs(True, "2 complex", "constant", L=9), random_reset(2, 9)),
    ),
    "C++, selective scan, real": (cpu_scan.operator.forward, lambda: scan_inputs(in_the_layers_layout())),
    "C++, S4D": (cpu_s4d_kernel.operator.forward, lambda: (*kernel_inputs(several=2).values(), 70, False)),
    "Triton, selective scan, complex": (triton_scan.operator.forward, lambda: scan_inputs(small(True))),
    "Triton, selective scan, real": (triton_scan.operator.forward, lambda: scan_inputs(small(False))),
    "Triton, S4D": (triton_s4d_kernel.operator.forward, lambda: (*kernel_inputs(several=2).values(), 70, True)),
    "Triton, depthwise": (triton_depthwise.convolution, depthwise),
}  # fmt: skip
SLOW = ("C++, selective scan, real", "Triton, selective scan, real", "Triton, S4D", "Triton, depthwise")
NAMES_AND_COSTS = [
    pytest.param(name, marks=[*([needs_compiled] * ("C++" in name)), *([pytest.mark.slow] * (name in SLOW))])
    for name in OPERATORS
]


@pytest.mark.parametrize("name", NAMES_AND_COSTS)
def test_operators(name, interpreter):
    operator, arguments = OPERATORS[name]
    device = DEVICE if "Triton" in name else "cpu"
    arguments = [x.to(device) if isinstance(x, torch.Tensor) else x for x in arguments()]
    for x in arguments:
        if isinstance(x, torch.Tensor) and x.dtype != torch.bool:
            x.requires_grad_()
    torch.library.opcheck(operator, tuple(arguments))
