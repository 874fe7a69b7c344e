"""What commands print: an error is one line of visible characters, whatever it quotes; tables and lines fit."""

import errno
import io
import pickle
import sys

import pytest

from lra_ssm import tables
from lra_ssm.cli import main
from lra_ssm.errors import LONGEST, InputError, to_one_line
from lra_ssm.tables import table, terminal_width, wrapped

HOSTILE = {
    "escape sequence": "a\x1b[2J\x1b]0;title\x07b",
    "carriage return": "right\rwrong",
    "lines": "a\nlra-ssm: error: forged\n\n  b",
    "controls": "a\b\b\x7f\0\f\v\x1c\x85\x9b31m\x90b",
    "bidi override": "a\u202egnp.exe\u202c\u2066\u200fb",
    "invisible": "a\u200b\ufeff\u00adb",
    "other line breaks": "a\u2028b\u2029c",
    "surrogates, private and unassigned": "a\ud800\udcff\udfff\ue000\U000e0001\U0010ffffb",
    "long": "x" * 10**6 + "\x1b" * 10**5,
    "blanks": " " * 10**6 + "\n" * 10**5,
}


# --- errors ---


def test_a_message_is_one_printable_line():
    for text in HOSTILE.values():
        for line in (to_one_line(text), str(InputError(f"file {text}: is wrong"))):
            assert line.isprintable() and len(line) <= LONGEST and line.encode("utf-8").decode() == line
            assert to_one_line(line) == line
        assert str(pickle.loads(pickle.dumps(InputError(text)))) == str(InputError(text))


def test_what_can_be_read_stays():
    for text in ("data/ünï ×2  (日本語).tar: …", "C:\\x\\1b", "x" * LONGEST):
        assert to_one_line(text) == text
    assert to_one_line("several lines\n\n   of a library\r\n") == "several lines of a library"
    assert to_one_line("\x1b[31m \ud800 \u202e") == r"\x1b[31m \ud800 \u202e"
    cut = to_one_line("begin" + "x" * 10_000 + "end")
    assert cut.startswith("begin") and cut.endswith("end") and len(cut) == LONGEST


@pytest.fixture
def failing(monkeypatch):
    """Sets the error of the command doctor."""

    def set_error(error: BaseException) -> None:
        def doctor() -> None:
            print("prepared", "\ud800 ×")
            raise error

        monkeypatch.setattr("lra_ssm.cli.doctor.doctor", doctor)

    return set_error


def test_a_command_prints_one_line(failing, monkeypatch):
    """On a terminal that takes strict UTF-8, or only ASCII."""
    text = "".join(text for text in HOSTILE.values() if len(text) < 100)  # of a longer one the middle is left out
    for encoding, error in (("utf-8", InputError(text)), ("ascii", PermissionError(13, "denied", text))):
        failing(error)
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding, "strict") for _ in range(2))
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        assert main(["doctor"]) == 2
        err.flush()
        line, end = err.buffer.getvalue().decode(encoding).split("\n")
        assert line.startswith("lra-ssm: error:") and line.isprintable() and not end


def test_what_the_system_refuses_is_one_line_and_other_errors_are_pythons_own(failing, capsys):
    for error, expected in (
        (OSError(errno.EROFS, "Read-only file system", "runs/a"), "runs/a: cannot be read or written (Read-only file"),
        (OSError(errno.ENOSPC, "No space left on device"), "[Errno 28] No space left on device"),
        (InputError("wrong"), "wrong"),
    ):
        failing(error)
        assert main(["doctor"]) == 2
        assert capsys.readouterr().err.startswith(f"lra-ssm: error: {expected}")
        with pytest.raises(type(error)):
            main(["doctor", "--debug"])
    failing(KeyError("a bug"))
    with pytest.raises(KeyError, match="a bug"):
        main(["doctor"])
    failing(KeyboardInterrupt())
    assert main(["doctor"]) == 130 and "interrupted" in capsys.readouterr().err


# --- tables and lines ---


def test_tables_line_up_and_take_any_text_as_it_is():
    lines = table(("name", "Δ", "count"), [("[bold]a", "x", "1"), ("b" * 150, "", "1,000")], left=2).splitlines()
    assert len(lines) == 3 and lines[1].startswith("[bold]a ") and lines[2].endswith(" 1,000")
    assert len({len(line) for line in lines}) == 1 and lines[0].index("Δ") == lines[1].index("x")
    assert table(("a", "b"), [("x\ty\nz", "1")]) == "a      b\nx y z  1"
    assert table(("name",), [("one\x1b[2J\ud800\u202e",)]).splitlines()[1] == r"one\x1b[2J\ud800\u202e"
    with pytest.raises(ValueError, match="a row does not have 2 cells"):
        table(("a", "b"), [("1",)])


def test_a_table_fits_the_terminal_and_loses_nothing():
    columns, row = ("run", "experiment", "delta_lr_factor", "block"), ("7", "cpu/scifar16/mamba", "0.125", "MambaBlock")
    assert table(columns, [row], 2, 40).splitlines() == [
        "                    delta_lr_",
        "run experiment         factor      block",
        "7   cpu/                0.125 MambaBlock",
        "    scifar16/",
        "    mamba",
    ]


@pytest.mark.parametrize(
    ("is_terminal", "kind", "width"), [(True, "xterm", 70), (True, "dumb", None), (False, "", None)]
)
def test_lines_are_broken_only_in_a_terminal(is_terminal, kind, width, monkeypatch):
    monkeypatch.setattr(tables.sys.stdout, "isatty", lambda: is_terminal)
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setenv("COLUMNS", "70")
    assert terminal_width() == width
    line = "versions " + ", ".join(f"library{i} 1.{i}" for i in range(9))
    lines = wrapped(line, 4).splitlines()
    assert " ".join(map(str.strip, lines)) == line and len(lines) == (3 if width else 1)
    assert all(len(each) <= 70 for each in lines) == bool(width) and all(each.startswith("    ") for each in lines[1:])
