"""Learning rates and decay by role, optimizer groups, and schedules in a fit."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lra_ssm.errors import InputError
from lra_ssm.layers import B2S6, S4D, S6, NetworkSpec, parameter_roles
from lra_ssm.models import Classifier, LanguageModel, LayerSpec
from lra_ssm.tasks import Classification, OptimizerSettings
from lra_ssm.tasks.optim import format_groups, optimizer_and_schedule, parameter_groups, parameter_rates
from tests.tasks.fits import trainer


def model(layer, **settings):
    return Classifier(LayerSpec(layer, **settings), 3, vocab_size=5, d_model=4, n_layers=1)


def groups_of(built, settings):
    return parameter_groups(built, parameter_rates(built, settings))


def test_parameters_have_their_roles_rates_and_groups():
    built = model(B2S6, num_blocks=2, d_state=4)
    settings = OptimizerSettings(
        lr=0.01,
        weight_decay=0.05,
        roles={"recurrent": {"lr": 0.002, "weight_decay": 0.01}, "delta": {"lr_factor": 0.3}},
    )
    block, inside = "backbone.blocks.0.", built.backbone.blocks[0].layer
    own = {name: inside.optim_roles().get(name, "base") for name, _ in inside.named_parameters()}
    roles = {
        "backbone.embedding.weight": "embedding", f"{block}norm.norm.weight": "norm",
        f"{block}norm.norm.bias": "no_decay", f"{block}glu.weight": "base", f"{block}glu.bias": "no_decay",
        "head.weight": "base", "head.bias": "no_decay", **{f"{block}layer.{name}": role for name, role in own.items()},
    }  # fmt: skip
    assert parameter_roles(built) == roles
    expected = {"base": (0.01, 0.05), "no_decay": (0.01, 0), "recurrent": (0.002, 0.01), "delta": (0.003, 0.01)}
    like = {"embedding": "base", "norm": "no_decay"}
    assert {name: rate[:2] for name, rate in parameter_rates(built, settings).items()} == {
        name: pytest.approx(expected[like.get(role, role)]) for name, role in roles.items()
    }
    groups = groups_of(built, settings)
    assert [(g["name"], (g["lr"], g["weight_decay"])) for g in groups] == [
        (name, pytest.approx(pair)) for name, pair in expected.items()
    ]
    ids = [id(p) for g in groups for p in g["params"]]
    assert sorted(ids) == sorted(id(p) for p in built.parameters())


def test_parameters_with_the_same_rate_and_decay_share_a_group():
    built = LanguageModel(LayerSpec(S6, d_state=4), 5, d_model=4, n_layers=1)
    # As in AnnanYu/mamba-bare: norms' weights decay, and biases, A, D and the tied embedding do not.
    roles = {"recurrent": {"lr_factor": 1.0}, "delta": {"weight_decay": 0.2}, "norm": {"weight_decay": 0.1},
             "embedding": {"weight_decay": 0.0}}  # fmt: skip
    settings = OptimizerSettings(lr=0.01, weight_decay=0.1, roles=roles)
    decay = {name: rate.weight_decay for name, rate in parameter_rates(built, settings).items()}
    block = "backbone.blocks.0."
    without = {"backbone.embedding.weight", f"{block}conv1d.bias", f"{block}layer.A_log", f"{block}layer.D"}
    assert {name for name, value in decay.items() if value == 0} == without
    assert [g["name"] for g in groups_of(built, settings)] == ["embedding, no_decay, recurrent", "base, norm", "delta"]
    assert [g["name"] for g in groups_of(built, OptimizerSettings(weight_decay=0))] == [
        "base, no_decay",
        "recurrent, delta",
    ]


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


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 2)
        self.other.weight = self.one.weight
        bias = self.one.bias
        del self.one.bias
        self.one.register_buffer("bias", bias.detach())

    def optim_roles(self):
        return {"other.weight": "recurrent", "one.bias": "delta", "other.bias": "no_decay"}


def test_shared_and_fixed_parameters_keep_their_roles():
    assert parameter_roles(Shared()) == {"one.weight": "recurrent", "other.bias": "no_decay"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": None}, "lr is None"),
        ({"lr": "0.1"}, "lr is 0.1; it must be a number"),
        ({"warmup_steps": 2.5}, "warmup_steps is 2.5; it must be a whole number, or a share below 1"),
        ({"weight_decy": 0.1}, "'weight_decy' is not an optimizer setting; did you mean 'weight_decay'"),
        ({"roles": {"delta": {"lr": -1}}}, "roles.delta.lr is -1; it must be a number of at least 0"),
        ({"roles": {"delta": {"lr": 1, "lr_factor": 1}}}, "roles.delta has lr 1 and lr_factor 1; set one of them"),
        ({"roles": {"delta": {"lr_facto": 1}}}, "'lr_facto' is not a setting of roles.delta; did you mean 'lr_factor'"),
        ({"roles": {"delta": 0.1}}, r"roles.delta is 0.1; give lr or lr_factor, and weight_decay: \{lr: 0.001\}"),
        ({"roles": {"base": {"lr": 1}}}, "the role base has the optimizer's own lr and weight_decay"),
        ({"min_lr_factor": 2.0}, "min_lr_factor is 2.0; it is a share of the rates, at most 1"),
        ({"betas": (0.9, 1.0)}, "betas is .*; it must be two numbers of at least 0 and below 1"),
        ({"cosine_by": "epochs"}, "cosine_by is 'epochs'; it must be step or epoch"),
        ({"ema_decay": 1.0}, "ema_decay is 1.0; it must be below 1"),
        *(
            ({name: value}, f"{name} is {value}; it must be a number of at least 0")
            for name in ("lr", "weight_decay", "warmup_steps", "min_lr_factor", "ema_decay")
            for value in (-1, math.nan, math.inf)
        ),
    ],
)
def test_wrong_settings_are_one_line(settings, message):
    with pytest.raises(ValueError, match=message):
        OptimizerSettings.of(settings)


def test_factor_zero_freezes_delta():
    torch.manual_seed(0)
    built = model(B2S6, num_blocks=2, d_state=4)
    optimizer = torch.optim.AdamW(groups_of(built, OptimizerSettings(roles={"delta": {"lr_factor": 0}})))
    before = {name: p.detach().clone() for name, p in built.named_parameters()}
    built(torch.randint(0, 5, (2, 6))).square().sum().backward()
    optimizer.step()
    roles = parameter_roles(built)
    for name, p in built.named_parameters():
        frozen = torch.equal(p, before[name])
        assert frozen == (roles[name] == "delta") or p.grad.abs().sum() == 0, name
    lines = format_groups(optimizer.param_groups).splitlines()
    assert [line.split()[0] for line in lines] == ["group", "base", "no_decay", "recurrent", "delta"]
    assert "0 (frozen)" in lines[-1] and len({len(line) for line in lines}) == 1  # columns line up


class Own(nn.Module):
    """A user's layer without roles."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(d_model, d_model), nn.LayerNorm(d_model)
        self.attention = nn.MultiheadAttention(d_model, 1, batch_first=True)
        self.gru = nn.GRU(d_model, d_model, batch_first=True)
        self.scale = nn.Parameter(torch.ones(d_model))

    def forward(self, x, lengths=None):
        x = self.norm(self.linear(x)) * self.scale
        return self.gru(self.attention(x, x, x, need_weights=False)[0])[0]


