"""Optimizers by name and by import path; Muon and AdamW as one optimizer."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lra_ssm.layers import S6, LayerSpec, NetworkSpec
from lra_ssm.models import Classifier, LanguageModel
from lra_ssm.tasks import Classification, OptimizerSettings
from lra_ssm.tasks.algorithms import MuonWithAdamW, hidden_matrices
from lra_ssm.tasks.optim import format_groups, optimizer_and_schedule, parameter_rates
from tests.tasks.fits import trainer

SMALL = {"d_model": 4, "n_layers": 1}
HERE = "tests.tasks.test_algorithms"


def model(**settings):
    torch.manual_seed(0)
    return Classifier(LayerSpec(S6, d_state=4), 3, **{"vocab_size": 5, **SMALL, **settings}).double()


def optimizer_of(built, **settings):
    return optimizer_and_schedule(built, OptimizerSettings(warmup_steps=0, **settings), 100)["optimizer"]


class Halved(torch.optim.Optimizer):
    """A user's optimizer: p ← p − share · lr · gradient; it requires a closure."""

    def __init__(self, params, lr: float, weight_decay: float = 0.0, share: float = 0.5) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "share": share})

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad if p.grad is not None else 0 * p, alpha=group["share"] * group["lr"])
        return loss


class NoDecay(torch.optim.SGD):
    def __init__(self, params, lr: float) -> None:
        super().__init__(params, lr)


@pytest.mark.parametrize(
    ("algorithm", "arguments"),
    [("AdamW", {"amsgrad": True}), ("SGD", {"momentum": 0.9}), ("Muon", {"ns_steps": 3}), ("torch.optim.NAdam", {}),
     (f"{HERE}.Halved", {"share": 0.3})],
)  # fmt: skip
def test_every_algorithm_has_each_parameters_rate_decay_and_betas_and_takes_arguments(algorithm, arguments):
    built = model()
    betas = {"betas": (0.8, 0.98)} if algorithm in ("AdamW", "Muon", "torch.optim.NAdam") else {}
    settings = OptimizerSettings(algorithm=algorithm, arguments=arguments, roles={"recurrent": {"lr": 0.002}}, **betas)
    optimizer = optimizer_and_schedule(built, settings, 100)["optimizer"]
    names = {id(p): name for name, p in built.named_parameters()}
    given = {names[id(p)]: (g["initial_lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}
    assert given == {name: rate[:2] for name, rate in parameter_rates(built, settings).items()}
    for name, value in arguments.items():
        assert optimizer.param_groups[0][name] == value
    by_adam = [group for group in optimizer.param_groups if group.get("algorithm") != "Muon"]
    assert not betas or {group["betas"] for group in by_adam} == {(0.8, 0.98)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "Muonn"}, "algorithm is 'Muonn', neither a known name nor an import path; did you mean 'Muon'"),
        ({"algorithm": "NAdam"}, "'NAdam' is named by its import path, torch.optim.NAdam"),
        ({"algorithm": "torch.optim.NAdamm"}, "'torch.optim.NAdamm' cannot be imported: .*; did you mean 'NAdam'"),
        ({"algorithm": "torch.nn.Linear"}, "algorithm torch.nn.Linear is not a torch.optim.Optimizer"),
        ({"algorithm": "torch.nn.init.zeros_"}, "algorithm torch.nn.init.zeros_ is not a class"),
        ({"algorithm": "SGD", "arguments": {"momentm": 1}}, "not take arguments.momentm; did you mean 'momentum'"),
        ({"algorithm": "SGD", "arguments": {"lr": 1}}, "arguments.lr: set optimizer.lr instead"),
        ({"algorithm": "SGD", "betas": (0.9, 0.98)}, r"betas is \[0.9, 0.98\], but algorithm SGD does not take betas"),
        ({"algorithm": f"{HERE}.NoDecay"}, "NoDecay does not take weight_decay: set every weight_decay to 0"),
        ({"algorithm": "Muon", "arguments": {"momentun": 1}}, "not take arguments.momentun; did you mean 'momentum'"),
        ({"algorithm": "Muon", "arguments": {"adjust_lr_fn": "rms"}}, "algorithm Muon: .* rms is not supported"),
        ({"algorithm": "SGD", "arguments": {"momentum": -1}}, "algorithm SGD: Invalid momentum value: -1"),
    ],
)
def test_wrong_settings_are_one_line(settings, message):
    with pytest.raises(ValueError, match=message):
        optimizer_of(model(), **settings)


def test_a_class_without_decay_is_accepted_if_nothing_decays():
    assert type(optimizer_of(model(), algorithm=f"{HERE}.NoDecay", weight_decay=0.0)) is NoDecay


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


