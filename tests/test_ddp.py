"""Two processes (gloo) train, validate and test as one does with the same global batch: by DDP, and sharded (FSDP2).

language.yaml has 101 tokens to train on: 13 windows of 8 in batches of 4, 4, 3 and 2 of which each process has its
share, or 4 streams in 4 batches; 50 tokens to validate and 69 to test.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from lra_ssm.runs.record import read_metrics
from lra_ssm.tasks import LanguageModelling
from tests.runner import TINY, fail, only_run, run_by, run_here

TEXT = ("--config", str(TINY.with_name("language.yaml")))
EXACT = ("--trainer.precision=64-true",)  # so that the order of sums hardly shows
STREAMS = (*TEXT, "--data.order=streams", "--data.evaluation=streams")
STRATEGIES = Path(__file__).parents[1] / "configs/lm/strategies"
CPU = ["--trainer.accelerator=cpu", "--trainer.precision=32-true"]
DDP = ["--config", str(STRATEGIES / "ddp.yaml"), *CPU]
FSDP2 = ["--config", str(STRATEGIES / "fsdp2.yaml"), *CPU, "--trainer.strategy.data_parallel_size=2"]
# 43 training examples in batches of 8 leave 3, 19 for validation and test leave 3: shares of two and one. Dropout would
# draw other masks in every process.
CLASSES = (
    "--config", str(TINY), "--data.num_train=43", "--data.num_val=19", "--data.num_test=19", "--data.generator_seed=4",
    "--model.metrics.f1=torchmetrics.classification.MulticlassF1Score", "--model.metrics.f1.num_classes=10",
    "--model.label_smoothing=0.1", "--model.class_weights=[1,2,3,4,5,5,4,3,2,1]", "--model.optimizer.ema_decay=0.5",
    "--model.network.block.dropout=0",
)  # fmt: skip


def command(
    name: str, devices: int, folder: Path, *flags: str, strategy: list[str] = DDP, code: int = 0, **env: str
) -> str:
    """What the first process printed. code: its exit code; the others' is 0."""
    if devices == 1 and not env:  # this process
        results = [run_here([name, *flags, "--trainer.devices=1"], folder)]
    else:
        # A strategy's precision stands before the precision of the flags.
        line = [name, *flags[:2], *(strategy if devices > 1 else []), *flags[2:]]
        results = run_by(devices, line, folder, env)
    assert [r.code for r in results] == [code] + [0] * (devices - 1), [(r.code, r.err[-3000:]) for r in results]
    return results[0].out


def last(folder: Path) -> dict[str, Any]:
    return torch.load(only_run(folder) / "checkpoints/last.ckpt", weights_only=True)


def logged(folder: Path) -> list[dict[str, float]]:
    """The rows of metrics.csv without what depends on the time, or is of one process's share of a batch."""
    rows, left_out = read_metrics(only_run(folder) / "metrics.csv"), ("_per_s", "train/accuracy", "train/f1")
    return [{k: float(v) for k, v in row.items() if v and not k.endswith(left_out)} for row in rows]


