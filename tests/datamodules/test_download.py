"""Downloads, archives, the Hub's files."""

import hashlib
import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lra_ssm.datamodules.download import Hub, Remote, download, parquet_files, read_parquet, unpack
from lra_ssm.errors import InputError
from tests.small_data import write_parquet, write_tar

DATA = random.Random(0).randbytes(300_000)
SHA256 = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
MD5 = f"md5:{hashlib.md5(DATA).hexdigest()}"


@contextmanager
def serving(
    data: bytes, ranges: bool = True, break_after: Iterable[int] = (), statuses: Iterable[int] = ()
) -> Iterator[SimpleNamespace]:
    """Serve one file; yields its `url`, and the Range headers of the `requests`.

    Args:
        data: the file's content.
        ranges: whether a part can be asked for.
        break_after: for each answer in turn the number of bytes after which it breaks off.
        statuses: for each answer in turn a status to give instead of the file.
    """
    requests, ends, codes = list[str | None](), [*break_after], [*statuses]

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            requests.append(asked)
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and ranges else 0
            status = codes.pop(0) if codes else 416 if start > len(data) else 206 if start else 200
            self.send_response(status)
            part = data[start:] if status in (200, 206) else b""
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part[: ends.pop(0)] if part and ends else part)
            self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_address[1]}/file.bin", requests=requests)
        finally:
            server.shutdown()


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("lra_ssm.datamodules.download.time.sleep", lambda seconds: None)


def check_whole(folder: Path) -> None:
    assert [path.name for path in folder.iterdir()] == ["file.bin"] and (folder / "file.bin").read_bytes() == DATA


@pytest.mark.parametrize("digest", [SHA256, MD5, None])
def test_a_file_is_downloaded_once_into_new_folders(tmp_path: Path, digest: str | None) -> None:
    with serving(DATA, statuses=[503, 429]) as site:  # servers that fail and recover
        for _ in range(2):
            path = download(Remote(site.url, digest), tmp_path / "root", "a/b")
        assert path == tmp_path / "root" / "a" / "b" / "file.bin" and len(site.requests) == 3
    check_whole(path.parent)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_or_killed_download_continues(tmp_path: Path, ranges: bool) -> None:
    (tmp_path / "file.bin.part").write_bytes(DATA[:1000])
    with serving(DATA, ranges=ranges, break_after=[100_000, 150_000]) as site:
        download(Remote(site.url, SHA256), tmp_path)
        starts = [1000, 101_000, 251_000] if ranges else [1000, 100_000, 150_000]
        assert site.requests == [f"bytes={start}-" for start in starts]
    check_whole(tmp_path)


def test_a_part_of_another_file_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(b"x" * 1000)
    with serving(DATA) as site:
        file = Remote(site.url, SHA256)
        line = f"^{site.url}: has the sha256 \\w+ instead of the published \\w+; the download was removed, start again$"
        with pytest.raises(InputError, match=line):
            download(file, tmp_path)
        assert not list(tmp_path.iterdir())
        download(file, tmp_path)
        (tmp_path / "file.bin").write_bytes(DATA[1:])  # damaged since: downloaded again
        (tmp_path / "file.bin.part").write_bytes(DATA + b"more")  # longer than the file
        download(file, tmp_path)
    check_whole(tmp_path)


def test_what_cannot_be_downloaded_is_one_line(tmp_path: Path) -> None:
    with serving(DATA, statuses=[404] * 9) as site:
        with pytest.raises(InputError, match=f"^{site.url}: cannot be downloaded to .*HTTP Error 404") as error:
            download(Remote(site.url, SHA256), tmp_path)
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_only_one_of_several_downloads(tmp_path: Path) -> None:
    with serving(DATA) as site:
        threads = [threading.Thread(target=download, args=(Remote(site.url, SHA256), tmp_path)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(site.requests) == 1
    check_whole(tmp_path)


# -- archives ----------------------------------------------------------------------------------------------------------

FILES = {"top/a.txt": b"a" * 5000, "top/sub/b.txt": b"b", "other/c.txt": b"c"}


def test_archives_are_unpacked_whole_or_not_at_all(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "any.name", FILES)
    unpack(archive, "top", tmp_path / "target")
    assert (tmp_path / "target/a.txt").read_bytes() == FILES["top/a.txt"]
    assert (tmp_path / "target/sub/b.txt").read_bytes() == b"b" and len(list((tmp_path / "target").iterdir())) == 2
    with pytest.raises(InputError, match="any.name: has no folder absent"):
        unpack(archive, "absent", tmp_path / "no")
    whole = archive.read_bytes()
    leads_out = write_tar(tmp_path / "out", {"top/../../out.txt": b"x"}).read_bytes()
    (tmp_path / "out").unlink()
    for data in [b"", b"no archive", whole[:-40], whole[:30] + b"xx" + whole[32:], leads_out]:
        archive.write_bytes(data)
        with pytest.raises(InputError, match=f"^{archive}: cannot be unpacked") as error:
            unpack(archive, "top", tmp_path / "no")
        assert str(error.value).isprintable() and not (tmp_path.parent / "out.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["any.name", "target"]


# -- the Hub -----------------------------------------------------------------------------------------------------------


def test_files_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub("owner/name", "0123456789abcdef", ("data/*.parquet",), "some")
    calls = []

    def snapshot(repository: str, *, local_dir: Path, **arguments: Any) -> None:
        calls.append((repository, arguments))
        if len(calls) == 1:
            raise ConnectionError("offline\nreally")
        for name in ("train-00000-of-00001.parquet", "test.parquet", "training.parquet"):
            write_parquet(local_dir / "data" / name, {"text": ["a", "b"], "label": [0, 1]})

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    with pytest.raises(InputError, match="^owner/name@0123456789ab: cannot be downloaded .offline really"):
        hub.fetch(tmp_path)
    assert not hub.is_complete(tmp_path)
    for _ in range(2):
        folder = hub.fetch(tmp_path)
    assert folder == tmp_path / "some" / "owner-name-0123456789ab" and hub.is_complete(tmp_path)
    expected = {"repo_type": "dataset", "revision": "0123456789abcdef", "allow_patterns": ["data/*.parquet"]}
    assert calls == [("owner/name", expected)] * 2
    (file,) = parquet_files(folder, "train")
    rows = [(f"{file}: row 0", {"label": 0, "text": "a"}), (f"{file}: row 1", {"label": 1, "text": "b"})]
    assert file.name.startswith("train-") and [*read_parquet(file, "label", "text")] == rows
