"""Pickles of others: honest ones of every writer are read, and no other one takes time, memory or the interpreter."""

import io
import pickle
import random
import re
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lra_ssm.datamodules.cifar10 import reader as cifar_files
from lra_ssm.datamodules.images import restricted_pickle
from lra_ssm.datamodules.images.restricted_pickle import load_restricted
from lra_ssm.datamodules.pathfinder.reader import read_listing
from lra_ssm.errors import InputError
from tests.datamodules.image_helpers import BATCHES, pathfinder_rows, pictures, write_files

IMAGES = pictures(12)
ROWS = IMAGES.transpose(0, 3, 1, 2).reshape(12, 3072)
VALUES = {
    "batch_label": "training batch 1 of 5",
    "labels": [*range(10), 0, 9],
    "data": ROWS,
    "filenames": ["a_ü.png"] * 12,
}


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined, misc]
    """Writes str and bytes as Python 2 wrote its str, in its protocols 0 to 2."""

    dispatch = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self, value: str | bytes) -> None:
        data = value.encode("utf-8") if isinstance(value, str) else value
        if self.proto == 0:
            self.write(b"S" + repr(data)[1:].encode("ascii") + b"\n")
        elif len(data) < 256:
            self.write(b"U" + bytes([len(data)]) + data)
        else:
            self.write(b"T" + struct.pack("<i", len(data)) + data)
        self.memoize(value)

    def save_long(self, value: int) -> None:
        self.write(b"L%dL\n" % value) if self.proto < 2 and value == 9 else self.save_int(value)

    def save_int(self, value: int) -> None:
        self.write(b"I%d\n" % value) if self.proto == 0 else pickle._Pickler.save_long(self, value)  # type: ignore[attr-defined]

    dispatch[str] = dispatch[bytes] = save_string
    dispatch[int] = save_long


def python2(values: Any, protocol: int) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, protocol=protocol).dump(values)
    return file.getvalue()


def of_numpy(data: bytes, core: str) -> bytes:
    """The pickle as numpy 1 (core) or 2 (_core) writes it."""

    def short(match: re.Match[bytes]) -> bytes:
        name = b"numpy." + core.encode() + match[1]
        return b"\x8c" + bytes([len(name)]) + name

    data = re.sub(rb"\x8c.numpy\._?core(\.[a-z]+)", short, data)
    return re.sub(rb"cnumpy\._?core\.", b"cnumpy." + core.encode() + b".", data)


WRITERS = {
    **{f"Python 3, protocol {p}": (lambda values, p=p: pickle.dumps(values, protocol=p)) for p in range(6)},
    **{f"Python 2, protocol {p}": (lambda values, p=p: python2(values, p)) for p in range(3)},
}


@pytest.mark.parametrize("order", ["C", "F", "strided", "read-only"])
@pytest.mark.parametrize("core", ["core", "_core"])
@pytest.mark.parametrize("writer", WRITERS)
def test_honest_batches(tmp_path: Path, writer: str, core: str, order: str) -> None:
    rows = {
        "C": ROWS,
        "F": np.asfortranarray(ROWS),
        "strided": np.repeat(ROWS, 2, 1)[:, ::2],
        "read-only": ROWS.copy(),
    }[order]
    rows.flags.writeable = order != "read-only"
    data = of_numpy(WRITERS[writer](VALUES | {"data": rows}), core)
    assert b"numpy." + core.encode() in data
    files = cifar_files.read(write_files(tmp_path, dict.fromkeys(BATCHES, data)))
    assert np.array_equal(files.test.images, IMAGES) and files.test.labels.tolist() == VALUES["labels"]


@pytest.mark.parametrize("core", ["core", "_core"])
@pytest.mark.parametrize("writer", WRITERS)
def test_honest_values(writer: str, core: str) -> None:
    rows = np.array(pathfinder_rows(3), dtype=object)
    loaded = load_restricted(of_numpy(WRITERS[writer](rows), core), "x")
    assert [[*map(str, row)] for row in loaded] == [
        [value.decode() if isinstance(value, bytes) else str(value) for value in row] for row in rows.tolist()
    ] or writer.startswith("Python 2")
    values = {
        b"\xff\n\\'\"": 1,
        "ü\n\0\u2028": -1.5,
        "big": 2**62,
        "small": -(2**63),
        "list": [True, False, None, b"", ""],
    }
    if writer.startswith("Python 3"):
        assert load_restricted(WRITERS[writer](values), "x") == values
    else:
        assert load_restricted(WRITERS[writer](values), "x")[b"\xff\n\\'\""] == 1


