"""A run as one of wandb's: the id that its starts share, what it is called, what is attached to it.

`WandbLogger` is Lightning's. What its user set in it, in the environment (`WANDB_RUN_ID`, …: a sweep's agent sets that)
or by a `wandb.init` of their own stays as it is.
"""

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers import WandbLogger

from lra_ssm.errors import squeeze

if TYPE_CHECKING:
    from lra_ssm.runs.directory import RunDirectory

SECONDS = {
    # For what is not uploaded at a run's end. wandb itself waits for days, and a job for its time limit; `wandb sync`
    # takes the rest.
    "finish_timeout": 600.0,
    # Between writes of what was logged: so much of a killed run is lost, and one killed before has an unreadable file.
    "x_transaction_log_flush_interval": 1.0,
}


def identify(loggers: Sequence[Any], run: "RunDirectory", record: Mapping[str, Any]) -> dict[str, str] | None:
    """Gives the loggers what they go on with in wandb; returns what the record keeps of it, None without such a logger.

    record: the run's, its first start among it.
    """
    found: dict[str, str] | None = None
    for logger in _of_wandb(loggers):
        if logger._experiment is not None or (wandb := sys.modules.get("wandb")) and wandb.run is not None:
            continue  # its user's own, or begun before
        given, experiment = logger._wandb_init, record.get("experiment", run.path.parent.name)
        ours = {
            "id": os.environ.get("WANDB_RUN_ID") or _id(run, record),
            "name": None if os.environ.get("WANDB_NAME") else f"{experiment}/{run.path.name}",
            "group": None if os.environ.get("WANDB_RUN_GROUP") else experiment,
            # The CLI hands on the None that is wandb.init's default over "allow", which is the logger's own: a second
            # start would replace what the first one logged.
            "resume": "allow",
        }
        given.update({key: value for key, value in ours.items() if given.get(key) is None})
        if given.get("dir") in (None, "."):
            given["dir"] = str(run.path.resolve())  # as wandb's own process may have begun in another folder
        if given.get("anonymous") is None:
            given.pop("anonymous", None)  # or wandb warns that it has no effect
        if given.get("settings") is None:
            given["settings"] = _settings()
        logger._id, logger._name, logger._save_dir = given["id"], given["name"], given["dir"]
        found = {"id": given["id"]}
    return found


def _settings() -> dict[str, Any]:
    """What a run that may be killed, or whose server may be gone, needs other than wandb has it."""
    import wandb

    known = getattr(wandb.Settings, "model_fields", {})
    return {name: s for name, s in SECONDS.items() if name in known and f"WANDB_{name.upper()}" not in os.environ}


def _id(run: "RunDirectory", record: Mapping[str, Any]) -> str:
    """The one that was used before, else one of the run's first start: the same settings in another experiment, or
    trained anew where a run was deleted, are another run."""
    if before := record.get("wandb", {}).get("id"):
        return str(before)
    start: dict[str, Any] = next(iter(record.get("starts", [])), {})
    of_its_own = f"{record.get('experiment')} {start.get('time')} {start.get('hardware', {}).get('host')}"
    return f"{run.path.name}-{hashlib.sha256(of_its_own.encode()).hexdigest()[:6]}"


def attach(loggers: Sequence[Any], provenance: dict[str, Any]) -> None:
    """Beside the configuration, what made the result: runs are found by `provenance.git.commit`, and so on."""
    for logger in _of_wandb(loggers):
        logger.log_hyperparams({"provenance": provenance})
        logger.log_metrics = partial(_log, logger)  # type: ignore[method-assign]


def _log(logger: WandbLogger, metrics: Mapping[str, float], step: int | None = None) -> None:
    """As the logger does; where wandb's own process was ended, the run goes on without it. A job's signal to save and
    stop goes to every process of it, to that one too."""
    try:
        type(logger).log_metrics(logger, metrics, step)
    except OSError as error:
        print(squeeze(f"warning: wandb's process has ended ({error}); metrics.csv goes on without it"), file=sys.stderr)
        logger.log_metrics = lambda *_, **__: None  # type: ignore[method-assign]


def summarize(loggers: Sequence[Any], metrics: Mapping[str, float]) -> None:
    """Final metrics, the best one by name among them. A run that its user has ended already says no more."""
    for logger in _of_wandb(loggers):
        with suppress(sys.modules["wandb"].Error, OSError):
            logger.experiment.summary.update(dict(metrics))


def finish(loggers: Sequence[Any], code: int) -> None:
    """Ends the runs that these loggers began; logged to again, they are resumed. Waits for what is not uploaded yet."""
    for logger in _of_wandb(loggers):
        if logger._experiment is not None and logger._experiment.id == logger._id:
            with suppress(sys.modules["wandb"].Error, OSError):  # its process is gone: there is nothing to end
                logger._experiment.finish(exit_code=code)
            logger._experiment = None


def _of_wandb(loggers: Sequence[Any]) -> list[WandbLogger]:
    return [logger for logger in loggers if isinstance(logger, WandbLogger)]
