"""`compute`: how a run computes, which is no part of what it is."""

import json

import pytest
import torch

from lra_ssm.errors import InputError
from lra_ssm.layers import S4D, BlockSpec, LayerSpec, S4Block
from lra_ssm.models import Classifier
from lra_ssm.runs.compute import ComputeSettings
from tests.runner import FIT, SHORT, only_run, run, succeed


def test_recomputed_blocks_change_nothing():
    """Neither gradients, through dropout too, nor what BatchNorm remembers."""
    torch.manual_seed(0)
    block = BlockSpec(S4Block, norm="batch", dropout=0.3)
    usual = Classifier(LayerSpec(S4D, d_state=4), num_classes=3, vocab_size=5, d_model=8, n_layers=2, block=block)
    again = Classifier(LayerSpec(S4D, d_state=4), num_classes=3, vocab_size=5, d_model=8, n_layers=2, block=block)
    again.load_state_dict(usual.state_dict())
    ComputeSettings(recompute_blocks=True).apply(again)
    inputs, lengths = torch.randint(0, 5, (4, 9)), torch.tensor([9, 3, 7, 1])
    for network in (usual, again):
        for seed in range(2):
            torch.manual_seed(seed)
            network(inputs, lengths).square().sum().backward()
    for (name, p), q in zip(usual.named_parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=0, msg=name)
    for (name, p), q in zip(usual.named_buffers(), again.named_buffers(), strict=True):
        torch.testing.assert_close(p, q[1], rtol=0, atol=0, msg=name)
    assert next(b for n, b in again.named_buffers() if n.endswith("num_batches_tracked")) == 2


def test_a_network_without_blocks_is_told():
    with pytest.raises(InputError, match="compute.recompute_blocks: Linear has no Backbone"):
        ComputeSettings(recompute_blocks=True).apply(torch.nn.Linear(2, 2))


def test_a_run_is_the_same_computed_otherwise(tmp_path):
    """It goes on, says so in a line, and ends with the same weights; the record has how each start computed."""
    whole = tmp_path / "whole"
    whole.mkdir()
    succeed([*FIT, *SHORT], whole)
    first = tmp_path / "first"
    first.mkdir()
    stop = {"KILL_AT": "train_batch_end:1", "KILL_WITH": "SIGTERM"}
    assert run([*FIT, *SHORT, "--checkpoint.every_n_steps=1"], first, stop).code == 143
    said = succeed([*FIT, *SHORT, "--compute.recompute_blocks=true"], first).out
    assert "note: it computes in another way than before: compute.recompute_blocks False -> True" in said
    assert only_run(first).name == only_run(whole).name
    starts = json.loads((only_run(first) / "run.json").read_text())["starts"]
    assert [start["compute"]["recompute_blocks"] for start in starts] == [False, True]
    ours, theirs = (torch.load(only_run(f) / "checkpoints/last.ckpt", weights_only=True) for f in (first, whole))
    for name, value in theirs["state_dict"].items():
        torch.testing.assert_close(ours["state_dict"][name], value, rtol=0, atol=0, msg=name)
    assert "compute" not in json.dumps(ours["hyper_parameters"], default=str)
