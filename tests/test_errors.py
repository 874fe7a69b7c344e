"""Foreign text on the terminal: one line of printable characters, whatever a message quotes."""

import errno
import io
import json
import pickle
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from lra_ssm import bars
from lra_ssm.cli import main
from lra_ssm.errors import LONGEST, InputError, to_one_line
from lra_ssm.tables import table
from tests.datamodules.helpers import tiny_dataset

HOSTILE = [
    "a\x1b[2J\x1b]0;title\x07b", "right\rwrong", "a\nlra-ssm: error: forged\n\n  b", "a\b\b\x7fb", "a\0b",
    "a\f\v\x1c\x85b", "a\x9b31m\x90b", "a\u202egnp.exe\u202c\u2066\u200fb", "a\u200b\ufeff\u00adb", "a\u2028b\u2029c",
    "a\ud800\udcff\udfffb", "a\ue000\U000e0001\U0010ffffb", "x" * 10**6 + "\x1b" * 10**5, " " * 10**6 + "\n" * 10**5,
]  # fmt: skip


def test_a_message_is_one_printable_line() -> None:
    rng = random.Random(0)
    drawn = [
        "".join(chr(rng.randrange(rng.choice([256, 0x110000]))) for _ in range(rng.randrange(40))) for _ in HOSTILE
    ]
    for text in [*HOSTILE, *drawn]:
        for line in (to_one_line(text), str(InputError(f"file {text}: is wrong"))):
            assert line.isprintable() and len(line) <= LONGEST and to_one_line(line) == line
        assert str(pickle.loads(pickle.dumps(InputError(text)))) == str(InputError(text))


def test_what_can_be_read_stays() -> None:
    for text in ("data/ünï ×2  (日本語).tar: …", "C:\\x\\1b", "x" * LONGEST):
        assert to_one_line(text) == text
    assert to_one_line("several lines\n\n   of a library\r\n") == "several lines of a library"
    assert to_one_line("\x1b[31m \ud800 \u202e") == r"\x1b[31m \ud800 \u202e"
    cut = to_one_line("begin" + "x" * 10_000 + "end")
    assert cut.startswith("begin") and cut.endswith("end") and len(cut) == LONGEST


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let every command raise this."""

    def fail(*_: Any) -> int:
        print("prepared", "\ud800 ×")
        raise error

    monkeypatch.setattr("lra_ssm.cli.import_module", lambda name: type("Module", (), {"main": staticmethod(fail)}))


def test_a_command_prints_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal that takes strict UTF-8, or nothing but ASCII."""
    for text in HOSTILE:
        raising(monkeypatch, PermissionError(13, "denied", text))
        for encoding in ("utf-8", "ascii"):
            out, err = (io.TextIOWrapper(io.BytesIO(), encoding, "strict") for _ in range(2))
            monkeypatch.setattr(sys, "stdout", out)
            monkeypatch.setattr(sys, "stderr", err)
            assert main(["prepare"]) == 2
            err.flush()
            error, end = err.buffer.getvalue().decode(encoding).split("\n")
            assert error.startswith("lra-ssm: error:") and error.isprintable() and not end


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.EROFS, "Read-only file system", "runs/a"), "runs/a: cannot be read or written (Read-only file"),
        (OSError(errno.ENOSPC, "No space left on device"), "[Errno 28] No space left on device"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    error: OSError, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, error)
    assert main(["prepare"]) == 2
    assert capsys.readouterr().err.startswith(f"lra-ssm: error: {message}")


def test_debug_shows_the_traceback_and_other_errors_are_pythons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, InputError("wrong"))
    with pytest.raises(InputError, match="wrong"):
        main(["prepare", "--debug"])
    raising(monkeypatch, KeyError("a bug"))
    with pytest.raises(KeyError, match="a bug"):
        main(["fit"])


def test_bars_and_tables_show_names_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bars, "LOG", (0, 0))
    with bars.Bar("a[/b]\x1b]0;t\x07\nc", 10) as bar:
        bar.advance(5)
        bar.refresh()
    shown = capsys.readouterr().err
    assert r"a[/b]\x1b]0;t\x07 c:  50%" in shown and "\x1b]0" not in shown and "\x07" not in shown
    assert table(("a",), [("x\x1b[2J\u202ey",)]) == "a\n" + r"x\x1b[2J\u202ey"
    folder = tmp_path / "tiny" / "one\x1b[2J"
    tiny_dataset(tmp_path).folder.rename(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["source"] = {"kind": "x\x1b[2J\ud800", "note\x07": ["\u202e", {"a\r": "b\nc"}]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert main(["prepare", "--summary", f"--root={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.split("\n")) and r"x\x1b[2J" in shown
