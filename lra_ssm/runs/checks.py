"""Check that Trainer, checkpoint, task, data and layers fit together before a run starts."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.plugins import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from lra_ssm.checkpoints import check_shapes
from lra_ssm.errors import InputError, to_one_line
from lra_ssm.runs.checkpoints import load_checkpoint
from lra_ssm.runs.cost import warn_of_memory
from lra_ssm.runs.identity import differences, neutral_data, result_settings
from lra_ssm.runs.provenance import CONFIG, SOURCE, VERSION, changed, code_version

EXAMPLES = 3  # odd, so that another size is not easily mistaken for the batch's
_LENGTH = 61  # positions of the random sequences of `check_layers`; no width is as large
_PADDING = 128  # vocabularies are padded to a multiple of at most this


# -- all checks in their order -----------------------------------------------------------------------------------------


def validate_setup(
    trainer: Trainer,
    task: LightningModule,
    data: LightningDataModule | None,
    checkpoint: Path | None = None,
    weights: Any = None,
    prepare: Callable[[], None] | None = None,
    source: Mapping[str, str] | None = None,
    strict: bool = False,
    resuming: bool = True,
) -> None:
    """Check that everything fits together before a task is fitted or scored; load weights and prepare the data.

    Args:
        checkpoint: the checkpoint that the Trainer will load. weights: what the task loads if there is no checkpoint.
        prepare: prepares the data, if not `data.prepare_data`.
        source, strict, resuming: as in `check_checkpoint`.

    Raises:
        InputError: something does not fit together.
    """
    check_strategy(trainer)
    check_data(task, data)
    if checkpoint is not None:
        check_checkpoint(checkpoint, task, strict, resuming, source)
    elif weights is not None:
        weights.load(task)
    if data is None:
        return
    # Every process does this: here the others can wait for the first one without a timeout, and a node with its own
    # data root prepares it.
    (prepare or data.prepare_data)()
    check_vocabulary(task, data)
    if checkpoint is not None:
        check_tokenizer(checkpoint, data)
    elif weights is not None:
        weights.check_tokenizer(data)


def check_before_fit(
    trainer: Trainer, task: LightningModule, data: LightningDataModule | None, check_layer: bool = True
) -> None:
    """Check that the batches fit the Trainer and that the network takes them; warn if a step needs too much memory.

    Raises InputError.
    """
    check_batches(trainer, data)
    try_network(task, data, trainer)
    if check_layer:
        check_layers(task, data, trainer)
    warn_of_memory(trainer, task, data)


# -- the Trainer -------------------------------------------------------------------------------------------------------


def check_trainer(arguments: Mapping[str, Any]) -> None:
    """Check that a Trainer's arguments limit the run, and that counts are positive. Raises InputError."""
    max_epochs, max_steps = arguments.get("max_epochs"), arguments.get("max_steps", -1)
    endless = max_epochs == -1 or max_epochs is None and arguments.get("max_time") is not None
    if endless and max_steps == -1:
        raise InputError("the schedule spans the run, so give trainer.max_epochs or trainer.max_steps")
    if arguments.get("limit_train_batches") in (0, 0.0):
        raise InputError("trainer.limit_train_batches is 0: nothing would be trained; leave it out for all")
    for name, fewest in (("val_check_interval", "1 batch, or 1.0 for once an epoch"),
                         ("accumulate_grad_batches", "1"), ("check_val_every_n_epoch", "1")):  # fmt: skip
        value = arguments.get(name)
        if isinstance(value, int) and value < 1:
            raise InputError(f"trainer.{name} is {value}; it must be at least {fewest}")


def make_trainer(arguments: Mapping[str, Any]) -> Trainer:
    """Build the Trainer. Raises InputError for what Lightning refuses."""
    try:
        return Trainer(**arguments)
    except (ValueError, MisconfigurationException) as error:
        raise InputError(str(error)) from error
    except RuntimeError as error:
        if "ntasks" not in str(error):  # Slurm's --ntasks without --ntasks-per-node
            raise
        raise InputError(f"Slurm: {error}") from error


def check_strategy(trainer: Trainer) -> None:
    """Check Lightning's ModelParallelStrategy (FSDP2): data parallel only, and checkpoints in single files."""
    strategy = trainer.strategy
    if not isinstance(strategy, ModelParallelStrategy):
        return
    if (strategy._data_parallel_size, strategy._tensor_parallel_size) != (trainer.world_size, 1):
        sizes = f"data_parallel_size={trainer.world_size} and trainer.strategy.tensor_parallel_size=1"
        raise InputError(f"trainer.strategy: weights are sharded by data parallelism only; give {sizes}")
    if strategy._save_distributed_checkpoint:
        raise InputError("trainer.strategy.save_distributed_checkpoint: checkpoints are single files; use false")


