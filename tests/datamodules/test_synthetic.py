"""Tasks that are made as they are read: what an example depends on; each is solved by what must solve it: an exact
rule, least squares, or the system that made it."""

import json
import pickle
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lra_ssm import datamodules
from lra_ssm.datamodules import MQAR, AssociativeRecall, LinearFunctional, StateTracking
from lra_ssm.datamodules.counter_random import _splitmix64, counter_random
from lra_ssm.datamodules.pretraining import Pretraining
from lra_ssm.datamodules.synthetic.base import ExampleRandom, GeneratedDataset, SyntheticData
from lra_ssm.datamodules.synthetic.state_tracking import product_table
from lra_ssm.errors import InputError
from lra_ssm.runs.checks import check_data
from tests.runner import succeed
from tests.small_data import COUNTS

SMALL: dict[str, dict[str, Any]] = {
    "AssociativeRecall": {"length": 12, "vocab_size": 8},
    "CorrelatedNoise": {"length": 50, "horizon": 3},
    "FirstToken": {"length": 5, "d_input": 3},
    "LinearFunctional": {"length": 33},
    "NoisyCosines": {"length": 70, "noise": 0.1},
    "TeacherStudent": {"length": 40},
}


def made(name: str, **settings: Any) -> SyntheticData:
    counts = {"num_train": 20, "num_val": 10, "num_test": 10, "batch_size": 8}
    data = getattr(datamodules, name)(**{**counts, **SMALL[name], **settings})
    data.setup()
    return data


def batch(data: SyntheticData, examples: list[int], split: str = "train", epoch: int = 0) -> Any:
    return data._datasets[split].batch(np.array(examples), epoch)


def equal(a: Any, b: Any) -> bool:
    return torch.equal(a.inputs, b.inputs) and torch.equal(a.labels, b.labels)


@pytest.mark.parametrize("name", SMALL)
def test_an_example_depends_only_on_seed_split_and_number(name: str) -> None:
    data, other, fresh = (made(name, **how) for how in ({"resample": False}, {"generator_seed": 1}, {"resample": True}))
    neutral = made(name, resample=False, num_workers=3, eval_batch_size=5)
    assert neutral.record() == data.record() != made(name, resample=False, generator_seed=1).record()
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


