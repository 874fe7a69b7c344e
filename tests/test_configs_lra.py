"""The rows of S5 and of LRA's Transformer: as many parameters as the public code has, and its rates by parameter."""

import pytest

from lra_ssm.tasks import OptimizerSettings
from lra_ssm.tasks.optim import parameter_rates
from tests.test_configs import CONFIGS, LRA, network, on_meta, parameters, parsed, published

CLASSES = {"listops": 10, "image": 10}


@pytest.mark.parametrize("task", LRA)
def test_s5_has_the_parameters_of_its_public_code(task):
    """lindermanlab/S5, counted from its modules: Λ and Δ of P conjugate pairs, B, two C, D; half a GLU's map, a norm.
    Its tokens are one-hot vectors of a linear map, whose bias an embedding has not."""
    s = published("s5", task)
    D, P, K = s["d_model"], s["d_state"] // 2, CLASSES.get(task, 2)
    layer = 3 * P + 2 * P * D + 2 * 2 * P * D + D + D * D + D + 2 * D
    inputs = network(f"lra/{task}/s5")["init_args"]
    count = s["n_layers"] * layer + (inputs["vocab_size"] * D if "vocab_size" in inputs else 2 * D)
    count += 4 * D * D + D + D * K + K if task == "retrieval" else D * K + K
    assert parameters(f"lra/{task}/s5") == count


@pytest.mark.parametrize("task", LRA)
def test_s5_trains_every_parameter_as_its_public_code(task):
    """s5/train_helpers.py: Λ, without dt_global Δ, and B in "standard" are of Adam at the lower rate; all else decays.
    (On Path-X, "BandCdecay", B decays at the lower rate: here it does not.)"""
    s, built = published("s5", task), on_meta(f"lra/{task}/s5", n_layers=1)
    settings = parsed(CONFIGS / f"lra/{task}/s5.yaml")["model"]["init_args"]["optimizer"]
    slow, fast = (s["recurrent.lr"], 0.0), (s["lr"], s["weight_decay"])
    of_delta = fast if s.get("delta.lr_factor") == 1.0 else slow
    own = {"A_weight": slow, "A_imag": slow, "log_delta": of_delta, "B": fast if s["fast_B"] else slow}
    for name, rate in parameter_rates(built, OptimizerSettings.of(settings)).items():
        assert rate[:2] == pytest.approx(own.get(name.rpartition(".")[2], fast)), name


@pytest.mark.parametrize("task", LRA)
def test_the_transformer_has_the_parameters_of_lras_code(task):
    """google-research/long-range-arena, lra_benchmarks/models, counted from its modules; its vocabularies are ours."""
    s, inputs = published("lra", task), network(f"lra/{task}/transformer")["init_args"]
    given = inputs["embedding"]["init_args"]
    D, M, F, K = s["d_model"], given["max_length"], s["width"], CLASSES.get(task, 2)
    Q = s["n_heads"] * (s["d_head"] or D // s["n_heads"])
    block = 2 * 2 * D + 4 * D * Q + D * F + F + F * D + D
    count = inputs["vocab_size"] * D + s["n_layers"] * block + 2 * D
    count += D if s["class_token"] else 0
    count += (M + s["class_token"]) * D if given["positions"] == "learned" else 0
    half = F // 2
    count += 2 * D * F + F + F * half + half + half * K + K if task == "retrieval" else D * F + F + F * K + K
    assert parameters(f"lra/{task}/transformer") == count
    assert F == s["mlp_factor"] * D
