"""What is measured computes the right thing: baselines, truths and their pieces against the references, in float64."""

from dataclasses import replace

import pytest
import torch

from lra_ssm.bench import baselines, s4d
from lra_ssm.bench.compare import errors_against
from lra_ssm.bench.layers import LayerTruth, LayerWork
from lra_ssm.bench.scan import (
    B2S6,
    B2S6_SECOND_SCAN,
    B2S6_WITHOUT_BIAS,
    CASES,
    CHANNELS_FIRST,
    CHANNELS_LAST,
    S6,
    ScanTruth,
    ScanWork,
    scan_inputs,
)
from lra_ssm.bench.work import BOTH, FORWARD, Shape, random_like
from lra_ssm.ops import (
    bidirectional_convolution_reference,
    causal_convolution_reference,
    s4d_kernel_reference,
    selective_scan_reference,
)

CPU, DOUBLE = torch.device("cpu"), torch.float64
SHAPE = Shape(2, 16, 3, 37)


def assert_equal(got, want, tolerance=1e-9):
    assert got.keys() == want.keys()
    errors = errors_against(got, want, "reference")
    assert errors.value < tolerance and (errors.worst_gradient or 0) < tolerance, errors


def reference(case, shape):
    """y and every gradient by `selective_scan_reference` on the whole tensors."""
    x = scan_inputs(case, shape, CHANNELS_FIRST, CPU, DOUBLE)
    leaves = {name: v.detach().requires_grad_() for name, v in x.items()}
    discretization = "zoh" if case.zoh else "euler"
    y = selective_scan_reference(**leaves, delta_softplus=True, discretization=discretization)
    grads = torch.autograd.grad(y, list(leaves.values()), random_like(y))
    return {"y": y.detach(), **{f"gradient of {n}": g for n, g in zip(leaves, grads, strict=True)}}


@pytest.mark.parametrize("length", [1, 2, 37])
@pytest.mark.parametrize("case", [S6, CASES[2], CASES[3], B2S6], ids=lambda case: case.name)
@pytest.mark.parametrize("by", ["loop over time", "parallel scan", "cumulative sums of logs"])
def test_baselines_equal_the_reference(by, case, length):
    if by == "cumulative sums of logs" and case.is_complex:
        with pytest.raises(ValueError, match="real A alone"):
            ScanWork(case, SHAPE, by, CPU, dtype=DOUBLE).build()
        return
    shape = replace(SHAPE, length=length)
    assert_equal(ScanWork(case, shape, by, CPU, dtype=DOUBLE).build().results(), reference(case, shape))


def test_compiled_chunks_without_the_compiler_equal_the_reference(monkeypatch):
    monkeypatch.setattr(baselines, "_compiled", lambda: baselines._unrolled)
    shape = replace(SHAPE, length=48)
    assert_equal(ScanWork(S6, shape, "compiled chunks", CPU, dtype=DOUBLE).build().results(), reference(S6, shape))


@pytest.mark.parametrize("case", [S6, CASES[1], B2S6_WITHOUT_BIAS, B2S6], ids=lambda case: case.name)
def test_the_truth_in_pieces_is_the_whole_truth(case, monkeypatch):
    monkeypatch.setattr(ScanTruth, "_channels_per_piece", lambda self: 2)
    truth = ScanTruth(case, SHAPE, CPU)
    assert truth.label == "float64 reference"
    assert_equal(truth.results(), reference(case, SHAPE), 1e-12)


def test_the_truth_of_long_sequences_is_the_eager_backend():
    truth = ScanTruth(B2S6, SHAPE, CPU, most_steps=1)
    assert truth.label == "float64 run of the eager backend"
    assert_equal(truth.results(), reference(B2S6, SHAPE))


@pytest.mark.parametrize("layout", [CHANNELS_FIRST, CHANNELS_LAST])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_cases_in_both_layouts(case, layout):
    work = ScanWork(case, SHAPE, "eager", CPU, layout)
    u = scan_inputs(case, SHAPE, layout, CPU, torch.float32)["u"]
    assert (u.stride(1) == 1) == (layout == CHANNELS_LAST)
    prepared = work.build()
    truth = ScanTruth(replace(case, name=case.truth, second_scan=False), SHAPE, CPU).results()
    assert_equal(prepared.results(), truth, 1e-4)
    assert prepared.calls[FORWARD]().shape == u.shape and len(prepared.calls[BOTH]()) == len(truth) - 1


def test_the_second_scan_is_the_bias():
    assert B2S6_SECOND_SCAN.truth == B2S6.name
    ours = ScanWork(B2S6_SECOND_SCAN, SHAPE, "eager", CPU, dtype=DOUBLE).build().results()
    assert_equal(ours, reference(B2S6, SHAPE))


@pytest.mark.parametrize("part", s4d.PARTS)
def test_parts_of_s4d_equal_the_references(part):
    shape = Shape(2, 4, 3, 29)
    x = s4d.s4d_inputs(shape, CPU, DOUBLE)
    kernel = s4d_kernel_reference(x["delta"], x["A"], x["B"], x["C"], shape.length)
    expected = {
        s4d.OURS: causal_convolution_reference(x["u"], kernel),
        s4d.KERNEL: kernel,
        s4d.CONVOLUTION: causal_convolution_reference(x["u"], x["k"]),
        s4d.ONE_FFT: bidirectional_convolution_reference(x["u"], x["k_forward"], x["k_backward"]),
    }
    twins = {s4d.NAIVE: s4d.OURS, s4d.NAIVE_KERNEL: s4d.KERNEL, s4d.SHORTEST_FFT: s4d.CONVOLUTION}
    ours = s4d.S4DWork(part, shape, CPU, DOUBLE).build().results()
    want = expected[{**twins, s4d.TWO_FFT: s4d.ONE_FFT}.get(part, part)]
    assert (ours["y"] - want).abs().max() < 1e-9 * want.abs().max()
    assert_equal(s4d.S4DTruth(part, shape, CPU).results(), ours)


@pytest.mark.parametrize("layer", ["S4D", "StableSSM", "LRU", "S6", "B2S6"])
def test_layers_run_and_their_truth_is_near(layer):
    arguments = (("bidirectional", True), ("d_state", 4))
    work = LayerWork(layer, arguments, 2, 33, 16, "eager", CPU)
    results = work.build().results()
    assert {"y", "gradient of x"} < results.keys()
    errors = errors_against(results, LayerTruth(work).results(), "float64")
    assert errors.value < 1e-5 and errors.worst_gradient < 1e-3


def test_a_backend_that_cannot_run_a_layers_call_is_an_error(monkeypatch):
    from lra_ssm.ops import backends

    picky = backends.Operation(lambda inputs: None, lambda device, inputs: "it is picky")
    monkeypatch.setitem(backends.BACKENDS, "picky", backends.Backend(picky))
    with pytest.raises(ValueError, match="backend: 'picky' cannot run this call: it is picky"):
        LayerWork("S6", (("d_state", 4),), 2, 9, 16, "picky", CPU).build()
