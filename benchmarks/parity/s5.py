"""lindermanlab/S5's classifier next to ours: S5 layers, half a gated linear unit, batch norm.

    git clone https://github.com/lindermanlab/S5 && git -C S5 checkout 3c18fdb6b064
    pip install jax flax optax tqdm     # CPU builds; 0.10.2, 0.12.8 and 0.2.8 were used
    python benchmarks/parity/s5.py S5

The public code is of 2022 (JAX 0.3.5). `restore_names` gives it back three names that JAX and Flax have dropped since,
and changes nothing else: its model, initialization, optimizer groups, schedule, loss and training step run as they are.

Shapes: B batch, L length, D channels, N states (conjugate pairs), K directions, V vocabulary.
"""

from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from compare import STEPS, From, Names, TorchPeer, load_weights, run_case
from jax_peer import BATCH, STEPS_PER_EPOCH, WIDTH, Annealing, JaxPeer, compare_cases, flat, options, transposed
from lra_ssm.layers import S5, BlockSpec, LayerSpec, S5Block
from lra_ssm.models import Classifier, DualEncoder, LinearHead, NLIHead
from lra_ssm.tasks import OptimizerSettings, RoleSettings
from lra_ssm.tasks.optim import parameter_groups, parameter_rates
from s5_family import gradient_group, loss_on_features, paired, public_schedule

COMMIT = "3c18fdb6b064"
SOURCE = "lindermanlab/S5"


class Case(NamedTuple):
    """A published run file at a size for two cores."""

    file: str
    about: str
    d_input: int
    num_classes: int
    length: int  # all sequences are padded to it
    padded: bool
    changed: dict[str, Any]  # sizes


CASES = {
    "listops": Case("run_lra_listops.sh", "padded; half_glu2, B at the base rate", 20, 10, 100, True, {"n_layers": 4}),
    "text": Case("run_lra_imdb.sh", "padded, no warm-up; half_glu2, Δ at the base rate with decay", 20, 10, 100, True,
                 {"n_layers": 2, "ssm_size_base": 48, "blocks": 3}),
    "retrieval": Case("run_lra_aan.sh", "pairs, padded; half_glu1, Δ at the base rate with decay", 20, 2, 100, True,
                      {"n_layers": 2, "ssm_size_base": 32, "blocks": 2}),
    "pathfinder": Case("run_lra_pathfinder.sh", "full length; half_glu1, standard groups", 1, 2, 256, False,
                       {"n_layers": 2, "ssm_size_base": 32, "blocks": 4}),
    "image": Case("run_lra_cifar.sh", "full length; half_glu1, clipped eigenvalues, B at the base rate", 1, 2, 256,
                  False, {"n_layers": 2, "ssm_size_base": 48, "blocks": 3}),
    "pathx": Case("run_lra_pathx.sh", "full length; half_glu1, one C, B decays at the lower rate", 1, 2, 256, False,
                  {"n_layers": 2, "ssm_size_base": 32, "blocks": 4}),
}  # fmt: skip


RETRIEVAL = "run_lra_aan.sh"
HEADS = {"aan-classification": {"head.0": "decoder/layer1", "head.2": "decoder/layer2"}}


# -- the public code -----------------------------------------------------------------------------------------------


def restore_names() -> None:
    """Makes the checkout's `s5` work: names that JAX and Flax had in 2022."""
    if not hasattr(jnp, "DeviceArray"):
        jnp.DeviceArray = jax.Array
    if not hasattr(jax, "tree_leaves"):
        jax.tree_leaves = jax.tree_util.tree_leaves
    flax.config.update("flax_return_frozendict", True)


