"""Steps of a fit on their own: what a Trainer is asked for, and when starting weights are fetched."""

import pytest

from lra_ssm.cli.starting_weights import StartingWeights
from lra_ssm.runs.start import tensors_alone


def test_tensors_alone_are_asked_for_where_lightning_knows_the_option():
    assert tensors_alone(lambda model, weights_only=None: None) == {"weights_only": True}
    assert tensors_alone(lambda model, ckpt_path=None: None) == {}


def test_starting_weights_are_fetched_when_they_are_loaded_not_before(monkeypatch):
    monkeypatch.setattr("lra_ssm.cli.starting_weights.ModelFiles", lambda name: pytest.fail("fetched"))
    StartingWeights("wandb:a/b/c:v0", allow_pickle=False)
