"""Trains two implementations of one model side by side, from the same weights on the same batches, and compares them.

A script describes a source in three steps and calls `compare`:

    names = {                                        # every parameter of ours -> where it comes from in theirs
        "head.linear.weight": "decoder.weight",      # copied as it is
        "backbone.blocks.0.layer.A_imag": From("layers.0.A_imag", lambda x: -x),
        "backbone.embedding.weight": From(("table", "scale"), lambda table, scale: table * scale),
    }
    load_weights(our_model, their_weights, names)    # their_weights: {their name: numpy array}
    compare(theirs, ours, batches, out=RESULTS / "s4-v3", title="state-spaces/s4 v3.0.0")

`theirs` and `ours` are peers, and a peer is any object with

    step(batch) -> (loss, {group: gradient norm})    one training step: loss before it, gradients before clipping
    weights() -> {our name: numpy array}             the current weights under OUR names

so that a peer can be a JAX program. For PyTorch there is `TorchPeer`; `our_peer` makes one from a network of this
package and `OptimizerSettings`. Groups of gradients are named by the script, the same on both sides.

`compare` writes OUT.csv, a row for each step, and after the rows a comment "# weights, NAME, distance" for each
parameter (read it with `pandas.read_csv(..., comment="#")`), and OUT.png. It returns a `Comparison`; `write_summary`
keeps one line of each in summary.csv of the same folder, from which docs/parity.md takes its table.

`control` is an optional third peer: ours from weights that differ by rounding (`perturb`). Its difference says how much
of ours is the growth of rounding errors, which no two implementations escape.

Distances and differences are relative: |loss theirs - loss ours| / |loss theirs|, and ||theirs - ours|| / ||theirs||.
"""

import csv
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from filelock import FileLock
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lra_ssm.tasks.optim import OptimizerSettings, optimizer_and_schedule

RESULTS = Path(__file__).parents[1] / "results" / "parity"
STEPS = 500
Array = np.ndarray
Norms = dict[str, float]


class Peer(Protocol):
    """One implementation with its optimizer; see the module's docstring."""

    def step(self, batch: Any) -> tuple[float, Norms]: ...

    def weights(self) -> dict[str, Array]: ...


# -- names and weights ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class From:
    """Where a parameter of ours comes from: their name or names, and a function of these arrays that gives ours."""

    theirs: str | tuple[str, ...]
    convert: Callable[..., Array] = lambda x: x

    def of(self, weights: Mapping[str, Array]) -> Array:
        names = (self.theirs,) if isinstance(self.theirs, str) else self.theirs
        return np.asarray(self.convert(*(weights[name] for name in names)))


Names = Mapping[str, str | From]


def translate(theirs: Mapping[str, Array], names: Names, unused: Iterable[str] = ()) -> dict[str, Array]:
    """Their weights under our names.

    unused: names of theirs that have no counterpart, such as a constant or a buffer. Raises ValueError naming the
    weights of theirs that the table forgets, and KeyError for a name that they do not have.
    """
    table = {ours: From(each) if isinstance(each, str) else each for ours, each in names.items()}
    used = {
        name for each in table.values() for name in ([each.theirs] if isinstance(each.theirs, str) else each.theirs)
    }
    forgotten = sorted(set(theirs) - used - set(unused))
    if forgotten:
        raise ValueError(f"weights of theirs that the table of names does not use: {', '.join(forgotten)}")
    return {ours: each.of(theirs) for ours, each in table.items()}


def load_weights(model: nn.Module, theirs: Mapping[str, Array], names: Names, unused: Iterable[str] = ()) -> None:
    """Copies their weights into our model. Raises ValueError as `translate`, and for a parameter of ours that the table
    does not name or whose shape differs."""
    converted, own = translate(theirs, names, unused), dict(model.named_parameters())
    if own.keys() != converted.keys():
        raise ValueError(f"our parameters and the table of names differ in {sorted(own.keys() ^ converted.keys())}")
    with torch.no_grad():
        for name, parameter in own.items():
            value = torch.tensor(converted[name])
            if value.shape != parameter.shape:
                raise ValueError(f"{name}: theirs gives {tuple(value.shape)}, ours has {tuple(parameter.shape)}")
            parameter.copy_(value)


