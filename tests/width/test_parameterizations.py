"""The exponents of the four parameterizations, against the tables of the papers and their conditions."""

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
from tests.each import each

# c of Adam of embedding, hidden and readout: with full alignment the note's table 1, else 1/2 less of the latter two
ADAM = {
    "sp": {"full": (0, 1, 1), "none": (0, 0.5, 0.5)},
    "ntk": {"full": (0, 0.5, 0.5), "none": (0, 0, 0)},
    "mup": {"full": (0.5, 1, 0.5), "none": (0.5, 0.5, 0)},
    "mean_field": {"full": (0, 0.5, 0), "none": (0, 0, -0.5)},
}


def rates(exponents):
    return tuple(exponents[layer].c for layer in LAYERS)


def flat(exponents):
    return pytest.approx([value for layer in LAYERS for value in exponents[layer]])


def test_rates_of_adam_are_the_tables():
    for name, by_alignment in ADAM.items():
        assert rates(PARAMETERIZATIONS[name]) == by_alignment["full"]
        for alignment, wanted in by_alignment.items():
            assert rates(with_rates(PARAMETERIZATIONS[name], "adam", alignment)) == wanted


def test_one_rate_of_sgd_in_mup():
    """Yang & Hu 2020: in muP with these multipliers SGD has one learning rate for all layers and widths."""
    assert rates(with_rates(PARAMETERIZATIONS["mup"], "sgd")) == (0, 0, 0)


def test_rates_of_muon_are_adams_but_for_hidden_layers_aligned_or_not():
    """RMS(ΔW h) of a step O·√d or O, O orthogonal, is √d or 1 times the rate (Jordan et al. 2024; Liu et al. 2025)."""
    for name, hidden in {"sp": 0.5, "ntk": 0, "mup": 0.5, "mean_field": 0}.items():
        for alignment in ALIGNMENTS:
            adam = rates(with_rates(PARAMETERIZATIONS[name], "adam", alignment))
            for optimizer, less in (("muon", 0), ("muon_original", 0.5)):
                found = rates(with_rates(PARAMETERIZATIONS[name], optimizer, alignment))
                assert found == (adam[0], hidden - less, adam[2])


@each("name", PARAMETERIZATIONS)
@each("optimizer", KAPPA)
@each("alignment", ALIGNMENTS)
def test_the_four_are_stable_and_a_larger_rate_is_not(name, optimizer, alignment):
    exponents = with_rates(PARAMETERIZATIONS[name], optimizer, alignment)
    assert failed(exponents, optimizer, ALIGNMENTS[alignment]) == []
    for layer, equation in (("embedding", "(14"), ("hidden", "(19"), ("readout", "(19")):
        a, b, c = exponents[layer]
        wrong = failed({**exponents, layer: Exponents(a, b, c - 0.1)}, optimizer, ALIGNMENTS[alignment])
        assert any(reason.startswith(equation) and "it is -0.1" in reason for reason in wrong), wrong


@each(
    ("change", "equation"),
    [
        ({"embedding": Exponents(0, 0.5, 0)}, "(6)"),
        ({"hidden": Exponents(0, 0, 1)}, "(7)"),
        ({"readout": Exponents(0, 0, 1)}, "(8)"),
    ],
)
def test_what_is_unstable_at_the_start_is_named(change, equation):
    assert any(reason.startswith(equation) for reason in failed({**PARAMETERIZATIONS["sp"], **change}))


def test_sp_needs_a_readout_that_is_not_aligned_and_mup_does_not():
    worst = Alignment(1, 1, 0.5, 1)
    assert failed(PARAMETERIZATIONS["mup"], "adam", worst) == []
    (only,) = failed(PARAMETERIZATIONS["sp"], "adam", worst)
    assert only.startswith("(18, 24)") and "-0.5" in only


def test_conditions_are_told_once_and_in_order():
    told = [one.equation for one in conditions(PARAMETERIZATIONS["mup"], depth=3)]
    assert told[:4] == ["6", "7", "8", "14, 21"] and told[4:] == [
        "18, 23",
        "19, 22",
        "20, 22",
        "18, 24",
        "19, 22",
        "20, 22",
    ]


@each("optimizer", KAPPA)
def test_equivalents_are_as_stable_and_their_gradients_follow(optimizer):
    theta = {"embedding": 0.3, "hidden": -0.2, "readout": 0.5}
    for exponents in PARAMETERIZATIONS.values():
        exponents = with_rates(exponents, optimizer)
        other = equivalent(exponents, theta, optimizer)
        assert failed(other, optimizer) == []
        assert flat(with_rates(other, optimizer)) == flat(other).expected
        for layer in LAYERS:
            assert gradient_exponent(other, layer) == pytest.approx(gradient_exponent(exponents, layer) + theta[layer])


def test_sp_is_ntk_and_mup_is_mean_field():
    for optimizer in KAPPA:
        for one, other in (("sp", "ntk"), ("mup", "mean_field")):
            pair = [
                without_multipliers(with_rates(PARAMETERIZATIONS[name], optimizer), optimizer) for name in (one, other)
            ]
            assert flat(pair[0]) == flat(pair[1]).expected
    assert without_multipliers(PARAMETERIZATIONS["sp"]) != without_multipliers(PARAMETERIZATIONS["mup"])