def nested(count: int, opening: bytes, closing: bytes) -> bytes:
    return b"\x80\x02" + opening * count + b"N" + closing * count + b"."


def array_op(shape: bytes, data: bytes, kind: bytes = b"u1") -> bytes:
    """The operations that make an array."""
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01" + shape
        + b"cnumpy\ndtype\nU\x02" + kind + b"\x85R\x89" + data + b"tb"
    )  # fmt: skip


BIG = b"B" + struct.pack("<I", 1 << 20) + bytes(1 << 20)
HOSTILE = {
    "2,000,000 nested tuples": nested(2_000_000, b"", b"\x85"),
    "nested lists": nested(1_000_000, b"](", b"e"),
    "nested dicts": nested(1_000_000, b"}U\0", b"s"),
    "marks alone": b"(" * 2_000_000,
    "doubling tuples": b"\x80\x02N" + b"q\0h\0\x86" * 100 + b".",
    "doubling tuples as a key": b"\x80\x02}N" + b"q\0h\0\x86" * 100 + b"Ns.",
    "doubling lists": b"\x80\x02]q\0" + b"](h\0h\0eq\0" * 100 + b".",
    "a list in itself": b"\x80\x02]q\0h\0a.",
    "a dict in itself": b"\x80\x02}q\0U\0h\0s.",
    "an array of itself": b"\x80\x02}U\x04data]q\0(h\0e.",
    "a text ever again": b"\x80\x02" + BIG + b"q\0]q\1" + b"h\0a" * 100_000 + b".",
    "a list in many arrays": b"\x80\x02](" + b"N" * 100_000 + b"eq\0}q\1("
    + b"".join(b"U\x04%04d" % i + array_op(b"J\xa0\x86\x01\0\x85", b"h\0", b"O8") for i in range(9999)) + b"u.",
    "a text encoded ever again": b"\x80\x02c_codecs\nencode\nq\0X" + struct.pack("<I", 1 << 20) + b"x" * (1 << 20)
    + b"\x85q\1" + b"h\0h\1R" * 100_000 + b".",
    "an array filled ever again": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R(K\1K\0\x85cnumpy\ndtype\n"
    + b"U\2u1\x85RK\0U\0tq\1" + b"h\1b" * 1000 + b".",
    "a label beyond all": b"\x80\x02}U\x06labels](\x8a\x20" + b"\x7f" * 32 + b"es.",
    "a number of many digits": b"I" + b"9" * 5_000_000 + b"\n.",
    "a long of many digits": b"L" + b"9" * 5000 + b"L\n.",
    "a long of many bytes": b"\x80\x02\x8b" + struct.pack("<i", 1 << 20) + b"\x7f" * (1 << 20) + b".",
    "a float of many digits": b"F" + b"9" * 5_000_000 + b"\n.",
    "a text of any length": b"\x80\x04\x8d" + b"\xff" * 8 + b".",
    "a text of negative length": b"\x80\x02T\xff\xff\xff\xffx.",
    "a shape beyond all": b"\x80\x02" + array_op(b"\x8a\x08" + b"\x7f" * 8 + b"K\0\x86", b"U\0") + b".",
    "a negative shape": b"\x80\x02" + array_op(b"J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86", b"U\x01x") + b".",
    "a shape of truth": b"\x80\x02" + array_op(b"\x88\x85", b"U\x01x") + b".",
    "bytes for objects": b"\x80\x02" + array_op(b"K\x08\x85", b"U\x08aaaaaaaa", b"O8") + b".",
    "an array without data": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R.",
    "lists in the memo": b"\x80\x04" + b"]\x94" * 1_000_000 + b".",
    "lists in a dict": b"\x80\x04}" + b"".join(b"U\3%03x]s" % i for i in range(4096)) + b".",
    "bytes of a number": b"c__builtin__\nbytes\n(I9999999\ntR.",
    "a name alone": b"\x80\x02cnumpy\ndtype\n.",
    "a name of two lines": b"\x80\x04\x8c\x02a\n\x8c\x04\x1b[2J\x93.",
    "a name that is none": b"\x80\x04NN\x93.",
    "a call of a text": b"\x80\x02U\x01a)R.",
    "an instance": b"(ios\nsystem\n.",
    "an object": b"(cos\nsystem\no.",
    "a persistent object": b"Pa\n.",
    "an extension": b"\x80\x02\x82\x01.",
    "a buffer outside": b"\x80\x05\x97.",
    "nothing on the stack": b"\x80\x02.",
    "a mark as a value": b"\x80\x02(.",
    "no such number": b"\x80\x02h\x05.",
    "no end": b"\x80\x02N",
    "a dict of odd values": b"\x80\x02}(NNNu.",
    "a string without quotes": b"Sabc\n.",
    "half an escape": b"S'\\x'\n.",
    "half a letter": b"\x80\x02X\x01\0\0\0\xff.",
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_pickles(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restricted_pickle, "MOST_BYTES", 1 << 24)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="^x: (refused as a|is no) pickle of arrays") as error:
            load_restricted(HOSTILE[case], "x")
        assert tracemalloc.get_traced_memory()[1] < (64 << 20)
    finally:
        tracemalloc.stop()
    assert str(error.value).isprintable()


def test_a_file_without_end_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restricted_pickle, "MOST_BYTES", 1000)
    with pytest.raises(InputError, match="has more than 1,000 bytes"):
        load_restricted(io.BytesIO(b"N" * 5000), "x")


