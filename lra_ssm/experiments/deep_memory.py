"""Deep linear SSMs, propositions 1 and 2, figures 1 and 2: correlation, variance and delay through ten layers.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission),
sections 3.1 and 3.2. How inputs are normalized in figure 2B is not said: here B is sqrt(1 - λ²), LRU's γ; the figure
shows every layer's output over its deviation on noise. Other values of ρ in figure 1C and lengths of noise are ours.
"""

from collections.abc import Iterable

import matplotlib
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from lra_ssm.analysis import correlation, frequency
from lra_ssm.experiments.base import Cell, Experiment, Form, Judgement, Rows, claim
from lra_ssm.experiments.deep_students import short
from lra_ssm.layers import DeepLinearSSM

LAYERS, EIGENVALUE = 10, 0.9
SHOWN = 100  # lags of figures 1A and 1B
SHOWN_LAYERS = [0, 1, 2, 3, 5, 7, 10]  # of figure 2
RHOS, GROWTH = (0.0, 0.5, 0.9, 0.99, 1.0), (0.95, 0.4)  # figure 1C


def _outputs(u: Tensor, normalize: bool = False) -> Tensor:
    """u (batch, L) and the outputs of every layer, (K + 1, batch, L): ten equal layers with B = C = 1."""
    layer = DeepLinearSSM(1, n_layers=1, normalize=normalize, trained="A").double().requires_grad_(False)
    layer.eigenvalue_weight.fill_(EIGENVALUE)
    found = [u]
    for _ in range(LAYERS):
        found.append(layer(found[-1].unsqueeze(-1)).squeeze(-1))
    return torch.stack(found)


