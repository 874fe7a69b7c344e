"""ListOps: the generator's distribution, LRA's expressions, the splits."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lra_ssm.datamodules import ListOps
from lra_ssm.datamodules.listops import CLOSE, FIRST_OPERATOR_ID, OPERATORS, VOCABULARY, TreeSettings, generate
from lra_ssm.errors import InputError
from tests.datamodules.helpers import prepared, real_data, words
from tests.small_data import write_files

SMALL = {"length_bounds": (3, 50), "max_depth": 4, "num_train": 300, "num_val": 30, "num_test": 20, "batch_size": 8}


def listops(root: Path, **settings: Any) -> ListOps:
    return prepared(ListOps(root=str(root), **settings))


def evaluate(tokens: Sequence[str]) -> int:
    """The value of an expression without parentheses: `["[MAX", "2", "9", "]"]`."""
    found: list[list[Any]] = [[]]
    for token in tokens:
        if token in OPERATORS:
            found.append([token])
        elif token == CLOSE:
            operator, *values = found.pop()
            found[-1].append(OPERATORS[operator](values))
        else:
            found[-1].append(int(token))
    ((value,),) = found
    return value


# -- the generator -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published() -> list[tuple[bytes, int]]:
    return list(generate(TreeSettings(), 0, 3000))


def test_every_expression_keeps_the_rules(published: list[tuple[bytes, int]]) -> None:
    assert len({expression for expression, _ in published}) == 3000
    for expression, label in published[:200]:
        tokens = [VOCABULARY[token] for token in expression]
        assert 500 < len(tokens) < 2000
        arguments: list[int] = []
        for token in tokens:
            if token in OPERATORS:
                arguments.append(0)
                assert len(arguments) <= 9  # its leaves are on level 10 then
            else:
                if token == "]":
                    assert 2 <= arguments.pop() <= 10
                if arguments:
                    arguments[-1] += 1
        assert evaluate(tokens) == label


def test_the_distribution_is_that_of_lra(published: list[tuple[bytes, int]]) -> None:
    lengths = np.array([len(expression) for expression, _ in published])
    frequency = np.bincount([label for _, label in published], minlength=10) / len(lengths)
    # Measured on an independent generator: 0 and 9 have 16.9 % each, length 1035 in the mean, 954 in the median.
    assert abs(frequency[0] - 0.169) < 0.02 and abs(frequency[9] - 0.169) < 0.02
    assert 0.065 < frequency[1:9].min() and frequency[1:9].max() < 0.105
    assert abs(lengths.mean() - 1035) < 25 and abs(np.median(lengths) - 954) < 30
    counts = np.bincount(np.frombuffer(b"".join(e for e, _ in published), np.uint8), minlength=len(VOCABULARY))
    kinds, digits = counts[FIRST_OPERATOR_ID : FIRST_OPERATOR_ID + 4], counts[3:13]
    assert np.abs(kinds / kinds.sum() - 0.25).max() < 0.005 and np.abs(digits / digits.sum() - 0.1).max() < 0.002


def test_the_same_data_on_every_python(published: list[tuple[bytes, int]]) -> None:
    settings = TreeSettings(100, 400)
    first = list(generate(settings, 3, 300))
    assert list(generate(settings, 3, 100)) == first[:100] and list(generate(settings, 4, 300)) != first
    block = published[:100]
    digest = sha256(b"|".join(e for e, _ in block) + bytes(label for _, label in block)).hexdigest()
    assert digest == "220a6cf709aef2d26792f84ca9389dff77808f615269375e018b36324c933a63"


def test_small_spaces_are_exhausted_then_an_error(tmp_path: Path) -> None:
    assert len(set(generate(TreeSettings(3, 5, 2, 2), 0, 400))) == 400  # 4 operators, 2 leaves
    for settings in (TreeSettings(3, 5, 2, 2), TreeSettings(500, 2000, 2, 10)):  # no tree of 2 levels is that long
        with pytest.raises(InputError, match="turned up in .* attempts") as error:
            list(generate(settings, 0, 1000))
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="turned up"):
        listops(tmp_path / "root", length_bounds=(3, 5), max_depth=2, max_args=2, num_train=1000)
    assert not list(tmp_path.iterdir())


def test_evaluate_agrees_with_values_by_hand_and_with_the_published_data() -> None:
    values = {
        "7": 7, "[MIN 4 2 8 ]": 2, "[MAX 4 2 8 ]": 8, "[MED 1 2 ]": 1, "[MED 9 1 4 ]": 4, "[SM 9 8 7 ]": 4,
        "[MED 1 9 4 5 ]": 4, "[MAX 2 9 [MIN 4 7 ] 0 ]": 9,
    }  # fmt: skip
    assert {expression: evaluate(expression.split()) for expression in values} == values
    lines = [line.split("\t") for line in real_data("listops-spinn/test_d20s.tsv").read_text().splitlines()]
    found = [evaluate([token for token in expression.split() if token not in "()"]) for _, expression in lines]
    assert found == [int(label) for label, _ in lines] and len(lines) == 10_000


# -- the data module ---------------------------------------------------------------------------------------------------


def test_generated_splits_are_disjoint_and_right(tmp_path: Path) -> None:
    lra = ListOps(root=str(tmp_path))
    assert TreeSettings(*lra.length_bounds, lra.max_depth, lra.max_args) == TreeSettings() == (500, 2000, 10, 10)
    assert VOCABULARY == tuple("<pad> <unk> <eos> 0 1 2 3 4 5 6 7 8 9 [MIN [MAX [MED [SM ]".split())
    data = listops(tmp_path, **SMALL)
    assert (data.vocab_size, data.num_classes, data.longest) == (18, 10, 2048)
    seen = set()
    for name, count in (("train", 300), ("val", 30), ("test", 20)):
        expressions = words(data, name)
        assert len(expressions) == count
        assert all(3 < len(expression) < 50 for expression in expressions)
        assert [evaluate(expression) for expression in expressions] == data.prepared.split(name)["labels"].tolist()
        seen |= {tuple(expression) for expression in expressions}
    assert len(seen) == 350
    assert "300 train, 30 val, 20 test" in data.describe()
    assert words(listops(tmp_path, **SMALL, limit=10), "train") == words(data, "train")[:10]


@pytest.mark.trials
def test_the_whole_published_setting(tmp_path: Path) -> None:
    splits = listops(tmp_path).manifest()["splits"]
    assert [split["examples"] for split in splits.values()] == [96_000, 2_000, 2_000]
    assert abs(splits["train"]["length"]["mean"] - 1036.5) < 0.01 and splits["train"]["class_counts"][0] == 16_309


def test_spellings_of_lras_files(tmp_path: Path) -> None:
    rows = [b"( ( ( [MAX 2 ) 9 ) ] )\t9", b"(((([MED 1)4)5)X)\t4", b"[MIN 3 4 ]\t3"]
    text = b"\r\n".join([b"Source\tTarget", *rows])  # no end of the last line
    write_files(tmp_path, {f"basic_{split}.tsv": text for split in ("train", "val", "test")})
    data = listops(tmp_path, source="lra", max_length=12)
    assert words(data, "val") == ["[MAX 2 9 ]".split(), "[MED 1 4 5 ]".split(), "[MIN 3 4 ]".split()]
    train = data.prepared.split("train")
    assert train["labels"].tolist() == [9, 4, 3] and train["tokens"].dtype == np.uint8