def check_batches(trainer: Trainer, data: Any) -> None:
    """Check that an epoch has batches, and at least as many as there are between validations. Raises InputError.

    Lightning checks data that does not declare its number of batches.
    """
    if not hasattr(data, "train_batches"):
        return
    limit, every = trainer.limit_train_batches, getattr(trainer, "val_check_interval", None)  # None: by time
    whole = data.train_batches(trainer.world_size)
    batches = min(whole, limit) if isinstance(limit, int) else int(whole * limit)
    if batches < 1:
        raise InputError(f"trainer.limit_train_batches is {limit}: an epoch of {whole} batches has none left")
    counts_in_epochs = trainer.check_val_every_n_epoch is not None and trainer.limit_val_batches > 0
    if isinstance(every, int) and every > batches and counts_in_epochs:
        raise InputError(
            f"trainer.val_check_interval is {every}, but an epoch has {batches} batches: give {batches} at most, or"
            " trainer.check_val_every_n_epoch=null to count across epochs"
        )


# -- a checkpoint ------------------------------------------------------------------------------------------------------


def existing(path: str) -> Path:
    """Return the path of a checkpoint that exists. Raises InputError."""
    if not Path(path).is_file():
        raise InputError(f"checkpoint {path} does not exist")
    return Path(path)


def check_checkpoint(
    path: Path, task: Any, strict: bool = False, resuming: bool = True, source: Mapping[str, str] | None = None
) -> None:
    """Compare settings, shapes and code of a checkpoint with the task's.

    Different shapes are an error. Different settings are an error if a fit resumes from the checkpoint, else a note.
    Different code (of lra_ssm, or of the user as in `source`) is a warning, or with `strict` an error.
    """
    state = load_checkpoint(path, resuming)
    if differing := differing_settings(task, state):
        line = f"{path} was made with other settings: {differing}"
        if resuming:
            raise InputError(f"{line}; use the same to resume from it, or --init_from to start from its weights")
        print(to_one_line(f"note: {line}"))
    check_shapes(task.state_dict(), state["state_dict"], str(path))
    changes = [f"{path} was made with other code: {other}"] if (other := changed(state.get(SOURCE), source)) else []
    made_by = state.get(VERSION)
    if resuming and made_by != code_version():
        changes.insert(0, f"{path} was made by lra_ssm {made_by}, this is {code_version()}")
    if changes and strict:
        raise InputError(f"{'; '.join(changes)}; --strict-resume refuses to resume")
    if changes:
        effect = "the run may not end as it would have" if resuming else "the scores may differ from its own"
        print(to_one_line(f"warning: {'; '.join(changes)}: {effect}"))


def differing_settings(task: Any, state: dict[str, Any]) -> str:
    """Return the hyperparameters that differ between a checkpoint and the task, as text; empty if none does."""
    saved = state.get("hyper_parameters")
    return ", ".join(differences(saved if isinstance(saved, dict) else {}, dict(task.hparams), common=True))


def check_begun_from(checkpoint: Path, config: Mapping[str, Any]) -> Path:
    """Return the checkpoint of another run if it was made with the same task and data settings.

    Raises InputError if the file does not exist, or if the settings differ.
    """
    saved_config = load_checkpoint(existing(str(checkpoint))).get(CONFIG)
    if isinstance(saved_config, dict):
        saved, current = (result_settings(each, neutral_data(each)) for each in (saved_config, config))
        parts = ({name: each.get(name) for name in ("model", "data")} for each in (saved, current))
        if differing := differences(*parts):
            raise InputError(
                f"{checkpoint} was made with other settings: {', '.join(differing)}; give the same to go on with it, or"
                " --init_from to start from its weights"
            )
    return checkpoint


# -- data --------------------------------------------------------------------------------------------------------------

_SIZES = ("vocab_size", "d_input", "num_classes", "num_outputs", "per_example")  # a user's data may declare some
# A size that the data has, the size that a network for the other kind has, and what to use instead.
_KINDS = (
    ("num_outputs", "num_classes", "real targets: use the task Regression and the network Regressor"),
    ("num_classes", "num_outputs", "classes: use the task Classification and the network Classifier"),
)


