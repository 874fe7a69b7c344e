"""state-spaces/s4's S4D next to ours, with the settings of v3.0.0 (the published LRA rows) and of HEAD.

    git clone https://github.com/state-spaces/s4 && git -C s4 checkout v3.0.0
    pip install einops opt_einsum hydra-core scipy scikit-learn transformers
    python benchmarks/parity/s4.py s4                       # every case of v3.0.0
    python benchmarks/parity/s4.py s4-head --version=head

Everything public comes from the checkout: its Hydra configs (experiment/lra/…-imdb and …-listops) with a smaller width
and depth, and `train.SequenceLightningModule`, which builds encoder, model, decoder, loss, optimizer groups and
schedule. Packages that only its data sets need are replaced by empty ones. Without pykeops its Vandermonde product is
its own plain PyTorch.

The schedule is the source's, shrunk to the steps of a comparison: a tenth of them is warm-up.
"""

import argparse
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from compare import RESULTS, STEPS, From, Names, TorchPeer, arrays_of, cross_entropy, load_weights, run_case
from lra_ssm.datamodules import ListOps, Text
from lra_ssm.layers import S4D, BlockSpec, LayerSpec, S4Block
from lra_ssm.models import Classifier
from lra_ssm.tasks.optim import OptimizerSettings, RoleSettings, parameter_groups, parameter_rates
from lra_ssm.tasks.schedules import Span, schedule_of

# Packages of data sets, loggers and other models, which nothing here needs.
ABSENT = (
    "torchvision", "torchtext", "torchaudio", "timm", "wandb", "librosa", "sktime", "munch", "sacrebleu", "tslearn",
    "gluonts", "cv2",
)  # fmt: skip
TAGS = {"v3": "v3.0.0 (ab287c63f493)", "head": "HEAD (e757cef57d89)"}


# -- the public code -----------------------------------------------------------------------------------------------


class _Any(type):
    """A class whose attributes are such classes, as `import` and class bodies expect from an absent package."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent


class Absent(metaclass=_Any):
    pass


class _AbsentPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        absent = fullname.split(".")[0] in ABSENT
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if absent else None

    def create_module(self, spec: Any) -> ModuleType:
        module = ModuleType(spec.name)
        module.__dict__["__getattr__"] = lambda name: getattr(Absent, name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__path__"] = []


def import_public(checkout: Path) -> Any:
    """Import and return the checkout's train.py."""
    sys.meta_path.append(_AbsentPackages())
    sys.path.insert(0, str(checkout.resolve()))
    import train  # type: ignore[import-not-found]

    return train


def build_public(checkout: Path, train: Any, experiment: str, vocabulary: int, classes: int, settings: Sequence[str]):  # type: ignore[no-untyped-def]
    """Return the LightningModule that `python -m train experiment=… SETTINGS` builds.

    The data set has only sizes: ids of a vocabulary, or one feature."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf
    from src.dataloaders import SequenceDataset  # type: ignore[import-not-found]

    class Sizes(SequenceDataset):
        _name_ = "sizes"
        n_tokens, d_input, d_output, l_output = vocabulary, 1, classes, 0

        def __init__(self, **_: Any) -> None:
            pass

    with initialize_config_dir(config_dir=str(checkout.resolve() / "configs"), version_base="1.1"):
        chosen = [f"experiment={experiment}", "dataset._name_=sizes", "train.disable_dataset=true", *settings]
        config = compose("config", overrides=chosen)
    OmegaConf.set_struct(config, False)
    return train.SequenceLightningModule(config)


def public_loss(module: nn.Module, batch: Any) -> Tensor:
    """Return the loss of its training step, without logging. Encoder, model and decoder get the lengths."""
    _, _, labels = batch
    return module.loss(public_logits(module, batch), labels)  # type: ignore[operator]


def public_logits(module: nn.Module, batch: Any) -> Tensor:
    """Return the logits (batch, classes)."""
    inputs, lengths, labels = batch
    logits, _, _ = module((inputs, labels, {} if lengths is None else {"lengths": lengths}))
    return logits


# -- ours ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A model in both codes.

    experiment: of v3.0.0 and of HEAD. theirs: further settings of the public configs. ours: what differs from the
    layer's defaults.
    """

    experiment: dict[str, str]
    data: str
    length: int
    prenorm: bool
    layers: int
    theirs: tuple[str, ...] = ()
    discretization: str = "bilinear"
    norm: str = "batch_padded"
    about: str = ""
    versions: tuple[str, ...] = ("v3",)