def _noise(length: int) -> Tensor:
    """White, in 8 sequences."""
    return torch.randn(8, length, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def _correlate(a: Tensor, b: Tensor, lags: int) -> Tensor:
    """The mean of a_t b_{t+Δ} over the batch and t, at lags 0 … lags - 1: (batch, L) twice -> (lags,)."""
    L = a.shape[-1]
    n = 2 * L
    both = torch.fft.irfft(torch.fft.rfft(a, n).conj() * torch.fft.rfft(b, n), n)[..., :lags]
    return (both / (L - torch.arange(lags))).mean(0)


def _draw_layers(axes: Axes, rows: pd.DataFrame, x: str, y: str, layers: Iterable[int] = range(LAYERS + 1)) -> None:
    """A line a layer, from light to dark, with the first and the last named."""
    first, *_, last = layers
    for k in layers:
        part = rows[rows["layer"] == k]
        label = (f"layer {k}" if k else "input") if k in (first, last) else None
        color = matplotlib.colormaps["viridis_r"](0.1 + 0.9 * k / LAYERS)
        axes.plot(part[x], part[y], color=color, linewidth=1.1, label=label)
    axes.legend(fontsize=7)


def _powers(rows: pd.DataFrame, layer: int) -> pd.DataFrame:
    """R(0) after a layer of figure 1C, by ρ and, in the columns, λ."""
    return rows.query("what == 'growth' and layer == @layer").pivot(index="rho", columns="lambda", values="power")


class Correlation(Experiment):
    """Proposition 1 and figure 1."""

    @claim(f"R of {LAYERS} layers of λ = 0.9 against simulated noise: R(Δ)/R(0) within 0.05, R(0) within 5 %")
    def simulated(self, rows: pd.DataFrame) -> Judgement:
        """proposition 1 gives every layer's autocorrelation"""
        part = rows.query("what == 'noise'")
        off, variance = (part["R"] - part["simulated"]).abs().max(), (part["variance"] / part["power"] - 1).abs().max()
        said = f"correlations within {off:.3f}, variances within {100 * variance:.1f} %"
        return Judgement.of(off <= 0.05 and variance <= 0.05, said)

    @claim(f"R(Δ)/R(0) rises with every layer at each shown lag up to {SHOWN}, ρ = 0 and 0.95")
    def correlation(self, rows: pd.DataFrame) -> Judgement:
        """outputs become more correlated with each layer, whether inputs are or not"""
        part = rows.query("what == 'acf' and lag > 0").sort_values("layer")
        steps = part.groupby(["rho", "lag"])["R"].diff().dropna()
        return Judgement.of((steps > 0).all(), f"least rise {steps.min():.1e}, over {len(steps)} lags and layers")

    @claim("R(0) of layer 10 over that of layer 9 is that of ρ = 1 within 10 %")
    def rate(self, rows: pd.DataFrame) -> Judgement:
        """after a few layers the states' variance grows at the same rate for all ρ"""
        last = _powers(rows, LAYERS) / _powers(rows, LAYERS - 1)
        low, high = (last / last.loc[1.0]).stack().agg(["min", "max"])
        return Judgement.of(low >= 0.9 and high <= 1.1, f"from {low:.3f} to {high:.3f}")

    @claim("R(0) of layer 10 is larger for λ = 0.95 than for 0.4, at every ρ")
    def timescale(self, rows: pd.DataFrame) -> Judgement:
        """larger λ let the variance explode faster"""
        last = _powers(rows, LAYERS)
        ratios = last[GROWTH[0]] / last[GROWTH[1]]
        said = f"{ratios.min():.1e} to {ratios.max():.1e} times after {LAYERS} layers"
        return Judgement.of(ratios.min() > 1, said)

    def cells(self, form: Form) -> list[Cell]:
        acf: list[Cell] = [{"what": "acf", "lambda": EIGENVALUE, "rho": rho} for rho in (0.0, 0.95)]
        growth: list[Cell] = [{"what": "growth", "lambda": value, "rho": rho} for value in GROWTH for rho in RHOS]
        length = 5_000 if form == "quick" else 500_000
        return [*acf, *growth, {"what": "noise", "lambda": EIGENVALUE, "rho": 0.0, "length": length}]

    def run(self, cell: Cell) -> Rows:
        layers, rho, lags = [cell["lambda"]] * LAYERS, cell["rho"], range(0, SHOWN + 1, 5)
        if cell["what"] == "growth":
            powers = correlation.latent_variances(layers, rho).tolist()
            return [{"layer": k, "power": power} for k, power in enumerate(powers)]
        exact = correlation.autocorrelations(layers, rho, SHOWN + 1)
        columns = {"R": exact / exact[:, :1]}
        if cell["what"] == "noise":
            outputs = _outputs(_noise(cell["length"]))[..., 1000:]  # the start is no stationary noise
            found, lags = torch.stack([_correlate(y, y, SHOWN + 1) for y in outputs]), lags[::2]
            columns["simulated"] = found / found[:, :1]
            columns |= {"power": exact[:, :1].expand_as(exact), "variance": found[:, :1].expand_as(found)}
        return [
            {"layer": k, "lag": lag} | {name: float(values[k, lag]) for name, values in columns.items()}
            for k in range(LAYERS + 1)
            for lag in lags
        ]

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(10, 3.3)
        left, middle, right = figure.subplots(1, 3)
        for axes, rho in ((left, 0.0), (middle, 0.95)):
            _draw_layers(axes, rows.query("what == 'acf' and rho == @rho"), "lag", "R")
            axes.set(xlabel="lag Δ in positions", ylabel="R(Δ) / R(0)", title=f"λ = 0.9, inputs of ρ = {rho:g}")
        noise = rows.query("what == 'noise' and layer in (1, 5, 10)")
        left.plot(noise["lag"], noise["simulated"], "k.", markersize=3, label="simulated noise (layers 1, 5, 10)")
        left.legend(fontsize=7)
        for (value, rho), part in rows.query("what == 'growth'").groupby(["lambda", "rho"]):
            style, color = "-" if value == GROWTH[0] else "--", f"C{RHOS.index(rho)}"
            right.plot(part["layer"], part["power"], style, color=color, label=f"λ = {value:g}, ρ = {rho:g}")
        right.set(yscale="log", xlabel="layer (0: the input)", ylabel="variance of the state R(0)", ylim=(None, 1e36))
        right.legend(fontsize=6, ncol=2, loc="upper left")


def _layers(rows: pd.DataFrame, normalize: bool) -> pd.DataFrame:
    """What is measured after each layer."""
    return rows.query("what == 'layer' and normalize == @normalize").set_index("layer").sort_index()


def _peaks(layers: pd.DataFrame) -> str:
    first, last = layers.iloc[0], layers.iloc[-1]
    numbers = f"peak from {first['peak']:.3g} at {first['peak_at']:g} to {last['peak']:.3g} at {last['peak_at']:g}"
    return f"{numbers} after layer {LAYERS}"


def _rise(layers: pd.DataFrame, *columns: str) -> bool:
    return bool((layers[list(columns)].diff().iloc[1:] > 0).all(axis=None))


class Delay(Experiment):
    """Proposition 2 and figure 2."""

    @claim("-dφ/dω at 0 of the impulse response after every layer within 1e-6 positions", "group delay")
    def delay(self, rows: pd.DataFrame) -> Judgement:
        """the group delay of layers in a row is Σ λ/(1 - λ)"""
        part = rows.query("what == 'layer'")
        off, last = (part["delay"] - part["formula"]).abs().max(), part.query("layer == @LAYERS").iloc[0]
        said = f"{last['delay']:.6f} and {last['formula']:g} after ten layers; apart {off:.0e}"
        return Judgement.of(off <= 1e-6, said)

    @claim("eq. 4 against the transformed impulse response, at 64 frequencies: 1e-9 of the largest")
    def product(self, rows: pd.DataFrame) -> Judgement:
        """a stack's frequency response is the product of its layers'"""
        off = rows["response_error"].max()
        return Judgement.of(off <= 1e-9, f"{off:.0e} of the largest")

    @claim("peak, its position and the width at half of it rise with every layer")
    def plain(self, rows: pd.DataFrame) -> Judgement:
        """layers amplify an impulse, and make what comes out later and longer"""
        part = _layers(rows, False)
        return Judgement.of(_rise(part, "peak_at", "half_width", "peak"), _peaks(part))

    @claim("its position and the width at half of it rise with every layer")
    def normalized(self, rows: pd.DataFrame) -> Judgement:
        """with normalized inputs the peak still moves on with every layer"""
        part = _layers(rows, True)
        return Judgement.of(_rise(part, "peak_at", "half_width"), _peaks(part))

    @claim("of simulated noise it is within 10 % of 1 after every layer")
    def variance(self, rows: pd.DataFrame) -> Judgement:
        """B = sqrt(1 - λ²) keeps the variance of white noise through all layers"""
        part = _layers(rows, True)["noise_variance"]
        numbers = ", ".join(f"{part[k]:.3g}" for k in (1, 2, 3, LAYERS))
        return Judgement.of(((part - 1).abs() <= 0.1).all(), f"{numbers} after layers 1, 2, 3 and {LAYERS}")

    @claim(
        "R(1)/R(0) of the outputs rises with every layer, and the correlation of input and output peaks within 10 "
        "positions of the impulse response's peak"
    )
    def noise(self, rows: pd.DataFrame) -> Judgement:
        """each layer delays white noise and smooths it"""
        part = _layers(rows, False)
        apart = (part["noise_delay"] - part["peak_at"]).abs().max()
        said = f"correlation at lag 1 up to {part['lag_1'].max():.5f}; peaks {apart:g} apart at most"
        return Judgement.of(_rise(part, "lag_1") and apart <= 10, said)

    def cells(self, form: Form) -> list[Cell]:
        length = 3_000 if form == "quick" else 300_000
        shown: list[Cell] = [{"what": what, "normalize": False} for what in ("impulse", "noise")]
        return shown + [{"what": "layer", "normalize": normalize, "length": length} for normalize in (False, True)]

    def run(self, cell: Cell) -> Rows:
        if cell["what"] == "layer":
            return _measured(cell["length"], cell["normalize"])
        u = torch.eye(1, 300, dtype=torch.float64) if cell["what"] == "impulse" else _noise(300)[:1]
        outputs = _outputs(u)[:, 0]
        kept = [(k, t) for k in SHOWN_LAYERS for t in range(0, 300, 5)]
        return [{"layer": k, "t": t, "y": short(outputs[k, t])} for k, t in kept]

    def draw(self, rows: pd.DataFrame, figure: Figure) -> None:
        figure.set_size_inches(10, 3.3)
        left, middle, right = figure.subplots(1, 3)
        shown = rows.query("what != 'layer'")
        deviation = correlation.latent_variances([EIGENVALUE] * LAYERS, 0.0).sqrt().numpy()
        shown = shown.assign(scaled=shown["y"] / deviation[shown["layer"]])
        impulse, noise = shown.query("what == 'impulse'"), shown.query("what == 'noise'")
        _draw_layers(left, impulse, "t", "y", SHOWN_LAYERS[1:])
        _draw_layers(middle, impulse, "t", "scaled", SHOWN_LAYERS[1:])
        _draw_layers(right, noise, "t", "scaled", [0, 1, 3, 10])
        left.set(title="impulse, λ = 0.9", yscale="log", ylim=(1e-3, None), ylabel="output of the layer")
        middle.set(title="normalized", ylabel="output over its deviation on noise")
        right.set(title="white noise, normalized", ylabel="output over its deviation")
        for axes in figure.axes:
            axes.set_xlabel("position t")
        for axes in (left, middle):
            axes.axvline(frequency.group_delay([EIGENVALUE] * LAYERS), color="#888888", linestyle=":")
            at = {"xy": (94, 0.02), "xycoords": ("data", "axes fraction")}
            axes.annotate("group delay of\n10 layers: 90", **at, fontsize=7, color="#555555")


def _measured(length: int, normalize: bool) -> Rows:
    """After every layer: of the impulse response, and of simulated noise."""
    impulse = _outputs(torch.eye(1, 2000, dtype=torch.float64), normalize)[:, 0]
    noise = _outputs(_noise(length), normalize)[..., 1000:]
    omega = torch.linspace(0, torch.pi, 64, dtype=torch.float64)
    responses = frequency.response_of(omega, impulse)
    gain = (1 - EIGENVALUE**2) ** 0.5 if normalize else 1.0
    for k in range(1, LAYERS + 1):
        h, y = impulse[k], noise[k]
        stack = torch.full((k, 1), EIGENVALUE, dtype=torch.float64)
        wanted = frequency.frequency_response(omega, stack, torch.full_like(stack, gain))
        own, across = _correlate(y, y, 2), _correlate(noise[0], y, 300)
        yield {
            "layer": k,
            "delay": float(frequency.group_delay_of(omega[:1], h)),
            "formula": frequency.group_delay([EIGENVALUE] * k),
            "response_error": float((responses[k] - wanted).abs().max() / wanted.abs().max()),
            "peak": float(h.max()),
            "peak_at": int(h.argmax()),
            "half_width": int((h >= h.max() / 2).sum()),
            "noise_variance": float(own[0]),
            "lag_1": float(own[1] / own[0]),
            "noise_delay": int(across.argmax()),
        }
