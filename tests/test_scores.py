"""Which scores count as a run's own, and what a run may begin from."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from lra_ssm.files import sha256
from tests.runner import FIT, SHORT, only_run, printed, refused

TEST = ["test", *FIT[1:], *SHORT]


def scores(run):
    """test.json and the other scores."""
    read = [json.loads((run / name).read_text()) if (run / name).exists() else {}
            for name in ("test.json", "test-others.json")]  # fmt: skip
    return read[0], read[1].get("others", [])


def test_a_score_has_the_digest_of_its_checkpoint_and_its_batches(finished, capsys):
    printed([*TEST, "--trainer.fast_dev_run=true"], capsys)
    assert scores(finished) == ({}, [])  # a trial of a few batches is not recorded
    printed(TEST, capsys)
    own, others = scores(finished)
    best, record = finished / "checkpoints/best.ckpt", json.loads((finished / "run.json").read_text())
    assert own["checkpoint_sha256"] == sha256(best) == record["best"]["sha256"]
    assert own["batches"] == own["of_batches"] == 3 and own["settings"] == {} and others == []
    assert own["began"] <= own["time"] and own["metrics"]["test/loss"] > 0


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--trainer.limit_test_batches=1"], "1 of 3 batches"),
        (["--ckpt_path={best}", "--trainer.precision=bf16-mixed"], "trainer.precision None there, 'bf16-mixed' here"),
        (["--ckpt_path={own}"], "own_checkpoints/best.ckpt, not the run's best.ckpt"),
        (["--ckpt_path={best}", "--data.num_test=12"], "other data than the run's"),
    ],
)
def test_other_scores_do_not_count_as_the_runs(flags, why, finished, capsys):
    """tests/results/test_record.py has all reasons; these are seen by the command."""
    printed(TEST, capsys)
    before = scores(finished)[0]
    names = {"best": finished / "checkpoints/best.ckpt", "own": finished / "own_checkpoints/best.ckpt"}
    names["own"].parent.mkdir()
    torch.save({**torch.load(names["best"], weights_only=True), "epoch": 7}, names["own"])
    out = printed([*TEST, *(flag.format(**names) for flag in flags)], capsys)
    own, others = scores(finished)
    assert own == before
    if "{own}" in str(flags):  # a file in another folder is not a checkpoint of the run
        assert others == []
    else:
        assert why in others[0]["why"] and "not as the run's result" in out


def test_a_checkpoint_of_other_data_settings_is_refused_and_what_a_run_began_from_is_recorded(finished, capsys):
    last = Path(shutil.copy(finished / "checkpoints/last.ckpt", "theirs.ckpt"))
    longer = [*FIT, "--trainer.max_epochs=2", "--data.num_train=16", "--experiment=longer", f"--ckpt_path={last}"]
    message = refused([*longer, "--data.batch_size=4"], capsys)
    assert "made with other settings: data.batch_size 8 there, 4 here; give the same" in message
    assert "model.optimizer.lr 0.01 there, 0.02 here" in refused([*longer, "--model.optimizer.lr=0.02"], capsys)
    assert not Path("runs/longer").exists()
    printed(longer, capsys)
    began = json.loads((only_run(Path.cwd(), "longer") / "run.json").read_text())["ckpt_path"]
    assert began == {"file": str(last), "sha256": sha256(last)}


def test_a_changed_default_is_named_when_a_run_is_resumed(finished, capsys):
    config, record = finished / "config.yaml", finished / "run.json"
    config.write_text(config.read_text().replace("padding: masked", "padding: seen"))
    changed = "a default has changed since this run was trained: model.network.padding 'seen' there"
    assert changed in printed([*FIT, *SHORT], capsys)
    record.write_text(record.read_text().replace('"finished"', '"interrupted"'))
    message = refused([*FIT, *SHORT], capsys)
    assert "began with other settings: model.network.padding 'seen' there, 'masked' here" in message
