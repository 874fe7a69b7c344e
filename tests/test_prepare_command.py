"""`lra-ssm prepare` and `lra-ssm doctor`: what they print, leave and refuse."""

import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from lra_ssm import datamodules
from lra_ssm.cli.datasets import DATASETS
from lra_ssm.datamodules import Text
from tests.runner import fail, printed, refused, succeed
from tests.small_data import write_cifar10, write_imdb, write_mnist

CONFIGS = Path(__file__).parents[1] / "configs"
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


def test_summary_is_one_table_of_everything(root: Path, capsys: Any) -> None:
    lines = printed(["prepare", "--summary", f"--root={root}"], capsys).splitlines()
    assert all(column in lines[0] for column in COLUMNS)
    rows = [line.split() for line in lines[1:]]
    assert [row[0] for row in rows] == ["cifar10"] * 3 + ["listops"] * 3 + ["mnist"] * 3 + ["text"] * 3
    assert len({len(line) for line in lines}) == 1  # the last column is aligned to the right
    listops = next(row for row in rows if row[0] == "listops" and "train" in row)
    assert listops[1:5] == ["generated,", "3", "to", "20"] and "8" in listops and "18" in listops
    text = next(row for row in rows if row[0] == "text" and "test" in row)
    assert "40" in text and "50.0–50.0%" in text
    assert any("limit 10" in line and "32×32×1" in line for line in lines)
    assert printed(["prepare", "--summary", "--root", str(root)], capsys).splitlines() == lines


def test_summary_beside_a_dataset_and_of_nothing(root: Path, tmp_path: Path, capsys: Any) -> None:
    flags = ["--num_train=8", "--num_val=4", "--num_test=4", "--length_bounds=[3,20]", "--max_depth=3"]
    out = printed(["prepare", "listops", f"--root={root}", *flags, "--summary"], capsys)
    assert "lengths" in out and "class shares" in out
    empty = printed(["prepare", "--summary", f"--root={tmp_path}"], capsys)
    assert empty == f"nothing is prepared below {tmp_path}\n"


def test_a_batch_is_drawn(root: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    files = root.parent / "mnist-files"
    arguments = [f"--root={root}", f"--source={files}", "--permutation=random", "--picture=batch.png"]
    assert printed(["prepare", "mnist", *arguments], capsys).endswith("batch.png\n")
    assert (tmp_path / "batch.png").read_bytes()[:4] == b"\x89PNG"
    tokens = ["--num_train=8", "--num_val=4", "--num_test=4", "--length_bounds=[3,20]", "--max_depth=3"]
    line = refused(["prepare", "listops", f"--root={root}", *tokens, "--picture=batch2.png"], capsys)
    assert "unknown option --picture" in line and not (tmp_path / "batch2.png").exists()
    for picture, reason in ((".", "is a folder"), ("absent/x.png", "its folder does not exist")):
        given = ["prepare", "mnist", f"--root={tmp_path / 'new'}", f"--source={files}", f"--picture={picture}"]
        line = refused(given, capsys)
        assert reason in line and not (tmp_path / "new").exists()  # said before anything is prepared


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_folders_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0)
    for arguments in (["listops", f"--source={tmp_path / 'locked'}"], ["text", f"--root={tmp_path / 'locked'}"]):
        assert "Permission denied" in fail(["prepare", *arguments], tmp_path)
    assert "cannot be read" in fail(["prepare", "--summary", f"--root={tmp_path / 'locked'}"], tmp_path)


def test_the_summary_names_damaged_data(root: Path, tmp_path: Path) -> None:
    manifest = next(root.glob("mnist/*/test_labels.npy")).parent / "manifest.json"
    record = manifest.read_text()
    try:
        for text in ("{", "{}"):
            manifest.write_text(text)
            assert f"damaged: {manifest}" in succeed(["prepare", "--summary", f"--root={root}"], tmp_path).out
    finally:
        manifest.write_text(record)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["txet"], "unknown dataset 'txet'; did you mean 'text'?"),
        (["--summary", "--verify"], "unknown option --verify"),
        ([], "a dataset, --config CONFIG, --summary or --clean"),
        (["text", "--limt=3"], "unknown option --limt; did you mean '--limit'?"),
        (["text", "--batch_size=3"], "unknown option --batch_size"),
        (["listops", "--limit=0"], "ListOps limit 0: must be at least 1"),
        (["text", "--source=/nowhere"], "/nowhere"),
        (["mnist", "--source=nowhere"], "nowhere"),
        (["pathx", "--resolution=48"], "resolution"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert message in refused(["prepare", *arguments, *([] if "--summary" in arguments else ["--root=data"])], capsys)
    assert list(tmp_path.rglob("*")) == [tmp_path / "data"]


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("text", "retrieval", "scifar", "image")]


