"""Deep linear SSMs, figure 2: an impulse and white noise through ten layers.

Source: see students.py; section 3.2. Tests of lra_ssm.analysis check the group delay and the frequency response
(proposition 2, eq. 4). Our choices, which the paper does not give: figure 2B normalizes inputs by B = sqrt(1 - λ²),
LRU's γ; the length of the noise.
"""

from itertools import accumulate

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from helper import Cell, Claim, Claims, Rows, Size, grid, main, only
from lra_ssm.analysis import group_delay
from lra_ssm.layers import DeepLinearSSM
from students import short

LAYERS, EIGENVALUE = 10, 0.9


def cells(size: Size) -> list[Cell]:
    return grid(normalize=[False, True], length=[3_000 if size == "quick" else 300_000])


def run(normalize: bool, length: int) -> Rows:
    """Yield the measurements after each layer, and the layer's outputs at some positions."""
    layer = DeepLinearSSM(1, n_layers=1, normalize=normalize, trained="A").double().requires_grad_(False)
    layer.eigenvalue_weight.fill_(EIGENVALUE)

    def through(u: Tensor) -> list[Tensor]:
        return [*accumulate(range(LAYERS), lambda y, _: layer(y.unsqueeze(-1)).squeeze(-1), initial=u)]

    noise = torch.randn(8, length, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    responses, outputs = through(torch.eye(1, 2000, dtype=torch.float64)), through(noise)
    n = 2 * length
    spectrum = torch.fft.rfft(outputs[0][:, 1000:], n)
    for k in range(1, LAYERS + 1):
        h, y = responses[k][0], outputs[k][:, 1000:]  # without the start, which is not stationary
        across = torch.fft.irfft(spectrum.conj() * torch.fft.rfft(y, n), n)[:, :300].mean(0)
        lag_1 = float((y[:, 1:] * y[:, :-1]).mean() / y.square().mean())
        peak = {"peak": float(h.max()), "peak_at": int(h.argmax()), "half_width": int((h >= h.max() / 2).sum())}
        yield {"layer": k, **peak, "lag_1": lag_1, "noise_delay": int(across.argmax())}
        for t in range(0, 300, 5):
            scaled = float(outputs[k][0, t] / y.std())
            yield {"layer": k, "t": t, "impulse": short(h[t]), "noise": short(scaled)}


def claims(rows: pd.DataFrame) -> Claims:
    measured = rows[rows["t"].isna()]
    layers = {normalize: only(measured, normalize=normalize).sort_values("layer") for normalize in (False, True)}

    def all_rise(normalize: bool, *columns: str) -> bool:
        return bool((np.diff(layers[normalize][[*columns]].to_numpy(), axis=0) > 0).all())

    for normalize, columns, statement in (
        (False, ("peak", "peak_at", "half_width"), "each layer amplifies an impulse, delays it and makes it longer"),
        (True, ("peak_at", "half_width"), "with normalized inputs each layer still delays the peak"),
    ):
        last = layers[normalize].iloc[-1]
        yield Claim(
            statement,
            f"the peak's {'' if normalize else 'height, '}position and width at half height rise with every layer",
            all_rise(normalize, *columns),
            {"after ten layers, height:": last["peak"], "position:": last["peak_at"], "width:": last["half_width"]},
        )
    distance = (layers[False]["noise_delay"] - layers[False]["peak_at"]).abs().max(skipna=False)
    yield Claim(
        "each layer delays white noise and smooths it",
        "R(1)/R(0) of the outputs rises with every layer, and the correlation of input and output peaks within 10"
        " positions of the impulse response's peak",
        all_rise(False, "lag_1") and distance <= 10,
        {"largest R(1)/R(0):": layers[False]["lag_1"].max(skipna=False), "largest distance of the peaks:": distance},
    )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(10, 3.3)
    left, middle, right = figure.subplots(1, 3)
    for axes, normalize, value in ((left, False, "impulse"), (middle, True, "impulse"), (right, False, "noise")):
        for k, group in only(rows, normalize=normalize).dropna(subset="t").groupby("layer"):
            outputs = group[value] / group[value].max() if normalize else group[value]
            axes.plot(group["t"], outputs, color=f"{0.85 - 0.08 * k:.2f}", linewidth=1.1, label=f"layer {k}")
        axes.set(xlabel="position t")
    left.set(title="impulse, λ = 0.9", yscale="log", ylim=(1e-3, None), ylabel="output of the layer")
    middle.set(title="impulse, normalized inputs", ylabel="output / its peak")
    right.set(title="white noise", ylabel="output / its standard deviation")
    middle.legend(fontsize=6)
    for axes in (left, middle):
        axes.axvline(group_delay([EIGENVALUE] * LAYERS), color="#888888", linestyle=":")
        position = {"xy": (94, 0.02), "xycoords": ("data", "axes fraction")}
        axes.annotate("group delay of\n10 layers: 90", **position, fontsize=7, color="#555555")


if __name__ == "__main__":
    main()