ZOH = ("+model.layer.disc=zoh",)  # of v3.0.0; HEAD's default
EXP = ("model.layer.dt_transform=exp",)  # Δ = exp(w), as v3.0.0; HEAD has softplus(w)
IMDB = {"v3": "lra/s4-lra-imdb", "head": "lra/s4-imdb"}
LISTOPS = {"v3": "lra/s4-lra-listops", "head": "lra/s4-listops"}
CASES = {
    "text-full-zoh": Case(IMDB, "text", 128, True, 2, ZOH, "zoh",
                          about="full length, zero-order hold"),
    "text-full": Case(IMDB, "text", 128, True, 2, about="full length, bilinear rule"),
    "text-padded": Case(IMDB, "text", 256, True, 2, about="padded, bilinear rule"),
    "listops-padded": Case(LISTOPS, "listops", 100, False, 4, about="padded, post-norm, bilinear rule"),
    "listops-masked": Case(LISTOPS, "listops", 100, False, 4, about="the same, ours with masked statistics",
                           norm="batch"),
    "text-padded-exp": Case(IMDB, "text", 256, True, 2, EXP, "zoh",
                            about="padded, zero-order hold, exp for Δ", versions=("head",)),
    "text-padded-softplus": Case(IMDB, "text", 256, True, 2, (), "zoh", versions=("head",),
                                 about="padded, zero-order hold, theirs with softplus for Δ"),
    "listops-padded-exp": Case(LISTOPS, "listops", 100, False, 4, EXP, "zoh",
                               about="padded, post-norm, zero-order hold, exp for Δ", versions=("head",)),
}  # fmt: skip
WIDTH, STATES, BATCH = 64, 64, 16


def public_settings(version: str, case: Case, steps: int) -> list[str]:
    """Return changes to the public config: S4D as its README says, our sizes, and the schedule's length."""
    measure = "measure" if version == "v3" else "init"
    return [
        "model.layer.mode=diag", f"model.layer.{measure}=diag-legs", f"model.n_layers={case.layers}",
        f"model.d_model={WIDTH}", f"model.layer.d_state={STATES}", "model.layer.n_ssm=${..d_model}",
        f"scheduler.num_training_steps={steps}", f"scheduler.num_warmup_steps={steps // 10}", *case.theirs,
    ]  # fmt: skip


def build_ours(case: Case, vocabulary: int, classes: int) -> Classifier:
    layer = LayerSpec(S4D, d_state=STATES, bidirectional=True, discretization=case.discretization)
    block = BlockSpec(S4Block, norm=case.norm, prenorm=case.prenorm)
    return Classifier(layer, classes, vocabulary, d_model=WIDTH, n_layers=case.layers, block=block)


def names(version: str, layers: int, prenorm: bool) -> tuple[dict[str, str | From], list[str]]:
    """Return our names -> theirs, and those of their parameters that they never read."""
    table: dict[str, str | From] = {
        "backbone.embedding.weight": "encoder.0.weight",
        "head.weight": "decoder.0.output_transform.weight",
        "head.bias": "decoder.0.output_transform.bias",
    }
    if prenorm:
        table |= {f"backbone.norm.norm.{x}": f"model.norm.norm.{x}" for x in ("weight", "bias")}
    unused = []
    for i in range(layers):
        ours, theirs = f"backbone.blocks.{i}", f"model.layers.{i}"
        table |= {f"{ours}.norm.norm.{x}": f"{theirs}.norm.norm.{x}" for x in ("weight", "bias")}
        table |= {f"{ours}.glu.{x}": f"{theirs}.layer.output_linear.0.{x}" for x in ("weight", "bias")}
        if version == "v3":
            layer, kernel = f"{theirs}.layer", f"{theirs}.layer.kernel.kernel"
            system: dict[str, str | From] = {
                "log_delta": f"{kernel}.log_dt",
                "A_log": f"{kernel}.inv_A_real",
                "A_imag": f"{kernel}.A_imag",
                "B": f"{kernel}.B",
            }
            unused.append(f"{kernel}.A")
        else:
            layer = f"{theirs}.layer.layer"
            kernel = f"{layer}.kernel"
            system = {
                "log_delta": From(f"{kernel}.inv_dt", lambda x: x[:, 0]),
                "A_log": f"{kernel}.A_real",
                "A_imag": From(f"{kernel}.A_imag", np.negative),
                "B": From(f"{kernel}.B", lambda x: x[0]),
            }
        system |= {"C": f"{kernel}.C", "D": From(f"{layer}.D", lambda x: x[0])}
        table |= {f"{ours}.layer.{name}": each for name, each in system.items()}
    return table, unused


def with_softplus(table: Names) -> Names:
    """Return the table for theirs with Δ = softplus(inv_dt): ours stores log Δ, so that both start with equal Δ."""
    deltas = {name: each for name, each in table.items() if name.endswith("log_delta") and isinstance(each, From)}
    return {**table, **{n: From(e.theirs, lambda x: np.log(np.log1p(np.exp(x[:, 0])))) for n, e in deltas.items()}}


