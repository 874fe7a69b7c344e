"""Which scores count as a run's own, and what a run may begin from."""

import json
import shutil

import pytest
import torch

from lra_ssm.files import sha256
from tests.runner import FIT, SHORT, fail, only_run, succeed


@pytest.fixture
def here(trained, tmp_path):
    """A copy of a finished run and its data, without its scores."""
    folder = shutil.copytree(trained[0], tmp_path / "copy")
    for file in only_run(folder).glob("*.json"):
        if file.name.startswith(("test", "validate")):
            file.unlink()
    return folder


TEST = ["test", *FIT[1:], *SHORT]


def scores(folder):
    """test.json and the other scores."""
    run = only_run(folder)
    read = [json.loads(file.read_text()) if file.exists() else {} for file in
            (run / "test.json", run / "test-others.json")]  # fmt: skip
    return read[0], read[1].get("others", [])


def test_a_score_has_the_digest_of_its_checkpoint_and_its_batches(here):
    succeed([*TEST, "--trainer.fast_dev_run=true"], here)
    assert scores(here) == ({}, [])  # a trial of a few batches is not recorded
    succeed(TEST, here)
    own, others = scores(here)
    run = only_run(here)
    best = run / "checkpoints/best.ckpt"
    assert own["checkpoint_sha256"] == sha256(best) == json.loads((run / "run.json").read_text())["best"]["sha256"]
    assert own["batches"] == own["of_batches"] == 3 and own["settings"] == {} and others == []
    assert own["began"] <= own["time"] and own["metrics"]["test/loss"] > 0


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--trainer.limit_test_batches=1"], "1 of 3 batches"),
        (["--ckpt_path={best}", "--trainer.precision=bf16-mixed"], "trainer.precision None there, 'bf16-mixed' here"),
        (["--ckpt_path=last"], "last.ckpt, not the run's best.ckpt"),
        (["--ckpt_path={own}"], "own_checkpoints/best.ckpt, not the run's best.ckpt"),
        (["--ckpt_path={best}", "--data.num_test=12"], "other data than the run's"),
        (["--ckpt_path={best}", "--model.network.padding=seen"], "other settings (model.network.padding None there"),
    ],
)
def test_other_scores_do_not_count_as_the_runs(flags, why, here):
    succeed(TEST, here)
    before, run = scores(here)[0], only_run(here)
    (run / "own_checkpoints").mkdir()
    state = torch.load(run / "checkpoints/best.ckpt", weights_only=True)
    torch.save({**state, "epoch": 7}, run / "own_checkpoints/best.ckpt")
    names = {"best": run / "checkpoints/best.ckpt", "own": run / "own_checkpoints/best.ckpt"}
    out = succeed([*TEST, *(flag.format(**names) for flag in flags)], here).out
    own, others = scores(here)
    assert own == before
    if "{own}" in str(flags):  # a file in another folder is not a checkpoint of the run
        assert others == []
    else:
        assert why in others[0]["why"] and "not as the run's result" in out


def test_a_test_that_began_before_the_fit_ended_does_not_count(here):
    record = only_run(here) / "run.json"
    content = json.loads(record.read_text())
    content["starts"][-1]["ended"] = "2999-01-01T00:00:00+00:00"
    record.write_text(json.dumps(content))
    succeed(TEST, here)
    own, (other,) = scores(here)
    assert own == {} and "was not finished" in other["why"]


def test_a_checkpoint_of_other_data_settings_is_refused_and_what_a_run_began_from_is_recorded(here):
    run = only_run(here)
    last = shutil.copy(run / "checkpoints/last.ckpt", here / "theirs.ckpt")
    longer = [*FIT, "--trainer.max_epochs=2", "--data.num_train=16", "--experiment=longer", f"--ckpt_path={last}"]
    message = fail([*longer, "--data.batch_size=4"], here)
    assert "made with other settings: data.batch_size 8 there, 4 here; give the same" in message
    assert "model.optimizer.lr 0.01 there, 0.02 here" in fail([*longer, "--model.optimizer.lr=0.02"], here)
    assert not (here / "runs/longer").exists()
    succeed(longer, here)
    began = json.loads((only_run(here, "longer") / "run.json").read_text())["ckpt_path"]
    assert began == {"file": str(last), "sha256": sha256(here / "theirs.ckpt")}


def test_a_changed_default_is_named_when_a_run_is_resumed(here):
    run = only_run(here)
    config, record = run / "config.yaml", run / "run.json"
    config.write_text(config.read_text().replace("padding: masked", "padding: seen"))
    assert (
        "a default has changed since this run was trained: model.network.padding 'seen' there"
        in succeed([*FIT, *SHORT], here).out
    )
    record.write_text(record.read_text().replace('"finished"', '"interrupted"'))
    assert "began with other settings: model.network.padding 'seen' there, 'masked' here" in fail([*FIT, *SHORT], here)
