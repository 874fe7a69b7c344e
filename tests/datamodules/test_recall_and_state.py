"""MQAR and state tracking: rules of the task against plain code, distribution, and what is refused."""

from itertools import permutations

import numpy as np
import pytest
import torch

from lra_ssm.datamodules import MQAR, StateTracking
from lra_ssm.datamodules.synthetic.state_tracking import product_table
from lra_ssm.errors import InputError


def split(data, name="train", count=200):
    data.setup()
    return data._datasets[name].batch(np.arange(count), 0)


@pytest.mark.parametrize("settings", [{}, {"fill": "random"}, {"length": 256, "vocab_size": 128}, {"num_pairs": 16}])
def test_each_key_is_asked_for_once_and_its_value_is_the_target(settings):
    data = MQAR(**{"num_train": 200, **settings})
    batch, K = split(data), data.pairs(data.length)
    half = data.vocab_size // 2
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        pairs = dict(zip(inputs[: 2 * K : 2], inputs[1 : 2 * K : 2], strict=True))
        assert len(pairs) == len(set(pairs.values())) == K
        assert all(1 <= key < half <= value < data.vocab_size for key, value in pairs.items())
        asked = {inputs[t]: target for t, target in enumerate(targets) if target != -100}
        assert asked == pairs and all(t >= 2 * K and t % 2 == 0 for t, target in enumerate(targets) if target != -100)
        if data.fill == "zeros":
            assert sum(token == 0 for token in inputs) == data.length - 3 * K


def test_gaps_follow_the_power_law_as_numpy_draws_them():
    """Weighted sampling without replacement: the mean gap, against numpy's choice, as the public code draws it."""
    data = MQAR(num_train=4000, length=64, vocab_size=64)
    targets, K = split(data, count=4000).targets, 4
    ours = (np.nonzero((targets != -100).numpy())[1] - 2 * K) / 2
    places = (64 - 2 * K) // 2
    p = np.arange(1, places + 1) ** (data.power - 1.0)
    random = np.random.default_rng(0)
    theirs = [random.choice(places, K, replace=False, p=p / p.sum()) for _ in range(4000)]
    assert ours.mean() == pytest.approx(np.mean(theirs), abs=4 * np.std(theirs) / np.sqrt(16_000) * np.sqrt(2))


def test_the_test_split_may_be_longer():
    data = MQAR(length=64, test_length=128, num_train=4, num_val=4, num_test=4)
    assert split(data, "val", 4).inputs.shape == (4, 64) and split(data, "test", 4).inputs.shape == (4, 128)
    assert (split(data, "test", 4).targets != -100).sum(1).tolist() == [8] * 4
    tracking = StateTracking(group="Z2", length=8, test_length=20, num_train=4)
    assert split(tracking, "train", 4).inputs.shape == (4, 8) and split(tracking, "test", 4).inputs.shape == (4, 20)


@pytest.mark.parametrize("data", [MQAR(batch_size=4, vocab_size=64), StateTracking(batch_size=4, group="S3")])
def test_the_largest_batch_has_a_target_per_position(data):
    batch = data.largest_batch()
    assert batch.inputs.shape == batch.targets.shape == (4, data.length)


def composed(group, elements):
    """The product by the definition of the group."""
    if group.startswith("Z"):
        return sum(elements) % int(group[1:])
    every = list(permutations(range(int(group[1:]))))
    state = every[0]
    for element in elements:
        state = tuple(every[element][i] for i in state)
    return every.index(state)


@pytest.mark.parametrize("group", ["Z2", "Z60", "S3", "S5"])
def test_targets_are_the_products_so_far(group):
    data = StateTracking(group=group, length=9, num_train=20)
    batch = split(data, count=20)
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        assert targets == [composed(group, inputs[: t + 1]) for t in range(9)]
    assert data.vocab_size == data.num_outputs == len(product_table(group))


def test_parity_is_the_number_of_ones():
    batch = split(StateTracking(group="Z2", num_train=50), count=50)
    assert torch.equal(batch.targets, batch.inputs.cumsum(1) % 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 63}, "length 63: must be even"),
        ({"length": 8}, "length 8: must be even, and at least 16 without num_pairs"),
        ({"length": 64, "num_pairs": 17}, "length 64: must be at least 68"),
        ({"vocab_size": 8}, "vocab_size 8: must be even and at least 10 for 4 pairs"),
        ({"test_length": 3}, "test_length 3: must be even"),
        ({"power": 0.0}, "power 0.0: must be above 0"),
        ({"fill": "noise"}, "fill 'noise': must be one of zeros, random"),
    ],
)
def test_sizes_that_do_not_fit_are_named(settings, message):
    with pytest.raises(InputError, match=message):
        MQAR(**settings)
