"""Preparation: atomic and once, also in parts; damaged folders; the data root."""

import json
import os
import pickle
import signal
import subprocess
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lra_ssm.datamodules import storage
from lra_ssm.datamodules.parts import Parts
from lra_ssm.datamodules.storage import MANIFEST, ensure_root, load, prepare, resolve_root, verify, write_array
from lra_ssm.errors import InputError
from tests.datamodules.helpers import contents, tiny_dataset
from tests.runner import Command


def prepare_ten_arrays(arguments: list[str]) -> int:
    """Run in a process of its own. Arguments: the data root, and the step at which the process is killed."""
    steps, deadly = count(), int(arguments[1])

    def step(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(steps) == deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    def build(folder: Path) -> None:
        print("building", flush=True)
        entry = {"arrays": storage.save_split(folder, "train", {f"a{n}": np.arange(1000) * n for n in range(10)})}
        storage.write_manifest(folder, {"splits": {"train": entry}})

    for owner, name in ((os, "fsync"), (os, "open"), (np, "save"), (Path, "mkdir"), (Path, "rename")):
        setattr(owner, name, step(getattr(owner, name)))
    prepare(Path(arguments[0]), "made", "data", build)
    print("steps", next(steps), flush=True)
    return 0


def start(root: Path, kill: int = -1) -> Command:
    return Command([str(root), str(kill)], root.parent, call=prepare_ten_arrays)


def check_whole(root: Path) -> None:
    assert start(root).wait().code == 0
    assert sorted(path.name for path in (root / "made").iterdir()) == [".lock", "data"]
    prepared = load(root / "made" / "data")
    verify(prepared)
    assert all((array == np.arange(1000) * n).all() for n, array in enumerate(prepared.split("train").values()))


def test_a_preparation_killed_anywhere_leaves_all_or_nothing(tmp_path: Path) -> None:
    steps = int(start(tmp_path / "count").wait().out.split()[-1])
    assert steps > 20
    for kill in [3, steps // 2, *range(steps - 4, steps)]:
        root = tmp_path / f"kill-{kill}"
        assert start(root, kill).wait().code == -signal.SIGKILL, kill
        check_whole(root)


def test_only_one_of_four_processes_builds(tmp_path: Path) -> None:
    commands = [start(tmp_path / "root") for _ in range(4)]
    results = [command.wait() for command in commands]
    assert [result.code for result in results] == [0] * 4, results
    assert sum("building" in result.out for result in results) == 1
    check_whole(tmp_path / "root")


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(error: BaseException, folder: Path) -> None:
        (folder / "half").write_text("x")
        raise error

    (tmp_path / "made" / "other").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path, "made", "data", partial(fail, KeyboardInterrupt()))
    with pytest.raises(OSError, match="No space left on device.*/made/data"):
        prepare(tmp_path, "made", "data", partial(fail, OSError(28, "No space left on device")))
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [".lock", "other"]


def test_prepared_data_is_not_built_again_even_below_a_read_only_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(tiny_dataset(tmp_path).folder)
    monkeypatch.setattr("lra_ssm.datamodules.storage.ensure_root", lambda root: pytest.fail("looked at the root"))
    assert contents(tiny_dataset(tmp_path).folder) == before


def test_the_manifest_describes_read_only_arrays_that_numpy_can_read(tmp_path: Path) -> None:
    prepared = tiny_dataset(tmp_path)
    manifest = json.loads((prepared.folder / MANIFEST).read_text())
    assert manifest == prepared.manifest
    val = manifest["splits"]["val"]
    assert val["examples"] == 6 and val["class_counts"] == [1] * 6 + [0] * 20
    assert val["length"] == {"min": 1, "mean": 3.5, "max": 6}
    entry, split = val["arrays"]["tokens"], prepared.split("val")
    assert entry["dtype"] == "|u1" and entry["shape"] == [21]
    assert np.array_equal(np.load(prepared.folder / entry["file"]), split["tokens"])
    data = pickle.dumps(split)
    assert split["tokens"].tobytes() not in data and np.array_equal(pickle.loads(data)["tokens"], split["tokens"])
    with pytest.raises(ValueError, match="read-only"):
        split["tokens"][0] = 1


@pytest.mark.parametrize("name", [MANIFEST, "train_tokens.npy", "val_labels.npy"])
@pytest.mark.parametrize("cut", [0, 2, None])  # bytes at the end; None: the file is missing
def test_missing_and_damaged_files_are_one_line(tmp_path: Path, name: str, cut: int | None) -> None:
    prepared = tiny_dataset(tmp_path)
    path = prepared.folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut] if cut else whole[:-1] + bytes([whole[-1] ^ 1]))
    if cut is None:
        path.unlink()
    if name == MANIFEST and cut == 0:
        path.write_text(json.dumps(prepared.manifest | {"format": 1}))
    with pytest.raises(InputError, match=f"^{path}: .*delete the folder {path.parent} and start again") as error:
        verify(load(prepared.folder))
    assert "\n" not in str(error.value)


def test_the_root_is_argument_then_environment_then_data(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LRA_SSM_DATA", raising=False)
    assert resolve_root() == here / "data"
    monkeypatch.setenv("LRA_SSM_DATA", str(here / "elsewhere"))
    assert resolve_root() == here / "elsewhere" and resolve_root("here") == here / "here"
    for _ in range(2):  # it is created if only it is missing
        ensure_root(here / "root")
    (here / "file").touch()
    for name, reason in (("absent/root", "No such file or directory.; its parent"), ("file", "File exists.")):
        with pytest.raises(InputError, match=f"cannot be created .{reason}"):
            ensure_root(here / name)
    assert sorted(path.name for path in here.iterdir()) == ["file", "root"]


# -- parts of a long preparation ---------------------------------------------------------------------------------------


def test_a_part_that_exists_is_not_made_again(tmp_path: Path) -> None:
    parts, made = Parts(tmp_path / ".parts-x", 2), list[int]()
    for _ in range(2):
        parts.write(1, lambda number: made.append(number) or ({}, {"length": 1}))  # type: ignore[func-returns-value]
    assert made == [1] and parts.missing() == [0]


def test_a_full_disk_is_an_error_and_does_not_kill_the_process(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=500k", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        with pytest.raises(OSError, match="No space left"):
            write_array(disk / "train_tokens.npy", np.uint8, (600_000,), [np.zeros(300_000)] * 2)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
