"""`lra-ssm coordcheck` on small models: what it prints and writes, and what it refuses."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from lra_ssm.analysis.inputs import part_of_batch
from lra_ssm.datamodules.batches import Batch, TokenBatch
from tests.runner import TINY, printed, refused

CHECK = ["coordcheck", str(TINY), "--widths", "8", "16", "32", "--steps=1", "--examples=2", "--length=8", "--layers=1"]
MUP = ["--model.width.parameterization=mup", "--model.width.base_d_model=8"]


@pytest.mark.parametrize("width", [[], MUP])
def test_a_check_prints_slopes_and_writes_a_table_and_a_picture(width, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    out = printed([*CHECK, *width, "--out=checks"], capsys)
    assert ("tiny, mup: d_model 8, 16, 32" if width else "without a width parameterization") in out
    assert "random inputs, as the data is not prepared here" in out
    assert "backbone.blocks.0.glu" in out and "head.weight" in out and "logits" in out
    rows = pd.read_csv("checks/coordcheck.csv")
    assert set(rows["width"]) == {8, 16, 32} and set(rows["what"]) == {"activation", "update", "gradient"}
    assert (rows["rms"] >= 0).all() and rows.groupby("width").size().nunique() == 1
    with Image.open("checks/coordcheck.png") as picture:
        assert picture.width > 500


def test_what_cannot_be_checked_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "a slope needs at least two" in refused([*CHECK[:2], "--widths", "8"], capsys)
    assert "d_model 9" in refused([*CHECK[:2], "--widths", "8", "9", "--random"], capsys)  # of two blocks of channels
    assert "did you mean 'mup'" in refused([*CHECK, MUP[0].replace("mup", "mupp"), MUP[1]], capsys)


def test_batches_are_shortened():
    ids, lengths = torch.arange(24).reshape(4, 6), torch.tensor([6, 2, 5, 1])
    found = part_of_batch(Batch(ids, lengths, torch.arange(4)), slice(2), 3)
    assert torch.equal(found.inputs, ids[:2, :3]) and found.lengths.tolist() == [3, 2] and len(found.labels) == 2
    pairs = part_of_batch(
        Batch(torch.zeros(4, 2, 6, dtype=torch.int64), torch.full((4, 2), 6), torch.arange(4)), slice(3), 4
    )
    assert pairs.inputs.shape == (3, 2, 4) and pairs.lengths.tolist() == [[4, 4]] * 3
    tokens = part_of_batch(TokenBatch(ids, ids + 1, ids == 0, None), slice(1), 2)
    assert torch.equal(tokens.targets, ids[:1, :2] + 1) and tokens.reset.shape == (1, 2) and tokens.lengths is None


@pytest.mark.filterwarnings("error::UserWarning:matplotlib")
def test_models_that_diverge_have_a_verdict_and_a_picture(tmp_path, capsys):
    out = printed([*CHECK, "--random", "--model.optimizer.lr=1e30", f"--out={tmp_path}"], capsys)
    assert "diverges" in out and "diverge: a value is NaN or infinite at some width" in out
    assert (tmp_path / "coordcheck.png").exists()
    assert not np.isfinite(pd.read_csv(tmp_path / "coordcheck.csv")["rms"]).all()
