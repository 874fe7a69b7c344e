"""A width parameterization on a task: factors, initial values, groups, checkpoints; at the base width no change."""

import copy
import io
from dataclasses import asdict

import pytest
import torch

from lra_ssm.layers import S6, LayerSpec, NetworkSpec
from lra_ssm.models import LanguageModel
from lra_ssm.tasks import LanguageModelling
from lra_ssm.tasks.optim import OptimizerSettings, format_groups, optimizer_and_schedule
from lra_ssm.width.parameterizations import PARAMETERIZATIONS
from lra_ssm.width.scaling import WidthSettings

UNTIED = {"tie_embeddings": False}
MUP = {"parameterization": "mup", "base_d_model": 16}
OWN = {"embedding": [0, 0, 0], "hidden": [0, 0.5, 1], "readout": [0, 1, 1]}  # the same as a user's


def task(width=None, d_model=64, optimizer=None, **settings):
    torch.manual_seed(0)
    spec = NetworkSpec(LanguageModel, layer=LayerSpec(S6), vocab_size=7, d_model=d_model, n_layers=1, **settings)
    return LanguageModelling(spec, optimizer or OptimizerSettings(lr=0.01, weight_decay=0.1), width=width)


def optimizer_of(made):
    return optimizer_and_schedule(made.network, made.optimizer_settings, 10, width=made.width_factors)["optimizer"]


def trained(made, steps=3):
    ids, optimizer = torch.arange(14).reshape(2, 7) % 7, optimizer_of(made)
    for _ in range(steps):
        optimizer.zero_grad()
        made.network.negative_log_likelihood(ids, ids.roll(1, 1), reduction="sum")[0].backward()
        optimizer.step()
    return made.network.state_dict()


@pytest.mark.parametrize("name", PARAMETERIZATIONS)
@pytest.mark.parametrize("algorithm", ["AdamW", "SGD", "Muon"])
def test_at_the_base_width_nothing_changes(name, algorithm):
    optimizer = OptimizerSettings(lr=0.01, weight_decay=0.1, algorithm=algorithm, warmup_steps=0)
    before = trained(task(optimizer=optimizer, **UNTIED))
    after = trained(task({"parameterization": name, "base_d_model": 64}, optimizer=optimizer, **UNTIED))
    assert all(torch.equal(value, after[key]) for key, value in before.items())


def test_factors_of_mup_at_four_times_the_width():
    """lr / m, decay · m and initial values of a readout / √m more, as mamba.py's muP has them of hidden weights."""
    factors = task(MUP, **UNTIED).width_factors
    assert task({**MUP, "parameterization": OWN}, **UNTIED).width_factors == factors
    shown = {name.rpartition("layer.")[2]: tuple(found) for name, found in factors.items()}
    assert shown["backbone.embedding.weight"] == ("embedding", 1, 1, 1, 0.25)
    assert shown["backbone.blocks.0.in_proj.weight"] == ("hidden", 1, 0.25, 4, 0.25)
    assert shown["head.weight"] == ("readout", 0.5, 0.25, 4, 1)
    assert shown["A_log"] == shown["D"] == shown["delta_bias"] == ("vector", 1, 1, 1, 0.25)
    assert shown["B"] == shown["C"] == ("state", 1, 0.25, 4, 0.25)
    readout = task({**MUP, "states": "readout"}, **UNTIED).width_factors["backbone.blocks.0.layer.B"]
    assert tuple(readout) == ("state", 0.5, 0.25, 4, 1)


