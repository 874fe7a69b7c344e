"""Measures whole training steps of configs on random data, and where their time goes.

A step: forward, loss, backward, clipping, AdamW with the config's parameter groups.

Shapes: inputs (B, L) or (B, L, features), lengths (B,), labels (B,).  (B batch, L length.)
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F

from bench import Bench, Contender, Row, device_of, options, positive, start, words
from lra_ssm.layers import NetworkSpec
from lra_ssm.tasks import OptimizerSettings
from lra_ssm.tasks.optim import parameter_groups, parameter_rates
from measure import Call, Prepared, seeded
from plots import Bar
from step_parts import parts_of_step

EXAMPLE = "python benchmarks/steps.py --config=configs/lra/listops/b2s6.yaml --batch=8"
STEP = "step"
CONFIGS = Path(__file__).parents[1] / "configs"
ON_CPU = ("lra/listops/b2s6", "lra/listops/s6", "lra/listops/s4d")
# On a GPU, which is fast enough for all of it: what is published for every task of LRA, and sCIFAR's.
_TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
PUBLISHED = [f"lra/{task}/{layer}" for task in _TASKS for layer in ("s4d", "mamba", "b2s6")]
PUBLISHED += ["scifar/s4d", "scifar/s6", "scifar/b2s6"]
# On a CPU also the sCIFAR models of Yu & Erichson 2025, table 1, as changes to the ListOps ones.
_SCIFAR = {"vocab_size": None, "d_input": 3, "d_model": 128, "n_layers": 4, "num_classes": 10}
_SIDES = {"Image": 32, "SCIFAR": 32, "MNIST": 28}  # of the images of datasets


@dataclass(frozen=True)
class Training:
    """What a config trains.

    network: its specification.  clip: the largest norm of the gradient.  mixed: in Lightning's bf16-mixed.
    compiled: its blocks by torch.compile, as `--compute.compile` of a fit.
    """

    network: dict[str, Any]
    optimizer: dict[str, Any]
    batch: int
    length: int
    clip: float | None = None
    mixed: bool = False
    compiled: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        return self.network["init_args"]

    def changed(self, **arguments: Any) -> "Training":
        """With other arguments of the network."""
        network = {**self.network, "init_args": self.arguments | arguments}
        return replace(self, network=network)

    def tiny(self) -> "Training":
        small = self.changed(d_model=16, n_layers=1)
        return replace(small, length=min(self.length, 32))

    @property
    def without_bias(self) -> "Training | None":
        """Of a selective layer that has a bias."""
        layer = self.arguments["layer"]
        arguments = layer.get("init_args") or {}
        if not arguments.get("bias"):
            return None
        return self.changed(layer={**layer, "init_args": {**arguments, "bias": False}})


def read(file: Path) -> Training:
    """Ends the script where it is no config of a classification."""
    try:
        config = yaml.safe_load(file.read_text())
        model = config["model"]["init_args"]
        data = config["data"]["init_args"]
        name = config["data"]["class_path"].rpartition(".")[2]
        side = _SIDES.get(name) or data.get("resolution", 32)
        length = data["max_length"] if "max_length" in data else side**2
        trainer = config.get("trainer") or {}
        clip = trainer.get("gradient_clip_val")
        return Training(model["network"], model.get("optimizer") or {}, data["batch_size"], length, clip)
    except OSError as error:
        raise SystemExit(f"error: --config {file}: {error.strerror}") from error
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        what = f"no {error} in it" if isinstance(error, KeyError) else "it is no YAML of a config"
        raise SystemExit(f"error: --config {file}: {what}; it needs model, data.class_path, data.batch_size") from error


def random_batch(network: nn.Module, training: Training, device: torch.device, dtype: torch.dtype) -> tuple[Any, ...]:
    """(inputs, lengths, labels): tokens with lengths, or features without; no padding, so that all positions count."""
    B, L = training.batch, training.length
    arguments = training.arguments
    random = seeded()
    labels = torch.randint(arguments["num_classes"], (B,), generator=random).to(device)
    if arguments.get("d_input") is not None:
        features = torch.randn(B, L, arguments["d_input"], generator=random)
        return features.to(device, dtype), None, labels
    shape = (B, 2) if getattr(network, "per_example", 1) == 2 else (B,)
    vocabulary = arguments.get("vocab_size") or 18
    tokens = torch.randint(3, vocabulary, (*shape, L), generator=random)
    return tokens.to(device), torch.full(shape, L, device=device), labels


def step(training: Training, device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[Call, nn.Module]:
    """A call that trains a fresh model by one step, and the model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = NetworkSpec.of(training.network)().to(device, dtype)
    for block in model.backbone.blocks if training.compiled else ():
        block.compile()
    rates = parameter_rates(model, OptimizerSettings(**training.optimizer))
    optimizer = torch.optim.AdamW(parameter_groups(model, rates))
    inputs, lengths, labels = random_batch(model, training, device, dtype)

    def one() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=training.mixed):
            loss = F.cross_entropy(model(inputs, lengths), labels)
        loss.backward()
        if training.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimizer.step()
        return loss.detach()

    return one, model


