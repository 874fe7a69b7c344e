"""What a run knows of its user's code and data: the files of the classes it names, notebooks, commits, data files."""

import json
import linecache
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from lightning.pytorch import Trainer, seed_everything

from lra_ssm.runs.source import changed, user_source
from tests.runner import FIT, SHORT, TINY, in_process, warning

LAYER = """
from torch import nn
from {helper} import SCALE
class Mine(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.mix = nn.Linear(d_model, d_model)
    def forward(self, x, lengths=None):
        return SCALE * self.mix(x)
"""


@pytest.fixture
def here(tmp_path, monkeypatch, trained, read_once):
    """A working folder that is searched for modules, with data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    os.symlink(trained[0] / "data", "data")
    return tmp_path


def write_layer(folder, name):
    """A layer beside the file that it imports from."""
    (folder / f"{name}.py").write_text(LAYER.format(helper=f"{name}_ops"))
    (folder / f"{name}_ops.py").write_text("SCALE = 1.0\n")
    return [*FIT, *SHORT, f"--model.network.layer={name}.Mine"]


# --- the user's code ---


@pytest.mark.slow
def test_a_finished_run_says_that_the_code_is_another(here, capsys):
    command = write_layer(here, "edited_after")
    assert in_process(command, capsys)[0] == 0
    with open(here / "edited_after.py", "a") as file:
        file.write("# another\n")
    code, out, _ = in_process(command, capsys)
    (line,) = [line for line in out.splitlines() if "is finished" in line]
    assert code == 0 and "--fresh" in line and "trained with other code: edited_after.py has changed" in line
    assert "val/accuracy" in out
    code, out, _ = in_process(["test", *command[1:]], capsys)
    assert code == 0 and "warning: " in out and "edited_after.py has changed" in out
    assert in_process([*command, "--fresh"], capsys)[0] == 0
    assert "warning" not in in_process([*command, "--fresh"], capsys)[1]


def test_a_resume_warns_of_other_code_or_refuses(here, capsys, monkeypatch):
    command = [*write_layer(here, "edited_within"), "--checkpoint.every_n_steps=1"]
    with monkeypatch.context() as stopped:
        stopped.setenv("KILL_AT", "train_batch_start:2")
        stopped.setenv("KILL_WITH", "SIGTERM")
        assert in_process(command, capsys)[0] == 143
    (here / "edited_within.py").write_text((here / "edited_within.py").read_text() + "# another\n")
    code, _, said = in_process([*command, "--strict-resume"], capsys)
    (line,) = [line for line in said if line.startswith("lra-ssm: error: ")]
    assert code == 2 and "edited_within.py has changed; --strict-resume refuses to go on" in line
    code, out, _ = in_process(command, capsys)
    line = warning(out)
    assert code == 0 and "edited_within.py has changed" in line


# --- the user's data ---


@pytest.fixture
def language(tmp_path, monkeypatch, read_once):
    """A fit on a folder of text and on a tokenizer, both of the user's."""
    monkeypatch.chdir(tmp_path)
    for name in ("text", "more"):
        Path(name).mkdir()
        for split in ("train", "val", "test"):
            Path(f"{name}/{split}.txt").write_text(f"{name} for {split}\n" * 20)
    options = ["--data=lra_ssm.datamodules.Corpus", "--data.source=text", "--data.tokenizer=bytes", "--data.length=16"]
    short = ["--trainer.max_steps=2", "--model.network.n_layers=1"]
    return ["--config", str(TINY.parent / "language.yaml"), *options, "--data.batch_size=2", "--data.root=data", *short]


def of_a_finished_run(arguments, capsys):
    """What a fit warns of that is not trained again."""
    code, out, said = in_process(["fit", *arguments], capsys)
    assert code == 0, said
    assert "val/loss" in out
    if "is finished" in out:
        return ""
    (line,) = [line for line in out.splitlines() if "was trained with" in line]
    return line.partition(" was trained with ")[2].removesuffix("; --fresh trains with what there is now")


