"""Two processes (gloo) train a language model as one does with the same global batch: by DDP, and sharded (FSDP2).

language.yaml has 101 tokens to train on: 13 windows of 8 in batches of 4, 4, 3 and 2 of which each process has its
share, or 4 streams in 4 batches; 50 tokens to validate and 69 to test.
"""

import csv
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from lra_ssm.tasks import LanguageModelling
from tests.runner import fail, only_run, run_by, run_here

CONFIG = Path(__file__).parent / "language.yaml"
FIT = ["fit", "--config", str(CONFIG)]
STREAMS = ["--data.order=streams", "--data.evaluation=streams"]
EXACT = ["--trainer.precision=64-true"]  # so that the order of sums hardly shows
STRATEGIES = Path(__file__).parents[1] / "configs/lm/strategies"
CPU = ["--trainer.accelerator=cpu", "--trainer.precision=32-true"]
DDP = ["--config", str(STRATEGIES / "ddp.yaml"), *CPU]
FSDP2 = ["--config", str(STRATEGIES / "fsdp2.yaml"), *CPU, "--trainer.strategy.data_parallel_size=2"]


def fit(devices: int, folder: Path, *flags: str, code: int = 0, env: dict[str, str] | None = None) -> list[str]:
    """What the processes printed."""
    strategy = [] if devices == 1 or "--config" in flags else DDP
    return command(devices, [*FIT, *strategy, *flags], folder, code, env)


def command(devices: int, line: list[str], folder: Path, code: int = 0, env: dict[str, str] | None = None) -> list[str]:
    """One process is this one, unless it has an environment of its own. code: the first process's; the others' is 0."""
    if devices == 1 and env is None:
        results = [run_here([*line, "--trainer.devices=1"], folder)]
    else:
        results = run_by(devices, line, folder, env)
    codes = [code] + [0] * (len(results) - 1)
    assert [result.code for result in results] == codes, [(r.code, r.err[-3000:]) for r in results]
    return [result.out + result.err for result in results]


def last(folder: Path) -> dict[str, Any]:
    return torch.load(only_run(folder) / "checkpoints/last.ckpt", weights_only=True)


def logged(folder: Path) -> list[dict[str, float]]:
    """The rows of metrics.csv without what depends on the time."""
    with open(only_run(folder) / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: float(v) for k, v in row.items() if v and not k.endswith("_per_s")} for row in rows]


