"""fit, validate, test and predict, over a run directory.

The configuration says everything; a checkpoint never changes it. `fit` finds its run by the configuration's identity
and goes on from its last checkpoint; `validate`, `test` and `predict` find the same run and take its best one.
"""

import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from lra_ssm.callbacks import fit_callbacks
from lra_ssm.cli.language_models import with_own_tokenizer
from lra_ssm.cli.output import in_a_folder
from lra_ssm.cli.prepared_settings import say_other_source, what_is_prepared, with_config
from lra_ssm.cli.run_options import Made, RunOptions
from lra_ssm.cli.starting_weights import StartingWeights, options_of
from lra_ssm.cli.write_predictions import WritePredictions
from lra_ssm.datamodules.base import DataModule, PreparedData
from lra_ssm.errors import InputError, squeeze
from lra_ssm.files import unused
from lra_ssm.progress import quiet
from lra_ssm.runs.checks import existing, load_checkpoint, newest
from lra_ssm.runs.cost import estimate
from lra_ssm.runs.directory import RunDirectory
from lra_ssm.runs.ending import ending
from lra_ssm.runs.run import (
    Run,
    as_list,
    chosen_loggers,
    final_metrics,
    is_first_process,
    show_metrics,
    trainer_arguments,
)
from lra_ssm.runs.signals import Ended, Signals
from lra_ssm.runs.source import changed_weights, user_source
from lra_ssm.runs.start import fit, make_ready, restoring, tensors_alone
from lra_ssm.runs.wandb_logging import finish, identify, summarize
from lra_ssm.tasks.base import NetworkTask

_LIMITS = {"validate": "limit_val_batches", "test": "limit_test_batches"}
_OF_A_RUN = (None, "best", "last")  # values of --ckpt_path
# Of the command, not of the run that it starts.
_OF_THE_COMMAND = ("config", "fresh", "ckpt_path", "weights_only", "strict_resume", "allow_pickle", "estimate")


def main(command: str, arguments: list[str]) -> int:
    quiet()
    try:
        with ending(command) as signals:
            named = command != "fit" and arguments and not arguments[0].startswith("-")
            own_tokens = named and not any(given.partition("=")[0] == "--data.tokenizer" for given in arguments)
            if named:
                arguments = options_of(arguments[0], arguments[1:])
            options = RunOptions(command, arguments)
            if options.other_source and is_first_process():
                say_other_source(options.other_source)
            if command == "fit" and options.given.estimate:
                _estimate(options)
            elif command == "fit":
                _fit(options, signals)
            else:
                with TemporaryDirectory(prefix="lra_ssm-") as folder:
                    _score(options, signals, Path(folder) if own_tokens else None)
    except Ended as end:
        return end.code
    return 0


def _fit(options: RunOptions, signals: Signals) -> None:
    given = options.given
    run = None if given.trainer.fast_dev_run else _own_run(options)  # the one leaves nothing
    if run is not None and run.finished:
        run.say_finished("--fresh", options.changed_inputs(run.record))
        return
    made = options.make(run.path if run else None)
    weights = None
    if run is None:
        own = fit_callbacks(given.seed_everything, as_list(made.trainer["callbacks"]))
        arguments = _saving_nothing(trainer_arguments(made.trainer, own, False))
    else:
        run.given, run.checkpoints = made.trainer, made.checkpoints
        arguments = run.trainer_arguments()
        if run.begun_from:
            weights = StartingWeights(run.begun_from, given.allow_pickle)
    prepare = _preparing(options, made.data)
    trainer = _trainer(arguments)
    with made.compute.applied(made.task, trainer.strategy.root_device):
        fit(trainer, made.task, made.data, signals, run, weights=weights, prepare=prepare, strict=given.strict_resume)