def public_peer(given: Namespace, case: Case, names: Names, seed: int = 0) -> JaxPeer:
    """As s5/train.py builds and trains it."""
    from jax.scipy.linalg import block_diag
    from s5.seq_model import BatchClassificationModel, RetrievalModel
    from s5.ssm import init_S5SSM
    from s5.ssm_init import make_DPLR_HiPPO

    from s5 import train_helpers as helpers

    size = given.ssm_size_base // given.blocks
    A, _, _, V, _ = make_DPLR_HiPPO(size)
    A, V = A[: size // 2], V[:, : size // 2]
    A = (A * jnp.ones((given.blocks, size // 2))).ravel()
    ssm = init_S5SSM(
        H=given.d_model, P=given.ssm_size_base // 2, Lambda_re_init=A.real, Lambda_im_init=A.imag,
        V=block_diag(*[V] * given.blocks), Vinv=block_diag(*[V.conj().T] * given.blocks),
        C_init=given.C_init, discretization=given.discretization, dt_min=given.dt_min, dt_max=given.dt_max,
        conj_sym=given.conj_sym, clip_eigs=given.clip_eigs, bidirectional=given.bidirectional,
    )  # fmt: skip
    pairs = case.file == RETRIEVAL
    model = partial(
        RetrievalModel if pairs else BatchClassificationModel, ssm=ssm, d_output=case.num_classes,
        d_model=given.d_model, n_layers=given.n_layers, padded=case.padded, activation=given.activation_fn,
        dropout=given.p_dropout, prenorm=given.prenorm, batchnorm=given.batchnorm, bn_momentum=given.bn_momentum,
        **({} if pairs else {"mode": given.mode}),
    )  # fmt: skip
    lr = given.lr_factor * given.ssm_lr_base
    state = helpers.create_train_state(
        model, jax.random.PRNGKey(seed), case.padded, pairs, in_dim=case.d_input, bsz=given.bsz, seq_len=case.length,
        weight_decay=given.weight_decay, batchnorm=given.batchnorm, opt_config=given.opt_config,
        ssm_lr=given.ssm_lr_base, lr=lr, dt_global=given.dt_global,
    )  # fmt: skip
    training, key = model(training=True), jax.random.PRNGKey(seed)
    annealing = Annealing(given, helpers, STEPS_PER_EPOCH)

    def train_step(state: Any, batch: Any) -> tuple[Any, Any]:
        inputs, lengths, labels = batch
        if pairs:  # all first documents, then all second ones
            inputs, lengths = inputs.movedim(1, 0).flatten(0, 1), lengths.movedim(1, 0).flatten()
        with_lengths = {} if lengths is None else {"lengths": lengths}
        prepared = helpers.prep_batch((inputs, labels, with_lengths), case.length, case.d_input)
        return helpers.train_step(state, key, *prepared, training, given.batchnorm)

    def set_rates(state: Any, step: int) -> Any:
        rates = (given.ssm_lr_base, lr, step)
        function, end = annealing.after(step)
        return helpers.update_learning_rate_per_step((function, *rates, end, given.opt_config, given.lr_min), state)[0]

    return JaxPeer(state, train_step, set_rates, names, group)


def names_of(given: Namespace) -> dict[str, str | From]:
    """Return each of our parameters, and where it comes from in the public code."""
    names: dict[str, str | From] = {
        "backbone.embedding.weight": transposed("encoder/encoder/kernel"),
        "backbone.embedding.bias": "encoder/encoder/bias",
    }
    for ours, theirs in HEADS.get(given.dataset, {"head": "decoder"}).items():
        names |= {f"{ours}.weight": transposed(f"{theirs}/kernel"), f"{ours}.bias": f"{theirs}/bias"}
    for i in range(given.n_layers):
        ours, theirs = f"backbone.blocks.{i}", f"encoder/layers_{i}"
        names |= {
            f"{ours}.norm.norm.weight": f"{theirs}/norm/scale",
            f"{ours}.norm.norm.bias": f"{theirs}/norm/bias",
            f"{ours}.layer.A_weight": f"{theirs}/seq/Lambda_re",
            f"{ours}.layer.A_imag": f"{theirs}/seq/Lambda_im",
            f"{ours}.layer.log_delta": From(f"{theirs}/seq/log_step", np.ravel),  # (N, 1)
            f"{ours}.layer.B": f"{theirs}/seq/B",  # (N, D, 2), real and imaginary part
            f"{ours}.layer.C": both_Cs(f"{theirs}/seq", given),
            f"{ours}.layer.D": f"{theirs}/seq/D",
            f"{ours}.glu.weight": transposed(f"{theirs}/out2/kernel"),
            f"{ours}.glu.bias": f"{theirs}/out2/bias",
        }
    return names


def both_Cs(theirs: str, given: Namespace) -> From:
    """(K, D, N, 2) from C1 and C2, or from the one C (D, 2N, 2) of "complex_normal", whose halves they are."""
    if given.C_init == "complex_normal":
        return From(f"{theirs}/C", lambda C: np.stack(np.split(C, 2, axis=1)))
    return From((f"{theirs}/C1", f"{theirs}/C2"), lambda *C: np.stack(C))


group = partial(gradient_group, groups={"A_weight": "A, Δ", "A_imag": "A, Δ", "log_delta": "A, Δ", "B": "B"})

# -- ours ----------------------------------------------------------------------------------------------------------


def our_network(given: Namespace, case: Case) -> Classifier:
    """Return our network with the options of the public code."""
    C_init = {"lecun_normal": "lecun", "trunc_standard_normal": "lecun_row"}.get(given.C_init, given.C_init)
    layer = LayerSpec(
        S5, d_state=given.ssm_size_base, num_blocks=given.blocks, C_init=C_init, delta_min=given.dt_min,
        delta_max=given.dt_max, bidirectional=given.bidirectional,
        parameterization="clip" if given.clip_eigs else "direct", fast_B=given.opt_config == "BfastandCdecay",
    )  # fmt: skip
    block = BlockSpec(
        S5Block, activation=given.activation_fn, norm="batch", norm_momentum=given.bn_momentum,
        prenorm=given.prenorm, dropout=given.p_dropout,
    )  # fmt: skip
    network, head = (DualEncoder, TanhNLIHead) if case.file == RETRIEVAL else (Classifier, LinearHead)
    return network(
        layer, case.num_classes, d_input=case.d_input, d_model=given.d_model, n_layers=given.n_layers, block=block,
        head=head, padding="seen",
    )  # fmt: skip


class TanhNLIHead(NLIHead):
    """Our head with the tanh approximation of GELU, which the public code uses."""

    def __init__(self, d_model: int, num_classes: int) -> None:
        super().__init__(d_model, num_classes)
        self[1] = nn.GELU("tanh")


def our_settings(given: Namespace) -> OptimizerSettings:
    """Return the optimizer settings of configs/lra/*/s5.yaml."""
    decaying = RoleSettings(weight_decay=given.weight_decay)
    roles = {"recurrent": RoleSettings(lr=given.ssm_lr_base), "no_decay": decaying}
    if given.dt_global:
        roles["delta"] = replace(decaying, lr_factor=1.0)
    return OptimizerSettings(lr=given.lr_factor * given.ssm_lr_base, weight_decay=given.weight_decay, roles=roles)


def our_peer(network: nn.Module, given: Namespace, case: Case) -> TorchPeer:
    """Return our peer: our optimizer groups, the public schedule, and one-hot vectors in place of tokens."""
    rates = parameter_rates(network, our_settings(given))
    if given.opt_config == "BandCdecay":  # B has A's rate, and decays
        decaying = {name: rate._replace(weight_decay=given.weight_decay) for name, rate in rates.items()}
        rates = {name: decaying[name] if name.endswith("layer.B") else rate for name, rate in rates.items()}
    optimizer = torch.optim.AdamW(parameter_groups(network, rates))
    schedule = public_schedule(optimizer, STEPS_PER_EPOCH, given.epochs, given.warmup_end, given.lr_min)

    loss = loss_on_features(case.d_input, case.length, pooled="real")
    return TorchPeer(network.train(), loss, optimizer, group, schedule)


def run(name: str, checkout: Path, batches: list[Any], steps: int, folder: Path) -> None:
    """Compares one case."""
    restore_names()
    case = CASES[name]
    command = (checkout / "bin" / "run_experiments" / case.file).read_text()
    changed = case.changed | {"d_model": WIDTH, "bsz": BATCH, "epochs": STEPS // STEPS_PER_EPOCH, "p_dropout": 0.0}
    given = options(checkout, "s5", command, **changed)
    names = names_of(given)
    theirs = public_peer(given, case, names)

    def ours() -> TorchPeer:
        network = our_network(given, case)
        load_weights(network, flat(theirs.state.params), names)
        return our_peer(network, given, case)

    run_case(
        f"s5-{name}", theirs, ours, [*map(paired, batches)] if case.file == RETRIEVAL else batches, steps, folder,
        source=SOURCE, commit=COMMIT, about=case.about,
        sizes=f"{given.n_layers} × {WIDTH}, {given.ssm_size_base} states, length {case.length}, batch {BATCH}",
    )  # fmt: skip


if __name__ == "__main__":
    compare_cases(__doc__ or "", CASES, run)
