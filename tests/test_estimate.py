"""`lra-ssm fit --estimate`: what is counted of a step, by hand for a linear map; what is printed and warned of."""

import copy
import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lra_ssm.cli.config import read_fit_options
from lra_ssm.datamodules import ListOps
from lra_ssm.runs.cost import GPUS, count_step, estimate, extrapolated, planned_steps, seconds_on
from lra_ssm.runs.step_cost import CountStep
from lra_ssm.tables import duration
from tests.runner import FIT, SHORT, everything_below, run_here

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def made():
    """The task and the largest batch of tiny.yaml."""
    found = read_fit_options(FIT[1:]).build(None)
    return found.task, found.data.largest_batch()


# --- counting ---


@pytest.mark.parametrize("fake", [False, True])
def test_a_product_by_hand(fake):
    """(128, 64) by (64, 256), float32, and its gradients, of which that of the inputs is not asked for."""
    x, w = torch.ones(128, 64), torch.ones(64, 256).requires_grad_()
    if fake:
        mode = FakeTensorMode()
        x, w = mode.from_tensor(x), mode.from_tensor(w)
    with CountStep(CPU) as counter:
        for tensor in (x, w):
            counter.track(tensor)
        held = counter.allocated
        y = x @ w
        kept = counter.allocated - held
        counter.phase = "backward"
        y.backward(torch.ones_like(y.detach()))
        del y
    cost, kb = counter.cost, 1024
    assert (held, kept) == ((32 + 64) * kb, 128 * kb)
    assert cost.total("dtype", "flops") == {torch.float32: 2 * 2 * 128 * 64 * 256}
    assert cost.total("phase", "launches") == {"forward": 1, "backward": 2}  # ones, and the product
    assert cost.total("operator", "size") == {"aten::mm": 2 * (32 + 64 + 128) * kb, "aten::ones_like": 2 * 128 * kb}
    assert cost.peak == held + (128 + 128 + 64) * kb and cost.peak_phase == "backward"
    assert counter.allocated == held + 64 * kb  # the gradient


def test_a_gpu_takes_the_longer_of_bytes_and_products():
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.empty(1024, 1024))
        with CountStep(CPU) as counter:
            _ = x @ x, x + 1
    gpu = GPUS["H100"]
    for precision, rate in (("highest", gpu.float32), ("high", gpu.tf32)):
        expected = 2 * 1024**3 / rate + 2 * 4 * 1024**2 / gpu.bandwidth
        assert seconds_on(counter.cost, gpu, precision) == pytest.approx(expected)


def test_views_and_expanded_entries_cost_nothing():
    x = torch.ones(8, 1)
    with CountStep(CPU) as counter:
        x.expand(8, 1000).view(8, 10, 100).transpose(0, 1).sum()
    assert counter.cost.total("operator", "size") == {"aten::sum": 8 * 4 + 4}
    assert counter.cost.total("phase", "launches") == {"forward": 1}


def test_more_examples_cost_what_the_second_did(made):
    task, batch = made
    parts = [tuple(None if x is None else x[:n] for x in batch) for n in (1, 2, 4)]
    one, two, four = (count_step(task, part, CPU, fake=False) for part in parts)
    for quantity in (lambda cost: cost.peak, lambda cost: cost.saved, lambda cost: cost.resident,
                     lambda cost: cost.total("dtype", "flops").total(),
                     lambda cost: seconds_on(cost, GPUS["H100"], "high")):  # fmt: skip
        assert extrapolated([one, two], parts[2], quantity) == pytest.approx(quantity(four), rel=0.02)
        assert extrapolated([four], parts[2], quantity) == quantity(four)


# --- the command ---


def test_memory_and_hours_of_the_whole_run_are_printed_and_nothing_is_left(made, tmp_path, monkeypatch):
    result = run_here([*FIT, "--estimate=A100", "--trainer.max_steps=9000000", "--trainer.max_epochs=-1"], tmp_path)
    assert result.code == 0 and not everything_below(tmp_path)
    lines = result.out.splitlines()
    assert lines[0].startswith("a training step of ") and lines[0].endswith("by the CPU's kernels")
    assert "fits into an A100 (80 GB)" in lines and max(map(len, lines)) <= 100
    line = next(line for line in lines if line.startswith("an A100 needs"))
    step, whole = re.search(r"at least (\S+) ms .*; (.+) for all 9,000,000 steps", line).groups()
    assert whole in {duration(float(step) * 9e3 * part) for part in (0.99, 1, 1.01)}
    monkeypatch.setattr("os.sysconf", lambda name: 1)  # a page of a byte
    task, batch = copy.deepcopy(made[0]), made[1]
    task.network.unused = torch.nn.Parameter(torch.ones(2_500_000, dtype=torch.float64))
    lines = estimate(task, batch, "32-true", None, "H100").splitlines()
    assert re.match(r"2,50\d,\d+ parameters +0\.020$", lines[2]) and re.match(r"gradients.* 0\.0[246]0$", lines[3])
    assert lines[-1] == "does not fit into this machine (0 GB)"


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({}, 6),
        ({"max_steps": 5}, 5),
        ({"accumulate_grad_batches": 2}, 3),
        ({"max_epochs": -1, "max_time": "01:00:00:00"}, float("inf")),
    ],
)
def test_the_steps_of_a_run_by_its_trainers_arguments(given, steps, trained):
    prepared = ListOps(root=str(trained[0] / "data"), batch_size=8, length_bounds=(3, 20), max_depth=3, num_train=16,
                       num_val=20, num_test=20)  # fmt: skip
    assert planned_steps({"max_epochs": 3, **given}, prepared) == steps
    assert planned_steps({"max_epochs": 3}, ListOps(root="nowhere")) == float("inf")


def test_a_fit_that_will_not_fit_says_so_first(tmp_path, monkeypatch):
    """And says nothing, and counts nothing, where it fits."""
    assert "a training step needs" not in run_here([*FIT, *SHORT, "--experiment=fits"], tmp_path).err
    monkeypatch.setattr("lra_ssm.runs.cost.memory_of", lambda device: 1e5)
    again = "--compute.recompute_blocks=true"
    line = r"warning: a training step needs about 0.00\d+ GB, and this machine has 0.0001 GB; "
    smaller = "a smaller --data.batch_size, with --trainer.accumulate_grad_batches"
    usual = run_here([*FIT, *SHORT], tmp_path)
    assert re.search(f"{line}{again}, or {smaller}", usual.err) and usual.code == 0
    assert re.search(line + smaller, run_here([*FIT, *SHORT, again, "--fresh"], tmp_path).err)