def _estimate(options: RunOptions) -> None:
    """Prints what a training step costs; trains nothing and writes nothing but prepared data."""
    made = options.make(None)
    if not (isinstance(made.task, NetworkTask) and isinstance(made.data, DataModule)):
        raise InputError("--estimate: it counts tasks and data of this package, or made of them")
    if made.data.longest is None:
        made.data.prepare_data()
    precision, clip = str(made.trainer.get("precision") or "32-true"), made.trainer.get("gradient_clip_val")
    with made.compute.applied(made.task, torch.device("cuda" if torch.cuda.is_available() else "cpu")):
        batch, gpu = made.data.largest_batch(), options.given.estimate
        print(estimate(made.task, batch, precision, clip, gpu, made.compute.matmul_precision))


def _own_run(options: RunOptions) -> Run:
    """This configuration's run, new or to be resumed. Writes nothing yet."""
    given = options.given
    run = Run.of_config(options.resolved, options.neutral, given.runs_dir, given.fresh)
    run.config = {key: value for key, value in options.resolved.items() if key not in _OF_THE_COMMAND}
    if run.finished:
        return run
    run.checkpoint = newest(run.last, run.before_last)
    if run.checkpoint is not None:
        if weights := changed_weights(run.record, given.init_from):
            print(squeeze(f"warning: {run.path} was begun with {weights}: it goes on from its own"))
    elif given.ckpt_path == "last":
        raise InputError(f"--ckpt_path=last: {run.path} has no checkpoint yet; leave it out to start the run")
    elif given.ckpt_path:
        run.checkpoint = existing(given.ckpt_path)
    else:
        run.begun_from = given.init_from
    return run


def _score(options: RunOptions, signals: Signals, folder: Path | None) -> None:
    """validate, test and predict. folder: takes the file of the model's own tokenizer, where text is to be in that."""
    command, given = options.command, options.given
    # --init_from is one of the settings that a trained run is found by.
    of_fit = given.fresh or given.strict_resume
    if of_fit or given.allow_pickle and given.ckpt_path in _OF_A_RUN:
        raise InputError(f"--fresh, --allow-pickle and --strict-resume belong to fit; tell {command} --ckpt_path")
    checkpoint, run = _trained_run(options)
    made = options.make(run.path if run else None)
    weights = None if checkpoint else StartingWeights(given.ckpt_path, given.allow_pickle)
    if folder and (model := checkpoint or weights and weights.files):
        made = made._replace(data=with_own_tokenizer(made.data, model, folder))
    trainer = _scorer(options, made, run)
    prepare = _preparing(options, made.data)
    source = user_source(options.resolved)
    make_ready(
        trainer, made.task, made.data, signals, None, checkpoint, weights, prepare, source=source, resuming=False
    )
    if command == "test" and not _has_test_split(made.data):
        if trainer.is_global_zero:
            _say_score(options, made, trainer, checkpoint, run)
            print(f"{type(made.data).__name__} has no test split; there is nothing to score")
        return
    if trainer.loggers and checkpoint is not None:
        with suppress(Exception):  # a checkpoint from elsewhere has none, or others
            # What is logged belongs to the step that is scored; Lightning would say 0.
            trainer.fit_loop.load_state_dict(load_checkpoint(checkpoint)["loops"]["fit_loop"])
    with restoring(checkpoint), made.compute.applied(made.task, trainer.strategy.root_device):
        method = getattr(trainer, command)
        further = {**made.method, **tensors_alone(method)}
        further["ckpt_path"] = checkpoint and str(checkpoint)
        if command != "predict":
            further["verbose"] = False  # Lightning's table
        method(made.task, datamodule=made.data, **further)
    if trainer.is_global_zero and command != "predict":
        _say_score(options, made, trainer, checkpoint, run)


def _has_test_split(data: Any) -> bool:
    """Whether there is something to test on; prepared data says so."""
    return not hasattr(data, "manifest") or "test" in data.manifest()["splits"]


