"""Every schedule by its formula, and classes of others behind the warm-up."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LinearLR, LRScheduler, StepLR

from lra_ssm.tasks import OptimizerSettings
from lra_ssm.tasks.schedules import SCHEDULES, Span, schedule_of

HERE = "tests.tasks.test_schedules"


class Halving(LRScheduler):
    """A user's own: half the rate after so many steps."""

    def __init__(self, optimizer, steps: int) -> None:
        self.steps = steps
        super().__init__(optimizer)

    def get_lr(self):
        return [base * 0.5 ** (self.last_epoch // self.steps) for base in self.base_lrs]


class Shrinking(LRScheduler):
    """A user's own in the chainable form: each rate is computed from the one before."""

    def __init__(self, optimizer, gamma: float) -> None:
        self.gamma = gamma
        super().__init__(optimizer)

    def get_lr(self):
        return [group["lr"] * (self.gamma if self.last_epoch else 1.0) for group in self.optimizer.param_groups]


def sgd():
    return torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (1.0, 0.1)])


def moved(optimizer, schedule, steps):
    """The first group's rate at each step; the second's is a tenth of it."""
    seen = []
    with warnings.catch_warnings(action="error"):
        for _ in range(steps):
            one, other = (group["lr"] for group in optimizer.param_groups)
            assert other == pytest.approx(one / 10)
            seen.append(one)
            optimizer.step()
            schedule.step()
    return seen


def rates(name, arguments=None, span=Span(4, 20), steps=21):  # noqa: B008
    optimizer = sgd()
    return moved(optimizer, schedule_of(optimizer, name, arguments or {}, span), steps)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_warm_up_is_a_line_from_0(name):
    arguments = {"every": 100} if name == "step" else {}
    assert rates(name, arguments, steps=5) == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert rates(name, arguments, Span(0, 20), 1) == [1]


AFTER = [t / 16 for t in range(17)]  # of a run of 20 steps with 4 of warm-up, the share that is done


@pytest.mark.parametrize("floor", [0.0, 0.2])
def test_what_goes_down_to_a_floor_is_there_at_the_runs_end(floor):
    span = Span(4, 20, floor)
    down = {name: rates(name, span=span)[4:] for name in ("cosine", "linear")}
    wsd = rates("wsd", {"decay": 0.25}, span)[4:]
    assert down["cosine"] == pytest.approx([floor + (1 - floor) * (1 + math.cos(math.pi * t)) / 2 for t in AFTER])
    assert down["linear"] == pytest.approx([floor + (1 - floor) * (1 - t) for t in AFTER])
    assert wsd == pytest.approx([1.0] * 11 + [floor + (1 - floor) * (1 - i / 5) for i in range(6)])
    assert rates("wsd", span=span)[17:] == pytest.approx([1, 1, (1 + floor) / 2, floor])  # a tenth of the run


def test_wsd_decays_behind_the_warm_up_alone():
    assert rates("wsd", {"decay": 1})[4:] == pytest.approx(rates("linear")[4:])


def test_a_constant_and_the_inverse_root_of_tay_et_al():
    assert rates("constant")[4:] == [1.0] * 17
    base, found = 0.5, rates("rsqrt", span=Span(4, 10**6), steps=50)
    theirs = [base * min(1, step / 4) / math.sqrt(max(step, 4)) for step in range(50)]
    assert [base / math.sqrt(4) * factor for factor in found] == pytest.approx(theirs)
    assert rates("rsqrt", span=Span(0, 20), steps=3) == pytest.approx([1, 1, 1 / math.sqrt(2)])


def test_lines_and_steps_are_torchs():
    optimizer = sgd()
    assert rates("linear", span=Span(0, 20)) == pytest.approx(moved(optimizer, LinearLR(optimizer, 1.0, 0.0, 20), 21))
    optimizer = sgd()
    theirs = moved(optimizer, StepLR(optimizer, 6, gamma=0.5), 21)
    assert rates("step", {"every": 6, "gamma": 0.5}, Span(0, 20)) == pytest.approx(theirs)


def test_a_class_is_moved_by_steps_behind_the_warm_up():
    path, arguments = "torch.optim.lr_scheduler.CosineAnnealingWarmRestarts", {"T_0": 5}
    optimizer = sgd()
    theirs = moved(optimizer, CosineAnnealingWarmRestarts(optimizer, 5), 17)
    assert rates(path, arguments, Span(0, 20))[:17] == pytest.approx(theirs)
    assert rates(path, arguments) == pytest.approx([0, 0.25, 0.5, 0.75, *theirs])
    assert rates(f"{HERE}.Halving", {"steps": 8}) == pytest.approx([0, 0.25, 0.5, 0.75] + [1] * 8 + [0.5] * 8 + [0.25])


