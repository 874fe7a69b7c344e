"""Deep linear SSMs, propositions 1 and 2, figures 1 and 2: correlation, variance and delay through ten layers.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission),
sections 3.1 and 3.2. How inputs are normalized in figure 2B is not said: here B is sqrt(1 - λ²), LRU's γ; the figure
shows every layer's output over its deviation on noise. Other values of ρ in figure 1C and lengths of noise are ours.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lra_ssm.analysis import (
    autocorrelations,
    frequency_response,
    group_delay,
    group_delay_of,
    latent_variances,
    response_of,
)
from lra_ssm.experiments.base import Cell, Claim, Experiment, Form, Judgement
from lra_ssm.layers import DeepLinearSSM

LAYERS, EIGENVALUE = 10, 0.9
SHOWN = 100  # lags of figures 1A and 1B
SHOWN_LAYERS = [0, 1, 2, 3, 5, 7, 10]  # of figure 2
RHOS, GROWTH = (0.0, 0.5, 0.9, 0.99, 1.0), (0.95, 0.4)  # figure 1C


def layers_outputs(u: Tensor, eigenvalue: float, normalize: bool = False) -> Tensor:
    """u (batch, L) and the outputs of every layer, (K + 1, batch, L): ten equal layers with B = C = 1."""
    layer = DeepLinearSSM(1, n_layers=1, normalize=normalize, trained="A").double()
    found = [u]
    with torch.no_grad():
        layer.eigenvalue_weight.fill_(eigenvalue)
        for _ in range(LAYERS):
            found.append(layer(found[-1].unsqueeze(-1)).squeeze(-1))
    return torch.stack(found)


def _noise(length: int) -> Tensor:
    """White, in 8 sequences."""
    return torch.randn(8, length, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def _correlate(a: Tensor, b: Tensor, lags: int) -> Tensor:
    """The mean of a_t b_{t+Δ} at lags 0 … lags - 1: (…, L) twice -> (…, lags)."""
    L = a.shape[-1]
    n = 2 * L
    both = torch.fft.irfft(torch.fft.rfft(a, n).conj() * torch.fft.rfft(b, n), n)[..., :lags]
    return both / (L - torch.arange(lags))


def _simulated(rows: pd.DataFrame) -> Judgement:
    part = rows[rows["what"] == "noise"]
    off, variance = (part["R"] - part["simulated"]).abs().max(), (part["variance"] / part["power"] - 1).abs().max()
    return Judgement.of(
        off <= 0.05 and variance <= 0.05, f"correlations within {off:.3f}, variances within {100 * variance:.1f} %"
    )


def _more_correlated(rows: pd.DataFrame) -> Judgement:
    part = rows[(rows["what"] == "acf") & (rows["lag"] > 0)]
    steps = part.sort_values("layer").groupby(["rho", "lag"])["R"].diff().dropna()
    return Judgement.of(bool((steps > 0).all()), f"least rise {steps.min():.1e}, over {len(steps)} lags and layers")


def _same_rate(rows: pd.DataFrame) -> Judgement:
    part = rows[rows["what"] == "growth"].set_index(["lambda", "rho", "layer"])["power"]
    last = part.xs(LAYERS, level="layer") / part.xs(LAYERS - 1, level="layer")
    shares = [last[value, rho] / last[value, 1.0] for value in GROWTH for rho in RHOS]
    return Judgement.of(min(shares) >= 0.9 and max(shares) <= 1.1, f"from {min(shares):.3f} to {max(shares):.3f}")


def _longer_grows_more(rows: pd.DataFrame) -> Judgement:
    last = rows[(rows["what"] == "growth") & (rows["layer"] == LAYERS)].set_index(["lambda", "rho"])["power"]
    ratios = [last[GROWTH[0], rho] / last[GROWTH[1], rho] for rho in RHOS]
    return Judgement.of(min(ratios) > 1, f"{min(ratios):.1e} to {max(ratios):.1e} times after {LAYERS} layers")


class Correlation(Experiment):
    """Proposition 1 and figure 1."""

    claims = [
        Claim(
            "simulated",
            "proposition 1 gives every layer's autocorrelation",
            f"R of {LAYERS} layers of λ = 0.9 against simulated noise: R(Δ)/R(0) within 0.05, R(0) within 5 %",
            _simulated,
        ),
        Claim(
            "correlation",
            "outputs become more correlated with each layer, whether inputs are or not",
            f"R(Δ)/R(0) rises with every layer at each shown lag up to {SHOWN}, ρ = 0 and 0.95",
            _more_correlated,
        ),
        Claim(
            "rate",
            "after a few layers the states' variance grows at the same rate for all ρ",
            "R(0) of layer 10 over that of layer 9 is that of ρ = 1 within 10 %",
            _same_rate,
        ),
        Claim(
            "timescale",
            "larger λ let the variance explode faster",
            "R(0) of layer 10 is larger for λ = 0.95 than for 0.4, at every ρ",
            _longer_grows_more,
        ),
    ]

    def cells(self, form: Form) -> list[Cell]:
        acf: list[Cell] = [{"what": "acf", "lambda": EIGENVALUE, "rho": rho} for rho in (0.0, 0.95)]
        growth: list[Cell] = [{"what": "growth", "lambda": value, "rho": rho} for value in GROWTH for rho in RHOS]
        length = 5_000 if form == "quick" else 500_000
        return [*acf, *growth, {"what": "noise", "lambda": EIGENVALUE, "rho": 0.0, "length": length}]

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        value, rho = cell["lambda"], cell["rho"]
        layers = [value] * LAYERS
        if cell["what"] == "growth":
            return [{"layer": k, "power": power} for k, power in enumerate(latent_variances(layers, rho).tolist())]
        lags = range(0, SHOWN + 1, 5)
        exact = autocorrelations(layers, rho, SHOWN + 1)
        if cell["what"] == "acf":
            return [{"layer": k, "lag": lag, "R": float(R[lag] / R[0])} for k, R in enumerate(exact) for lag in lags]
        outputs = layers_outputs(_noise(cell["length"]), value)[..., 1000:]  # the start is no stationary noise
        rows = []
        for k, (R, y) in enumerate(zip(exact, outputs, strict=True)):
            found = _correlate(y, y, SHOWN + 1).mean(0)
            both = {"power": float(R[0]), "variance": float(found[0])}
            rows += [
                both | {"layer": k, "lag": lag, "R": float(R[lag] / R[0]), "simulated": float(found[lag] / found[0])}
                for lag in lags[::2]
            ]
        return rows

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(10, 3.3)
        left, middle, right = figure.subplots(1, 3)
        for axes, rho in ((left, 0.0), (middle, 0.95)):
            _by_layer(axes, rows[(rows["what"] == "acf") & (rows["rho"] == rho)], "lag", "R")
            axes.set(xlabel="lag Δ in positions", ylabel="R(Δ) / R(0)", title=f"λ = 0.9, inputs of ρ = {rho:g}")
        noise = rows[(rows["what"] == "noise") & rows["layer"].isin([1, 5, 10])]
        left.plot(noise["lag"], noise["simulated"], "k.", markersize=3, label="simulated noise (layers 1, 5, 10)")
        left.legend(frameon=False, fontsize=7)
        for (value, rho), part in rows[rows["what"] == "growth"].groupby(["lambda", "rho"]):
            style = "-" if value == GROWTH[0] else "--"
            label = f"λ = {value:g}, ρ = {rho:g}"
            right.plot(part["layer"], part["power"], style, color=f"C{RHOS.index(rho)}", label=label)
        right.set(yscale="log", xlabel="layer (0: the input)", ylabel="variance of the state R(0)")
        right.set_ylim(None, 1e36)
        right.legend(frameon=False, fontsize=6, ncol=2, loc="upper left")


def _by_layer(axes: Any, rows: pd.DataFrame, x: str, y: str, layers: Sequence[int] = range(LAYERS + 1)) -> None:
    """A line a layer, from light to dark, with the first and the last named."""
    import matplotlib

    shades = matplotlib.colormaps["viridis_r"]
    for k in layers:
        part = rows[rows["layer"] == k]
        label = {layers[0]: f"layer {k}" if k else "input", layers[-1]: f"layer {k}"}.get(k)
        axes.plot(part[x], part[y], color=shades(0.1 + 0.9 * k / LAYERS), linewidth=1.1, label=label)
    axes.legend(frameon=False, fontsize=7)


def _delay(rows: pd.DataFrame) -> Judgement:
    part = rows[rows["what"] == "layer"]
    off = (part["delay"] - part["formula"]).abs().max()
    last = part[part["layer"] == LAYERS].iloc[0]
    return Judgement.of(off <= 1e-6, f"{last['delay']:.6f} and {last['formula']:g} after ten layers; apart {off:.0e}")


def _product(rows: pd.DataFrame) -> Judgement:
    off = rows.loc[rows["what"] == "layer", "response_error"].max()
    return Judgement.of(off <= 1e-9, f"{off:.0e} of the largest")


def _peaks(normalized: bool) -> Any:
    def judge(rows: pd.DataFrame) -> Judgement:
        part = rows[(rows["what"] == "layer") & (rows["normalize"] == normalized)].sort_values("layer")
        later = part["peak_at"].diff().iloc[1:].min() > 0
        longer = part["half_width"].diff().iloc[1:].min() > 0
        higher = normalized or part["peak"].diff().iloc[1:].min() > 0
        first, last = part.iloc[0], part.iloc[-1]
        numbers = f"peak from {first['peak']:.3g} at {first['peak_at']:g} to {last['peak']:.3g} at {last['peak_at']:g}"
        return Judgement.of(later and longer and higher, f"{numbers} after layer {LAYERS}")

    return judge


def _variance(rows: pd.DataFrame) -> Judgement:
    part = rows[(rows["what"] == "layer") & rows["normalize"].astype(bool)].set_index("layer")["noise_variance"]
    numbers = ", ".join(f"{part[k]:.3g}" for k in (1, 2, 3, LAYERS))
    return Judgement.of(bool(((part - 1).abs() <= 0.1).all()), f"{numbers} after layers 1, 2, 3 and {LAYERS}")


def _smoothing(rows: pd.DataFrame) -> Judgement:
    part = rows[(rows["what"] == "layer") & ~rows["normalize"].astype(bool)].sort_values("layer")
    smoother = part["lag_1"].diff().iloc[1:].min() > 0
    apart = (part["noise_delay"] - part["peak_at"]).abs().max()
    return Judgement.of(
        smoother and apart <= 10, f"correlation at lag 1 up to {part['lag_1'].max():.5f}; peaks {apart:g} apart at most"
    )


class Delay(Experiment):
    """Proposition 2 and figure 2."""

    claims = [
        Claim(
            "group delay",
            "the group delay of layers in a row is Σ λ/(1 - λ)",
            "-dφ/dω at 0 of the impulse response after every layer within 1e-6 positions",
            _delay,
        ),
        Claim(
            "product",
            "a stack's frequency response is the product of its layers'",
            "eq. 4 against the transformed impulse response, at 64 frequencies: 1e-9 of the largest",
            _product,
        ),
        Claim(
            "plain",
            "layers amplify an impulse, and make what comes out later and longer",
            "peak, its position and the width at half of it rise with every layer",
            _peaks(False),
        ),
        Claim(
            "normalized",
            "with normalized inputs the peak still moves on with every layer",
            "its position and the width at half of it rise with every layer",
            _peaks(True),
        ),
        Claim(
            "variance",
            "B = sqrt(1 - λ²) keeps the variance of white noise through all layers",
            "of simulated noise it is within 10 % of 1 after every layer",
            _variance,
        ),
        Claim(
            "noise",
            "each layer delays white noise and smooths it",
            "R(1)/R(0) of the outputs rises with every layer, and the correlation of input and output peaks within 10 "
            "positions of the impulse response's peak",
            _smoothing,
        ),
    ]

    def cells(self, form: Form) -> list[Cell]:
        length = 3_000 if form == "quick" else 300_000
        shown: list[Cell] = [{"what": what, "normalize": False} for what in ("impulse", "noise")]
        return shown + [{"what": "layer", "normalize": normalize, "length": length} for normalize in (False, True)]

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        normalize = cell["normalize"]
        if cell["what"] == "layer":
            return _measured(cell["length"], normalize)
        u = torch.eye(1, 300, dtype=torch.float64) if cell["what"] == "impulse" else _noise(300)[:1]
        outputs = layers_outputs(u, EIGENVALUE, normalize)[:, 0]
        kept = [(k, t) for k in SHOWN_LAYERS for t in range(0, 300, 5)]
        return [{"layer": k, "t": t, "y": float(f"{float(outputs[k, t]):.4g}")} for k, t in kept]

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(10, 3.3)
        left, middle, right = figure.subplots(1, 3)
        plain = rows[~rows["normalize"].astype(bool)]
        impulse, noise = plain[plain["what"] == "impulse"], plain[plain["what"] == "noise"]
        deviation = latent_variances([EIGENVALUE] * LAYERS, 0.0).sqrt().numpy()
        scaled = impulse.assign(y=impulse["y"] / deviation[impulse["layer"].astype(int)])
        smoothed = noise.assign(y=noise["y"] / deviation[noise["layer"].astype(int)])
        _by_layer(left, impulse, "t", "y", SHOWN_LAYERS[1:])
        _by_layer(middle, scaled, "t", "y", SHOWN_LAYERS[1:])
        _by_layer(right, smoothed, "t", "y", [0, 1, 3, 10])
        left.set(title="impulse, λ = 0.9", yscale="log", ylim=(1e-3, None), ylabel="output of the layer")
        middle.set(title="normalized", ylabel="output over its deviation on noise")
        right.set(title="white noise, normalized", ylabel="output over its deviation")
        for axes in (left, middle, right):
            axes.set_xlabel("position t")
        for axes in (left, middle):
            axes.axvline(group_delay([EIGENVALUE] * LAYERS), color="#888888", linestyle=":")
            axes.annotate(
                "group delay of\n10 layers: 90",
                (94, 0.02),
                xycoords=("data", "axes fraction"),
                fontsize=7,
                color="#555555",
            )


def _measured(length: int, normalize: bool) -> list[dict[str, Any]]:
    """After every layer: of the impulse response, and of simulated noise."""
    impulse = layers_outputs(torch.eye(1, 2000, dtype=torch.float64), EIGENVALUE, normalize)[:, 0]
    noise = layers_outputs(_noise(length), EIGENVALUE, normalize)[..., 1000:]
    omega = torch.linspace(0, torch.pi, 64, dtype=torch.float64)
    responses = response_of(omega, impulse)
    gain = (1 - EIGENVALUE**2) ** 0.5 if normalize else 1.0
    rows = []
    for k in range(1, LAYERS + 1):
        h, y = impulse[k], noise[k]
        stack = torch.full((k, 1), EIGENVALUE, dtype=torch.float64)
        wanted = frequency_response(omega, stack, torch.full_like(stack, gain))
        own, across = _correlate(y, y, 2).mean(0), _correlate(noise[0], y, 300).mean(0)
        rows.append(
            {
                "layer": k,
                "delay": float(group_delay_of(torch.zeros(1, dtype=torch.float64), h)),
                "formula": group_delay([EIGENVALUE] * k),
                "response_error": float((responses[k] - wanted).abs().max() / wanted.abs().max()),
                "peak": float(h.max()),
                "peak_at": int(h.argmax()),
                "half_width": int((h >= h.max() / 2).sum()),
                "noise_variance": float(own[0]),
                "lag_1": float(own[1] / own[0]),
                "noise_delay": int(across.argmax()),
            }
        )
    return rows
