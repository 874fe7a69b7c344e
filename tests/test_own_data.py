"""A dataset of a user's own, a class and a CSV file, through the commands: other files, no test split, mistakes."""

import json
import random
from pathlib import Path

import pytest

from tests.runner import fail, in_process, refused, succeed

CLASS = """
from lra_ssm.datamodules import SequenceData
from lra_ssm.errors import InputError

class Promoters(SequenceData):
    num_classes, vocabulary = 2, ("<pad>", *"ACGT")
    max_length: int = 20
    with_test: bool = True

    def examples(self):
        file = self.source_path()
        for number, line in enumerate(file.read_text().splitlines()):
            label, _, letters = line.partition(",")
            if not letters:
                raise InputError(f"{file}:{number + 1}: 1 column instead of 2 (label, sequence)")
            split = {0: "val", 1: "test"}.get(number % 10, "train")
            if split != "test" or self.with_test:
                yield split, [self.vocabulary.index(letter) for letter in letters], int(label)
"""
CONFIG = """
experiment: mine
trainer: {max_steps: 6, accelerator: cpu, log_every_n_steps: 1, callbacks: [{class_path: tests.helpers.KillMe}]}
checkpoint: {every_n_steps: 1}
model:
  class_path: Classification
  init_args:
    network:
      class_path: Classifier
      init_args:
        {layer: {class_path: S4D, init_args: {d_state: 4}}, num_classes: 2, vocab_size: 5, d_model: 4, n_layers: 1}
    optimizer: {lr: 0.01, warmup_steps: 1}
data: {class_path: my_promoters.Promoters, init_args: {source: promoters.csv}}
"""
FIT = ["fit", "--config=mine.yaml"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("my_promoters.py").write_text(CLASS)
    Path("mine.yaml").write_text(CONFIG)
    letters = random.Random(0)
    rows = [f"{number % 2},{''.join(letters.choices('ACGT', k=10))}\n" for number in range(90)]
    Path("promoters.csv").write_text("".join(rows))
    return tmp_path


def test_a_run_whose_file_was_cut_is_neither_finished_nor_resumed(here, monkeypatch, capsys):
    with monkeypatch.context() as stopped:
        stopped.setenv("KILL_AT", "train_batch_start:2")
        stopped.setenv("KILL_WITH", "SIGTERM")
        assert in_process([*FIT, "--experiment=stopped"], capsys)[0] == 143
    assert "is finished" in (succeed(FIT, here) and succeed(FIT, here)).out
    rows = Path("promoters.csv").read_text().splitlines(keepends=True)
    Path("promoters.csv").write_text("".join(rows[:30]))
    assert "other data" in refused([*FIT, "--experiment=stopped"], capsys)
    out = succeed(FIT, here).out
    assert "was trained with other data: " in out and "train_tokens" in out and "--fresh trains with" in out
    assert "test-others.json, not as the run's result: it is of other data" in succeed(["test", *FIT[1:]], here).out
    succeed([*FIT, "--fresh"], here)
    first, second = (json.loads(file.read_text())["data"] for file in sorted(here.glob("runs/mine/*/run.json")))
    assert [data["splits"]["train"]["examples"] for data in (first, second)] == [72, 24]


def test_data_without_a_test_split_is_trained_and_there_is_nothing_to_score(here):
    options = [*FIT[1:], "--data.with_test=false"]
    assert "val/loss" in succeed(["fit", *options], here).out
    out = succeed(["test", *options], here).out
    assert "Promoters has no test split; there is nothing to score" in out and "test/" not in out
    assert "val/loss" in succeed(["validate", *options], here).out
    assert "has no split test" in fail(["predict", *options, "--split=test"], here)
    assert "val/accuracy" in succeed(["results", "runs"], here).out


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1", "promoters.csv:91: 1 column instead of 2"),
        ("2,ACGT", "Promoters: split val, example 9: label 2 is not one of 0 to 1"),
        ("1," + "A" * 21, "Promoters: split val, example 9: 21 positions; max_length is 20"),
    ],
)
def test_a_wrong_row_is_one_line_and_leaves_nothing(here, row, message, capsys):
    with open("promoters.csv", "a") as file:
        file.write(f"{row}\n")
    assert message in refused(FIT, capsys)
    assert not (here / "data").exists() and not (here / "runs").exists()
