"""Public JAX code as a peer of `compare.py`, with the options, training step, gradients and weights of that code.

The package does not depend on JAX; s5.py and minimal_lru.py say what to install.
"""

import argparse
import dataclasses
import runpy
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from flax.core import unfreeze
from flax.traverse_util import flatten_dict

from compare import RESULTS, STEPS, Array, From, Names, Norms, translate
from s5_family import generated

WIDTH, BATCH, STEPS_PER_EPOCH = 64, 16, 50
State = Any  # of flax.training.train_state.TrainState, with its optimizer


def options(checkout: Path, package: str, command: str, **changed: Any) -> Namespace:
    """Return the options that the checkout's run_train.py reads from a command line, with `changed` in place of some.

    Its training and its data loaders are not imported: they need torchtext, wandb and others.
    """
    caught: list[Namespace] = []
    loaders, training = ModuleType(f"{package}.dataloading"), ModuleType(f"{package}.train")
    loaders.__dict__["Datasets"] = {f"{name}-classification": None for name in _DATASETS}
    training.__dict__["train"] = caught.append
    words = shlex.split(command.replace("\\\n", " "))
    words = words[words.index("run_train.py") + 1 :]
    with (
        mock.patch.dict(sys.modules, {loaders.__name__: loaders, training.__name__: training}),
        mock.patch.object(sys, "argv", ["run_train.py", *words]),
    ):
        runpy.run_path(str(checkout / "run_train.py"), run_name="__main__")
    unknown = changed.keys() - vars(caught[0]).keys()
    if unknown:
        raise ValueError(f"run_train.py has no option {', '.join(sorted(unknown))}")
    return Namespace(**vars(caught[0]) | changed)


_DATASETS = ("cifar", "lra-cifar", "imdb", "listops", "aan", "pathfinder", "pathx", "mnist")


def flat(tree: Any) -> dict[str, Array]:
    """Nested parameters as {"encoder/layers_0/seq/B": array}."""
    return {name: np.asarray(value) for name, value in flatten_dict(unfreeze(tree), sep="/").items()}


def transposed(theirs: str) -> From:
    """Their nn.Dense has (inputs, outputs), nn.Linear (outputs, inputs)."""
    return From(theirs, np.transpose)


class JaxPeer:
    """A public program's TrainState, moved by its own training step.

    Args:
        state: as its `create_train_state` returns it.
        train_step: (state, batch) -> (state, loss), by its own `train_step`.
        set_rates: (state, step) -> state with the learning rates after the step of this number, from 0.
        names: from our names to its own, by "/"; its conversions may only move numbers, since gradients take them too.
        group: in which group of gradients a parameter is counted, by OUR name.
    """

    def __init__(
        self,
        state: State,
        train_step: Callable[[State, Any], tuple[State, Any]],
        set_rates: Callable[[State, int], State],
        names: Names,
        group: Callable[[str], str],
    ) -> None:
        self.state, self.train_step, self.set_rates = _recording(state), train_step, set_rates
        self.names, self.group, self.steps = names, group, 0

    def step(self, batch: Any) -> tuple[float, Norms]:
        self.state, loss = self.train_step(self.state, batch)
        self.state = self.set_rates(self.state, self.steps)
        self.steps += 1
        squares: dict[str, float] = {}
        for name, gradient in translate(flat(self.state.gradients), self.names).items():
            group = self.group(name)
            squares[group] = squares.get(group, 0.0) + float(np.square(gradient.astype(np.float64)).sum())
        return float(loss), {name: square**0.5 for name, square in squares.items()}

    def weights(self) -> dict[str, Array]:
        return translate(flat(self.state.params), self.names)


def _recording(state: State) -> State:
    """The same state, which keeps the gradients that its `apply_gradients` gets."""

    class Recording(type(state)):  # type: ignore[misc]
        gradients: Any = None

        def apply_gradients(self, *, grads: Any, **changed: Any) -> Any:
            return super().apply_gradients(grads=grads, **changed).replace(gradients=grads)

    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return Recording(**fields, gradients=state.params)  # of the gradients' shapes: a step is compiled once


class Annealing:
    """Which of their functions of train_helpers.py gives the rates after a step, as both programs' train.py says it.

    Args:
        helpers: their module train_helpers.
        steps_per_epoch: their train_size // batch size.
    """

    def __init__(self, options: Namespace, helpers: ModuleType, steps_per_epoch: int) -> None:
        self.warmup, self.total = options.warmup_end * steps_per_epoch, options.epochs * steps_per_epoch
        self.helpers = helpers

    def after(self, step: int) -> tuple[Callable[..., Any], int]:
        """(function, end_step) that train.py takes for the rates after the step of this number, from 0."""
        if step < self.warmup:
            return self.helpers.linear_warmup, self.warmup
        return self.helpers.cosine_annealing, self.total - self.warmup


def compare_cases(
    description: str, cases: Mapping[str, Any], run: Callable[[str, Path, list[Any], int, Path], None]
) -> None:
    """The command line of s5.py and minimal_lru.py: run(name, checkout, batches, steps, folder of the results) for each
    case, which has `length` and `padded`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="of the public repository, at the commit above")
    parser.add_argument("--cases", nargs="+", choices=cases, default=list(cases))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    sys.path.insert(0, str(given.checkout))
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        for name in given.cases:
            case = cases[name]
            batches = generated(folder, case.padded, case.length, BATCH, given.steps)
            run(name, given.checkout, batches, given.steps, given.out)
