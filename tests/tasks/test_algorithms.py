"""Optimizers by name and by import path; Muon and AdamW as one optimizer."""

import copy

import pytest
import torch
from torch import nn

from lra_ssm.layers import S6, LayerSpec
from lra_ssm.models import Classifier, LanguageModel
from lra_ssm.tasks import OptimizerSettings
from lra_ssm.tasks.algorithms import hidden_matrices
from lra_ssm.tasks.optim import format_groups, optimizer_and_schedule, parameter_rates

SMALL = {"d_model": 4, "n_layers": 1}


def model(**settings):
    torch.manual_seed(0)
    return Classifier(LayerSpec(S6, d_state=4), 3, **{"vocab_size": 5, **SMALL, **settings}).double()


def optimizer_of(built, **settings):
    return optimizer_and_schedule(built, OptimizerSettings(warmup_steps=0, **settings), 100)["optimizer"]


BETAS = (0.8, 0.98)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "AdamW", "arguments": {"amsgrad": True}, "betas": BETAS},
        {"algorithm": "SGD", "arguments": {"momentum": 0.9}},
        {"algorithm": "Muon", "arguments": {"ns_steps": 3}, "betas": BETAS},
        {"algorithm": "torch.optim.NAdam", "arguments": {"momentum_decay": 0.01}, "betas": BETAS},
        {"algorithm": "torch.optim.Rprop", "arguments": {"etas": (0.4, 1.3)}, "weight_decay": 0.0},  # has no decay
    ],
)
def test_every_algorithm_has_each_parameters_rate_decay_and_betas_and_takes_arguments(settings):
    built, settings = model(), OptimizerSettings(**settings, roles={"recurrent": {"lr": 0.002}})
    optimizer = optimizer_and_schedule(built, settings, 100)["optimizer"]
    names = {id(p): name for name, p in built.named_parameters()}
    given = {names[id(p)]: (g["initial_lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}
    assert given == {name: rate[:2] for name, rate in parameter_rates(built, settings).items()}
    for name, value in settings.arguments.items():
        assert optimizer.param_groups[0][name] == value
    assert {group.get("betas", settings.betas) for group in optimizer.param_groups} == {settings.betas}
    head, first, *others = format_groups(optimizer.param_groups).splitlines()
    if settings.algorithm == "Muon":
        assert head.split()[-1] == "algorithm" and (first.split()[0], first.split()[-1]) == ("hidden", "Muon")
        assert {line.split()[-1] for line in others} == {"AdamW"}
    else:
        assert "algorithm" not in head


@pytest.mark.parametrize("algorithm", ["AdamW", "SGD", "torch.optim.NAdam"])
def test_complex_parameters_are_trained(algorithm):
    """torch's fused optimizers, which are used otherwise, refuse them."""
    model = nn.ParameterList([nn.Parameter(torch.ones(3, dtype=torch.complex64)), nn.Parameter(torch.ones(2))])
    optimizer = optimizer_of(model, algorithm=algorithm)
    (sum(p.abs().square().sum() for p in model)).backward()
    optimizer.step()
    assert all((p != 1).all() for p in model)


# --- Muon ---


def names_of(built):
    matrices = hidden_matrices(built)
    return {name for name, p in built.named_parameters() if p in matrices}


class Own(nn.Sequential):
    def optim_roles(self):
        return {"2.weight": "embedding", "2.bias": "no_decay"}


def test_muon_has_linear_maps_inside_blocks_and_nothing_else():
    block = "backbone.blocks.0."
    assert names_of(model()) == names_of(model(vocab_size=None, d_input=2)) == {f"{block}glu.weight"}
    language = LanguageModel(LayerSpec(S6, d_state=4), 5, **SMALL)
    assert names_of(language) == {f"{block}in_proj.weight", f"{block}out_proj.weight"}
    assert names_of(Own(nn.Embedding(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))) == {"1.weight"}
    assert names_of(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.complex64))) == {"0.weight"}
    with pytest.raises(ValueError, match="algorithm Muon: no hidden matrix found"):
        optimizer_of(nn.Embedding(3, 4), algorithm="Muon")


def train(built, batches, *optimizers):
    """Take a step of each optimizer with each numbered batch."""
    for number in batches:
        built.zero_grad()
        ids = torch.randint(0, 5, (3, 6), generator=torch.Generator().manual_seed(number))
        built(ids).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("arguments", [{}, {"momentum": 0.8, "nesterov": False, "adjust_lr_fn": "original"}])
def test_muon_with_adamw_steps_as_torchs_two_and_continues_from_its_state(arguments):
    ours, theirs = model(), model()
    settings = OptimizerSettings(
        algorithm="Muon", arguments=arguments, lr=0.01, roles={"recurrent": {"lr": 0.002}}, betas=BETAS, warmup_steps=0
    )
    first, again = (optimizer_and_schedule(ours, settings, 100)["optimizer"] for _ in range(2))
    matrices, rates = hidden_matrices(theirs), parameter_rates(theirs, settings)
    groups = [
        {"params": [p], "lr": rates[name].lr, "weight_decay": rates[name].weight_decay}
        for name, p in theirs.named_parameters()
    ]
    muon, adam = ([g for g in groups if (g["params"][0] in matrices) == hidden] for hidden in (True, False))
    apart = [
        torch.optim.Muon(muon, **{"adjust_lr_fn": "match_rms_adamw", **arguments}),
        torch.optim.AdamW(adam, betas=BETAS),
    ]

    start = ours.backbone.blocks[0].glu.weight.clone()
    train(ours, range(2), first)
    train(theirs, range(2), *apart)
    again.load_state_dict(copy.deepcopy(first.state_dict()))
    for optimizer in (again, *apart):
        for group in optimizer.param_groups:
            group["lr"] /= 2  # as a schedule does
    train(ours, range(2, 4), again)
    train(theirs, range(2, 4), *apart)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-12, atol=1e-12)
    assert not torch.equal(start, ours.backbone.blocks[0].glu.weight)
