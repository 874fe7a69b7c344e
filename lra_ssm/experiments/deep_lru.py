"""Deep linear SSMs, figure 4 and table 1: LRU students of one, two and three layers with as many parameters.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission),
section 4.3 and appendix C.1: Adam at 10^-3, about 2,400 parameters, five seeds, teachers by ν. Not given, hence ours:
widths and states; what stands between the layers (nothing, and GELU after each); the teacher: ten states, |λ| uniform
in [ν, (1 + ν)/2], any phase, B and C of N(0, 1) scaled to outputs of variance 1; lengths of 128, 8 sequences a step,
1,000 steps; and the ν of table 1, here 0.9. Which rows of table 1 have one layer and which two does not stand in our
copy: 2,446 is two by the text, 196 is taken as two; that of 2,597 (0.00729) is left out.
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional as F

from lra_ssm.datamodules import TeacherStudent
from lra_ssm.datamodules.synthetic.filters import diagonal_response
from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement, Rows, claim
from lra_ssm.experiments.deep_students import short
from lra_ssm.experiments.train import batches, evaluate, train
from lra_ssm.layers import LRU
from lra_ssm.layers.spec import LayerSpec
from lra_ssm.models.plain import PlainNetwork
from lra_ssm.tasks.optim import OptimizerSettings

STATES, LENGTH = 10, 128  # of the teacher
ADAM = OptimizerSettings(lr=1e-3, recurrent_lr=1e-3, weight_decay=0.0, warmup_steps=0, min_lr_factor=1.0)
DEPTHS = ["1 layer", "2 layers", "3 layers"]
STUDENTS = {  # n_layers, d_model, d_state
    "1 layer": (1, 24, 23),
    "2 layers": (2, 16, 17),
    "3 layers": (3, 13, 14),
    "1 layer, B and C fixed": (1, 20, 40),
    "2 layers, B and C fixed": (2, 16, 16),
}
PRINTED = {  # table 1: final test loss, of 201, 196, 2,374 and 2,446 learned parameters
    "1 layer, B and C fixed": 0.01006,
    "2 layers, B and C fixed": 0.00722,
    "1 layer": 0.00709,
    "2 layers": 0.00034,
}
NUS, TABLE_NU = (0.5, 0.9, 0.99), 0.9
BETWEEN = {"none": "linear", "gelu": "with GELU"}
KINDS = [{"between": between, "name": name} for between, name in BETWEEN.items()]


def _teacher(nu: float, seed: int, tests: int) -> TeacherStudent:
    """A random one, whose outputs on white noise have variance 1 in the mean over positions."""
    draw = np.random.default_rng(seed)
    moduli, phases = draw.uniform(nu, (1 + nu) / 2, STATES), draw.uniform(0, 2 * np.pi, STATES)
    B, C = draw.standard_normal((2, STATES))
    h = diagonal_response([moduli * np.exp(1j * phases)], [B], [C], LENGTH)
    C /= np.sqrt(((1 - np.arange(LENGTH) / LENGTH) * h**2).sum())
    systems = {"eigenvalues": moduli, "phases": phases, "B": B, "C": C}
    layers: dict[str, Any] = {name: [value.tolist()] for name, value in systems.items()}
    return TeacherStudent(
        **layers, length=LENGTH, batch_size=8, num_train=8000, num_val=8, num_test=tests, generator_seed=seed
    )


def _student(name: str, between: Any, seed: int) -> nn.Module:
    """Linear in, LRU layers, linear out."""
    torch.manual_seed(seed)
    n_layers, d_model, d_state = STUDENTS[name]
    layer, plain = LayerSpec(LRU, d_state=d_state), {"nonlinearity": between, "bias": between != "none"}
    network = PlainNetwork(layer, num_outputs=1, d_input=1, d_model=d_model, n_layers=n_layers, pooling=None, **plain)
    for weight, values in network.named_parameters():
        if name.endswith("fixed") and weight.rpartition(".")[2] in ("B", "C"):
            values.requires_grad_(False)
    return network


def _by_student(rows: pd.DataFrame, between: str) -> pd.DataFrame:
    """By ν and the student's name: mean and deviation of the loss, and of its logarithm, over seeds."""
    part = rows.query("between == @between").assign(log=np.log10(rows["loss"]))
    found = part.groupby(["nu", "student"], sort=False).agg(
        loss=("loss", "mean"),
        std=("loss", "std"),
        log=("log", "mean"),
        spread=("log", "std"),
        parameters=("parameters", "first"),
    )
    return found.fillna(0.0).sort_index(level="nu", sort_remaining=False)


def _ratio(rows: pd.DataFrame, between: str, kind: str = "") -> tuple[float, str]:
    """Of the losses of one layer and two, and with both as text."""
    students = f"1 layer{kind}", f"2 layers{kind}"
    one, two = (_by_student(rows, between).loc[(TABLE_NU, name)] for name in students)
    ratio, printed = one["loss"] / two["loss"], PRINTED[students[0]] / PRINTED[students[1]]
    said = f"{one['loss']:.3g} ± {one['std']:.2g} and {two['loss']:.3g} ± {two['std']:.2g}, ratio {ratio:.2g}"
    return ratio, f"{said}; printed {printed:.2g}"


