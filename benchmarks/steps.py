"""Measures training steps of any configs, as a fit does them, and where their time goes.

A step is the task's `training_step` in the config's precision, backward, clipping, the optimizer's and the schedule's;
inputs are random, of the largest batch. Steps of equal batch and length are taken in turn.

Shapes: as the config's data module makes them.
"""

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bench import Bench, Contender, Row, device_of, options, positive, start, words
from lra_ssm.layers.spec import import_object
from lra_ssm.runs.compute import ComputeSettings
from lra_ssm.tasks.optim import optimizer_and_schedule
from measure import FAILURES, Call, Prepared, reason, seeded
from plots import parts_plot
from step_parts import parts_of_step

EXAMPLE = "python benchmarks/steps.py --config=configs/lra/listops/b2s6.yaml,configs/lm/wikitext103/mamba.yaml"
STEP = "step"
CONFIGS = Path(__file__).parents[1] / "configs"
ON_CPU = [f"{task}/{layer}" for task in ("lra/listops", "scifar") for layer in ("b2s6", "s6", "s4d")]
# On a GPU, which is fast enough for all of it: what is published for every task of LRA, and sCIFAR's.
_TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
PUBLISHED = [f"lra/{task}/{layer}" for task in _TASKS for layer in ("s4d", "mamba", "b2s6")] + ON_CPU[3:]
WITHOUT_BIAS = "without bias"
VARIANTS: dict[str, dict[str, Any]] = {  # what is changed in a config
    "float32 products": {"compute": {"matmul_precision": "highest"}},
    "compiled": {"compute": {"compile": True}},
    "bf16-mixed": {"trainer": {"precision": "bf16-mixed"}},
    WITHOUT_BIAS: {},  # of a selective layer, where it has one
}
_SAMPLE = 0.3  # seconds of steps that are waited for together, as in a fit: the host may be ahead of the GPU


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


def network_of(config: dict[str, Any]) -> dict[str, Any]:
    """The arguments of its network."""
    return config["model"]["init_args"]["network"]["init_args"]


def sized(config: dict[str, Any], batch: int | None, length: int | None = None, tiny: bool = False) -> dict[str, Any]:
    """The config with another batch size, its batches cut to a length; tiny: with one narrow block.

    The length stands beside what a config has, since the data may not allow it.
    """
    config = deepcopy(config)
    data = config["data"]["init_args"]
    data["batch_size"] = batch or data["batch_size"]
    if tiny:
        network_of(config).update(d_model=64, n_layers=1)
        length = min(length or 32, 32)
    return config | {"length": length}


def variant(config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The config changed as VARIANTS says; None where that changes nothing."""
    config = deepcopy(config)
    for part, values in VARIANTS[name].items():
        config[part] = config.get(part, {}) | values
    if name == WITHOUT_BIAS:
        layer = network_of(config)["layer"]
        if not isinstance(layer, dict):
            return None
        arguments = layer.setdefault("init_args", {})
        bias = signature(import_object(layer["class_path"])).parameters.get("bias")
        if bias is None or not arguments.get("bias", bias.default):
            return None
        arguments["bias"] = False
    return config


def batch_of(config: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    """The largest batch of its data, random in place of zeros, as long as `sized` says."""
    data = import_object(config["data"]["class_path"])(**config["data"]["init_args"])
    vocabulary, generator, length = network_of(config).get("vocab_size") or 2, seeded(), config["length"]

    def given(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if x.is_floating_point():  # features
            return torch.randn(x[:, :length].shape, generator=generator).to(dtype)
        if x.dim() == 1 or x.any():  # labels, lengths
            return x if length is None else x.clamp(max=length)
        x = x[..., :length]
        return x if x.dtype == torch.bool else torch.randint(1, vocabulary, x.shape, generator=generator)

    return tree_map(given, data.largest_batch())


def size_of(config: dict[str, Any]) -> tuple[int, int]:
    """Batch and length."""
    inputs = batch_of(config).inputs
    return inputs.shape[0], inputs.shape[-2 if inputs.is_floating_point() else -1]


def step(config: dict[str, Any], device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[Call, nn.Module]:
    """A call that trains a fresh task by one step, and the task, which keeps that step's gradients."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        task = import_object(config["model"]["class_path"])(**config["model"]["init_args"])
    trainer, settings = config["trainer"], ComputeSettings(**config.get("compute", {}))
    precision = str(trainer.get("precision", "32-true"))
    lower = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)
    if precision == "bf16-true":
        dtype = torch.bfloat16
    task.to(device, dtype).train()
    for name in ("log", "log_dict"):
        setattr(task, name, lambda *_, **__: None)  # there is no Trainer
    batch = tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, batch_of(config, dtype))
    found = optimizer_and_schedule(task.network, task.optimizer_settings, 1000, 100, task.width_factors)
    optimizer, schedule = found["optimizer"], found["lr_scheduler"]["scheduler"]
    with settings.applied(task, device):  # marks its blocks, which are compiled when they first run
        pass
    settings = replace(settings, compile=False)

    def one() -> Tensor:
        optimizer.zero_grad()
        with settings.applied(task, device):
            with torch.autocast(device.type, lower) if lower else nullcontext():
                loss: Any = task.training_step(batch, 0)
            loss.backward()
        if clip := trainer.get("gradient_clip_val"):
            nn.utils.clip_grad_norm_(task.parameters(), clip)
        optimizer.step()
        schedule.step()
        return loss.detach()

    return one, task


