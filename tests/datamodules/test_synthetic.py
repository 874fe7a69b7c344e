"""Tasks that are made as they are read: what an example depends on, sizes, records, and what is refused."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lra_ssm import datamodules
from lra_ssm.datamodules.counter_random import _splitmix64, counter_random
from lra_ssm.datamodules.synthetic.base import ExampleRandom, GeneratedDataset, SyntheticData
from lra_ssm.errors import InputError
from tests.runner import fail, only_run, succeed

SMALL: dict[str, dict[str, Any]] = {
    "AssociativeRecall": {"length": 12, "vocab_size": 8},
    "CorrelatedNoise": {"length": 50, "horizon": 3},
    "FirstToken": {"length": 5, "d_input": 3},
    "LinearFunctional": {"length": 33},
    "NoisyCosines": {"length": 70, "noise": 0.1},
    "TeacherStudent": {"length": 40, "correlation": 0.5},
}
NAMES = sorted(SMALL)


def made(name: str, **settings: Any) -> SyntheticData:
    counts = {"num_train": 20, "num_val": 10, "num_test": 10, "batch_size": 8}
    data = getattr(datamodules, name)(**{**counts, **SMALL[name], **settings})
    data.setup()
    return data


def batch(data: SyntheticData, examples: list[int], split: str = "train", epoch: int = 0) -> Any:
    return data._datasets[split].batch(np.array(examples), epoch)


def equal(a: Any, b: Any) -> bool:
    return torch.equal(a.inputs, b.inputs) and torch.equal(a.labels, b.labels)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_depends_only_on_seed_split_and_number(name: str) -> None:
    data, other, fresh = (made(name, **how) for how in ({"resample": False}, {"generator_seed": 1}, {"resample": True}))
    whole, ten = batch(data, list(range(20))), list(range(10))
    assert equal(batch(made(name), [7, 19, 0]), type(whole)(whole.inputs[[7, 19, 0]], None, whole.labels[[7, 19, 0]]))
    assert equal(batch(data, [11]), type(whole)(whole.inputs[11:12], None, whole.labels[11:12]))
    sent: GeneratedDataset = pickle.loads(pickle.dumps(data._datasets["train"]))
    assert equal(sent.batch(np.arange(20), 0), whole)
    first = batch(data, ten)
    assert equal(batch(fresh, ten), first) and equal(batch(data, ten, epoch=3), first)
    different = [batch(other, ten), batch(data, ten, "val"), batch(data, ten, "test"), batch(fresh, ten, epoch=1)]
    for one in [*different, batch(data, list(range(10, 20)))]:
        assert not any(torch.equal(a, b) for a, b in zip(one.inputs, first.inputs, strict=True))
    assert equal(batch(fresh, ten, "val", epoch=1), batch(data, ten, "val"))  # validation stays what it is
    assert first.lengths is None
    if data.vocab_size is not None:
        assert first.inputs.dtype == first.labels.dtype == torch.int64 and first.labels.shape == (10,)
        assert first.inputs.max() < data.vocab_size and first.labels.max() < data.num_classes
    else:
        assert first.inputs.dtype == first.labels.dtype == torch.float32
        assert first.inputs.shape == (10, data.length, data.d_input) and first.labels.shape[-1] == data.num_outputs


def test_workers_give_the_same_epochs() -> None:
    data, alone = made("NoisyCosines", num_workers=2, resample=True), made("NoisyCosines", resample=True)
    loaders = data.train_dataloader(), alone.train_dataloader()
    epochs = [[list(loader) for _ in range(2)] for loader in loaders]
    data.teardown()
    assert all(equal(a, b) for x, y in zip(*epochs, strict=True) for a, b in zip(x, y, strict=True))
    labels = [torch.cat([b.labels for b in epoch]) for epoch in epochs[0]]
    assert [len(x) for x in labels] == [20, 20] and len(torch.cat(labels).unique(dim=0)) == 40


def test_the_papers_sizes_are_the_defaults() -> None:
    recall, functional = datamodules.AssociativeRecall(), datamodules.LinearFunctional()
    assert (recall.length, recall.vocab_size) == (20, 10)  # StableSSM, table 7
    assert functional.num_train + functional.num_val + functional.num_test == 153_600  # and appendix F.1
    assert (functional.length, functional.batch_size) == (100, 512)
    response = functional.response()
    np.testing.assert_allclose(response[[0, 1, 9]], [1, 2**-1.1, 10**-1.1])
    last, every = (batch(made("LinearFunctional", targets=targets), [3, 4]).labels for targets in ("last", "all"))
    assert torch.equal(last, every[:, -1])
    assert datamodules.TeacherStudent().eigenvalues == ((0.9, 0.99),)  # deep linear SSMs, figure 3A
    assert datamodules.CorrelatedNoise().correlation == 0.95  # its figure 1
    assert datamodules.FirstToken().d_input == 32  # B2S6, figure 4
    cosines = datamodules.NoisyCosines()  # its figure 3
    assert cosines.num_outputs == 10 and sum(cosines.frequencies) == 129 and cosines.noise == 0


def test_draws_are_uniform_and_normal() -> None:
    draws = ExampleRandom(5, 0, np.arange(1000))
    integers, normal = draws.integers(0, 300, 7), draws.normal(1, 300)
    n = integers.size
    share = np.bincount(integers.ravel(), minlength=7) / n
    assert abs(share - 1 / 7).max() < 4 * (6 / 49 / n) ** 0.5  # four standard errors
    assert abs(normal.mean()) < 4 / n**0.5 and abs(normal.var() - 1) < 4 * (2 / n) ** 0.5
    assert abs((normal**4).mean() - 3) < 4 * (96 / n) ** 0.5
    # Neighbours, in a row and in a column, know nothing of each other.
    for a, b in ((normal[:, 1:], normal[:, :-1]), (normal[1:], normal[:-1])):
        assert abs((a * b).mean()) < 4 / a.size**0.5
    assert np.isfinite(normal).all() and not np.array_equal(normal, draws.normal(2, 300))


@pytest.mark.parametrize("name", NAMES)
def test_records_are_plain_and_say_what_decides_the_examples(name: str) -> None:
    data = made(name)
    assert json.loads(json.dumps(data.manifest()))["source"]["num_train"] == 20
    assert data.record() == made(name).record() != made(name, generator_seed=2).record()
    assert data.record() == made(name, num_workers=3, eval_batch_size=5).record()
    assert made(name, length=data.length + 2).record() != data.record()
    assert data.provenance()["examples"]["val"] == 10 and "made as it is read: train 20" in data.describe()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("AssociativeRecall", {"length": 7}, "AssociativeRecall length 7: must be even and at least 2"),
        ("AssociativeRecall", {"vocab_size": 3}, "AssociativeRecall vocab_size 3: must be at least 4"),
        ("LinearFunctional", {"num_val": 0}, "LinearFunctional num_val 0: must be at least 1"),
        ("LinearFunctional", {"timescale": 0.0}, "LinearFunctional timescale 0.0: must be above 0"),
        ("TeacherStudent", {"eigenvalues": [[0.5, 1.0]]}, "must be inside the unit circle"),
        ("TeacherStudent", {"eigenvalues": [[]]}, "must have a layer, and a state in each"),
        ("TeacherStudent", {"B": [[1.0]]}, r"B \[\[1.0\]\]: must have a number for each of the eigenvalues, by layer"),
        ("CorrelatedNoise", {"correlation": 1.0}, "correlation 1.0: must be between -1 and 1"),
        ("NoisyCosines", {"length": 58}, "length 58: must be more than twice the highest frequency, 29"),
        ("NoisyCosines", {"frequencies": [2, 2]}, "must be distinct whole numbers"),
        ("FirstToken", {"length": 1}, "length 1: must be at least 2"),
    ],
)
def test_settings_that_cannot_be_met_are_named(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        made(name, **settings)


def test_words_depend_only_on_seed_and_counters() -> None:
    words = counter_random(3, 7, np.arange(1000))
    assert counter_random(3, 7, np.array([999, 5])).tolist() == [words[999], words[5]]
    assert words[:2].tolist() == [15626884958571197178, 8266474921873978720]
    # splitmix64's published first output for seed 0.
    assert _splitmix64(np.zeros(1, dtype=np.uint64))[0] == 0xE220A8397B1DCDAF
    others = [counter_random(*at, np.arange(1000)) for at in ((4, 7), (3, 8), (-1, 0))]
    assert len({int(word) for array in (words, *others) for word in array}) == 4000
    table = counter_random(1, np.arange(3)[:, None], 2, np.arange(5))
    assert table.shape == (3, 5) and table[2].tolist() == counter_random(1, 2, 2, np.arange(5)).tolist()


# -- from the command line ---------------------------------------------------------------------------------------------

NETWORK = ["--model.network.layer=S4D", "--model.network.layer.d_state=4", "--model.network.d_model=4",
           "--model.network.n_layers=1", "--model.optimizer.warmup_steps=0"]  # fmt: skip
SHORT = ["--trainer.accelerator=cpu", "--trainer.max_epochs=2", "--trainer.num_sanity_val_steps=0",
         "--trainer.enable_model_summary=false", "--checkpoint.every_n_steps=2", "--data.batch_size=4",
         "--data.num_train=12", "--data.num_val=5", "--data.num_test=4"]  # fmt: skip
REGRESSION = ["--model=Regression", "--model.network=Regressor", *NETWORK, "--model.network.num_outputs=1",
              "--model.network.d_input=1", "--checkpoint.monitor=val/loss", "--checkpoint.mode=min"]  # fmt: skip
CLASSIFICATION = ["--model=Classification", "--model.network=Classifier", *NETWORK]


def test_a_regression_is_fitted_scored_and_predicted(tmp_path: Path) -> None:
    task = ["--data=TeacherStudent", "--data.length=6", "--model.network.pooling=null", *SHORT]
    command = [task[0], *REGRESSION, *task[1:]]
    succeed(["fit", *command], tmp_path)
    folder = only_run(tmp_path, "default")
    assert "test/relative_error" in succeed(["test", *command], tmp_path).out
    result = json.loads((folder / "test.json").read_text())
    assert result["data"]["source"]["eigenvalues"] == [[0.9, 0.99]] and result["data"]["examples"]["test"] == 4
    succeed(["predict", *command], tmp_path)
    lines = (folder / "predictions-val.csv").read_text().splitlines()
    assert lines[0] == "example,position,y0" and len(lines) == 1 + 5 * 6 and lines[-1].startswith("4,5,")
    assert json.loads((folder / "run.json").read_text())["data"]["source"]["kind"] == "generated"
    assert not (tmp_path / "data").exists()


def test_task_network_and_data_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    recall = ["--data=AssociativeRecall", *SHORT]
    line = fail(["fit", recall[0], *REGRESSION, *recall[1:]], tmp_path)
    assert "model.network takes num_outputs, but AssociativeRecall has classes: use the task Classification" in line
    classes = ["--model.network.num_classes=1", "--model.network.d_input=1"]
    line = fail(["fit", "--data=LinearFunctional", *CLASSIFICATION, *classes, *SHORT], tmp_path)
    assert "model.network takes num_classes, but LinearFunctional has real targets: use the task Regression" in line
    line = fail(["fit", "--data=LinearFunctional", *REGRESSION, "--data.length=6", *SHORT], tmp_path)
    assert "returned (3, 1) for inputs (3, 6, 1): the targets are (3, 6, 1); a Regressor" in line and "null" in line
    assert not (tmp_path / "runs").exists()


def test_there_is_nothing_to_prepare(tmp_path: Path) -> None:
    out = succeed(["prepare", "linear_functional", "--root=data"], tmp_path).out
    assert "nothing to prepare; a fit with --data=LinearFunctional makes its examples as it goes" in out
    assert list(tmp_path.iterdir()) == []
    assert "did you mean 'linear_functional'?" in fail(["prepare", "linear_functionl"], tmp_path)
