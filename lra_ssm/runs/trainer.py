"""What a Trainer of ours is given, and what it logged."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only

from lra_ssm.callbacks import LEARNING_RATE
from lra_ssm.progress import display_arguments
from lra_ssm.runs.checkpoints import AtomicCheckpointIO
from lra_ssm.runs.checks import check_callbacks


def is_first_process() -> bool:
    """Whether this is the process that writes, of those that train together."""
    return getattr(rank_zero_only, "rank", 0) == 0


def trainer_arguments(
    given: Mapping[str, Any], added: Sequence[Any], loggers: Any, scoring: bool = False
) -> dict[str, Any]:
    """Return the arguments of a Trainer of ours: the user's, with our callbacks behind theirs, and checkpoints that are
    written whole. scoring: as of `AtomicCheckpointIO`.

    Raises InputError for a callback that overrules the configuration."""
    own = as_list(given.get("callbacks"))
    check_callbacks(own)
    return {
        **given,
        **display_arguments(given, [*own, *added]),
        "logger": loggers,
        "plugins": [*as_list(given.get("plugins")), AtomicCheckpointIO(scoring)],
    }


def final_metrics(trainer: Trainer) -> dict[str, float]:
    """Return what was logged, by name."""
    return results({name: float(value) for name, value in trainer.callback_metrics.items()})


def results(logged: Mapping[str, float], *others: str) -> dict[str, float]:
    """Return the metrics by name, without learning rates and `others`."""
    return {n: logged[n] for n in sorted(logged) if n not in others and not n.startswith(LEARNING_RATE)}


def chosen_loggers(logger: Any) -> list[Any]:
    """Return the loggers that a configuration names."""
    return [] if logger in (None, True, False) else as_list(logger)


def as_list(value: Any) -> list[Any]:
    """Return what a Trainer takes as one or several, or None, as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]


def show_metrics(metrics: Mapping[str, float], of_last_batch: Collection[str] = ()) -> None:
    """Print one line each, values under each other; those of one batch are marked."""
    width = max(map(len, metrics), default=0)
    for name, value in metrics.items():
        print(f"  {name:<{width}}  {value:<10.6g}{'of the last batch' if name in of_last_batch else ''}".rstrip())


def changed_compute(starts: Sequence[dict[str, Any]]) -> str:
    """Return which settings of how it computes differ between the last start and the one before."""
    if len(starts) < 2:
        return ""
    before, now = (each.get("compute") or {} for each in starts[-2:])
    changed = [name for name in now if before.get(name, now[name]) != now[name]]
    return ", ".join(f"compute.{name} {before[name]} -> {now[name]}" for name in changed)
