"""jsie7/ssm-benchmark's Mamba classifier, which is believed to stand behind LRA's Mamba rows, next to ours.

    git clone https://github.com/jsie7/ssm-benchmark && git -C ssm-benchmark checkout 3c4337fd8385
    pip install einops pytorch-warmup
    python benchmarks/parity/ssm_benchmark.py ssm-benchmark listops text image

Retrieval's model cannot be built at that commit, where its head lacks an argument. It could before:

    git -C ssm-benchmark checkout 07af385798fa
    python benchmarks/parity/ssm_benchmark.py ssm-benchmark retrieval

The public model runs on a CPU with the pure-torch `selective_scan_ref` of the mamba-ssm that the checkout contains.
Its backward pass takes time that grows with the square of the length, so sequences are short. Everything else is the
checkout's: model, initialization, settings (configs/*-mamba.yaml), one AdamW group, cosine by epochs, softmax before
the loss. Ours has the model and the optimizer of configs/lra/*/mamba.yaml, and the ways of the public code that our
config does not take (docs/reproduction.md, j and k) by the classes below. mamba_accuracy.py measures what each of
them changes.

Shapes: B batch, L length, D channels, N states, R rank of the Δ projection.
"""

import argparse
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from compare import RESULTS, STEPS, From, Names, TorchPeer, arrays_of, load_weights, run_case, smaller
from lra_ssm.datamodules import MNIST, ListOps, Text
from lra_ssm.layers import S6, BlockSpec, HeadSpec, LayerSpec, MambaBlock, NetworkSpec
from lra_ssm.models import Classifier, LinearHead, LogitPairHead
from lra_ssm.tasks import OptimizerSettings
from lra_ssm.tasks.optim import optimizer_and_schedule

CONFIGS = Path(__file__).parents[2] / "configs" / "lra"
WIDTH, DEPTH = 64, 2
EPOCH = 25  # steps; 20 epochs in 500 steps
BATCHES = 200


# -- the public code -----------------------------------------------------------------------------------------------


def import_public(checkout: Path, scan: Callable[..., Tensor] | None = None) -> ModuleType:
    """The checkout's `models.mamba`, with the pure-torch selective scan of its copy of mamba-ssm, or with `scan`.

    Its imports of CUDA extensions and of Mamba-2, which Mamba-1 does not call, are given empty modules.
    """
    folder = next(checkout.glob("mamba-*/mamba_ssm"))
    absent = {
        "Mamba2Simple": None,
        "mamba_chunk_scan_combined": None,
        "mamba_split_conv1d_scan_combined": None,
        "scan": None,
    }
    for name in ("mamba_ssm", *_EXTENSIONS):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__dict__.update(absent)
    sys.modules["mamba_ssm"].__path__ = [str(folder)]
    sys.path.insert(0, str(checkout))
    with warnings.catch_warnings(action="ignore"):  # names that torch has renamed since
        from mamba_ssm.modules import mamba_simple
        from mamba_ssm.ops.selective_scan_interface import selective_scan_ref
    mamba_simple.selective_scan_fn = scan or selective_scan_ref
    sys.modules["mamba_ssm"].__dict__["Mamba"] = mamba_simple.Mamba
    return import_module("models.mamba")


_EXTENSIONS = (
    "selective_scan_cuda",
    "mamba_ssm.modules.mamba2_simple",
    "mamba_ssm.ops.triton.ssd_combined",
    "accelerated_scan",
    "accelerated_scan.warp",
)


class PublicSchedule:
    """What the public train.py does after each epoch, called after each step."""

    def __init__(self, optimizer: Optimizer, settings: Mapping[str, Any], epochs: int, epoch_steps: int) -> None:
        self.cosine = CosineAnnealingLR(optimizer, T_max=epochs, eta_min=5e-6)
        self.dampening: Callable[[], AbstractContextManager[None]] = nullcontext
        self.epoch_steps, self.steps = epoch_steps, 0
        if "warmup" in settings:
            from pytorch_warmup import LinearWarmup

            warmup = round(settings["warmup"] * epochs / settings["num_epochs"])
            self.dampening = LinearWarmup(optimizer, warmup).dampening

    def step(self) -> None:
        self.steps += 1
        if self.steps % self.epoch_steps == 0:
            with self.dampening():
                self.cosine.step()


