"""A command made of a typed function."""

from typing import Literal

import pytest
from jsonargparse.typing import PositiveInt

from lra_ssm.cli.command import call
from lra_ssm.errors import InputError

got = {}


def example(
    name: str | None = None,
    *files: str,
    need: int,
    trust: list[str] = [],  # noqa: B006
    dry_run: bool = False,
    top_k: PositiveInt | None = None,
    form: Literal["csv", "markdown"] = "markdown",
):
    """List things, in a sentence.

    Args:
        name: what is listed, said
            on two lines.
        files: further files.
        top_k: how many.

    Examples:
        lra-ssm example a --need=3
    """
    got.update(name=name, files=files, need=need, trust=trust, dry_run=dry_run, top_k=top_k, form=form)


def test_a_signature_is_a_command_line():
    given = ["a", "b", "c", "--need", "3", "--dry-run", "--top-k=4", "--form=csv", "--trust", "x.A", "--trust=y.B"]
    assert call("example", example, given) == 0
    assert got == {
        "name": "a",
        "files": ("b", "c"),
        "need": 3,
        "trust": ["x.A", "y.B"],
        "dry_run": True,
        "top_k": 4,
        "form": "csv",
    }
    call("example", example, ["a", "--need", "3", "b", "--dry-run", "c"])  # positional arguments may stand anywhere
    assert got["name"] == "a" and got["files"] == ("b", "c") and got["dry_run"]
    call("example", example, ["--need=3", "--dry_run", "--top_k=4"])
    assert got["name"] is None and got["dry_run"] and got["top_k"] == 4 and got["form"] == "markdown"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--need=x"], "--need: Expected a int. Got value: x"),
        (["--needs", "3", "--need=3"], "unknown option --needs; did you mean '--need'?"),
        (["--need=3", "--dry"], "unknown option --dry; did you mean '--dry-run'?"),
        (["--need=3", "--top_k=0"], r"--top-k: expected one of \[.*PositiveInt, NoneType\]. Given value: 0"),
        (["--need=3", "--form=tex"], "--form: Expected a typing.Literal"),
        ([], "the following arguments are required: NEED"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, message):
    with pytest.raises(InputError, match=message):
        call("example", example, arguments)


def measure(config: str, *settings: str, widths: list[int] = []):  # noqa: B006
    got.update(config=config, settings=settings, widths=widths)


def test_settings_of_a_configuration_are_handed_on_as_they_are():
    given = ["--data.root", "here", "quickstart", "--widths", "64", "128", "--model.network.layer=S6", "--data=Text"]
    call("measure", measure, given)
    assert got["config"] == "quickstart" and got["widths"] == [64, 128]
    assert got["settings"] == ("--data.root=here", "--model.network.layer=S6", "--data=Text")


def test_help_is_the_docstring(capsys):
    with pytest.raises(SystemExit):
        call("example", example, ["--help"])
    out = capsys.readouterr().out
    assert "List things, in a sentence." in out and "what is listed, said on two lines" in out
    assert "how many" in out and out.rstrip().endswith("examples:\n  lra-ssm example a --need=3")
    assert "further files. (type" in out  # not "required"