class Slow(Own):
    def optim_roles(self):
        return {"scale": "slow", "linear.bias": "base", "norm.weight": "delta"}


def test_biases_and_norms_of_any_module_do_not_decay_unless_its_layer_says_otherwise():
    start = "backbone.blocks.0.layer."
    own, slow = (
        {name.removeprefix(start): role for name, role in parameter_roles(model(layer)).items() if start in name}
        for layer in (Own, Slow)
    )
    biases = {"linear.bias", "norm.bias", "attention.in_proj_bias", "attention.out_proj.bias"}
    biases |= {"gru.bias_ih_l0", "gru.bias_hh_l0"}
    assert {name for name, role in own.items() if role == "no_decay"} == biases
    assert {name for name, role in own.items() if role == "norm"} == {"norm.weight"}
    assert own["scale"] == own["linear.weight"] == own["gru.weight_ih_l0"] == "base" and len(own) == 13
    assert slow == {**own, "scale": "slow", "linear.bias": "base", "norm.weight": "delta"}


def test_a_layers_own_role_has_the_rate_and_decay_of_the_table_or_is_an_error():
    settings = OptimizerSettings(lr=0.01, roles={"slow": {"lr": 0.0001, "weight_decay": 0.5}})
    assert parameter_rates(model(Slow), settings)["backbone.blocks.0.layer.scale"][:2] == (0.0001, 0.5)
    assert groups_of(model(Slow), settings)[-1]["name"] == "slow"
    network = NetworkSpec(Classifier, layer=Slow, num_classes=2, d_input=1, d_model=4, n_layers=1)
    stored = Classification(network, settings).hparams["optimizer"]
    assert stored["roles"] == {"slow": {"lr": 0.0001, "lr_factor": None, "weight_decay": 0.5}}
    assert OptimizerSettings.of(stored) == settings
    with pytest.raises(InputError, match=r"layer.scale has the role 'slow', .* add roles: \{slow: \{lr: …\}\}"):
        Classification(network)
    with pytest.raises(InputError, match="roles has 'recurent', which no parameter has; did you mean 'recurrent'"):
        parameter_rates(model(S4D), OptimizerSettings(roles={"recurent": {"lr": 0.1}}))
    parameter_rates(model(Own), OptimizerSettings(roles={"delta": {"lr": 0.1}}))  # a known role may be unused