def settings(version: str, steps: int) -> OptimizerSettings:
    """Return the settings of configs/lra/*/s4d.yaml.

    Δ has the base rate without decay; only HEAD exempts biases and norms from decay.
    """
    roles = {"delta": RoleSettings(lr_factor=1.0)}
    if version == "v3":
        roles["no_decay"] = RoleSettings(weight_decay=0.05)
    return OptimizerSettings(lr=0.01, weight_decay=0.05, roles=roles, warmup_steps=steps // 10)


def peer_of_ours(version: str, network: nn.Module, steps: int) -> TorchPeer:
    """Return our peer with these settings. As in HEAD, decay exempts the backbone's biases but not the head's."""
    optimizer_settings = settings(version, steps)
    rates = dict(parameter_rates(network, optimizer_settings))
    if version == "head":
        rates["head.bias"] = rates["head.weight"]
    optimizer = torch.optim.AdamW(parameter_groups(network, rates), betas=optimizer_settings.betas)
    schedule = schedule_of(optimizer, optimizer_settings.schedule, {}, Span(optimizer_settings.warmup_of(steps), steps))
    return TorchPeer(network.train(), cross_entropy, optimizer, group, schedule)


GROUPS = {"A_log": "A", "A_imag": "A", "B": "B", "C": "C", "log_delta": "delta"}


def group(ours: str) -> str:
    """Return the group in which the gradient of one of our parameters is counted."""
    return GROUPS.get(ours.rpartition(".")[2], "other")


# -- data ----------------------------------------------------------------------------------------------------------


def cut(batch: Any, generator: torch.Generator) -> Any:
    """Cut each sequence to a random length of at least a quarter."""
    inputs, lengths, labels = batch
    B, L = inputs.shape
    lengths = torch.randint(L // 4, L + 1, (B,), generator=generator)
    lengths[0] = L
    return inputs.masked_fill(torch.arange(L) >= lengths[:, None], 0), lengths, labels


def batches_of(case: Case, root: Path, count: int) -> tuple[list[Any], int, int]:
    """Return batches (inputs, lengths, labels) from our data modules, the vocabulary size and the number of classes.

    Text of full length has only batches without padding; padded, each review is cut to a random length of at least a
    quarter.
    """
    data: Any
    if case.data == "text":
        data = Text(root=str(root), batch_size=BATCH, max_length=case.length, shuffle_seed=0)
    else:
        data = ListOps(root=str(root), batch_size=BATCH, max_length=case.length, length_bounds=(3, case.length),
                       max_depth=5, num_train=BATCH * count, shuffle_seed=0)  # fmt: skip
    data.prepare_data()
    data.setup("fit")
    each = (tuple(batch) for batch in data.train_dataloader())
    if case.data == "text":
        each = (batch for batch in each if bool((batch[1] == case.length).all()))
    if case.data == "text" and "padded" in case.about:
        generator = torch.Generator().manual_seed(0)
        each = (cut(batch, generator) for batch in each)
    return list(islice(each, count)), (135 if case.data == "text" else 18), (2 if case.data == "text" else 10)


# -- comparing -----------------------------------------------------------------------------------------------------


class Scheduled(TorchPeer):
    """A peer with the optimizer and schedule from the module's `configure_optimizers`."""

    def __init__(self, module: Any, table: Names, unused: list[str]) -> None:
        (optimizer,), (schedule,) = module.configure_optimizers()
        scheduler: LRScheduler = schedule["scheduler"]
        super().__init__(module.train(), public_loss, optimizer, group, scheduler, names=table, unused=unused)


def run(name: str, version: str, checkout: Path, train: Any, root: Path, steps: int, out: Path, double: bool) -> None:
    """Compares one case. double: both in float64."""
    case = CASES[name]
    batches, vocabulary, classes = batches_of(case, root, steps)
    torch.manual_seed(0)
    chosen = public_settings(version, case, steps)
    public = build_public(checkout, train, case.experiment[version], vocabulary, classes, chosen)
    table, unused = names(version, case.layers, case.prenorm)
    if name.endswith("softplus"):
        table = dict(with_softplus(table))
    weights = arrays_of(public)
    dtype = torch.float64 if double else torch.float32

    def ours() -> TorchPeer:
        network = build_ours(case, vocabulary, classes)
        load_weights(network, weights, table, unused)
        return peer_of_ours(version, network.to(dtype), steps)

    run_case(
        f"s4-{version}-{name}{'-float64' if double else ''}", Scheduled(public.to(dtype), table, unused), ours, batches,
        steps, out, 2e-16 if double else 1e-7, source="state-spaces/s4", commit=TAGS[version], about=case.about,
        sizes=f"{case.layers} × {WIDTH}, {STATES} states, length {case.length}, batch {BATCH}",
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("checkout", type=Path, help="a checkout of state-spaces/s4, at v3.0.0 or HEAD")
    parser.add_argument("--version", choices=list(TAGS), default="v3")
    parser.add_argument("--cases", default="", help=f"some of {', '.join(CASES)}; default: all of the version")
    parser.add_argument("--data", type=Path, default=Path("data"), help="data root, with Text prepared")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument(
        "--double", action="store_true", help="both in float64, where rounding starts 5e8 times smaller"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    chosen = [name for name, case in CASES.items() if given.version in case.versions]
    chosen = given.cases.split(",") if given.cases else chosen
    train = import_public(given.checkout)
    for name in chosen:
        run(name, given.version, given.checkout, train, given.data, given.steps, given.out, given.double)


if __name__ == "__main__":
    main()