@pytest.mark.parametrize(("arguments", "rate"), [({}, 0.5), ({"adjust_lr_fn": "original"}, 1)])
def test_muon_has_its_own_rates_and_adamw_next_to_it_keeps_adams(arguments, rate):
    optimizer = OptimizerSettings(algorithm="Muon", arguments=arguments)
    factors, adam = task(MUP, optimizer=optimizer, **UNTIED).width_factors, task(MUP, **UNTIED).width_factors
    changed = {name for name in factors if factors[name] != adam[name]}
    assert changed == {f"backbone.blocks.0.{name}_proj.weight" for name in ("in", "out")}
    assert all(factors[name] == adam[name]._replace(lr=rate, weight_decay=1 / rate) for name in changed)
    own = {**MUP, "parameterization": {**OWN, "hidden": [0, 0.5, 0.5 if rate == 0.5 else 0]}}
    assert task(own, optimizer=optimizer, **UNTIED).width_factors == factors


def test_initial_values_are_multiplied_by_their_factors():
    plain, scaled = task(**UNTIED), task(MUP, **UNTIED)
    for (name, before), after in zip(plain.network.named_parameters(), scaled.network.parameters(), strict=True):
        assert torch.equal(before * scaled.width_factors[name].initial, after), name


def test_a_tied_head_is_scaled_by_the_norm_before_it():
    """Its logits start at 1/m of the unscaled ones, and the embedding unchanged."""
    made = task(MUP)
    assert tuple(made.width_factors["backbone.norm.weight"]) == ("readout", 0.25, 0.25, 4, 1)
    assert tuple(made.width_factors["backbone.embedding.weight"])[:4] == ("embedding", 1, 1, 1)
    ids = torch.arange(7)[None]
    assert torch.allclose(made(ids), task()(ids) / 4, atol=1e-7)


def test_groups_show_the_factors():
    made, file = task(MUP, **UNTIED), io.BytesIO()
    optimizer, names = optimizer_of(made), {id(p): name for name, p in made.network.named_parameters()}
    by = {names[id(p)]: group for group in optimizer.param_groups for p in group["params"]}
    hidden, head = by["backbone.blocks.0.in_proj.weight"], by["head.weight"]
    assert (hidden["initial_lr"], hidden["weight_decay"], hidden["eps"]) == pytest.approx((0.0025, 0.4, 2.5e-9))
    assert (head["initial_lr"], head["weight_decay"], head["eps"]) == pytest.approx((0.0025, 0.4, 1e-8))
    shown = format_groups(optimizer.param_groups)
    assert "× lr" in shown and "readout" in shown and "width" not in format_groups(optimizer_of(task()).param_groups)
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["param_groups"][0]["width"]["kind"] == "embedding"


def test_a_checkpoint_stores_the_settings_and_loads_without_them():
    assert "width" not in task().hparams
    made = task(MUP)
    again = LanguageModelling(**copy.deepcopy(dict(made.hparams)))
    assert again.hparams["width"] == made.hparams["width"] == asdict(WidthSettings(**MUP))
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(torch.arange(7)[None]), made(torch.arange(7)[None]))
    alone = LanguageModel(S6, 7, 64, 1)  # without the parameterization
    alone.load_state_dict(made.network.state_dict())
    assert torch.equal(alone(torch.arange(7)[None]), made(torch.arange(7)[None]))


@pytest.mark.parametrize(
    ("width", "algorithm", "message"),
    [
        ({"parameterization": "mupp"}, "AdamW", "did you mean 'mup'"),
        ({"base_d_model": 0}, "AdamW", "base_d_model is 0"),
        ({"parameterization": {"hidden": [0, 0, 0]}}, "AdamW", "must have"),
        ({"states": "vector"}, "AdamW", "states is 'vector'; it must be one of hidden, readout"),
        ({"parameterization": OWN | {"hidden": [0, 1, 1]}}, "AdamW", r"not stable with adam: \(7\) a_h \+ b_h = 0.5, "),
        ({"parameterization": "sp"}, "AdamW", "tied to the embedding.* take mup or mean_field"),
        ({}, "torch.optim.Rprop", r"no scaling of learning rates is known for algorithm torch\.optim\.Rprop"),
    ],
)
def test_wrong_settings_are_one_line(width, algorithm, message):
    with pytest.raises(ValueError, match=message):
        task({**MUP, **width}, optimizer=OptimizerSettings(algorithm=algorithm))