class DepthForLRU(Experiment):
    """Figure 4 and table 1."""

    @claim(
        "mean log loss of each lower by over 2 standard errors at every ν; not: somewhere higher by so much",
        "depth, {name}",
        KINDS,
    )
    def depth(self, rows: pd.DataFrame, between: str, name: str) -> Judgement:
        """two and three layers of LRU end at lower losses than one, at every ν ({name})"""
        found = _by_student(rows, between)
        one, gains = found.xs("1 layer", level="student"), []
        for other in (found.xs(name, level="student") for name in DEPTHS[1:]):
            error = np.hypot(one["spread"], other["spread"]) / 5**0.5
            gains.append(((one["log"] - other["log"]) / error.clip(lower=1e-9)).min())
        losses = found["loss"].unstack()[DEPTHS]
        said = "; ".join(f"ν = {nu:g}: " + ", ".join(f"{loss:.2g}" for loss in line) for nu, line in losses.iterrows())
        return Judgement.beyond(min(gains), 2, f"{said} with 1, 2, 3 layers")

    @claim("mean loss at the largest ν above that at the smallest, for each depth", "ν, {name}", KINDS)
    def worse(self, rows: pd.DataFrame, between: str, name: str) -> Judgement:
        """all get worse as ν goes to 1 ({name})"""
        losses = _by_student(rows, between)["loss"].unstack()[DEPTHS]
        ratios = losses.iloc[-1] / losses.iloc[0]
        said = ", ".join(f"{ratio:.2g}" for ratio in ratios)
        said += f" times, with 1, 2, 3 layers, from ν = {losses.index[0]:g} to {losses.index[-1]:g}"
        return Judgement.of(ratios.min() > 1, said)

    @claim("ratio of mean losses, ν = 0.9, of at least 10", "table 1, {name}", KINDS)
    def table(self, rows: pd.DataFrame, between: str, name: str) -> Judgement:
        """two layers end at a small part of the loss of one layer ({name})"""
        ratio, said = _ratio(rows, between)
        return Judgement.of(ratio >= 10, said)

    @claim("ratio of mean losses, ν = 0.9, above 1", "table 1, fixed, {name}", KINDS)
    def table_fixed(self, rows: pd.DataFrame, between: str, name: str) -> Judgement:
        """with B and C fixed, two layers end below one, at about 200 learned parameters ({name})"""
        ratio, said = _ratio(rows, between, ", B and C fixed")
        return Judgement.of(ratio >= 1, said)

    claims = [one for of_kind in zip(depth, worse, table, table_fixed, strict=True) for one in of_kind]

    def cells(self, form: Form) -> list[Cell]:
        quick = form == "quick"
        seeds = 1 if quick else 5
        sizes = {"steps": 1, "tests": 8} if quick else {"steps": 1000, "tests": 128}
        at = [(name, nu) for name in DEPTHS for nu in ((TABLE_NU,) if quick else NUS)]
        at += [(name, TABLE_NU) for name in STUDENTS if name not in DEPTHS]
        return [
            {"between": between, "student": name, "nu": nu, "seed": seed, **sizes}
            for between in BETWEEN
            for name, nu in at
            for seed in range(seeds)
        ]

    def run(self, cell: Cell) -> Rows:
        data = _teacher(cell["nu"], cell["seed"], cell["tests"])
        network = _student(cell["student"], cell["between"], cell["seed"])
        train(network, batches(data, seed=cell["seed"]), cell["steps"], ADAM)
        learned = sum(p.numel() for p in network.parameters() if p.requires_grad)
        return [{"parameters": learned, "loss": short(evaluate(network, data, F.mse_loss))}]

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(10, 3.6)
        *by_nu, right = figure.subplots(1, 3)
        for at, (axes, (between, name)) in enumerate(zip(by_nu, BETWEEN.items(), strict=True)):
            found = _by_student(rows, between)
            for depth in DEPTHS:
                losses = found.xs(depth, level="student")
                positions = range(len(losses))
                axes.errorbar(positions, losses["loss"], losses["std"], fmt="o-", markersize=4, capsize=2, label=depth)
            axes.set_xticks(positions, [f"{nu:g}" for nu in losses.index])
            axes.set(yscale="log", xlabel="timescale ν of the teacher", ylabel="test loss (variance of outputs: 1)")
            axes.set_title(f"{name} layers" if between == "none" else "GELU after each layer", fontsize=9)
            table = found.loc[TABLE_NU].loc[list(PRINTED)]
            where, label = np.arange(len(PRINTED)) + 0.2 * at - 0.2, f"{name}, ν = {TABLE_NU:g}"
            right.barh(where, table["loss"], 0.2, xerr=table["std"], label=label)
        by_nu[0].legend(fontsize=8, title="mean ± deviation of seeds", title_fontsize=7)
        right.barh(where + 0.2, list(PRINTED.values()), 0.2, color="#999999", label="printed (its own teacher)")
        linear = _by_student(rows, "none").loc[TABLE_NU]
        names = [f"{name}\n({linear.loc[name, 'parameters']:g})" for name in PRINTED]
        right.set_yticks(range(len(PRINTED)), names, fontsize=7)
        right.set(xscale="log", xlabel="test loss")
        right.set_title("table 1 (learned parameters)", fontsize=9)
        right.legend(fontsize=6)
