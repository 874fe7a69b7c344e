"""Students of deep linear systems, many of them trained at once, for the scripts deep_fig3a, 3b, 3c, 5 and 6.

A student is a channel of `DeepLinearSSM`. Adam is elementwise and the losses are added, so all channels of a layer
train independently. A linear student maps noise u to h * u, so its squared error on a batch of length T is
Δhᵀ G Δh, where Δh = h - h_teacher at lags 0 … T-1 and G (T, T) is the batch's Gram matrix. This loss and its gradient
equal those of running the layer on the batch.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission),
section 4: white noise N(0, 1), squared error, Adam. The paper does not give lengths, batches or the initial range of λ,
and it gives learning rates only for figures 3B and 4. Our choices: 64 batches of 16 sequences, used in turn; initial λ
are uniform in [0, 1).

Shapes: D students, K layers, N states per layer, T length, B sequences per batch, S batches.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.lines import Line2D
from torch import Tensor, nn

from helper import only
from lra_ssm.layers import DeepLinearSSM

BATCHES, BATCH_SIZE = 64, 16
FAILED = 0.01  # times the error of a student that always outputs 0; a student above it has failed
COLORS = [f"C{k}" for k in range(10)] + ["navy", "gold"]  # for up to twelve layers


def started(
    K: int, N: int, count: int, start: str = "ones", scale: float = 1.0, relu: bool = False, trained: Any = "ABC"
) -> DeepLinearSSM:
    """Return `count` initial students: λ uniform in [0, 1), B and C N(0, scale²) or, for start="ones", all `scale`."""
    torch.manual_seed(0)
    layer = DeepLinearSSM(count, K, N, relu=relu, scale=scale, trained=trained)
    if start == "ones":
        nn.init.constant_(layer.B, scale)
        nn.init.constant_(layer.C, scale)
    return layer


def side_by_side(layers: Sequence[DeepLinearSSM]) -> DeepLinearSSM:
    """Return one layer that contains the students of all the layers, so that they train in the same steps."""
    first = layers[0]
    joined = DeepLinearSSM(sum(layer.B.shape[1] for layer in layers), *first.B.shape[::2])
    for name, weight in joined.named_parameters():
        weight.data = torch.cat([layer.get_parameter(name) for layer in layers], 1).detach()
    return joined


def response(layer: DeepLinearSSM, T: int) -> Tensor:
    """Return the impulse response of each student, (D, T). The FFT is long enough that no layer wraps around."""
    powers = layer.eigenvalue_weight[..., None] ** torch.arange(T)
    own = ((layer.B * layer.C)[..., None] * powers).sum(2)  # (K, D, T)
    if len(own) == 1:
        return own[0]
    n = 1 << (len(own) * (T - 1)).bit_length()
    return torch.fft.irfft(torch.fft.rfft(own, n).prod(0), n)[:, :T]


def teacher_response(rates: npt.ArrayLike, T: int) -> Tensor:
    """Return h (D, T) of the teachers with these λ, (D, K, N) or (K, N), and B = C = 1."""
    values = torch.as_tensor(np.asarray(rates), dtype=torch.float64)
    return response(teacher_of(values), T).float()


def teacher_of(rates: Tensor, relu: bool = False) -> DeepLinearSSM:
    """Return the teachers with these λ, (D, K, N) or (K, N), and B = C = 1, as a layer in the dtype of λ."""
    rates = rates.reshape(-1, *rates.shape[-2:])
    layer = DeepLinearSSM(*rates.shape, relu=relu, trained="A").to(rates.dtype).requires_grad_(False)
    layer.eigenvalue_weight.copy_(rates.transpose(0, 1))
    return layer


def drawn_teachers(layers: int, states: int, largest: float, count: int) -> npt.NDArray[np.float64]:
    """Return λ (D, layers, states), uniform in [0, largest): one teacher per student, seeded by the student's index."""
    return np.stack([np.random.default_rng(seed).uniform(0, largest, (layers, states)) for seed in range(count)])


def grams(T: int) -> Tensor:
    """Return G (S, T, T) for all noise batches; hᵀ G h is the mean of (h * u)² over the batch and its positions."""
    generator, lags = torch.Generator().manual_seed(0), torch.arange(T)[:, None] - torch.arange(T)
    found = []
    for _ in range(BATCHES):
        u = torch.randn(BATCH_SIZE, T, generator=generator)
        moved = torch.where(lags >= 0, u[:, lags.clamp(min=0)], 0.0).flatten(0, 1)  # row (b, t), column i: u_{t-i}
        found.append(moved.T @ moved / len(moved))
    return torch.stack(found)


def relative_errors(difference: Tensor, teacher: Tensor) -> Tensor:
    """Return the expected squared error on noise, relative to that of always outputting 0.

    Args:
        difference: Δh, (D, T).
        teacher: h, (D, T) or (1, T).

    Returns:
        Relative errors, (D,).
    """
    T = teacher.shape[-1]
    weight = 1 - torch.arange(T) / T  # the share of positions at which each lag has an input
    return (weight * difference**2).sum(-1) / (weight * teacher**2).sum(-1)


