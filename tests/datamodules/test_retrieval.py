"""LRA's Retrieval: pairs of documents, their tokens, errors by line."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lra_ssm.datamodules import Retrieval
from lra_ssm.datamodules.characters import EOS_ID, SPECIALS
from lra_ssm.datamodules.retrieval import NAMES
from lra_ssm.errors import InputError
from tests.datamodules.helpers import sequences

# Quotes that open and are never closed, one of them across a line's end for a csv reader.
ROWS = {
    "train": [
        '1.0\tP05-1022\tN07-1051\t"We present a\tparser" is "here',
        '0.0\tW02-1502\tP98-2184\t"An open quote\tthe second',
        '1.0\t"W1\tW2"\t\t"ends here" \'\'',
    ],
    "val": ["0.0\ta\tb\tzebra é\tpapers"],
    "test": ["1.0\ta\tb\ttest\tset"],
}


def write_files(folder: Path, rows: Mapping[str, list[str]] = ROWS, end: str = "\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, lines in rows.items():
        (folder / NAMES[split]).write_bytes("".join(line + end for line in lines).encode())
    return folder


def prepared(root: Path, **settings: Any) -> Retrieval:
    data = Retrieval(root=str(root), **({"batch_size": 2} | settings))
    data.prepare_data()
    return data


def pairs(data: Retrieval, name: str) -> list[tuple[int, str, str]]:
    split, vocabulary = data.prepared.split(name), data.manifest()["vocabulary"]
    found = sequences(split)
    assert all(tokens[-1] == EOS_ID and EOS_ID not in tokens[:-1] for tokens in found)
    texts = ["".join(vocabulary[token] for token in tokens[:-1]) for tokens in found]
    return list(zip(split["labels"].tolist(), texts[::2], texts[1::2], strict=True))


def test_what_is_prepared(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="no files of Retrieval .*`lra-ssm prepare retrieval .*` downloads LRA's archive"
    ):
        prepared(tmp_path)
    root = tmp_path / "root"
    write_files(root / "aan")
    data = prepared(root)
    assert data.prepared_folder.name.startswith("lra-")
    assert pairs(data, "train") == [
        (1, '"We present a', 'parser" is "here'),
        (0, '"An open quote', "the second"),
        (1, "", "\"ends here\" ''"),
    ]
    counted = "".join(text for _, *texts in pairs(data, "train") for text in texts)
    expected = sorted(set(counted), key=lambda character: (-counted.count(character), character))
    assert data.manifest()["vocabulary"] == [*SPECIALS, *expected]  # of the training texts
    assert pairs(data, "val") == [(0, "<unk>e<unk>ra <unk>", "papers")]
    fewer = prepared(root, min_freq=3).manifest()["vocabulary"]
    assert fewer == [*SPECIALS, *[character for character in expected if counted.count(character) >= 3]]


def test_documents_are_cut_one_by_one(tmp_path: Path) -> None:
    rows = ROWS | {"train": ["1\tx\ty\tabcdefgh\tabc", "0\tx\ty\tab\tabé" + "z" * 100]}
    data = prepared(write_files(tmp_path, rows), max_length=4)
    assert pairs(data, "train") == [(1, "abc", "abc"), (0, "ab", "abé")]
    assert data.manifest()["vocabulary"] == [*SPECIALS, "a", "b", "c", "é"]
    split = prepared(tmp_path, max_length=4, inputs="bytes").prepared.split("train")
    assert sequences(split) == [[98, 99, 100, 101], [98, 99, 100], [98, 99], [98, 99, 0xC4, 0xAA]]


def test_line_ends_labels_and_limit(tmp_path: Path) -> None:
    unix, windows = (prepared(write_files(tmp_path / str(len(end)), end=end)) for end in ("\n", "\r\n"))
    assert pairs(unix, "train") == pairs(windows, "train")
    rows = ["1\ta\tb\t\t", "0\ta\tb\tc\td", "1.0\ta\tb\tx\ry\t\x00", "0.0\ta\tb\t\tlast"]
    write_files(tmp_path, ROWS | {"train": rows})
    expected = [(1, "", ""), (0, "c", "d"), (1, "x\ry", "\x00"), (0, "", "last")]
    assert pairs(prepared(tmp_path), "train") == expected
    some = prepared(tmp_path, limit=2)
    assert pairs(some, "train") == expected[:2]
    assert some.manifest()["vocabulary"] == prepared(tmp_path).manifest()["vocabulary"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"1.0\ta\tb\ttext\n", "4 columns instead of 5"),
        (b"1.0\ta\tb\ttext\ttext\tmore\n", "6 columns instead of 5"),
        (b"\n", "1 columns instead of 5"),
        (b"label\tid1\tid2\ttext1\ttext2\n", "the label is 'label' instead of 0 or 1"),
        (b"1\ta\tb\tcaf\xe9 x\td\n", "is not UTF-8 \\(byte 0xe9\\)"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = write_files(tmp_path / "root" / "aan") / NAMES["test"]
    good = ROWS["val"][0].encode() + b"\n"
    path.write_bytes(good + line + good)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}:2: .*{message}") as error:
        prepared(tmp_path / "root")
    assert "\n" not in str(error.value)
    assert [entry.name for entry in (tmp_path / "root").iterdir()] == ["aan"]
