"""B2S6, figure 6: whether S6's Δ makes its training unstable.

Source: Yu & Erichson 2025, appendix E: G(u) = Σ θ_j u_j; S4D and S6 with a learning rate of 0.001 for the parameters
of Δ, and S6 with Δ frozen; root mean squared error over steps. Section 3: inputs in [0, 1], u_L = 1. Our choices, which
the paper does not give: θ_j = 0.95^(L-j), a fading memory, which S6 can learn; the network of eq. 5 with GELU, 16
channels, 16 states, 100 positions, fresh batches of 64, 2,000 steps of AdamW at a constant 0.01 (0.001 for A and S4D's
B).

S6 cannot learn a θ of white noise, and it cannot learn from inputs N(0, 1): apart from the effect of Δ, its output is
u_L times a function that is even in every other input.
"""

from collections.abc import Iterator, Sequence
from statistics import median
from types import SimpleNamespace

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from helper import Cell, Claim, Claims, Rows, Size, clearly_positive, grid, main, mean_and_std, only, train
from lra_ssm.models import PlainNetwork
from lra_ssm.tasks import OptimizerSettings, RoleSettings
from units import COLORS, unit_spec, without_skip

LENGTH, BIN = 100, 40
MODELS = {"S4D": ("S4D", 0.001), "S6": ("S6", 0.001), "S6, Δ frozen": ("S6", 0.0)}  # unit, learning rate of Δ


def cells(size: Size) -> list[Cell]:
    seeds, steps = (1, 40) if size == "quick" else (4, 2000)
    return grid(seed=range(seeds), model=MODELS, steps=[steps])


def run(seed: int, model: str, steps: int) -> Rows:
    torch.manual_seed(seed)
    name, delta_lr = MODELS[model]
    network = without_skip(PlainNetwork(unit_spec(name), num_outputs=1, d_input=1, d_model=16))
    optimizer = OptimizerSettings(
        lr=0.01,
        roles={"delta": RoleSettings(lr=delta_lr)},
        weight_decay=0.0,
        warmup_steps=0,
        min_lr_factor=1.0,
    )
    losses = train(network, _batches(seed), steps, optimizer, _rms)
    count = spikes(losses)
    for i in range(0, steps, BIN):
        part = losses[i : i + BIN]
        yield {"step": i + BIN, "loss": median(part), "highest": max(part), "spikes": count}


def _rms(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - labels).square().mean().sqrt()


def _batches(seed: int) -> Iterator[SimpleNamespace]:
    """Yield fresh batches of u (64, L, 1) and G(u) (64, 1)."""
    theta = 0.95 ** torch.arange(LENGTH - 1, -1, -1.0)
    generator = torch.Generator().manual_seed(seed)
    while True:
        u = torch.rand(64, LENGTH, generator=generator)
        u[:, -1] = 1
        yield SimpleNamespace(inputs=u[..., None], labels=(u @ theta)[:, None])


def spikes(losses: Sequence[float], width: int = 10) -> int:
    """Count how often the median of `width` steps rises above 1.5 times its minimum; a spike ends below 1.2 times."""
    levels = [median(losses[i : i + width]) for i in range(0, len(losses) - width + 1, width)]
    count, inside, lowest = 0, False, levels[0]
    for level in levels:
        if inside:
            inside = level >= 1.2 * lowest
        elif level > 1.5 * lowest:
            count, inside = count + 1, True
        lowest = min(lowest, level)
    return count


def claims(rows: pd.DataFrame) -> Claims:
    final = rows[rows["step"] == rows["step"].max()]
    count = {name: mean_and_std(only(final, model=name)["spikes"]) for name in MODELS}
    learned = only(final, model="S6")["loss"].max() < 0.2 * only(rows, model="S6", step=BIN)["loss"].min()
    for other, statement in {
        "S4D": "S6's loss goes up and down while S4D's falls smoothly",
        "S6, Δ frozen": "S6 trains more smoothly with Δ frozen than with Δ trained",
    }.items():
        more_spikes = clearly_positive(count["S6"][0] - count[other][0], max(count["S6"][1], count[other][1]))
        yield Claim(
            statement,
            "S6 has more spikes; a spike starts where the median loss of 10 steps rises above 1.5 times its minimum so"
            " far and ends where it falls below 1.2 times; undecided if S6's loss does not fall to a fifth",
            more_spikes if learned else None,
            {f"spikes of {name}:": count[name] for name in ("S6", other)},
        )


def draw(rows: pd.DataFrame, figure: Figure) -> None:
    figure.set_size_inches(9.5, 3)
    for axes, model in zip(figure.subplots(1, 3, sharey=True), MODELS, strict=True):
        chosen, color = only(rows, model=model), COLORS[MODELS[model][0]]
        for _, curve in chosen.groupby("seed"):
            axes.plot(curve["step"], curve["loss"], color=color, linewidth=1)
            axes.fill_between(curve["step"], curve["loss"], curve["highest"], color=color, alpha=0.2, lw=0)
        counts = "; ".join(f"{curve['spikes'].iloc[0]}" for _, curve in chosen.groupby("seed"))
        axes.set(yscale="log", xlabel="step", title=f"{model}\nspikes by seed: {counts}")
    figure.axes[0].set_ylabel("RMS error (one line per seed,\nshaded up to the maximum)")


if __name__ == "__main__":
    main()
