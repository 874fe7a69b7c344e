"""Parts of a long preparation: each once, whole or not at all, joined in order."""

import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lra_ssm.datamodules.parts import Parts
from lra_ssm.errors import InputError


def made(calls: list[int], number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    calls.append(number)
    return {"tokens": np.full(number + 1, number, np.uint8)}, {"length": number + 1}


def test_existing_parts_are_skipped_and_all_are_joined(tmp_path: Path) -> None:
    parts, calls = Parts(tmp_path / ".parts-x", 5), list[int]()
    assert parts.missing((2, 2)) == [1, 3] and parts.missing() == [0, 1, 2, 3, 4]
    for number in (3, 1, 3):
        parts.write(number, partial(made, calls))
    assert calls == [3, 1] and parts.missing() == [0, 2, 4]
    with pytest.raises(InputError, match="3 of 5 parts are missing, the first is 0"):
        parts.records()
    for number in parts.missing():
        parts.write(number, partial(made, calls))
    assert [record["length"] for record in parts.records()] == [1, 2, 3, 4, 5]
    joined = parts.join(tmp_path / "train_tokens.npy", "tokens")
    expected = [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4]
    assert joined.tolist() == np.load(tmp_path / "train_tokens.npy").tolist() == expected
    assert parts.join(tmp_path / "val.npy", "tokens", [2, 0]).tolist() == [2, 2, 2, 0]


def test_a_part_that_fails_leaves_nothing(tmp_path: Path) -> None:
    parts = Parts(tmp_path / ".parts-x", 1)
    with pytest.raises(AttributeError):
        parts.write(0, lambda number: ({"tokens": np.zeros(3)}, {"x": object().absent}))  # type: ignore[attr-defined]
    assert parts.missing() == [0] and not list(tmp_path.rglob("*.npy"))


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    parts, disk = Parts(tmp_path / ".parts-x", 2), tmp_path / "disk"
    for number in range(2):
        parts.write(number, lambda number: ({"tokens": np.zeros(300_000, np.uint8)}, {}))
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=500k", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        with pytest.raises(OSError, match="No space left"):
            parts.join(disk / "train_tokens.npy", "tokens")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
