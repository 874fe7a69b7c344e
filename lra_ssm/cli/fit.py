"""The commands fit, validate, test and predict.

The configuration has every setting; a checkpoint never changes it. `fit` finds its run by the configuration's identity
and goes on from its last checkpoint; the other commands find the same run and use its best checkpoint.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint

from lra_ssm.callbacks import fit_callbacks
from lra_ssm.cli.config import Built, Config, read_fit_options
from lra_ssm.cli.starting_weights import StartingWeights, find_weights, options_of
from lra_ssm.cli.write_predictions import WritePredictions, check_output_path
from lra_ssm.datamodules.base import DataModule, PreparedData
from lra_ssm.errors import InputError, to_one_line
from lra_ssm.files import sha256, unused
from lra_ssm.progress import quiet
from lra_ssm.runs.checkpoints import load_checkpoint
from lra_ssm.runs.checks import check_before_fit, check_trainer, existing, make_trainer, validate_setup
from lra_ssm.runs.cost import estimate, planned_steps
from lra_ssm.runs.identity import differences, set_beyond_defaults
from lra_ssm.runs.loggers import finish, identify, summarize
from lra_ssm.runs.provenance import now, user_source
from lra_ssm.runs.run import (
    Run,
    as_list,
    chosen_loggers,
    final_metrics,
    show_metrics,
    trainer_arguments,
)
from lra_ssm.tasks.base import NetworkTask

_PREPARE = re.compile("`lra-ssm prepare .+?`")
_RUN_CHECKPOINTS = (None, "best", "last")  # values of --ckpt_path


def fit(
    *settings: str,
    fresh: bool = False,
    strict_resume: bool = False,
    allow_pickle: bool = False,
    estimate: bool | str = False,
) -> None:
    """Train a model, or resume a killed run: give the same command again.

    Every value of a configuration is a setting, --model.network.d_model=64; --config takes a YAML file or a name of
    `lra-ssm configs`, the later over the earlier. --print_config prints the whole, and trains nothing.

    Args:
        fresh: start <run_id>-2, -3, … next to a finished run
        strict_resume: refuse to resume a run with other code
        allow_pickle: read the weights of --init_from from a pickle (only tensors)
        estimate: print what a step costs and how long the run takes on a GPU, default H100; train nothing

    Examples:
        lightning fit --config quickstart
        lightning fit --config lra/listops/b2s6 --model.network.layer.num_blocks=4 --seed_everything=1
    """
    quiet()
    config = read_fit_options(settings)
    if estimate:
        print_estimate(config, "H100" if estimate is True else estimate)
    elif config.given.trainer.fast_dev_run:
        _dry_run(config)
    else:
        _fit(config, fresh, strict_resume, allow_pickle)


def _scoring_command(command: str, split: str) -> Callable[..., None]:
    def run(
        name: str | None = None,
        *settings: str,
        trust: list[str] = [],  # noqa: B006
        allow_pickle: bool = False,
    ) -> None:
        _score(command, name, settings, trust, allow_pickle)

    run.__doc__ = f"""Score a run's best checkpoint on the {split} split.

    The settings are those of fit (`lightning fit --help`): they find the run, and may change how it is scored.

    Args:
        name: a run, a checkpoint in it, or a saved model, in place of --config

    Examples:
        lightning {command} --config quickstart
        lightning {command} mnist-lru
    """
    return run


validate, test = _scoring_command("validate", "validation"), _scoring_command("test", "test")


def predict(
    name: str | None = None,
    *settings: str,
    split: Literal["train", "val", "test"] | None = None,
    output: str | None = None,
    trust: list[str] = [],  # noqa: B006
    allow_pickle: bool = False,
) -> None:
    """Predict a split of a run's data with its best checkpoint, into a CSV file.

    The settings are those of fit (`lightning fit --help`): they find the run, and may change how it is scored.

    Args:
        name: a run, a checkpoint in it, or a saved model, in place of --config
        split: the split to predict; default: the data module's choice, val for ours
        output: a CSV file; default: predictions-<split>.csv in the run's directory

    Examples:
        lightning predict --config quickstart --split=test
    """
    _score("predict", name, settings, trust, allow_pickle, split, output)


# -- fit -----------------------------------------------------------------------------------------------------------


def _fit(config: Config, fresh: bool, strict_resume: bool, allow_pickle: bool) -> None:
    """Train the configuration's run, or go on from its last checkpoint."""
    given = config.given
    check_trainer(given.trainer)
    run = Run(config.directory(fresh), config.checkpoints, config.run_config)
    if run.finished:
        if changed := run.changed_settings():
            print(to_one_line(f"warning: a default has changed since this run was trained: {changed}"))
        run.source = user_source(config.resolved)
        run.report_finished(config.data(), given.init_from and find_weights(given.init_from))
        return
    if given.ckpt_path == "last" and not run.last.is_file():
        raise InputError(f"--ckpt_path=last: {run.path} has no checkpoint yet; leave it out to start the run")
    built = config.build(run.path)
    if given.init_from_without and not given.init_from:
        raise InputError("--init_from_without needs --init_from: it says what does not start from those weights")
    weights = None
    if given.init_from:
        source, without = find_weights(given.init_from), (given.init_from_without or "").split(",")
        weights = source, StartingWeights(source, allow_pickle, [name.strip() for name in without if name.strip()])
    trainer = make_trainer(run.trainer_arguments(**built.trainer))
    with built.compute.applied(built.task, trainer.strategy.root_device):
        run.fit(
            trainer, built.task, built.data, ckpt_path=given.ckpt_path if given.ckpt_path != "last" else None,
            init_from=weights, prepare=_make_prepare(config, built.data), strict=strict_resume,
            check_layer=given.check_layer, command="fit",
        )  # fmt: skip


