"""What `coordcheck` trains: a config's task at any width, on a few short batches; and the picture."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np
import pandas as pd
import torch
from lightning.pytorch import seed_everything
from matplotlib.figure import Figure
from torch import Tensor

from lra_ssm.cli.inspect_inputs import RandomInputs, part_of
from lra_ssm.cli.run_options import RunOptions
from lra_ssm.datamodules.base import DataModule, PreparedData
from lra_ssm.errors import InputError
from lra_ssm.layers.spec import import_object
from lra_ssm.tasks.algorithms import update_rule
from lra_ssm.tasks.base import NetworkTask
from lra_ssm.tasks.optim import OptimizerSettings, optimizer_and_schedule
from lra_ssm.width.coordinates import Row, Slope, measure, promises, slopes
from lra_ssm.width.scaling import WidthSettings


class Check:
    """A config's task at several widths.

    Raises InputError where its network has no d_model, or is no task of ours.
    """

    def __init__(self, options: RunOptions, given: Namespace) -> None:
        self.given, self.config = given, options.resolved
        self.model = options.resolved["model"]
        self.title = f"{options.given.experiment}, {self._parameterization()}"
        arguments = self._network()
        if not isinstance(arguments.get("d_model"), int):
            raise InputError(f"coordcheck: {self.model['init_args']['network']['class_path']} has no d_model to change")
        self.layers = given.layers or max(2, *(_listed(arguments.get(name)) for name in ("layer", "block")))
        self.batches, self.source = self._batches(options)

    def _network(self) -> dict[str, Any]:
        network: dict[str, Any] = self.model.get("init_args", {}).get("network") or {}
        return network.get("init_args") or {}

    def _parameterization(self) -> str:
        width = self.model["init_args"].get("width")
        return "without a width parameterization" if width is None else str(width["parameterization"])

    def describe(self, widths: Sequence[int]) -> str:
        """What is measured, in a sentence."""
        return (
            f"{self.title}: d_model {', '.join(map(str, widths))}, {self.layers} blocks, {self.given.steps} steps at"
            f" the config's rates, without warm-up; {self.source}"
        )

    def task(self, width: int, seed: int) -> NetworkTask:
        """The task at a width; attention has more heads there, not larger ones."""
        model = copy.deepcopy(self.model)
        arguments = model["init_args"]["network"]["init_args"]
        ratio = width / arguments["d_model"]
        arguments |= {"d_model": width, **({"n_layers": self.layers} if "n_layers" in arguments else {})}
        _scale_heads(arguments, ratio)
        seed_everything(seed, verbose=False)
        try:
            made = import_object(model["class_path"])(**model["init_args"])
        except ValueError as error:
            raise InputError(f"d_model {width}: {error}") from error
        if not isinstance(made, NetworkTask):
            raise InputError(f"coordcheck: {model['class_path']} is no task of this package, or derived from one")
        for name in ("log", "log_dict"):
            setattr(made, name, lambda *_, **__: None)  # there is no Trainer
        return made

    def rows(self, width: int, seed: int) -> Iterator[Row]:
        """Of one model."""
        task = self.task(width, seed)
        settings = replace(task.optimizer_settings, warmup_steps=0)
        optimizer = optimizer_and_schedule(task.network, settings, 1_000_000, 1000, task.width_factors)["optimizer"]
        inputs, lengths = task.inputs_of(self.batches[0])

        def loss(step: int) -> Tensor:
            found: Any = task.training_step(self.batches[1 + step % (len(self.batches) - 1)], step)
            return found

        yield from measure(task.network, lambda: task.network(inputs, lengths), loss, optimizer, self.given.steps)

    def slopes(self, rows: Sequence[Row]) -> list[Slope]:
        """Beside what is promised."""
        task = self.task(self._network()["d_model"], 0)
        width = WidthSettings.of(self.model["init_args"].get("width"))
        optimizer: OptimizerSettings = task.optimizer_settings
        rule = "adam" if width is None else update_rule(optimizer.algorithm, optimizer.arguments)
        return slopes(rows, promises(task.network, width, rule))

    def _batches(self, options: RunOptions) -> tuple[list[Any], str]:
        """One that is looked at and one for each step; and what is said of them."""
        number, examples, length = self.given.steps + 1, self.given.examples, self.given.length
        data = None if self.given.random else options.data()
        ready = isinstance(data, DataModule)
        if isinstance(data, PreparedData):
            try:
                ready = data.is_prepared()
            except InputError:  # its source is missing
                ready = False
        size = f"batches of {examples} sequences of at most {length} positions"
        if data is None or not ready:
            why = "as asked for" if self.given.random else "as the data is not prepared here"
            return self._random(number), f"random inputs, {why}: {size}"
        data.setup("fit")
        batches = chain.from_iterable(data.train_dataloader() for _ in range(number))  # an epoch has one at least
        found = [part_of(batch, slice(examples), length) for batch in islice(batches, number)]
        data.teardown()
        return found, size

    def _random(self, number: int) -> list[Any]:
        """Random inputs of the network's sizes, with random labels."""
        arguments, length = self._network(), self.given.length
        random = RandomInputs(self.task(arguments["d_model"], 0).network, self.model["init_args"]["network"])
        found = []
        for _ in range(number):
            inputs, labels = random.draw(self.given.examples, length)
            if labels is None and random.num_outputs:
                positions = () if arguments.get("pooling", True) else (length,)
                labels = random.values(self.given.examples, *positions, random.num_outputs)
            found.append((inputs, torch.roll(inputs, -1, 1) if labels is None else labels))  # else the next token
        return found


