"""`compute`: how a run computes, which is no part of what it is."""

import copy
import json
from contextlib import nullcontext, suppress
from functools import partialmethod

import pytest
import torch

from lra_ssm.errors import InputError
from lra_ssm.layers import S6, BlockSpec, LayerSpec, S4Block
from lra_ssm.models import Classifier
from lra_ssm.ops import backends
from lra_ssm.runs.compute import ComputeSettings
from tests.runner import FIT, SHORT, only_run, run_here, succeed

CPU = torch.device("cpu")


def network() -> Classifier:
    torch.manual_seed(0)
    block = BlockSpec(S4Block, norm="batch", dropout=0.3)
    layer = LayerSpec(S6, d_state=4)
    return Classifier(layer, num_classes=3, vocab_size=5, d_model=8, n_layers=2, block=block)


def test_recomputed_blocks_change_nothing():
    """Neither gradients, through dropout too, nor what BatchNorm remembers."""
    usual, again = network(), network()
    with ComputeSettings(recompute_blocks=True).applied(again, CPU):
        pass  # the network keeps it
    inputs, lengths = torch.randint(0, 5, (4, 9)), torch.tensor([9, 3, 7, 1])
    for one in (usual, again):
        for seed in range(2):
            torch.manual_seed(seed)
            one(inputs, lengths).square().sum().backward()
    for (name, p), q in zip(usual.named_parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=0, msg=name)
    for (name, p), q in zip(usual.named_buffers(), again.named_buffers(), strict=True):
        torch.testing.assert_close(p, q[1], rtol=0, atol=0, msg=name)
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
        for length in (9, 12, 5, 33):
            inputs, lengths = torch.randint(0, 5, (4, length)), torch.tensor([length, 3, 5, 1])
            for each in (usual, compiled):
                torch.manual_seed(length)
                each(inputs, lengths).square().sum().backward()
    for (name, p), q in zip(usual.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)
    for (name, p), q in zip(usual.named_buffers(), compiled.buffers(), strict=True):
        torch.testing.assert_close(p, q, msg=name)
    assert not torch._inductor.config.fallback_random
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= (8 if again else 4)


def test_within_it_all_computes_so(monkeypatch):
    """The backend on a CPU; on a GPU float32 products in TF32 unless it says otherwise."""
    calls, before = [], torch.get_float32_matmul_precision()
    monkeypatch.setitem(backends.BACKENDS, "eager", backends.Backend(backends.Operation(calls.append)))
    settings = ComputeSettings(backend="eager")
    with settings.applied(network(), CPU), suppress(TypeError):  # the stand-in gives no result
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


def test_a_run_is_the_same_computed_otherwise(tmp_path, monkeypatch):
    """It goes on, says so in a line, and ends with the same weights; the record has how each start computed."""
    whole, first = tmp_path / "whole", tmp_path / "first"
    whole.mkdir()
    first.mkdir()
    succeed([*FIT, *SHORT], whole)
    with monkeypatch.context() as stopped:
        stopped.setenv("KILL_AT", "train_batch_end:1")
        stopped.setenv("KILL_WITH", "SIGTERM")
        assert run_here([*FIT, *SHORT, "--checkpoint.every_n_steps=1"], first).code == 143
    out = succeed([*FIT, *SHORT, "--compute.recompute_blocks=true"], first).out
    assert "note: it computes in another way than before: compute.recompute_blocks False there, True here" in out
    assert only_run(first).name == only_run(whole).name
    starts = json.loads((only_run(first) / "run.json").read_text())["starts"]
    assert [start["compute"]["recompute_blocks"] for start in starts] == [False, True]
    ours, theirs = (torch.load(only_run(f) / "checkpoints/last.ckpt", weights_only=True) for f in (first, whole))
    for name, value in theirs["state_dict"].items():
        torch.testing.assert_close(ours["state_dict"][name], value, rtol=0, atol=0, msg=name)
    assert "compute" not in json.dumps(ours["hyper_parameters"], default=str)
