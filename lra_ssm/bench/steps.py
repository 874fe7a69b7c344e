"""The suite of training steps: what a config trains, with random tokens: forward, loss, backward, clip, AdamW.

Shapes: inputs (B, L) int64, lengths (B,), labels (B,).  (B batch, L length.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F

import lra_ssm
from lra_ssm.bench.compare import Bar, Contender, Row, Settings, compare
from lra_ssm.bench.measure import ratio
from lra_ssm.bench.profile import profile_step
from lra_ssm.bench.work import STEP, Prepared, generator
from lra_ssm.errors import InputError
from lra_ssm.layers import NetworkSpec
from lra_ssm.ops import prefer_backend
from lra_ssm.tasks.optim import OptimizerSettings, parameter_groups, parameter_rates

CONFIGS = ("lra/listops/b2s6", "lra/listops/s6", "lra/listops/s4d")
# The sCIFAR models of Yu & Erichson 2025, table 1, as changes to the ListOps ones; batch size as the public S4's.
_SCIFAR: dict[str, Any] = {"vocab_size": None, "d_input": 3, "d_model": 128, "n_layers": 4, "num_classes": 10}
_SCIFAR_BATCH, _SCIFAR_LENGTH = 50, 1024
# On a GPU, which is fast enough for all of it: what is published for every task of LRA, and sCIFAR's.
PUBLISHED = (
    *(f"lra/{task}/{layer}" for task in ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
      for layer in ("s4d", "mamba", "b2s6")),
    "scifar/s4d", "scifar/s6", "scifar/b2s6",
)  # fmt: skip
CPU_BATCH = 2  # of the published 32 and 50 on a CPU, unless --batch says more


def config_files(given: str | None, names: Sequence[str]) -> list[Path]:
    """--config, or the repository's configs of these names. Raises InputError where there are none."""
    if given is not None:
        for file in given.split(","):
            if not Path(file).is_file():
                raise InputError(f"--config {file}: no such file")
        return [Path(file) for file in given.split(",")]
    for root in (Path(lra_ssm.__file__).parents[1], Path.cwd()):
        files = [root / "configs" / f"{name}.yaml" for name in names]
        if all(file.is_file() for file in files):
            return files
    folder = files[0].parent.relative_to(root)
    raise InputError(f"{folder} is neither beside the package nor in the working folder; name a --config FILE")


def configs_of(settings: Settings) -> list[Path]:
    """What the suite trains."""
    return config_files(settings.config, PUBLISHED if settings.device.type == "cuda" else CONFIGS)


def read_config(path: Path) -> dict[str, Any]:
    """Network, optimizer, batch size, length and gradient clipping of a config. Raises InputError otherwise."""
    try:
        config = yaml.safe_load(path.read_text())
        model, data = config["model"]["init_args"], config["data"]["init_args"]
        network, optimizer = model["network"], model.get("optimizer") or {}
        arguments = network["init_args"]
        found = {"network": network, "optimizer": optimizer, "batch": data["batch_size"]}
        found["length"] = _length(config["data"]["class_path"], data)
        found["clip"] = (config.get("trainer") or {}).get("gradient_clip_val")
    except (yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError) as error:
        what = f"no {error} in it" if isinstance(error, KeyError) else "it is no YAML of a config"
        raise InputError(
            f"--config {path}: {what}; a config of fit has model, data.class_path and data.batch_size"
        ) from error
    features = arguments.get("d_input") is not None
    if arguments.get("vocab_size") is None and not features and not takes_numbers(network):
        raise InputError(f"--config {path}: the network has neither vocab_size nor d_input")
    return found


def takes_numbers(network: dict[str, Any]) -> bool:
    """Whether token ids go in as numbers, as in the published Mamba on text: such a network has no vocabulary."""
    return "vocab_size" not in signature(NetworkSpec.of(network).cls).parameters


