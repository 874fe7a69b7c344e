"""Draw the picture of docs/training.md: python docs/schedules_picture.py"""

from pathlib import Path

import matplotlib
import torch

from lra_ssm.tasks.schedules import SCHEDULES, Span, schedule_of

DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (9, 3)), (0, (1, 4)))
TOTAL, WARMUP = 1000, 100
ARGUMENTS = {"wsd": {"decay": 0.2}}


def factors(name: str) -> list[float]:
    """Return the factor of the learning rate at every step of the run."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = schedule_of(optimizer, name, ARGUMENTS.get(name, {}), Span(WARMUP, TOTAL))
    rates = []
    for _ in range(TOTAL + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def main() -> None:
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 2.4), layout="constrained")
    for name, dash in zip(SCHEDULES, DASHES, strict=False):
        arguments = ", ".join(f"{key}: {value}" for key, value in ARGUMENTS.get(name, {}).items())
        axes.plot(factors(name), linestyle=dash, label=f"{name} ({arguments})" if arguments else name)
    axes.set(xlabel="step", ylabel="share of each rate", xlim=(0, TOTAL), ylim=(0, 1.05))
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(Path(__file__).with_name("schedules.png"), dpi=110)


if __name__ == "__main__":
    main()
