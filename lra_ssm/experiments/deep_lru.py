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
from lra_ssm.experiments.base import Cell, Claim, Experiment, Form, Judgement
from lra_ssm.experiments.train import batches, evaluate, train
from lra_ssm.layers import LRU
from lra_ssm.layers.spec import LayerSpec
from lra_ssm.models.plain import PlainNetwork
from lra_ssm.tasks.optim import OptimizerSettings

STATES, LENGTH = 10, 128  # of the teacher
ADAM = OptimizerSettings(lr=1e-3, recurrent_lr=1e-3, weight_decay=0.0, warmup_steps=0, min_lr_factor=1.0)
STUDENTS: dict[str, dict[str, Any]] = {
    "1 layer": {"n_layers": 1, "d_model": 24, "d_state": 23},
    "2 layers": {"n_layers": 2, "d_model": 16, "d_state": 17},
    "3 layers": {"n_layers": 3, "d_model": 13, "d_state": 14},
    "1 layer, B and C fixed": {"n_layers": 1, "d_model": 20, "d_state": 40},
    "2 layers, B and C fixed": {"n_layers": 2, "d_model": 16, "d_state": 16},
}
PRINTED = {  # table 1: learned parameters, final test loss
    "1 layer, B and C fixed": (201, 0.01006),
    "2 layers, B and C fixed": (196, 0.00722),
    "1 layer": (2374, 0.00709),
    "2 layers": (2446, 0.00034),
}
NUS, TABLE_NU = (0.5, 0.9, 0.99), 0.9
BETWEEN = ("none", "gelu")


def teacher(nu: float, seed: int, tests: int) -> TeacherStudent:
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


def student(name: str, between: Any, seed: int) -> nn.Module:
    """Linear in, LRU layers, linear out."""
    torch.manual_seed(seed)
    sizes = STUDENTS[name]
    network = PlainNetwork(
        LayerSpec(LRU, d_state=sizes["d_state"]),
        num_outputs=1,
        d_input=1,
        d_model=sizes["d_model"],
        n_layers=sizes["n_layers"],
        nonlinearity=between,
        bias=between != "none",
        pooling=None,
    )
    if name.endswith("fixed"):
        for layer in network.modules():
            if isinstance(layer, LRU):
                layer.B.requires_grad_(False)
                layer.C.requires_grad_(False)
    return network


def _by_student(rows: pd.DataFrame, between: str, nu: float) -> pd.DataFrame:
    """By the student's name: mean and deviation of the loss, and of its logarithm, over seeds."""
    part = rows[(rows["between"] == between) & (rows["nu"] == nu)]
    losses = part.assign(log=np.log10(part["loss"])).groupby("student", sort=False)
    found = losses.agg(loss=("loss", "mean"), std=("loss", "std"), log=("log", "mean"), spread=("log", "std"))
    return found.assign(parameters=losses["parameters"].first()).fillna(0.0)


def _against_one(between: str) -> Any:
    def judge(rows: pd.DataFrame) -> Judgement:
        gains, said = [], []
        for nu in sorted(rows["nu"].unique()):
            found = _by_student(rows, between, nu)
            for name in ("2 layers", "3 layers"):
                one, other = found.loc["1 layer"], found.loc[name]
                error = np.hypot(one["spread"], other["spread"]) / 5**0.5
                gains.append((one["log"] - other["log"]) / max(error, 1e-9))
            said.append(f"ν = {nu:g}: " + ", ".join(f"{found.loc[n, 'loss']:.2g}" for n in list(STUDENTS)[:3]))
        numbers = "; ".join(said) + " with 1, 2, 3 layers"
        if min(gains) > 2:
            return Judgement("holds", numbers)
        return Judgement("does not hold" if min(gains) < -2 else "undecided", numbers)

    return judge


def _worse(between: str) -> Any:
    def judge(rows: pd.DataFrame) -> Judgement:
        nus = sorted(rows["nu"].unique())
        first, last = (_by_student(rows, between, nu)["loss"] for nu in (nus[0], nus[-1]))
        ratios = [last[name] / first[name] for name in list(STUDENTS)[:3]]
        numbers = ", ".join(f"{ratio:.2g}" for ratio in ratios)
        return Judgement.of(
            min(ratios) > 1, f"{numbers} times, with 1, 2, 3 layers, from ν = {nus[0]:g} to {nus[-1]:g}"
        )

    return judge