def _listed(value: Any) -> int:
    return len(value) if isinstance(value, list) else 1


def _scale_heads(node: Any, ratio: float) -> None:
    """n_heads, and n_kv_heads, times the ratio, wherever they stand."""
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        if isinstance(value, dict):
            for name in {"n_heads", "n_kv_heads"} & value.keys():
                if value[name] is not None:
                    value[name] = max(1, round(value[name] * ratio))
        _scale_heads(value, ratio)


def picture(rows: pd.DataFrame, found: Sequence[Slope], tolerance: float, title: str) -> Figure:
    """Three panels over the width: activations and their changes after the steps, gradients before them."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    last = rows["step"].max()
    panels = {
        f"activations after {last} steps": ("activation", last),
        f"their change in {last} steps": ("update", last),
        "gradients of parameters at the start": ("gradient", 0),
    }
    widths = sorted(rows["width"].unique())
    for axes, (name, (what, step)) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        wrong = {one.name: one for one in found if one.what == what and one.step == step and one.verdict(tolerance)}
        chosen = rows[(rows["what"] == what) & (rows["step"] == step)]
        means = chosen.groupby(["name", "width"], sort=False)["rms"].mean()
        drawn = means.where(np.isfinite(means)).unstack("width")[widths]
        for each, line in drawn.iterrows():
            style = {"color": "#c0392b", "alpha": 0.9} if each in wrong else {"color": "#555555", "alpha": 0.5}
            axes.plot(widths, line, "o-", markersize=3, linewidth=1, **style)
        axes.set(xscale="log", yscale="log", xlabel="width d_model", ylabel="root mean square")
        axes.set_title(f"{name}\n{len(wrong)} not as promised (red)", fontsize=9)
        axes.set_xticks(widths, [str(width) for width in widths])
        axes.minorticks_off()
        for each in list(wrong)[:6]:
            shown = drawn.loc[each].last_valid_index()
            if shown is not None:
                label = f"{each} {wrong[each].found:+.2f}"
                axes.annotate(label, (shown, drawn.loc[each, shown]), fontsize=6, ha="right")
    figure.suptitle(title, fontsize=10)
    return figure
