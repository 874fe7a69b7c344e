"""A command made of a typed function, and its help; that of `fit`, with our classes by their short names."""

import re
from typing import Literal

import pytest
from jsonargparse.typing import PositiveInt

from lra_ssm.cli.command import call
from lra_ssm.cli.merge import CHOICES
from lra_ssm.errors import InputError
from tests.runner import printed

got = {}


def example(
    name: str | None = None,
    *files: str,
    need: int,
    trust: list[str] = [],  # noqa: B006
    dry_run: bool = False,
    cost: bool | str = False,
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
    got.update(name=name, files=files, need=need, trust=trust, dry_run=dry_run, cost=cost, top_k=top_k, form=form)


def measure(config: str, *settings: str, widths: list[int] = []):  # noqa: B006
    got.update(config=config, settings=settings, widths=widths)


def prepare(name: str | None = None, *options: str, root: str | None = None):
    got.update(name=name, options=options, root=root)


def test_a_signature_is_a_command_line():
    given = ["a", "b", "c", "--need", "3", "--dry-run", "--top-k=4", "--form=csv", "--trust", "x.A", "--trust=y.B"]
    assert call("example", example, [*given, "--cost"]) == 0
    assert got == {"name": "a", "files": ("b", "c"), "need": 3, "trust": ["x.A", "y.B"], "dry_run": True, "cost": True,
                   "top_k": 4, "form": "csv"}  # fmt: skip
    call("example", example, ["a", "--need", "3", "b", "--dry-run", "c", "--cost=H100"])
    assert got["name"] == "a" and got["files"] == ("b", "c") and got["dry_run"] and got["cost"] == "H100"
    call("example", example, ["--need=3", "--top_k=4"])
    assert got["top_k"] == 4
    assert got["name"] is None and not got["dry_run"] and got["cost"] is False and got["form"] == "markdown"


def test_settings_of_a_configuration_are_handed_on_as_they_are():
    given = ["--data.root", "here", "quickstart", "--widths", "64", "128", "--model.network.layer=S6", "--data=Text"]
    call("measure", measure, given)
    assert got["config"] == "quickstart" and got["widths"] == [64, 128]
    assert got["settings"] == ("--data.root=here", "--model.network.layer=S6", "--data=Text")
    call("prepare", prepare, ["text", "--limit", "3", "--root=data", "--inputs=bytes"])
    assert (got["name"], got["options"], got["root"]) == ("text", ("--limit=3", "--inputs=bytes"), "data")


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (example, ["--need=x"], "--need: Expected a int. Got value: x"),
        (example, ["--needs", "3", "--need=3"], "unknown option --needs; did you mean '--need'?"),
        (example, ["--need=3", "--dry"], "unknown option --dry; did you mean '--dry-run'?"),
        (example, ["--need=3", "--top-k=0"], r"--top-k: expected one of \[.*PositiveInt, NoneType\]. Given value: 0"),
        (example, ["--need=3", "--form=tex"], "--form: Expected a typing.Literal"),
        (example, [], "the following arguments are required: NEED"),
        (measure, ["a", "--modle.network=x"], "unknown option --modle; did you mean '--model'?"),
        (measure, ["a", "--data.root"], "--data.root: a value is missing"),
        (measure, ["a", "b"], "unknown argument b; it takes --help, --widths, --config"),
    ],
)
def test_what_is_wrong_is_one_line(function, arguments, message):
    with pytest.raises(InputError, match=message):
        call("example", function, arguments)


def test_help_is_the_docstring(capsys):
    with pytest.raises(SystemExit):
        call("example", example, ["--help"])
    out = capsys.readouterr().out
    assert "List things, in a sentence." in out and "what is listed, said on two lines" in out
    assert "how many. (type: PositiveInt | null)" in out and "dry-run\n" in out
    assert out.rstrip().endswith("examples:\n  lra-ssm example a --need=3")
    assert "further files. (type" in out  # not "required"


def test_help_of_fit_has_our_classes_first_and_a_title_for_every_group(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    out = printed(["fit", "--help"], capsys)
    titles = ["usage: lightning fit --config FILE", "Our classes", "--fresh", "Trainer (Lightning's own", "Model:",
              "Data:", "Which checkpoints a run keeps:", "lightning fit --config quickstart"]  # fmt: skip
    places = [out.index(title) for title in titles]
    assert places == sorted(places)
    for option, classes in CHOICES.items():
        assert f"  {option} " in out and all(f"  {cls.__name__} " in out for cls in classes)
    assert len(out.splitlines()) < 330 and max(map(len, out.splitlines())) <= 100
    assert not any(each in out for each in ("<class", "torch.nn.", "weights_only", "Path to a configuration", "hpc"))


@pytest.mark.parametrize("option", CHOICES)
def test_every_class_is_explained_by_its_short_name(option, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    for cls in CHOICES[option]:
        out = printed(["fit", f"{option}.help", cls.__name__], capsys)
        assert cls.__name__ in out and "torch.nn" not in out and len(out.splitlines()) < 110, out
        assert "usage" not in out
        assert all(name.startswith(f"{option}.") for name in re.findall(r"^  (--[\w.]+)", out, re.M))
        for about in re.findall(r"^  --\S.*(?:\n {4,}.*)*", out, re.M):
            text = re.sub(r"--\S+|{.*?}|\[.*?\]|\b[A-Z_]+\b|[,\s]", "", about.split("(type: ")[0])
            assert text, f"no word on what it is:\n{about}"
