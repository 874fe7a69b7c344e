"""NicolasZucchet/minimal-LRU's classifier next to ours: LRU layers, a gated linear unit, batch norm.

    git clone https://github.com/NicolasZucchet/minimal-LRU && git -C minimal-LRU checkout bbd71b1104c3
    pip install jax flax optax tqdm     # CPU builds; 0.10.2, 0.12.8 and 0.2.8 were used
    python benchmarks/parity/minimal_lru.py minimal-LRU

Its model, initialization, optimizer groups, schedule, loss and training step run as they are, by the commands of its
README. It has no mask: padding is token 0 for its layers, its batch norm and its mean over positions.

Shapes: B batch, L length, D channels, N complex states, V vocabulary.
"""

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch import nn

from compare import STEPS, From, TorchPeer, load_weights, run_case
from jax_peer import BATCH, STEPS_PER_EPOCH, WIDTH, Annealing, JaxPeer, compare_cases, flat, options, transposed
from lra_ssm.layers import LRU, BlockSpec, LayerSpec, S5Block
from lra_ssm.models import Classifier
from lra_ssm.tasks import OptimizerSettings, RoleSettings
from lra_ssm.tasks.optim import parameter_groups, parameter_rates
from s5_family import gradient_group, loss_on_features, public_schedule

COMMIT = "bbd71b1104c3"
SOURCE = "NicolasZucchet/minimal-LRU"


class Case(NamedTuple):
    """A command of the README at a size for two cores."""

    command: str
    about: str
    d_input: int
    num_classes: int
    length: int  # all sequences are padded to it
    padded: bool
    changed: dict[str, Any]


CASES = {
    "listops": Case("run_train.py --dataset listops-classification", "padded", 20, 10, 100, True, {"n_layers": 4}),
    "cifar": Case("run_train.py --dataset cifar-classification", "full length", 1, 2, 256, False, {"n_layers": 2}),
}


# -- the public code -----------------------------------------------------------------------------------------------


def public_peer(given: Namespace, case: Case, names: dict[str, str | From], seed: int = 0) -> JaxPeer:
    """As lru/train.py builds and trains it."""
    from lru import train_helpers as helpers
    from lru.model import LRU as PublicLRU
    from lru.model import BatchClassificationModel

    layer = partial(PublicLRU, d_hidden=given.d_hidden, d_model=given.d_model, r_min=given.r_min, r_max=given.r_max)
    model = partial(
        BatchClassificationModel, lru=layer, d_output=case.num_classes, d_model=given.d_model, n_layers=given.n_layers,
        dropout=given.p_dropout, pooling=given.pooling, norm=given.norm, prenorm=given.prenorm, multidim=1,
    )  # fmt: skip
    slow = given.lr_factor * given.lr_base
    state = helpers.create_train_state(
        model, jax.random.PRNGKey(seed), in_dim=case.d_input, batch_size=given.batch_size, seq_len=case.length,
        weight_decay=given.weight_decay, norm=given.norm, ssm_lr=slow, lr=given.lr_base,
    )  # fmt: skip
    training, key = model(training=True), jax.random.PRNGKey(seed)
    annealing = Annealing(given, helpers, STEPS_PER_EPOCH)

    def train_step(state: Any, batch: Any) -> tuple[Any, Any]:
        inputs, lengths, labels = batch
        with_lengths = {} if lengths is None else {"lengths": lengths.numpy()}
        prepared = helpers.prep_batch((inputs, labels, with_lengths), case.length, case.d_input)
        return helpers.train_step(state, key, *prepared, training, given.norm)

    def set_rates(state: Any, step: int) -> Any:
        function, end = annealing.after(step)
        return helpers.update_learning_rate_per_step((function, slow, given.lr_base, step, end, given.lr_min), state)[0]

    return JaxPeer(state, train_step, set_rates, names, group)