def steps(built, optimizers, count):
    """Make steps on losses that only depend on the model and the step."""
    for number in range(count):
        ids = torch.randint(0, 5, (3, 6), generator=torch.Generator().manual_seed(number))
        for p in built.parameters():
            p.grad = None
        built(ids).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("arguments", [{}, {"momentum": 0.8, "nesterov": False, "adjust_lr_fn": "original"}])
def test_muon_with_adamw_steps_as_torchs_two(arguments):
    ours, theirs = model(), model()
    roles, betas = {"recurrent": {"lr": 0.002}}, (0.8, 0.98)
    settings = OptimizerSettings(
        algorithm="Muon", arguments=arguments, lr=0.01, roles=roles, betas=betas, warmup_steps=0
    )
    together = optimizer_and_schedule(ours, settings, 100)["optimizer"]
    matrices, rates = hidden_matrices(theirs), parameter_rates(theirs, settings)
    groups = [
        {"params": [p], "lr": rates[name].lr, "weight_decay": rates[name].weight_decay}
        for name, p in theirs.named_parameters()
    ]
    muon, adam = ([g for g in groups if (g["params"][0] in matrices) == hidden] for hidden in (True, False))
    apart = [
        torch.optim.Muon(muon, **{"adjust_lr_fn": "match_rms_adamw", **arguments}),
        torch.optim.AdamW(adam, betas=betas),
    ]
    before = theirs.backbone.blocks[0].glu.weight.clone()
    steps(ours, [together], 4)
    steps(theirs, apart, 4)
    for name, weight in ours.state_dict().items():
        torch.testing.assert_close(weight, theirs.state_dict()[name], rtol=1e-12, atol=1e-12)
    assert not torch.equal(before, theirs.backbone.blocks[0].glu.weight)


def test_its_state_is_saved_and_restored():
    whole, stopped = model(), model()
    make = {"algorithm": "Muon", "lr": 0.01}
    optimizer, first = optimizer_of(whole, **make), optimizer_of(stopped, **make)
    steps(whole, [optimizer], 3)
    steps(stopped, [first], 3)
    again = optimizer_of(stopped, **make)
    again.load_state_dict(copy.deepcopy(first.state_dict()))
    names = {key for state in again.state.values() for key in state}
    assert names == {"momentum_buffer", "step", "exp_avg", "exp_avg_sq"}
    again.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] = 0.5  # both parts see what a schedule changes
    steps(whole, [optimizer], 2)
    steps(stopped, [again], 2)
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, stopped.state_dict()[name]), name


def test_a_closure_is_called_once_with_gradients_and_its_loss_is_returned():
    weight, bias, calls = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2)), []
    parts = {"Muon": weight, "AdamW": bias}
    optimizer = MuonWithAdamW(
        [{"params": [p], "lr": 0.1, "weight_decay": 0.0, "algorithm": name} for name, p in parts.items()], {}
    )

    def closure():
        loss = (weight.sum() * bias).sum()
        loss.backward()
        calls.append(loss.item())
        return loss

    assert optimizer.step(closure).item() == 8 and calls == [8]
    assert (weight != 1).all() and (bias != 1).all()


def test_the_table_names_a_groups_algorithm_if_there_are_two():
    head, hidden, *others = format_groups(optimizer_of(model(), algorithm="Muon").param_groups).splitlines()
    assert head.split()[-1] == "algorithm" and hidden.split()[0] == "hidden" and hidden.split()[-1] == "Muon"
    assert {line.split()[-1] for line in others} == {"AdamW"}
    assert "algorithm" not in format_groups(optimizer_of(model(), algorithm="SGD").param_groups)


@pytest.mark.parametrize("algorithm", ["Muon", "SGD", f"{HERE}.Halved"])
def test_lightning_trains_clips_and_schedules_it(algorithm):
    spec = NetworkSpec(Classifier, layer=LayerSpec(S6), num_classes=2, d_input=1, **SMALL)
    task = Classification(spec, OptimizerSettings(lr=0.1, warmup_steps=2, algorithm=algorithm))
    before = copy.deepcopy(task.network.state_dict())
    fitting = trainer(max_epochs=1, gradient_clip_val=0.1)
    fitting.fit(task, DataLoader([(torch.randn(2, 8, 1), torch.tensor([0, 1]))] * 4, batch_size=None))
    for name in ("backbone.blocks.0.glu.weight", "head.weight"):
        assert not torch.equal(before[name], task.network.state_dict()[name])
    assert max(g["lr"] for g in fitting.optimizers[0].param_groups) == pytest.approx(0, abs=1e-9)  # the cosine's end