def assert_close(ours: Path, theirs: Path, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    """Weights, what the optimizer knows, and all that is logged."""
    assert only_run(ours).name == only_run(theirs).name
    a, b = last(ours), last(theirs)
    assert len(a["state_dict"]) > 10
    torch.testing.assert_close(a["state_dict"], b["state_dict"], rtol=rtol, atol=atol)
    (one,), (other,) = a["optimizer_states"], b["optimizer_states"]
    assert [group["params"] for group in one["param_groups"]] == [group["params"] for group in other["param_groups"]]
    torch.testing.assert_close(one["state"], other["state"], rtol=rtol, atol=atol)
    rows = list(zip(logged(ours), logged(theirs), strict=True))
    assert len(rows) >= 12 and {"train/loss", "train/grad_norm"} <= rows[0][0].keys()
    for mine, yours in rows:
        assert mine == pytest.approx(yours, rel=max(rtol, 1e-6))  # logged in float32


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a fit by so many processes with these flags."""

    @cache
    def of(devices: int, *flags: str) -> Path:
        folder = tmp_path_factory.mktemp(f"by-{devices}")
        command("fit", devices, folder, *flags)
        return folder

    return of


@pytest.mark.parametrize(
    "flags", [pytest.param(TEXT, marks=pytest.mark.slow), STREAMS, CLASSES], ids=["shuffled", "streams", "classes"]
)
def test_two_processes_train_as_one(flags: tuple[str, ...], fitted: Callable[..., Path]) -> None:
    assert_close(fitted(2, *flags, *EXACT), fitted(1, *flags, *EXACT))


def test_every_example_counts_once(fitted: Callable[..., Path]) -> None:
    """In the means of an epoch and in scores."""
    found = []
    for devices in (1, 2):
        folder = fitted(devices, *CLASSES, *EXACT)
        command("test", devices, folder, *CLASSES, *EXACT)
        run, test = (json.loads((only_run(folder) / f"{name}.json").read_text()) for name in ("run", "test"))
        assert test["data"]["examples"]["test"] == 19 and test["data"]["inputs"] == "tokens"
        found.append({k: v for k, v in (run["metrics"] | test["metrics"]).items() if not k.endswith("_per_s")})
    one, two = found
    assert two == pytest.approx(one, rel=1e-6)
    assert {"train/loss_epoch", "val/loss", "val/f1", "test/loss", "test/f1"} <= one.keys()
    for name, count in (("train/accuracy_epoch", 43), ("val/accuracy", 19), ("test/accuracy", 19)):
        assert one[name] * count == pytest.approx(round(one[name] * count), abs=1e-5)


@pytest.mark.slow  # the fits above validate in streams
def test_perplexity_of_sliding_windows_is_of_the_whole_split(fitted: Callable[..., Path]) -> None:
    folder, metrics = fitted(1, *TEXT, *EXACT), []
    for devices in (1, 2):
        flags = [*EXACT, "--data.evaluation=sliding", "--data.eval_stride=3"]
        command("test", devices, folder, *TEXT, *flags, f"--ckpt_path={only_run(folder)}/checkpoints/best.ckpt")
        # The run's own result would be of windows, as it was validated.
        metrics.append(json.loads((only_run(folder) / "test-others.json").read_text())["others"][-1]["metrics"])
    assert {"test/loss", "test/perplexity", "test/bits_per_byte"} == metrics[0].keys()
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-6)


def test_a_run_killed_within_an_epoch_of_streams_ends_as_an_uninterrupted_one(
    tmp_path: Path, fitted: Callable[..., Path]
) -> None:
    command("fit", 1, tmp_path, *STREAMS, *EXACT, code=-9, KILL_AT="train_batch_end:3")
    stopped = last(tmp_path)
    assert stopped["global_step"] == 2 and {len(leaf) for leaf in tree_leaves(stopped["carried_state"])} == {4}
    assert "going on from" in command("fit", 1, tmp_path, *STREAMS, *EXACT)
    assert_close(tmp_path, whole := fitted(1, *STREAMS, *EXACT), rtol=0, atol=0)
    states = [tree_leaves(last(folder)["carried_state"]) for folder in (tmp_path, whole)]
    assert logged(tmp_path) == logged(whole) and all(torch.equal(a, b) for a, b in zip(*states, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_another_number_of_processes_goes_on_within_an_epoch_of_streams(
    before: int, after: int, tmp_path: Path, fitted: Callable[..., Path]
) -> None:
    """In its second epoch, at its second batch; of two processes one is told to stop, and both save what they carry."""
    if before == 2:
        stop = {"KILL_AT": "train_batch_end:6", "KILL_WITH": "SIGTERM", "KILL_RANK": "1"}
        command("fit", 2, tmp_path, *STREAMS, *EXACT, code=143, **stop)
    else:
        command("fit", 1, tmp_path, *STREAMS, *EXACT, code=-9, KILL_AT="train_batch_end:7")
    stopped = last(tmp_path)
    assert stopped["global_step"] == 6 and {len(leaf) for leaf in tree_leaves(stopped["carried_state"])} == {4}
    command("fit", after, tmp_path, *STREAMS, *EXACT)
    assert_close(tmp_path, fitted(1, *STREAMS, *EXACT))


def test_other_strategies_are_one_line(tmp_path: Path) -> None:
    more = ["fit", *TEXT, *FSDP2, "--trainer.devices=1"]
    assert "data_parallel_size=1 and trainer.strategy.tensor_parallel_size=1" in fail(more, tmp_path)
    more += ["--trainer.strategy.data_parallel_size=1", "--trainer.strategy.save_distributed_checkpoint=true"]
    assert "single files" in fail(more, tmp_path)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow  # tests/tasks/test_sharding.py has a step of it by default
def test_sharded_weights_go_on_from_whole_ones_and_train_as_them(tmp_path: Path, fitted: Callable[..., Path]) -> None:
    command("fit", 1, tmp_path, *STREAMS, code=-9, KILL_AT="train_batch_end:7")
    assert last(tmp_path)["global_step"] == 6
    command("fit", 2, tmp_path, *STREAMS, "--compute.recompute_blocks=true", strategy=FSDP2)
    assert_close(tmp_path, fitted(1, *STREAMS), rtol=1e-5, atol=1e-6)
    whole = LanguageModelling.load_from_checkpoint(only_run(tmp_path) / "checkpoints/last.ckpt", weights_only=True)
    assert torch.equal(whole.network.head_weight, last(tmp_path)["state_dict"]["network.backbone.embedding.weight"])
