"""What a run knows of its user's code and data: files of the classes it names, the git commit, the manifest."""

import json
import os
import subprocess
from unittest import mock

import pytest

from lra_ssm.runs.provenance import changed, code_version, user_source
from tests.runner import FIT, SHORT, in_process, printed, refused


@pytest.fixture
def write(here, monkeypatch):
    """Write a user's modules in the working folder, which is searched for them; return the last one's file."""
    monkeypatch.syspath_prepend(str(here))

    def files(texts):
        for name, text in texts.items():
            path = here / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return path

    return files


def test_other_code_is_named_by_a_finished_run_a_score_and_a_resume(write, trained, read_once, capsys):
    os.symlink(trained[0] / "data", "data")
    file = write({"edited.py": "from tests.helpers import Smooth\nclass Mine(Smooth): pass\n"})
    command = [*FIT, *SHORT, "--model.network.layer=edited.Mine", "--checkpoint.every_n_steps=1"]
    with mock.patch.dict(os.environ, KILL_AT="train_batch_start:2", KILL_WITH="SIGTERM"):
        assert in_process(command, capsys)[0] == 143
    file.write_text(file.read_text() + "# another\n")
    assert "edited.py has changed; --strict-resume refuses to resume" in refused([*command, "--strict-resume"], capsys)
    assert "edited.py has changed: the run may not end as it would have" in printed(command, capsys)
    assert "was trained with other code: edited.py has changed; --fresh" in printed(command, capsys)
    file.write_text(file.read_text() + "# once more\n")
    out = printed(["test", *command[1:]], capsys)
    assert "warning: " in out and "edited.py has changed" in out


def test_a_finished_run_says_that_the_data_is_other(finished, capsys):
    """And that the package is."""
    file = finished / "run.json"
    record = json.loads(file.read_text())
    record["data"]["splits"]["train"]["arrays"]["tokens"]["sha256"] = "0" * 64
    versions = "0.0.1+abc", "0.0.2+def"
    record["starts"] = [{"versions": {"lra_ssm": version}} for version in versions]
    file.write_text(json.dumps(record))
    out = printed([*FIT, *SHORT], capsys)
    code = "; ".join(f"lra_ssm was {version}, this is {code_version()}" for version in versions)
    assert f"other code: {code}; --fresh" in out
    assert "was trained with other data: train_tokens differ" in out and "val/loss" in out


def source_of(*paths):
    """Digests of these import paths, wherever they stand in a configuration."""
    nested = {"model": {"init_args": {"network": {"class_path": paths[0]}, "list": [{"class_path": p} for p in paths]}}}
    return user_source({"trainer": {}, **nested})


def test_files_of_the_classes_that_are_named(write, tmp_path):
    """A file, a package, what a class is derived from; not a library, and not what is merely imported."""
    write({
        "one_file.py": "import two_file\nclass A(two_file.Base): pass\ndef head(): pass\n",
        "two_file.py": "import three_file\nclass Base: pass\n",
        "three_file.py": "",
        "pack/layers.py": "class B: pass\n",
        "pack/__init__.py": "from pack.layers import B\n",
    })  # fmt: skip
    import one_file  # noqa: F401
    import pack  # noqa: F401

    named = ("one_file.A", "one_file.head", "pack.B", "torch.nn.GELU", "lra_ssm.layers.B2S6", "no_such.Thing")
    before = source_of(*named)
    assert set(before) == {"one_file.py", "two_file.py", "pack/layers.py"}
    for name in before:
        (tmp_path / name).write_text("2")
        assert changed(before, source_of(*named)) == f"{name} has changed"
        before = source_of(*named)
    assert changed(None, before) == changed(before, None) == ""
    assert user_source({"trainer": {"logger": [{"class_path": "one_file.A"}]}}) == {}  # cannot change a result


def test_in_a_repository_its_commit_and_what_was_not_committed_count(write):
    def git(*command):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], check=True, capture_output=True)

    helper = write({"in_a_repository.py": "class A: pass\n", "helping.py": ""})
    import in_a_repository  # noqa: F401

    git("init")
    git("add", "in_a_repository.py", "helping.py")
    git("commit", "-m", "1")
    first = source_of("in_a_repository.A")
    assert first.keys() == {"in_a_repository.py", "git commit", "git diff"} and first["git diff"] == "None"
    helper.write_text("2")
    second = source_of("in_a_repository.A")
    assert changed(first, second) == "git diff has changed"
    git("commit", "-am", "2")
    assert changed(second, source_of("in_a_repository.A")) == "git commit has changed, git diff has changed"
    assert "git commit" not in source_of("torch.nn.GELU")