@pytest.mark.parametrize("warmup", [1, 2, 4])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [(f"{HERE}.Shrinking", {"gamma": 0.9}), ("torch.optim.lr_scheduler.ExponentialLR", {"gamma": 0.9}),
     ("torch.optim.lr_scheduler.LinearLR", {"total_iters": 6}), ("torch.optim.lr_scheduler.PolynomialLR", {}),
     ("torch.optim.lr_scheduler.CosineAnnealingLR", {"T_max": 9})],
)  # fmt: skip
def test_after_the_warm_up_a_class_starts_from_the_full_rate(name, arguments, warmup):
    alone = rates(name, arguments, Span(0, 20), 12)
    assert rates(name, arguments, Span(warmup, 20), 12 + warmup)[warmup:] == pytest.approx(alone)
    assert alone[0] in (1.0, pytest.approx(1 / 3))  # LinearLR's own first factor


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("wsd", {}), ("rsqrt", {}), (f"{HERE}.Halving", {"steps": 2}), (f"{HERE}.Shrinking", {"gamma": 0.9}),
     ("torch.optim.lr_scheduler.ExponentialLR", {"gamma": 0.9})],
)  # fmt: skip
def test_it_goes_on_from_its_state(name, arguments, tmp_path):
    whole = rates(name, arguments)
    for at in (2, 9):
        first = sgd()
        schedule = schedule_of(first, name, arguments, Span(4, 20))
        moved(first, schedule, at)
        torch.save([first.state_dict(), schedule.state_dict()], tmp_path / "state")
        second = sgd()
        again = schedule_of(second, name, arguments, Span(4, 20))
        for part, state in zip((second, again), torch.load(tmp_path / "state", weights_only=True), strict=True):
            part.load_state_dict(state)
        assert moved(second, again, 21 - at) == whole[at:]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "cosin"}, "schedule is 'cosin', neither a known name nor an import path; did you mean 'cosine'"),
        ({"schedule": "step"}, "schedule step needs schedule_arguments.every"),
        ({"schedule": "step", "schedule_arguments": {"evry": 2}}, "schedule_arguments.evry; did you mean 'every'"),
        ({"schedule": "step", "schedule_arguments": {"every": 0.5}}, "every is 0.5; it must be a number of steps"),
        ({"schedule": "step", "schedule_arguments": {"every": 5, "gamma": 0}}, "gamma is 0; it must be a number"),
        ({"schedule": "wsd", "schedule_arguments": {"decay": 2}}, "decay is 2; it must be a share of the run"),
        ({"schedule": "cosine", "schedule_arguments": {"step": 2}}, "schedule cosine takes no schedule_arguments.step"),
        ({"schedule": "rsqrt", "min_lr_factor": 0.1}, "min_lr_factor is 0.1, but schedule rsqrt ends at no floor"),
        ({"schedule": f"{HERE}.Halving", "min_lr_factor": 0.1}, "ends at no floor: cosine, linear, wsd do"),
        ({"schedule": "linear", "cosine_by": "epoch"}, "cosine_by is epoch, but the schedule is linear"),
    ],
)  # fmt: skip
def test_settings_that_no_schedule_takes(settings, message):
    with pytest.raises(ValueError, match=message):
        OptimizerSettings(**settings)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("torch.optim.lr_scheduler.StepLR", {}, "needs schedule_arguments.step_size"),
        ("torch.optim.lr_scheduler.StepLR", {"step_sise": 2}, "step_sise; did you mean 'step_size'"),
        ("torch.optim.lr_scheduler.ReduceLROnPlateau", {}, "is no LRScheduler that is moved by steps"),
        ("torch.optim.lr_scheduler.CosineAnnealingWarmRestarts", {"T_0": 0}, "Restarts: Expected positive integer T_0"),
        ("torch.optim.SGD", {}, "is no LRScheduler that is moved by steps"),
        ("torch.optim.lr_scheduler.Step", {}, "schedule class_path 'torch.optim.lr_scheduler.Step' cannot be imported"),
    ],
)
def test_classes_that_are_none(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        schedule_of(sgd(), name, arguments, Span(0, 10))
