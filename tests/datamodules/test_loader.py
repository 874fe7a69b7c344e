"""Batches, their order, and exact resumption inside Lightning."""

import random
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch

from lra_ssm.datamodules.loader import EpochBatches, ResumableLoader
from lra_ssm.datamodules.sequences import SequenceDataset
from lra_ssm.datamodules.storage import Prepared
from lra_ssm.errors import InputError
from tests.datamodules.helpers import Tiny, fit, tiny_dataset

NUM_TRAIN, NUM_VAL, BATCH, NUM_BATCHES = 26, 6, 4, 7


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return tiny_dataset(tmp_path_factory.mktemp("tiny"), num_train=NUM_TRAIN, num_val=NUM_VAL)


def loader(tiny: Prepared, num_workers: int = 0) -> ResumableLoader:
    return ResumableLoader(SequenceDataset(tiny.split("train")), EpochBatches(NUM_TRAIN, BATCH, 7), num_workers)


def labels(batches: Any) -> list[list[int]]:
    return [batch.labels.tolist() for batch in batches]


def epoch(number: int) -> list[list[int]]:
    return list(EpochBatches(NUM_TRAIN, BATCH, 7).batches(number))


# -- order -------------------------------------------------------------------------------------------------------------


def test_order_is_a_function_of_seed_and_epoch() -> None:
    def order(seed: int | None, epoch: int) -> list[list[int]]:
        batches = EpochBatches(NUM_TRAIN, BATCH, seed)
        batches.set_epoch(epoch)
        torch.rand(1), np.random.rand(), random.random()
        return list(batches)

    assert order(7, 3) == order(7, 3)
    assert len({str(order(seed, epoch)) for seed in (0, 1, 2**32, -1) for epoch in range(3)}) == 12
    assert order(None, 0) == order(None, 5) and sum(order(None, 0), []) == list(range(NUM_TRAIN))
    # The frozen stream: another order here would change every published run.
    assert EpochBatches(8, 4, 1).order(0).tolist() == [6, 2, 3, 7, 1, 4, 5, 0]


@pytest.mark.parametrize(
    ("examples", "batch", "sizes"),
    [
        (24, 8, [8, 8, 8]), (28, 8, [8, 8, 8, 4]), (27, 8, [8, 8, 6, 5]), (25, 8, [8, 8, 5, 4]), (3, 8, [3]),
        (9, 8, [5, 4]), (22_500, 16, [16] * 1405 + [10, 10]),
    ],
)  # fmt: skip
def test_no_batch_is_small_and_ranks_change_none(examples: int, batch: int, sizes: list[int]) -> None:
    whole = list(EpochBatches(examples, batch, 7))
    assert [len(part) for part in whole] == sizes and sorted(sum(whole, [])) == list(range(examples))
    assert list(EpochBatches(examples, batch, 7).batches(0, 1)) == whole[1:]
    for world in (1, 2, 4) if examples >= 4 else (1, 2):
        shares = [list(EpochBatches(examples, batch, 7, rank, world)) for rank in range(world)]
        assert all(share for rank in shares for share in rank)  # no rank is without work, or all would wait for it
        assert [sorted(sum(parts, [])) for parts in zip(*shares, strict=True)] == [sorted(part) for part in whole]


def test_one_example_per_rank_and_batches_that_cannot_be_shared() -> None:
    shares = [list(EpochBatches(9, 4, 7, rank, 4)) for rank in range(4)]
    assert [[len(part) for part in parts] for parts in zip(*shares, strict=True)] == [[1] * 4, [2, 1, 1, 1]]
    assert sorted(sum(sum(shares, []), [])) == list(range(9))
    for arguments, message in {
        (100, 6, 0, 0, 4): "batch_size 6: .* multiple of the number of devices, 4",
        (100, 0): "batch_size 0",
        (3, 4, 0, 0, 4): "3 examples cannot",
    }.items():
        with pytest.raises(InputError, match=message):
            EpochBatches(*arguments)


LENGTHS = np.random.RandomState(0).randint(1, 1000, 1003)


def padded(batches: list[list[int]]) -> int:
    return sum(len(batch) * int(LENGTHS[batch].max()) for batch in batches)


def test_bucketed_batches_hold_every_example_once_and_less_padding() -> None:
    plain, bucketed = (EpochBatches(1003, 8, 7, lengths=LENGTHS, pool=pool) for pool in (1, 25))
    assert list(plain) == list(EpochBatches(1003, 8, 7))
    for epoch in range(2):
        batches = list(bucketed.batches(epoch))
        assert sorted(sum(batches, [])) == list(range(1003))
        assert [len(batch) for batch in batches] == [8] * 124 + [6, 5]
        real = int(LENGTHS.sum())
        assert padded(batches) / real < 1.1 < 1.6 < padded(list(plain.batches(epoch))) / real
    assert list(bucketed.batches(0)) == list(bucketed.batches(0)) != list(bucketed.batches(1))
    lengths = [int(LENGTHS[batch].max()) for batch in bucketed.batches(0)]
    assert lengths != sorted(lengths) and lengths != sorted(lengths, reverse=True)  # long batches everywhere
    order = EpochBatches(1003, 8, lengths=LENGTHS, pool=25).order(5)  # evaluation takes the longest first
    assert sorted(order.tolist()) == list(range(1003)) and (np.diff(LENGTHS[order]) <= 0).all()
    assert EpochBatches(1003, 8, lengths=LENGTHS).order(5).tolist() == list(range(1003))