def training(
    layer: DeepLinearSSM, teacher: Tensor, steps: int, lr: float | Tensor, points: int = 20
) -> Iterator[tuple[int, Tensor]]:
    """Train all students in place with Adam at a constant learning rate.

    Args:
        teacher: h, (D, T) or (1, T).

    Yields:
        At about `points` + 1 steps, the step and the relative errors (D,) before its update.
    """
    T = teacher.shape[-1]
    noise, every = grams(T), max(1, steps // points)
    adam = torch.optim.Adam([p for p in layer.parameters() if p.requires_grad], lr=lr, fused=True)
    for step in range(steps + 1):
        difference = response(layer, T) - teacher
        if step % every == 0 or step == steps:
            yield step, relative_errors(difference.detach(), teacher)
        if step < steps:
            adam.zero_grad()
            (difference @ noise[step % BATCHES] * difference).sum().backward()
            adam.step()


def short(number: Any) -> float:
    """Round to four significant digits, which keeps the results files small."""
    return float(f"{float(number):.4g}")


def states(step: int, layer: DeepLinearSSM, errors: Tensor, chosen: Iterable[int], kept: str = "λBC") -> list[dict]:
    """Return a row for each state of the chosen students: its parameters and the student's error."""
    K, _, N = layer.B.shape
    values = dict(zip("λBC", (layer.eigenvalue_weight, layer.B, layer.C), strict=True))
    return [
        {"student": student, "error": short(errors[student]), "step": step, "layer": k + 1, "state": n + 1}
        | {name: short(values[name][k, student, n]) for name in kept}
        for student in chosen
        for k in range(K)
        for n in range(N)
    ]


def to_the_end(layer: DeepLinearSSM, teacher: Tensor, steps: int, lr: float) -> Iterator[dict[str, Any]]:
    """Train the students; yield rows with the first student's λ over time, then a final row for each student.

    The final row has the error; "outside", the number of λ outside [-1, 1] or NaN at the end; "ever", the number of λ
    that were outside at any recorded step; and "moved", the root mean square change of the parameters.
    """
    first = [p.detach().clone() for p in layer.parameters()]
    ever = torch.zeros_like(first[0], dtype=torch.bool)
    for step, errors in training(layer, teacher, steps, lr):
        outside = ~(layer.eigenvalue_weight.detach().abs() <= 1)
        ever |= outside
        yield from ({"what": "path"} | row for row in states(step, layer, errors, [0], kept="λ"))
    moved = torch.stack([(p.detach() - old) ** 2 for p, old in zip(layer.parameters(), first, strict=True)])
    for student, error in enumerate(errors):
        own = moved[:, :, student].mean().sqrt(), outside[:, student].sum(), ever[:, student].sum()
        numbers = {"moved": short(own[0]), "outside": int(own[1]), "ever": int(own[2])}
        yield {"what": "end", "student": student, "error": short(error), **numbers}


def final_rows(rows: pd.DataFrame, **settings: Any) -> pd.DataFrame:
    """Return the final row of each student with a column "failed": the error is too large or a λ is outside [-1, 1]."""
    final = only(rows, what="end", **settings)
    return final.assign(failed=~(final["error"] < FAILED) | (final["outside"] > 0))


def median(values: "pd.Series[float]") -> float:
    """Return the median, or NaN if a value is NaN."""
    return float(np.median(values.to_numpy(float)))


def and_list(letters: str) -> str:
    """Return "A, B and C" for "ABC"."""
    return " and ".join(filter(None, (", ".join(letters[:-1]), letters[-1])))


def draw_path(axes: Axes, path: pd.DataFrame, value: str, teacher: npt.ArrayLike) -> None:
    """Plot λ, B or C of one student over the steps, one color per layer; bars on the right are the teacher's values."""
    for (k, _), state in path.groupby(["layer", "state"]):
        axes.plot(state["step"], state[value], color=COLORS[int(k) - 1], linewidth=1.2)
    end = path["step"].max()
    axes.hlines(teacher, end, 1.08 * end, color="black", linewidth=2)
    axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 3))


def draw_errors(axes: Axes, errors: "dict[str, pd.Series[float]]") -> None:
    """Plot the final error of each student, one column per entry of `errors`; a NaN appears at the top."""
    for x, values in enumerate(errors.values()):
        visible = values.fillna(np.inf).clip(1e-8, 1e2)
        axes.plot([x] * len(values), visible, "o", color="#222222", markersize=3, alpha=0.7)
    axes.axhline(FAILED, color="#999999", linewidth=0.6, linestyle=":")
    axes.set(yscale="log", ylabel="final error, relative to outputting 0")
    axes.set_xticks(range(len(errors)), list(errors), fontsize=7)


def draw_legend(figure: FigureBase, layers: int) -> None:
    """Add the legend of `draw_path` below all axes."""
    lines = [Line2D([], [], color=COLORS[k], label=f"layer {k + 1}") for k in range(layers)]
    lines.append(Line2D([], [], color="black", linewidth=2, label="teacher"))
    figure.legend(handles=lines, frameon=False, fontsize=8, ncols=7, loc="outside lower center")
