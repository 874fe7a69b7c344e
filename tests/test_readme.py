"""Every block of the README is tested: install and pytest lines by .ci/run, which takes them from the README;
full-size fit lines by parsing and one step on a small dataset; the rest by running it."""

import re
import shlex
import subprocess
import sys
from glob import glob
from pathlib import Path

import pytest
import yaml

from tests.runner import succeed
from tests.small_data import COUNTS, GENERATED

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
LINES = [line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]
# What a user writes into a file of their own: its name stands in the first line.
OWN = {found[1]: text for kind, text in BLOCKS if kind == "python" and (found := re.match(r"# (\w+\.py)\n", text))}
TEXT = ["--trainer.max_steps=2", "--trainer.val_check_interval=2", "--model.network.n_layers=1", "--data.length=32"]
SHORT = ["--data.num_train=64", "--data.num_val=32", "--data.num_test=32", "--trainer.max_steps=2"]


def test_the_readme_has_no_other_blocks():
    assert {kind for kind, _ in BLOCKS} == {"bash", "python", "yaml", ""}


def test_the_install_lines_are_what_ci_runs():
    installs = [line for line in LINES if line.startswith("pip ")]
    ci = (ROOT / ".ci/run").read_text()
    patterns = re.findall(r"grep -m1 '([^']+)' README.md", ci)
    assert len(patterns) == 2
    for line in installs:
        if ".[dev]" not in line:
            assert any(re.match(pattern, line) for pattern in patterns), line


SCRIPTS = [text for kind, text in BLOCKS if kind == "bash" and not text.startswith("pip ")]


@pytest.mark.parametrize(
    "script",
    [pytest.param(text, marks=[pytest.mark.slow] * text.startswith("python benchmarks/")) for text in SCRIPTS],
    ids=[text.splitlines()[-1] for text in SCRIPTS],
)
def test_commands_run(script, tmp_path):
    """The lines of a block, one after the other, on little data."""
    for folder in ("configs", "slurm"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    for name, text in OWN.items():
        (tmp_path / name).write_text(text)
    for line in script.splitlines():
        program, *arguments = shlex.split(line)
        if program == "python":
            if arguments[0].startswith("benchmarks/"):
                arguments = [str(ROOT / arguments[0]), *arguments[1:], "--quick", "--repeats=1", "--threads=1"]
            subprocess.run([sys.executable, *arguments], cwd=tmp_path, check=True)
            continue
        assert program in ("lightning", "lra-ssm")
        if "configs/lm/" in line:
            arguments += TEXT
        elif arguments[0] == "fit" and "quickstart" not in line:  # full size
            small = COUNTS if "synthetic" in line else GENERATED
            arguments += [*small, "--trainer.max_steps=1", "--trainer.accelerator=cpu"]
        elif arguments[0] == "generate":
            arguments = [file for part in arguments for file in (glob(part, root_dir=tmp_path) or [part])]
        elif arguments[0] not in ("prepare", "submit"):
            arguments += SHORT
        if arguments[0] == "test":
            succeed(["fit", *arguments[1:]], tmp_path)
        succeed(arguments, tmp_path)


@pytest.mark.parametrize("text", [text for kind, text in BLOCKS if kind == "python"])
def test_python_blocks_run(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "")  # so that it is taken back when the block has set it
    exec(compile(text, "README.md", "exec"), {})


@pytest.mark.parametrize("text", [text for kind, text in BLOCKS if kind == "yaml"])
def test_yaml_blocks_are_taken(text, tmp_path):
    (tmp_path / "more.yaml").write_text(text)
    tiny = str(ROOT / "tests/tiny.yaml")
    flags = ["--config", tiny, "--config", "more.yaml", "--trainer.max_epochs=1", "--data.num_train=16"]
    succeed(["fit", *flags], tmp_path, {"WANDB_MODE": "offline", "WANDB_SILENT": "true"})


def test_the_table_names_every_config():
    named = set(re.findall(r"\]\((configs/[^)]+)\)", README))
    assert named == {str(p.relative_to(ROOT)) for p in (ROOT / "configs").rglob("*.yaml")}


def test_the_yaml_of_the_readme_is_yaml():
    assert all(isinstance(yaml.safe_load(text), dict) for kind, text in BLOCKS if kind == "yaml")


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_promise_names_a_test():
    text, file = (ROOT / "docs/robustness.md").read_text(), None
    found = re.findall(r"`([\w/]+\.py)?(?:::(\w+))?`", text)
    assert len(found) > 30
    for path, name in found:
        file = ROOT / "tests" / path if path else file
        assert not name or f"\ndef {name}(" in file.read_text(), f"{file}: no {name}"