# -- loading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_pass_is_the_next_epoch(tiny: Prepared, num_workers: int) -> None:
    def states() -> list[Any]:
        return [torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()]

    loading, before = loader(tiny, num_workers), states()
    assert [labels(loading) for _ in range(3)] == [epoch(0), epoch(1), epoch(2)]
    assert states() == before  # the global generators are left alone
    for number in (5, 2, 2, 0):  # unless it is set
        loading.set_epoch(number)
        assert labels(loading) == epoch(number)
    assert labels(loading) == epoch(1)  # and goes on from there
    loading.batch_sampler.sampler.set_epoch(9)  # Lightning's way
    assert labels(loading) == epoch(9)
    loading.close()


def test_abandoned_passes(tiny: Prepared) -> None:
    loading = loader(tiny)
    iter(loading)  # nobody asked for a batch: not a pass
    first = iter(loading)
    assert labels([next(first), next(first)]) == epoch(0)[:2]
    assert labels(loading) == epoch(1)
    loading = loader(tiny, 1)
    next(iter(loading))
    assert labels(loading) == epoch(1)


# -- inside Lightning --------------------------------------------------------------------------------------------------


class SaveEverywhere(L.Callback):
    """Writes a checkpoint in every hook where ModelCheckpoint or a signal may write one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.saved: list[tuple[Path, int]] = []  # checkpoint, optimizer steps before it

    def save(self, trainer: L.Trainer, *_: Any) -> None:
        path = self.folder / f"{len(self.saved):03}.ckpt"
        trainer.save_checkpoint(path)
        self.saved.append((path, trainer.global_step))

    on_train_batch_start = on_before_optimizer_step = on_train_batch_end = save
    on_validation_start = on_validation_end = on_train_epoch_end = save


STEPS = {"max_steps": 16, "max_epochs": -1}
CUT_SHORT = {"max_epochs": 3, "limit_train_batches": 5}
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("settings", "num_workers"),
    [
        ({**STEPS, "val_check_interval": 3}, 0),
        pytest.param({**STEPS, "val_check_interval": 3}, 2, marks=slow),
        pytest.param({**STEPS, "val_check_interval": 5, "check_val_every_n_epoch": None}, 0, marks=slow),
        pytest.param({**STEPS, "limit_val_batches": 0}, 0, marks=slow),
        pytest.param({"max_epochs": 2}, 2, marks=slow),
        pytest.param(CUT_SHORT, 0, marks=slow),
    ],
)
def test_lightning_resumes_exactly_everywhere(
    tiny: Prepared, tmp_path: Path, settings: dict[str, Any], num_workers: int
) -> None:
    def run(path: Path | None = None, **more: Any) -> tuple[list[list[int]], float]:
        data = Tiny(root=str(tiny.folder.parents[1]), batch_size=BATCH, shuffle_seed=7, num_workers=num_workers)
        model = fit(data, path, **settings, **more)
        return labels(model.batches), model.weight.item()

    callback = SaveEverywhere(tmp_path)
    whole, weight = run(callbacks=[callback])
    per_epoch = settings.get("limit_train_batches", NUM_BATCHES)
    assert len(whole) == settings.get("max_steps", settings["max_epochs"] * per_epoch)
    saved = callback.saved if not num_workers else callback.saved[::5]
    for path, done in saved:
        assert run(path) == (whole[done:], weight), path.name


def test_epochs_validation_and_loops_after_a_fit(tmp_path: Path) -> None:
    data = Tiny(root=str(tmp_path), batch_size=BATCH, shuffle_seed=7)
    model = fit(data, max_epochs=2)
    assert labels(model.batches) == epoch(0) + epoch(1) and labels(model.validated) == [[0, 1, 2, 3], [4, 5]] * 2
    assert labels(fit(data, max_epochs=1, limit_train_batches=3, limit_val_batches=0).batches) == epoch(0)[:3]
    loading = data.train_dataloader()  # the trainer is still the data's, but trains no more
    assert [labels(loading), labels(loading)] == [epoch(0), epoch(1)]
    data.trainer = None  # a trainer that only has the loader
    alone = fit(data.train_dataloader(), max_epochs=2, limit_val_batches=0)
    assert labels(alone.batches) == epoch(0) + epoch(1)
    overfit = fit(data, max_epochs=2, overfit_batches=2)
    assert labels(overfit.batches) == labels(data.open_split("train").batch(np.arange(n, n + 4), 0) for n in (0, 4)) * 2
