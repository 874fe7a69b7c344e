import logging
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from lra_ssm.datamodules.retrieval.module import Retrieval
from lra_ssm.datamodules.retrieval.reader import FILES, NAMES, PairsFile

from lra_ssm.datamodules.old_storage.format import SequenceSplit, open_prepared
from lra_ssm.datamodules.old_storage.vocabulary import EOS_ID, SPECIALS
from lra_ssm.errors import InputError
from lra_ssm.files import sha256
from tests.datamodules.helpers import contents

# Quotes that open and are never closed, one of them over a line's end for whoever takes it for a csv's.
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


def prepared(root: Path, **settings: object) -> Retrieval:
    data = Retrieval(root=str(root), **({"batch_size": 2} | settings))  # type: ignore[arg-type]
    data.prepare_data()
    data.setup()
    return data


def pairs(data: Retrieval, name: str) -> list[tuple[int, str, str]]:
    split, vocabulary = open_prepared(data.prepared_folder, verify=True).split(name), data.manifest()["vocabulary"]
    assert isinstance(split, SequenceSplit) and split.per_example == 2

    def text(index: int) -> str:
        sequence = split.sequence(index).tolist()
        assert sequence[-1] == EOS_ID and EOS_ID not in sequence[:-1]
        return "".join(vocabulary[token] for token in sequence[:-1])

    return [(int(label), text(2 * index), text(2 * index + 1)) for index, label in enumerate(split.labels)]


def arrays(data: Retrieval) -> dict[str, bytes]:
    return {name: value for name, value in contents(data.prepared_folder).items() if name.endswith(".npy")}


# -- reading -------------------------------------------------------------------------------------------------------


def test_what_is_prepared_of_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "root"
    files = write_files(root / FILES.layouts[0])
    data = prepared(root)
    (said,) = [record.getMessage() for record in caplog.records if "published" in record.getMessage()]
    assert "'train': 3, 'val': 1, 'test': 1" in said and "\n" not in said
    assert data.prepared_folder.parent == root / "retrieval" and data.prepared_folder.name.startswith("lra-")
    assert pairs(data, "train") == [
        (1, '"We present a', 'parser" is "here'),
        (0, '"An open quote', "the second"),
        (1, "", "\"ends here\" ''"),
    ]
    source = data.manifest()["source"]
    assert source["kind"] == "lra" and source["inputs"] == "characters" and source["published_counts"] is False
    for split, name in NAMES.items():
        record = source["files"][split]
        assert record["sha256"] == sha256(files / name) and record["digest"] == "unknown"
        assert record["pairs"] == len(ROWS[split]) and record["bytes"] == (files / name).stat().st_size


def test_vocabulary_is_of_the_training_texts_alone(tmp_path: Path) -> None:
    data = prepared(write_files(tmp_path))
    counted = "".join(text for _, *texts in pairs(data, "train") for text in texts)
    expected = sorted(set(counted), key=lambda character: (-counted.count(character), character))
    assert data.manifest()["vocabulary"] == [*SPECIALS, *expected]
    assert pairs(data, "val") == [(0, "<unk>e<unk>ra <unk>", "papers")]
    fewer = prepared(tmp_path, min_freq=3).manifest()["vocabulary"]
    assert fewer == [*SPECIALS, *[character for character in expected if counted.count(character) >= 3]]


def test_documents_are_cut_one_by_one(tmp_path: Path) -> None:
    rows = ROWS | {"train": ["1\tx\ty\tabcdefgh\tabc", "0\tx\ty\tab\tabé" + "z" * 100]}
    data = prepared(write_files(tmp_path, rows), max_length=4)
    assert pairs(data, "train") == [(1, "abc", "abc"), (0, "ab", "abé")]
    assert data.manifest()["vocabulary"] == [*SPECIALS, "a", "b", "c", "é"]
    assert data.manifest()["max_length"] == data.manifest()["splits"]["train"]["length"]["max"] == 4
    split = open_prepared(prepared(tmp_path, max_length=4, inputs="bytes").prepared_folder).split("train")
    assert isinstance(split, SequenceSplit)
    assert [split.sequence(index).tolist() for index in range(4)] == [
        [98, 99, 100, 101],
        [98, 99, 100],
        [98, 99],
        [98, 99, 0xC4, 0xAA],
    ]


def test_line_ends_and_labels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unix = prepared(write_files(tmp_path / "unix"))
    windows = prepared(write_files(tmp_path / "windows", end="\r\n"))
    assert arrays(unix) == arrays(windows)
    path = tmp_path / "some.tsv"
    path.write_bytes(b"1\ta\tb\t\t\n0\ta\tb\tc\td\n1.0\ta\tb\tx\ry\t\x00\n0.0\ta\tb\t\tlast")
    with caplog.at_level(logging.WARNING):
        (chunk,) = PairsFile(path, 100).chunks()
    assert chunk.labels == [1, 0, 1, 0]
    assert chunk.texts == ["", "", "c", "d", "x\ry", "\x00", "", "last"]
    (record,) = [record for record in caplog.records if "cut off" in record.getMessage()]
    assert record.getMessage().startswith(f"{path}:4: no line end")


