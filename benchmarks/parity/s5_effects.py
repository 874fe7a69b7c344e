"""What the differences between our configs and the public code of S5 and LRU change: test accuracy on short ListOps.

    python benchmarks/parity/s5_effects.py              # half an hour on one core; needs no public code and no JAX

Each run has one difference from our config (configs/lra/listops/s5.yaml and lru.yaml at a small size), or all of them,
and the public code's weights' distribution, not its numbers. A run that is in the CSV is not made again.

Shapes: B batch, L length.
"""

import argparse
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from compare import RESULTS, TorchPeer, forever, report, run_missing, train_and_test
from lra_ssm.datamodules import ListOps
from lra_ssm.layers import LRU, S5, BlockSpec, LayerSpec, S4Block, S5Block
from lra_ssm.models import Classifier
from lra_ssm.tasks import OptimizerSettings, RoleSettings
from lra_ssm.tasks.optim import optimizer_and_schedule
from s5_family import features, public_schedule, start_as_flax

D_MODEL, N_LAYERS, BATCH, VOCABULARY, CLASSES = 64, 2, 32, 20, 10
EPOCHS, STEPS_PER_EPOCH = 20, 50
LENGTH = 40  # of the longest sequence, <eos> included


@dataclass(frozen=True)
class Recipe:
    """How one model is built and trained; padded as "masked", "seen" (by layers and norms) or "pooled" (seen, and in
    the mean over positions)."""

    layer: LayerSpec
    block: BlockSpec
    settings: OptimizerSettings
    warmup_epochs: int
    lr_min: float = 0.0
    padding: str = "masked"
    embedding_std: float | None = VOCABULARY**-0.5
    one_hot: bool = False
    flax: bool = False
    public_schedule: bool = False

    def network(self) -> Classifier:
        tokens = {"vocab_size": VOCABULARY, "embedding_std": self.embedding_std}
        inputs = {"d_input": VOCABULARY} if self.one_hot else tokens
        padding = "masked" if self.padding == "masked" else "seen"
        network = Classifier(
            self.layer, CLASSES, d_model=D_MODEL, n_layers=N_LAYERS, block=self.block, padding=padding, **inputs
        )
        if self.flax:
            start_as_flax(network)
        return network

    def logits(self, network: nn.Module, batch: Any) -> Tensor:
        inputs, lengths, _ = batch
        if self.padding != "masked":
            inputs = F.pad(inputs, (0, LENGTH - inputs.shape[1]))
        if self.one_hot:
            inputs = features(inputs, VOCABULARY, inputs.shape[1])
        return network(inputs, None if self.padding == "pooled" else lengths)

    def loss(self, network: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(self.logits(network, batch), batch[2])


S5_RECIPE = Recipe(
    LayerSpec(S5, d_state=16, num_blocks=8, C_init="lecun", bidirectional=True, fast_B=True),
    BlockSpec(S5Block, activation="half_glu2", norm="batch", norm_momentum=0.95),
    OptimizerSettings(lr=0.003, weight_decay=0.04, roles={"no_decay": RoleSettings(weight_decay=0.04)},
                      warmup_steps=STEPS_PER_EPOCH),
    warmup_epochs=1,
)  # fmt: skip
LRU_RECIPE = Recipe(
    LayerSpec(LRU, d_state=32),
    BlockSpec(S5Block, activation="full_glu", norm="batch", norm_momentum=0.99, dropout=0.1),
    OptimizerSettings(lr=0.001, weight_decay=0.05, warmup_steps=0, roles={
        "recurrent": RoleSettings(lr_factor=0.5), "no_decay": RoleSettings(weight_decay=0.05)}),
    warmup_epochs=0, lr_min=1e-7,
)  # fmt: skip
WIDE = {"embedding_std": None}
FLAX = {"one_hot": True, "flax": True}
PUBLIC = {**FLAX, "public_schedule": True}
RECIPES: dict[str, dict[str, Recipe]] = {
    "S5": {
        "our config": S5_RECIPE,
        "all: the public code": replace(S5_RECIPE, padding="seen", **PUBLIC),
        "embedding from N(0, 1)": replace(S5_RECIPE, **WIDE),
        "padding read": replace(S5_RECIPE, padding="seen"),
        "one-hot vectors, Flax's initialization": replace(S5_RECIPE, **FLAX),
        "S5's schedule": replace(S5_RECIPE, public_schedule=True),
    },
    "LRU": {
        "our config": LRU_RECIPE,
        "all: the public code": replace(LRU_RECIPE, padding="pooled", **PUBLIC),
        "padding read": replace(LRU_RECIPE, padding="seen"),
        "padding read and averaged": replace(LRU_RECIPE, padding="pooled"),
        "embedding from N(0, 1)": replace(LRU_RECIPE, **WIDE),
        "one-hot vectors, Flax's initialization": replace(LRU_RECIPE, **FLAX),
        "embedding from N(0, 1), S4's block": replace(
            LRU_RECIPE, **WIDE, block=BlockSpec(S4Block, norm="batch", prenorm=True, dropout=0.1)
        ),
    },
}


def run(folder: str, model: str, recipe: str, seed: int) -> dict[str, str]:
    """Trains for EPOCHS · STEPS_PER_EPOCH steps and tests."""
    torch.manual_seed(seed)
    data = ListOps(root=folder, batch_size=BATCH, eval_batch_size=200, length_bounds=(3, LENGTH), max_depth=4,
                   num_train=16000, num_val=10, num_test=4000, shuffle_seed=seed)  # fmt: skip
    data.prepare_data()
    data.setup()
    chosen = RECIPES[model][recipe]
    network, steps = chosen.network(), EPOCHS * STEPS_PER_EPOCH
    made = optimizer_and_schedule(network, chosen.settings, steps)
    optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    if chosen.public_schedule:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        schedule = public_schedule(optimizer, STEPS_PER_EPOCH, EPOCHS, chosen.warmup_epochs, chosen.lr_min)
    peer = TorchPeer(network.train(), chosen.loss, optimizer, lambda name: "all", schedule)
    batches = islice(forever(data.train_dataloader()), steps)
    scores = train_and_test(peer, batches, data.test_dataloader(), chosen.logits)
    return {"test accuracy": scores["test accuracy"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "s5-effects.csv")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        keys = [
            {"model": model, "recipe": recipe, "seed": seed}
            for seed in range(given.seeds)
            for model in given.models
            for recipe in RECIPES[model]
        ]
        run_missing(given.out, keys, partial(run, folder))
    report(given.out, ("model", "recipe"))


if __name__ == "__main__":
    main()