def _length(class_path: str, data: dict[str, Any]) -> int:
    """The longest sequence of a dataset of ours: of tokens, or the pixels of its images."""
    if "max_length" in data:
        return int(data["max_length"])
    name = class_path.rpartition(".")[2]
    sides = {"Image": 32, "SCIFAR": 32, "MNIST": 28, "Pathfinder": data.get("resolution", 32)}
    if name not in sides:
        raise KeyError("data.max_length")
    return int(sides[name]) ** 2


@dataclass(frozen=True)
class StepWork:
    """network, optimizer: the config's, as JSON, so that this is hashable."""

    network: str
    optimizer: str
    batch: int
    length: int
    clip: float | None
    backend: str
    device: torch.device
    dtype: torch.dtype = torch.float32
    mixed: bool = False  # Lightning's bf16-mixed

    @property
    def arguments(self) -> dict[str, Any]:
        return json.loads(self.network)["init_args"]

    @property
    def on_tokens(self) -> bool:
        return self.arguments.get("vocab_size") is not None or takes_numbers(json.loads(self.network))

    def build_network(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = NetworkSpec.of(json.loads(self.network))().to(self.device, self.dtype)
        rates = parameter_rates(model, OptimizerSettings(**json.loads(self.optimizer)))
        return model, torch.optim.AdamW(parameter_groups(model, rates))

    def random_batch(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """Random tokens with lengths, or features without; no padding, so that every position counts in tokens/s."""
        arguments, random = self.arguments, generator()
        labels = torch.randint(arguments["num_classes"], (self.batch,), generator=random).to(self.device)
        if not self.on_tokens:
            features = torch.randn(self.batch, self.length, arguments["d_input"], generator=random)
            return features.to(self.device, self.dtype), None, labels
        pairs = getattr(NetworkSpec.of(json.loads(self.network)).cls, "per_example", 1) == 2
        shape = (self.batch, 2) if pairs else (self.batch,)
        tokens = torch.randint(3, arguments.get("vocab_size", 18), (*shape, self.length), generator=random)
        return tokens.to(self.device), torch.full(shape, self.length, device=self.device), labels

    def step(self) -> tuple[Callable[[], Tensor], nn.Module]:
        """A call that trains the model by one step, and the model."""
        (model, optimizer), (inputs, lengths, labels) = self.build_network(), self.random_batch()

        def one() -> Tensor:
            with prefer_backend(self.backend):
                optimizer.zero_grad(set_to_none=True)
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed):
                    loss = F.cross_entropy(model(inputs, lengths), labels)
                loss.backward()
                if self.clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                return loss.detach()

        return one, model

    def build(self) -> Prepared:
        one, _ = self.step()

        def results() -> dict[str, Tensor]:
            first, model = self.step()  # a fresh model: the timed one has been trained
            loss = first()
            # the step clips and keeps its gradients; all of them in one vector, for their scales differ by design
            gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            return {"loss": loss, "all gradients": torch.cat(gradients)}

        return Prepared({STEP: one}, results)

    def smaller(self) -> StepWork:
        return replace(self, batch=2, length=min(self.length, 64))

    def bytes_needed(self) -> float:
        if self.device.type == "cuda":  # which says itself that it is full, and takes no harm
            return 0.0
        tokens = self.batch * self.length * self.arguments.get("n_layers", 8)
        return self.dtype.itemsize * tokens * 60 * self.arguments.get("d_model", 128)


@dataclass(frozen=True)
class StepTruth:
    """The same step in float64."""

    work: StepWork
    label: str = "float64 run of the same step"

    def results(self) -> dict[str, Tensor]:
        return replace(self.work, dtype=torch.float64, backend="auto").build().results()


def changed(network: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    """A network's specification with other arguments."""
    return {**network, "init_args": {**network["init_args"], **arguments}}


def sizes(network: dict[str, Any], batch: int, length: int, settings: Settings) -> tuple[dict[str, Any], int, int]:
    """Network, batch and length as the settings have them: small batches on a CPU, everything small with --quick."""
    batch = batch if settings.device.type == "cuda" else min(batch, CPU_BATCH)
    if settings.quick:
        network, batch, length = changed(network, d_model=16, n_layers=1), 2, min(length, 32)
    return network, settings.batch or batch, length


def make_work(
    network: dict[str, Any], config: dict[str, Any], batch: int, length: int, backend: str, settings: Settings
) -> StepWork:
    """A step of this network, with what else `read_config` found."""
    network_text, optimizer_text = (json.dumps(part, sort_keys=True) for part in (network, config["optimizer"]))
    return StepWork(network_text, optimizer_text, batch, length, config["clip"], backend, settings.device)


def works(settings: Settings) -> dict[str, StepWork]:
    """Name -> step of every config, on every backend; a selective layer with a bias also without it."""
    found: dict[str, StepWork] = {}
    files = configs_of(settings)
    for file in files:
        config = read_config(file)
        name = file.stem if len(files) == 1 else f"{file.stem}, {file.absolute().parent.name}"
        tasks = {name: (config["network"], config["batch"], config["length"])}
        if settings.config is None and settings.device.type == "cpu":
            tasks = {file.stem: tasks[name]}
            tasks = {f"{name}, ListOps": task for name, task in tasks.items()}
            tasks[f"{file.stem}, sCIFAR"] = (changed(config["network"], **_SCIFAR), _SCIFAR_BATCH, _SCIFAR_LENGTH)
        for task, (network, batch, length) in tasks.items():
            length = (settings.lengths or [length])[0]
            network, batch, length = sizes(network, batch, length, settings)
            layer = network["init_args"]["layer"]
            arguments = layer.get("init_args") or {}
            variants = {task: network}
            if arguments.get("bias"):
                without = {**layer, "init_args": {**arguments, "bias": False}}
                variants[f"{task} without bias"] = changed(network, layer=without)
            for name, variant in variants.items():
                backends = settings.backends if layer["class_path"].endswith("S6") else settings.backends[:1]
                for backend in backends:
                    work = make_work(variant, config, batch, length, backend, settings)
                    found[name if len(backends) == 1 else f"{name}; {backend}"] = work
                if settings.device.type == "cuda" and name == task:
                    found[f"{name}, bf16-mixed"] = replace(work, mixed=True)
    return found


def run(settings: Settings) -> dict[str, Any]:
    rows: list[Row] = []
    everything = works(settings)
    shapes = dict.fromkeys((work.batch, work.length) for work in everything.values())
    for batch, length in shapes:
        own = {name: w for name, w in everything.items() if (w.batch, w.length) == (batch, length)}
        contenders = [
            # in float64 a GPU's step takes longer than all else here; the operators' errors are in their suite
            Contender(name, w, StepTruth(replace(w, backend="auto")) if settings.device.type == "cpu" else None)
            for name, w in own.items()
        ]
        rows += compare("training steps", {"batch": batch, "length": length}, contenders, settings, modes=(STEP,))
    for row in rows:
        if row.timing is not None:
            row.extra["samples/s"] = row.shape["batch"] / row.timing.median
            row.extra["tokens/s"] = row.shape["batch"] * row.shape["length"] / row.timing.median
        _cost_of_bias(row, rows)
    profiles = {}
    for name, work in everything.items():
        settings.announce(f"profile of {name}")
        try:
            profiles[name], found = profile_step(work.step()[0], settings.device)
        except RuntimeError as error:  # out of memory, which its row says too
            settings.announce(f"no profile of {name}: {error}")
            continue
        for row in rows:
            if row.contender == name:
                row.extra |= found
        settings.tick()
    bars = [
        Bar("", f"{row.contender}, batch {row.shape['batch']}", row.extra["tokens/s"]) for row in rows if row.timing
    ]
    return {"rows": rows, "profiles": profiles, "bars": bars, "unit": "tokens/s"}


def _cost_of_bias(row: Row, rows: list[Row]) -> None:
    name, _, backend = row.contender.partition("; ")
    without = f"{name} without bias{'; ' if backend else ''}{backend}"
    for other in rows:
        if other.contender == without and other.shape == row.shape and row.timing and other.timing:
            row.extra["times the step without bias"] = ratio(row.timing, other.timing)[0]
