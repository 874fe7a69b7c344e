"""Archives: good ones of every kind, and every way to do harm or to be damaged."""

import bz2
import gzip
import io
import lzma
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from lra_ssm.datamodules.fetch.archives import Unpacked, extract, iterate
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
SIZE = sum(map(len, FILES.values()))
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


def unpack(archive: Path, **settings: object) -> Unpacked:
    target = archive.parent / "target"
    return extract(archive, target, **{"max_bytes": 1 << 20, "max_files": 100, **settings})  # type: ignore[arg-type]


def read(archive: Path, **settings: object) -> dict[str, bytes]:
    bounds = {"max_bytes": 1 << 20, "max_files": 100, **settings}
    return {name: file.read() for name, file in iterate(archive, **bounds)}  # type: ignore[arg-type]


def refuse(archive: Path, match: str, **settings: object) -> None:
    """Both ways to read refuse it with one line that names it, and nothing is left behind or outside."""
    before = contents(archive.parent)
    for function in (unpack, read):
        with pytest.raises(InputError, match=match) as error:
            function(archive, **settings)
        assert str(error.value).startswith(f"{archive}: ") and "\n" not in str(error.value), error.value
        assert contents(archive.parent) == before and [path for path in archive.parent.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("kind", [*COMPRESS, "zip"])
def test_good(tmp_path: Path, kind: str) -> None:
    archive = save(tmp_path, good(kind), "release.gz")  # the name tells nothing
    mask = os.umask(0o002)
    try:
        assert unpack(archive) == Unpacked(len(FILES), SIZE)
    finally:
        os.umask(mask)
    target = tmp_path / "target"
    assert contents(target) == dict(sorted(FILES.items(), key=lambda item: Path(item[0])))
    for path in target.rglob("*"):
        assert path.is_dir() or stat.S_IMODE(path.stat().st_mode) == 0o644
    assert read(archive) == FILES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["release.gz", "target"]
    with pytest.raises(InputError, match="is there already; delete it"):
        unpack(archive)


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
def test_filter(tmp_path: Path, kind: str) -> None:
    archive = save(tmp_path, good(kind))
    assert unpack(archive, members=lambda name: name == "top/a.txt", max_files=1, max_bytes=6) == Unpacked(1, 6)
    assert contents(tmp_path / "target") == {"top/a.txt": FILES["top/a.txt"]}
    shutil.rmtree(tmp_path / "target")
    with pytest.raises(InputError, match="holds none of the wanted files"):
        unpack(archive, members=lambda name: False)
    assert read(archive, members=lambda name: False) == {}
    # What nobody asked for may be anything.
    link = save(tmp_path, tar([entry("other", b"", tarfile.SYMTYPE, "/etc"), entry("a")]))
    assert read(link, members=lambda name: name == "a") == {"a": b"x"}


@pytest.mark.parametrize("kind", ["tar", "gz", "zip"])
def test_what_is_passed_over_is_bounded_too(tmp_path: Path, kind: str) -> None:
    archive = save(tmp_path, good(kind))
    asked = {"members": lambda name: name == "top/a.txt"}
    members = len(FILES) + (0 if kind == "zip" else 2)
    assert read(archive, all_bytes=SIZE, all_members=members, **asked) == {"top/a.txt": FILES["top/a.txt"]}
    refuse(archive, "too many bytes with those that nobody asked for, at '.*'; refused", all_bytes=SIZE - 1, **asked)
    refuse(archive, "too many members with those that nobody", all_members=members - 1, **asked)
    bomb = tar([entry("top/a.txt"), entry("other", b"", tarfile.SYMTYPE), entry("zeros", bytes(5 << 20))])
    refuse(save(tmp_path, gzip.compress(bomb)), "too many bytes .* at 'zeros'", all_bytes=1 << 20, **asked)


def test_data_without_end_behind_the_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lra_ssm.datamodules.fetch.archive_readers.PADDING_BYTES", 1 << 20)
    archive = save(tmp_path, gzip.compress(tar([entry("a")]) + bytes(2 << 20)))
    refuse(archive, "data without end behind the last member")


def test_iterate_is_lazy_and_its_files_stay(tmp_path: Path) -> None:
    archive = save(tmp_path, good("gz"))
    reader = iterate(archive, max_bytes=1 << 20, max_files=100)
    first, second = next(reader), next(reader)
    reader.close()
    assert (first[0], first[1].read()) == ("top/a.txt", b"hello\n") and second[1].seek(0, 2) == 70_000


def test_what_macos_adds_is_passed_over(tmp_path: Path) -> None:
    names = ["._a", "a", "d/._b", "d/b", "__MACOSX/a", "__MACOSX/._a"]
    assert set(read(save(tmp_path, tar([entry(name) for name in names])))) == {"a", "d/b"}
    assert set(read(save(tmp_path, zipped(dict.fromkeys(names, b"x"))))) == {"a", "d/b"}


BAD_NAMES = {
    "/tmp/x": "absolute path",
    "//x": "absolute path",
    "../x": "through a parent folder",
    "a/../../x": "through a parent folder",
    "a/..": "through a parent folder",
    "..\\x": "Windows path",
    "C:/x": "Windows path",
    "c:x": "Windows path",
    "\\\\server\\x": "Windows path",
    "a\nb": "no usable name",
}


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names(tmp_path: Path, name: str) -> None:
    message = f"member .* {BAD_NAMES[name]}; refused" if "folder" in BAD_NAMES[name] else BAD_NAMES[name]
    refuse(save(tmp_path, tar([entry("good"), entry(name)])), message)
    refuse(save(tmp_path, zipped({"good": b"x", name: b"x"})), message)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.BLKTYPE, "device"),
        (tarfile.FIFOTYPE, "fifo"),
        (b"V", "special file"),
    ],
)
def test_bad_kinds(tmp_path: Path, kind: bytes, message: str) -> None:
    archive = save(tmp_path, gzip.compress(tar([entry("good"), entry("bad", b"", kind, "good"), entry("bad/x")])))
    refuse(archive, f"member 'bad' is a {message}; refused")