def check_data(task: Any, data: Any) -> None:
    """Compare the network's classes, vocabulary or features, and sequences per example with the data's.

    Sizes that the network or the data does not declare are not compared. Raises InputError.
    """
    name, settings = type(data).__name__, _network_settings(task)
    sizes = data.model_sizes() if hasattr(data, "model_sizes") else {key: getattr(data, key, None) for key in _SIZES}
    for key, other, needed in _KINDS:
        if sizes[key] is not None and key not in settings and other in settings:
            if getattr(data, "pretrain", None) is not None:
                needed = "data.pretrain: use the task MaskedModelling and the network Regressor with pooling null"
            raise InputError(f"model.network takes {other}, but {name} has {needed}")
    for key in _SIZES[:-1]:
        network_size, data_size = settings.get(key), sizes[key]
        if data_size is not None and key in settings and network_size != data_size:
            raise InputError(f"model.network.{key} is {network_size}, but {name} has {data_size}")
    if hasattr(data, "d_input") and sizes["d_input"] is None and settings.get("d_input") is not None:
        raise InputError(
            f"model.network.d_input is {settings['d_input']}, but {name} has tokens: set vocab_size instead"
        )
    network = getattr(task, "network", None)
    network_count, data_count = getattr(network, "per_example", None), sizes["per_example"]
    if network_count is not None and data_count is not None and network_count != data_count:
        needed = "pairs: use a DualEncoder" if data_count == 2 else "no pairs: use a Classifier"
        raise InputError(f"model.network is a {type(network).__name__}, but {name} has {needed}")


def check_vocabulary(task: Any, data: Any) -> None:
    """Check that the network has an embedding for every token of the prepared data. Raises InputError.

    Only prepared data has a known vocabulary. Warns of more embeddings than padding explains.
    """
    manifest = data.manifest() if hasattr(data, "manifest") else {}
    tokens = manifest.get("vocab_size") or len(manifest.get("vocabulary") or ())
    rows = _network_settings(task).get("vocab_size")
    folder = getattr(data, "prepared_folder", "all corpora")
    message = f"model.network.vocab_size is {rows}, but {type(data).__name__}'s prepared data ({folder}) has {tokens}"
    if rows is not None and rows < tokens:
        raise InputError(f"{message} tokens; set it to {tokens}")
    if rows is not None and tokens and rows > math.ceil(tokens / _PADDING) * _PADDING:
        rank_zero_only(print)(to_one_line(f"warning: {message} tokens: {rows - tokens} rows are unused"))


def check_tokenizer(path: Path, data: Any) -> None:
    """Check that a checkpoint was trained on the tokens of the prepared data, as far as both name their tokenizer."""
    if not hasattr(data, "tokenizer_digest"):
        return
    for part in load_checkpoint(path).values():
        if isinstance(part, dict) and isinstance(part.get("tokenizer"), dict):
            try:
                data.load_state_dict(part)
            except InputError as error:
                raise InputError(f"{path}: {error}") from error


def _network_settings(task: Any) -> dict[str, Any]:
    """Return the arguments of the task's network; empty for a user's module that does not keep them."""
    network = task.hparams.get("network")
    return network.get("init_args") or {} if isinstance(network, dict) else {}


# -- the network -------------------------------------------------------------------------------------------------------


def try_network(task: Any, data: Any, trainer: Trainer) -> None:
    """Send the first training examples through the network, on the device and in the precision that will train.

    No gradient or random number changes. Tasks without `dry_run`, data without `sample` and FSDP are not tried.
    """
    if hasattr(task, "dry_run") and hasattr(data, "sample") and _runs_plainly(trainer):
        with _dry_run(task, trainer) as to_device:
            task.dry_run(to_device(data.sample(EXAMPLES)), getattr(data, "num_classes", None))