def assert_close(ours: Path, theirs: Path, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    """Weights, what the optimizer knows, and all that is logged."""
    a, b = last(ours), last(theirs)
    assert a["state_dict"].keys() == b["state_dict"].keys() and len(a["state_dict"]) > 10
    for name in a["state_dict"]:
        torch.testing.assert_close(a["state_dict"][name], b["state_dict"][name], rtol=rtol, atol=atol, msg=name)
    (one,), (other,) = a["optimizer_states"], b["optimizer_states"]
    assert [group["params"] for group in one["param_groups"]] == [group["params"] for group in other["param_groups"]]
    assert one["state"].keys() == other["state"].keys()
    for number, values in one["state"].items():
        for name, value in values.items():
            torch.testing.assert_close(value, other["state"][number][name], rtol=rtol, atol=atol)
    rows = list(zip(logged(ours), logged(theirs), strict=True))
    assert len(rows) == 12 and {"train/loss", "train/grad_norm"} <= rows[0][0].keys()
    for mine, yours in rows:
        assert mine == pytest.approx(yours, rel=max(rtol, 1e-6))  # logged in float32


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a fit by so many processes with these flags."""

    @cache
    def of(devices: int, *flags: str) -> Path:
        folder = tmp_path_factory.mktemp(f"by-{devices}")
        fit(devices, folder, *flags)
        return folder

    return of


# Shuffled examples are shared in test_ddp.py too.
@pytest.mark.parametrize(
    "order", [pytest.param((), marks=pytest.mark.slow), tuple(STREAMS)], ids=["shuffled", "streams"]
)
def test_two_processes_train_as_one(order: tuple[str, ...], fitted: Callable[..., Path]) -> None:
    one, two = fitted(1, *order, *EXACT), fitted(2, *order, *EXACT)
    assert only_run(one).name == only_run(two).name
    assert_close(two, one)


@pytest.mark.slow  # fits of the tests above validate in streams
def test_perplexity_of_sliding_windows_is_of_the_whole_split(fitted: Callable[..., Path]) -> None:
    folder, metrics = fitted(1, *EXACT), []
    for devices in (1, 2):
        line = ["test", "--config", str(CONFIG), *(DDP if devices > 1 else []), *EXACT]
        line += ["--data.evaluation=sliding", "--data.eval_stride=3"]
        command(devices, [*line, f"--ckpt_path={only_run(folder)}/checkpoints/best.ckpt"], folder)
        # The run's own result would be of windows, as it was validated.
        metrics.append(json.loads((only_run(folder) / "test-others.json").read_text())["others"][-1]["metrics"])
    assert {"test/loss", "test/perplexity", "test/bits_per_byte"} == metrics[0].keys()
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-6)


def test_a_run_killed_within_an_epoch_of_streams_ends_as_an_uninterrupted_one(
    tmp_path: Path, fitted: Callable[..., Path]
) -> None:
    fit(1, tmp_path, *STREAMS, *EXACT, code=-9, env={"KILL_AT": "train_batch_end:3"})
    stopped = last(tmp_path)
    assert stopped["global_step"] == 2 and {len(leaf) for leaf in tree_leaves(stopped["carried_state"])} == {4}
    assert "going on from" in fit(1, tmp_path, *STREAMS, *EXACT)[0]
    ours, theirs = last(tmp_path), last(whole := fitted(1, *STREAMS, *EXACT))
    assert all(torch.equal(ours["state_dict"][name], theirs["state_dict"][name]) for name in theirs["state_dict"])
    assert logged(tmp_path) == logged(whole)
    states = [tree_leaves(one["carried_state"]) for one in (ours, theirs)]
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


# In its second epoch, at its second batch; of two processes one is told to stop, and both save what they carry.
STOP = {"KILL_AT": "train_batch_end:6", "KILL_WITH": "SIGTERM", "KILL_RANK": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_another_number_of_processes_goes_on_within_an_epoch_of_streams(
    before: int, after: int, tmp_path: Path, fitted: Callable[..., Path]
) -> None:
    env, code = (STOP, 143) if before == 2 else ({"KILL_AT": "train_batch_end:7"}, -9)
    fit(before, tmp_path, *STREAMS, *EXACT, code=code, env=env)
    stopped = last(tmp_path)
    assert stopped["global_step"] == 6 and {len(leaf) for leaf in tree_leaves(stopped["carried_state"])} == {4}
    fit(after, tmp_path, *STREAMS, *EXACT)
    assert_close(tmp_path, fitted(1, *STREAMS, *EXACT))


def test_other_strategies_are_one_line(tmp_path: Path) -> None:
    more = [*FIT, *FSDP2, "--trainer.devices=1"]
    assert "data_parallel_size=1 and trainer.strategy.tensor_parallel_size=1" in fail(more, tmp_path)
    more += ["--trainer.strategy.data_parallel_size=1", "--trainer.strategy.save_distributed_checkpoint=true"]
    assert "single files" in fail(more, tmp_path)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow  # tests/tasks/test_sharding.py has a step of it by default
def test_sharded_weights_go_on_from_whole_ones_and_train_as_them(tmp_path: Path, fitted: Callable[..., Path]) -> None:
    fit(1, tmp_path, *STREAMS, code=-9, env={"KILL_AT": "train_batch_end:7"})
    assert last(tmp_path)["global_step"] == 6
    fit(2, tmp_path, *STREAMS, "--compute.recompute_blocks=true", *FSDP2)
    assert_close(tmp_path, fitted(1, *STREAMS), rtol=1e-5, atol=1e-6)
    whole = LanguageModelling.load_from_checkpoint(only_run(tmp_path) / "checkpoints/last.ckpt", weights_only=True)
    assert torch.equal(whole.network.head_weight, last(tmp_path)["state_dict"]["network.backbone.embedding.weight"])