@pytest.mark.parametrize("name", ["mnist", *OTHERS])
def test_a_fit_never_downloads(name: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = name if name in ("mnist", "scifar") else f"lra/{name}"
    config = Path(__file__).parents[1] / f"configs/{folder}/s4d.yaml"
    message = refused(["fit", "--config", str(config), f"--data.root={tmp_path / 'data'}"], capsys)
    assert f"`lra-ssm prepare --config {config} --data.root=" in message
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("name", DATASETS)
def test_help_of_every_dataset(name: str, capsys: Any) -> None:
    out = printed(["prepare", name, "--help"], capsys)
    own = "--shard" if name in LANGUAGE else "--limit"
    assert "--source" in out and own in out and "--root" in out and "--batch_size" not in out
    assert "--length " not in out and "--order" not in out


def _said(out: str) -> tuple[Path, list[str]]:
    """The folder that `prepare` names and the options of a fit that it ends with."""
    lines = out.splitlines()
    (line,) = [line for line in lines if line.startswith("train on it: ")]
    program, *command = shlex.split(line.removeprefix("train on it: "))
    assert program == "lightning" and command[:2] == ["fit", "--config"]
    return Path(next(line for line in lines if ": " in line and "train" in line).split(": ")[0]), command[2:]


OPTIONS = {  # dataset -> what it is prepared with; the data module's class
    "listops": (
        ["--length_bounds=[3,20]", "--max_depth=3", "--num_train=20", "--num_val=4", "--num_test=4"],
        "ListOps",
    ),
    "text": (["--source={text}", "--min_freq=1"], "Text"),
    "image": (["--source={image}", "--limit=10", "--split_seed=1"], "Image"),
    "pathx": (["--limit=2"], "Pathfinder"),
    "corpus": (["--source={corpus}", "--tokenizer=bytes"], "Corpus"),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("a folder of files")
    (folder / "corpus").mkdir()
    for i in range(200):
        (folder / f"corpus/{i}.txt").write_text(f"Text {i} of a corpus, " * 8)
    files = {"text": write_imdb(folder), "image": write_cifar10(folder), "mnist": write_mnist(folder)}
    return {**files, "corpus": folder / "corpus"}


@pytest.mark.parametrize("dataset", OPTIONS)
def test_it_ends_with_the_options_that_take_it(dataset, sources, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRA_SSM_DATA", raising=False)
    options, name = OPTIONS[dataset]
    given = [option.format(**sources) for option in options]
    folder, (_, chosen, *taken) = _said(printed(["prepare", dataset, *given, "--root", "other"], capsys))
    assert folder.parent.parent == tmp_path / "other" and chosen == f"--data={name}"
    rows = ["--model.network.vocab_size=257"] if dataset == "corpus" else []
    resolution = ["--data.resolution=128"] if dataset == "pathx" else []
    assert taken == [*resolution, *(f"--data.{option[2:]}" for option in given), "--data.root=other", *rows]
    pairs = [option.removeprefix("--data.").split("=", 1) for option in taken if option not in rows]
    arguments = {key: yaml.safe_load(value) for key, value in pairs}
    assert getattr(datamodules, name)(**arguments).prepared_folder == folder


def test_a_configuration_prepares_what_its_fit_needs(sources: dict[str, Path], tmp_path: Path, monkeypatch, capsys):
    """Whoever lacks data is told the command: the options of the fit itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRA_SSM_DATA", raising=False)
    options = ["--config", str(CONFIGS / "lra/text/s4d.yaml"), "--data.limit=4", "--model.network.d_model=4"]
    assert f"`lra-ssm prepare {' '.join(options)}` downloads them" in refused(["fit", *options], capsys)
    folder, command = _said(printed(["prepare", *options, f"--data.source={sources['text']}"], capsys))
    assert command == [*options[1:], f"--data.source={sources['text']}"]
    assert folder == Text(limit=4, source=str(sources["text"])).prepared_folder and (folder / "manifest.json").is_file()
    small = ["--trainer.fast_dev_run=1", "--trainer.accelerator=cpu", "--model.network.n_layers=1"]
    printed(["fit", "--config", *command, *small], capsys)
