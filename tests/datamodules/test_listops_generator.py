import os
import signal
from collections import Counter
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from lra_ssm.datamodules.listops import builder, generator
from lra_ssm.datamodules.listops.generator import check_settings, generate
from lra_ssm.datamodules.listops.trees import (
    FIRST_OPERATOR_ID,
    OPERATORS,
    VOCABULARY,
    Block,
    TreeSettings,
)
from lra_ssm.errors import InputError
from tests.datamodules.helpers import contents, evaluate

SMALL = TreeSettings(3, 50, 4, 10)


def take(settings: TreeSettings, seed: int, count: int, workers: int = 1, kept: Path | None = None) -> Block:
    blocks = list(generate(settings, seed, count, workers=workers, kept=kept))
    return Block([tree for block in blocks for tree in block.expressions], b"".join(block.labels for block in blocks))


@pytest.fixture(scope="module")
def published() -> Block:
    return take(TreeSettings(), 0, 3000)


def test_every_expression_keeps_the_rules(published: Block) -> None:
    assert len(published.expressions) == len(published.labels) == len(set(published.expressions)) == 3000
    for expression, label in zip(published.expressions[:200], published.labels, strict=False):
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


def test_distribution_is_that_of_lra(published: Block) -> None:
    lengths = np.array([len(expression) for expression in published.expressions])
    frequency = np.bincount(np.frombuffer(published.labels, np.uint8), minlength=10) / len(lengths)
    # Measured on an independent generator: 0 and 9 have 16.9 % each, length 1035 in the mean, 954 in the median.
    assert abs(frequency[0] - 0.169) < 0.02 and abs(frequency[9] - 0.169) < 0.02
    assert 0.065 < frequency[1:9].min() and frequency[1:9].max() < 0.105
    assert abs(lengths.mean() - 1035) < 25 and abs(np.median(lengths) - 954) < 30


def test_operators_and_arguments_are_uniform(published: Block) -> None:
    tokens = np.frombuffer(b"".join(published.expressions), np.uint8)
    counts = np.bincount(tokens, minlength=len(VOCABULARY))
    kinds = counts[FIRST_OPERATOR_ID : FIRST_OPERATOR_ID + 4]
    assert np.abs(kinds / kinds.sum() - 0.25).max() < 0.005
    digits = counts[3:13]
    assert np.abs(digits / digits.sum() - 0.1).max() < 0.002


def test_same_data_on_any_number_of_workers() -> None:
    settings = TreeSettings(100, 400)
    first = take(settings, 3, 300)
    assert take(settings, 3, 300, workers=2) == first
    assert take(settings, 4, 300) != first
    fewer = take(settings, 3, 100)
    assert fewer == Block(first.expressions[:100], first.labels[:100])


def test_blocks_that_are_kept_are_not_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TreeSettings(20, 60, 4, 5)
    expected = take(settings, 3, 400)
    assert take(settings, 3, 400, kept=tmp_path) == expected
    files = sorted(tmp_path.iterdir(), key=lambda file: int(file.stem))
    files[0].write_bytes(files[0].read_bytes()[:100])  # a disk that lost the end
    drawn: list[int] = []
    sample = generator.sample_block
    monkeypatch.setattr(generator, "sample_block", lambda *given: (drawn.append(given[2]), sample(*given))[1])
    assert take(settings, 3, 400, kept=tmp_path) == expected and drawn == [0]


def test_what_is_drawn_when_it_is_stopped_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(builder, "SOON_S", 0.0)
    monkeypatch.setattr("lra_ssm.datamodules.storage.disk.SOON_S", 0.0)
    settings, counts = TreeSettings(20, 60, 4, 5), {"train": 200, "val": 20, "test": 20}
    folders = [tmp_path / name for name in ("whole", "stopped", "again")]
    for folder in folders:
        folder.mkdir()
    builder.build_generated(folders[0], settings, 3, counts, workers=1)
    said = capsys.readouterr().err
    assert said.startswith("drawing 240 ListOps expressions: about 0 s and 0.0 GB; stopped, the same command goes on")
    extend = builder._extend
    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(builder, "_extend", lambda *given: (extend(*given), os.kill(os.getpid(), signal.SIGINT)))
        builder.build_generated(folders[1], settings, 3, counts, workers=1)
    (kept,) = tmp_path.glob(".parts-*")
    assert {path.stem for path in kept.iterdir()} == {"0", "1", "2"}
    builder.build_generated(folders[2], settings, 3, counts, workers=1)
    assert contents(folders[2]) == contents(folders[0]) and not kept.exists()


def test_same_data_on_every_python() -> None:
    block = take(TreeSettings(), 0, 100)
    digest = sha256(b"|".join(block.expressions) + block.labels).hexdigest()
    assert digest == "220a6cf709aef2d26792f84ca9389dff77808f615269375e018b36324c933a63"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (TreeSettings(10, 10), "length_bounds"),
        (TreeSettings(10, 11), "length_bounds"),
        (TreeSettings(0, 10), "length_bounds"),
        (TreeSettings(max_depth=1), "max_depth"),
        (TreeSettings(max_args=1), "max_args"),
    ],
)
def test_impossible_settings(settings: TreeSettings, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_settings(settings)
    with pytest.raises(InputError, match=message):
        next(generate(settings, 0, 1))


@pytest.mark.parametrize(
    "settings",
    [
        TreeSettings(3, 5, 2, 2),  # 4 operators, 2 leaves: 400 expressions
        TreeSettings(500, 2000, 2, 10),  # no tree of 2 levels is that long
    ],
)
def test_too_few_expressions_end_in_an_error(settings: TreeSettings) -> None:
    with pytest.raises(InputError, match="turned up in .* attempts") as error:
        list(generate(settings, 0, 1000, workers=1))
    assert "\n" not in str(error.value)


def test_exhaustible_space_gives_all_of_it() -> None:
    block = take(TreeSettings(3, 5, 2, 2), 0, 400)
    assert len(set(block.expressions)) == 400


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("7", 7),
        ("[MIN 4 2 8 ]", 2),
        ("[MAX 4 2 8 ]", 8),
        ("[MED 1 2 ]", 1),
        ("[MED 9 1 4 ]", 4),
        ("[MED 1 9 4 5 ]", 4),
        ("[SM 9 8 7 ]", 4),
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
    ],
)
def test_evaluate(expression: str, value: int) -> None:
    assert evaluate(expression.split()) == value


def test_evaluate_agrees_with_the_published_data() -> None:
    folder = os.environ.get("LRA_SSM_TEST_DATA")
    path = Path(folder or "", "listops-spinn", "test_d20s.tsv")
    if not folder or not path.is_file():
        pytest.skip("LRA_SSM_TEST_DATA does not name a folder with listops-spinn/test_d20s.tsv")
    kinds: Counter[str] = Counter()
    lines = path.read_text().splitlines()
    for line in lines:
        label, expression = line.split("\t")
        tokens = [token for token in expression.split() if token not in "()"]
        assert evaluate(tokens) == int(label), line
        kinds.update(token for token in tokens if token in OPERATORS)
    assert len(lines) == 10_000 and set(kinds) == set(OPERATORS)
