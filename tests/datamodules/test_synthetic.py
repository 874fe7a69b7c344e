"""Tasks that are made as they are read: what an example depends on, sizes, records, fits."""

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lra_ssm import datamodules
from lra_ssm.datamodules import AssociativeRecall, LinearFunctional, StateTracking
from lra_ssm.datamodules.counter_random import _splitmix64, counter_random
from lra_ssm.datamodules.pretraining import Pretraining
from lra_ssm.datamodules.synthetic.base import ExampleRandom, GeneratedDataset, SyntheticData
from lra_ssm.errors import InputError
from lra_ssm.runs.checks import check_data
from tests.runner import fail, succeed

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


def test_the_papers_sizes_are_the_defaults() -> None:
    recall, functional = datamodules.AssociativeRecall(), datamodules.LinearFunctional()
    assert (recall.length, recall.vocab_size) == (20, 10)  # StableSSM, table 7
    assert functional.num_train + functional.num_val + functional.num_test == 153_600  # and appendix F.1
    assert (functional.length, functional.batch_size) == (100, 512)
    np.testing.assert_allclose(functional.response()[[0, 1, 9]], [1, 2**-1.1, 10**-1.1])
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

FIT = """--data=TeacherStudent --data.length=6 --data.batch_size=4 --data.num_train=12 --data.num_val=5
    --data.num_test=4
    --model=Regression --model.network=Regressor --model.network.layer=S4D --model.network.layer.d_state=4
    --model.network.d_model=4 --model.network.n_layers=1 --model.network.num_outputs=1 --model.network.d_input=1
    --model.optimizer.warmup_steps=0 --checkpoint.monitor=val/loss --checkpoint.mode=min --trainer.accelerator=cpu
    --trainer.max_epochs=2 --trainer.num_sanity_val_steps=0 --trainer.enable_model_summary=false""".split()


def test_a_regression_is_fitted_scored_and_predicted(tmp_path: Path) -> None:
    line = fail(["fit", *FIT], tmp_path)
    assert "returned (3, 1) for inputs (3, 6, 1): the targets are (3, 6, 1); a Regressor" in line and "null" in line
    command = [*FIT, "--model.network.pooling=null"]
    succeed(["fit", *command], tmp_path)
    (folder,) = tmp_path.glob("runs/default/*/checkpoints/last.ckpt")
    assert "test/relative_error" in succeed(["test", *command], tmp_path).out
    succeed(["predict", *command], tmp_path)
    result, lines = (folder.parents[1] / name for name in ("test.json", "predictions-val.csv"))
    data = json.loads(result.read_text())["data"]
    assert data["source"]["eigenvalues"] == [[0.9, 0.99]] and data["examples"]["test"] == 4
    rows = lines.read_text().splitlines()
    assert rows[0] == "example,position,y0" and len(rows) == 1 + 5 * 6 and rows[-1].startswith("4,5,")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("data", "size", "message"),
    [
        (
            AssociativeRecall(),
            "num_outputs",
            "takes num_outputs, but AssociativeRecall has classes: use the task Class",
        ),
        (
            LinearFunctional(),
            "num_classes",
            "takes num_classes, but LinearFunctional has real targets: use the task Reg",
        ),
        (
            StateTracking(pretrain=Pretraining()),
            "num_classes",
            "data.pretrain: use the task MaskedModelling and the net",
        ),
    ],
)
def test_a_network_for_another_task_is_told_which(data: Any, size: str, message: str) -> None:
    task = SimpleNamespace(hparams={"network": {"init_args": {size: 6, "vocab_size": 6}}})
    with pytest.raises(InputError, match=message):
        check_data(task, data)
