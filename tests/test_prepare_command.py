"""`lra-ssm prepare` and `lra-ssm doctor`: what they print, leave and refuse."""

import os
from pathlib import Path

import pytest

from lra_ssm.cli.prepare import DATASETS
from tests.runner import fail, run, succeed
from tests.small_data import write_cifar10, write_imdb, write_mnist

COLUMNS = ["dataset", "source", "inputs", "split", "examples", "classes", "class shares", "tokens", "length mean"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with four datasets in it, each prepared by a command."""
    folder = tmp_path_factory.mktemp("prepared")
    sources = {
        "listops": ["--num_train=8", "--num_val=4", "--num_test=4", "--length_bounds=[3,20]", "--max_depth=3"],
        "text": [f"--source={write_imdb(folder)}"],
        "image": [f"--source={write_cifar10(folder)}", "--limit=10"],
        "mnist": [f"--source={write_mnist(folder)}"],
    }
    for name, options in sources.items():
        out = succeed(["prepare", name, f"--root={folder / 'data'}", *options], folder).out
        assert str(folder / "data") in out and "train" in out
    return folder / "data"


def test_summary_is_one_table_of_everything(root: Path, tmp_path: Path) -> None:
    lines = succeed(["prepare", "--summary", f"--root={root}"], tmp_path).out.splitlines()
    assert all(column in lines[0] for column in COLUMNS)
    rows = [line.split() for line in lines[1:]]
    assert [row[0] for row in rows] == ["cifar10"] * 3 + ["listops"] * 3 + ["mnist"] * 3 + ["text"] * 3
    assert len({len(line) for line in lines}) == 1  # the last column is aligned to the right
    listops = next(row for row in rows if row[0] == "listops" and "train" in row)
    assert "generated" in listops and "8" in listops and "18" in listops
    text = next(row for row in rows if row[0] == "text" and "test" in row)
    assert "40" in text and "50.0%" in text
    assert any("limit 10" in line and "32×32×1" in line for line in lines)
    assert succeed(["prepare", "--summary", "--root", str(root)], tmp_path).out.splitlines() == lines


def test_summary_beside_a_dataset_and_of_nothing(root: Path, tmp_path: Path) -> None:
    flags = ["--num_train=8", "--num_val=4", "--num_test=4", "--length_bounds=[3,20]", "--max_depth=3"]
    out = succeed(["prepare", "listops", f"--root={root}", *flags, "--summary"], tmp_path).out
    assert "lengths" in out and "class shares" in out
    empty = succeed(["prepare", "--summary", f"--root={tmp_path}"], tmp_path).out
    assert empty == f"nothing is prepared below {tmp_path}\n"


def test_a_batch_is_drawn(root: Path, tmp_path: Path) -> None:
    files = root.parent / "mnist-files"
    arguments = [f"--root={root}", f"--source={files}", "--permutation=random", "--picture=batch.png"]
    assert succeed(["prepare", "mnist", *arguments], tmp_path).out.endswith("batch.png\n")
    assert (tmp_path / "batch.png").read_bytes()[:4] == b"\x89PNG"
    tokens = ["--num_train=8", "--num_val=4", "--num_test=4", "--length_bounds=[3,20]", "--max_depth=3"]
    line = fail(["prepare", "listops", f"--root={root}", *tokens, "--picture=batch2.png"], tmp_path)
    assert "batch2.png: ListOps is no dataset of images" in line and not (tmp_path / "batch2.png").exists()
    for picture, reason in (
        ("", "is a folder"),
        (".", "is a folder"),
        ("absent/x.png", "absent is no existing folder"),
    ):
        line = fail(
            ["prepare", "mnist", f"--root={tmp_path / 'new'}", f"--source={files}", f"--picture={picture}"], tmp_path
        )
        assert reason in line and not (tmp_path / "new").exists()  # said before anything is prepared


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_folders_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0)
    for arguments in (["listops", f"--source={tmp_path / 'locked'}"], ["text", f"--root={tmp_path / 'locked'}"]):
        assert "Permission denied" in fail(["prepare", *arguments], tmp_path)
    assert "cannot be read" in fail(["prepare", "--summary", f"--root={tmp_path / 'locked'}"], tmp_path)


def test_doctor_shows_the_manifests_and_checks_the_digests(root: Path, tmp_path: Path) -> None:
    out = succeed(["doctor", f"--root={root}", "--verify"], tmp_path).out
    assert "torch 2." in out and "reference  runs" in out and "kind: generated" in out
    assert "all digests of 4 prepared folders are as recorded" in out
    assert "inputs: characters" in out and "split" in out


def test_doctor_names_damaged_data(root: Path, tmp_path: Path) -> None:
    labels = next(root.glob("mnist/*/test_labels.bin"))
    manifest = labels.parent / "manifest.json"
    whole, record = labels.read_bytes(), manifest.read_text()
    try:
        labels.write_bytes(whole[:-8])
        cut = run(["doctor", f"--root={root}"], tmp_path)
        assert cut.code == 1 and "DAMAGED" in cut.out and "bytes instead of" in cut.out
        labels.write_bytes(whole[:-8] + bytes(8))
        other = run(["doctor", f"--root={root}", "--verify"], tmp_path)
        assert other.code == 1 and "does not have its recorded sha256" in other.out and "all digests" not in other.out
        for text in ("{", "{}"):
            manifest.write_text(text)
            assert "DAMAGED" in (broken := run(["doctor", f"--root={root}", "--verify"], tmp_path)).out
            assert broken.code == 1 and "Traceback" not in broken.err
            assert f"damaged: {manifest}" in succeed(["prepare", "--summary", f"--root={root}"], tmp_path).out
    finally:
        labels.write_bytes(whole)
        manifest.write_text(record)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["txet"], "unknown dataset 'txet'; did you mean 'text'?"),
        (["--summary", "--verify"], "unknown dataset '--verify'"),
        (["text", "--limt=3"], "unknown option --limt; did you mean 'limit'?"),
        (["text", "--batch_size=3"], "unknown option --batch_size"),
        (["listops", "--limit=0"], "ListOps limit 0: must be at least 1"),
        (["text", "--source=/nowhere"], "/nowhere"),
        (["mnist", "--source=nowhere"], "nowhere"),
        (["pathx", "--resolution=48"], "resolution"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert message in fail(["prepare", *arguments, *([] if "--summary" in arguments else ["--root=data"])], tmp_path)
    assert list(tmp_path.rglob("*")) == [tmp_path / "data"]


@pytest.mark.parametrize("name", ["text", "retrieval", "image", "mnist", "scifar"])
def test_a_fit_never_downloads(name: str, tmp_path: Path) -> None:
    folder = name if name in ("mnist", "scifar") else f"lra/{name}"
    config = Path(__file__).parents[1] / f"configs/{folder}/s4d.yaml"
    message = fail(["fit", "--config", str(config), f"--data.root={tmp_path / 'data'}"], tmp_path)
    assert f"lra-ssm prepare {name}" in message
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("name", DATASETS)
def test_help_of_every_dataset(name: str, tmp_path: Path) -> None:
    out = succeed(["prepare", name, "--help"], tmp_path).out
    assert "--source" in out and "--limit" in out and "--root" in out and "--batch_size" not in out