def prepared_step(config: dict[str, Any], device: torch.device, dtype: torch.dtype = torch.float32) -> Prepared:
    one, _ = step(config, device, dtype)

    def results() -> dict[str, Tensor]:
        first, task = step(config, device, dtype)  # a fresh one: the timed one has been trained
        torch.manual_seed(0)  # of dropout
        loss = first()
        # all gradients in one vector, for their scales differ by design
        gradients = [p.grad.flatten() for p in task.parameters() if p.grad is not None]
        return {"loss": loss, "all gradients": torch.cat(gradients)}

    return Prepared({STEP: one}, results)


def trainings(given: argparse.Namespace, is_gpu: bool) -> dict[str, dict[str, Any]]:
    """Name -> config, each with its variants, at the sizes asked for: small batches on a CPU, tiny with --quick."""
    files = [Path(file) for file in given.config or ()]
    if not files:
        files = [CONFIGS / f"{name}.yaml" for name in (PUBLISHED if is_gpu else ON_CPU)]
    found = {}
    for file in files:
        config = read(file)
        own = config["data"]["init_args"]["batch_size"]
        batch = given.batch or (own if is_gpu and not given.quick else min(own, 2))
        config = sized(config, batch, given.length, given.quick)
        name = str(file.absolute()).removeprefix(f"{CONFIGS}/").removesuffix(".yaml")
        found[name] = config
        for how in given.variants:
            if (changed := variant(config, how)) is not None:
                found[f"{name}, {how}"] = changed
    return found


def compare(found: dict[str, dict[str, Any]], bench: Bench) -> list[Row]:
    """Steps of equal batch and length beside each other.

    On a GPU without errors: a step in float64 takes longer than all else here, and operators.py has them.
    """
    sizes: dict[tuple[int, int], list[Contender]] = {}
    for name, config in found.items():
        build = partial(prepared_step, config, bench.device)
        truth = None if bench.is_gpu else partial(build, torch.float64)
        sizes.setdefault(size_of(config), []).append(Contender(name, build, truth))
    rows = []
    for (B, L), contenders in sizes.items():
        rows += bench.compare("training steps", {"B": B, "L": L}, contenders, modes=(STEP,))
    return rows


def profile(row: Row, config: dict[str, Any], bench: Bench) -> None:
    """Puts rates and, on a GPU, memory and what the host does into the row; keeps where the time goes."""
    if row.ms is None:
        return
    bench.say(f"profile of {row.contender}")
    row.extra["examples/s"] = 1e3 * row.shape["B"] / row.ms
    row.extra["tokens/s"] = row.extra["examples/s"] * row.shape["L"]
    if bench.is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        found = parts_of_step(step(config, bench.device)[0], bench.device)
    except FAILURES as error:
        row.note = f"no profile: {reason(error)}"
        return
    if bench.is_gpu:
        row.extra["GB"] = torch.cuda.max_memory_allocated() / 1e9
    row.extra |= found.counts
    bench.more["profiles, ms"][row.contender] = found.parts
    bench.more["kernels: launches, ms"][row.contender] = found.kernels


def over_its_config(rows: list[Row]) -> None:
    """Puts into each variant's row the median over rounds of its time over that of the config as it is."""
    samples = {row.contender: row.samples_ms for row in rows}
    for row in rows:
        name = row.contender.rpartition(", ")[0]
        if common := row.samples_ms.keys() & samples.get(name, {}):
            ratio = float(np.median([row.samples_ms[i] / samples[name][i] for i in common]))
            row.extra["over as it is"] = ratio


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, EXAMPLE)
    parser.add_argument("--config", type=words, metavar="LIST", help="config files, comma-separated; default: three of "
                        "ListOps and of sCIFAR, on a GPU all six LRA tasks' and sCIFAR's")  # fmt: skip
    parser.add_argument("--variants", type=words, default=[], metavar="LIST",
                        help=f"each beside the config as it is: {', '.join(VARIANTS)}")  # fmt: skip
    parser.add_argument("--batch", type=positive, metavar="N", help="default: the config's, at most 2 on a CPU")
    parser.add_argument("--length", type=positive, metavar="N", help="of texts; default: the config's")
    given = parser.parse_args(arguments)
    if unknown := set(given.variants) - set(VARIANTS):
        parser.error(f"--variants: there are {', '.join(VARIANTS)}, not {', '.join(unknown)}")
    found = trainings(given, device_of(given).type == "cuda")
    bench = Bench("steps", given)
    if not given.quick:
        bench.effort = replace(bench.effort, sample=_SAMPLE)
    bench.more |= {"profiles, ms": {}, "kernels: launches, ms": {}}
    rows = compare(found, bench)
    for row in rows:
        profile(row, found[row.contender], bench)
    over_its_config(rows)
    bench.table("rates", [{"": row.contender, **{name: f"{x:,.4g}" for name, x in row.extra.items()}} for row in rows])
    profiles = bench.more["profiles, ms"]
    for name, parts in profiles.items():
        bench.parts(f"one step of {name}, by part", parts)
    bench.finish(parts_plot(profiles, f"where a training step goes\n{bench.hardware}"))


if __name__ == "__main__":
    start(main)
