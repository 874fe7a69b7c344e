"""The base of all tasks: a network, the training of its parameters, and the form of a batch.

Shapes: B batch, L length.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, cast

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torchmetrics import Metric

from lra_ssm.errors import InputError
from lra_ssm.layers import NetworkSpec, check_lengths
from lra_ssm.layers.contract import check_call
from lra_ssm.layers.norms import world_size
from lra_ssm.layers.spec import NetworkFactory
from lra_ssm.tasks.algorithms import muon_names, update_rule
from lra_ssm.tasks.averaging import AverageWeights
from lra_ssm.tasks.metrics import Metrics, MetricSpec, build_metrics, metric_specs
from lra_ssm.tasks.optim import DEFAULTS, OptimizerSettings, optimizer_and_schedule, parameter_rates
from lra_ssm.tasks.sharding import shard
from lra_ssm.width.scaling import Factors, WidthSettings, scale_initial_values, width_factors, width_of


class NetworkTask(L.LightningModule):
    """A network and its optimizer; a task adds its steps.

    Args:
        network: a specification of any class whose instances map (inputs, lengths) to outputs.
        optimizer: how its parameters are trained; an `OptimizerSettings` or its values by name.
        width: a width parameterization, `WidthSettings` or its values by name, which transfers settings from one width
            to another. None leaves the model and its rates as they are.
    """

    in_progress_bar: tuple[str, ...] = ("loss",)  # what it shows of the metrics of validation and test

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerSettings = DEFAULTS,
        width: WidthSettings | None = None,
    ) -> None:
        super().__init__()
        spec = NetworkSpec.of(network)
        optimizer, width = OptimizerSettings.of(optimizer), WidthSettings.of(width)
        self.network = spec()
        check_call(self.network, "network", "inputs", "lengths")
        parameter_rates(self.network, optimizer)  # refuses roles without settings before data is read
        self.optimizer_settings = optimizer
        self.metric_specs: dict[str, MetricSpec] = {}
        self.metrics = nn.ModuleDict({"val": nn.ModuleDict(), "test": nn.ModuleDict()})
        hyperparameters = {"network": spec.as_dict(), "optimizer": asdict(optimizer)}
        self.save_hyperparameters(hyperparameters if width is None else {**hyperparameters, "width": asdict(width)})
        self.width_factors: dict[str, Factors] | None = None
        if width is not None:
            rule = update_rule(optimizer.algorithm, optimizer.arguments)
            by_muon = muon_names(self.network, optimizer.algorithm)
            self.width_factors = width_factors(self.network, width_of(spec), width, rule, by_muon)
            scale_initial_values(self.network, self.width_factors)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.network(inputs, lengths)

    def configure_callbacks(self) -> list[L.Callback]:
        """Return the callback that averages weights in a fit, if the settings ask for it."""
        decay = self.optimizer_settings.ema_decay
        return [] if decay is None or self.trainer.state.fn != "fit" else [AverageWeights(decay)]

    def configure_model(self) -> None:
        """Shard the network if the strategy is Lightning's ModelParallelStrategy (FSDP2)."""
        trainer = self._trainer  # None where a checkpoint is loaded without one
        if trainer is not None and isinstance(trainer.strategy, ModelParallelStrategy):
            low_precision = torch.bfloat16 if trainer.precision == "bf16-mixed" else None
            shard(self.network, trainer.strategy.device_mesh["data_parallel"], low_precision)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Number the parameters of optimizer states by the module's order, and order the groups as the optimizer does.

        torch finds states by their places in the groups, whatever their numbers. With sharded weights Lightning finds
        them by their numbers in the module, and writes the groups in that order. This way every strategy can read all
        checkpoints.
        """
        sharded = isinstance(self.trainer.strategy, ModelParallelStrategy)
        if not sharded and not isinstance(self.trainer.strategy, (SingleDeviceStrategy, DDPStrategy)):
            return  # only that strategy reads what it writes
        numbers = {id(p): number for number, p in enumerate(self.parameters())}
        for optimizer, state in zip(self.trainer.optimizers, checkpoint.get("optimizer_states", ()), strict=False):
            module_numbers = [[numbers.get(id(p), -1) for p in group["params"]] for group in optimizer.param_groups]
            saved_numbers = [group["params"] for group in state.get("param_groups", ())]
            # Another process saves, or parameters are not the module's.
            if not saved_numbers or -1 in sum(module_numbers, []):
                continue
            renumbered = dict(
                zip(sum(saved_numbers, []), sum(saved_numbers if sharded else module_numbers, []), strict=True)
            )
            state["state"] = {renumbered[number]: values for number, values in state["state"].items()}
            for group, order in zip(state["param_groups"], module_numbers, strict=True):
                assert sorted(renumbered[number] for number in group["params"]) == sorted(order)
                group["params"] = order

    def keep_metrics(self, build: Callable[[], Mapping[str, Metric]]) -> None:
        """Keep metrics of validation and of test, by the names under which they are logged; `build` makes one set."""
        for split in ("val", "test"):
            self.metrics[split] = nn.ModuleDict({**build(), **build_metrics(self.metric_specs)})

    def take_metrics(self, metrics: Metrics | None, build: Callable[[], Mapping[str, Metric]]) -> None:
        """Keep the task's own metrics, and further ones from specifications, which `evaluate` has to update.

        Raises InputError for a name that the task has itself, and ValueError for an invalid specification.
        """
        self.metric_specs = metric_specs(metrics, build())
        specs = {name: spec.as_dict() for name, spec in self.metric_specs.items()}
        self.save_hyperparameters({"metrics": specs or None})
        self.keep_metrics(build)

    def evaluate(self, batch: Any, metrics: Mapping[str, Any]) -> None:
        """Update a split's metrics with a batch, in which every example counts once on all devices."""
        raise NotImplementedError

    def results(self, split: str) -> dict[str, Tensor]:
        """Return what is logged of a split, by name, from its updated metrics."""
        return {name: metric.compute() for name, metric in self._of_split(split).items() if metric.update_called}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate(batch, self._of_split("val"))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate(batch, self._of_split("test"))

    def on_validation_epoch_end(self) -> None:
        self._log_results("val")

    def on_test_epoch_end(self) -> None:
        self._log_results("test")

    def _of_split(self, split: str) -> Mapping[str, Any]:
        return cast(Mapping[str, Any], self.metrics[split])

    def _log_results(self, split: str) -> None:
        for name, value in self.results(split).items():
            # All processes have the same value; without sync_dist Lightning would warn.
            self.log(f"{split}/{name}", value.float(), prog_bar=name in self.in_progress_bar, sync_dist=True)
        for metric in self._of_split(split).values():
            metric.reset()

    def log_mean_loss(self, total: Tensor, count: Tensor, batch_size: int) -> Tensor:
        """Log a training batch's mean loss over all devices, and return what to differentiate.

        total, count: this process's sum of losses () and the number () that it is divided by.
        """
        (loss, number), size = all_reduce_sums(total.detach(), count)
        number = number + (number == 0)
        self.log("train/loss", loss / number, batch_size=batch_size)
        return total * (size / number)  # DDP averages the gradients of all processes

    def try_metrics(self, predictions: Tensor, targets: Tensor) -> None:
        """Check that each metric takes such a batch and gives a single number. Raises InputError."""
        for name, metric in build_metrics(self.metric_specs).to(targets.device).items():
            try:
                value = metric(predictions, targets)
            except (ValueError, RuntimeError, TypeError) as error:
                raise InputError(f"model.metrics.{name} does not take the predictions: {error}") from error
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise InputError(f"model.metrics.{name} does not give a single number: average its classes or outputs")

    def try_optimizer(self) -> None:
        """Build an optimizer and a schedule, without steps.

        Raises InputError or ValueError for arguments that they do not take, and for unknown roles.
        """
        optimizer_and_schedule(self.network, self.optimizer_settings, 1000, 100, self.width_factors)

    def inputs_of(self, batch: Any) -> tuple[Tensor, Tensor | None]:
        """Return a batch's inputs, and its lengths or None. Raises TypeError for an invalid batch."""
        return unpack(batch)[:2]

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Check the lengths while they are still on the CPU: reading them on a GPU would wait for it.

        Lightning calls a data module's own hook instead, if it has one.
        Raises InputError for lengths that the inputs cannot have.
        """
        inputs, lengths = self.inputs_of(batch)
        if isinstance(inputs, Tensor) and isinstance(lengths, Tensor) and inputs.dim() > lengths.dim() > 0:
            try:
                check_lengths(lengths.flatten(), inputs.flatten(0, lengths.dim() - 1), minimum=1)
            except ValueError as error:
                raise InputError(f"a batch of the data has {error}") from error
        return batch

    def configure_optimizers(self) -> Any:
        settings, total = self.optimizer_settings, int(self.trainer.estimated_stepping_batches)
        if settings.algorithm != "AdamW" and isinstance(self.trainer.strategy, ModelParallelStrategy):
            raise InputError(f"optimizer.algorithm is {settings.algorithm}: only AdamW trains sharded weights")
        if settings.warmup_of(total) >= total:
            rank_zero_warn(
                f"the run has {total} steps, all within warmup_steps {settings.warmup_steps:g}: "
                f"lr stays below {settings.lr}"
            )
        epoch_steps = self.trainer.num_training_batches / self.trainer.accumulate_grad_batches
        return optimizer_and_schedule(self.network, settings, total, epoch_steps, self.width_factors)


def ddp_loss_weight(count: int | Tensor, like: Tensor) -> float | Tensor:
    """Return the weight of this process's mean loss over `count` examples, when DDP averages the gradients of all
    processes.

    The processes may have different counts in an epoch's last batch. `like` is a tensor on the process's device.
    """
    if world_size() == 1:
        return 1.0
    (total,), size = all_reduce_sums(torch.tensor(float(count), device=like.device))
    return count * size / total


def all_reduce_sums(*values: Tensor) -> tuple[list[Tensor], int]:
    """Return the sums of tensors of one shape over all processes, from one collective call, and their number."""
    if world_size() == 1:
        return list(values), 1
    stacked = torch.stack([value.to(torch.float64) for value in values])  # in which counts are exact
    dist.all_reduce(stacked)
    return [total.to(value.dtype) for total, value in zip(stacked, values, strict=True)], world_size()


def unpack(batch: Any) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return inputs, lengths or None, and labels. Raises TypeError for another form of batch."""
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        raise TypeError(f"a batch is (inputs, lengths, labels) or (inputs, labels), not {type(batch).__name__}")
    return batch[0], batch[1] if len(batch) == 3 else None, batch[-1]