def test_a_finished_run_says_that_the_data_is_other(language, tmp_path, capsys):
    assert in_process(["fit", *language], capsys)[0] == 0
    assert of_a_finished_run(language, capsys) == ""
    with open("text/train.txt", "a") as file:
        file.write("and more\n")
    said = "other data: text has changed"
    assert of_a_finished_run(language, capsys) == said
    assert in_process(["fit", *language, "--fresh"], capsys)[0] == 0  # on the new text, prepared now
    assert of_a_finished_run(language, capsys) == said
    first, second = (json.loads(file.read_text()) for file in sorted(tmp_path.glob("runs/tiny/*/run.json")))
    assert first["inputs"]["data"].keys() == {"text"} and first["inputs"] != second["inputs"]
    Path("text").rename("gone")
    assert of_a_finished_run(language, capsys) == ""  # it has its result, and there is nothing else
    Path("gone").rename("text")  # of a record of an earlier version nothing is known
    (tmp_path / "runs/tiny" / first["run_id"] / "run.json").write_text(json.dumps({**first, "inputs": {}}))
    assert of_a_finished_run(language, capsys) == ""


def test_data_that_was_touched_and_prepared_again_is_the_same(language, capsys):
    assert in_process(["fit", *language], capsys)[0] == 0
    os.utime("text/train.txt", (1, 1))
    assert "text has changed" in of_a_finished_run(language, capsys)  # by its time: nothing is read
    assert in_process(["prepare", *language], capsys)[0] == 0
    assert of_a_finished_run(language, capsys) == ""


def test_which_of_the_users_data_is_other_is_named(language, capsys):
    corpus = [o for o in language if not o.startswith("--data")]
    corpus += ["--data=Corpus", "--data.length=16", "--data.root=data", "--data.batch_size=2"]
    corpus += ["--data.source=more", "--data.tokenizer=t/tokenizer.json"]
    tokenizer("t", "ab")
    assert in_process(["fit", *corpus], capsys)[0] == 0
    assert of_a_finished_run(corpus, capsys) == ""
    Path("more/train-2.txt").write_text("a new file\n" * 20)
    assert of_a_finished_run(corpus, capsys) == "other data: more has changed"
    tokenizer("t", "abc")
    said = of_a_finished_run(corpus, capsys)
    assert said == "other data: more has changed, t/tokenizer.json has changed"


def tokenizer(folder, letters):
    from tokenizers import Tokenizer, models, pre_tokenizers

    Path(folder).mkdir(exist_ok=True)
    made = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(["<unk>", "<|endoftext|>", *letters])}, "<unk>")
    )
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(["<|endoftext|>"])
    made.save(f"{folder}/tokenizer.json")


def source_of(*paths):
    """Digests behind these import paths, wherever they stand in a configuration."""
    nested = {"model": {"init_args": {"network": {"class_path": paths[0]}, "list": [{"class_path": p} for p in paths]}}}
    return user_source({"trainer": {}, **nested})


def write(folder, name, text):
    """A module of a user's; name: below the folder, with dots."""
    path = folder / f"{name.replace('.', '/')}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_files_of_the_classes_that_are_named(here):
    """Of a file, of a package, of what a class is derived from; nothing of a library, and nothing that is imported."""
    files = {
        "one_file": "import two_file\nclass A(two_file.Base): pass\ndef head(): pass\n",
        "two_file": "import three_file\nclass Base: pass\n",
        "three_file": "",
        "whole_pack.__init__": "from whole_pack.layers import B\n",
        "whole_pack.layers": "class B: pass\n",
        "whole_pack.other": "",
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


def test_in_a_repository_its_commit_and_what_was_not_committed_count(here):
    def git(*command):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *command], cwd=here, check=True, capture_output=True)

    write(here, "in_a_repository", "import helping\nclass A: pass\n")
    write(here, "helping", "")
    import in_a_repository  # noqa: F401

    git("init")
    git("add", "in_a_repository.py", "helping.py")
    git("commit", "-m", "1")
    first = source_of("in_a_repository.A")
    assert first.keys() == {"in_a_repository.py", "git commit", "git diff"} and first["git diff"] == "None"
    write(here, "helping", "2")
    second = source_of("in_a_repository.A")
    assert changed(first, second) == "git diff has changed"
    git("commit", "-am", "2")
    assert changed(second, source_of("in_a_repository.A")) == "git commit has changed, git diff has changed"
    assert "git commit" not in source_of("torch.nn.GELU")