def examples(data: Any, count: int, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Inputs and answers of the first ones, float64 where they are real."""
    data.setup()
    batch = data._datasets[split].batch(np.arange(count), 0)
    arrays = batch.inputs, batch.targets if hasattr(batch, "targets") else batch.labels
    return tuple(x.double().numpy() if x.is_floating_point() else x.numpy() for x in arrays)


# -- associative recall ------------------------------------------------------------------------------------------------


RECALL = [(20, 10, 400), (2, 4, 50), (200, 30, 400), (131_072, 30, 4)]


@pytest.mark.parametrize(("length", "vocab_size", "count"), RECALL)
def test_looking_the_key_up_solves_recall(length: int, vocab_size: int, count: int) -> None:
    tokens, labels = examples(datamodules.AssociativeRecall(length=length, vocab_size=vocab_size), count)
    keys, values, last = tokens[:, :-2:2], tokens[:, 1:-2:2], tokens[:, -1]
    at = (keys == last[:, None]).argmax(1)
    rows = np.arange(len(tokens))
    assert (keys[rows, at] == last).all() and (values[rows, at] == labels).all()
    # The same key has the same value wherever it stands, and each pair is a key and a value.
    number = (vocab_size - 2) // 2
    assert keys.max() == number - 1 and values.min() == number and values.max() == vocab_size - 3
    for row_keys, row_values in zip(keys, values, strict=True):
        assert len(set(zip(row_keys, row_values, strict=True))) == len(set(row_keys))
    assert (tokens[:, -2] == vocab_size - 2).all()


def test_recall_has_no_shortcut() -> None:
    """Neither the class alone, nor the key that is asked for, nor the last value says more than guessing does."""
    tokens, labels = examples(datamodules.AssociativeRecall(), 5000)
    error = (0.25 * 0.75 / 5000) ** 0.5  # of four values
    assert abs(np.bincount(labels, minlength=8)[4:] / 5000 - 0.25).max() < 4 * error
    for key in range(4):
        own = labels[tokens[:, -1] == key]
        assert abs(np.bincount(own, minlength=8)[4:] / len(own) - 0.25).max() < 4 * (0.25 * 0.75 / len(own)) ** 0.5
    # The key that was asked for is one of about four that occurred, its value the last one's by that and by chance.
    present = np.array([len(set(row)) for row in tokens[:, :-2:2]])
    expected = (1 / present + (1 - 1 / present) / 4).mean()
    assert abs((labels == tokens[:, -3]).mean() - expected) < 4 * 0.5 / 5000**0.5


# -- linear tasks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["polynomial", "exponential", "random"])
def test_least_squares_recovers_the_linear_functional(memory: Any) -> None:
    data = datamodules.LinearFunctional(length=40, memory=memory, timescale=3.0)
    inputs, labels = examples(data, 600)
    found, *_ = np.linalg.lstsq(inputs[:, ::-1, 0], labels[:, -1, 0], rcond=None)
    np.testing.assert_allclose(found, data.response(), atol=1e-6)  # float32 inputs and targets
    times = np.arange(40)
    formula = {"polynomial": (1 + times / 3) ** -1.1, "exponential": np.exp(-times / 3)}
    if memory in formula:
        np.testing.assert_allclose(found, formula[memory], atol=1e-6)
    naive = [[sum(found[k] * row[t - k] for k in range(t + 1)) for t in (0, 1, 17)] for row in inputs[:5, :, 0]]
    np.testing.assert_allclose(labels[:5, [0, 1, 17], 0], naive, atol=1e-5)
    last = datamodules.LinearFunctional(length=40, memory=memory, timescale=3.0, targets="last")
    np.testing.assert_array_equal(examples(last, 600)[1], labels[:, -1])


def simulate(inputs: np.ndarray, eigenvalues: Any, B: Any, C: Any) -> np.ndarray:
    """Layers x_t = λ x_{t−1} + B u_t, y_t = Re(C x_t), step by step: (B, L, 1) to the same."""
    u = inputs[..., 0]
    for layer in zip(eigenvalues, B, C, strict=True):
        eigenvalue, b, c = map(np.asarray, layer)
        x, outputs = np.zeros((len(u), len(eigenvalue)), complex), []
        for u_t in u.T:
            x = eigenvalue * x + b * u_t[:, None]
            outputs.append((c * x).sum(-1).real)
        u = np.stack(outputs, 1)
    return u[..., None]


DEEP = {"eigenvalues": [[0.9, 0.5], [0.8]], "phases": [[0.3, -1.0], [0.0]], "B": [[1.0, 2.0], [0.5]],
        "C": [[0.7, -1.0], [1.5]]}  # fmt: skip


@pytest.mark.parametrize("teacher", [{}, DEEP])
def test_the_teacher_itself_has_no_loss(teacher: dict[str, Any]) -> None:
    data = datamodules.TeacherStudent(**teacher, length=60)
    inputs, labels = examples(data, 50)
    moduli, phases = data.eigenvalues, data.phases
    for factor, exact in ((1.0, True), (0.9, False)):
        own = [factor * np.array(r) * np.exp(1j * np.array(t)) for r, t in zip(moduli, phases, strict=True)]
        error = np.abs(simulate(inputs, own, data.B, data.C) - labels).max() / np.abs(labels).max()
        assert error < 1e-6 if exact else error > 0.02  # float32 inputs and targets


def test_least_squares_recovers_the_coefficients_of_cosines() -> None:
    data = datamodules.NoisyCosines()
    inputs, labels = examples(data, 200)
    times = 2 * np.pi * np.arange(256) / 256
    cosines = np.cos(np.outer(times, data.frequencies))
    found, *_ = np.linalg.lstsq(cosines, inputs[..., 0].T, rcond=None)
    np.testing.assert_allclose(found.T, labels, atol=1e-6)
    # Of n cosines' worth of noise, least squares leaves σ √(2 / L) on each coefficient.
    noisy, same = examples(datamodules.NoisyCosines(noise=0.5), 200)
    np.testing.assert_array_equal(same, labels)
    errors = np.linalg.lstsq(cosines, noisy[..., 0].T, rcond=None)[0].T - labels
    expected = 0.5 * (2 / 256) ** 0.5
    assert abs(errors.std() - expected) < 4 * expected / (2 * errors.size) ** 0.5


def test_reading_the_first_token_solves_it() -> None:
    inputs, labels = examples(datamodules.FirstToken(sigma_first=0.1, sigma_last=10.0, num_test=2000), 2000, "test")
    assert (np.abs(inputs[:, 0, :1]) == labels).all()
    assert (inputs[:, 1:-1] == 0).all() and (inputs[:, 0] == inputs[:, :1, 0]).all()
    assert abs((labels**2).mean() - 0.1**2) < 4 * 0.1**2 * (2 / 2000) ** 0.5
    assert abs(inputs[:, -1].var() - 10.0**2) < 4 * 10.0**2 * (2 / inputs[:, -1].size) ** 0.5


# -- noise -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("correlation", [0.95, 0.4, -0.7])
def test_correlated_noise_has_its_autocorrelation(correlation: float) -> None:
    """R(Δ) = ρ^|Δ| within four standard errors, which the independence of sequences gives; at the first value too."""
    noise = examples(datamodules.CorrelatedNoise(correlation=correlation, length=200, horizon=0), 2000)[0][..., 0]
    for lag in (0, 1, 2, 5, 20):
        own = (noise[:, : 200 - lag] * noise[:, lag:]).mean(1)
        error = own.std() / len(own) ** 0.5
        assert abs(own.mean() - correlation**lag) < 4 * error < 0.2, lag
    assert abs(noise[:, 0].var() - 1) < 4 * (2 / 2000) ** 0.5


def test_the_best_guess_of_correlated_noise_has_the_loss_of_the_docstring() -> None:
    data = datamodules.CorrelatedNoise(length=300, correlation=0.9, horizon=2, num_test=500)
    inputs, labels = examples(data, 500, "test")
    best, low, high = (((labels - factor * inputs) ** 2).mean((1, 2)) for factor in (0.81, 0.75, 0.87))
    assert abs(best.mean() - (1 - 0.9**4)) < 4 * best.std() / 500**0.5
    assert best.mean() < min(low.mean(), high.mean())


# -- multi-query associative recall, and state tracking ----------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"length": 256, "vocab_size": 128}, {"num_pairs": 16}])
def test_each_key_is_asked_for_once_and_its_value_is_the_target(settings: dict[str, Any]) -> None:
    data = MQAR(**{"num_train": 200, **settings})
    (keys, values), K = examples(data, 200), data.pairs(data.length)
    half = data.vocab_size // 2
    for inputs, targets in zip(keys.tolist(), values.tolist(), strict=True):
        pairs = dict(zip(inputs[: 2 * K : 2], inputs[1 : 2 * K : 2], strict=True))
        assert len(pairs) == len(set(pairs.values())) == K
        assert all(1 <= key < half <= value < data.vocab_size for key, value in pairs.items())
        asked = {inputs[t]: target for t, target in enumerate(targets) if target != -100}
        assert asked == pairs and all(t >= 2 * K and t % 2 == 0 for t, target in enumerate(targets) if target != -100)
        assert sum(token == 0 for token in inputs) == data.length - 3 * K


def test_gaps_follow_the_power_law_as_numpy_draws_them() -> None:
    """Weighted sampling without replacement: the mean gap, against numpy's choice, as the public code draws it."""
    data = MQAR(num_train=4000, length=64, vocab_size=64)
    targets, K = examples(data, 4000)[1], 4
    ours = (np.nonzero(targets != -100)[1] - 2 * K) / 2
    places = (64 - 2 * K) // 2
    p = np.arange(1, places + 1) ** (data.power - 1.0)
    random = np.random.default_rng(0)
    theirs = [random.choice(places, K, replace=False, p=p / p.sum()) for _ in range(4000)]
    assert ours.mean() == pytest.approx(np.mean(theirs), abs=4 * np.std(theirs) / np.sqrt(16_000) * np.sqrt(2))


def test_the_test_split_may_be_longer() -> None:
    data = MQAR(length=64, test_length=128, num_train=4, num_val=4, num_test=4)
    assert examples(data, 4, "val")[0].shape == (4, 64) and examples(data, 4, "test")[0].shape == (4, 128)
    assert (examples(data, 4, "test")[1] != -100).sum(1).tolist() == [8] * 4
    tracking = StateTracking(group="Z2", length=8, test_length=20, num_train=4)
    assert examples(tracking, 4)[0].shape == (4, 8) and examples(tracking, 4, "test")[0].shape == (4, 20)


def composed(group: str, elements: list[int]) -> int:
    """The product by the definition of the group."""
    if group.startswith("Z"):
        return sum(elements) % int(group[1:])
    every = list(permutations(range(int(group[1:]))))
    state = every[0]
    for element in elements:
        state = tuple(every[element][i] for i in state)
    return every.index(state)


@pytest.mark.parametrize("group", ["Z2", "Z60", "S3", "S5"])
def test_targets_are_the_products_so_far(group: Any) -> None:
    data = StateTracking(group=group, length=9, num_train=20)
    for inputs, targets in zip(*(array.tolist() for array in examples(data, 20)), strict=True):
        assert targets == [composed(group, inputs[: t + 1]) for t in range(9)]
    assert data.vocab_size == data.num_outputs == len(product_table(group))


# -- from the command line ---------------------------------------------------------------------------------------------


def test_a_regression_is_fitted_scored_and_predicted(tmp_path: Path) -> None:
    command = ["--config=synthetic/teacher_student", *COUNTS, "--data.length=6", "--data.batch_size=3"]
    command += ["--model.network.d_model=4", "--trainer.max_epochs=2", "--trainer.accelerator=cpu"]
    succeed(["fit", *command], tmp_path)
    (folder,) = tmp_path.glob("runs/synthetic/teacher_student/*/checkpoints/last.ckpt")
    assert "test/relative_error" in succeed(["test", *command], tmp_path).out
    succeed(["predict", *command], tmp_path)
    result, lines = (folder.parents[1] / name for name in ("test.json", "predictions-val.csv"))
    data = json.loads(result.read_text())["data"]
    assert data["source"]["eigenvalues"] == [[0.9, 0.99]] and data["examples"]["test"] == 4
    rows = lines.read_text().splitlines()
    assert rows[0] == "example,position,y0" and len(rows) == 1 + 4 * 6 and rows[-1].startswith("3,5,")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("data", "size", "needed"),
    [
        (AssociativeRecall(), "num_outputs", "classes: use the task Class"),
        (LinearFunctional(), "num_classes", "real targets: use the task Reg"),
        (StateTracking(pretrain=Pretraining()), "num_classes", "data.pretrain: use the task MaskedModelling and the"),
    ],
)
def test_a_network_for_another_task_is_told_which(data: Any, size: str, needed: str) -> None:
    task = SimpleNamespace(hparams={"network": {"init_args": {size: 6, "vocab_size": 6}}})
    with pytest.raises(InputError, match=f"takes {size}, but {type(data).__name__} has {needed}"):
        check_data(task, data)