def _dry_run(config: Config) -> None:
    """Run Lightning's fast_dev_run: a few batches, without writing anything."""
    check_trainer(config.given.trainer)
    built = config.build(None)
    callbacks = fit_callbacks(config.given.seed_everything)
    trainer = make_trainer(_without_checkpoints(trainer_arguments(built.trainer, callbacks, False)))
    with built.compute.applied(built.task, trainer.strategy.root_device):
        validate_setup(trainer, built.task, built.data, prepare=_make_prepare(config, built.data))
        check_before_fit(trainer, built.task, built.data, config.given.check_layer)
        trainer.fit(built.task, datamodule=built.data)


def print_estimate(config: Config, gpu: str) -> None:
    """Print what a training step costs; nothing is trained, and nothing written but prepared data."""
    built = config.build(None)
    if not (isinstance(built.task, NetworkTask) and isinstance(built.data, DataModule)):
        raise InputError("--estimate: it counts tasks and data of this package, or made of them")
    if built.data.longest is None:
        built.data.prepare_data()
    precision, clip = str(built.trainer.get("precision") or "32-true"), built.trainer.get("gradient_clip_val")
    with built.compute.applied(built.task, torch.device("cuda" if torch.cuda.is_available() else "cpu")):
        batch = built.data.largest_batch()
        steps = planned_steps(built.trainer, built.data)
        print(estimate(built.task, batch, precision, clip, gpu, built.compute.matmul_precision, steps))


# -- validate, test, predict ---------------------------------------------------------------------------------------


def _score(
    command: str,
    name: str | None,
    settings: Sequence[str],
    trust: list[str],
    allow_pickle: bool,
    split: str | None = None,
    output: str | None = None,
) -> None:
    """Score or predict with a run's best checkpoint, another checkpoint, or a saved model."""
    quiet()
    options = [*options_of(name, trust, settings), *settings] if name else settings
    config = read_fit_options(options)
    given = config.given
    checkpoint, run = _find_checkpoint(config)
    # Before anything is scored: the run's config.yaml may be damaged.
    changed = _changed_settings(config, run) if run and command != "predict" else {}
    built, began = config.build(run.path if run else None), now()
    weights = None if checkpoint else StartingWeights(given.ckpt_path, allow_pickle)
    trainer = _scorer(command, config, built, run, split, output)
    prepare, source = _make_prepare(config, built.data), user_source(config.resolved)
    validate_setup(trainer, built.task, built.data, checkpoint, weights, prepare, source, resuming=False)
    if command == "test" and hasattr(built.data, "manifest") and "test" not in built.data.manifest()["splits"]:
        print(f"{type(built.data).__name__} has no test split; there is nothing to score")
        return
    if run is not None and checkpoint is not None and (loops := load_checkpoint(checkpoint).get("loops")):
        trainer.fit_loop.load_state_dict(loops["fit_loop"])  # loggers log at the step that is scored, not at 0
    with built.compute.applied(built.task, trainer.strategy.root_device):
        arguments = {"verbose": False} if command != "predict" else {}
        path = checkpoint and str(checkpoint)
        getattr(trainer, command)(built.task, datamodule=built.data, ckpt_path=path, weights_only=True, **arguments)
    if trainer.is_global_zero and command != "predict":
        _report_score(command, config, built, trainer, checkpoint, run, {"began": began, "settings": changed})


