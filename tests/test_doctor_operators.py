"""Every operator by every backend on a tiny case: what runs, what is refused, what is wrong."""

from contextlib import suppress

import pytest
import torch

from lra_ssm.cli import doctor_operators
from lra_ssm.cli.doctor_operators import TINY, Shape, check_operators
from lra_ssm.ops import backends
from lra_ssm.ops.backends import Operation

CPU = torch.device("cpu")
SMALL = Shape(1, 8, 4, 64)


@pytest.fixture(autouse=True)
def timed_for_less(monkeypatch):
    monkeypatch.setattr(doctor_operators, "_SECONDS", 1e-3)


def test_every_operator_by_every_backend_is_right_and_timed():
    begun = []
    checks = list(check_operators(CPU, TINY, lambda *names: begun.append(names)))
    ran = [check for check in checks if check.refused is None]
    assert [(check.operator, check.backend) for check in ran] == begun
    assert not [check for check in ran if check.failure or check.is_wrong] and all(c.tokens_per_s > 0 for c in ran)
    by = {name: {check.backend for check in ran if check.operator == name} for name in {c.operator for c in ran}}
    scans = {"cpu", "eager", "reference"} & set(backends.BACKENDS)
    assert by["selective_scan, S6"] == by["selective_scan, B2S6"] == by["linear_scan"] == by["s4d_kernel"] == scans
    assert by["ssd_scan"] == {"eager", "reference"}
    assert {"causal_convolution", "depthwise_convolution", "linear_cross_entropy", "selective_step"} < by.keys()
    refused = {check.backend: check.refused for check in checks if check.refused}
    assert refused.keys() == {"triton", "mamba_ssm"} and "CUDA" in refused["mamba_ssm"]


@pytest.mark.parametrize("how", ["values", "gradients", "nan"])
def test_a_backend_that_computes_something_else_is_wrong(how, monkeypatch):
    run = backends.BACKENDS["eager"].scan.run

    def broken(inputs):
        y, last = run(inputs)
        if how == "nan":
            return y * torch.nan, last
        return (y * 1.001 if how == "values" else y.detach() + 1.001 * (y - y.detach())), last

    monkeypatch.setitem(backends.BACKENDS, "eager", backends.BACKENDS["eager"]._replace(scan=Operation(broken)))
    wrong = [check for check in check_operators(CPU, SMALL) if check.is_wrong]
    assert {check.backend for check in wrong} == {"eager"}
    scans = {"selective_scan, S6", "selective_scan, B2S6"}
    # A linear scan's gradients are its own; its values are made by these kernels.
    assert {check.operator for check in wrong} == (scans if how == "gradients" else scans | {"linear_scan"})


def test_a_backend_that_fails_is_one_line_and_the_others_run(monkeypatch):
    def broken(inputs):
        raise RuntimeError("no kernel image\nis available")

    def refusing(device, inputs):
        return None if inputs is None else "not today"

    monkeypatch.setitem(backends.BACKENDS, "eager", backends.BACKENDS["eager"]._replace(scan=Operation(broken)))
    with suppress(KeyError):
        operation = Operation(backends.BACKENDS["cpu"].scan.run, refusing)
        monkeypatch.setitem(backends.BACKENDS, "cpu", backends.BACKENDS["cpu"]._replace(scan=operation))
    checks = {(check.operator, check.backend): check for check in check_operators(CPU, SMALL)}
    assert checks["selective_scan, S6", "eager"].failure == "RuntimeError: no kernel image is available"
    assert checks["selective_scan, S6", "cpu"].refused == "not today"
    assert checks["selective_scan, S6", "reference"].tokens_per_s > 0
