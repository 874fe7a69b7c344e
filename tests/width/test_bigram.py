"""The model of the theory: exponents at the start, and equivalent parameterizations, which train the same."""

import numpy as np
import torch
from torch.nn import functional as F

from lra_ssm.width.bigram import Bigram, FirstOrder
from lra_ssm.width.parameterizations import KAPPA, PARAMETERIZATIONS, with_rates
from tests.each import each

WIDTHS, V = (64, 128, 256, 512), 16


def drawn(seed):
    return torch.Generator().manual_seed(seed)


def at_the_start(name, width, seed, **settings):
    """Root mean squares at the start: of activations, of gradients with respect to them and to weights."""
    model = Bigram(width, V, PARAMETERIZATIONS[name], generator=drawn(seed), dtype=torch.float64, **settings)
    ids = torch.arange(V)
    found = model.activations(ids)
    for h in found:
        h.retain_grad()
    F.cross_entropy(found[-1], ids.roll(1)).backward()
    tensors = {f"h{i}": h for i, h in enumerate(found, 1)} | {f"h'{i}": h.grad for i, h in enumerate(found, 1)}
    tensors |= {f"W'{i}": weight.grad for i, weight in enumerate(model.weights)}
    return {key: float(value.detach().square().mean().sqrt()) for key, value in tensors.items()}


def slopes(name, **settings):
    means = {
        width: [at_the_start(name, width, seed, **settings) for seed in range(3)] for width in WIDTHS
    }  # fmt: skip
    return {
        key: np.polyfit(np.log(WIDTHS), [np.log(np.mean([one[key] for one in means[w]])) for w in WIDTHS], 1)[0]
        for key in means[WIDTHS[0]][0]
    }


@each(("name", "readout"), [("sp", 0.5), ("ntk", 0.5), ("mup", 1.0), ("mean_field", 1.0)])
def test_exponents_at_the_start(name, readout):
    """(3), (9) and (10): RMS(h) is Θ(1), of the logits d^(1/2 − a − b), RMS(h') d^−(a + b) of the readout."""
    found = slopes(name)
    a = {kind: exponents.a for kind, exponents in PARAMETERIZATIONS[name].items()}
    wanted = {
        "h1": 0,
        "h2": 0,
        "h3": 0,
        "h4": 0.5 - readout,
        "h'1": -readout,
        "h'2": -readout,
        "h'3": -readout,
        "h'4": 0,
    }
    wanted |= {"W'0": -readout - a["embedding"], "W'1": -readout - a["hidden"], "W'3": -a["readout"]}
    for key, exponent in wanted.items():
        assert abs(found[key] - exponent) < 0.1, f"{key}: {found[key]:.3f}, and {exponent} in theory"


def test_a_norm_keeps_them():
    found = slopes("sp", rms_norm=True)
    for key, exponent in {"h1": 0, "h3": 0, "h4": 0, "h'3": -0.5, "h'2": -0.5, "W'1": -0.5, "W'3": 0}.items():
        assert abs(found[key] - exponent) < 0.1, f"{key}: {found[key]:.3f}, and {exponent} in theory"


@each("optimizer", KAPPA)
@each("pair", [("sp", "ntk"), ("mup", "mean_field")])
def test_equivalent_parameterizations_train_the_same(optimizer, pair):
    losses = []
    for name in pair:
        exponents = with_rates(PARAMETERIZATIONS[name], optimizer)
        model = Bigram(48, V, exponents, nonlinearity="tanh", rms_norm=True, generator=drawn(0), dtype=torch.float64)
        steps, ids = FirstOrder(list(model.groups(0.05)), optimizer), torch.arange(V)
        losses.append([])
        for _ in range(20):
            loss = F.cross_entropy(model(ids), ids.roll(1))
            losses[-1].append(float(loss.detach()))
            loss.backward()
            steps.step()
    assert np.allclose(*losses, rtol=0, atol=1e-5) and losses[0][0] - losses[0][-1] > 0.01


def test_at_the_base_width_all_are_one_model():
    ids = torch.arange(V)
    models = [Bigram(32, V, one, base=32, generator=drawn(0)) for one in PARAMETERIZATIONS.values()]
    assert all(torch.equal(models[0](ids), other(ids)) for other in models[1:])
    assert all([group["lr"] for group in model.groups(0.1)] == [0.1] * 4 for model in models)
