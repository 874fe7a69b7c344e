"""Learning-rate schedules: a linear warm-up from 0, then one factor for every group.

| schedule | after the warm-up, as a share of each rate            | schedule_arguments | source                    |
|----------|-------------------------------------------------------|--------------------|---------------------------|
| cosine   | half a cosine to min_lr_factor at the run's end       |                    | Loshchilov & Hutter 2017  |
| linear   | a line to min_lr_factor at the run's end              |                    |                           |
| constant | 1                                                     |                    |                           |
| wsd      | 1; at the end of the run a line to min_lr_factor      | decay              | Hu et al. 2024, section 4 |
| rsqrt    | √(warmup_steps / step)                                |                    | Tay et al. 2021, its code |

(Tay et al. divide a base rate by √max(step, warmup_steps): lr is their rate / √warmup_steps.) Any other is the import
path of a class of torch's kind, `Class(optimizer, **schedule_arguments)`, which advances at each step after the
warm-up.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau, SequentialLR

from lra_ssm.errors import InputError, hint
from lra_ssm.tasks.arguments import build, check_arguments, import_class


class Span(NamedTuple):
    """What a schedule spans: steps of warm-up, steps of the run, and the share of the rate at its end.

    A cosine moves at every step whose number `hold` divides, and is constant between them.
    """

    warmup: int
    total: int
    floor: float = 0.0
    hold: int = 1

    def progress(self, step: int, start: int | None = None) -> float:
        """Return how much of the way from `start`, or from the warm-up's end, to the run's end is done: 0 to 1."""
        start = self.warmup if start is None else start
        return min(1.0, max(0, step - start) / max(1, self.total - start))

    def down(self, share: float) -> float:
        """Return the factor with this share of the way from 1 to the floor left."""
        return self.floor + (1 - self.floor) * share


def _cosine(step: int, span: Span) -> float:
    return span.down(0.5 * (1 + math.cos(math.pi * span.progress(step - step % span.hold))))


def _linear(step: int, span: Span) -> float:
    return span.down(1 - span.progress(step))


def _constant(step: int, span: Span) -> float:
    return 1.0


def _wsd(step: int, span: Span, decay: float = 0.1) -> float:
    """Return 1, then a line to the floor; decay: the share of the run's steps in which the rate falls."""
    if not isinstance(decay, (int, float)) or not 0 < decay <= 1:
        raise ValueError(
            f"schedule_arguments.decay is {decay}; it must be a share of the run's steps: above 0, at most 1"
        )
    return span.down(1 - span.progress(step, max(span.warmup, span.total - round(decay * span.total))))


def _rsqrt(step: int, span: Span) -> float:
    return math.sqrt(max(1, span.warmup) / max(1, step))


SCHEDULES: dict[str, Callable[..., float]] = {
    "cosine": _cosine, "linear": _linear, "constant": _constant, "wsd": _wsd, "rsqrt": _rsqrt,
}  # fmt: skip
_TO_A_FLOOR = ("cosine", "linear", "wsd")


def check_schedule(name: str, arguments: Mapping[str, Any], floor: float, by: str) -> None:
    """Check that the schedule is known and takes these arguments; a class is not imported yet. Raises ValueError.

    floor, by: the settings min_lr_factor and cosine_by.
    """
    if name not in SCHEDULES and "." not in name:
        raise ValueError(f"schedule is {name!r}, neither a known name nor an import path; {hint(name, SCHEDULES)}")
    if name in SCHEDULES:
        check_arguments(SCHEDULES[name], arguments, f"schedule {name}", "schedule_arguments", given=("step", "span"))
        SCHEDULES[name](0, Span(0, 1), **arguments)
    if floor and name not in _TO_A_FLOOR:
        raise ValueError(f"min_lr_factor is {floor}, but schedule {name} has no floor; {', '.join(_TO_A_FLOOR)} have")
    if by != "step" and name != "cosine":
        raise ValueError(f"cosine_by is {by}, but the schedule is {name}")


class _AfterWarmup(SequentialLR):
    """A warm-up, then a schedule that starts from the full rates.

    torch's own class leaves the warm-up's last rates in place. A schedule that computes each rate from the previous one
    (the chainable form, which most users write) would continue from these.
    """

    def step(self) -> None:  # type: ignore[override]  # torch's takes no epoch either
        if self.last_epoch + 1 in self._milestones:
            for group in self.optimizer.param_groups:
                group["lr"] = group["initial_lr"]
        super().step()


def schedule_of(optimizer: Optimizer, name: str, arguments: Mapping[str, Any], span: Span) -> LRScheduler:
    """Build the schedule of that name or import path, which scales every group. Raises InputError."""
    if name in SCHEDULES:
        after = partial(SCHEDULES[name], span=span, **arguments)
        return LambdaLR(optimizer, lambda step: step / span.warmup if step < span.warmup else after(step))
    cls = import_class(name, "schedule")
    if not issubclass(cls, LRScheduler) or issubclass(cls, ReduceLROnPlateau):
        raise InputError(f"schedule {name} is not an LRScheduler that advances by steps")
    check_arguments(cls, arguments, name, "schedule_arguments", given=("optimizer",))
    schedule = build(cls, f"schedule {name}", optimizer, **arguments)
    if not span.warmup:
        return schedule
    warmup = LambdaLR(optimizer, lambda step: min(1.0, step / span.warmup))
    return _AfterWarmup(optimizer, [warmup, schedule], milestones=[span.warmup])
