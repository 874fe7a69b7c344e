"""Measures training steps of any configs, as a fit does them, and where their time goes.

A step is the task's `training_step` in the config's precision, backward, clipping, the optimizer's and the schedule's;
inputs are random, of the largest batch. Steps of equal batch and length are taken in turn.

Shapes: as the config's data module makes them.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import yaml
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import tree_map

from bench import Bench, Contender, Row, device_of, options, positive, start, words
from lra_ssm.layers.spec import import_object
from lra_ssm.runs.compute import ComputeSettings
from lra_ssm.tasks.optim import optimizer_and_schedule
from measure import FAILURES, Call, Prepared, reason, seeded

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
    try:
        return yaml.safe_load(file.read_text())
    except OSError as error:
        raise SystemExit(f"error: --config {file}: {error.strerror}") from error


def network_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a config's network."""
    return config["model"]["init_args"]["network"]["init_args"]


def sized(config: dict[str, Any], batch: int | None, length: int | None = None, tiny: bool = False) -> dict[str, Any]:
    """Return the config with another batch size and length of batches. tiny: use one narrow block.

    The length is not a setting of the data, which may not allow it: `batch_of` cuts the batches.
    """
    config = deepcopy(config)
    data = config["data"]["init_args"]
    data["batch_size"] = batch or data["batch_size"]
    if tiny:
        network_of(config).update(d_model=64, n_layers=1)
        length = min(length or 32, 32)
    return config | {"length": length}


