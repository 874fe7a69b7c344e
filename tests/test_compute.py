"""`compute`: how a run computes, which is no part of what it is."""

import copy
import json
from contextlib import nullcontext, suppress
from functools import partialmethod

import pytest
import torch

from lra_ssm.errors import InputError
from lra_ssm.layers import S6, SSD, BlockSpec, LayerSpec, S4Block
from lra_ssm.models import Classifier
from lra_ssm.ops import backends
from lra_ssm.runs.compute import ComputeSettings
from tests.interrupted import assert_same, outcome
from tests.runner import FIT, printed

CPU = torch.device("cpu")


SMALL_S6 = LayerSpec(S6, d_state=4)


def network(layer: LayerSpec = SMALL_S6) -> Classifier:
    torch.manual_seed(0)
    block = BlockSpec(S4Block, norm="batch", dropout=0.3)
    return Classifier(layer, num_classes=3, vocab_size=5, d_model=8, n_layers=2, block=block)


def assert_same_after_backward(usual, other, lengths, **tolerance):
    """Gradients, through dropout too, and what BatchNorm remembers, after a batch of each of these lengths."""
    for length in lengths:
        inputs, valid = torch.randint(0, 5, (4, length)), torch.tensor([length, 3, 5, 1])
        for each in (usual, other):
            torch.manual_seed(length)
            each(inputs, valid).square().sum().backward()
    grads = [[parameter.grad for parameter in each.parameters()] for each in (usual, other)]
    torch.testing.assert_close(*grads, **tolerance)
    torch.testing.assert_close([*usual.buffers()], [*other.buffers()], **tolerance)


@pytest.mark.parametrize("layer", [SMALL_S6, LayerSpec(SSD, d_state=4, head_dim=4)])
def test_recomputed_blocks_change_nothing(layer):
    """SSD keeps what it computed, unless its block is recomputed anyway."""
    usual, again = network(layer), network(layer)
    with ComputeSettings(recompute_blocks=True).applied(again, CPU):
        pass  # the network keeps it
    assert_same_after_backward(usual, again, (9, 9), rtol=0, atol=0)
    assert next(b for n, b in again.named_buffers() if n.endswith("num_batches_tracked")) == 2


def test_compiled_blocks_are_the_same_modules(monkeypatch):
    """What is saved and copied of a network knows nothing of it."""
    monkeypatch.setattr("lra_ssm.runs.compute._eager_random_numbers", nullcontext)  # inductor takes long to import
    compiled = network()
    with ComputeSettings(compile=True).applied(compiled, CPU):
        pass  # the network keeps it
    assert all(block._compiled_call_impl is not None for block in compiled.backbone.blocks)
    assert compiled.state_dict().keys() == network().state_dict().keys()
    assert all(block._compiled_call_impl is None for block in copy.deepcopy(compiled).backbone.blocks)


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True])
def test_compiled_blocks_change_nothing(again, monkeypatch):
    """Over batches of several lengths, whose padding BatchNorm passes over; compiled for few of them."""
    monkeypatch.setattr("torch.nn.Module.compile", partialmethod(torch.nn.Module.compile, backend="aot_eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # of tests before this one
    usual, compiled = network(), network()
    with ComputeSettings(compile=True, recompute_blocks=again).applied(compiled, CPU):
        assert torch._inductor.config.fallback_random  # inductor's dropout drops the same
        assert_same_after_backward(usual, compiled, (9, 12, 5, 33))
    assert not torch._inductor.config.fallback_random
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= (8 if again else 4)


def test_within_it_all_computes_so(monkeypatch):
    """The backend on a CPU; on a GPU float32 products in TF32 unless it says otherwise."""
    calls, before = [], torch.get_float32_matmul_precision()
    monkeypatch.setitem(backends.BACKENDS[backends.SCAN], "eager", backends.Operation(calls.append))
    with ComputeSettings(backend="eager").applied(network(), CPU), suppress(TypeError):  # the stand-in gives no result
        network()(torch.zeros(1, 4, dtype=torch.int64))
    assert len(calls) == 1
    for precision, device in (("high", "cuda"), ("highest", "cpu")):
        with ComputeSettings().applied(network(), torch.device(device)):
            assert torch.get_float32_matmul_precision() == precision
        assert torch.get_float32_matmul_precision() == before


def test_what_cannot_be_done_is_told():
    for name in ("recompute_blocks", "compile"):
        with pytest.raises(InputError, match=f"compute.{name}: Linear has no Backbone"):
            ComputeSettings(**{name: True}).applied(torch.nn.Linear(2, 2), CPU).__enter__()
    with pytest.raises(InputError, match="compute.backend: mamba_ssm cannot run here: .* CUDA device"):
        ComputeSettings(backend="mamba_ssm").applied(network(), CPU).__enter__()


def test_a_run_is_the_same_computed_otherwise(interrupted, uninterrupted, tmp_path, capsys):
    """It goes on, says so in a line, and ends with the same weights; the record has how each start computed."""
    out = printed([*FIT, "--compute.recompute_blocks=true"], capsys)
    assert "note: it computes in another way than before: compute.recompute_blocks False there, True here" in out
    assert_same(outcome(tmp_path), uninterrupted("epochs").outcome)
    starts = json.loads((interrupted / "run.json").read_text())["starts"]
    assert [start["compute"]["recompute_blocks"] for start in starts] == [False, True]
    settings = torch.load(interrupted / "checkpoints/last.ckpt", weights_only=True)["hyper_parameters"]
    assert "compute" not in json.dumps(settings, default=str)
