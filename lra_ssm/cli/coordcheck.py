"""`lra-ssm coordcheck`: train a few steps at several widths to check whether settings carry over to wider models."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveInt

from lra_ssm.errors import InputError
from lra_ssm.tables import terminal_width, wrapped

if TYPE_CHECKING:
    from lra_ssm.tasks.base import NetworkTask
    from lra_ssm.width.coordinates import Slope


def coordcheck(
    config: str,
    *settings: str,
    widths: list[PositiveInt] = [64, 128, 256, 512],  # noqa: B006
    steps: PositiveInt = 5,
    seeds: PositiveInt = 1,
    examples: PositiveInt = 8,
    length: PositiveInt = 128,
    layers: PositiveInt | None = None,
    tolerance: float = 0.2,
    random: bool = False,
    out: Path = Path(),
) -> int:
    """Train a config's model for a few steps at several widths, and show how activations and gradients scale.

    Settings of one width do not hold for another if activations, their changes or gradients grow or shrink with it.
    Options of fit, such as --model.width.parameterization, change the config. Batches are cut to a few short sequences.
    Writes coordcheck.png and coordcheck.csv.

    Args:
        config: a config's name or file
        widths: values of d_model
        steps: optimizer steps
        seeds: number of seeds to average over
        examples: sequences in a batch
        length: positions of a sequence, at most
        layers: blocks of the model, whose depth changes no slope; default: 2, or as many as lists of layers have
        tolerance: largest accepted deviation of a slope
        random: use random inputs, and no data
        out: folder of coordcheck.png and .csv, created if it does not exist; default: this one

    Examples:
        lra-ssm coordcheck quickstart
        lra-ssm coordcheck quickstart --model.width.parameterization=mup --model.width.base_d_model=64
        lra-ssm coordcheck lm/quickstart --widths 64 128 256 512 --steps 10 --out checks --random
    """
    widths, layers = sorted({*map(int, widths)}), layers and int(layers)  # plain integers, which a network can store
    if len(widths) < 2:
        raise InputError("--widths: a slope needs at least two, such as --widths 64 256")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: is not a folder")
    import pandas as pd

    from lra_ssm.bars import Bar
    from lra_ssm.cli.config import read_fit_options
    from lra_ssm.files import replacing
    from lra_ssm.width.report import draw_check, slope_tables

    options = read_fit_options([f"--config={config}", *settings])
    models = _Models(options.resolved["model"], layers)
    batches, source = _batches(models, None if random else options.data(), steps + 1, examples, length)
    title = f"{options.given.experiment}, {models.parameterization}"
    print(wrapped(f"{title}: d_model {', '.join(map(str, widths))}, {models.layers} blocks, {steps} steps at the"
                  f" config's rates, without warm-up; {source}"), flush=True)  # fmt: skip
    rows: list[dict[str, Any]] = []
    with Bar("measuring", len(widths) * seeds, unit="models") as bar:
        for seed in range(seeds):
            for width in widths:
                measured = _measure(models.task(width, seed), batches, steps)
                rows += [{"width": width, "seed": seed, **row} for row in measured]
                bar.advance(1)
    slopes = models.slopes(rows)
    print(slope_tables(slopes, tolerance, terminal_width()))
    frame = pd.DataFrame(rows)
    out.mkdir(parents=True, exist_ok=True)
    with replacing(out / "coordcheck.csv") as file:
        frame.to_csv(file, index=False)
    with replacing(out / "coordcheck.png", "wb") as file:
        draw_check(frame, slopes, tolerance, title).savefig(file, format="png", dpi=130)
    print(f"{out / 'coordcheck.png'}, coordcheck.csv")
    return 0


class _Models:
    """A config's task at any width.

    Args:
        model: the section of the resolved configuration.
        layers: blocks of every model; None for 2, or as many as its lists of layers have.

    Raises:
        InputError: its network has no d_model.
    """

    def __init__(self, model: dict[str, Any], layers: int | None) -> None:
        self.model, network = model, (model.get("init_args") or {}).get("network") or {}
        self.network: dict[str, Any] = network.get("init_args") or {}
        if not isinstance(self.network.get("d_model"), int):
            raise InputError(f"coordcheck: {network.get('class_path', 'the model')} has no d_model to change")
        lists = [value for name in ("layer", "block") if isinstance(value := self.network.get(name), list)]
        self.layers = layers or max([2, *map(len, lists)])
        self.width = model["init_args"].get("width")

    @property
    def parameterization(self) -> str:
        return "without a width parameterization" if self.width is None else str(self.width["parameterization"])

    def task(self, width: int, seed: int = 0) -> NetworkTask:
        """Return the task at a width; attention has more heads there, not larger ones."""
        from lightning.pytorch import seed_everything

        from lra_ssm.layers.spec import import_object
        from lra_ssm.tasks.base import NetworkTask

        model = copy.deepcopy(self.model)
        network = model["init_args"]["network"]["init_args"]
        network |= {"d_model": width, **({"n_layers": self.layers} if "n_layers" in network else {})}
        _scale_heads(network, width / self.network["d_model"])
        seed_everything(seed, verbose=False)
        try:
            task = import_object(model["class_path"])(**model["init_args"])
        except ValueError as error:
            raise InputError(f"d_model {width}: {error}") from error
        if not isinstance(task, NetworkTask):
            raise InputError(f"coordcheck: {model['class_path']} is not a task of this package, or derived from one")
        for name in ("log", "log_dict"):
            setattr(task, name, lambda *_, **__: None)  # there is no Trainer
        return task

    def slopes(self, rows: Sequence[dict[str, Any]]) -> list[Slope]:
        """Return the measured slopes next to what the parameterization promises."""
        from lra_ssm.tasks.algorithms import update_rule
        from lra_ssm.width.coordinates import promises, slopes
        from lra_ssm.width.scaling import WidthSettings

        task, width = self.task(self.network["d_model"]), WidthSettings.of(self.width)
        optimizer = task.optimizer_settings
        rule = "adam" if width is None else update_rule(optimizer.algorithm, optimizer.arguments)
        return slopes(rows, promises(task.network, width, rule))


def _scale_heads(node: Any, ratio: float) -> None:
    """Multiply n_heads and n_kv_heads by the ratio at every level of the settings."""
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        if isinstance(value, dict):
            for name in {"n_heads", "n_kv_heads"} & value.keys():
                if value[name] is not None:
                    value[name] = max(1, round(value[name] * ratio))
        _scale_heads(value, ratio)


def _measure(task: NetworkTask, batches: list[Any], steps: int) -> list[dict[str, Any]]:
    """Train a task on all batches but the first, on which it is measured; return the rows of `measure`."""
    from lra_ssm.tasks.optim import optimizer_and_schedule
    from lra_ssm.width.coordinates import measure

    settings = replace(task.optimizer_settings, warmup_steps=0)
    optimizer = optimizer_and_schedule(task.network, settings, 1_000_000, 1000, task.width_factors)["optimizer"]
    inputs, lengths = task.inputs_of(batches[0])

    def loss(step: int) -> Any:
        return task.training_step(batches[1 + step % (len(batches) - 1)], step)

    return list(measure(task.network, lambda: task.network(inputs, lengths), loss, optimizer, steps))


def _batches(models: _Models, data: Any, count: int, examples: int, length: int) -> tuple[list[Any], str]:
    """Return small batches of the data, or random ones if no data is prepared, and a text that describes them."""
    from lra_ssm.analysis.inputs import part_of_batch
    from lra_ssm.datamodules.base import DataModule, PreparedData

    size = f"batches of {examples} sequences of at most {length} positions"
    if not isinstance(data, DataModule) or isinstance(data, PreparedData) and not data.is_prepared():
        why = "as asked for" if data is None else "as the data is not prepared here"
        return _random(models, count, examples, length), f"random inputs, {why}: {size}"
    data.setup("fit")
    batches = chain.from_iterable(data.train_dataloader() for _ in range(count))  # an epoch has at least one
    small_batches = [part_of_batch(batch, slice(examples), length) for batch in islice(batches, count)]
    data.teardown()
    return small_batches, size


def _random(models: _Models, count: int, examples: int, length: int) -> list[Any]:
    """Return random inputs with random labels; for a language model the label of a token is the next token."""
    import torch

    from lra_ssm.analysis.inputs import RandomInputs

    sizes = models.network
    random = RandomInputs(models.task(sizes["d_model"]).network, {"init_args": sizes})
    batches = []
    for _ in range(count):
        inputs, labels = random.draw(examples, length)
        if labels is None and random.num_outputs:
            positions = () if sizes.get("pooling", True) else (length,)
            labels = random.values(examples, *positions, random.num_outputs)
        batches.append((inputs, torch.roll(inputs, -1, 1) if labels is None else labels))
    return batches
