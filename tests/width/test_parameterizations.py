"""The exponents of the four parameterizations, against the papers' tables and conditions."""

from itertools import product

import pytest

from lra_ssm.width.parameterizations import (
    ALIGNMENTS,
    KAPPA,
    LAYERS,
    PARAMETERIZATIONS,
    Alignment,
    Exponents,
    conditions,
    equivalent,
    failed,
    gradient_exponent,
    with_rates,
    without_multipliers,
)

# c of Adam for embedding, hidden and readout: with full alignment the note's table 1, otherwise 1/2 less for the latter
ADAM = {
    "sp": {"full": (0, 1, 1), "none": (0, 0.5, 0.5)},
    "ntk": {"full": (0, 0.5, 0.5), "none": (0, 0, 0)},
    "mup": {"full": (0.5, 1, 0.5), "none": (0.5, 0.5, 0)},
    "mean_field": {"full": (0, 0.5, 0), "none": (0, 0, -0.5)},
}
MUON_HIDDEN = {"sp": 0.5, "ntk": 0, "mup": 0.5, "mean_field": 0}


def rates(exponents):
    return tuple(exponents[layer].c for layer in LAYERS)


def flat(exponents):
    return pytest.approx([value for layer in LAYERS for value in exponents[layer]])


@pytest.mark.parametrize("name", PARAMETERIZATIONS)
def test_rates_of_adam_are_the_tables_and_muons_differ_in_hidden_layers(name):
    """RMS(ΔW h) of a step O·√d or O, O orthogonal, is √d or 1 times the rate (Jordan et al. 2024; Liu et al. 2025)."""
    assert rates(PARAMETERIZATIONS[name]) == ADAM[name]["full"]
    for alignment, (embedding, hidden, readout) in ADAM[name].items():
        assert rates(with_rates(PARAMETERIZATIONS[name], "adam", alignment)) == (embedding, hidden, readout)
        for optimizer, less in (("muon", 0), ("muon_original", 0.5)):
            muon = rates(with_rates(PARAMETERIZATIONS[name], optimizer, alignment))
            assert muon == (embedding, MUON_HIDDEN[name] - less, readout)
    # Yang & Hu 2020: in muP with these multipliers SGD has one learning rate for all layers and widths.
    assert (rates(with_rates(PARAMETERIZATIONS[name], "sgd")) == (0, 0, 0)) == (name == "mup")


def test_the_four_are_stable_and_larger_rates_are_not():
    for name, optimizer, alignment in product(PARAMETERIZATIONS, KAPPA, ALIGNMENTS):
        exponents = with_rates(PARAMETERIZATIONS[name], optimizer, alignment)
        assert failed(exponents, optimizer, ALIGNMENTS[alignment]) == []
        for layer, equation in (("embedding", "(14"), ("hidden", "(19"), ("readout", "(19")):
            a, b, c = exponents[layer]
            wrong = failed({**exponents, layer: Exponents(a, b, c - 0.1)}, optimizer, ALIGNMENTS[alignment])
            assert any(reason.startswith(equation) and "it is -0.1" in reason for reason in wrong), wrong


@pytest.mark.parametrize(
    ("change", "equation"),
    [({"embedding": Exponents(0, 0.5, 0)}, "(6)"), ({"hidden": Exponents(0, 0, 1)}, "(7)"),
     ({"readout": Exponents(0, 0, 1)}, "(8)")],
)  # fmt: skip
def test_what_is_unstable_at_the_start_is_named(change, equation):
    assert any(reason.startswith(equation) for reason in failed({**PARAMETERIZATIONS["sp"], **change}))


def test_an_aligned_readout_breaks_sp_but_not_mup():
    worst = Alignment(1, 1, 0.5, 1)
    assert failed(PARAMETERIZATIONS["mup"], "adam", worst) == []
    (only,) = failed(PARAMETERIZATIONS["sp"], "adam", worst)
    assert only.startswith("(18, 24)") and "-0.5" in only


def test_each_condition_is_listed_once_and_in_order():
    equations = [one.equation for one in conditions(PARAMETERIZATIONS["mup"], depth=3)]
    assert equations == ["6", "7", "8", "14, 21", "18, 23", "19, 22", "20, 22", "18, 24", "19, 22", "20, 22"]


@pytest.mark.parametrize("optimizer", KAPPA)
def test_equivalents_are_as_stable_and_their_gradients_follow(optimizer):
    theta = {"embedding": 0.3, "hidden": -0.2, "readout": 0.5}
    folded = {}
    for name, exponents in PARAMETERIZATIONS.items():
        exponents = with_rates(exponents, optimizer)
        other, folded[name] = equivalent(exponents, theta, optimizer), without_multipliers(exponents, optimizer)
        assert failed(other, optimizer) == []
        assert flat(with_rates(other, optimizer)) == flat(other).expected
        for layer in LAYERS:
            assert gradient_exponent(other, layer) == pytest.approx(gradient_exponent(exponents, layer) + theta[layer])
    assert flat(folded["sp"]) == flat(folded["ntk"]).expected
    assert flat(folded["mup"]) == flat(folded["mean_field"]).expected
    assert folded["sp"] != folded["mup"]
