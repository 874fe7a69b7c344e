"""What a run knows of its user's code and data: files of the classes it names, the git commit, the manifest."""

import os
import subprocess
from pathlib import Path

import pytest

from lra_ssm.runs import provenance
from lra_ssm.runs.provenance import changed, other_code, user_source
from tests.runner import FIT, SHORT, TINY, in_process

LAYER = """
from torch import nn
class Mine(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.mix = nn.Linear(d_model, d_model)
    def forward(self, x, lengths=None):
        return self.mix(x)
"""


@pytest.fixture
def here(tmp_path, monkeypatch, trained, read_once):
    """A working folder that is searched for modules, with data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    os.symlink(trained[0] / "data", "data")
    return tmp_path


def write(folder, name, text):
    """Write a user's module; name: below the folder, with dots."""
    path = folder / f"{name.replace('.', '/')}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_other_code_is_named_by_a_finished_run_a_score_and_a_resume(here, capsys, monkeypatch):
    file = write(here, "edited", LAYER)
    command = [*FIT, *SHORT, "--model.network.layer=edited.Mine", "--checkpoint.every_n_steps=1"]
    with monkeypatch.context() as stopped:
        stopped.setenv("KILL_AT", "train_batch_start:2")
        stopped.setenv("KILL_WITH", "SIGTERM")
        assert in_process(command, capsys)[0] == 143
    file.write_text(LAYER + "# another\n")
    code, _, errors = in_process([*command, "--strict-resume"], capsys)
    assert code == 2 and "edited.py has changed; --strict-resume refuses to resume" in errors[-1]
    code, out, _ = in_process(command, capsys)
    assert code == 0 and "edited.py has changed: the run may not end as it would have" in out
    assert "was trained with other code: edited.py has changed; --fresh" in in_process(command, capsys)[1]
    file.write_text(LAYER + "# once more\n")
    code, out, _ = in_process(["test", *command[1:]], capsys)
    assert code == 0 and "warning: " in out and "edited.py has changed" in out


def test_a_finished_run_says_that_the_data_is_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("text").mkdir()
    for split in ("train", "val", "test"):
        Path(f"text/{split}.txt").write_text(f"text for {split}\n" * 20)
    options = ["--config", str(TINY.parent / "language.yaml"), "--data=Corpus", "--data.source=text",
               "--data.tokenizer=bytes", "--data.length=16", "--data.batch_size=2", "--data.root=data",
               "--trainer.max_steps=2", "--model.network.n_layers=1"]  # fmt: skip
    assert in_process(["fit", *options], capsys)[0] == 0
    assert "is finished" in in_process(["fit", *options], capsys)[1]
    with open("text/train.txt", "a") as file:
        file.write("and more\n")
    assert in_process(["prepare", *options], capsys)[0] == 0
    code, out, _ = in_process(["fit", *options], capsys)
    assert code == 0 and "was trained with other data: " in out and "val/loss" in out


def source_of(*paths):
    """Digests of these import paths, wherever they stand in a configuration."""
    nested = {"model": {"init_args": {"network": {"class_path": paths[0]}, "list": [{"class_path": p} for p in paths]}}}
    return user_source({"trainer": {}, **nested})


def test_files_of_the_classes_that_are_named(here):
    """A file, a package, what a class is derived from; not a library, and not what is merely imported."""
    files = {
        "one_file": "import two_file\nclass A(two_file.Base): pass\ndef head(): pass\n",
        "two_file": "import three_file\nclass Base: pass\n",
        "three_file": "",
        "whole_pack.__init__": "from whole_pack.layers import B\n",
        "whole_pack.layers": "class B: pass\n",
    }
    for name, text in files.items():
        write(here, name, text)
    import one_file  # noqa: F401
    import whole_pack  # noqa: F401

    named = ("one_file.A", "one_file.head", "whole_pack.B", "torch.nn.GELU", "lra_ssm.layers.B2S6", "no_such.Thing")
    before = source_of(*named)
    assert set(before) == {"one_file.py", "two_file.py", "whole_pack/layers.py"}
    for name in before:
        (here / name).write_text("2")
        assert changed(before, source_of(*named)) == f"{name} has changed"
        before = source_of(*named)
    assert changed(None, before) == changed(before, None) == ""
    assert user_source({"trainer": {"logger": [{"class_path": "one_file.A"}]}}) == {}  # cannot change a result


def test_in_a_repository_its_commit_and_what_was_not_committed_count(here):
    def git(*command):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *command], cwd=here, check=True, capture_output=True)

    write(here, "in_a_repository", "class A: pass\n")
    helper = write(here, "helping", "")
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


def test_another_version_of_the_package_is_named(monkeypatch):
    record = {"starts": [{"versions": {"lra_ssm": "0.0.1+abc"}, "source": {"a.py": "1"}}]}
    monkeypatch.setattr(provenance, "code_version", lambda: "0.0.2+def")
    assert other_code(record, {"a.py": "2"}) == "lra_ssm was 0.0.1+abc, this is 0.0.2+def; a.py has changed"