def check_layers(task: Any, data: Any, trainer: Trainer) -> None:
    """Refuse a layer that looks ahead in a language model, or whose outputs depend on padding.

    Three random sequences go through the network twice: the second time with another future, or with other padding.
    Valid positions may only change by rounding. Raises InputError that names the innermost module that fails.
    """
    network = getattr(task, "network", None)
    if not isinstance(network, nn.Module) or not hasattr(data, "sample") or not _runs_plainly(trainer):
        return
    with _dry_run(task, trainer) as to_device:
        batch = to_device(data.sample(EXAMPLES))
        causal = hasattr(batch, "targets") and getattr(task, "predicts_next", lambda data: True)(data)
        padded = getattr(batch, "lengths", None) is not None and _network_settings(task).get("padding") != "seen"
        inputs, L = batch[0][:EXAMPLES], min(batch[0].shape[1], _LENGTH)  # a batch of pairs has more sequences
        if inputs.dim() != 2 + inputs.is_floating_point() or not (causal or padded) or L < 4:
            return  # pairs of sequences, or nothing that could leak
        lengths = torch.tensor([3 * L // 4, L // 2, L // 4], device=inputs.device)[: len(inputs)]
        ends = lengths.new_full((len(inputs),), L // 2) if causal else lengths  # outputs before these must not change
        valid = torch.arange(L, device=inputs.device) < ends[:, None]
        one, other = (_random_like(inputs[:, :L], task) for _ in range(2))
        other = torch.where(valid if inputs.dim() == 2 else valid[..., None], one, other)
        length_argument = () if causal else (lengths,)
        first = _outputs(network, one, *length_argument)
        second = _outputs(network, other if causal else other[:, : 3 * L // 4], *length_argument)
        leak = next((name for name in first if name in second and _leaks(first[name], second[name], ends)), None)
    if leak is not None:
        name, kind = f"model.network.{leak}".rstrip("."), type(network.get_submodule(leak)).__name__
        what = "looks ahead: its outputs change with the future" if causal else "lets padding into its outputs"
        raise InputError(f"{name} ({kind}) {what}; --check_layer=false trains it all the same")


def _random_like(inputs: Tensor, task: Any) -> Tensor:
    """Return random tokens, or features, of the same shape."""
    if inputs.is_floating_point():
        return torch.randn_like(inputs)
    return torch.randint_like(inputs, _network_settings(task).get("vocab_size") or int(inputs.max()) + 1)


def _outputs(network: nn.Module, *arguments: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return input and output of each module that maps sequences to sequences, inner modules first."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    shape = arguments[0].shape[:2]

    def is_sequence(x: Any) -> bool:
        return isinstance(x, Tensor) and x.dim() >= 2 and x.shape[:2] == shape

    def keep(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        output = output[0] if isinstance(output, tuple) else output
        if name not in seen and inputs and is_sequence(inputs[0]) and is_sequence(output):
            seen[name] = inputs[0].clone(), output.clone()  # in-place operations may follow

    handles = [module.register_forward_hook(partial(keep, name)) for name, module in network.named_modules()]
    torch.manual_seed(0)  # a layer that draws random numbers draws the same ones each time
    try:
        network(*arguments)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _leaks(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], ends: Tensor) -> bool:
    """Return whether outputs differ before `ends` (B,) although inputs do not."""
    (x, y), (x_, y_) = first, second
    valid = torch.arange(x_.shape[1], device=x.device) < ends[:, None]
    tolerance = 1e-4 if y.dtype in (torch.float32, torch.float64) else 0.05

    def differ(a: Tensor, b: Tensor) -> bool:
        a, b = a[:, : b.shape[1]][valid], b[valid]
        return bool((a - b).abs().max() > tolerance * b.abs().max())

    return not differ(x, x_) and differ(y, y_)


def _runs_plainly(trainer: Trainer) -> bool:
    """Return whether this process can run the network as the Trainer will: not under FSDP or before a fork."""
    strategy = trainer.strategy
    plain = isinstance(strategy, (SingleDeviceStrategy, DDPStrategy))
    known = type(trainer.precision_plugin) in (Precision, MixedPrecision, HalfPrecision, DoublePrecision)
    return plain and known and not isinstance(strategy.launcher, _MultiProcessingLauncher)


@contextmanager
def _dry_run(task: Any, trainer: Trainer) -> Iterator[Any]:
    """Evaluate within the block, on the device that will train; modes and random numbers stay as they were.

    Yields the function that moves a batch there.
    """
    device, precision = trainer.strategy.root_device, trainer.precision_plugin
    modes = [(module, module.training) for module in task.modules()]

    def to_device(batch: Any) -> Any:
        return precision.convert_input(task.transfer_batch_to_device(batch, device, 0))

    with isolate_rng(include_cuda=device.type == "cuda"), torch.no_grad(), torch.compiler.set_stance("force_eager"):
        precision.convert_module(task.to(device))  # as the Trainer will do
        try:
            task.eval()
            with precision.forward_context():
                yield to_device
        finally:
            for module, training in modes:
                module.training = training
