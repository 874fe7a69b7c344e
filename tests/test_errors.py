"""Text of others on the terminal: one line of characters that can be seen, whatever a message quotes."""

import errno
import io
import json
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lra_ssm import bars
from lra_ssm.cli import main
from lra_ssm.errors import LONGEST, InputError, to_one_line
from lra_ssm.tables import table
from tests.datamodules.helpers import tiny_dataset

HOSTILE = {
    "escape sequence": "a\x1b[2J\x1b]0;title\x07b",
    "bell": "a\x07b",
    "carriage return": "right\rwrong",
    "lines": "a\nlra-ssm: error: forged\n\n  b",
    "backspace and delete": "a\b\b\x7fb",
    "nul": "a\0b",
    "form feed, vertical tab": "a\f\v\x1c\x85b",
    "C1": "a\x9b31m\x90b",
    "bidi override": "a\u202egnp.exe\u202c\u2066\u200fb",
    "invisible": "a\u200b\ufeff\u00adb",
    "other line breaks": "a\u2028b\u2029c",
    "surrogates": "a\ud800\udcff\udfffb",
    "private and unassigned": "a\ue000\U000e0001\U0010ffffb",
    "long": "x" * 10**6 + "\x1b" * 10**5,
    "blanks": " " * 10**6 + "\n" * 10**5,
}


def check(line: str) -> None:
    assert line.isprintable() and len(line) <= LONGEST and line.encode("utf-8").decode() == line


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_message_is_one_printable_line(text: str) -> None:
    for line in (to_one_line(text), str(InputError(f"file {text}: is wrong"))):
        check(line)
        assert to_one_line(line) == line
    assert str(pickle.loads(pickle.dumps(InputError(text)))) == str(InputError(text))


def test_what_can_be_read_stays() -> None:
    for text in ("data/ünï ×2  (日本語).tar: …", "C:\\x\\1b", "x" * LONGEST):
        assert to_one_line(text) == text
    assert to_one_line("several lines\n\n   of a library\r\n") == "several lines of a library"
    assert to_one_line("\x1b[31m \ud800 \u202e") == r"\x1b[31m \ud800 \u202e"
    cut = to_one_line("begin" + "x" * 10_000 + "end")
    assert cut.startswith("begin") and cut.endswith("end") and len(cut) == LONGEST


def test_random_text() -> None:
    rng = random.Random(0)
    for _ in range(300):
        text = "".join(chr(rng.choice([rng.randrange(256), rng.randrange(0x110000)])) for _ in range(rng.randrange(40)))
        check(to_one_line(text))
        assert to_one_line(to_one_line(text)) == to_one_line(text)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_command_prints_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal that takes strict UTF-8, or nothing but ASCII."""

    def fail(command: str, *_: Any) -> int:
        print("prepared", "\ud800 ×")
        raise InputError(text) if command == "prepare" else PermissionError(13, "denied", text)

    monkeypatch.setattr("lra_ssm.cli.import_module", lambda name: type("Module", (), {"main": staticmethod(fail)}))
    for encoding, command in (("utf-8", "prepare"), ("utf-8", "fit"), ("ascii", "prepare")):
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding, "strict") for _ in range(2))
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        assert main([command]) == 2
        err.flush()
        shown = err.buffer.getvalue().decode(encoding)
        error, end = shown.split("\n")
        assert error.startswith("lra-ssm: error:") and error.isprintable() and not end


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EROFS, "Read-only file system", "runs/a"), "runs/a: cannot be read or written (Read-only file"),
        (OSError(errno.ENOSPC, "No space left on device"), "[Errno 28] No space left on device"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    error: OSError, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> int:
        raise error

    monkeypatch.setattr("lra_ssm.cli.import_module", lambda name: type("Module", (), {"main": staticmethod(fail)}))
    assert main(["prepare"]) == 2
    assert capsys.readouterr().err.startswith(f"lra-ssm: error: {said}")


def test_debug_shows_the_traceback_and_other_errors_are_pythons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: str, *_: Any) -> int:
        raise InputError("wrong") if command == "prepare" else KeyError("a bug")

    monkeypatch.setattr("lra_ssm.cli.import_module", lambda name: type("Module", (), {"main": staticmethod(fail)}))
    with pytest.raises(InputError, match="wrong"):
        main(["prepare", "--debug"])
    with pytest.raises(KeyError, match="a bug"):
        main(["fit"])


def test_bars_show_names_as_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bars, "LOG", (0, 0))
    with bars.Bar("a[/b]\x1b]0;t\x07\nc", 10) as bar:
        bar.advance(5)
        bar.refresh()
    shown = capsys.readouterr().err
    assert r"a[/b]\x1b]0;t\x07 c:  50%" in shown and "\x1b]0" not in shown and "\x07" not in shown


def test_tables_show_manifests_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert table(("a",), [("x\x1b[2J\u202ey",)]) == "a\n" + r"x\x1b[2J\u202ey"
    folder = tmp_path / "tiny" / "one\x1b[2J"
    tiny_dataset(tmp_path).folder.rename(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["source"] = {"kind": "x\x1b[2J\ud800", "note\x07": ["\u202e", {"a\r": "b\nc"}]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert main(["prepare", "--summary", f"--root={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.split("\n")) and r"x\x1b[2J" in shown


@pytest.mark.slow
def test_names_of_files_on_a_real_terminal(tmp_path: Path) -> None:
    """Bytes that are no UTF-8, in an argument and in a folder's name."""
    archive = bytes(tmp_path) + b"/\xff\x1b[2J\n.tar"
    with open(archive, "wb") as file:
        file.write(b"nothing")
    command = [sys.executable, "-m", "lra_ssm", "prepare", "text", b"--source=" + archive]
    environment = {"PYTHONPATH": ":".join(sys.path), "PYTHONIOENCODING": "utf-8:strict", "HOME": str(tmp_path)}
    done = subprocess.run([*command, f"--root={tmp_path}"], capture_output=True, env=environment)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"\x1b" not in done.stderr
    assert rb"\udcff\x1b[2J" in done.stderr
