"""Students of the papers' deep linear systems: many trained at once, through their impulse responses.

A student is a channel of `DeepLinearSSM`; Adam is elementwise and the losses are added, so the channels train as if
each were alone. What a student makes of noise u is h * u, hence the squared error on a batch of noise of length T is
Δhᵀ G Δh with Δh = h - h_teacher at lags 0 … T-1 and G (T, T) of that batch alone, and so are all gradients: exactly
those of running the layer on the batch. Gradients and Adam are by hand, in numpy: there are few numbers, and a step
takes a fifth of torch's time. The tests hold both to the layer, to autograd and to torch's Adam.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission),
section 4: white noise N(0, 1), squared error, Adam. Lengths, batches, the range of the first λ and, but for figures 3B
and 4, rates are not given there: 64 batches of 16 sequences that come again and again, λ uniform in [0, 1).

Shapes: D students, K layers, N states of each, T length, B sequences of a batch, S batches.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.lines import Line2D
from torch import nn

from lra_ssm.datamodules.synthetic.filters import diagonal_response
from lra_ssm.layers import DeepLinearSSM

BATCHES, BATCH_SIZE = 64, 16
BETAS, EPSILON = (0.9, 0.999), 1e-8  # Adam's usual ones
Array = npt.NDArray[Any]
COLORS = [f"C{k}" for k in range(10)] + ["navy", "gold"]  # of twelve layers


class Students(NamedTuple):
    """The parameters of all students, each (K, D, N)."""

    rates: Array  # λ
    B: Array
    C: Array

    @classmethod
    def of(cls, layer: DeepLinearSSM) -> "Students":
        """Those of a plain layer; copies."""
        return cls(*(x.detach().numpy().copy() for x in (layer.eigenvalue_weight, layer.B, layer.C)))

    @classmethod
    def start(cls, *sizes: Any) -> "Students":
        """Those of `started`."""
        return cls.of(started(*sizes))


def started(
    K: int, N: int, count: int, start: str = "ones", scale: float = 1.0, relu: bool = False, trained: Any = "ABC"
) -> DeepLinearSSM:
    """By seed 0, λ uniform in [0, 1); B and C of N(0, scale²), or `scale` itself where `start` is "ones"."""
    torch.manual_seed(0)
    layer = DeepLinearSSM(count, K, N, relu=relu, scale=scale, trained=trained)
    if start == "ones":
        nn.init.constant_(layer.B, scale)
        nn.init.constant_(layer.C, scale)
    return layer


class Responses(NamedTuple):
    """Impulse responses, and what their gradients need."""

    h: Array  # of each student, (D, T)
    powers: Array  # λ^t (K, D, N, T)
    spectra: Array  # of each layer (K, D, n/2 + 1); empty of a single layer
    n: int  # of the transforms


def responses(students: Students, length: int) -> Responses:
    """h at lags 0 … T-1. The transforms have room for all layers' responses: nothing wraps around, for any λ."""
    powers = np.repeat(students.rates[..., None], length, -1)
    powers[..., 0] = 1
    np.multiply.accumulate(powers, axis=-1, out=powers)
    own = ((students.B * students.C)[..., None, :] @ powers)[..., 0, :]  # (K, D, T)
    n = _room(len(own) * (length - 1) + 1)
    if len(own) == 1:
        return Responses(own[0], powers, own[:0], n)
    spectra = np.fft.rfft(own, n)
    return Responses(np.fft.irfft(spectra.prod(0), n)[:, :length], powers, spectra, n)


def gradients(students: Students, found: Responses, by_h: Array) -> Students:
    """Of a loss by every parameter, from that by h (D, T).

    That by layer k's own response is the correlation of `by_h` with the response of all other layers.
    """
    back, T = by_h[None], by_h.shape[-1]
    if len(found.spectra):
        others = np.ones_like(found.spectra)
        others[1:] = np.multiply.accumulate(found.spectra[:-1], axis=0)
        others[:-1] *= np.multiply.accumulate(found.spectra[:0:-1], axis=0)[::-1]
        back = np.fft.irfft(np.fft.rfft(back, found.n) * others.conj(), found.n)[..., :T]
    by_weight = (found.powers @ back[..., None])[..., 0]  # by C B
    lagged = back[..., 1:] * np.arange(1, T, dtype=back.dtype)  # d λ^t = t λ^(t-1)
    by_rate = students.B * students.C * (found.powers[..., :-1] @ lagged[..., None])[..., 0]
    return Students(by_rate, by_weight * students.C, by_weight * students.B)


def _room(length: int) -> int:
    """A length that transforms fast, at least this: 2^i or 3 · 2^i."""
    power = 1 << (length - 1).bit_length()
    return 3 * power // 4 if 3 * power // 4 >= length else power


def teacher_response(eigenvalues: Sequence[Sequence[float]], length: int) -> Array:
    """h at lags 0 … T-1 of a teacher with B = C = 1, from the λ of each layer: (T,) float32."""
    ones = [np.ones(len(layer)) for layer in eigenvalues]
    return diagonal_response(eigenvalues, ones, ones, length).astype(np.float32)


def noise(length: int) -> Array:
    """All batches (S, B, T), float32, which all students share."""
    return np.random.default_rng(0).standard_normal((BATCHES, BATCH_SIZE, length), np.float32)


