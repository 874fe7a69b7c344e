"""Trains two implementations of one model side by side, from the same weights on the same batches, and compares them.

A script describes a source in three steps and calls `run_case`:

    names = {                                        # every parameter of ours -> where it comes from in theirs
        "head.linear.weight": "decoder.weight",      # copied as it is
        "backbone.blocks.0.layer.A_imag": From("layers.0.A_imag", lambda x: -x),
        "backbone.embedding.weight": From(("table", "scale"), lambda table, scale: table * scale),
    }
    load_weights(our_model, their_weights, names)    # their_weights: {their name: numpy array}
    run_case("s4-v3", theirs, make_ours, batches, source="state-spaces/s4", commit="v3.0.0", sizes=…, about=…)

`theirs` is a peer, and `make_ours()` returns a new one. A peer is any object with

    step(batch) -> (loss, {group: gradient norm})    one training step: loss before it, gradients before clipping
    weights() -> {our name: numpy array}             the current weights under OUR names

so that a peer can be a JAX program. For PyTorch there is `TorchPeer`; `our_peer` makes one from a network of this
package and `OptimizerSettings`. The script assigns each parameter to a group of gradients by OUR name.

The third peer is the control: ours from weights that differ by rounding (`perturb`). Its difference shows how fast
rounding errors grow, which no two implementations escape.

`run_case` writes into its folder NAME.csv, a row for each step, and after the rows a comment "# weights,NAME,distance"
for each parameter (read it with `pandas.read_csv(..., comment="#")`); NAME.png; and one line in summary.csv, from which
docs/parity.md takes its tables.

Distances and differences are relative: |loss theirs - loss ours| / |loss theirs|, and ||theirs - ours|| / ||theirs||.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
import torch
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
    """Return their weights under our names.

    unused: names of theirs that have no counterpart, such as a constant or a buffer. Raises ValueError naming the
    weights of theirs that the table forgets, and KeyError for a name that they do not have.
    """
    table = {ours: From(each) if isinstance(each, str) else each for ours, each in names.items()}
    forgotten = sorted(set(theirs) - our_names(names).keys() - set(unused))
    if forgotten:
        raise ValueError(f"weights of theirs that the table of names does not use: {', '.join(forgotten)}")
    return {ours: each.of(theirs) for ours, each in table.items()}


def our_names(names: Names) -> dict[str, str]:
    """Return their names -> ours; where several of ours come from one weight, one of them."""
    sources = {ours: each.theirs if isinstance(each, From) else each for ours, each in names.items()}
    return {name: ours for ours, each in sources.items() for name in ([each] if isinstance(each, str) else each)}


def load_weights(model: nn.Module, theirs: Mapping[str, Array], names: Names, unused: Iterable[str] = ()) -> None:
    """Copies their weights into our model. Raises ValueError as `translate`, and for a parameter of ours that the table
    does not name or whose shape differs."""
    converted, parameters = translate(theirs, names, unused), dict(model.named_parameters())
    if parameters.keys() != converted.keys():
        differing = sorted(parameters.keys() ^ converted.keys())
        raise ValueError(f"our parameters and the table of names differ in {differing}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            value = torch.tensor(converted[name])
            if value.shape != parameter.shape:
                raise ValueError(f"{name}: theirs gives {tuple(value.shape)}, ours has {tuple(parameter.shape)}")
            parameter.copy_(value)


def arrays_of(model: nn.Module) -> dict[str, Array]:
    """Return the parameters of a PyTorch model as numpy arrays by name."""
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
        group: the name of the group in which a parameter's gradient is counted, by OUR name of the parameter (by the
            model's own name for a parameter that is not in `names`).
        scheduler: stepped after every step.
        clip: largest norm of all gradients together; None does not clip.
        names: table from our names to the model's; None for our own models.
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
        ours = our_names(names or {})
        for name, parameter in model.named_parameters():
            self.groups.setdefault(group(ours.get(name, name)), []).append(parameter)

    def step(self, batch: Any) -> tuple[float, Norms]:
        self.optimizer.zero_grad()
        loss = self.loss(self.model, batch)
        loss.backward()
        gradients = {name: [p.grad for p in group if p.grad is not None] for name, group in self.groups.items()}
        norms = {name: float(nn.utils.get_total_norm(group)) for name, group in gradients.items()}
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        return loss.item(), norms

    def weights(self) -> dict[str, Array]:
        arrays = arrays_of(self.model)
        return arrays if self.names is None else translate(arrays, self.names, self.unused)


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """Return the loss of our classifiers for a `Batch` (inputs, lengths, labels)."""
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
    """Return a peer that trains our network as our tasks do. total_steps: the length of the schedule."""
    made = optimizer_and_schedule(network, settings, total_steps)
    schedule = made["lr_scheduler"]["scheduler"]
    return TorchPeer(network.train(), loss, made["optimizer"], group, schedule, clip)


# -- comparing -----------------------------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """What `compare` measures.

    rows: a row for each step, with columns "loss PEER" (PEER is theirs, ours or control), "difference" (ours relative
        to theirs), "difference control" (the control relative to ours) and "gradient GROUP PEER".
    weights: distances of the final weights by our name.
    """

    rows: pd.DataFrame
    weights: dict[str, float]


def compare(
    theirs: Peer, ours: Peer, batches: Sequence[Any], steps: int = STEPS, control: Peer | None = None
) -> Comparison:
    """Trains all peers for `steps` on batches, which are repeated in order where they are fewer."""
    peers: dict[str, Peer] = {"theirs": theirs, "ours": ours} | ({"control": control} if control else {})
    measured: list[dict[str, float]] = [{} for _ in range(steps)]
    for batch, row in zip(cycle(batches), measured, strict=False):
        for name, peer in peers.items():
            row[f"loss {name}"], norms = peer.step(batch)
            row |= {f"gradient {group} {name}": norm for group, norm in norms.items()}
    rows = pd.DataFrame(measured, pd.RangeIndex(1, steps + 1, name="step"))
    for column, base, name in (("difference", "theirs", "ours"), ("difference control", "ours", "control")):
        if name in peers:
            rows[column] = (rows[f"loss {base}"] - rows[f"loss {name}"]).abs() / rows[f"loss {base}"].abs()
    left, right = theirs.weights(), ours.weights()
    if left.keys() != right.keys():
        raise ValueError(f"weights that only one of the two models has: {sorted(left.keys() ^ right.keys())}")
    kinds = ("loss", "difference", "gradient")
    columns = sorted(rows, key=lambda column: kinds.index(column.split()[0]))
    return Comparison(rows[columns], {name: relative_distance(left[name], right[name]) for name in right})


def run_case(
    case: str, theirs: Peer, make_ours: Callable[[], TorchPeer], batches: Sequence[Any],
    steps: int = STEPS, folder: Path = RESULTS, rounding: float = 1e-7, **about: str,
) -> Comparison:  # fmt: skip
    """Compares theirs with ours and the control, and writes the CSV, the picture and the line in summary.csv.

    make_ours: called twice before the training, for ours and for the control, whose weights are multiplied by
    1 + rounding · normal. about: as in `save`.
    """
    ours, control = make_ours(), make_ours()
    perturb(control.model, rounding)
    comparison = compare(theirs, ours, batches, steps, control)
    save(case, comparison, folder, **about)
    return comparison


def save(case: str, comparison: Comparison, folder: Path, **about: str) -> None:
    """Writes CSV, picture and the line in summary.csv, in place of an earlier one.

    about: source, commit, sizes, and what was compared (`about`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows, weights = comparison
    lines = [f"# weights,{name},{distance:.3g}\n" for name, distance in weights.items()]
    (folder / f"{case}.csv").write_text(rows.to_csv(float_format="%.7g", lineterminator="\n") + "".join(lines))
    title = f"{case}: {about['source']} {about['commit']}; {about['about']}; {about['sizes']}"
    picture(rows, title).savefig(folder / f"{case}.png", dpi=80)
    difference, worst = rows["difference"], max(weights, key=lambda name: weights[name])
    line = {
        "case": case, **about, "steps": len(rows), "first": f"{difference[1]:.1e}",
        "largest": f"{difference.max():.1e}", "median": f"{difference.median():.1e}",
        "control": f"{rows['difference control'].max():.1e}" if "difference control" in rows else "",
        "worst weight": worst, "distance": f"{weights[worst]:.1e}",
    }  # fmt: skip
    file = folder / "summary.csv"
    earlier = pd.read_csv(file, dtype=str, keep_default_na=False).to_dict("records") if file.exists() else []
    summary = pd.DataFrame([*({each["case"]: each for each in earlier} | {case: line}).values()])
    summary.to_csv(file, index=False, lineterminator="\n")
    print(f"{case}: first loss {line['first']}; largest difference {line['largest']}, control {line['control']}")


def relative_distance(theirs: Array, ours: Array) -> float:
    """||theirs - ours|| / ||theirs||, in double; 0 where both are 0."""
    gap, size = (float(np.linalg.norm(x.astype(np.float64))) for x in (theirs - ours, theirs))
    return 0.0 if gap == 0 else gap / size if size else float("inf")


SMOOTHED = 20  # steps in the mean of the gradients' norms, which would cover each other
PUBLIC, OURS, CONTROL = "#d1495b", "#0b5fa5", "#9a9a9a"


def picture(rows: pd.DataFrame, title: str) -> Figure:
    """Draw the losses, their relative difference, and the norm of the gradients of each group."""
    figure = Figure(figsize=(13, 4.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    left.plot(rows["loss theirs"], color=PUBLIC, lw=2, label="public code")
    left.plot(rows["loss ours"], color=OURS, lw=0.8, label="lra_ssm")
    left.set_title("training loss", loc="left", fontsize=10)
    labels = {"difference control": ("control: lra_ssm twice, weights rounded otherwise", CONTROL)}
    labels["difference"] = ("public code and lra_ssm", OURS)
    differences = rows.filter([*labels])
    lowest = differences[differences > 0].min(axis=None) / 2
    for name, (label, color) in labels.items():
        if name in rows:
            middle.semilogy(rows[name].clip(lower=lowest), ".", color=color, ms=3, label=label)
    middle.axhline(1e-3, color=PUBLIC, lw=0.8, ls="--", label="1e-3")
    middle.set_title("relative difference of the losses (0: lower edge)", loc="left", fontsize=10)
    means = rows.rolling(SMOOTHED, min_periods=1, center=True).mean()
    groups = rows.filter(regex="^gradient .* ours$").columns.str.removeprefix("gradient ").str.removesuffix(" ours")
    for number, group in enumerate(groups):
        right.semilogy(means[f"gradient {group} theirs"], color=f"C{number}", lw=4, alpha=0.35)
        right.semilogy(means[f"gradient {group} ours"], color=f"C{number}", lw=1, label=group)
    right.set_title(f"gradient norms, means of {SMOOTHED} steps (pale: public)", loc="left", fontsize=10)
    for axes in (left, middle, right):
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.14), ncols=3 - (axes is middle))
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


# -- accuracies ----------------------------------------------------------------------------------------------------


def train_and_test(
    peer: TorchPeer, train: Iterable[Any], test: Iterable[Any], logits: Callable[[nn.Module, Any], Tensor]
) -> dict[str, str]:
    """Trains on all batches (inputs, lengths, labels) of `train` and classifies those of `test`: columns of a row."""
    start = time.process_time()
    losses = [peer.step(batch)[0] for batch in train]
    seconds = time.process_time() - start
    peer.model.eval()
    with torch.no_grad():
        right = torch.cat([logits(peer.model, batch).argmax(-1) == batch[2] for batch in test])
    accuracy = float(right.double().mean())
    return {
        "steps": str(len(losses)), "test accuracy": f"{accuracy:.4f}",
        "standard error": f"{math.sqrt(accuracy * (1 - accuracy) / len(right)):.4f}",
        "loss of the last 100 steps": f"{sum(losses[-100:]) / len(losses[-100:]):.5f}", "CPU seconds": f"{seconds:.0f}",
    }  # fmt: skip


def forever(loader: Iterable[Any]) -> Iterator[Any]:
    """Batches of a loader, pass after pass."""
    while True:
        yield from loader


def run_missing(file: Path, keys: Iterable[Mapping[str, Any]], run: Callable[..., Mapping[str, str]]) -> None:
    """Appends a row {**key, **run(**key)} for each key that no row of the CSV has; an interrupted queue goes on."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for key in keys:
        done = pd.read_csv(file, dtype=str, keep_default_na=False).to_dict("records") if file.exists() else []
        if any(all(row[name] == str(value) for name, value in key.items()) for row in done):
            continue
        row = {**key, **run(**key)}
        pd.DataFrame([row]).to_csv(file, mode="a", header=not done, index=False, lineterminator="\n")
        print(row, flush=True)


def report(file: Path, by: Sequence[str]) -> None:
    """Prints the mean and the standard deviation over seeds of the test accuracies, and how many seeds there are."""
    print(pd.read_csv(file).groupby([*by], sort=False)["test accuracy"].agg(["mean", "std", "count"]).to_string())


# -- data ----------------------------------------------------------------------------------------------------------


def smaller(images: Tensor, size: int) -> Tensor:
    """Square images as sequences of pixels (B, L, 1), averaged over size × size pixels: (B, L / size², 1)."""
    side = math.isqrt(images.shape[1])
    return F.avg_pool2d(images.view(-1, 1, side, side), size).flatten(1).unsqueeze(-1)
