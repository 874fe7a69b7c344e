"""Downloads that are killed or stopped at any moment, and several of one file at once."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lra_ssm import bars
from lra_ssm.datamodules.fetch.download import DownloadNote
from lra_ssm.datamodules.storage import disk
from tests.datamodules.downloads import DATA, NAME, SHA256, check_whole, fetch, remote
from tests.datamodules.downloads import no_proxy as no_proxy  # of every test here
from tests.datamodules.server import Site, serving

SCRIPT = """
import sys
from pathlib import Path
from lra_ssm.datamodules.fetch.download import RemoteFile, download
print("started", flush=True)
record = download(RemoteFile((sys.argv[1],), sys.argv[2], None), Path(sys.argv[3]), timeout=60, backoff=0.01)
print(record.sha256)
"""


def start(site: Site, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, f"{site.url}/{NAME}", NAME, str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize("received", [1, 100_000, 299_999])
def test_killed_and_started_again(tmp_path: Path, received: int) -> None:
    partial = tmp_path / f"{NAME}.partial"
    with serving(DATA, stall_after=[received], stall=60.0) as site:
        process, deadline = start(site, tmp_path), time.monotonic() + 20
        while not partial.exists() or partial.stat().st_size < received:  # every byte received is kept
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.002)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL and not (tmp_path / NAME).exists()
        fetch(remote(site, digest=None), tmp_path)
        assert site.header("Range") == [None, f"bytes={received}-"] and site.sent[1] == len(DATA) - received
    check_whole(tmp_path)


@pytest.mark.parametrize("delay", [0.0, 0.15])
def test_killed_at_any_time(tmp_path: Path, delay: float) -> None:
    with serving(DATA, pause=0.004, chunk=5000) as site:  # 0.24 s in all
        process = start(site, tmp_path)
        while not site.requests:
            time.sleep(0.002)
        time.sleep(delay)
        process.kill()
        process.communicate()
        fetch(remote(site, digest=None), tmp_path)
    assert (tmp_path / NAME).read_bytes() == DATA


@pytest.mark.parametrize(
    ("step", "number"),
    [(step, number) for step in ("unlink", "write_text", "fsync", "replace") for number in (1, 2, 3)
     if step != "write_text" or number == 1],
)  # fmt: skip
def test_stopped_at_every_step(tmp_path: Path, step: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill right before and right after each change of the folder leaves is used or thrown away rightly."""
    owner: Any = Path if step in ("unlink", "write_text") else os
    function, calls = getattr(owner, step), 0
    after = (step, number) == ("replace", 3)  # the second, the file's own name, is also stopped right after

    def stop(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == (2 if after else number):
            if after:
                function(*args, **kwargs)
            raise KeyboardInterrupt
        return function(*args, **kwargs)

    with serving(DATA, break_after=[100_000]) as site:
        (tmp_path / f"{NAME}.partial").write_bytes(b"other" * 1000)
        (tmp_path / f"{NAME}.partial.json").write_text('{"url": "x", "etag": "y", "size": 9000}')
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, stop)
            with pytest.raises(KeyboardInterrupt):
                fetch(remote(site, digest=None), tmp_path)
        fetch(remote(site, digest=None), tmp_path)
    check_whole(tmp_path)


def test_two_processes_at_once(tmp_path: Path) -> None:
    with serving(DATA, pause=0.01, chunk=10_000) as site:
        processes = [start(site, tmp_path) for _ in range(2)]
        outputs = [process.communicate() for process in processes]
        assert [output.split()[-1] for output, _ in outputs] == [SHA256] * 2, outputs
        assert site.sent == [len(DATA)]
    check_whole(tmp_path)


def test_many_threads_at_once(tmp_path: Path) -> None:
    records: list[DownloadNote] = []
    with serving(DATA, break_after=[50_000]) as site:
        threads = [
            threading.Thread(target=lambda: records.append(fetch(remote(site), tmp_path)), daemon=True)
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert sum(site.sent) == len(DATA)
    assert len(records) == 4 and len(set(records)) == 1
    check_whole(tmp_path)


def test_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(DATA) as site:
        fetch(remote(site), tmp_path)
        assert capsys.readouterr().err == ""  # too small
        monkeypatch.setattr(bars, "AFTER_S", 0)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        (tmp_path / NAME).unlink()
        fetch(remote(site), tmp_path)
        shown = capsys.readouterr()
        assert NAME in shown.err and shown.out == ""
        (tmp_path / NAME).unlink()
        fetch(remote(site), tmp_path, progress=False)
        assert capsys.readouterr().err == ""


def test_sync_filesystem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.sync_filesystem(tmp_path)
    with pytest.raises(OSError):
        disk.sync_filesystem(tmp_path / "absent")
    monkeypatch.setattr(disk.ctypes, "CDLL", lambda *_, **__: SimpleNamespace())
    called: list[bool] = []
    monkeypatch.setattr(os, "sync", lambda: called.append(True))
    disk.sync_filesystem(tmp_path)
    assert called