def _say_score(
    options: RunOptions, made: Made, trainer: Trainer, checkpoint: Path | None, run: RunDirectory | None
) -> None:
    """Prints the metrics of validate or test, and writes them into the run."""
    command, given, metrics = options.command, options.given, final_metrics(trainer)
    print(f"{command} of {checkpoint or given.ckpt_path}")
    show_metrics(metrics)
    if run is not None:
        limit = getattr(given.trainer, _LIMITS[command])
        run.record_score(command, str(checkpoint), metrics, limit, made.data)
        # The fit's again: synced after it, an offline piece's summary takes the place of the one before.
        summarize(trainer.loggers, {**run.record.get("metrics", {}), **metrics})
    finish(trainer.loggers, 0)


def _scorer(options: RunOptions, made: Made, run: RunDirectory | None) -> Trainer:
    folder = run.path if run else None
    loggers, callbacks = chosen_loggers(made.trainer.get("logger")), []
    if run is not None:
        identify(loggers, run, run.record)
    if options.command == "predict":
        file = _choose_split(options.given.split, made.data)
        path = folder / file if folder else unused(Path(file))  # without a run another call's may lie here
        callbacks.append(WritePredictions(in_a_folder(options.given.output) if options.given.output else path))
    arguments = _saving_nothing(trainer_arguments(made.trainer, callbacks, loggers, scoring=True))
    return _trainer({**arguments, "default_root_dir": str(folder) if folder else None})


def _saving_nothing(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a Trainer that writes no checkpoint; Lightning refuses callbacks that would."""
    callbacks = [callback for callback in arguments["callbacks"] if not isinstance(callback, Checkpoint)]
    return {**arguments, "callbacks": callbacks, "enable_checkpointing": False}


def _trained_run(options: RunOptions) -> tuple[Path | None, RunDirectory | None]:
    """The checkpoint to score, and its run where it is this configuration's; none for a saved model."""
    run, given = RunDirectory(options.path), options.given.ckpt_path
    if given in _OF_A_RUN:
        checkpoint = run.last if given == "last" else run.best
        if not checkpoint.is_file():
            remedy = "fit it first with the same options, or give --ckpt_path=FILE"
            raise InputError(f"no run of this configuration has {checkpoint}; {remedy}")
    elif Path(given).is_file() or given.endswith(".ckpt"):
        checkpoint = existing(given)
        run = RunDirectory(checkpoint.absolute().parent.parent)
    else:
        return None, None
    return checkpoint, run if (run.path / "run.json").is_file() else None


def _choose_split(split: str | None, data: Any) -> str:
    """Has the data predict the split, and gives the name of the predictions' file."""
    if split:
        if not hasattr(data, "predict_split"):
            named = type(data).__name__ if data else "the model, which loads its own data,"
            raise InputError(f"--split: {named} has no predict_split; its predict_dataloader decides")
        data.predict_split = split
    chosen = getattr(data, "predict_split", None)
    return f"predictions-{chosen}.csv" if chosen else "predictions.csv"


def _trainer(arguments: dict[str, Any]) -> Trainer:
    if "SLURM_JOB_ID" in os.environ and "SLURM_NTASKS" not in os.environ and is_first_process():
        command = shlex.join(["srun", "lightning", *sys.argv[1:]])
        print(f"note: in a job of Slurm srun starts each process: {command}", file=sys.stderr)
    try:
        return Trainer(**arguments)
    except ValueError as error:
        raise InputError(str(error)) from error


def _preparing(options: RunOptions, data: LightningDataModule | None) -> Any:
    """Prepares the data; says what is prepared of the dataset already, where this is not."""

    def prepare() -> None:
        assert data is not None
        prepared = ""
        if isinstance(data, PreparedData) and not data.is_prepared():
            prepared = what_is_prepared(data, options.resolved["data"].get("init_args", {}))
        if prepared and data.source == "generated":  # type: ignore[attr-defined]
            print(squeeze(f"note: generating what this configuration says; {prepared}"), file=sys.stderr)
        try:
            data.prepare_data()
        except InputError as error:
            said = str(error)
            if options.command == "fit":
                said = with_config(said, options.arguments)
            raise InputError(f"{said}; {prepared}" if prepared else said) from error

    return prepare
