"""`lra-ssm fit --estimate`."""

import re
from functools import partial

import pytest
import torch

from lra_ssm.cli.config import read_fit_options
from lra_ssm.datamodules import ListOps
from lra_ssm.errors import InputError
from lra_ssm.runs.cost import _extrapolate, count_step, estimate, planned_steps
from lra_ssm.runs.step_cost import Kernel, StepCost
from lra_ssm.tables import duration
from tests.runner import FIT, SHORT, everything_below, fail, run_here


@pytest.fixture(scope="module")
def made():
    found = read_fit_options(FIT[1:]).build(None)
    return found.task, found.data


def test_what_is_said_and_nothing_is_left(tmp_path):
    result = run_here([*FIT, "--estimate=A100"], tmp_path)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].startswith("a training step of ") and lines[0].endswith("by the CPU's kernels")
    assert "an A100 needs at least " in result.out and "fits into this machine" in result.out
    assert max(map(len, lines)) <= 100 and not everything_below(tmp_path)
    assert "--estimate=A10: did you mean 'A100'?" in fail([*FIT, "--estimate=A10"], tmp_path)


def test_more_examples_cost_what_the_second_did(made):
    task, data = made
    batch = data.largest_batch()

    def cost(examples: int):
        part = tuple(None if x is None else x[:examples] for x in batch)
        return count_step(task, part, torch.device("cpu"), fake=False)

    one, two, four = cost(1), cost(2), cost(4)
    grown = _extrapolate(one, two, 4)
    for key, value in (("phase", "launches"), ("dtype", "flops")):
        assert grown.total(key, value) == four.total(key, value)
    for name in ("peak", "saved", "resident"):
        assert getattr(grown, name) == pytest.approx(getattr(four, name), rel=0.02)
    moved = [cost.total("operator", "size").total() for cost in (grown, four)]
    assert moved[0] == pytest.approx(moved[1], rel=0.01)


def test_loops_that_are_longer_for_more_examples():
    """As many products and bytes as are computed, though more kernels."""

    def cost(examples: int) -> StepCost:
        fixed = Kernel("optimizer", "aten::add", 1, 1000, 0, None)
        return StepCost(kernels=[fixed] + examples * [Kernel("forward", "aten::mm", 1, 8, 6, torch.float32)])

    grown = _extrapolate(cost(1), cost(2), 5)
    assert grown.total("operator", "size") == cost(5).total("operator", "size") == {"aten::add": 1000, "aten::mm": 40}
    assert grown.total("dtype", "flops") == {torch.float32: 30}


def test_what_does_not_fit_is_said(made, monkeypatch):
    task, data = made
    monkeypatch.setattr("os.sysconf", lambda name: 1)  # a page of a byte
    said = estimate(task, data.largest_batch(), "32-true", None, "H100")
    assert said.splitlines()[-1] == "does not fit into this machine (0 GB)"


def test_the_whole_run_is_given_in_hours(made, trained):
    task, data = made
    text = estimate(task, data.largest_batch(), "32-true", None, "H100", steps=1e9)
    step, whole = re.search(r"an H100 needs at least (\S+) ms .*, (.+) for all 1,000,000,000 steps", text).groups()
    assert whole in {duration(float(step) * 1e9 / 1e3 * part) for part in (0.998, 1, 1.002)}
    prepared = ListOps(root=str(trained[0] / "data"), batch_size=8, length_bounds=(3, 20), max_depth=3, num_train=16,
                       num_val=20, num_test=20)  # fmt: skip
    assert planned_steps({"max_epochs": 3}, prepared) == 6
    assert planned_steps({"max_epochs": 3, "max_steps": 5}, prepared) == 5
    assert planned_steps({"max_epochs": 3, "accumulate_grad_batches": 2}, prepared) == 3
    assert planned_steps({"max_epochs": 3, "limit_train_batches": 1}, prepared) == 3
    assert planned_steps({"max_epochs": -1, "max_time": "01:00:00:00"}, prepared) == float("inf")
    assert planned_steps({"max_epochs": 3}, ListOps(root="nowhere")) == float("inf")


def test_a_step_that_depends_on_values_cannot_be_counted_for_a_gpu(made, monkeypatch):
    """On fake tensors, whose values are unknown: here the loss checks its labels, as it does on a CPU only."""
    task, data = made
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("lra_ssm.runs.cost.memory_of", lambda device: 1)
    on_cpu = partial(count_step, device=torch.device("cpu"))
    monkeypatch.setattr(
        "lra_ssm.runs.cost.count_step", lambda task, batch, device, *others: on_cpu(task, batch, precision=others[0])
    )
    with pytest.raises(InputError, match="--estimate: the step depends on values of tensors"):
        estimate(task, data.largest_batch(), "32-true", None, "H100")


def test_the_largest_batch_needs_no_data(tmp_path):
    data = ListOps(root=str(tmp_path), batch_size=3, max_length=2048)
    inputs, lengths, labels = data.largest_batch()
    assert inputs.shape == (3, 2048) and lengths.tolist() == [2048] * 3 and labels.shape == (3,)
    assert not everything_below(tmp_path)


def test_a_fit_that_will_not_fit_says_so_first(tmp_path, monkeypatch):
    """And says nothing, and counts nothing, where it fits."""
    assert "a training step needs" not in run_here([*FIT, *SHORT, "--experiment=fits"], tmp_path).err
    monkeypatch.setattr("lra_ssm.runs.cost.memory_of", lambda device: 1e5)
    again = "--compute.recompute_blocks=true"
    said = r"warning: a training step needs about 0.00\d+ GB, and this machine has 0.0001 GB; "
    smaller = "a smaller --data.batch_size, with --trainer.accumulate_grad_batches"
    usual = run_here([*FIT, *SHORT], tmp_path)
    assert re.search(f"{said}{again}, or {smaller}", usual.err) and usual.code == 0
    told = run_here([*FIT, *SHORT, again, "--fresh"], tmp_path)
    assert re.search(said + smaller, told.err)
