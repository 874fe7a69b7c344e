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
    from lra_ssm.cli.config import Config
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
    out: Path = Path(),
) -> int:
    """Train a config's model for a few steps at several widths, and show how activations and gradients scale.

    Settings of one width do not hold for another if activations, their changes or gradients grow or shrink with it.
    Options of fit, such as --model.width.parameterization, change the config. Batches are cut to a few short sequences;
    they are random if the config's data is not prepared. Writes coordcheck.png and coordcheck.csv.

    Args:
        config: a config's name or file
        widths: values of d_model
        steps: optimizer steps
        seeds: number of seeds to average over
        examples: sequences in a batch
        length: positions of a sequence, at most
        layers: blocks of the model, whose depth changes no slope; default: 2, or as many as lists of layers have
        tolerance: largest accepted deviation of a slope
        out: folder of coordcheck.png and .csv, created if it does not exist; default: this one

    Examples:
        lra-ssm coordcheck quickstart
        lra-ssm coordcheck quickstart --model.width.parameterization=mup --model.width.base_d_model=64
        lra-ssm coordcheck lm/quickstart --widths 64 128 256 512 --steps 10 --out checks
    """
    widths, layers = sorted({*map(int, widths)}), layers and int(layers)  # plain integers, which a network can store
    if len(widths) < 2:
        raise InputError("--widths: a slope needs at least two, such as --widths 64 256")
    import pandas as pd

    from lra_ssm.bars import Bar
    from lra_ssm.checkpoints.files import get_nested
    from lra_ssm.cli.config import read_fit_options
    from lra_ssm.datamodules.base import PreparedData
    from lra_ssm.files import replacing
    from lra_ssm.width.report import draw_check, slope_tables

    checked = read_fit_options([f"--config={config}", *settings])
    network = get_nested(checked.resolved, "model", "init_args", "network", "init_args")
    if not isinstance(network.get("d_model"), int):
        raise InputError(f"coordcheck: the network of {config} has no d_model to change")
    lists = [value for name in ("layer", "block") if isinstance(value := network.get(name), list)]
    layers = layers or max([2, *map(len, lists)])
    base, data = _task(checked, network["d_model"], layers, 0), checked.data()
    if isinstance(data, PreparedData) and not data.is_prepared():
        batches = _random(base, network, steps + 1, examples, length)
        source = "random, as the data is not prepared here"
    else:
        batches, source = _batches(data, steps + 1, examples, length), "of the config's data"
    parameterization = get_nested(checked.resolved, "model", "init_args", "width").get("parameterization")
    title = f"{checked.given.experiment}, {parameterization or 'without a width parameterization'}"
    print(wrapped(f"{title}: d_model {', '.join(map(str, widths))}, {layers} blocks, {steps} steps at the config's"
                  f" rates, without warm-up; batches of {examples} sequences of at most {length} positions, {source}"),
          flush=True)  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with Bar("measuring", len(widths) * seeds, unit="models") as bar:
        for seed in range(seeds):
            for width in widths:
                measured = _measure(_task(checked, width, layers, seed), batches, steps)
                rows += [{"width": width, "seed": seed, **row} for row in measured]
                bar.advance(1)
    slopes = _slopes(base, rows)
    print(slope_tables(slopes, tolerance, terminal_width()))
    frame = pd.DataFrame(rows)
    with replacing(out / "coordcheck.csv") as file:
        frame.to_csv(file, index=False)
    with replacing(out / "coordcheck.png", "wb") as file:
        draw_check(frame, slopes, tolerance, title).savefig(file, format="png", dpi=130)
    print(f"{out / 'coordcheck.png'}, coordcheck.csv")
    return 0


def _task(config: Config, width: int, layers: int, seed: int) -> NetworkTask:
    """Build the task of a config at another width; attention has more heads there, not larger ones."""
    from lra_ssm.cli.config import Config
    from lra_ssm.runs.identity import SEED
    from lra_ssm.tasks.base import NetworkTask

    changed = {**copy.deepcopy(config.resolved), SEED: seed}
    network = changed["model"]["init_args"]["network"]["init_args"]
    _scale_heads(network, width / network["d_model"])
    network |= {"d_model": width, **({"n_layers": layers} if "n_layers" in network else {})}
    task = Config([], changed).build(None).task
    if not isinstance(task, NetworkTask):
        raise InputError(f"coordcheck: {type(task).__name__} is not a task of this package, or derived from one")
    for name in ("log", "log_dict"):
        setattr(task, name, lambda *_, **__: None)  # there is no Trainer
    return task


def _slopes(task: NetworkTask, rows: Sequence[dict[str, Any]]) -> list[Slope]:
    """Return the measured slopes next to what the task's parameterization promises."""
    from lra_ssm.tasks.algorithms import update_rule
    from lra_ssm.width.coordinates import promises, slopes
    from lra_ssm.width.scaling import WidthSettings

    width, optimizer = WidthSettings.of(task.hparams.get("width")), task.optimizer_settings
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


def _batches(data: Any, count: int, examples: int, length: int) -> list[Any]:
    """Return small batches of a data module's training examples."""
    from lra_ssm.analysis.inputs import part_of_batch

    if data is None:
        raise InputError("coordcheck: the config names no data")
    data.setup("fit")
    batches = chain.from_iterable(data.train_dataloader() for _ in range(count))  # an epoch has at least one
    small_batches = [part_of_batch(batch, slice(examples), length) for batch in islice(batches, count)]
    data.teardown("fit")
    return small_batches


def _random(task: NetworkTask, sizes: dict[str, Any], count: int, examples: int, length: int) -> list[Any]:
    """Return random inputs and targets of a network's sizes; a language model's targets are the next tokens."""
    import torch

    if not sizes.get("vocab_size") and not sizes.get("d_input"):
        raise InputError("coordcheck: the network has neither vocab_size nor d_input: prepare its data first")
    torch.manual_seed(0)
    shape = (examples, *([2] if getattr(task.network, "per_example", 1) == 2 else []), length)
    batches = []
    for _ in range(count):
        if tokens := sizes.get("vocab_size"):
            inputs = torch.randint(min(1, tokens - 1), tokens, shape)  # 0 is padding
        else:
            inputs = torch.rand(*shape, sizes["d_input"])
        if classes := sizes.get("num_classes"):
            targets = torch.randint(classes, (examples,))
        elif outputs := sizes.get("num_outputs"):
            targets = torch.randn(examples, *([] if sizes.get("pooling", True) else [length]), outputs)
        else:
            targets = torch.roll(inputs, -1, 1)
        batches.append((inputs, targets))
    return batches