def test_sparse_files(tmp_path: Path) -> None:
    info, data = entry("sparse", b"1\n0\n1\n".ljust(512, b"\0") + b"x")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    refuse(save(tmp_path, tar([(info, data)])), "is a sparse file")


@pytest.mark.parametrize(("mode", "message"), [(stat.S_IFLNK, "symbolic link"), (stat.S_IFIFO, "special file")])
def test_bad_kinds_in_zip(tmp_path: Path, mode: int, message: str) -> None:
    info = zipfile.ZipInfo("bad")
    info.create_system, info.external_attr = 3, (mode | 0o777) << 16
    refuse(save(tmp_path, zipped([("good", b"x"), (info, b"/etc")])), f"member 'bad' is a {message}; refused")


def test_zero_byte_in_a_name(tmp_path: Path) -> None:
    refuse(save(tmp_path, zipped({"aXb": b"x"}).replace(b"aXb", b"a\0b")), "has no usable name")


def test_encrypted_zip(tmp_path: Path) -> None:
    data = bytearray(zipped({"a": b"x"}))
    for at, signature in ((6, b"PK\3\4"), (8, b"PK\1\2")):
        data[data.index(signature) + at] |= 1
    refuse(save(tmp_path, bytes(data)), "member 'a' is a file that is encrypted")


def test_same_name_twice(tmp_path: Path) -> None:
    refuse(save(tmp_path, tar([entry("d/a"), entry("./d//a")])), "member './d//a' comes twice")
    refuse(save(tmp_path, zipped([("d/a", b"x"), ("d/a", b"y")])), "member 'd/a' comes twice")
    for names in (["a", "a/b"], ["a/b", "a"]):  # a file in the place of a folder
        with pytest.raises(InputError, match="has the name of another"):
            unpack(save(tmp_path, tar([entry(name) for name in names])))
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


@pytest.mark.parametrize("kind", ["tar", "gz", "zip"])
def test_bounds(tmp_path: Path, kind: str) -> None:
    archive = save(tmp_path, good(kind))
    assert read(archive, max_bytes=SIZE, max_files=len(FILES)) == FILES
    refuse(archive, f"unpacks to more than {SIZE - 1:,} bytes at member", max_bytes=SIZE - 1)
    refuse(archive, "holds more than 4 files; refused", max_files=4)
    with pytest.raises(InputError, match="member 'top/deep/er/b.bin' holds more than 69,999 bytes"):
        read(archive, max_member_bytes=69_999)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zip"])
def test_bomb(tmp_path: Path, kind: str) -> None:
    zeros = bytes(20 << 20)
    data = (
        zipped({"a": b"x", "zeros": zeros})
        if kind == "zip"
        else COMPRESS[kind](tar([entry("a"), entry("zeros", zeros)]))
    )
    assert len(data) < 30_000
    refuse(save(tmp_path, data), "unpacks to more than 1,048,576 bytes at member 'zeros'")