@pytest.mark.parametrize("value", [10**30, -(10**30), 2**63, True, None, "a", 1.0, 255, -1, [1]])
@pytest.mark.parametrize("protocol", range(6))
def test_labels_that_are_none(value: Any, protocol: int, tmp_path: Path) -> None:
    data = pickle.dumps(VALUES | {"labels": [0] * 11 + [value]}, protocol=protocol)
    try:
        files = cifar_files.read(write_files(tmp_path, dict.fromkeys(BATCHES, data)))
    except InputError as error:
        assert "data_batch_1" in str(error) and str(error).isprintable()
    else:
        assert value is True and files.test.labels[-1] == 1


def damaged(data: bytes, rng: random.Random) -> bytes:
    """With a few bits, bytes or pieces of it changed; where it says something rather than in its pixels."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.choice([rng.randrange(min(200, len(changed))), -1 - rng.randrange(400), rng.randrange(len(changed))])
        at %= max(len(changed), 1)
        piece = rng.choice([bytes([changed[at] ^ 1 << rng.randrange(8)]), rng.randbytes(1), b"", data[at : at + 9] * 2])
        changed[at : at + rng.choice([1, 1, 1, 5])] = piece
    return bytes(changed[: rng.choice([len(changed)] * 9 + [rng.randrange(len(changed))])])


FEW_AND_MANY = [range(250), pytest.param(range(250, 5_000), marks=pytest.mark.slow)]


@pytest.mark.parametrize("seeds", FEW_AND_MANY, ids=len)
def test_random_damage_to_batches(seeds: range) -> None:
    honest = [of_numpy(write(VALUES), core) for write in WRITERS.values() for core in ("core", "_core")]
    for seed in seeds:
        rng = random.Random(seed)
        try:
            cifar_files._read_pickle(damaged(rng.choice(honest), rng), "x")
        except InputError as error:
            assert str(error).startswith("x: ") and str(error).isprintable()


@pytest.mark.parametrize("seeds", [range(120), pytest.param(range(120, 1000), marks=pytest.mark.slow)], ids=len)
def test_random_damage_to_metadata(tmp_path: Path, seeds: range) -> None:
    """Text, and arrays of strings, bytes and objects."""
    rows = pathfinder_rows(4)
    honest = ["".join(" ".join(map(str, row)) + "\n" for row in rows).encode()]
    for kind in (None, "S20", object):
        file = io.BytesIO()
        np.save(file, np.array(rows, dtype=kind))
        honest.append(file.getvalue())
    write_files(tmp_path / "imgs" / "0", {f"sample_{i}.png": b"x" for i in range(4)})
    for seed in seeds:
        rng = random.Random(seed)
        write_files(tmp_path / "metadata", {"0.npy": damaged(rng.choice(honest), rng)})
        try:
            read_listing(tmp_path)
        except InputError as error:
            assert str(error).startswith(str(tmp_path)) and str(error).isprintable()