def variant(config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the config changed as VARIANTS says; None if that changes nothing."""
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
    """Return a random batch of the size of the data's largest batch, as long as `sized` says."""
    data = import_object(config["data"]["class_path"])(**config["data"]["init_args"])
    vocabulary, generator, length = network_of(config).get("vocab_size") or 2, seeded(), config["length"]

    def randomize(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if x.is_floating_point():  # features
            return torch.randn(x[:, :length].shape, generator=generator).to(dtype)
        if x.dim() == 1 or x.any():  # labels, lengths
            return x if length is None else x.clamp(max=length)
        x = x[..., :length]
        return x if x.dtype == torch.bool else torch.randint(1, vocabulary, x.shape, generator=generator)

    return tree_map(randomize, data.largest_batch())


def size_of(config: dict[str, Any]) -> tuple[int, int]:
    """Return batch size and length."""
    inputs = batch_of(config).inputs
    return inputs.shape[0], inputs.shape[-2 if inputs.is_floating_point() else -1]


def step(config: dict[str, Any], device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[Call, nn.Module]:
    """Return a call that trains a new task by one step, and the task, which keeps the gradients of that step."""
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
        setattr(task, name, lambda *_, **__: None)  # the task has no Trainer
    batch = tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, batch_of(config, dtype))
    made = optimizer_and_schedule(task.network, task.optimizer_settings, 1000, 100, task.width_factors)
    optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
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
        first, task = step(config, device, dtype)  # a new one: the timed one has been trained
        torch.manual_seed(0)  # of dropout
        loss = first()
        # all gradients in one vector, for their scales differ by design
        gradients = [p.grad.flatten() for p in task.parameters() if p.grad is not None]
        return {"loss": loss, "all gradients": torch.cat(gradients)}

    return Prepared({STEP: one}, results)


# -- where its time goes -------------------------------------------------------------------------------------------

_MARK, _BACKWARD, _OPTIMIZER = "part: ", "autograd::engine::evaluate_function", "Optimizer."
OTHER = "other"

# part -> (where functions are called from, below lra_ssm)
REGIONS: dict[str, tuple[str, ...]] = {
    "scan": ("layers.s6.selective_scan", "layers.b2s6.selective_scan", "layers.s4d.selective_scan"),
    "S4D kernel": ("layers.s4d.s4d_kernel",),
    "convolution": (
        "layers.s4d.causal_convolution",
        "layers.s4d.bidirectional_convolution",
        "layers.convolution.causal_depthwise_convolution",
    ),
    "cross-entropy and its head": ("models.language_model.linear_cross_entropy",),
    "norm": ("layers.BatchNorm.forward", "layers.LayerNorm.forward", "layers.RMSNorm.forward"),
}
# part -> beginnings of the names of operators, without "aten::"; the first part that fits takes it
OPERATORS: dict[str, tuple[str, ...]] = {
    "linear layers": ("addmm", "mm", "bmm", "baddbmm", "linear", "einsum", "matmul"),
    "activation, GLU, dropout": ("gelu", "glu", "silu", "sigmoid", "relu", "native_dropout", "bernoulli", "dropout"),
    "copies, transposes, views": (
        "copy_", "clone", "contiguous", "cat", "to", "_to_copy", "flip", "stack", "index", "view", "permute",
        "transpose", "as_strided", "reshape", "select", "expand", "unsqueeze", "squeeze", "slice", "split", "detach",
    ),
}  # fmt: skip


def parts_of_step(step: Call, device: torch.device) -> tuple[dict[str, float], dict[str, float]]:
    """(part -> ms of one step, the largest first; on a GPU what `on_gpu` finds). The step is run once before.

    Self times of torch.profiler, grouped. Some operators serve several parts: a matrix product is a linear layer or an
    S4D kernel. So the functions of REGIONS are marked while they run, where the package calls them. Autograd's sequence
    numbers tell what backward does for them.
    """
    is_gpu = device.type == "cuda"
    with _marked_regions():
        step()
        with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * is_gpu) as profiler:
            step()
            if is_gpu:
                torch.cuda.synchronize()
    events: list[Any] = list(profiler.events())
    spent = grouped(events, is_gpu)
    largest_first = sorted(spent, key=spent.__getitem__, reverse=True)
    parts = {part: spent[part] for part in largest_first}
    return parts, on_gpu(events) if is_gpu else {}


def on_gpu(events: list[Any]) -> dict[str, float]:
    """Return how many ms the kernels and copies of a step take, its number of launches, and how often the host waited.

    If kernels and copies take less time than the step, the host is the limit.
    """
    counts = {"ms on the GPU": 0.0, "launches": 0, "waits": -1}  # one wait is the profile's own
    for event in events:
        if str(event.device_type).endswith("CUDA"):
            if not event.name.startswith((_MARK, _OPTIMIZER)):  # marks span the kernels within them
                counts["ms on the GPU"] += event.time_range.elapsed_us() / 1e3
        elif event.name.startswith(("cudaLaunch", "cuLaunch", "cudaGraphLaunch")):
            counts["launches"] += 1
        elif event.name.startswith("cuda") and event.name.endswith("Synchronize"):
            counts["waits"] += 1
    return counts


def grouped(events: list[Any], is_gpu: bool) -> dict[str, float]:
    """Part -> ms of self time."""
    events = [event for event in events if str(event.device_type).endswith("CPU")]
    region_of_number: dict[int, str] = {}
    for event in sorted(events, key=lambda e: e.time_range.start):
        if event.sequence_nr >= 0 and not any(e.name.startswith(_BACKWARD) for e in _ancestry(event)):
            # the operation that makes the node is the last one that sees its number
            region_of_number[event.sequence_nr] = _region(event)
    spent: dict[str, float] = defaultdict(float)
    for event in events:
        time = event.self_device_time_total if is_gpu else event.self_cpu_time_total
        if time > 0:
            spent[_part(event, region_of_number)] += time / 1e3
    return dict(spent)


def _part(event: Any, region_of_number: dict[int, str]) -> str:
    if region := _region(event):
        return f"{region}, forward"
    for ancestor in _ancestry(event):
        if ancestor.name.startswith(_OPTIMIZER):
            return "optimizer"
        if ancestor.name.startswith(_BACKWARD):
            region = region_of_number.get(ancestor.sequence_nr)
            if region:
                return f"{region}, backward"
    for ancestor in _ancestry(event):
        name = ancestor.name.removeprefix("aten::")
        for part, beginnings in OPERATORS.items():
            if name.startswith(beginnings):
                return part
    return OTHER


def _ancestry(event: Any) -> Iterator[Any]:
    while event is not None:
        yield event
        event = event.cpu_parent


def _region(event: Any) -> str:
    for ancestor in _ancestry(event):
        if ancestor.name.startswith(_MARK):
            return ancestor.name.removeprefix(_MARK)
    return ""


@contextmanager
def _marked_regions() -> Iterator[None]:
    """Mark every function of REGIONS in profiles that are taken within the block."""
    with ExitStack() as stack:
        for part, paths in REGIONS.items():
            for path in paths:
                place, _, name = f"lra_ssm.{path}".rpartition(".")
                owner = resolve_name(place)
                function = getattr(owner, name)
                stack.enter_context(patch.object(owner, name, _marked(part, function)))
        yield


def _marked(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def marked(*arguments: Any, **keywords: Any) -> Any:
        with record_function(_MARK + part):
            return function(*arguments, **keywords)

    return marked


# -- the comparison ------------------------------------------------------------------------------------------------


def trainings(given: argparse.Namespace, is_gpu: bool) -> dict[str, dict[str, Any]]:
    """Return name -> config, each with its variants and with small batches on a CPU, tiny with --quick."""
    files = [Path(file) for file in given.config or ()]
    if not files:
        files = [CONFIGS / f"{name}.yaml" for name in (PUBLISHED if is_gpu else ON_CPU)]
    configs = {}
    for file in files:
        config = read(file)
        batch_size = config["data"]["init_args"]["batch_size"]
        batch = given.batch or (batch_size if is_gpu and not given.quick else min(batch_size, 2))
        config = sized(config, batch, given.length, given.quick)
        name = str(file.absolute()).removeprefix(f"{CONFIGS}/").removesuffix(".yaml")
        configs[name] = config
        for how in given.variants:
            if (changed := variant(config, how)) is not None:
                configs[f"{name}, {how}"] = changed
    return configs


def compare(configs: dict[str, dict[str, Any]], bench: Bench) -> list[Row]:
    """Compare steps of equal batch size and length.

    Errors are not measured on a GPU: a step in float64 takes longer than all else here. operators.py measures them.
    """
    sizes: dict[tuple[int, int], list[Contender]] = {}
    for name, config in configs.items():
        build = partial(prepared_step, config, bench.device)
        truth = None if bench.is_gpu else partial(build, torch.float64)
        sizes.setdefault(size_of(config), []).append(Contender(name, build, truth))
    rows = []
    for (B, L), contenders in sizes.items():
        rows += bench.compare("training steps", {"B": B, "L": L}, contenders, modes=(STEP,))
    return rows


def add_profile(row: Row, config: dict[str, Any], bench: Bench) -> None:
    """Add rates to the row and, on a GPU, memory, launches and waits; keep the profile of the step."""
    if row.ms is None:
        return
    bench.say(f"profile of {row.contender}")
    row.extra["examples/s"] = 1e3 * row.shape["B"] / row.ms
    row.extra["tokens/s"] = row.extra["examples/s"] * row.shape["L"]
    if bench.is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        parts, counts = parts_of_step(step(config, bench.device)[0], bench.device)
    except FAILURES as error:
        row.note = f"no profile: {reason(error)}"
        return
    if bench.is_gpu:
        row.extra["GB"] = torch.cuda.max_memory_allocated() / 1e9
    row.extra |= counts
    bench.more["profiles, ms"][row.contender] = parts


def over_its_config(rows: list[Row]) -> None:
    """Add to each variant's row the median ratio of its time to that of the unchanged config, over rounds."""
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
                        help=f"changes to compare with the unchanged config: {', '.join(VARIANTS)}")  # fmt: skip
    parser.add_argument("--batch", type=positive, metavar="N", help="default: the config's, at most 2 on a CPU")
    parser.add_argument("--length", type=positive, metavar="N", help="of sequences of tokens; default: the config's")
    given = parser.parse_args(arguments)
    if unknown := set(given.variants) - set(VARIANTS):
        parser.error(f"--variants: choose from {', '.join(VARIANTS)}, not {', '.join(unknown)}")
    configs = trainings(given, device_of(given).type == "cuda")
    bench = Bench("steps", given)
    if not given.quick:
        bench.effort = replace(bench.effort, sample=_SAMPLE)
    bench.more["profiles, ms"] = {}
    rows = compare(configs, bench)
    for row in rows:
        add_profile(row, configs[row.contender], bench)
    over_its_config(rows)
    bench.table("rates", [{"": row.contender, **{name: f"{x:,.4g}" for name, x in row.extra.items()}} for row in rows])
    for name, parts in bench.more["profiles, ms"].items():
        bench.parts(f"one step of {name}, by part", parts)
    bench.finish()


if __name__ == "__main__":
    start(main)
