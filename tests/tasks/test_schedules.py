"""Every schedule by its formula, and classes of torch's kind after the warm-up."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LinearLR, LRScheduler

from lra_ssm.tasks.schedules import SCHEDULES, Span, schedule_of


class Shrinking(LRScheduler):
    """A user's schedule in the chainable form: each rate is only known by the previous one."""

    def __init__(self, optimizer, gamma: float) -> None:
        self.gamma = gamma
        super().__init__(optimizer)

    def get_lr(self):
        return [group["lr"] * (self.gamma if self.last_epoch else 1.0) for group in self.optimizer.param_groups]


def sgd():
    return torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (1.0, 0.1)])


def moved(optimizer, schedule, steps):
    """Return the first group's rate at each step; the second's is a tenth of it."""
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
    assert rates(name, steps=5) == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert rates(name, span=Span(0, 20), steps=1) == [1]


@pytest.mark.parametrize("floor", [0.0, 0.2])
def test_schedules_with_a_floor_reach_it_at_the_runs_end(floor):
    span, done = Span(4, 20, floor), [t / 16 for t in range(17)]
    given = {"cosine": {}, "linear": {}, "wsd": {"decay": 0.25}}
    cosine, linear, wsd = (rates(name, arguments, span)[4:] for name, arguments in given.items())
    assert cosine == pytest.approx([floor + (1 - floor) * (1 + math.cos(math.pi * t)) / 2 for t in done])
    assert linear == pytest.approx([floor + (1 - floor) * (1 - t) for t in done])
    assert wsd == pytest.approx([1.0] * 11 + [floor + (1 - floor) * (1 - i / 5) for i in range(6)])
    assert rates("wsd", span=span)[17:] == pytest.approx([1, 1, (1 + floor) / 2, floor])  # a tenth of the run
    assert rates("wsd", {"decay": 1}, span)[4:] == pytest.approx(linear)  # only after the warm-up
    optimizer = sgd()
    assert rates("linear", span=Span(0, 20)) == pytest.approx(moved(optimizer, LinearLR(optimizer, 1.0, 0.0, 20), 21))


def test_a_constant_and_the_inverse_root_of_tay_et_al():
    assert rates("constant")[4:] == [1.0] * 17
    base, found = 0.5, rates("rsqrt", span=Span(4, 10**6), steps=50)
    theirs = [base * min(1, step / 4) / math.sqrt(max(step, 4)) for step in range(50)]
    assert [base / math.sqrt(4) * factor for factor in found] == pytest.approx(theirs)
    assert rates("rsqrt", span=Span(0, 20), steps=3) == pytest.approx([1, 1, 1 / math.sqrt(2)])


def test_a_cosine_may_be_constant_within_epochs():
    factor = schedule_of(sgd(), "cosine", {}, Span(2, 12, hold=5)).lr_lambdas[0]
    wanted = [0, 0.5, 1, 1, 0.5 * (1 + math.cos(math.pi * 0.3))]
    assert [factor(step) for step in (0, 1, 2, 4, 5)] == pytest.approx(wanted)


@pytest.mark.parametrize("warmup", [0, 1, 4])
@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        (Shrinking, {"gamma": 0.9}),
        (CosineAnnealingWarmRestarts, {"T_0": 5}),
        (LinearLR, {"total_iters": 6}),  # starts at a third
    ],
)
def test_after_the_warm_up_a_class_starts_from_the_full_rate(cls, arguments, warmup):
    optimizer = sgd()
    theirs = moved(optimizer, cls(optimizer, **arguments), 17)
    ours = rates(f"{cls.__module__}.{cls.__name__}", arguments, Span(warmup, 20), 17 + warmup)
    assert ours[warmup:] == pytest.approx(theirs) and ours[:warmup] == [i / warmup for i in range(warmup)]


def test_a_class_continues_from_its_state():
    name, arguments = f"{__name__}.Shrinking", {"gamma": 0.9}
    whole = rates(name, arguments)
    for at in (2, 9):
        first, second = sgd(), sgd()
        schedule, again = (schedule_of(optimizer, name, arguments, Span(4, 20)) for optimizer in (first, second))
        moved(first, schedule, at)
        second.load_state_dict(first.state_dict())
        again.load_state_dict(copy.deepcopy(schedule.state_dict()))
        assert moved(second, again, 21 - at) == whole[at:]
