"""What must fit together before a run starts: checkpoint and task, task and data. One line where it does not.

The last check sends a few examples through the network: what is broken is said before a fit writes or trains anything.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from lightning.pytorch.plugins import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.seed import isolate_rng

from lra_ssm.checkpoints import check_shapes
from lra_ssm.errors import InputError, squeeze
from lra_ssm.runs.checkpoints import DamagedCheckpoint, check_resumable, load_checkpoint
from lra_ssm.runs.provenance import code_version
from lra_ssm.runs.record import data_digests
from lra_ssm.runs.source import SOURCE, changed


def existing(path: str) -> Path:
    file = Path(path)
    if not file.is_file():
        raise InputError(f"checkpoint {path} does not exist")
    return file


def newest(last: Path, before: Path) -> Path | None:
    """The checkpoint that a run goes on from: the last one, or the one before where the last is damaged or gone.

    Raises InputError where neither is whole.
    """
    problem = None
    for path in (last, before):
        if not path.is_file():
            continue
        try:
            check_resumable(load_checkpoint(path), path)
        except DamagedCheckpoint as error:
            problem = problem or error
            continue
        if path == before:
            print(f"warning: {problem or f'{last} is gone'}; going on from the one before, {before}")
        return path
    if problem is not None:
        raise InputError(f"{problem}; there is no other to go on from: remove it to start the run anew")
    return None


def check_checkpoint(
    path: Path, task: Any, strict: bool = False, resuming: bool = True, source: Mapping[str, str] | None = None
) -> None:
    """Settings, shapes and code of a checkpoint against the task's.

    Other shapes are an error. Other settings are one where a fit goes on from it, else a note; other code (lra_ssm's,
    or the user's, of which `source` says what it is now) is a warning then, with `strict` an error.
    """
    state = load_checkpoint(path)
    if resuming:
        check_resumable(state, path)
    if differing := differing_settings(task, state):
        line = f"{path} was made with other settings: {differing}"
        if resuming:
            raise InputError(f"{line}; give the same to go on with it, or --init_from to start from its weights")
        print(squeeze(f"note: {line}"))
    check_shapes(task.state_dict(), state["state_dict"], str(path))
    changes = [f"{path} was made with other code: {other}"] if (other := changed(state.get(SOURCE), source)) else []
    made_by = state.get("lra_ssm_code_version")
    if resuming and made_by != code_version():
        changes.insert(0, f"{path} was made by lra_ssm {made_by}, this is {code_version()}")
    if changes and strict:
        raise InputError(f"{'; '.join(changes)}; --strict-resume refuses to go on")
    if changes:
        end = "the run may not end as it would have" if resuming else "its scores may not be its own"
        print(squeeze(f"warning: {'; '.join(changes)}: {end}"))


def differing_settings(task: Any, state: dict[str, Any]) -> str:
    """The hyperparameters that are others in the checkpoint than in the model, as text; empty if none is."""
    ours, theirs = dict(task.hparams), state.get("hyper_parameters")
    theirs = theirs if isinstance(theirs, dict) else {}
    return ", ".join(_differences("", ours, theirs))


def _differences(path: str, ours: Any, theirs: Any) -> list[str]:
    """What both say, and say otherwise, by dotted path: not a whole network where its width differs."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        pairs = ((key, ours[key], theirs[key]) for key in sorted(ours.keys() & theirs.keys(), key=str))
        return [line for key, a, b in pairs for line in _differences(f"{path}.{key}" if path else str(key), a, b)]
    short = path.replace(".init_args", "")
    return [] if ours == theirs else [f"{short} {theirs!r} there, {ours!r} here"]


_PADDING = 128  # the largest number to whose multiple vocabularies are padded, as 8, 16 and 64 are others

# What data says it has, what a network for the other kind takes, and what to take instead.
_KINDS = (
    ("num_outputs", "num_classes", "real targets: the task Regression and the network Regressor take them"),
    ("num_classes", "num_outputs", "classes: the task Classification and the network Classifier take them"),
)


def check_data(task: Any, data: Any) -> None:
    """The classes, the vocabulary or the features, and the sequences per example of the network are the data's.

    Networks and data that do not say what they have are not compared. Raises InputError.
    """
    name = type(data).__name__
    settings = _network_settings(task)
    for key, other, needed in _KINDS:
        if getattr(data, key, None) is not None and key not in settings and other in settings:
            raise InputError(f"model.network takes {other}, but {name} has {needed}")
    for key in ("vocab_size", "d_input", "num_classes", "num_outputs"):
        ours, theirs = settings.get(key), getattr(data, key, None)
        if theirs is not None and key in settings and ours != theirs:
            raise InputError(f"model.network.{key} is {ours}, but {name} has {theirs}")
    if hasattr(data, "d_input") and data.d_input is None and settings.get("d_input") is not None:
        raise InputError(
            f"model.network.d_input is {settings['d_input']}, but {name} has tokens: set vocab_size instead"
        )
    network = getattr(task, "network", None)
    taken, given = getattr(network, "per_example", None), getattr(data, "per_example", None)
    if taken is not None and given is not None and taken != given:
        needed = "pairs: a DualEncoder takes them" if given == 2 else "no pairs: a Classifier takes single sequences"
        raise InputError(f"model.network is a {type(network).__name__}, but {name} has {needed}")


def check_vocabulary(task: Any, data: Any) -> None:
    """The network has a row for every token of prepared data whose vocabulary was not known before. Raises InputError;
    more rows than padding explains are a warning: no text has their tokens."""
    manifest = data.manifest() if hasattr(data, "manifest") else {}
    tokens = manifest.get("vocab_size") or len(manifest.get("vocabulary") or ())
    rows = _network_settings(task).get("vocab_size")
    said = (
        f"model.network.vocab_size is {rows}, but {type(data).__name__}'s prepared data"
        f" ({getattr(data, 'prepared_folder', 'all corpora')}) has {tokens} tokens"
    )
    if rows is not None and rows < tokens:
        raise InputError(f"{said}; set it to {tokens}")
    if rows is not None and tokens and rows > math.ceil(tokens / _PADDING) * _PADDING:
        rank_zero_only(print)(squeeze(f"warning: {said}: {rows - tokens} rows stand for none"))


def check_tokenizer(path: Path, data: Any) -> None:
    """The network of a checkpoint was trained on the tokens of prepared data, as far as both name their tokenizer."""
    if not hasattr(data, "tokenizer_digest"):
        return
    for part in load_checkpoint(path).values():
        if isinstance(part, dict) and isinstance(part.get("tokenizer"), dict):
            try:
                data.load_state_dict(part)
            except InputError as error:
                raise InputError(f"{path}: {error}") from error


def check_end(trainer: Any) -> None:
    """The schedule spans the run: its arguments say where it ends, and leave something in it. Raises InputError."""
    max_epochs, max_steps = trainer.get("max_epochs"), trainer.get("max_steps", -1)
    endless = max_epochs == -1 or (max_epochs is None and trainer.get("max_time") is not None)
    if endless and max_steps == -1:
        raise InputError("the schedule spans the run, so give trainer.max_epochs or trainer.max_steps")
    share, every = trainer.get("limit_train_batches"), trainer.get("val_check_interval")
    if share is not None and not share:
        raise InputError(f"trainer.limit_train_batches is {share}: nothing would be trained; leave it out for all")
    if every == 0 and isinstance(every, int):
        raise InputError("trainer.val_check_interval is 0; give the number of batches between two validations, or 1.0")


def check_strategy(trainer: Trainer) -> None:
    """Of Lightning's ModelParallelStrategy (FSDP2): every device has its share of the batch, and checkpoints are the
    files that a run goes on from. Raises InputError."""
    strategy = trainer.strategy
    if not isinstance(strategy, ModelParallelStrategy):
        return
    world, name = trainer.world_size, "trainer.strategy"
    if (strategy._data_parallel_size, strategy._tensor_parallel_size) != (world, 1):
        raise InputError(
            f"{name}: weights are sharded by data parallelism alone; with {world} devices give"
            f" {name}.data_parallel_size={world} and {name}.tensor_parallel_size=1"
        )
    if strategy._save_distributed_checkpoint:
        raise InputError(
            f"{name}.save_distributed_checkpoint is true: a run's checkpoints are single files, which any number of"
            " devices takes up; give false"
        )


def check_batches(trainer: Trainer, data: Any) -> None:
    """An epoch has batches, and as many as lie between two validations. Raises InputError.

    Data that does not know beforehand how many it has (a user's own) is left to Lightning, which says it in the fit.
    """
    if not hasattr(data, "train_batches"):
        return
    limit, every = trainer.limit_train_batches, trainer.val_check_interval
    whole = data.train_batches(trainer.world_size)
    batches = min(whole, limit) if isinstance(limit, int) else int(whole * limit)
    if batches < 1:
        raise InputError(f"trainer.limit_train_batches is {limit}: of the {whole} batches of an epoch that is none")
    counts_in_epochs = trainer.check_val_every_n_epoch is not None and trainer.limit_val_batches > 0
    if isinstance(every, int) and every > batches and counts_in_epochs:
        raise InputError(
            f"trainer.val_check_interval is {every}, but an epoch has {batches} batches: give {batches} at most, or"
            " trainer.check_val_every_n_epoch=null to count across epochs"
        )


def check_callbacks(callbacks: Iterable[Any]) -> None:
    """None of them trains with other rates, groups or batches than the configuration says. Raises InputError."""
    for callback in callbacks:
        for kind, what in _OVERRULING.items():
            if isinstance(callback, kind):
                raise InputError(
                    f"trainer.callbacks: {type(callback).__name__} sets {what} and would overrule the configuration;"
                    " leave it out"
                )


_OVERRULING = {
    LearningRateFinder: "one learning rate for all parameters",
    StochasticWeightAveraging: "learning rates of its own",
    BaseFinetuning: "parameter groups of its own",
    BatchSizeFinder: "the batch size",
    GradientAccumulationScheduler: "accumulate_grad_batches",
}


def _network_settings(task: Any) -> dict[str, Any]:
    """The arguments of the task's network, where it keeps them; of a module of a user's own nothing is known."""
    network = task.hparams.get("network")
    return network.get("init_args") or {} if isinstance(network, dict) else {}


def check_same_data(run: Path, recorded: dict[str, Any], manifest: dict[str, Any]) -> None:
    """A run that goes on does so with the data that it was begun with."""
    before, now = data_digests(recorded), data_digests(manifest)
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if before and changed:
        raise InputError(f"{run} was begun with other data ({', '.join(changed)} differ); --fresh starts it anew")


EXAMPLES = 3  # odd, so that no other size is easily taken for the batch's


def try_network(task: Any, data: Any, trainer: Trainer) -> None:
    """Sends the first training examples through the task's network, in evaluation, on the device and in the precision
    that will train.

    Of it nothing stays: no gradient, no random number drawn, no buffer changed, nothing compiled. Raises what the
    network raises. Tasks without `try_batch`, data without `sample`, and strategies that make other modules of the
    network (FSDP) or start processes by forking meet their first batch in the Trainer.
    """
    if not (hasattr(task, "try_batch") and hasattr(data, "sample")):
        return
    strategy, precision = trainer.strategy, trainer.precision_plugin
    if not isinstance(strategy, (SingleDeviceStrategy, DDPStrategy)):
        return
    if isinstance(strategy.launcher, _MultiProcessingLauncher):
        return
    if type(precision) not in (Precision, MixedPrecision, HalfPrecision, DoublePrecision):
        return
    device = strategy.root_device
    with isolate_rng(include_cuda=device.type == "cuda"), torch.no_grad(), torch.compiler.set_stance("force_eager"):
        batch = task.transfer_batch_to_device(data.sample(EXAMPLES), device, 0)
        precision.convert_module(task.to(device))  # as the Trainer is about to do
        with _as_before(task), precision.forward_context():
            task.try_batch(precision.convert_input(batch), getattr(data, "num_classes", None))


@contextmanager
def _as_before(task: torch.nn.Module) -> Iterator[None]:
    """Evaluation within the block; modes and buffers are afterwards what they were."""
    modes = [(module, module.training) for module in task.modules()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module, _ in modes
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        task.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training
        for module, name, buffer, value in buffers:
            module._buffers[name] = buffer.copy_(value)