def noise_grams(u: Array) -> Array:
    """G with mean((h * u)²) = hᵀ G h over each batch of noise and its positions: u (S, B, T) -> (S, T, T).

    G_ij = Σ_t u_{t-i} u_{t-j} / BT; the next entry on its diagonal lacks the last of these products.
    """
    B, T = u.shape[1:]
    backwards = u[..., ::-1]
    last = backwards.swapaxes(1, 2) @ backwards  # (S, T, T): u_{T-1-i} u_{T-1-j}, added over sequences
    grams = np.empty_like(last)
    for lag in range(T):
        grams[:, 0, lag] = grams[:, lag, 0] = np.trace(last, lag, 1, 2)
    for i in range(T - 1):
        grams[:, i + 1, 1:] = grams[:, i, :-1] - last[:, i, :-1]
    return grams / np.asarray(B * T, u.dtype)


def relative_errors(difference: Array, teacher: Array) -> Array:
    """Expected squared error on noise over that of the output 0: Δh and h_teacher (D, T) -> (D,)."""
    T = teacher.shape[-1]
    weight = 1 - np.arange(T) / T  # how often each lag is met
    return (weight * difference**2).sum(-1) / (weight * teacher**2).sum(-1)


def training(
    students: Students, teacher: Array, trained: str, steps: int, lr: float, points: int = 30
) -> Iterator[tuple[int, Array]]:
    """`steps` steps of Adam at a constant rate, all students at once and in place.

    Args:
        teacher: h of every student's (D, T), or of one for all (T,).
        trained: which of A, B and C.

    Yields:
        At `points` + 1 steps: the step, and the relative errors (D,) before it.
    """
    T = teacher.shape[-1]
    grams = noise_grams(noise(T).astype(teacher.dtype))
    first, second = ([np.zeros_like(x) for x in students] for _ in BETAS)
    every = max(1, steps // points)
    with np.errstate(all="ignore"):  # a student that diverges has no numbers any more
        for step in range(steps + 1):
            found = responses(students, T)
            difference = found.h - teacher
            if step % every == 0 or step == steps:
                yield step, relative_errors(difference, teacher)
            if step == steps:
                return
            slopes = gradients(students, found, 2 * difference @ grams[step % BATCHES])
            rate = lr / (1 - BETAS[0] ** (step + 1))
            root = (1 - BETAS[1] ** (step + 1)) ** 0.5
            for name, x, slope, m, v in zip("ABC", students, slopes, first, second, strict=True):
                if name in trained:
                    m += (1 - BETAS[0]) * (slope - m)
                    v += (1 - BETAS[1]) * (slope * slope - v)
                    x -= rate * m / (np.sqrt(v) / root + EPSILON)


def short(number: Any) -> float:
    """To four digits, as it is kept."""
    return float(f"{float(number):.4g}")


def states(
    step: int, students: Students, errors: Array, chosen: Iterable[int], kept: str = "λBC"
) -> list[dict[str, Any]]:
    """A row for every state of the chosen students: its parameters, or some, and the student's error."""
    K, _, N = students.rates.shape
    return [
        {"student": student, "error": short(errors[student]), "step": step, "layer": k + 1, "state": n + 1}
        | {name: short(x[k, student, n]) for name, x in zip("λBC", students, strict=True) if name in kept}
        for student in chosen
        for k in range(K)
        for n in range(N)
    ]


def draw_path(axes: Axes, path: pd.DataFrame, value: str, teacher: npt.ArrayLike) -> None:
    """One student's λ, B or C over the steps, a colour for each layer; the teacher's as bars at the right."""
    for (k, _), state in path.groupby(["layer", "state"]):
        axes.plot(state["step"], state[value], color=COLORS[int(k) - 1], linewidth=1.2)
    draw_teacher(axes, path["step"].max(), teacher)


def draw_teacher(axes: Axes, end: float, teacher: npt.ArrayLike) -> None:
    """Its numbers as bars to the right of the last step."""
    axes.hlines(teacher, end, 1.08 * end, color="black", linewidth=2)
    axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 3))


def draw_students(figure: FigureBase, grid: Array, paths: dict[str, pd.DataFrame], teacher: npt.ArrayLike) -> None:
    """λ, B and C in the three rows of `grid`, a student in each column, from its title and path; and the legend."""
    names = {"λ": "eigenvalue λ", "B": "input weight B", "C": "output weight C"}
    for column, (title, path) in zip(grid.T, paths.items(), strict=True):
        for axes, value in zip(column, names, strict=True):
            draw_path(axes, path, value, teacher if value == "λ" else [1])
        column[0].set_title(title, fontsize=9)
        column[-1].set_xlabel("step of Adam")
    for axes, name in zip(grid[:, 0], names.values(), strict=True):
        axes.set_ylabel(name)
    name_layers(figure, max(int(path["layer"].max()) for path in paths.values()))


def name_layers(figure: FigureBase, layers: int) -> None:
    """The legend of `draw_path`, below all axes."""
    lines = [Line2D([], [], color=COLORS[k], label=f"layer {k + 1}") for k in range(layers)]
    lines.append(Line2D([], [], color="black", linewidth=2, label="teacher"))
    figure.legend(handles=lines, frameon=False, fontsize=8, ncols=7, loc="outside lower center")
