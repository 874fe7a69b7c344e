"""What s4.py and its neighbors can show without a checkout: the tables of names, the comparison of data, B."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import s4
import s4_accuracy
import s4_data
from compare import load_weights, our_names, translate
from lra_ssm.layers import S4D

CASE, GROUPS = s4.CASES["text-full"], {"A", "B", "C", "delta", "other"}


def made_up(version: str, case: s4.Case) -> dict[str, np.ndarray]:
    """Weights under the public names, of the shapes of v3.0.0 and of HEAD, which puts an axis before some."""
    table, unused = s4.names(version, case.layers, case.prenorm)
    random = np.random.default_rng(0)
    weights = {name: np.zeros(2, "f") for name in unused}
    for ours, parameter in s4.build_ours(case, 9, 3).named_parameters():
        name = table[ours] if isinstance(table[ours], str) else table[ours].theirs
        shape, last = tuple(parameter.shape), name.rpartition(".")[2]
        if last == "D" or (version == "head" and last == "B"):
            shape = (1, *shape)
        if last == "inv_dt":
            shape = (*shape, 1)
        weights[name] = random.normal(size=shape).astype("f")
    return weights


@pytest.mark.parametrize(("version", "sign", "kernel"), [("v3", 1, "kernel.kernel"), ("head", -1, "layer.kernel")])
@pytest.mark.parametrize("prenorm", [False, True])
def test_the_table_of_names_fills_every_parameter_of_ours(version, sign, kernel, prenorm):
    """HEAD has the negative of A's imaginary parts, and Δ behind a softplus."""
    case = replace(CASE, prenorm=prenorm)
    network, theirs = s4.build_ours(case, 9, 3), made_up(version, case)
    table, unused = s4.names(version, case.layers, prenorm)
    load_weights(network, theirs, table, unused)
    imaginary = theirs[f"model.layers.1.layer.{kernel}.A_imag"]
    np.testing.assert_array_equal(network.backbone.blocks[1].layer.A_imag.detach(), sign * imaginary)
    if version == "head":
        softplus = translate(theirs, s4.with_softplus(table), unused)["backbone.blocks.0.layer.log_delta"]
        inverse = torch.from_numpy(theirs[f"model.layers.0.layer.{kernel}.inv_dt"])[:, 0]
        torch.testing.assert_close(torch.from_numpy(softplus).exp(), torch.nn.functional.softplus(inverse))
    groups = {name: s4.group(our_names(table).get(name, name)) for name in theirs}
    assert {*groups.values()} == {s4.group(name) for name in table} == GROUPS
    assert all(groups[name] == "B" for name in theirs if name.endswith("kernel.B"))


def test_examples_are_compared_in_any_order_and_tokens_numbered_by_frequency_and_then_by_name():
    a, b, c = ((("x", "y"), 0), (("x",), 1), (("x",), 0))
    assert s4_data.agreement([a, b, b], [b, a, b]) == (3, 3, 3, 4)
    assert s4_data.agreement([a, b, b], [c, a, b, c]) == (3, 4, 2, 4)  # a label differs, and one occurs once
    vocabulary = s4_data.Vocabulary(["abca", "bd", "d"], min_freq=2, specials=["<pad>", "<unk>"])
    vocabulary.set_default_index(vocabulary["<unk>"])
    assert vocabulary.names == ["<pad>", "<unk>", "a", "b", "d"] and vocabulary("cad") == [1, 2, 4]


def test_B_of_hippo():
    """sqrt(2n+1) in the basis of unit eigenvectors keeps its length, half of it in one of each conjugate pair."""
    N = 4
    B = s4_accuracy.hippo_B(N)
    whole = 2 * (B.abs() ** 2).sum()
    assert B.shape == (N,) and whole < (2 * torch.arange(2 * N) + 1).sum() + 1e-3 and B.real.abs().max() <= 2
    network = s4_accuracy.our_network(s4_accuracy.TASKS["listops"], "B of HiPPO")
    layer = next(each for each in network.modules() if isinstance(each, S4D))
    torch.testing.assert_close(torch.view_as_complex(layer.B.detach())[3], s4_accuracy.hippo_B(s4.STATES // 2))