def _report_score(
    command: str,
    config: Config,
    built: Built,
    trainer: Trainer,
    checkpoint: Path | None,
    run: Run | None,
    known: dict[str, Any],
) -> None:
    """Print the metrics of validate or test, and record them in the run; fast_dev_run records nothing.

    known: entries of the record from before the scoring.
    """
    metrics = final_metrics(trainer)
    print(f"{command} of {checkpoint or config.given.ckpt_path}")
    show_metrics(metrics)
    if run is not None and checkpoint is not None and not config.given.trainer.fast_dev_run:
        sizes = trainer.num_test_batches if command == "test" else trainer.num_val_batches
        loaders = trainer.test_dataloaders if command == "test" else trainer.val_dataloaders
        result = {
            "checkpoint": str(checkpoint),
            "checkpoint_sha256": sha256(checkpoint),
            **known,
            "batches": int(sum(sizes)),
            "of_batches": sum(len(loader) for loader in as_list(loaders)),
            "metrics": metrics,
        }
        run.record_score(command, result, built.data)
        # Include the fit's metrics: an offline part that is synced later replaces the summary of the one before.
        summarize(trainer.loggers, {**run.record.get("metrics", {}), **metrics})
    finish(trainer.loggers, 0)


def _changed_settings(config: Config, run: Run) -> dict[str, str]:
    """Return the settings that can change a score and differ from the run's, by name: "8 there, 16 here"."""
    if not (before := run.began_with):
        return {}
    run_settings, new_settings = (_scoring_settings(each) for each in (before, config.resolved))
    lines = [line.partition(" ") for line in differences(run_settings, new_settings)]
    return {name: values for name, _, values in lines}


def _scoring_settings(config: dict[str, Any]) -> dict[str, Any]:
    chosen = set_beyond_defaults(config)
    data = chosen.get("data") or {}
    inputs = {name: value for name, value in data.get("init_args", {}).items() if name not in ("source", "tokenizer")}
    compute = {"matmul_precision": (config.get("compute") or {}).get("matmul_precision")}
    trainer = {"precision": chosen.get("trainer", {}).get("precision")}
    return {"model": chosen["model"], "data": {**data, "init_args": inputs}, "trainer": trainer, "compute": compute}


def _scorer(
    command: str, config: Config, built: Built, run: Run | None, split: str | None, output: str | None
) -> Trainer:
    loggers, callbacks = chosen_loggers(built.trainer.get("logger")), []
    if run is not None:
        identify(loggers, run.path, run.record)
    if command == "predict":
        file = _choose_split(split, built.data)
        path = run.path / file if run else unused(Path(file))  # without a run, the file of an earlier call may exist
        callbacks.append(WritePredictions(check_output_path(output) if output else path))
    arguments = _without_checkpoints(trainer_arguments(built.trainer, callbacks, loggers))
    return make_trainer({**arguments, "default_root_dir": str(run.path) if run else None})


def _without_checkpoints(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for a Trainer that writes no checkpoint, without callbacks that would write one."""
    callbacks = [callback for callback in arguments["callbacks"] if not isinstance(callback, Checkpoint)]
    return {**arguments, "callbacks": callbacks, "enable_checkpointing": False}


def _find_checkpoint(config: Config) -> tuple[Path | None, Run | None]:
    """Return the checkpoint to score, and the run that it belongs to, if any; (None, None) for a saved model."""
    run, ckpt_path = Run(config.path), config.given.ckpt_path
    if ckpt_path in _RUN_CHECKPOINTS:
        checkpoint = run.last if ckpt_path == "last" else run.best
        if not checkpoint.is_file():
            remedy = "fit it first with the same options, or give --ckpt_path=FILE"
            raise InputError(f"no run of this configuration has {checkpoint}; {remedy}")
    elif Path(ckpt_path).is_file() or ckpt_path.endswith(".ckpt"):
        checkpoint = existing(ckpt_path)
        # Only files in a run's own folder are its checkpoints, not those in own_checkpoints/.
        folder = checkpoint.absolute().parent
        run = Run(folder.parent) if folder.name == "checkpoints" else Run(folder)
    else:
        return None, None
    return checkpoint, run if (run.path / "run.json").is_file() else None


def _choose_split(split: str | None, data: Any) -> str:
    """Let the data predict the split; return the name of the predictions' file."""
    if split:
        if not hasattr(data, "predict_split"):
            description = type(data).__name__ if data else "the model, which loads its own data,"
            raise InputError(f"--split: {description} has no predict_split; its predict_dataloader decides")
        data.predict_split = split
    chosen = getattr(data, "predict_split", None)
    return f"predictions-{chosen}.csv" if chosen else "predictions.csv"


def _make_prepare(config: Config, data: Any) -> Any:
    """Return a function that prepares the data; if data is missing, its error names the command with these options."""

    def prepare() -> None:
        try:
            data.prepare_data()
        except InputError as error:
            if not isinstance(data, PreparedData):
                raise
            command = f"`lra-ssm prepare {shlex.join(config.options)}`"
            message = _PREPARE.sub(lambda _: command, str(error))
            remedy = "" if "data.source" in message else "; --data.source=PATH takes files of your own"
            raise InputError(f"{message}{remedy}") from error

    return prepare