@pytest.mark.parametrize(
    ("roles", "message"), [({"wieght": "recurrent"}, "names 'wieght', which is not one of its parameters"),
                           ({"weight": 3}, "gives weight the role 3; a role is a word")],
)  # fmt: skip
def test_wrong_roles_are_errors(roles, message):
    class Wrong(nn.Linear):
        def optim_roles(self):
            return roles

    with pytest.raises(ValueError, match=message):
        parameter_roles(Wrong(2, 2))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_cosine_by_epochs_is_torchs_advanced_by_epochs(accumulate):
    """Five batches an epoch, of which Lightning makes five steps, or three if two are accumulated."""
    steps, seen = {1: 5, 2: 3}[accumulate], []

    class Watched(Classification):
        def on_train_batch_start(self, batch, index):
            seen.append(self.trainer.optimizers[0].param_groups[0]["lr"])

    spec = NetworkSpec(Classifier, layer=LayerSpec(S4D), num_classes=2, d_input=1, d_model=4, n_layers=1)
    task = Watched(spec, OptimizerSettings(lr=0.1, warmup_steps=0, cosine_by="epoch"))
    batch = torch.randn(2, 8, 1), torch.tensor([0, 1])
    fitting = trainer(max_epochs=4, accumulate_grad_batches=accumulate)
    fitting.fit(task, DataLoader([batch] * 5, batch_size=None))
    assert fitting.global_step == 4 * steps
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    theirs, expected = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4), []
    for _ in range(4):
        expected += 5 * [optimizer.param_groups[0]["lr"]]
        optimizer.step()
        theirs.step()
    assert seen == pytest.approx(expected) and len(set(expected)) == 4
    with pytest.raises(InputError, match="cosine_by is epoch, which needs trainer.max_epochs and epochs that end"):
        optimizer_and_schedule(task.network, task.optimizer_settings, 100)
