"""Loaders in a loop of somebody's own, without a trainer: each pass is the next epoch unless it is set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest

from lra_ssm.datamodules.loader import EpochBatches, ResumableLoader
from tests.datamodules.helpers import Tiny
from tests.datamodules.test_loader import Model

NUM_TRAIN, BATCH, SEED = 26, 4, 7


def opened(tmp_path: Path, num_workers: int = 0) -> Tiny:
    data = Tiny(root=str(tmp_path), num_workers=num_workers, batch_size=BATCH, shuffle_seed=SEED, pin_memory=False)
    data.prepare_data()
    data.setup("fit")
    return data


def read(batches: Any) -> list[list[int]]:
    return [batch.labels.tolist() for batch in batches]


def epoch(number: int) -> list[list[int]]:
    return list(EpochBatches(NUM_TRAIN, BATCH, SEED).batches(number))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_pass_is_the_next_epoch(tmp_path: Path, num_workers: int) -> None:
    data = opened(tmp_path, num_workers)
    loader = data.train_dataloader()
    assert [read(loader) for _ in range(3)] == [epoch(0), epoch(1), epoch(2)]
    assert read(data.train_dataloader()) == epoch(0)  # a new loader begins anew
    validation = data.val_dataloader()
    assert read(validation) == read(validation) == [[0, 1, 2, 3], [4, 5]]
    data.teardown()


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_whoever_sets_the_epoch_is_obeyed(tmp_path: Path, num_workers: int) -> None:
    data = opened(tmp_path, num_workers)
    loader = data.train_dataloader()
    for number in (5, 2, 2, 0):
        loader.set_epoch(number)
        assert read(loader) == epoch(number)
    assert read(loader) == epoch(1)  # and goes on from there
    loader.batch_sampler.sampler.set_epoch(9)  # Lightning's way
    assert read(loader) == epoch(9)
    data.teardown()


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_abandoned_pass_was_one(tmp_path: Path, num_workers: int) -> None:
    data = opened(tmp_path, num_workers)
    loader = data.train_dataloader()
    iter(loader)  # of which nobody asked a batch: no pass
    first = iter(loader)
    assert read([next(first), next(first)]) == epoch(0)[:2]
    assert read(loader) == epoch(1)
    data.teardown()


def fit(data: Any, **settings: Any) -> list[list[int]]:
    model = Model()
    quiet = dict(enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, logger=False)
    trainer = L.Trainer(accelerator="cpu", devices=1, num_nodes=1, limit_val_batches=0, **quiet, **settings)
    trainer.fit(model, data)
    return model.trained


def test_a_loop_after_a_fit(tmp_path: Path) -> None:
    """The trainer is still the data's, but trains no more."""
    data = opened(tmp_path)
    assert fit(data, max_epochs=1, limit_train_batches=3) == epoch(0)[:3]
    loader = data.train_dataloader()
    assert [read(loader), read(loader)] == [epoch(0), epoch(1)]


def test_a_trainer_that_has_the_loader_alone(tmp_path: Path) -> None:
    loader: ResumableLoader = opened(tmp_path).train_dataloader()
    assert fit(loader, max_epochs=2) == epoch(0) + epoch(1)
