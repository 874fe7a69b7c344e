"""Learning rates and decay by role, the table of groups, and schedules in a fit."""

import math

import pytest
import torch
from torch import nn

from lra_ssm.layers import B2S6, LayerSpec, NetworkSpec, parameter_roles
from lra_ssm.models import Classifier
from lra_ssm.tasks import Classification, OptimizerSettings
from lra_ssm.tasks.optim import format_groups, parameter_groups, parameter_rates
from tests.tasks.fits import Table, fitted


def test_the_table_of_groups_names_what_is_frozen():
    built = Classifier(LayerSpec(B2S6, num_blocks=2, d_state=4), 3, vocab_size=5, d_model=4, n_layers=1)
    settings = OptimizerSettings(roles={"recurrent": {"weight_decay": 0.01}, "delta": {"lr_factor": 0}})
    lines = format_groups(parameter_groups(built, parameter_rates(built, settings))).splitlines()
    assert [line.split()[0] for line in lines] == ["group", "base", "no_decay", "recurrent", "delta"]
    assert "0 (frozen)" in lines[-1] and len({len(line) for line in lines}) == 1  # columns line up


DEFAULT = {
    "base": (0.01, 0.05), "embedding": (0.01, 0.05), "no_decay": (0.01, 0), "norm": (0.01, 0),
    "recurrent": (0.001, 0), "delta": (0.001, 0), "mine": (0.01, 0.05),
}  # fmt: skip


@pytest.mark.parametrize(
    ("roles", "changed"),
    [
        ({}, {}),
        ({"recurrent": {}, "mine": {}}, {}),
        ({"recurrent": {"lr": 0.002}}, {"recurrent": (0.002, 0), "delta": (0.002, 0)}),
        ({"recurrent": {"lr_factor": 0.5, "weight_decay": 0.1}}, {"recurrent": (0.005, 0.1), "delta": (0.005, 0.1)}),
        ({"delta": {"lr_factor": 0}}, {"delta": (0, 0)}),
        ({"recurrent": {"weight_decay": 0.1}, "delta": {"lr": 0.3}}, {"recurrent": (0.001, 0.1), "delta": (0.3, 0.1)}),
        ({"no_decay": {"weight_decay": 0.05}}, {"no_decay": (0.01, 0.05), "norm": (0.01, 0.05)}),
        ({"norm": {"weight_decay": 0.1}}, {"norm": (0.01, 0.1)}),
        ({"embedding": {"weight_decay": 0, "lr_factor": 3}}, {"embedding": (0.03, 0)}),
        ({"mine": {"lr": 0.5}}, {"mine": (0.5, 0.05)}),
    ],
)
def test_what_an_entry_leaves_out_is_the_roles_default(roles, changed):
    settings = OptimizerSettings(lr=0.01, weight_decay=0.05, roles=roles)
    assert {role: settings.of_role(role)[:2] for role in DEFAULT} == {
        role: pytest.approx(pair) for role, pair in (DEFAULT | changed).items()
    }


@pytest.mark.parametrize(("given", "steps"), [(0, 0), (1, 1), (1000, 1000), (0.1, 20), (0.999, 199), (1e-9, 0)])
def test_warmup_in_steps_or_as_their_share(given, steps):
    assert OptimizerSettings(warmup_steps=given).warmup_of(200) == steps


def test_numbers_and_betas_are_stored_as_plain_values():
    settings = OptimizerSettings(betas=[0, 0.98], lr=torch.tensor(0.1).double().numpy()[()])
    assert settings.betas == (0.0, 0.98) and {type(value) for value in (*settings.betas, settings.lr)} == {float}


class Own(nn.Module):
    """A user's layer, with the roles that it is told to declare."""

    def __init__(self, d_model: int, roles: dict[str, str] | None = None) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(d_model, d_model), nn.LayerNorm(d_model)
        self.attention, self.gru = nn.MultiheadAttention(d_model, 1), nn.GRU(d_model, d_model)
        self.scale, self.roles = nn.Parameter(torch.ones(d_model)), roles or {}

    def forward(self, x, lengths=None):
        return x

    def optim_roles(self):
        return self.roles


def test_biases_and_norms_of_any_module_do_not_decay_unless_its_layer_says_otherwise():
    own = parameter_roles(Own(4))
    biases = {"linear.bias", "norm.bias", "attention.in_proj_bias", "attention.out_proj.bias"}
    biases |= {"gru.bias_ih_l0", "gru.bias_hh_l0"}
    assert {name for name, role in own.items() if role == "no_decay"} == biases
    assert {name for name, role in own.items() if role == "norm"} == {"norm.weight"}
    assert own["scale"] == own["linear.weight"] == own["gru.weight_ih_l0"] == "base" and len(own) == 13
    declared = {"scale": "slow", "linear.bias": "base", "norm.weight": "delta"}
    assert parameter_roles(Own(4, declared)) == own | declared


def test_shared_and_fixed_parameters_keep_their_roles():
    layer = Own(4, {"other.weight": "recurrent", "linear.bias": "delta"})
    layer.other = nn.Linear(4, 4)
    layer.other.weight = layer.linear.weight
    del layer.linear.bias
    layer.linear.register_buffer("bias", torch.zeros(4))
    roles = parameter_roles(layer)
    assert roles["linear.weight"] == "recurrent" and not {"other.weight", "linear.bias"} & roles.keys()


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"scael": "recurrent"}, "names 'scael', which is not one of its parameters"),
        ({"scale": 3}, "gives scale the role 3; a role is a word"),
        ({"scale": "slow"}, r"scale has the role 'slow', .* add roles: \{slow: \{lr: …\}\}"),
    ],
)
def test_wrong_roles_are_errors(roles, message):
    with pytest.raises(ValueError, match=message):
        parameter_rates(Own(4, roles), OptimizerSettings())


def test_a_layers_own_role_has_the_rate_and_decay_of_the_table():
    settings = OptimizerSettings(lr=0.01, roles={"slow": {"lr": 0.0001, "weight_decay": 0.5}})
    slow = LayerSpec(Own, roles={"scale": "slow"})
    task = Classification(NetworkSpec(Classifier, layer=slow, num_classes=2, d_input=1, d_model=4), settings)
    assert parameter_rates(task.network, settings)["backbone.blocks.0.layer.scale"][:2] == (0.0001, 0.5)
    stored = task.hparams["optimizer"]
    assert stored["roles"] == {"slow": {"lr": 0.0001, "lr_factor": None, "weight_decay": 0.5}}
    assert OptimizerSettings.of(stored) == settings
    parameter_rates(Own(4), OptimizerSettings(roles={"delta": {"lr": 0.1}}))  # a known role may be unused


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 5), (2, 3)])
def test_a_cosine_by_epochs_is_constant_within_each(accumulate, steps):
    """Five batches an epoch, of which Lightning makes five steps, or three if two are accumulated."""
    seen = []

    class Watched(Classification):
        def on_train_batch_start(self, batch, index):
            seen.append(self.trainer.optimizers[0].param_groups[0]["lr"])

    task = Watched(NetworkSpec(Table, first=True), OptimizerSettings(lr=0.1, warmup_steps=0, cosine_by="epoch"))
    batch = torch.tensor([[3], [2]]), torch.tensor([0, 1])
    fitting = fitted(task, [batch] * 5, max_epochs=4, accumulate_grad_batches=accumulate)
    assert fitting.global_step == 4 * steps
    assert seen == pytest.approx([0.05 * (1 + math.cos(math.pi * epoch / 4)) for epoch in range(4) for _ in range(5)])