def public_peer(
    public: ModuleType, row: "Row", settings: Mapping[str, Any], steps: int, epoch_steps: int = EPOCH
) -> TorchPeer:
    """Return the public model as a peer. settings: from the row's YAML file in the checkout."""
    given = settings["model"] | {"hidden_dim": WIDTH, "state_dim": row.d_state, "output_dim": row.num_classes}
    del given["layer"]
    if "cfg" in inspect.signature(public.Mamba).parameters:
        model = public.Mamba(given | {"num_layers": DEPTH, "version": "mamba1"}).train()
    else:  # before November 2024, the version for which all files but Image's are written
        model = public.Mamba(**given | {"num_blocks": DEPTH}).train()
    train = settings["train"]
    rate = row.rate or train["lr"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=train["wd"])
    schedule: Any = PublicSchedule(optimizer, train, steps // epoch_steps, epoch_steps)
    return TorchPeer(model, loss_of(public_logits), optimizer, group_of, schedule, names=names_of(row, model))


def public_logits(model: nn.Module, batch: Any) -> Tensor:
    """Return the logits of the public train.py, which reads tokens as numbers and keeps padding."""
    inputs = batch[0]
    if inputs.dim() == 3 and not inputs.is_floating_point():  # pairs (B, 2, L): all first ones, then all second ones
        inputs = inputs.transpose(0, 1).flatten(0, 1)
    logits: Tensor = model(inputs if inputs.is_floating_point() else inputs.float()[:, :, None])
    return logits


def loss_of(logits: Callable[[nn.Module, Any], Tensor]) -> Callable[[nn.Module, Any], Tensor]:
    """Return the loss of a batch (inputs, lengths, labels)."""
    return lambda model, batch: F.cross_entropy(logits(model, batch), batch[2])


# -- ours ----------------------------------------------------------------------------------------------------------


class PublicBlock(MambaBlock):
    """MambaBlock with what only the public block has: a learned scale of the residual (scaled; not in the older
    version), and no norm after the last of pre-norm blocks."""

    def __init__(
        self, d_model: int, layer: LayerSpec, expand: float, norm: Any, prenorm: bool, glu: bool, scaled: bool
    ) -> None:
        super().__init__(d_model, layer, expand=expand, norm=norm, prenorm=prenorm, glu=glu)
        self.residual_scale = nn.Parameter(torch.ones(1)) if scaled else None

    def sublayer(
        self, x: Tensor, norm: nn.Module | None, f: Callable[[Tensor], Tensor], lengths: Tensor | None = None
    ) -> Tensor:
        residual = x if self.residual_scale is None else self.residual_scale * x
        assert norm is not None
        return residual + f(norm(x, lengths)) if self.prenorm else norm(residual + f(x), lengths)

    def final_norm(self, d_model: int) -> None:
        return None


class SoftmaxHead(LinearHead):
    """A linear map and a softmax: the public code takes the cross-entropy of probabilities."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(-1)


class SoftmaxPairHead(LogitPairHead):
    """The same for pairs."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(x, y).softmax(-1)


@dataclass(frozen=True)
class Row:
    """A row of LRA at a small size. rate: in place of the published one."""

    config: str
    public_config: str
    num_classes: int
    d_state: int = 64
    rate: float | None = None

    @property
    def ours(self) -> dict[str, Any]:
        """Return model.init_args of our config."""
        model = yaml.safe_load((CONFIGS / self.config / "mamba.yaml").read_text())["model"]
        arguments: dict[str, Any] = model["init_args"]
        return arguments


ROWS = {
    "listops": Row("listops", "listops-mamba.yaml", 10, 16),
    "text": Row("text", "imdb-mamba.yaml", 2, 16),
    "retrieval": Row("retrieval", "aan-mamba.yaml", 2, 16),
    "image": Row("image", "cifar-10-mamba.yaml", 10, 16),
}


@dataclass(frozen=True)
class Ways:
    """Which choices of the public code our model follows; with all of them, model and training are the same."""

    softmax: bool = True
    block: bool = True  # the residual's scale, and no norm after the last of pre-norm blocks
    padding: bool = True  # counts in the mean
    schedule: bool = True  # by epochs to 5e-6, Image's warm-up too; else as our config has it

    def logits(self, network: nn.Module, batch: Any) -> Tensor:
        logits: Tensor = network(batch[0], None if self.padding else batch[1])
        return logits


def our_network(row: Row, ways: Ways, scaled: bool = True) -> Classifier:
    """Return the network of our config at the small size. scaled: as in `PublicBlock`."""
    network = row.ours["network"]
    given = network["init_args"]
    block, layer = given["block"]["init_args"], given["layer"]["init_args"]
    layer |= {"d_state": row.d_state, "delta_rank": -(-WIDTH // 16)}
    if ways.block:
        its = BlockSpec(
            PublicBlock, scaled=scaled, **{each: block[each] for each in ("expand", "norm", "prenorm", "glu")}
        )
    else:
        its = BlockSpec(MambaBlock, **block)
    head = {"lra_ssm.models.LinearHead": SoftmaxHead, "lra_ssm.models.LogitPairHead": SoftmaxPairHead}[given["head"]]
    changed = {"layer": LayerSpec(S6, **layer), "block": its, "d_model": WIDTH, "n_layers": DEPTH}
    if ways.softmax:
        changed["head"] = HeadSpec(head)
    changed["num_classes"] = row.num_classes
    built: Classifier = NetworkSpec.of({"class_path": network["class_path"], "init_args": given | changed})()
    return built


def our_peer(row: Row, ways: Ways, network: nn.Module, steps: int, epoch_steps: int = EPOCH) -> TorchPeer:
    """Return a peer of our network with the optimizer settings of our config."""
    settings = row.ours["optimizer"]
    if row.rate is not None:
        settings |= {"lr": row.rate}
    if ways.schedule:
        settings |= {"cosine_by": "epoch", "min_lr_factor": 5e-6 / settings["lr"]}
    made = optimizer_and_schedule(network, OptimizerSettings.of(settings), steps, epoch_steps)
    optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    if ways.schedule and settings["warmup_steps"]:  # by epochs there; we have no such setting
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        schedule = LambdaLR(optimizer, damped(settings, steps // epoch_steps, epoch_steps))
    return TorchPeer(network.train(), loss_of(ways.logits), optimizer, group_of, schedule)


def damped(settings: Mapping[str, Any], epochs: int, epoch_steps: int) -> Callable[[int], float]:
    """Image's schedule by steps: a cosine by epochs to 5e-6, times the warm-up's share, which grows by epochs."""
    warmup, floor = round(settings["warmup_steps"] * epochs), settings["min_lr_factor"]

    def share(step: int) -> float:
        epoch = step // epoch_steps
        cosine = floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * epoch / epochs))
        return min(1.0, (epoch + 1) / warmup) * cosine

    return share


# -- both ----------------------------------------------------------------------------------------------------------


def names_of(row: Row, theirs: nn.Module) -> Names:
    """Return our parameters -> theirs."""
    R, N = -(-WIDTH // 16), row.d_state
    its = dict(theirs.named_parameters())
    pairs = {"backbone.embedding": "linear_encoder", "head": "linear_decoder"}
    if "match.encoder.weight" in its:
        heads = {
            "each": "linear_decoder",
            "match.0": "match.encoder",
            "match.2": "match.middle",
            "match.4": "match.decoder",
        }
        pairs = {"backbone.embedding": "linear_encoder", **{f"head.{ours}": each for ours, each in heads.items()}}
    names: dict[str, str | From] = {
        f"{ours}.{part}": f"{each}.{part}" for ours, each in pairs.items() for part in ("weight", "bias")
    }
    for i in range(DEPTH):
        ours, block = f"backbone.blocks.{i}", f"blocks.{i}"
        names |= {f"{ours}.norm.{part}": f"{block}.norm.{part}" for part in ("weight", "bias")}
        names |= {f"{ours}.glu.{part}": f"{block}.glu.linear.{part}" for part in ("weight", "bias")}
        names |= mamba_names(ours, f"{block}.mamba", R, N)
        if f"{block}.lambd" in its:
            names[f"{ours}.residual_scale"] = f"{block}.lambd"
    return names


def mamba_names(ours: str, theirs: str, R: int, N: int) -> dict[str, str | From]:
    """Return the parameters of our MambaBlock `ours`, without its norm -> those of the public Mamba `theirs`."""
    whole = {
        "in_proj.weight": "in_proj.weight",
        "conv1d.weight": "conv1d.weight",
        "conv1d.bias": "conv1d.bias",
        "layer.A_log": "A_log",
        "layer.D": "D",
        "layer.delta_up": "dt_proj.weight",
        "layer.delta_bias": "dt_proj.bias",
        "out_proj.weight": "out_proj.weight",
    }
    selection = f"{theirs}.x_proj.weight"
    return {f"{ours}.{name}": f"{theirs}.{each}" for name, each in whole.items()} | {
        f"{ours}.layer.delta_down": From(selection, lambda x: x[:R]),
        f"{ours}.layer.B": From(selection, lambda x: x[R : R + N]),
        f"{ours}.layer.C": From(selection, lambda x: x[R + N :]),
    }


def group_of(name: str) -> str:
    """Return the group in which the gradient of one of our parameters is counted."""
    if ".layer." in name:
        return "A and D" if name.endswith(("A_log", ".D")) else "Δ, B and C"
    if any(part in name for part in (".in_proj.", ".conv1d.", ".out_proj.", ".glu.")):
        return "projections"
    return "head" if name.startswith("head.") else "encoder, norms, residual"


def batches_of(row: str, root: Path) -> list[Any]:
    """ListOps of 10 to 32 tokens, reviews cut at 32 characters (for Retrieval pairs of them, in place of papers; the
    label is whether they judge alike), or MNIST's digits averaged to 7 × 7 pixels."""
    data: Any
    if row == "listops":
        data = ListOps(root=str(root), batch_size=8, max_length=32, length_bounds=(10, 32), num_train=8 * BATCHES,
                       num_val=8, num_test=8)  # fmt: skip
    elif row in ("text", "retrieval"):
        data = Text(root=str(root), batch_size=8, max_length=32)
    else:
        data = MNIST(root=str(root), batch_size=16)
    data.prepare_data()
    data.setup("fit")
    batches = []
    for batch in data.train_dataloader():
        inputs, lengths, labels = batch
        if row == "retrieval":
            pairs = labels.view(-1, 2)
            batches.append(
                (inputs.long().view(-1, 2, inputs.shape[1]), lengths.view(-1, 2), (pairs[:, 0] == pairs[:, 1]).long())
            )
        else:
            batches.append((pixels(inputs, 4) if row == "image" else inputs.long(), lengths, labels))
        if len(batches) == BATCHES:
            break
    return batches


def pixels(images: Tensor, size: int) -> Tensor:
    """Images (B, L, 1) from 0 to 1, averaged over size × size pixels: (B, L / size², 1), from -1 to 1."""
    return smaller(images, size) * 2 - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("rows", nargs="+", choices=list(ROWS))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    public = import_public(options.checkout)
    for name in options.rows:
        row, batches = ROWS[name], batches_of(name, options.data)
        settings = yaml.safe_load((options.checkout / "configs" / row.public_config).read_text())
        torch.manual_seed(0)
        theirs = public_peer(public, row, settings, options.steps)
        scaled = hasattr(theirs.model.blocks[0], "lambd")

        def ours(row: Row = row, model: nn.Module = theirs.model, scaled: bool = scaled) -> TorchPeer:
            network = our_network(row, Ways(), scaled)
            load_weights(network, arrays_of(model), names_of(row, model))
            return our_peer(row, Ways(), network, options.steps)

        L = max(each[0].shape[1 if name == "image" else -1] for each in batches)
        about = "full length" if name == "image" else "pairs, padded" if name == "retrieval" else "padded"
        about += f"; {'pre' if settings['model']['prenorm'] else 'post'}-norm, softmax before the loss"
        run_case(
            f"ssm-benchmark-{name}", theirs, ours, batches, options.steps, options.out, source="jsie7/ssm-benchmark",
            commit="3c4337fd8385" if scaled else "07af385798fa", about=about,
            sizes=f"{DEPTH} × {WIDTH}, {row.d_state} states, length {L}, batch {len(batches[0][2])}",
        )  # fmt: skip


if __name__ == "__main__":
    main()