def _table(between: str, better: str, worse: str, least: float) -> Any:
    def judge(rows: pd.DataFrame) -> Judgement:
        found = _by_student(rows, between, TABLE_NU)
        a, b = found.loc[worse], found.loc[better]
        numbers = (
            f"{a['loss']:.3g} ± {a['std']:.2g} and {b['loss']:.3g} ± {b['std']:.2g}, ratio {a['loss'] / b['loss']:.2g}"
        )
        printed = PRINTED[worse][1] / PRINTED[better][1]
        return Judgement.of(a["loss"] / b["loss"] >= least, f"{numbers}; printed {printed:.2g}")

    return judge


class DepthForLRU(Experiment):
    """Figure 4 and table 1."""

    claims = [
        claim
        for between, name in zip(BETWEEN, ("linear", "with GELU"), strict=True)
        for claim in (
            Claim(
                f"depth, {name}",
                f"two and three layers of LRU end at lower losses than one, at every ν ({name})",
                "mean log loss of each lower by over 2 standard errors at every ν; not: somewhere higher by so much",
                _against_one(between),
            ),
            Claim(
                f"ν, {name}",
                f"all get worse as ν goes to 1 ({name})",
                "mean loss at the largest ν above that at the smallest, for each depth",
                _worse(between),
            ),
            Claim(
                f"table 1, {name}",
                f"two layers end at a small part of the loss of one layer ({name})",
                "ratio of mean losses, ν = 0.9, of at least 10",
                _table(between, "2 layers", "1 layer", 10),
            ),
            Claim(
                f"table 1, fixed, {name}",
                f"with B and C fixed, two layers end below one, at about 200 learned parameters ({name})",
                "ratio of mean losses, ν = 0.9, above 1",
                _table(between, "2 layers, B and C fixed", "1 layer, B and C fixed", 1),
            ),
        )
    ]

    def cells(self, form: Form) -> list[Cell]:
        quick = form == "quick"
        seeds = 1 if quick else 5
        sizes = {"steps": 1, "tests": 8} if quick else {"steps": 1000, "tests": 128}
        at = [(name, nu) for name in list(STUDENTS)[:3] for nu in NUS]
        at += [(name, TABLE_NU) for name in list(STUDENTS)[3:]]
        return [
            {"between": between, "student": name, "nu": nu, "seed": seed, **sizes}
            for between in BETWEEN
            for name, nu in at
            for seed in range(seeds)
        ]

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        data = teacher(cell["nu"], cell["seed"], cell["tests"])
        network = student(cell["student"], cell["between"], cell["seed"])
        train(network, batches(data, seed=cell["seed"]), cell["steps"], ADAM)
        learned = sum(p.numel() for p in network.parameters() if p.requires_grad)
        return [{"parameters": learned, "loss": float(f"{evaluate(network, data, F.mse_loss):.4g}")}]

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(10, 3.6)
        left, middle, right = figure.subplots(1, 3)
        nus = sorted(rows["nu"].unique())
        for axes, between in ((left, "none"), (middle, "gelu")):
            for name in list(STUDENTS)[:3]:
                found = pd.DataFrame([_by_student(rows, between, nu).loc[name] for nu in nus])
                axes.errorbar(
                    range(len(nus)), found["loss"], found["std"], fmt="o-", markersize=4, capsize=2, label=name
                )
            axes.set_xticks(range(len(nus)), [f"{nu:g}" for nu in nus])
            axes.set(yscale="log", xlabel="timescale ν of the teacher", ylabel="test loss (variance of outputs: 1)")
            axes.set_title("linear layers" if between == "none" else "GELU after each layer", fontsize=9)
        left.legend(frameon=False, fontsize=8, title="mean ± deviation of seeds", title_fontsize=7)
        for shift, between in ((-0.2, "none"), (0.0, "gelu")):
            found = _by_student(rows, between, TABLE_NU).loc[list(PRINTED)]
            where = np.arange(len(PRINTED)) + shift
            label = "linear" if between == "none" else "with GELU"
            right.barh(where, found["loss"], 0.2, xerr=found["std"], label=f"{label}, ν = {TABLE_NU:g}")
        printed = [loss for _, loss in PRINTED.values()]
        right.barh(np.arange(len(PRINTED)) + 0.2, printed, 0.2, color="#999999", label="printed (its own teacher)")
        learned = _by_student(rows, "none", TABLE_NU)["parameters"]
        right.set_yticks(range(len(PRINTED)), [f"{name}\n({learned[name]:g})" for name in PRINTED], fontsize=7)
        right.set(xscale="log", xlabel="test loss", title="table 1 (learned parameters)")
        right.title.set_fontsize(9)
        right.legend(frameon=False, fontsize=6)
