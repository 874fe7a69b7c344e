"""Preparation: atomic, once, whole; damaged folders; the data root."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lra_ssm.datamodules.listops.builder import build_generated
from lra_ssm.datamodules.listops.trees import TreeSettings
from lra_ssm.datamodules.storage.format import MANIFEST
from lra_ssm.datamodules.storage.prepare import prepare
from lra_ssm.datamodules.storage.root import ensure_root, resolve_root
from lra_ssm.errors import InputError
from tests.datamodules.helpers import contents, tiny_dataset

TREES = TreeSettings(50, 400)

# Prepares as ListOps does, but starts without lightning. KILL=n kills itself at the n-th step of the preparation.
SCRIPT = """
import os, signal, sys
from pathlib import Path
from lra_ssm.datamodules.listops import builder as listops_build
from lra_ssm.datamodules.storage import prepare, writer as storage_writer
from lra_ssm.datamodules.listops.trees import TreeSettings

left = int(os.environ.get("KILL", -1))
def step(function):
    def call(*args, **kwargs):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return function(*args, **kwargs)
    return call
os.fsync = step(os.fsync)
os.open = step(os.open)
Path.mkdir = step(Path.mkdir)
Path.rename = step(Path.rename)
storage_writer.ArrayFile.append = step(storage_writer.ArrayFile.append)

def build(folder):
    print("building", flush=True)
    counts = {"train": 200, "val": 20, "test": 20}
    listops_build.build_generated(folder, TreeSettings(50, 400), 0, counts, workers=int(sys.argv[2]))
prepare.prepare(Path(sys.argv[1]), "listops", "data", build)
print("left", left, flush=True)
"""


def start(root: Path, kill: int = -1, workers: int = 1) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(root), str(workers)],
        env=os.environ | {"KILL": str(kill), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def build(folder: Path) -> None:
    build_generated(folder, TREES, 0, {"train": 200, "val": 20, "test": 20}, workers=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    build(folder)
    return contents(folder)


def check_whole(root: Path, whole: dict[str, bytes]) -> None:
    prepare(root, "listops", "data", build)
    assert sorted(path.name for path in (root / "listops").iterdir()) == [".lock", "data"]
    assert contents(root / "listops" / "data") == whole


@pytest.mark.parametrize("often", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_killed_at_every_step(tmp_path: Path, whole: dict[str, bytes], often: bool) -> None:
    process = start(tmp_path / "count", kill=10_000)
    steps = 10_000 - int(process.communicate()[0].split()[-1])
    assert steps > 25
    last = range(steps - 4, steps)  # the manifest, the folder, the rename, the folder above
    for kill in [1, 3, steps // 3, *last] if often else [steps // 3, *last[1:3]]:
        root = tmp_path / f"kill-{kill}"
        process = start(root, kill)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, kill
        target = root / "listops" / "data"
        assert not target.exists() or contents(target) == whole, kill
        check_whole(root, whole)


def test_four_at_once(tmp_path: Path, whole: dict[str, bytes]) -> None:
    root = tmp_path / "root"
    processes = [start(root) for _ in range(4)]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    assert sum("building" in output for output, _ in outputs) == 1
    check_whole(root, whole)


def test_a_failure_leaves_nothing_and_waiters_go_on(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise InputError("no")

    root = tmp_path / "root"
    with pytest.raises(InputError, match="no"):
        prepare(root, "listops", "data", fail)
    assert not root.exists()
    (root / "listops" / "other").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt):
        prepare(root, "listops", "data", lambda folder: (_ for _ in ()).throw(KeyboardInterrupt))
    assert sorted(path.name for path in (root / "listops").iterdir()) == [".lock", "other"]

    # Processes that wait on the lock of a failing one find it gone, with its folder, and take a new one each.
    slow = (
        "import sys, time, pathlib; from lra_ssm.datamodules.storage.prepare import prepare\n"
        "from lra_ssm.errors import InputError\n"
        "def build(folder):\n  print('in', flush=True); time.sleep(.2); print('out', flush=True)\n"
        "  raise InputError('no')\n"
        "try: prepare(pathlib.Path(sys.argv[1]), 'd', 'n', build)\n"
        "except InputError: print('refused', flush=True)\n"
    )
    log = tmp_path / "log"
    with open(log, "w") as file:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", slow, str(tmp_path / "fresh")]
        started = [subprocess.Popen(command, stdout=file, env=environment) for _ in range(4)]
        assert [process.wait() for process in started] == [0] * 4
    events = [line for line in log.read_text().split() if line != "refused"]
    assert events == ["in", "out"] * 4
    assert not list(tmp_path.glob("fresh/*"))


def test_prepared_data_is_never_built_again(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / MANIFEST).write_text("{}")

    target = prepare(tmp_path, "d", "n", write)
    assert prepare(tmp_path, "d", "n", lambda folder: pytest.fail("built again")) == target


def test_manifest_says_what_is_there(tmp_path: Path) -> None:
    prepared = tiny_dataset(tmp_path / "data")
    assert json.loads((tmp_path / "data" / MANIFEST).read_text()) == prepared.manifest
    val = prepared.manifest["splits"]["val"]
    assert val["examples"] == 6 and val["class_counts"] == [1] * 6 + [0] * 20
    assert val["length"] == {"min": 1, "mean": 3.5, "max": 6}
    assert "26 train, 6 val" in prepared.summary()


def test_root_is_argument_then_environment_then_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRA_SSM_DATA", raising=False)
    assert resolve_root() == tmp_path / "data"
    monkeypatch.setenv("LRA_SSM_DATA", str(tmp_path / "elsewhere"))
    assert resolve_root() == tmp_path / "elsewhere"
    assert resolve_root("here") == tmp_path / "here"
    assert not list(tmp_path.iterdir())


def test_root_is_created_where_only_it_is_missing(tmp_path: Path) -> None:
    assert ensure_root(tmp_path / "root") is True and ensure_root(tmp_path / "root") is False
    with pytest.raises(InputError, match="its parent .*absent is no existing folder"):
        ensure_root(tmp_path / "absent" / "root")
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        ensure_root(tmp_path / "file")
    with pytest.raises(InputError, match="no existing folder"):
        prepare(tmp_path / "file" / "root", "d", "n", build)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_root_that_cannot_be_written(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    with pytest.raises(InputError, match="cannot be written"):
        prepare(closed, "d", "n", build)
    with pytest.raises(InputError, match="cannot be created"):
        prepare(closed / "root", "d", "n", build)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that nobody can write to")
def test_root_that_nobody_can_create() -> None:
    with pytest.raises(InputError, match="cannot be created") as error:
        prepare(Path("/proc/lra-ssm"), "d", "n", build)
    assert "\n" not in str(error.value)
