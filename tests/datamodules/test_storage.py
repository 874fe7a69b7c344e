"""Preparation: atomic and once; damaged folders; the data root."""

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lra_ssm.datamodules.storage import (
    MANIFEST,
    ensure_root,
    load,
    prepare,
    resolve_root,
    save_split,
    verify,
    write_array,
    write_manifest,
)
from lra_ssm.errors import InputError
from tests.datamodules.helpers import contents, tiny_dataset
from tests.each import each

# Prepares ten arrays. KILL=n kills the process at the n-th step of the preparation.
SCRIPT = """
import os, signal, sys
from pathlib import Path
import numpy as np
from lra_ssm.datamodules import storage

left = int(os.environ.get("KILL", -1))
def step(function):
    def call(*args, **kwargs):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return function(*args, **kwargs)
    return call
os.fsync, os.open, np.save = step(os.fsync), step(os.open), step(np.save)
Path.mkdir, Path.rename = step(Path.mkdir), step(Path.rename)

def build(folder):
    print("building", flush=True)
    arrays = {f"a{n}": np.arange(1000) * n for n in range(10)}
    storage.write_manifest(folder, {"splits": {"train": {"arrays": storage.save_split(folder, "train", arrays)}}})
storage.prepare(Path(sys.argv[1]), "made", "data", build)
print("left", left, flush=True)
"""


def start(root: Path, kill: int = -1) -> subprocess.Popen[str]:
    environment = os.environ | {"KILL": str(kill), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT, str(root)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_whole(root: Path) -> None:
    process = start(root)
    assert process.communicate()[0] and process.returncode == 0
    assert sorted(path.name for path in (root / "made").iterdir()) == [".lock", "data"]
    prepared = load(root / "made" / "data")
    verify(prepared)
    assert all((array == np.arange(1000) * n).all() for n, array in enumerate(prepared.split("train").values()))


def test_a_preparation_killed_anywhere_leaves_all_or_nothing(tmp_path: Path) -> None:
    steps = 10_000 - int(start(tmp_path / "count", kill=10_000).communicate()[0].split()[-1])
    assert steps > 20
    for kill in [3, steps // 2, *range(steps - 4, steps)]:
        root = tmp_path / f"kill-{kill}"
        process = start(root, kill)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, kill
        check_whole(root)


def test_only_one_of_four_processes_builds(tmp_path: Path) -> None:
    processes = [start(tmp_path / "root") for _ in range(4)]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    assert sum("building" in output for output, _ in outputs) == 1
    check_whole(tmp_path / "root")


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise InputError("no")

    root = tmp_path / "root"
    with pytest.raises(InputError, match="no"):
        prepare(root, "made", "data", fail)
    assert not root.exists()
    (root / "made" / "other").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt):
        prepare(root, "made", "data", lambda folder: (_ for _ in ()).throw(KeyboardInterrupt))
    assert sorted(path.name for path in (root / "made").iterdir()) == [".lock", "other"]


def test_prepared_data_is_never_built_again(tmp_path: Path) -> None:
    target = prepare(tmp_path, "d", "n", lambda folder: write_manifest(folder, {}))
    assert prepare(tmp_path, "d", "n", lambda folder: pytest.fail("built again")) == target


def test_the_manifest_describes_arrays_that_numpy_can_read(tmp_path: Path) -> None:
    prepared = tiny_dataset(tmp_path)
    manifest = json.loads((prepared.folder / MANIFEST).read_text())
    assert manifest == prepared.manifest
    val = manifest["splits"]["val"]
    assert val["examples"] == 6 and val["class_counts"] == [1] * 6 + [0] * 20
    assert val["length"] == {"min": 1, "mean": 3.5, "max": 6}
    entry = val["arrays"]["tokens"]
    assert entry["dtype"] == "|u1" and entry["shape"] == [21]
    assert np.array_equal(np.load(prepared.folder / entry["file"]), prepared.split("val")["tokens"])


def test_arrays_that_were_written_in_place_are_kept(tmp_path: Path) -> None:
    images = write_array(tmp_path / "train_images.npy", np.uint8, (3, 4), [np.full((n, 4), 7) for n in (1, 2)])
    inode = (tmp_path / "train_images.npy").stat().st_ino
    arrays = save_split(tmp_path, "train", {"images": images})
    assert (tmp_path / "train_images.npy").stat().st_ino == inode and arrays["images"]["shape"] == [3, 4]
    assert (np.load(tmp_path / "train_images.npy") == 7).all()


def test_a_split_is_read_only_and_pickled_without_its_arrays(tmp_path: Path) -> None:
    split = tiny_dataset(tmp_path).split("train")
    data = pickle.dumps(split)
    assert split["tokens"].tobytes() not in data
    assert np.array_equal(pickle.loads(data)["tokens"], split["tokens"])
    with pytest.raises(ValueError, match="read-only"):
        split["tokens"][0] = 1


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@each("name", [MANIFEST, "train_tokens.npy", "val_labels.npy"])
@each("damage", [Path.unlink, cut])
def test_missing_and_cut_files_are_one_line_at_opening(tmp_path: Path, name: str, damage) -> None:
    folder = tiny_dataset(tmp_path / f"{name}-{damage.__name__}").folder
    damage(folder / name)
    if name == MANIFEST and damage is cut:
        cut(folder / name)  # the last byte is a line's end
    with pytest.raises(InputError, match=f"^{folder / name}: .*delete the folder {folder} and start again") as error:
        load(folder)
    assert "\n" not in str(error.value)


def test_verify_finds_a_changed_byte(tmp_path: Path) -> None:
    prepared = tiny_dataset(tmp_path)
    path = prepared.folder / "train_tokens.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"^{path}: does not have its recorded sha256; delete the folder"):
        verify(load(prepared.folder))


def test_data_of_another_version_and_splits_that_do_not_exist(tmp_path: Path) -> None:
    prepared = tiny_dataset(tmp_path)
    with pytest.raises(InputError, match="has no split test; it has train, val"):
        prepared.split("test")
    (prepared.folder / MANIFEST).write_text(json.dumps(prepared.manifest | {"format": 1}))
    with pytest.raises(InputError, match="is not of this version"):
        load(prepared.folder)
    with pytest.raises(InputError, match="is not prepared"):
        load(tmp_path / "absent")


def test_a_read_only_root_serves_what_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(tiny_dataset(tmp_path).folder)
    monkeypatch.setattr("lra_ssm.datamodules.storage.ensure_root", lambda root: pytest.fail("looked at the root"))
    assert contents(tiny_dataset(tmp_path).folder) == before


def test_the_root_is_argument_then_environment_then_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRA_SSM_DATA", raising=False)
    assert resolve_root() == tmp_path / "data"
    monkeypatch.setenv("LRA_SSM_DATA", str(tmp_path / "elsewhere"))
    assert resolve_root() == tmp_path / "elsewhere"
    assert resolve_root("here") == tmp_path / "here"
    assert not list(tmp_path.iterdir())


def test_the_root_is_created_if_only_it_is_missing(tmp_path: Path) -> None:
    ensure_root(tmp_path / "root")
    ensure_root(tmp_path / "root")
    with pytest.raises(InputError, match="cannot be created .No such file or directory.; its parent"):
        ensure_root(tmp_path / "absent" / "root")
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be created .File exists."):
        ensure_root(tmp_path / "file")
