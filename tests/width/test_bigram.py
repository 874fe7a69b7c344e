"""The model of the theory: exponents at the start, and equivalent parameterizations, which train the same."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lra_ssm.width.bigram import Bigram, FirstOrder
from lra_ssm.width.parameterizations import KAPPA, PARAMETERIZATIONS, with_rates

WIDTHS, V = (64, 128, 256, 512), 16


def drawn(seed):
    return torch.Generator().manual_seed(seed)


def sizes_at_the_start(name, width, seed, **settings):
    """Return root mean squares at the start: of activations h, and of gradients of activations h' and weights W'."""
    model = Bigram(width, V, PARAMETERIZATIONS[name], generator=drawn(seed), dtype=torch.float64, **settings)
    ids = torch.arange(V)
    activations = model.activations(ids)
    for h in activations:
        h.retain_grad()
    F.cross_entropy(activations[-1], ids.roll(1)).backward()
    tensors = {f"h{i}": h for i, h in enumerate(activations, 1)} | {
        f"h'{i}": h.grad for i, h in enumerate(activations, 1)
    }
    tensors |= {f"W'{i}": weight.grad for i, weight in enumerate(model.weights)}
    return {key: float(value.detach().square().mean().sqrt()) for key, value in tensors.items()}


@pytest.mark.parametrize(
    ("name", "readout", "settings"),
    [("sp", 0.5, {}), ("ntk", 0.5, {}), ("mup", 1.0, {}), ("mean_field", 1.0, {}), ("sp", 0.5, {"rms_norm": True})],
)
def test_exponents_at_the_start(name, readout, settings):
    """(3), (9) and (10): RMS(h) is Θ(1), of the logits d^(1/2 − a − b), RMS(h') d^−(a + b) of the readout."""
    means = {w: [sizes_at_the_start(name, w, seed, **settings) for seed in range(3)] for w in WIDTHS}
    a = {kind: exponents.a for kind, exponents in PARAMETERIZATIONS[name].items()}
    wanted = dict.fromkeys(("h1", "h2", "h3", "h'4"), 0) | dict.fromkeys(("h'1", "h'2", "h'3"), -readout)
    wanted |= {"h4": 0.5 - readout, "W'1": -readout - a["hidden"], "W'3": -a["readout"]}
    wanted |= {} if settings else {"W'0": -readout - a["embedding"]}
    for key, exponent in wanted.items():
        logs = [np.log(np.mean([sizes[key] for sizes in means[w]])) for w in WIDTHS]
        slope = np.polyfit(np.log(WIDTHS), logs, 1)[0]
        assert abs(slope - exponent) < 0.1, f"{key}: {slope:.3f}, and {exponent} in theory"


@pytest.mark.parametrize("optimizer", KAPPA)
@pytest.mark.parametrize("pair", [("sp", "ntk"), ("mup", "mean_field")])
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
