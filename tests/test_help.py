"""`--help` of the run commands: ours first, and short; our classes have short names."""

import re
import subprocess

import pytest
import yaml

from lra_ssm.cli.help import CHOICES
from tests.runner import FIT, fail, in_process, succeed

WIDE = {"COLUMNS": "100"}


def test_our_classes_and_options_come_first(tmp_path):
    out = succeed(["fit", "--help"], tmp_path, WIDE).out
    assert out.startswith("usage: lightning fit --config FILE [options]\n") and "example: lightning fit" in out
    titles = ["Our classes", "Configuration:", "Run:", "Checkpoint to start from:", "Checkpoints:", "Model:", "Data:"]
    places = [out.index(title) for title in [*titles, "Trainer (Lightning's own"]]
    assert places == sorted(places)
    for option, classes in CHOICES.items():
        assert f"  {option} " in out
        for cls in classes:
            assert f"  {cls.__name__} " in out
    assert len(out.splitlines()) < 270 and max(map(len, out.splitlines())) <= 100
    assert "<class" not in out and "torch.nn." not in out and "weights_only" not in out


@pytest.mark.parametrize("option", CHOICES)
def test_every_class_is_explained_by_its_short_name(option, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", WIDE["COLUMNS"])
    config = FIT if option.startswith("--model.network") else ["fit"]
    for cls in CHOICES[option]:
        with pytest.raises(SystemExit, match="0"):
            pytest.fail(f"{cls.__name__}: {in_process([*config, f'{option}.help', cls.__name__], capsys)}")
        out = capsys.readouterr().out
        assert cls.__name__ in out and "torch.nn" not in out and len(out.splitlines()) < 110, out
        assert "usage" not in out
        for about in re.findall(r"^  --\S.*(?:\n {4,}.*)*", out, re.M):
            said = re.sub(r"--\S+|{.*?}|\[.*?\]|\b[A-Z_]+\b|[,\s]", "", about.split("(type: ")[0])
            assert said, f"no word on what it is:\n{about}"


def test_short_names_serve_as_values_on_the_command_line_and_in_files(tmp_path):
    (tmp_path / "short.yaml").write_text(
        "model: {class_path: Classification, init_args: {network: {class_path: Classifier, init_args:"
        " {layer: S4D, num_classes: 2, vocab_size: 134, block: {class_path: MambaBlock}}}}}\ndata: Text\n"
    )
    printed = yaml.safe_load(succeed(["fit", "--config", "short.yaml", "--print_config"], tmp_path).out)
    network = printed["model"]["init_args"]["network"]["init_args"]
    assert printed["data"]["class_path"] == "lra_ssm.datamodules.Text"
    assert network["layer"]["class_path"] == "lra_ssm.layers.S4D"
    assert network["block"]["class_path"] == "lra_ssm.layers.MambaBlock"
    flags = ["--data=MNIST", "--model.network.pooling=LastPooling", "--model.network.layer=S6"]
    printed = yaml.safe_load(succeed([*FIT, *flags, "--print_config"], tmp_path).out)
    network = printed["model"]["init_args"]["network"]["init_args"]
    assert printed["data"]["class_path"] == "lra_ssm.datamodules.MNIST"
    assert network["pooling"]["class_path"] == "lra_ssm.models.LastPooling"
    assert network["layer"]["init_args"]["d_state"] == 16


def test_completion_knows_commands_options_and_our_classes(tmp_path):
    """The script itself, in a shell: what is offered behind each beginning of a line."""
    pytest.importorskip("shtab")
    (tmp_path / "script").write_text(succeed(["--print_completion", "bash"], tmp_path).out)
    ask = """source ./script; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1))
    $(complete -p $1 | sed 's/.*-F \\([^ ]*\\) .*/\\1/'); echo "${COMPREPLY[@]}" """

    def offered(*words):
        done = subprocess.run(["bash", "-c", ask, "bash", *words], cwd=tmp_path, capture_output=True, text=True)
        return done.stdout.split()

    assert offered("lightning", "f") == ["fit"] and "doctor" in offered("lra-ssm", "")
    assert offered("lightning", "fit", "--data.lim") == ["--data.limit"]
    assert "--trainer.max_epochs" in offered("lra-ssm", "test", "--trainer.max")
    ours = [cls.__name__ for cls in CHOICES["--model.network.layer"]]
    assert offered("lightning", "fit", "--model.network.layer", "") == ours
    assert offered("lightning", "prepare", "pathf") == ["pathfinder"]
    assert offered("lightning", "prepare", "text", "--lim") == ["--limit"]
    assert offered("lra-ssm", "generate", "--top") == ["--top_k", "--top_p"]
    assert offered("lra-ssm", "predict", "--outp") == ["--output"]
    assert offered("lra-ssm", "predict", "--spl") == ["--split"]
    assert offered("lra-ssm", "pu") == ["pull", "push"]
    assert offered("lra-ssm", "push", "--pri") == ["--private"] and offered("lra-ssm", "pull", "--tr") == ["--trust"]
    assert offered("lra-ssm", "export", "--format", "") == ["lra_ssm", "hf"]


def test_completion_needs_a_shell_that_is_known(tmp_path):
    pytest.importorskip("shtab")
    assert "--print_completion 'ksh': " in fail(["--print_completion", "ksh"], tmp_path)