def test_zip_that_lies_about_its_size(tmp_path: Path) -> None:
    data = bytearray(zipped({"zeros": bytes(5 << 20)}))
    for at, signature in ((22, b"PK\3\4"), (24, b"PK\1\2")):
        start = data.index(signature) + at
        data[start : start + 4] = (10).to_bytes(4, "little")
    refuse(save(tmp_path, bytes(data)), "damaged")


def test_header_bombs(tmp_path: Path) -> None:
    """Extended headers are read into memory by tarfile: bounded, whatever size they claim and however many follow."""
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        refuse(save(tmp_path, gzip.compress(tar([entry("x", bytes(3 << 20), kind), entry("a")]))), "header without end")
    chain = [entry("x", b"6 a=b\n", tarfile.XHDTYPE)] * 5000
    refuse(save(tmp_path, gzip.compress(tar([*chain, entry("a")]))), "damaged")


@pytest.mark.parametrize("kind", [*COMPRESS, "zip"])
def test_broken_off(tmp_path: Path, kind: str) -> None:
    data = good(kind)
    cuts = {7, 100, 600, 1024, 2000, len(data) // 2, len(data) - 20_000, len(data) - 30, len(data) - 1}
    if kind == "tar":  # the end is 10,240 bytes of zeros at most, of which the first suffices
        end = len(data.rstrip(b"\0")) // 512 * 512 + 512
        cuts = {600, 1024, 1536, 2000, len(data) // 2, end - 512, end - 1, end}
    for cut in sorted(cuts):
        assert 0 < cut < len(data)
        refuse(save(tmp_path, data[:cut]), "is broken off or damaged .*; delete it and start again")


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


def test_negative_size(tmp_path: Path) -> None:
    info, data = entry("a", b"")
    info.pax_headers = {"size": "-512"}
    refuse(save(tmp_path, tar([entry("first"), (info, data)])), "is broken off or damaged")


def test_random_damage_never_escapes(tmp_path: Path) -> None:
    """Whatever is flipped, the outcome is the files or one line."""
    rng = random.Random(1)
    entries = [entry(name, data[:500]) for name, data in FILES.items()]
    for data in (tar(entries), gzip.compress(tar(entries)), zipped({info.name: data for info, data in entries})):
        for _ in range(150):
            flipped = bytearray(data)
            for _ in range(rng.choice([1, 3, 30])):
                flipped[rng.randrange(len(data))] = rng.randrange(256)
            try:
                read(save(tmp_path, bytes(flipped)))
            except InputError as error:
                assert str(error).startswith(f"{tmp_path / 'archive'}: ")


@pytest.mark.parametrize(
    "data",
    [b"", b"<html>not found</html>" * 100, gzip.compress(b"text" * 1000), b"x" * 512],
    ids=["empty", "page", "gzip", "text"],
)
def test_no_archive(tmp_path: Path, data: bytes) -> None:
    refuse(save(tmp_path, data), "is neither a tar nor a zip archive")


def test_missing(tmp_path: Path) -> None:
    refuse(tmp_path / "absent", "cannot be read .No such file")
    with pytest.raises(InputError, match="cannot be unpacked .No such file"):
        extract(save(tmp_path, good("gz")), tmp_path / "absent" / "target", max_bytes=1 << 20, max_files=10)


def test_empty_archive(tmp_path: Path) -> None:
    for data in (tar([]), zipped({})):
        with pytest.raises(InputError, match="holds none of the wanted files"):
            unpack(save(tmp_path, data))


def test_disk_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = save(tmp_path, tar([entry("a", bytes(5000))]))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=4999))
    with pytest.raises(InputError, match=f"{archive}: unpacking member 'a' needs 0.000 GB on the disk"):
        unpack(archive)
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


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
from lra_ssm.datamodules.fetch import archive_readers, archives
def slow(source):
    for member in archive_readers.tar_members(source):
        yield member
        time.sleep(0.05)
archives.tar_members = slow
archives.extract(Path(sys.argv[1]), Path(sys.argv[2]), max_bytes=1 << 20, max_files=100)
"""


def test_killed(tmp_path: Path) -> None:
    archive, target = save(tmp_path, good("gz")), tmp_path / "target"
    other = tmp_path / ".unfinished-target-b-1"
    other.mkdir()  # another target's
    command = [sys.executable, "-c", SCRIPT, str(archive), str(target)]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    temporary = tmp_path / f".unfinished-target-{process.pid}"
    while not (temporary / "top" / "a.txt").exists():
        assert process.poll() is None
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert temporary.is_dir() and not target.exists()
    assert unpack(archive) == Unpacked(len(FILES), SIZE)
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name, "archive", "target"]
