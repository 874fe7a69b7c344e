import re
from pathlib import Path

import numpy as np
import pytest

from lra_ssm.datamodules import ListOps
from lra_ssm.datamodules.fetch.sources import LineFile
from lra_ssm.datamodules.listops.reader import FILES, read
from lra_ssm.datamodules.storage.format import open_prepared
from lra_ssm.errors import InputError
from lra_ssm.files import sha256
from tests.datamodules.helpers import LINES, words, write_tsv


def test_what_is_prepared_of_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    files = write_tsv(root / FILES.layouts[0])
    data = ListOps(root=str(root), source="lra", batch_size=2)
    data.prepare_data()
    data.setup()
    prepared = open_prepared(data.prepared_folder, verify=True)
    assert data.prepared_folder.parent == root / "listops" and data.prepared_folder.name.startswith("lra-")
    train = prepared.split("train")
    assert words(train, 0) == "[MAX 2 9 ]".split() and words(train, 1) == "[SM 7 [MIN 5 8 ] ]".split()
    assert train.labels.tolist() == [9, 2] and train.tokens.dtype == np.uint8
    source = data.manifest()["source"]
    assert source["kind"] == "lra" and source["published_counts"] is False
    for split in LINES:
        record = source["files"][split]
        assert record["sha256"] == sha256(files / f"basic_{split}.tsv") and record["digest"] == "unknown"


def test_a_folder_as_source_and_a_changed_file(tmp_path: Path) -> None:
    files = write_tsv(tmp_path / "mine")
    (tmp_path / "root").mkdir()

    def prepared() -> Path:
        data = ListOps(root=str(tmp_path / "root"), source=str(files))
        data.prepare_data()
        return data.prepared_folder

    first = prepared()
    assert first == prepared() and first.name.startswith("files-")
    write_tsv(files, {"val": ["( ( ( [MAX 1 ) 1 ) ] )\t1", "( ( ( [MAX 1 ) 2 ) ] )\t2"]})
    second = prepared()
    assert second != first and len(open_prepared(second).split("val")) == 2


def test_published_spellings(tmp_path: Path) -> None:
    path = tmp_path / "basic_val.tsv"
    path.write_bytes(b"Source\tTarget\r\n((([MAX 2)9)X)\t9\r\n[MIN 3 4 ]\t3")
    (chunk,) = read(LineFile(path), 2048)
    assert chunk.lengths == [5, 5] and chunk.labels == [9, 3]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("( ( ( [MAX 2 ) 9 ) ] )", "no tab and label"),
        ("( ( ( [MAX 2 ) 9 ) ] )\t", "the label is ''"),
        ("( ( ( [MAX 2 ) 9 ) ] )\t10", "the label is '10'"),
        ("( ( ( [MAX 2 ) 9 ) ] )\tx", "the label is 'x'"),
        ("( ( ( [MAX 2 ) 9 ) ] )\t9\t9", "the label is"),
        ("( ( ( [MAX 2 ) 9 )\t9", "brackets do not match"),
        ("( ( ( [MAX 2 ) 9 ) ] ) ]\t9", "brackets do not match"),
        ("[MAX 2 9 ] [MAX 2 9 ]\t9", "brackets do not match"),
        ("2 ] [MAX 9\t9", "brackets do not match"),
        ("\t9", "brackets do not match"),
        ("", "no tab and label"),
        ("( ( ( [FIRST 2 ) 9 ) ] )\t9", "token '\\[FIRST' is none of 0 1 2"),
        ("( ( ( [MAX 2 ) 12 ) ] )\t9", "token '12'"),
        ("( ( ( [MAX 2 ) <eos> ) ] )\t9", "token '<eos>'"),
        ("[MAX 1 2 3 4 5 6 7 8 9 ]\t9", "11 tokens, more than max_length - 1 = 10"),
    ],
)
def test_bad_lines(tmp_path: Path, row: str, message: str) -> None:
    write_tsv(tmp_path / "listops-1000", LINES | {"train": [LINES["val"][0], row, LINES["val"][0]]})
    data = ListOps(root=str(tmp_path), source="lra", max_length=11)
    path = tmp_path / "listops-1000" / "basic_train.tsv"
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}:3: .*{message}") as error:
        data.prepare_data()
    assert "\n" not in str(error.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["listops-1000"]


def test_the_longest_permitted_expression(tmp_path: Path) -> None:
    write_tsv(tmp_path, LINES | {"train": ["[MAX 1 2 3 4 5 6 7 8 9 ]\t9"]})
    data = ListOps(root=str(tmp_path), source="lra", max_length=12)
    data.prepare_data()
    assert data.manifest()["splits"]["train"]["length"]["max"] == 12


@pytest.mark.parametrize("header", ["Source,Target", "Target\tSource", "( ( ( [MAX 2 ) 9 ) ] )\t9"])
def test_wrong_header(tmp_path: Path, header: str) -> None:
    write_tsv(tmp_path, header=header)
    with pytest.raises(InputError, match=r"basic_train\.tsv:1: the header is"):
        ListOps(root=str(tmp_path), source="lra").prepare_data()
    assert len(list(tmp_path.iterdir())) == 3


def test_empty_files(tmp_path: Path) -> None:
    write_tsv(tmp_path)
    (tmp_path / "basic_test.tsv").write_text("Source\tTarget\n")
    with pytest.raises(InputError, match=r"basic_test\.tsv:1: .*no expression"):
        ListOps(root=str(tmp_path), source="lra").prepare_data()
    (tmp_path / "basic_test.tsv").write_text("")
    with pytest.raises(InputError, match=r"basic_test\.tsv:1: the header"):
        ListOps(root=str(tmp_path), source="lra").prepare_data()
