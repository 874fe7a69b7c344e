"""What s4.py and its neighbours say without a checkout: the tables of names, and the comparison of data."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import s4
import s4_accuracy
import s4_data
from compare import load_weights, our_names, translate
from lra_ssm.datamodules import ListOps, Text
from lra_ssm.layers import S4D


def made_up(version: str, case: s4.Case) -> dict[str, np.ndarray]:
    """Weights under the public names, of the shapes of v3.0.0 and of HEAD, which puts an axis before some."""
    table, unused = s4.names(version, case.layers, case.prenorm)
    shapes = {name: p.shape for name, p in s4.build_ours(case, 9, 3).named_parameters()}
    random = np.random.default_rng(0)
    weights = {}
    for ours, source in table.items():
        name = source if isinstance(source, str) else source.theirs
        shape, last = tuple(shapes[ours]), name.rpartition(".")[2]
        if last == "D" or (version == "head" and last == "B"):
            shape = (1, *shape)
        if last == "inv_dt":
            shape = (*shape, 1)
        weights[name] = random.normal(size=shape).astype("f")
    return weights | {name: np.zeros(2, "f") for name in unused}


@pytest.mark.parametrize("version", ["v3", "head"])
@pytest.mark.parametrize("prenorm", [False, True])
def test_the_table_of_names_fills_every_parameter_of_ours(version, prenorm):
    case = replace(s4.CASES["text-full"], prenorm=prenorm)
    network, theirs = s4.build_ours(case, 9, 3), made_up(version, case)
    table, unused = s4.names(version, case.layers, prenorm)
    load_weights(network, theirs, table, unused)
    layer, kernel = network.backbone.blocks[1].layer, "model.layers.1.layer.kernel.kernel"
    if version == "v3":
        np.testing.assert_array_equal(layer.A_imag.detach(), theirs[f"{kernel}.A_imag"])
    else:  # whose imaginary parts are the negative of A's
        np.testing.assert_array_equal(layer.A_imag.detach(), -theirs["model.layers.1.layer.layer.kernel.A_imag"])
        softplus = translate(theirs, s4.with_softplus(table), unused)["backbone.blocks.0.layer.log_delta"]
        inverse = torch.from_numpy(theirs["model.layers.0.layer.layer.kernel.inv_dt"])[:, 0]
        torch.testing.assert_close(torch.from_numpy(softplus).exp(), torch.nn.functional.softplus(inverse))
    ours = our_names(table)
    assert {s4.group(ours.get(name, name)) for name in theirs} == {"A", "B", "C", "delta", "other"}
    assert s4.group(ours[next(name for name in theirs if name.endswith("kernel.B"))]) == "B"
    assert {s4.group(name) for name, _ in network.named_parameters()} == {"A", "B", "C", "delta", "other"}


def test_agreement_counts_examples_in_any_order():
    a, b, c = ((("x", "y"), 0), (("x",), 1), (("x",), 0))
    assert s4_data.agreement([a, b, b], [b, a, b]) == (3, 3, 3, 4)
    assert s4_data.agreement([a, b, b], [c, a, b, c]) == (3, 4, 2, 4)  # a label differs, and one occurs once


def test_vocabulary_is_by_frequency_and_then_by_name():
    vocabulary = s4_data.Vocabulary(["abca", "bd", "d"], min_freq=2, specials=["<pad>", "<unk>"])
    vocabulary.set_default_index(vocabulary["<unk>"])
    assert vocabulary.names == ["<pad>", "<unk>", "a", "b", "d"] and vocabulary("cad") == [1, 2, 4]


def test_reviews_of_ours_by_name(tmp_path):
    texts = {"train": ("good ]", "bad X"), "test": ("zzz", "so")}
    for split, own in texts.items():
        for label, text in zip(("neg", "pos"), own, strict=True):
            file = tmp_path / "aclImdb" / split / label / "1_1.txt"
            file.parent.mkdir(parents=True)
            file.write_text(text)
    data = Text(root=str(tmp_path / "data"), source=str(tmp_path / "aclImdb"), validation="test", min_freq=1)
    data.prepare_data()
    names = data.manifest()["vocabulary"]
    assert set(s4_data.our_examples(data, names, "train")) == {((*"good ]", "<eos>"), 0), ((*"bad X", "<eos>"), 1)}
    test = {(("<unk>", "<unk>", "<unk>", "<eos>"), 0), (("<unk>", "o", "<eos>"), 1)}
    assert set(s4_data.our_examples(data, names, "test")) == test
    found = [(text, label) for text, label, _ in s4_data.read_reviews(tmp_path / "aclImdb" / "train", 1)]
    assert found == [("good ]", 0), ("bad X", 1)]


def test_generated_expressions_in_lras_layout_are_read_as_they_were(tmp_path):
    expressions = s4_data.generated(tmp_path / "data", 40, 5)
    assert {split: len(lines) for split, lines in expressions.items()} == {"train": 40, "val": 5, "test": 5}
    for split, lines in expressions.items():
        text = "".join(f"{expression}\t{value}\n" for expression, value in lines)
        (tmp_path / f"basic_{split}.tsv").write_text(f"Source\tTarget\n{text}")
    data = ListOps(root=str(tmp_path / "again"), source=str(tmp_path))
    data.prepare_data()
    for split, lines in expressions.items():
        wanted = [((*line.replace("( ", "").replace(" )", "").split(), "<eos>"), int(value)) for line, value in lines]
        assert s4_data.agreement(wanted, s4_data.our_examples(data, ListOps.vocabulary, split))[2] == len(lines)
    (tmp_path / "file.tsv").write_text("3\t( [MAX 3 ) 2 ) ]\n" * 10)
    assert [len(lines) for lines in s4_data.of_file(tmp_path / "file.tsv").values()] == [8, 1, 1]


def test_ways_differ_in_what_they_say():
    task = s4_accuracy.TASKS["listops"]
    ways = {way: s4_accuracy.our_network(task, way) for way in ("config", "as public", *s4_accuracy.EFFECTS)}
    settings = {
        way: (network.backbone.padding, network.backbone.blocks[0].counts_padding,
              network.backbone.blocks[0].layer.discretization)
        for way, network in ways.items()
    }  # fmt: skip
    assert settings == {
        "config": ("masked", False, "zoh"),
        "as public": ("masked", True, "bilinear"),
        "counted": ("masked", True, "zoh"),
        "seen": ("seen", False, "zoh"),
        "bilinear": ("masked", False, "bilinear"),
        "B of HiPPO": ("masked", False, "zoh"),
    }
    images = s4_accuracy.our_network(s4_accuracy.TASKS["mnist"], "config")
    batch = s4_accuracy.as_read((torch.rand(2, 784, 1), torch.tensor([784, 784]), torch.tensor([1, 2])))
    assert batch[0].shape == (2, 196, 1) and images(batch[0], batch[1]).shape == (2, 10)
    assert len(set(s4_accuracy.queue())) == len(list(s4_accuracy.queue()))


def test_B_of_hippo():
    """sqrt(2n+1) in the basis of unit eigenvectors keeps its length, half of it in one of each conjugate pair."""
    N = 4
    B = s4_accuracy.hippo_B(N)
    whole = 2 * (B.abs() ** 2).sum()
    assert B.shape == (N,) and whole < (2 * torch.arange(2 * N) + 1).sum() + 1e-3 and B.real.abs().max() <= 2
    network = s4_accuracy.our_network(s4_accuracy.TASKS["listops"], "B of HiPPO")
    layer = next(each for each in network.modules() if isinstance(each, S4D))
    torch.testing.assert_close(torch.view_as_complex(layer.B.detach())[3], s4_accuracy.hippo_B(s4.STATES // 2))