def names_of(given: Namespace) -> dict[str, str | From]:
    """Return each of our parameters, and where it comes from in the public code."""

    def complex_of(theirs: str) -> From:
        return From((f"{theirs}_re", f"{theirs}_im"), lambda re, im: np.stack([re, im], -1))

    names: dict[str, str | From] = {
        "backbone.embedding.weight": transposed("encoder/encoder/kernel"),
        "backbone.embedding.bias": "encoder/encoder/bias",
        "head.weight": transposed("decoder/kernel"),
        "head.bias": "decoder/bias",
    }
    for i in range(given.n_layers):
        ours, theirs = f"backbone.blocks.{i}", f"encoder/layers_{i}"
        out1, out2 = f"{theirs}/out1", f"{theirs}/out2"  # what is gated, and the gate
        names |= {
            f"{ours}.norm.norm.weight": f"{theirs}/normalization/scale",
            f"{ours}.norm.norm.bias": f"{theirs}/normalization/bias",
            f"{ours}.layer.modulus_weight": f"{theirs}/seq/nu_log",  # |λ| = exp(-exp(w))
            f"{ours}.layer.theta_log": f"{theirs}/seq/theta_log",
            f"{ours}.layer.gamma_log": f"{theirs}/seq/gamma_log",
            f"{ours}.layer.B": complex_of(f"{theirs}/seq/B"),  # (N, D, 2)
            f"{ours}.layer.C": complex_of(f"{theirs}/seq/C"),  # (D, N, 2)
            f"{ours}.layer.D": f"{theirs}/seq/D",
            f"{ours}.glu.weight": From((f"{out1}/kernel", f"{out2}/kernel"), lambda a, b: np.concatenate([a.T, b.T])),
            f"{ours}.glu.bias": From((f"{out1}/bias", f"{out2}/bias"), lambda a, b: np.concatenate([a, b])),
        }
    return names


group = partial(gradient_group, groups={"modulus_weight": "λ, γ", "theta_log": "λ, γ", "gamma_log": "λ, γ", "B": "B"})

# -- ours ----------------------------------------------------------------------------------------------------------


def our_network(given: Namespace, case: Case) -> Classifier:
    """Return our network with the options of the public code.

    Flax's BatchNorm keeps 0.99 of its running statistics.
    """
    layer = LayerSpec(LRU, d_state=given.d_hidden, r_min=given.r_min, r_max=given.r_max)
    block = BlockSpec(
        S5Block, activation="full_glu", norm="batch", norm_momentum=0.99, prenorm=given.prenorm, dropout=given.p_dropout
    )
    return Classifier(
        layer, case.num_classes, d_input=case.d_input, d_model=given.d_model, n_layers=given.n_layers, block=block
    )


def our_peer(network: nn.Module, given: Namespace, case: Case) -> TorchPeer:
    """Return our peer: the optimizer groups of configs/lra/listops/lru.yaml under the public schedule."""
    roles = {
        "recurrent": RoleSettings(lr_factor=given.lr_factor),
        "no_decay": RoleSettings(weight_decay=given.weight_decay),
    }
    settings = OptimizerSettings(lr=given.lr_base, weight_decay=given.weight_decay, roles=roles)
    optimizer = torch.optim.AdamW(parameter_groups(network, parameter_rates(network, settings)))
    schedule = public_schedule(optimizer, STEPS_PER_EPOCH, given.epochs, given.warmup_end, given.lr_min)
    loss = loss_on_features(case.d_input, case.length, pooled="all")
    return TorchPeer(network.train(), loss, optimizer, group, schedule)


def run(name: str, checkout: Path, batches: list[Any], steps: int, folder: Path) -> None:
    """Compares one case."""
    case = CASES[name]
    changed = case.changed | {"d_model": WIDTH, "d_hidden": 32, "batch_size": BATCH, "p_dropout": 0.0}
    given = options(checkout, "lru", case.command, epochs=STEPS // STEPS_PER_EPOCH, **changed)
    names = names_of(given)
    theirs = public_peer(given, case, names)

    def ours() -> TorchPeer:
        network = our_network(given, case)
        load_weights(network, flat(theirs.state.params), names)
        return our_peer(network, given, case)

    run_case(
        f"minimal-lru-{name}", theirs, ours, batches, steps, folder, source=SOURCE, commit=COMMIT, about=case.about,
        sizes=f"{given.n_layers} × {WIDTH}, {given.d_hidden} states, length {case.length}, batch {BATCH}",
    )  # fmt: skip


if __name__ == "__main__":
    compare_cases(__doc__ or "", CASES, run)
