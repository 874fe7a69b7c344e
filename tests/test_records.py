"""A run's directory that moves or is damaged: one line names the file and what to do, and nothing is repaired."""

import os
import random
import shutil

import pytest
import torch

from lra_ssm.errors import InputError
from lra_ssm.runs.checkpoints import load_checkpoint
from lra_ssm.runs.record import RunRecord
from tests.interrupted import assert_same, outcome
from tests.runner import FIT, SHORT, in_process, printed, refused

TEST = ["test", *FIT[1:]]
BEST, LAST = "checkpoints/best.ckpt", "checkpoints/last.ckpt"


def test_a_run_that_has_moved_keeps_its_best(interrupted, tmp_path, capsys):
    """The best so far is set to a score that no later one reaches: its weights must stay."""
    for name in (BEST, LAST):
        state = torch.load(interrupted / name, weights_only=True)
        (own,) = [value for key, value in state["callbacks"].items() if "SaveBest" in key]
        own.update(best_model_score=torch.tensor(2.0), kth_value=torch.tensor(2.0))
        own["best_k_models"] = {key: torch.tensor(2.0) for key in own["best_k_models"]}
        torch.save(state, interrupted / name)
    before = (interrupted / BEST).read_bytes()
    shutil.move("runs", "elsewhere")
    assert "going on from" in printed([*FIT, "--runs_dir=elsewhere"], capsys)
    (path,) = tmp_path.rglob("best.ckpt")
    assert path.read_bytes() == before
    assert RunRecord.read(path.parents[1]).record["metrics"]["best val/accuracy"] == 2.0


def text(content):
    return lambda path: path.write_text(content, errors="surrogateescape")


def cut(size):
    return lambda path: os.truncate(path, size)


def state(change):
    """What another program makes of a checkpoint."""
    return lambda path: torch.save(change(torch.load(path, weights_only=True)), path)


def without(key):
    return state(lambda checkpoint: checkpoint.pop(key) and checkpoint)


COPY = "best.ckpt is a complete checkpoint, too: copy it over"
DAMAGES = [
    *(("run.json", text(content), ["run.json is damaged: ", "; remove it to go on without it"])
      for content in ("", '{"status": "fini', "[]")),
    *(("metrics.csv", text(content), ["metrics.csv is damaged: ", "; remove it to go on without it"])
      for content in ("a,b\n1,2\n", "\udcff\n")),
    *(("config.yaml", text(content), ["config.yaml is ", "remove it"]) for content in ("", "[]", "model: {")),
    *((LAST, damage, ["last.ckpt is ", COPY]) for damage in (cut(0), cut(7000), state(lambda checkpoint: [1]))),
    (LAST, without("loops"), ["it has no loops; --init_from starts from its weights"]),
    (LAST, without("optimizer_states"), ["it has no optimizer_states"]),
    (LAST, without("state_dict"), ["it has no state_dict"]),
    (LAST, state(lambda checkpoint: checkpoint["state_dict"].popitem() and checkpoint), ["last.ckpt"]),
    (LAST, state(lambda checkpoint: torch.zeros(3)), ["it has no state_dict"]),
    (BEST, cut(7000), ["best.ckpt is damaged"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "damage", "words"), DAMAGES)
def test_damage_is_one_line_that_names_the_file_and_what_to_do(name, damage, words, interrupted, capsys):
    damage(path := interrupted / name)
    before = path.read_bytes()
    commands = {"config.yaml": (FIT, TEST), BEST: (TEST, [*FIT, "--seed_everything=3", f"--init_from={path}"])}
    for command in commands.get(name, (FIT,)):
        line = refused(command, capsys)
        assert all(word in line for word in words), line
    assert path.read_bytes() == before  # neither repaired nor trained
    if name == "run.json":
        assert RunRecord.read(interrupted).status == "damaged" and "run.json" in printed(["status"], capsys)


def test_what_the_lines_advise_helps(interrupted, tmp_path, uninterrupted, capsys):
    (interrupted / "run.json").unlink()
    shutil.copy(interrupted / BEST, interrupted / LAST)
    printed(FIT, capsys)
    # The end of an epoch stands twice in metrics.csv, for best.ckpt is saved just before it.
    assert_same(*(each._replace(rows=[]) for each in (outcome(tmp_path), uninterrupted("epochs").outcome)))


def test_a_run_without_its_best_gets_one(interrupted, capsys):
    (interrupted / BEST).unlink()
    printed(FIT, capsys)
    assert (interrupted / BEST).is_file()


def test_a_run_is_fitted_without_lightnings_checkpoints_and_a_missing_one_is_named(finished, capsys):
    printed([*FIT, *SHORT, "--trainer.enable_checkpointing=false"], capsys)
    (other,) = {*finished.parent.iterdir()} - {finished}
    assert (other / BEST).is_file()
    with pytest.raises(InputError, match="none.ckpt cannot be read: No such file"):
        load_checkpoint(finished / "none.ckpt")


FILES = ("run.json", ".holder.json", "config.yaml", "metrics.csv", "test.json", LAST, BEST)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 7))])
def test_any_damage_ends_well_or_with_one_line(seed, interrupted, capsys):
    """A run with one or two damaged files is fitted, fitted again, and tested."""
    random_ = random.Random(seed)
    damaged = random_.sample(FILES, random_.choice([1, 1, 2]))
    for name in damaged:
        path = interrupted / name
        raw = path.read_bytes() if path.is_file() else b"{}"
        cut = raw[: random_.randrange(len(raw))]
        path.write_bytes(random_.choice([cut, cut, b"", random_.randbytes(200), bytes(len(raw))]))
    for command in random_.sample([FIT, TEST, FIT], 3):
        code, _, errors = in_process(command, capsys)
        assert not any("Traceback" in line for line in errors), (seed, damaged, errors)
        assert code in (0, 2) and len([line for line in errors if "error: " in line]) == (code == 2), (seed, damaged)
