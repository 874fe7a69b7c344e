"""Archives: good ones of every kind, those that are damaged, and names that lead out of them."""

import bz2
import gzip
import io
import lzma
import os
import random
import signal
import stat
import subprocess
import sys
import tarfile
import time
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from lra_ssm.datamodules.fetch.archives import extract, iterate
from lra_ssm.datamodules.fetch.download_note import DownloadNote, read_note
from lra_ssm.errors import InputError
from tests.datamodules.helpers import contents

RNG = random.Random(0)
FILES = {
    "top/a.txt": b"hello\n",
    "top/deep/er/b.bin": RNG.randbytes(70_000),
    "top/deep/empty": b"",
    f"top/{'long' * 40}/{'name' * 30}": b"a long path takes an extended header",
    "top/ünï.txt": b"not ASCII",
}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "tar": bytes,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = "") -> Entry:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mode = kind, len(data), link, 0o4777
    return info, data


def tar(entries: list[Entry], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zipped(files: dict[str, bytes] | list[tuple[zipfile.ZipInfo | str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # of names that come twice
        for name, data in files.items() if isinstance(files, dict) else files:
            archive.writestr(name, data)
    return buffer.getvalue()


def good(kind: str, form: int = tarfile.PAX_FORMAT) -> bytes:
    if kind == "zip":
        return zipped(FILES)
    entries = [entry("./", b"", tarfile.DIRTYPE), entry("top", b"", tarfile.DIRTYPE)]
    return COMPRESS[kind](tar(entries + [entry(f"./{name}", data) for name, data in FILES.items()], form))


def save(folder: Path, data: bytes, name: str = "archive") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def everything(name: str) -> str:
    return name


def unpack(archive: Path, place: Callable[[str], str | None] = everything) -> dict[str, bytes]:
    extract(archive, archive.parent / "target", place)
    return contents(archive.parent / "target")


def read(archive: Path, wanted: Callable[[str], bool] = bool) -> dict[str, bytes]:
    return dict(iterate(archive, wanted))


def refuse(archive: Path, match: str) -> None:
    """Both ways to read refuse it with one line that names it, and nothing is left behind or outside."""
    before = contents(archive.parent)
    for function in (unpack, read):
        with pytest.raises(InputError, match=match) as error:
            function(archive)
        assert str(error.value).startswith(f"{archive}: ") and "\n" not in str(error.value), error.value
        assert contents(archive.parent) == before and [path for path in archive.parent.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("kind", [*COMPRESS, "zip"])
def test_good(tmp_path: Path, kind: str) -> None:
    archive = save(tmp_path, good(kind), "release.gz")  # the name tells nothing
    assert unpack(archive) == dict(sorted(FILES.items(), key=lambda item: Path(item[0])))
    for path in (tmp_path / "target").rglob("*"):
        assert path.is_dir() or not stat.S_IMODE(path.stat().st_mode) & 0o7111  # whatever mode the archive says
    assert read(archive) == FILES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["release.gz", "target"]
    with pytest.raises(InputError, match="release.gz: cannot be unpacked .Directory not empty"):
        unpack(archive)
    assert contents(tmp_path / "target").keys() == FILES.keys()


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_formats(tmp_path: Path, form: int) -> None:
    assert read(save(tmp_path, good("gz", form))) == FILES
    old = tar([entry("a", b"1")], tarfile.USTAR_FORMAT)
    info = tarfile.TarInfo.frombuf(old[:512], "utf-8", "strict")
    assert info.name == "a" and read(save(tmp_path, old)) == {"a": b"1"}


def test_several_gzip_members(tmp_path: Path) -> None:
    data = good("tar")
    assert read(save(tmp_path, gzip.compress(data[:1000]) + gzip.compress(data[1000:]) + bytes(100))) == FILES


@pytest.mark.parametrize("kind", ["gz", "zip"])
def test_what_is_wanted(tmp_path: Path, kind: str) -> None:
    archive = save(tmp_path, good(kind))
    note = DownloadNote("https://x.org/a", 1, "0" * 64, "unknown")
    extract(archive, tmp_path / "new" / "target", lambda name: "b" if name == "top/a.txt" else None, note)
    target = tmp_path / "new" / "target"
    assert contents(target).keys() == {"b", "download.json"} and (target / "b").read_bytes() == FILES["top/a.txt"]
    assert read_note(target) == asdict(note)
    with pytest.raises(InputError, match="holds none of the wanted files"):
        unpack(archive, lambda name: None)
    assert read(archive, lambda name: False) == {}
    # What nobody asked for may be anything.
    link = save(tmp_path, tar([entry("other", b"", tarfile.SYMTYPE, "/etc"), entry("../b"), entry("a")]))
    assert read(link, lambda name: name == "a") == {"a": b"x"}


def test_iterate_is_lazy(tmp_path: Path) -> None:
    archive = save(tmp_path, good("gz")[:-9])
    reader = iterate(archive, bool)
    assert next(reader) == ("top/a.txt", b"hello\n")
    with pytest.raises(InputError, match="broken off"):
        list(reader)


def test_what_macos_adds_is_passed_over(tmp_path: Path) -> None:
    names = ["._a", "a", "d/._b", "d/b", "__MACOSX/a", "__MACOSX/._a"]
    assert set(read(save(tmp_path, tar([entry(name) for name in names])))) == {"a", "d/b"}
    assert set(read(save(tmp_path, zipped(dict.fromkeys(names, b"x"))))) == {"a", "d/b"}


@pytest.mark.parametrize("name", ["/tmp/x", "//x", "../x", "a/../../x", "a/.."])
def test_names_that_lead_out(tmp_path: Path, name: str) -> None:
    message = "member '.*' leads out of its folder; refused"
    refuse(save(tmp_path, tar([entry("good"), entry(name)])), message)
    refuse(save(tmp_path, zipped({"good": b"x", name: b"x"})), message)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_no_plain_files(tmp_path: Path, kind: bytes) -> None:
    archive = save(tmp_path, gzip.compress(tar([entry("good"), entry("bad", b"", kind, "good"), entry("bad/x")])))
    refuse(archive, "member 'bad' is no plain file; refused")


def test_encrypted_zip(tmp_path: Path) -> None:
    data = bytearray(zipped({"a": b"x"}))
    for at, signature in ((6, b"PK\3\4"), (8, b"PK\1\2")):
        data[data.index(signature) + at] |= 1
    refuse(save(tmp_path, bytes(data)), "encrypted")


def test_same_name_twice(tmp_path: Path) -> None:
    for names in (["d/a", "./d//a"], ["a", "a/b"], ["a/b", "a"]):  # twice; a file in the place of a folder
        with pytest.raises(InputError, match="cannot be unpacked .(File exists|Not a directory|Is a directory)"):
            unpack(save(tmp_path, tar([entry(name) for name in names])))
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


@pytest.mark.parametrize("kind", [*COMPRESS, "zip"])
def test_broken_off(tmp_path: Path, kind: str) -> None:
    data = good(kind)
    cuts = {7, 100, 600, 1024, 2000, len(data) // 2, len(data) - 20_000, len(data) - 30, len(data) - 1}
    if kind == "tar":  # the end is 10,240 bytes of zeros at most, of which the first suffices
        end = len(data.rstrip(b"\0")) // 512 * 512 + 512
        cuts = {600, 1024, 1536, 2000, len(data) // 2, end - 512, end - 1, end}
    for cut in sorted(cuts):
        assert 0 < cut < len(data)
        refuse(
            save(tmp_path, data[:cut]),
            "is broken off or damaged .*; delete it and start again|its beginning is damaged",
        )


@pytest.mark.parametrize("kind", [*COMPRESS, "zip"])
def test_flipped_bits(tmp_path: Path, kind: str) -> None:
    """Compressed archives have checksums of everything; a plain tar has them of its headers."""
    data = good(kind)
    places = [len(data) // 3, len(data) // 2, len(data) - 6] if kind != "tar" else [512 * 2 + 3]
    for place in places if kind != "zip" else places[:2]:
        flipped = bytearray(data)
        flipped[place] ^= 0x10
        refuse(save(tmp_path, bytes(flipped)), "is broken off or damaged|its beginning is damaged")


def test_the_end_is_read_for_its_checksum(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(good("tar") + bytes(2 << 20)))
    assert read(save(tmp_path, bytes(data))) == FILES
    data[-6] ^= 1
    refuse(save(tmp_path, bytes(data)), "is broken off or damaged .CRC")


@pytest.mark.parametrize(
    "data",
    [b"", b"<html>not found</html>" * 100, gzip.compress(b"text" * 1000), b"x" * 512],
    ids=["empty", "page", "gzip", "text"],
)
def test_no_archive(tmp_path: Path, data: bytes) -> None:
    refuse(save(tmp_path, data), "is neither a tar nor a zip archive")


def test_missing(tmp_path: Path) -> None:
    refuse(tmp_path / "absent", "cannot be unpacked .No such file")


def test_empty_archive(tmp_path: Path) -> None:
    for data in (tar([]), zipped({})):
        with pytest.raises(InputError, match="holds none of the wanted files"):
            unpack(save(tmp_path, data))


def test_disk_full_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lra_ssm.datamodules.fetch.archives.sync_filesystem", full)
    with pytest.raises(InputError, match="cannot be unpacked .No space left on device"):
        unpack(save(tmp_path, good("gz")))
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


SCRIPT = """
import sys, time
from pathlib import Path
from lra_ssm.datamodules.fetch import archives
def slow(name):
    time.sleep(0.05)
    return name
archives.extract(Path(sys.argv[1]), Path(sys.argv[2]), slow)
"""


def test_killed(tmp_path: Path) -> None:
    archive, target = save(tmp_path, good("gz")), tmp_path / "target"
    other = tmp_path / ".unfinished-target-b"
    other.mkdir()  # another target's
    command = [sys.executable, "-c", SCRIPT, str(archive), str(target)]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    temporary = tmp_path / ".unfinished-target"
    while not (temporary / "top" / "a.txt").exists():
        assert process.poll() is None
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert temporary.is_dir() and not target.exists()
    assert unpack(archive).keys() == FILES.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name, "archive", "target"]