def prepared_step(training: Training, device: torch.device, dtype: torch.dtype = torch.float32) -> Prepared:
    one, _ = step(training, device, dtype)

    def results() -> dict[str, Tensor]:
        first, model = step(training, device, dtype)  # a fresh model: the timed one has been trained
        loss = first()
        # all gradients in one vector, for their scales differ by design
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return {"loss": loss, "all gradients": torch.cat(gradients)}

    return Prepared({STEP: one}, results)


def trainings(given: argparse.Namespace, is_gpu: bool) -> dict[str, Training]:
    """Name -> what is trained, at the sizes asked for: small batches on a CPU, everything small with --quick."""
    files = [Path(file) for file in given.config or ()]
    if not files:
        files = [CONFIGS / f"{name}.yaml" for name in (PUBLISHED if is_gpu else ON_CPU)]
    found = {}
    for file in files:
        training = read(file)
        found[f"{file.stem}, {file.absolute().parent.name}"] = training
        if given.config is None and not is_gpu:
            found[f"{file.stem}, scifar"] = replace(training.changed(**_SCIFAR), length=1024)
    for name, training in found.items():
        batch = training.batch if is_gpu else min(training.batch, 2)
        if given.quick:
            training = training.tiny()
        found[name] = replace(training, batch=given.batch or batch, length=given.length or training.length)
    return found


def variants(found: dict[str, Training], is_gpu: bool, compiled: bool = False) -> dict[str, Training]:
    """Each training, without its layer's bias, and on a GPU in bf16-mixed; or each beside itself compiled."""
    if compiled:
        return {f"{name}{how}": replace(training, compiled=bool(how))
                for name, training in found.items() for how in ("", ", compiled")}  # fmt: skip
    more = {}
    for name, training in found.items():
        more[name] = training
        if without := training.without_bias:
            more[f"{name} without bias"] = without
        if is_gpu:
            more[f"{name}, bf16-mixed"] = replace(training, mixed=True)
    return more


def compare(found: dict[str, Training], bench: Bench) -> list[Row]:
    """Steps of equal batch and length beside each other.

    On a GPU without errors: a step in float64 takes longer than all else here, and operators.py has them.
    """
    sizes: dict[tuple[int, int], list[Contender]] = {}
    for name, training in found.items():
        build = partial(prepared_step, training, bench.device)
        truth = None if bench.is_gpu else partial(build, torch.float64)
        same = sizes.setdefault((training.batch, training.length), [])
        same.append(Contender(name, build, truth))
    rows = []
    for (B, L), contenders in sizes.items():
        rows += bench.compare("training steps", {"B": B, "L": L}, contenders, modes=(STEP,))
    return rows


def profile(row: Row, training: Training, bench: Bench) -> dict[str, float]:
    """Part of the step -> ms; puts samples/s and, on a GPU, what the host does into the row."""
    bench.say(f"profile of {row.contender}")
    if row.ms is None:
        return {}
    row.extra["samples/s"] = 1e3 * training.batch / row.ms
    row.extra["tokens/s"] = 1e3 * training.batch * training.length / row.ms
    try:
        call, _ = step(training, bench.device)
        parts, more, _ = parts_of_step(call, bench.device)
    except RuntimeError as error:  # out of memory
        bench.say(f"no profile of {row.contender}: {error}")
        return {}
    row.extra |= more
    return parts


def over(row: Row, other: Row) -> float:
    """The median over rounds of a contender's time over another's of the same comparison."""
    common = row.samples_ms.keys() & other.samples_ms
    return float(np.median([row.samples_ms[i] / other.samples_ms[i] for i in common]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, EXAMPLE)
    parser.add_argument("--config", type=words, metavar="LIST", help="config files, comma-separated; default: three of "
                        "ListOps, on a GPU all six LRA tasks' and sCIFAR's")  # fmt: skip
    parser.add_argument("--batch", type=positive, metavar="N", help="default: the config's, at most 2 on a CPU")
    parser.add_argument("--length", type=positive, metavar="N", help="default: the config's")
    parser.add_argument("--compile", action="store_true", help="each config beside itself with its blocks compiled")
    given = parser.parse_args(arguments)
    is_gpu = device_of(given).type == "cuda"
    found = variants(trainings(given, is_gpu), is_gpu, given.compile)
    bench = Bench("steps", given)
    rows = compare(found, bench)
    profiles = {row.contender: profile(row, found[row.contender], bench) for row in rows}
    bench.more["profiles, ms"] = profiles
    measured = {row.contender: row for row in rows if row.ms}
    for name, row in measured.items():
        without = measured.get(f"{name} without bias")
        if without is not None:
            row.extra["over without bias"] = over(row, without)
        if uncompiled := measured.get(name.removesuffix(", compiled")) if name.endswith(", compiled") else None:
            row.extra["over not compiled"] = over(row, uncompiled)
    lines = []
    for row in rows:
        lines.append({"": row.contender, **{name: f"{x:,.4g}" for name, x in row.extra.items()}})
    bench.table("rates", lines)
    for name, parts in profiles.items():
        bench.parts(f"one step of {name}, by part", parts)
    bars = [Bar("", f"{name}, B {row.shape['B']}", row.extra["tokens/s"]) for name, row in measured.items()]
    bench.finish_bars(bars, "tokens/s")


if __name__ == "__main__":
    start(main)