def test_chunks_and_chosen_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lra_ssm.datamodules.retrieval.reader._CHARACTERS_PER_CHUNK", 50)
    path = tmp_path / "some.tsv"
    path.write_text("".join(f"{i % 2}\ta\tb\tfirst {i}\tsecond {i}\n" for i in range(100)))
    reader = PairsFile(path, 100)
    read: list[int] = []
    chunks = list(reader.chunks(read.append))
    assert len(chunks) > 20 and sum(read) == path.stat().st_size == reader.manifest_entry["bytes"]
    assert [label for chunk in chunks for label in chunk.labels] == [0, 1] * 50
    assert [text for chunk in chunks for text in chunk.texts][-2:] == ["first 99", "second 99"]
    chosen = [chunk.texts for chunk in reader.chunks(chosen=np.array([0, 7, 99]))]
    assert sum(chosen, []) == [f"{which} {i}" for i in (0, 7, 99) for which in ("first", "second")]


def test_limit_is_balanced_and_keeps_the_vocabulary(tmp_path: Path) -> None:
    rows = [f"{float(i < 30)}\ta\tb\tfirst {i}\tsecond {i}" for i in range(40)]
    write_files(tmp_path, dict.fromkeys(NAMES, rows))
    whole, some = prepared(tmp_path), prepared(tmp_path, limit=11)
    assert some.prepared_folder != whole.prepared_folder
    for split in NAMES:
        assert some.manifest()["splits"][split]["class_counts"] == [5, 6]
        assert set(pairs(some, split)) <= set(pairs(whole, split))
    assert pairs(some, "train") != pairs(whole, "train")[:11]
    assert some.manifest()["vocabulary"] == whole.manifest()["vocabulary"]
    assert some.manifest()["source"]["files"] == whole.manifest()["source"]["files"]
    assert prepared(tmp_path, limit=30, inputs="bytes").manifest()["splits"]["val"]["class_counts"] == [10, 20]


def test_batches(tmp_path: Path) -> None:
    data = prepared(write_files(tmp_path), batch_size=2, bucket_batches=2)
    batches = list(data.train_dataloader())
    assert len(batches) == data.train_batches()
    assert [len(batch.labels) for batch in batches] == [2, 1]
    for batch in batches:
        assert batch.inputs.shape == (len(batch.labels), 2, batch.lengths.max())
        assert batch.lengths.shape == (len(batch.labels), 2)
        ends = batch.inputs.gather(2, batch.lengths[..., None] - 1)
        assert (ends == EOS_ID).all() and int((batch.inputs != 0).sum()) == int(batch.lengths.sum())
    assert "3 train, 1 val, 1 test" in data.describe()


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"1.0\ta\tb\ttext\n", "4 columns instead of 5"),
        (b"1.0\ta\tb\ttext\ttext\tmore\n", "6 columns instead of 5"),
        (b"\n", "1 columns instead of 5"),
        (b"label\tid1\tid2\ttext1\ttext2\n", "the label is 'label' instead of 0 or 1"),
        (b"\ta\tb\tc\td\n", "the label is '' instead of 0 or 1"),
        (b"2.0\ta\tb\tc\td\n", "the label is '2.0'"),
        (b"0.5\ta\tb\tc\td\n", "the label is '0.5'"),
        (b"nan\ta\tb\tc\td\n", "the label is 'nan'"),
        (b"1\ta\tb\tcaf\xe9 x\td\n", "text1 is not UTF-8 \\(byte 0xe9 at 3\\)"),
        (b"1\ta\tb\tc\t\xed\xa0\x80\n", "text2 is not UTF-8 \\(byte 0xed at 0\\)"),
    ],
)
@pytest.mark.parametrize("split", ["train", pytest.param("test", marks=pytest.mark.slow)])
def test_bad_lines(tmp_path: Path, line: bytes, message: str, split: str) -> None:
    root = tmp_path / "root"
    path = write_files(root / "aan") / NAMES[split]
    good = ROWS["val"][0].encode() + b"\n"
    path.write_bytes(good + line + good)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}:2: .*{message}") as error:
        prepared(root)
    assert "\n" not in str(error.value)
    assert [entry.name for entry in root.iterdir()] == ["aan"]


def test_cut_off(tmp_path: Path) -> None:
    path = write_files(tmp_path) / NAMES["train"]
    whole = path.read_bytes()
    path.write_bytes(whole[:-16])
    with pytest.raises(InputError, match=r"train\.tsv:3: 4 columns .*cut off here"):
        prepared(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"train\.tsv:1: the file is empty"):
        prepared(tmp_path)


def test_one_class_and_files_sorted_by_class(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_files(tmp_path, ROWS | {"train": ["1.0\ta\tb\tc\td"] * 3}) / NAMES["train"]
    for settings in ({}, {"inputs": "bytes"}, {"limit": 2}):
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}: all 3 training pairs have label 1$"):
            prepared(tmp_path, **settings)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(NAMES.values())
    write_files(tmp_path, ROWS | {"train": ["1\ta\tb\tc\td"] * 120 + ["0\ta\tb\tc\td"] * 120})
    with caplog.at_level(logging.WARNING):
        prepared(tmp_path)
    (record,) = [record for record in caplog.records if "of one class" in record.getMessage()]
    assert record.getMessage().startswith(f"{path}: its first 120 pairs are of one class")
