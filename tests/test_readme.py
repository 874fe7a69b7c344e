"""Every block of the README and of docs/ is tested. .ci/run takes the install and test lines from the README; commands
and Python are run here, full-size fits with one step on a small dataset. Of blocks without a language, which cannot run
here, the commands, options and files exist. Three pages have tests of their own."""

import ast
import contextlib
import re
import shlex
import subprocess
import sys
from glob import glob
from pathlib import Path

import pytest
import yaml
from PIL import Image

from lra_ssm.cli import COMMANDS, main
from lra_ssm.layers import LayerSpec
from lra_ssm.layers.spec import import_object
from lra_ssm.tasks import OptimizerSettings
from tests.runner import printed
from tests.small_data import COUNTS, GENERATED

ROOT = Path(__file__).parents[1]
PAGES = {path.name: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
README = PAGES["README.md"]
BLOCKS = [
    (page, kind, block)
    for page, text in PAGES.items()
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
]
OF_THEIR_OWN = {"extending.md": "test_examples", "tuning.md": "test_examples", "inspect.md": "analysis/test_docs"}
# Files that a user writes: the first line has the name.
OWN = {
    found[1]: block
    for page, kind, block in BLOCKS
    if page in ("README.md", "training.md") and (found := re.match(r"# (\w+\.py)\n", block))
}
TEXT = ["--trainer.max_steps=2", "--trainer.val_check_interval=2", "--model.network.n_layers=1", "--data.length=32"]
SHORT = ["--data.num_train=64", "--data.num_val=32", "--data.num_test=32", "--trainer.max_steps=2"]
SEEN_FIRST = {"README.md", "runs.md"}  # whose commands run by default
OTHERS = PAGES.keys() - OF_THEIR_OWN.keys() - SEEN_FIRST


def blocks(kind, pages, marks=()):
    """The blocks of a kind on some pages, as a test's parameters."""
    found = [(page, block) for page, own, block in BLOCKS if own == kind and page in pages]
    return [pytest.param(block, id=f"{page}: {block.splitlines()[-1]}", marks=marks)
            for page, block in found if not block.startswith("pip ")]  # fmt: skip


def test_the_readme_is_short_and_blocks_have_known_kinds():
    assert len(README.splitlines()) <= 150
    assert {kind for _, kind, _ in BLOCKS} == {"bash", "python", "yaml", ""}
    assert all((ROOT / f"tests/{name}.py").exists() for name in OF_THEIR_OWN.values())


def test_the_install_lines_are_what_ci_runs():
    installs = [line for line in README.splitlines() if line.startswith("pip ")]
    patterns = re.findall(r"grep -m1 '([^']+)' README.md", (ROOT / ".ci/run").read_text())
    assert len(patterns) == len(installs) == 2
    assert all(re.match(pattern, line) for pattern, line in zip(patterns, installs, strict=True))


@pytest.mark.parametrize("script", blocks("bash", SEEN_FIRST) + blocks("bash", OTHERS, pytest.mark.slow))
def test_commands_run(script, here, capsys):
    """Run the lines of a block, one after the other, on little data."""
    for folder in ("configs", "slurm"):
        (here / folder).symlink_to(ROOT / folder)
    for name, text in OWN.items():
        (here / name).write_text(text)

    for line in script.splitlines():
        program, *arguments = shlex.split(line)
        if program == "python":
            subprocess.run([sys.executable, *arguments], check=True)
            for text in sorted(here.glob("data/texts/*"))[40:]:
                text.unlink()
            continue
        assert program in ("lightning", "lra-ssm")
        if "configs/lm/" in line:
            arguments += TEXT
        elif arguments[0] == "fit" and "quickstart" not in line:  # full size
            small = COUNTS if "synthetic" in line else GENERATED
            arguments += [*small, "--trainer.max_steps=1", "--trainer.accelerator=cpu"]
        elif arguments[0] == "generate":
            arguments = [file for part in arguments for file in (glob(part) or [part])]
        elif arguments[0] not in ("prepare", "submit"):
            arguments += SHORT
        if arguments[0] == "test":
            printed(["fit", *arguments[1:]], capsys)
        printed(arguments, capsys)


# Models of the Hub, data that is not here, 200,000 images: only the imports run
SHOWN = ("language-models.md", "generation.md", "pathfinder.md")


@pytest.mark.parametrize("text", blocks("python", PAGES.keys() - {"tuning.md", "inspect.md"}))
def test_python_blocks_run(text, here, monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "")  # undone after the test, if the block sets it
    Image.effect_noise((80, 60), 50).save("photo.jpg")
    tree = ast.parse(text)
    if any(text in PAGES[page] for page in SHOWN):
        tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        if "lm_eval" in text:
            pytest.importorskip("lm_eval")
    exec(compile(tree, "a page", "exec"), {"__name__": "page"})


@pytest.mark.parametrize("text", blocks("yaml", ["runs.md"]))
def test_yaml_blocks_of_runs_are_accepted(text, here, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    (here / "more.yaml").write_text(text)
    flags = ["--config", str(ROOT / "tests/tiny.yaml"), "--config", "more.yaml"]
    printed(["fit", *flags, "--trainer.max_epochs=1", "--data.num_train=16"], capsys)


def test_other_yaml_has_the_values_that_it_shows():
    others = [(page, yaml.safe_load(text), text) for page, kind, text in BLOCKS
              if kind == "yaml" and page != "runs.md" and page not in OF_THEIR_OWN]  # fmt: skip
    assert {page for page, *_ in others} == {"clusters.md", "parameterization.md", "training.md"}
    for page, given, text in others:
        if page == "clusters.md":
            assert given == yaml.safe_load((ROOT / text.splitlines()[0].removeprefix("# ")).read_text())
        elif "optimizer" in given:
            assert OptimizerSettings.of(given["optimizer"]).of_role("delta").lr == 0.001
        elif page == "training.md":
            ((name, metric),) = given["model"]["init_args"]["metrics"].items()
            assert name == "f1" and import_object(metric["class_path"], "metric")(**metric["init_args"])
        else:
            form = LayerSpec.of(given["layer"])(8).parameterization
            assert (form.name, *form.numbers) == ("best", 1.0, 0.5) and "name: best" in text


def test_commands_options_and_files_that_are_shown_exist(capsys):
    """Check the commands whose options are not a config's."""
    lines = [(page, line) for page, _, block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
    lines += [(page, code) for page, text in PAGES.items() for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)]
    helped, checked = {}, 0
    for page, line in lines:
        found = re.match(r"(?:\$ |srun )?(?:lra-ssm|lightning|python -m lra_ssm) ([a-z]+)(.*)", line)
        if not found:
            continue
        command, rest = found[1], found[2].partition("  #")[0]
        assert command in COMMANDS, f"{page}: {line}"
        for file in re.findall(r"(?:configs|slurm)/[\w/.-]+\.yaml", rest):
            assert (ROOT / file).exists(), f"{page}: {line}"
        if command in ("fit", "validate", "test", "predict", "prepare"):
            continue
        if command not in helped:
            with contextlib.suppress(SystemExit):  # argparse's own
                main([command, "--help"])
            helped[command] = capsys.readouterr().out
        for option in re.findall(r"(?<=\s)--[\w-]+", rest):
            assert option in helped[command], f"{page}: {line}: no {option}"
            checked += 1
    assert checked > 30 and len(helped) > 8


def test_pages_are_linked_name_every_config_and_show_pictures_next_to_the_command_that_draws_them():
    assert {page for page in PAGES if page != "README.md"} <= set(re.findall(r"\]\(docs/([\w-]+\.md)\)", README))
    named = set(re.findall(r"configs/[\w/]+\.yaml", "".join(PAGES.values())))
    assert named >= {str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*.yaml")}
    sections = [part for text in PAGES.values() for part in re.split(r"^## ", text, flags=re.MULTILINE) if "![" in part]
    assert len(sections) > 5
    for part in sections:
        command = r"\b(python (docs|benchmarks|experiments)/\w+\.py|lra-ssm (inspect|results|prepare) )"
        assert re.search(command, part), part[:60]


def test_every_promise_names_a_test():
    file = None
    found = re.findall(r"`([\w/]+\.py)?(?:::(\w+))?`", PAGES["robustness.md"])
    assert len(found) > 30
    for path, name in found:
        file = ROOT / "tests" / path if path else file
        assert not name or f"\ndef {name}(" in file.read_text(), f"{file}: no {name}"