def test_what_a_run_of_an_older_version_recorded_is_compared_as_far_as_it_goes(here):
    write(here, "of_before", "class A: pass\n")
    import of_before  # noqa: F401

    now = source_of("of_before.A")
    older = {**now, "imported_by_it.py": "0123456789ab", "torch": "2.4.0"}
    assert changed(older, {**now, "git commit": "1"}) == ""
    assert changed({**older, "of_before.py": "0123456789ab"}, now) == "of_before.py has changed"


def test_what_cannot_change_a_result_is_none_of_it(here):
    write(here, "named_only", "class Log: pass\nclass Call: pass\n")
    import named_only  # noqa: F401

    assert user_source({"trainer": {"logger": [{"class_path": "named_only.Log"}]}}) == {}
    assert set(user_source({"trainer": {"callbacks": [{"class_path": "named_only.Call"}]}})) == {"named_only.py"}


def test_a_notebooks_run_knows_its_objects_code(here, capsys):
    from lra_ssm.datamodules import ListOps
    from lra_ssm.layers import LayerSpec, NetworkSpec
    from lra_ssm.models import Classifier
    from lra_ssm.runs import Run
    from lra_ssm.tasks import Classification, OptimizerSettings

    write_layer(here, "in_a_notebook")
    import in_a_notebook

    def fit():
        seed_everything(1, verbose=False)
        layer = LayerSpec(in_a_notebook.Mine)
        network = NetworkSpec(Classifier, layer=layer, num_classes=10, vocab_size=18, d_model=8, n_layers=1)
        task = Classification(network, OptimizerSettings(warmup_steps=1))
        data = ListOps(length_bounds=(3, 20), max_depth=3, num_train=16, num_val=20, num_test=20, batch_size=8)
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
        given = Run("runs/mine/a")
        given.fit(Trainer(**given.trainer_arguments(accelerator="cpu", max_epochs=1, **quiet)), task, data)
        return given

    assert set(fit().source) == {"in_a_notebook.py"}
    with open(here / "in_a_notebook.py", "a") as file:
        file.write("# another\n")
    capsys.readouterr()
    fit()
    assert "warning: it was trained with other code: in_a_notebook.py has changed" in capsys.readouterr().out


CELL = """
import dataclasses

class Layer:
    @property
    def rate(self):
        return 1

    @staticmethod
    def act(x):
        return x

@dataclasses.dataclass
class Data:
    n: int = 1

    def forward(self):
        return self.n
"""


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [("return 1", "return 2", "Layer"), ("return x", "return -x", "Layer"), ("return self.n", "return 7", "Data")],
)
def test_every_method_of_a_notebooks_class_counts(before, after, name, monkeypatch):
    """Its classes have no file; Python's linecache knows the cells."""
    notebook = types.ModuleType("cells")
    monkeypatch.setitem(sys.modules, "cells", notebook)

    def digests(code, cell):
        monkeypatch.setitem(linecache.cache, cell, (len(code), None, code.splitlines(True), cell))
        exec(compile(code, cell, "exec"), notebook.__dict__)
        return user_source({}, [notebook.Layer(), notebook.Data()])

    first, second = digests(CELL, "<first>"), digests(CELL.replace(before, after), "<second>")
    assert first.keys() == {"cells.Layer", "cells.Data"} and first == digests(CELL, "<again>")
    assert changed(first, second) == f"cells.{name} has changed"
