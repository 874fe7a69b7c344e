"""What scripts of parity/ can show without a checkout: the tables of names, the comparison of data, B of HiPPO."""

import pytest
import torch
from torch import nn

import s4
import s4_accuracy
import s4_data
import ssm_benchmark
import stable_ssm
from lra_ssm.layers import S4D

CASE, ROW = s4.CASES["text-full"], ssm_benchmark.ROWS["listops"]
TABLES = {  # network of ours, names of its parameters
    "s4": lambda: (s4.build_ours(CASE, 9, 3), s4.names("v3", CASE.layers, CASE.prenorm)[0]),
    "s4, HEAD": lambda: (s4.build_ours(CASE, 9, 3), s4.names("head", CASE.layers, CASE.prenorm)[0]),
    "stable_ssm": lambda: (stable_ssm.our_network("best"), stable_ssm.names()),
    "ssm_benchmark": lambda: (
        ssm_benchmark.our_network(ROW, ssm_benchmark.Ways(), scaled=False),
        ssm_benchmark.names_of(ROW, nn.Module()),
    ),
}


@pytest.mark.parametrize("script", TABLES)
def test_the_table_of_names_has_every_parameter_of_ours(script):
    network, table = TABLES[script]()
    assert dict(network.named_parameters()).keys() == table.keys()


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
