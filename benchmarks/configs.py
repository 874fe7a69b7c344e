"""Measures the training step of any config as a fit does it: its task, batch, precision and compute settings.

A step is `training_step`, backward, clipping, the optimizer's and the schedule's; inputs are random, of the largest
batch.
For each config: time, examples/s, peak memory, kernels launched and waits, and the time that kernels take. Configs and
variants are measured one after the other, so a ratio of two is what steps.py gives.

Shapes: as the config's data module makes them.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bench import Bench, Row, device_of, options, start, words
from lra_ssm.layers.spec import import_object
from lra_ssm.runs.compute import ComputeSettings
from lra_ssm.tasks.optim import optimizer_and_schedule
from measure import FAILURES, reason, seeded
from plots import parts_plot
from step_parts import parts_of_step

EXAMPLE = "python benchmarks/configs.py --config=configs/lra/listops/b2s6.yaml,configs/lm/wikitext103/mamba.yaml"
CONFIGS = Path(__file__).parents[1] / "configs"
VARIANTS: dict[str, dict[str, Any]] = {
    "float32 products": {"matmul_precision": "highest"},
    "compiled": {"compile": True},
    "bf16-mixed": {},
}
STEP = "step"
_SAMPLE = 0.3  # seconds of steps that are waited for together, as in a fit: the host may be ahead of the GPU


@contextlib.contextmanager
def step(config: dict[str, Any], variant: str, device: torch.device) -> Iterator[tuple[Callable[[], Tensor], int]]:
    """A call that does one training step, and the examples of a batch."""
    data = import_object(config["data"]["class_path"])(**config["data"]["init_args"])
    torch.manual_seed(0)
    task = import_object(config["model"]["class_path"])(**config["model"]["init_args"]).to(device).train()
    trainer = config["trainer"]
    precision = "bf16-mixed" if variant == "bf16-mixed" else str(trainer.get("precision", "32-true"))
    if precision == "bf16-true":
        task.to(torch.bfloat16)
    for name in ("log", "log_dict"):
        setattr(task, name, lambda *_, **__: None)  # there is no Trainer
    vocabulary = config["model"]["init_args"]["network"]["init_args"].get("vocab_size") or 2
    generator = seeded()

    def given(x: Any) -> Any:
        """Random in place of zeros; lengths stay."""
        if not isinstance(x, Tensor):
            return x
        if x.is_floating_point():
            x = torch.randn(x.shape, generator=generator)
            x = x.bfloat16() if precision == "bf16-true" else x
        elif x.dtype == torch.int64 and x.dim() > 1 and not x.any():
            x = torch.randint(1, vocabulary, x.shape, generator=generator)
        return x.to(device)

    batch = tree_map(given, data.largest_batch())
    found = optimizer_and_schedule(task.network, task.optimizer_settings, 1000, 100, task.width_factors)
    optimizer, schedule = found["optimizer"], found["lr_scheduler"]["scheduler"]
    clip = trainer.get("gradient_clip_val")
    lower = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)

    def one() -> Tensor:
        with torch.autocast(device.type, lower) if lower else contextlib.nullcontext():
            loss: Any = task.training_step(batch, 0)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(task.parameters(), clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.detach()

    settings = config.get("compute", {}) | VARIANTS.get(variant, {})
    with ComputeSettings(**settings).applied(task, device):
        yield one, data.batch_size


def read(file: Path) -> dict[str, Any]:
    """Ends the script where it is no config of a run."""
    try:
        config = yaml.safe_load(file.read_text())
        if {"model", "data", "trainer"} <= config.keys():
            return config
        raise SystemExit(f"error: --config {file}: it needs model, data and trainer")
    except OSError as error:
        raise SystemExit(f"error: --config {file}: {error.strerror}") from error
    except (yaml.YAMLError, AttributeError, UnicodeDecodeError) as error:
        raise SystemExit(f"error: --config {file}: it is no YAML of a config") from error


def measured(name: str, config: dict[str, Any], variant: str, bench: Bench) -> Row:
    shape = {"batch": config["data"]["init_args"]["batch_size"]}
    row = Row("training steps of configs", f"{name}, {variant}" if variant else name, STEP, shape)
    on_gpu = bench.is_gpu
    try:
        with step(config, variant, bench.device) as (one, examples):
            wait = torch.cuda.synchronize if on_gpu else lambda: None
            began = time.perf_counter()
            one()
            wait()
            row.extra["first step, s"] = time.perf_counter() - began
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            for _ in range(2):
                one()
            wait()
            if on_gpu:
                row.extra["GB"] = torch.cuda.max_memory_allocated() / 1e9
            effort = replace(bench.effort, sample=_SAMPLE)
            timed = bench.times(row.comparison, STEP, row.shape, {row.contender: one}, effort=effort)[0]
            row = replace(timed, extra=row.extra, base=None, ratio=None)  # there is none beside it
            row.extra["examples/s"] = 1e3 * examples / (row.ms or 1)
            found = parts_of_step(one, bench.device)
            row.extra |= found.counts
            bench.more.setdefault("profiles, ms", {})[row.contender] = found.parts
            bench.more.setdefault("kernels: launches, ms", {})[row.contender] = found.kernels
    except FAILURES as error:
        row.note = reason(error)
    if on_gpu:
        torch.cuda.empty_cache()
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, EXAMPLE)
    parser.add_argument("--config", type=words, required=True, metavar="LIST", help="config files, comma-separated")
    parser.add_argument("--variants", type=words, default=[], metavar="LIST",
                        help=f"each beside the config as it is: {', '.join(VARIANTS)}")  # fmt: skip
    given = parser.parse_args(arguments)
    if unknown := set(given.variants) - set(VARIANTS):
        parser.error(f"--variants: there are {', '.join(VARIANTS)}, not {', '.join(unknown)}")
    if device_of(given).type != "cuda" and not given.quick:
        print("configs: at the config's own batch, which takes a CPU long")
    bench = Bench("configs", given)
    rows = []
    for file in given.config:
        config = read(Path(file))
        name = str(Path(file).absolute()).removeprefix(f"{CONFIGS}/").removesuffix(".yaml")
        for variant in ("", *given.variants):
            bench.say(f"{name} {variant}")
            rows.append(measured(name, config, variant, bench))
            bench.keep([rows[-1]])
    for name, parts in bench.more.get("profiles, ms", {}).items():
        bench.parts(f"one step of {name}, by part", parts)
    bench.finish(parts_plot(bench.more.get("profiles, ms", {}), f"where a training step goes\n{bench.hardware}"))


if __name__ == "__main__":
    start(main)
