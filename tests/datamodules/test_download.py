"""Downloads from a local server: resumed, checked, whole or not there; the ways in which servers fail."""

import hashlib
import json
import os
import shutil
import socket
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from lra_ssm.datamodules.fetch.download import DownloadNote, RemoteFile
from lra_ssm.datamodules.fetch.download_note import read_note
from lra_ssm.errors import InputError
from tests.datamodules.downloads import DATA, MD5, NAME, SHA256, check_whole, fetch, files, remote
from tests.datamodules.downloads import no_proxy as no_proxy  # of every test here
from tests.datamodules.server import serving


@pytest.mark.parametrize("digest", [f"sha256:{SHA256}", f"md5:{MD5.upper()}", None])
def test_whole(tmp_path: Path, digest: str | None) -> None:
    with serving(DATA) as site:
        record = fetch(remote(site, digest=digest), tmp_path / "new")
        status = "published" if digest else "unknown"
        assert record == DownloadNote(f"{site.url}/{NAME}", len(DATA), SHA256, status)
        json.dumps(asdict(record))
        check_whole(tmp_path / "new")
        assert site.requests[0]["User-Agent"].startswith("lra_ssm/") and len(site.requests) == 1


def test_already_there_needs_no_network(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(DATA)
    file = RemoteFile(("http://127.0.0.1:9/",), NAME, f"md5:{MD5}", len(DATA))
    assert fetch(file, tmp_path) == DownloadNote(None, len(DATA), SHA256, "published")
    assert files(tmp_path) == [NAME] and read_note(tmp_path / NAME) == {}  # nobody knows from where


def test_where_a_file_came_from_stays_known(tmp_path: Path) -> None:
    with serving(DATA) as site:
        first = fetch(remote(site), tmp_path)
        assert fetch(remote(site), tmp_path) == first and len(site.requests) == 1
    assert read_note(tmp_path / NAME) == read_note(tmp_path / NAME, SHA256) == asdict(first)
    assert read_note(tmp_path / NAME, "0" * 64) == {}  # of other bytes
    (tmp_path / NAME).write_bytes(DATA + b"x")  # somebody's own
    assert fetch(remote(site, digest=None), tmp_path).url is None
    for damaged in ("", "[]", "{}", '{"url": 1}', "{"):
        (tmp_path / f"{NAME}.download.json").write_text(damaged)
        assert read_note(tmp_path / NAME) == {}


@pytest.mark.parametrize("kind", ["digest", "size"])
def test_wrong_file_there_is_replaced(tmp_path: Path, kind: str) -> None:
    (tmp_path / NAME).write_bytes(DATA[:-1])
    with serving(DATA) as site:
        settings = {"digest": None, "size": len(DATA)} if kind == "size" else {}
        file = remote(site, **settings)
        assert fetch(file, tmp_path).url
    check_whole(tmp_path)
    (tmp_path / NAME).write_bytes(DATA[:-1])
    with pytest.raises(InputError):  # nobody answers any more
        fetch(file, tmp_path, tries=1)
    assert files(tmp_path) == []


@pytest.mark.parametrize("version", [{}, {"etag": None, "last_modified": "Mon, 01 Jan 2024 00:00:00 GMT"}])
@pytest.mark.parametrize("digest", [f"sha256:{SHA256}", None])
def test_broken_off_and_resumed(tmp_path: Path, digest: str | None, version: dict[str, str | None]) -> None:
    with serving(DATA, break_after=[100_000], **version) as site:
        assert fetch(remote(site, digest=digest), tmp_path).bytes == len(DATA)
        assert site.header("Range") == [None, "bytes=100000-"]
        assert site.header("If-Range") == [None, site.etag or site.last_modified]
        assert site.sent == [100_000, 200_000]
    check_whole(tmp_path)


def test_broken_off_again_and_again(tmp_path: Path) -> None:
    """More often than `tries`, which counts the ones without progress alone."""
    with serving(DATA, break_after=[30_000] * 9) as site:
        fetch(remote(site), tmp_path, tries=2)
        assert site.header("Range")[1:] == [f"bytes={n * 30_000}-" for n in range(1, 10)]
        assert sum(site.sent) == len(DATA)
    check_whole(tmp_path)


def test_given_up_then_resumed_by_the_next_call(tmp_path: Path) -> None:
    with serving(DATA, break_after=[100_000, 0, 0, 0]) as site:
        with pytest.raises(InputError, match=r"3 tries without progress; the first 100,000 bytes are kept") as error:
            fetch(remote(site), tmp_path)
        assert f"{site.url}/{NAME}: broken off before 300,000 bytes" in str(error.value)
        assert "\n" not in str(error.value)
        assert files(tmp_path) == [f"{NAME}.partial", f"{NAME}.partial.json"]
        fetch(remote(site), tmp_path)
        assert site.header("Range")[-1] == "bytes=100000-" and site.sent[-1] == 200_000
    check_whole(tmp_path)


def test_server_without_ranges(tmp_path: Path) -> None:
    with serving(DATA, ranges=False, break_after=[100_000, 200_000]) as site:
        fetch(remote(site), tmp_path)
        assert site.sent == [100_000, 200_000, 300_000]
        check_whole(tmp_path)
        (tmp_path / NAME).unlink()
        site.break_after = [100_000] * 50  # always at the same place: no progress, not for ever
        with pytest.raises(InputError, match="3 tries without progress"):
            fetch(remote(site), tmp_path)
        assert len(site.break_after) == 50 - 4


def test_no_length(tmp_path: Path) -> None:
    with serving(DATA, length=False) as site:
        with pytest.raises(InputError, match="does not say how many bytes it has"):  # it may have broken off
            fetch(remote(site, digest=None), tmp_path)
        assert files(tmp_path) == []
        fetch(remote(site), tmp_path)
        check_whole(tmp_path)
        (tmp_path / NAME).unlink()
        site.break_after = [100_000]
        fetch(remote(site, digest=None, size=len(DATA)), tmp_path)  # the published size shows the break
        assert site.header("Range")[-1] == "bytes=100000-"
        check_whole(tmp_path)
        (tmp_path / NAME).unlink()
        site.break_after = [100_000]
        with pytest.raises(InputError, match="sha256"):  # and so does the digest
            fetch(remote(site), tmp_path)
    assert files(tmp_path) == []


@pytest.mark.parametrize("if_range", [True, False])
@pytest.mark.parametrize("digest", [True, False])
def test_changed_between_tries(tmp_path: Path, if_range: bool, digest: bool) -> None:
    other = DATA[::-1]
    sha256 = hashlib.sha256(other).hexdigest()
    with serving(DATA, break_after=[100_000, 0, 0, 0], if_range=if_range) as site:
        file = remote(site, digest=f"sha256:{sha256}" if digest else None)
        with pytest.raises(InputError):
            fetch(file, tmp_path)
        site.data, site.etag = other, '"two"'
        assert fetch(file, tmp_path).sha256 == sha256
        assert site.sent[-1] == len(other)
    check_whole(tmp_path, other)


DATE = "Mon, 01 Jan 2024 00:00:00 GMT"
VERSIONS = {  # of the first answer's, and of the rest's: ETag and Last-Modified
    "another ETag": (('"one"', None), ('"two"', None)),
    "an ETag, then none": (('"one"', None), (None, None)),
    "an ETag, then a weak one": (('"one"', None), ('W/"one"', None)),
    "an ETag, then a date": (('"one"', None), (None, DATE)),
    "another ETag, the same date": (('"one"', DATE), ('"two"', DATE)),
    "a weak ETag twice": (('W/"one"', None), ('W/"one"', None)),
    "another date": ((None, DATE), (None, DATE.replace("01 Jan", "02 Jan"))),
    "a date, then none": ((None, DATE), (None, None)),
    "neither": ((None, None), (None, None)),
}


@pytest.mark.parametrize("size", [len(DATA), pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", VERSIONS)
def test_two_versions_are_never_joined(tmp_path: Path, case: str, size: int | None) -> None:
    """The file changes while it is downloaded, and the server, which takes no notice of If-Range, sends the rest."""
    (etag, date), (other_etag, other_date) = VERSIONS[case]
    with serving(DATA, etag=etag, last_modified=date, if_range=False, break_after=[100_000, 0, 0, 0]) as site:
        with pytest.raises(InputError, match="3 tries without progress"):
            fetch(remote(site, digest=None, size=size), tmp_path)
        site.data, site.etag, site.last_modified = DATA[::-1], other_etag, other_date
        fetch(remote(site, digest=None, size=size), tmp_path)
    check_whole(tmp_path, DATA[::-1])


def test_parts_of_unknown_versions_are_never_joined(tmp_path: Path) -> None:
    """Without ETag, date or digest nothing shows a change; a digest does at the end."""
    with serving(DATA, break_after=[100_000], etag='W/"weak"') as site:
        fetch(remote(site, digest=None), tmp_path)
        assert site.header("Range") == [None, None] and site.sent == [100_000, 300_000]
    check_whole(tmp_path)
    (tmp_path / NAME).unlink()
    with serving(b"\0" + DATA[1:], break_after=[100_000, 0, 0, 0], etag=None) as site:
        with pytest.raises(InputError):
            fetch(remote(site), tmp_path)
        site.data = DATA
        with pytest.raises(InputError, match="sha256 .* what was downloaded is removed"):
            fetch(remote(site), tmp_path)
        assert files(tmp_path) == []
        fetch(remote(site), tmp_path)
        assert site.header("Range")[-2:] == ["bytes=100000-", None]
    check_whole(tmp_path)


@pytest.mark.parametrize("breaks", [[], [100_000]])
def test_chunks(tmp_path: Path, breaks: list[int]) -> None:
    """A server that makes what it sends tells no length, but the end."""
    with serving(DATA, chunked=True, break_after=list(breaks)) as site:
        fetch(remote(site, digest=None), tmp_path)
        assert site.header("Range") == [None] + [f"bytes={n}-" for n in breaks]
    check_whole(tmp_path)


@pytest.mark.parametrize("wrong", ["start", "total"])
def test_wrong_content_range(tmp_path: Path, wrong: str) -> None:
    with serving(DATA, break_after=[100_000, 0, 0, 0]) as site:
        with pytest.raises(InputError):
            fetch(remote(site, digest=None), tmp_path)
        if wrong == "total":
            site.total_in_range = 123
        else:
            site.shift = 5
        fetch(remote(site, digest=None), tmp_path)
        assert site.header("Range")[-2:] == ["bytes=100000-", None]
    check_whole(tmp_path)


def test_past_the_end(tmp_path: Path) -> None:
    """416: what is there is the whole, whose size was unknown when it was received, or more than that."""
    state = {"etag": '"one"', "last_modified": None, "size": None}
    for partial in (DATA, DATA + b"more"):
        with serving(DATA) as site:
            (tmp_path / f"{NAME}.partial").write_bytes(partial)
            (tmp_path / f"{NAME}.partial.json").write_text(json.dumps(state | {"url": f"{site.url}/{NAME}"}))
            fetch(remote(site, digest=None), tmp_path)
            assert site.header("Range") == [f"bytes={len(partial)}-", None]
        check_whole(tmp_path)
        (tmp_path / NAME).unlink()


def test_killed_after_the_last_byte(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/x"
    (tmp_path / f"{NAME}.partial").write_bytes(DATA)
    state = {"url": url, "etag": '"one"', "last_modified": None, "size": len(DATA)}
    (tmp_path / f"{NAME}.partial.json").write_text(json.dumps(state))
    assert fetch(RemoteFile((url,), NAME), tmp_path).sha256 == SHA256  # nobody needs to be asked
    check_whole(tmp_path)


def test_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    for name in ("fsync", "replace"):
        function = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, function=function: (steps.append(name), function(*a))[1])
    with serving(DATA) as site:
        fetch(remote(site), tmp_path)
    # the file, its note and the folder, its name and the folder
    assert steps == ["fsync", "fsync", "replace", "fsync", "replace", "fsync"]


@pytest.mark.parametrize("state", ["", "{", "{}", '{"url": 3}', None])
def test_damaged_state(tmp_path: Path, state: str | None) -> None:
    (tmp_path / f"{NAME}.partial").write_bytes(b"x" * 10)
    if state is not None:
        (tmp_path / f"{NAME}.partial.json").write_text(state)
    with serving(DATA) as site:
        fetch(remote(site, digest=None), tmp_path)
        assert site.header("Range") == [None]
    check_whole(tmp_path)


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_wrong_digest_leaves_nothing(tmp_path: Path, kind: str) -> None:
    expected = "0" * (64 if kind == "sha256" else 32)
    with serving(DATA) as site:
        for tries in (1, 2):
            with pytest.raises(InputError) as error:
                fetch(remote(site, digest=f"{kind}:{expected}"), tmp_path)
            for part in (site.url, expected, SHA256 if kind == "sha256" else MD5, "removed"):
                assert part in str(error.value)
            assert files(tmp_path) == [] and len(site.requests) == tries
        fetch(remote(site), tmp_path)
    check_whole(tmp_path)


def test_a_mirror_with_a_wrong_file_gives_way(tmp_path: Path) -> None:
    with serving(DATA[::-1]) as bad, serving(DATA[:-1]) as short, serving(DATA) as good:
        record = fetch(remote(bad, f"{short.url}/a", f"{good.url}/b", size=len(DATA)), tmp_path)
        assert record.url == f"{good.url}/b"
        assert short.sent[0] < len(DATA) and good.header("Range") == [None]
    check_whole(tmp_path)


def test_a_mirror_goes_on_where_another_broke_off(tmp_path: Path) -> None:
    with serving(DATA, break_after=[100_000, 0, 0, 0]) as first, serving(DATA, etag='"other"') as second:
        fetch(remote(first, f"{second.url}/x"), tmp_path)
        assert second.header("Range") == ["bytes=100000-"] and second.header("If-Range") == [None]
    check_whole(tmp_path)


@pytest.mark.parametrize("status", [404, 403])
def test_not_there(tmp_path: Path, status: int) -> None:
    with serving(DATA, status={"": status}) as site:
        with pytest.raises(InputError, match=rf"{site.url}/{NAME}: HTTP status {status} \(.+\)$") as error:
            fetch(remote(site), tmp_path)
        assert len(site.requests) == 1 and files(tmp_path) == [] and "\n" not in str(error.value)
        site.status = {f"/{NAME}": status}
        assert fetch(remote(site, f"{site.url}/mirror"), tmp_path).url == f"{site.url}/mirror"
    check_whole(tmp_path)


@pytest.mark.parametrize("status", [503, 429])
def test_overloaded(tmp_path: Path, status: int) -> None:
    with serving(DATA, status={"": status}, times=2, headers={"Retry-After": "0"}) as site:
        fetch(remote(site), tmp_path)
        check_whole(tmp_path)
        (tmp_path / NAME).unlink()
        site.times = 9
        with pytest.raises(InputError, match=f"HTTP status {status} .*3 tries without progress"):
            fetch(remote(site), tmp_path)
        assert len(site.requests) == 6


def test_waits_as_long_as_the_server_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("lra_ssm.datamodules.fetch.download.time", SimpleNamespace(sleep=waits.append))
    with serving(DATA, status={"": 503}, times=4, headers={"Retry-After": "7"}) as site:
        fetch(remote(site), tmp_path, tries=5, backoff=4.0)
    assert waits == [7, 8, 16, 32]


@pytest.mark.parametrize("after", [0, 100_000])
def test_silent_server(tmp_path: Path, after: int) -> None:
    with serving(DATA, stall_after=[after]) as site:
        fetch(remote(site), tmp_path, timeout=0.2)
        assert site.header("Range")[-1] == (f"bytes={after}-" if after else None)
        check_whole(tmp_path)
        (tmp_path / NAME).unlink()
        site.stall_after = [after] + [0] * 9
        with pytest.raises(InputError, match="timed out, 2 tries without progress"):
            fetch(remote(site), tmp_path, timeout=0.2, tries=2)


def test_slow_server_is_no_silent_one(tmp_path: Path) -> None:
    with serving(DATA, pause=0.1, chunk=40_000) as site:  # 0.8 s in all
        fetch(remote(site), tmp_path, timeout=0.4)
        assert len(site.requests) == 1
    check_whole(tmp_path)


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/x"
    with pytest.raises(InputError, match=f"{url}: Connection refused, 2 tries"):
        fetch(RemoteFile((url,), NAME), tmp_path, tries=2)

    def offline(*_: object, **__: object) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", offline)
    with pytest.raises(InputError, match="cannot be found .*is this machine online") as error:
        fetch(RemoteFile(("https://host.example/x",), NAME), tmp_path, tries=2)
    assert "\n" not in str(error.value) and files(tmp_path) == []


@pytest.mark.parametrize("url", ["ftp://a/b", "file:///etc/passwd", "/etc/passwd", "data:,x", ""])
def test_wrong_scheme(url: str) -> None:
    with pytest.raises(InputError, match="must begin with https:// or http://"):
        RemoteFile((url,), NAME)


@pytest.mark.parametrize("name", ["../x", "a/b", "/x", "a\\b", "", ".", ".."])
def test_wrong_name(name: str) -> None:
    with pytest.raises(ValueError, match="no plain file name"):
        RemoteFile(("http://a/b",), name)


@pytest.mark.parametrize("digest", ["", "sha256:", "md5:12", f"sha1:{'0' * 40}", SHA256])
def test_wrong_kind_of_digest(digest: str) -> None:
    with pytest.raises(ValueError, match="neither md5"):
        RemoteFile(("http://a/b",), NAME, digest)


def test_redirects(tmp_path: Path) -> None:
    with serving(DATA) as good, serving(b"", status={"": 302}, headers={"Location": f"{good.url}/x"}) as site:
        good.break_after = [100_000]
        fetch(remote(site), tmp_path)
        assert good.header("Range") == [None, "bytes=100000-"]  # asked again through the redirect
        check_whole(tmp_path)
        (tmp_path / NAME).unlink()
        site.headers = {"Location": "file:///etc/passwd"}
        with pytest.raises(InputError, match="Redirection to url .* not allowed"):
            fetch(remote(site), tmp_path)
        site.headers = {"Location": f"{site.url}/{NAME}"}
        with pytest.raises(InputError, match="HTTP status 302"):
            fetch(remote(site), tmp_path)
    assert files(tmp_path) == []


@pytest.mark.parametrize("known", [True, False])
def test_disk_too_small(tmp_path: Path, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(DATA) as site:
        file = remote(site, size=len(DATA) if known else None)
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=200_000))
            with pytest.raises(InputError, match=rf"{NAME} needs 0.000 GB on the disk of {tmp_path}, where 0.000 GB"):
                fetch(file, tmp_path)
        assert len(site.requests) == 1 and not (tmp_path / NAME).exists()
        site.break_after = [150_000, 0, 0, 0]
        with pytest.raises(InputError, match="kept"):
            fetch(file, tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=200_000))
        fetch(file, tmp_path)  # 150,000 bytes are missing: the room suffices
    check_whole(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_disk_full_on_the_way(tmp_path: Path) -> None:
    with serving(DATA) as site:
        # The partial file is opened for appending when the answer is there; what it links to is full.
        original = Path.unlink

        def unlink(path: Path, missing_ok: bool = False) -> None:
            if path.name != f"{NAME}.partial":
                original(path, missing_ok=missing_ok)

        (tmp_path / f"{NAME}.partial").symlink_to("/dev/full")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "unlink", unlink)
            with pytest.raises(InputError, match=rf"{tmp_path}: cannot be written \(No space left on device\)"):
                fetch(remote(site), tmp_path)


def test_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "absent" / "x", tmp_path / "file"):
        with pytest.raises(InputError, match=f"{folder}: cannot be written"):
            fetch(RemoteFile(("http://127.0.0.1:9/",), NAME), folder)
    assert files(tmp_path) == ["file"]