def arrays_of(model: nn.Module) -> dict[str, Array]:
    """The parameters of a PyTorch model as numpy arrays by their own names."""
    return {name: p.detach().cpu().numpy().copy() for name, p in model.named_parameters()}


def perturb(model: nn.Module, size: float = 1e-7, seed: int = 0) -> nn.Module:
    """Multiplies every weight by 1 + size · normal, in place, and returns the model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + size * torch.randn(p.shape, generator=generator).to(p.dtype))
    return model


# -- peers ---------------------------------------------------------------------------------------------------------


class TorchPeer:
    """A PyTorch model with the optimizer, schedule, clipping and loss of its source.

    Args:
        model: in training mode.
        loss: loss(model, batch) -> scalar tensor.
        optimizer: over the parameters of model.
        group: the name of the group in which a parameter's gradient is counted, by the parameter's own name.
        scheduler: stepped after every step.
        clip: largest norm of all gradients together; None does not clip.
        names: table from our names to its own; None for a model of ours.
        unused: as in `translate`.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Any], Tensor],
        optimizer: Optimizer,
        group: Callable[[str], str],
        scheduler: LRScheduler | None = None,
        clip: float | None = None,
        names: Names | None = None,
        unused: Iterable[str] = (),
    ) -> None:
        self.model, self.loss, self.optimizer, self.scheduler = model, loss, optimizer, scheduler
        self.clip, self.names, self.unused = clip, names, tuple(unused)
        self.groups: dict[str, list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            self.groups.setdefault(group(name), []).append(parameter)

    def step(self, batch: Any) -> tuple[float, Norms]:
        self.optimizer.zero_grad()
        loss = self.loss(self.model, batch)
        loss.backward()
        gradients = {name: [p.grad for p in own if p.grad is not None] for name, own in self.groups.items()}
        norms = {name: float(nn.utils.get_total_norm(own)) for name, own in gradients.items()}
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        return loss.item(), norms

    def weights(self) -> dict[str, Array]:
        own = arrays_of(self.model)
        return own if self.names is None else translate(own, self.names, self.unused)


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """The loss of our classifiers for a `Batch` (inputs, lengths, labels)."""
    inputs, lengths, labels = batch
    return F.cross_entropy(model(inputs, lengths), labels)


def our_peer(
    network: nn.Module,
    settings: OptimizerSettings,
    total_steps: int,
    group: Callable[[str], str],
    loss: Callable[[nn.Module, Any], Tensor] = cross_entropy,
    clip: float | None = None,
) -> TorchPeer:
    """A network of this package, trained as its tasks train it. total_steps: the length of the schedule."""
    made = optimizer_and_schedule(network, settings, total_steps)
    schedule = made["lr_scheduler"]["scheduler"]
    return TorchPeer(network.train(), loss, made["optimizer"], group, schedule, clip)


# -- comparing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """losses: (steps,) of theirs, ours, and the control where there is one; norms: by group; weights: distances."""

    losses: dict[str, Array]
    norms: dict[str, dict[str, Array]]
    weights: dict[str, float]

    def difference(self, other: str = "ours") -> Array:
        """Relative difference of the losses (steps,) to theirs; of the control to ours."""
        base = self.losses["ours" if other == "control" else "theirs"]
        return np.abs(base - self.losses[other]) / np.abs(base)


def compare(
    theirs: Peer, ours: Peer, batches: Sequence[Any], out: Path, title: str,
    steps: int = STEPS, control: Peer | None = None,
) -> Comparison:  # fmt: skip
    """Trains both for `steps` on batches, which are repeated in order where they are fewer; writes OUT.csv, OUT.png."""
    peers: dict[str, Peer] = {"theirs": theirs, "ours": ours} | ({"control": control} if control else {})
    losses: dict[str, list[float]] = {name: [] for name in peers}
    norms: dict[str, list[Norms]] = {name: [] for name in peers}
    for batch in islice(cycle(batches), steps):
        for name, peer in peers.items():
            loss, gradients = peer.step(batch)
            losses[name].append(loss)
            norms[name].append(gradients)
    groups = {name: {key: np.array([each[key] for each in rows]) for key in rows[0]} for name, rows in norms.items()}
    left, right = theirs.weights(), ours.weights()
    if left.keys() != right.keys():
        raise ValueError(f"weights that only one of both has: {sorted(left.keys() ^ right.keys())}")
    distances = {name: relative_distance(left[name], right[name]) for name in right}
    found = Comparison({name: np.array(each) for name, each in losses.items()}, groups, distances)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_csv(found, out.with_name(f"{out.name}.csv"))
    picture(found, title).savefig(out.with_name(f"{out.name}.png"), dpi=80)
    return found


def relative_distance(theirs: Array, ours: Array) -> float:
    """||theirs - ours|| / ||theirs||, in double; 0 where both are 0."""
    gap, size = (float(np.linalg.norm(x.astype(np.float64))) for x in (theirs - ours, theirs))
    return 0.0 if gap == 0 else gap / size if size else float("inf")


def write_csv(found: Comparison, file: Path) -> None:
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        peers = list(found.losses)
        heads = [f"gradient {group} {name}" for name in peers for group in found.norms[name]]
        differences = {"difference": found.difference()}
        if "control" in peers:
            differences["difference control"] = found.difference("control")
        writer.writerow(["step", *(f"loss {name}" for name in peers), *differences, *heads])
        columns = [*found.losses.values(), *differences.values()]
        columns += [values for name in peers for values in found.norms[name].values()]
        for step, row in enumerate(zip(*columns, strict=True), 1):
            writer.writerow([step, *(f"{value:.7g}" for value in row)])
        for name, distance in found.weights.items():
            writer.writerow(["# weights", name, f"{distance:.3g}"])


def picture(found: Comparison, title: str) -> Figure:
    """Losses on top of each other, their relative difference, and the norm of the gradients of each group."""
    figure = Figure(figsize=(13, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    steps = np.arange(1, len(found.losses["theirs"]) + 1)
    left.plot(steps, found.losses["theirs"], color="#d1495b", lw=2, label="public code")
    left.plot(steps, found.losses["ours"], color="#0b5fa5", lw=0.8, label="lra_ssm")
    left.set_title("training loss", loc="left", fontsize=10)
    middle.semilogy(steps, np.maximum(found.difference(), 1e-9), color="#0b5fa5", lw=0.8, label="public code, lra_ssm")
    if "control" in found.losses:
        values = np.maximum(found.difference("control"), 1e-9)
        middle.semilogy(steps, values, color="#8a8a8a", lw=0.6, label="lra_ssm twice, weights rounded otherwise")
    middle.axhline(1e-3, color="#d1495b", lw=0.8, ls="--")
    middle.set_title("relative difference of the losses", loc="left", fontsize=10)
    for number, group in enumerate(found.norms["ours"]):
        color = f"C{number}"
        if group in found.norms["theirs"]:
            right.semilogy(steps, found.norms["theirs"][group], color=color, lw=2, alpha=0.4)
        right.semilogy(steps, found.norms["ours"][group], color=color, lw=0.8, label=group)
    right.set_title("gradient norms (wide and pale: public code)", loc="left", fontsize=10)
    for axes in (left, middle, right):
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def write_summary(case: str, found: Comparison, file: Path = RESULTS / "summary.csv", **about: Any) -> None:
    """One line of a comparison by the name of its case, in place of an earlier one.

    about: source, commit, sizes and whatever else is to be said, the same keys for every case of one source.
    """
    difference = found.difference()
    worst = max(found.weights, key=lambda name: found.weights[name])
    row = {
        "case": case, **about, "steps": len(difference), "first": f"{difference[0]:.1e}",
        "largest": f"{difference.max():.1e}", "median": f"{np.median(difference):.1e}",
        "control": f"{found.difference('control').max():.1e}" if "control" in found.losses else "",
        "worst weight": worst, "distance": f"{found.weights[worst]:.1e}",
    }  # fmt: skip
    rows: dict[str, dict[str, str]] = {}
    with FileLock(Path(tempfile.gettempdir(), "lra_ssm-parity-summary.lock")):  # scripts may run at the same time
        if file.exists():
            with file.open(newline="") as stream:
                rows = {each["case"]: each for each in csv.DictReader(stream)}
        rows[case] = {key: str(value) for key, value in row.items()}
        keys = list(dict.fromkeys(key for each in rows.values() for key in each))
        with file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, keys, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows.values())
