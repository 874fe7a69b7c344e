"""Configs, sweeps and templates by name, in any directory; their list."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from lra_ssm import shipped
from lra_ssm.cli.data import readiness
from lra_ssm.datamodules import ListOps
from lra_ssm.results.published import row_of
from lra_ssm.sweeps.submit import folder_of
from lra_ssm.sweeps.sweep import read_sweep
from tests.results.made import make_run, read
from tests.runner import fail, in_process, printed, refused

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LRA_SSM_DATA", str(tmp_path / "data"))


@pytest.mark.parametrize("options", [["--config", "lra/listops/b2s6"], ["--config=configs/lra/listops/b2s6.yaml"]])
def test_a_config_is_found_by_its_name_outside_a_checkout(options, capsys):
    assert "experiment: lra/listops/b2s6" in printed(["fit", *options, "--print_config"], capsys)


def test_configs_that_are_no_plain_files_are_read_as_they_are(tmp_path, capsys):
    Path("tabs.json").write_text('{\n\t"experiment": "tabs"\n}')
    os.mkdir("quickstart")
    assert "experiment: tabs" in printed(["fit", "--config=quickstart", "--config=tabs.json", "--print_config"], capsys)
    reads, writes = os.pipe()
    os.write(writes, b"{experiment: piped}")
    os.close(writes)
    pipe = f"/dev/fd/{reads}"
    assert "experiment: piped" in printed(["fit", "-c", "quickstart", "-c", pipe, "--print_config"], capsys)


def test_a_file_of_that_name_goes_first(tmp_path, capsys):
    Path("quickstart").write_text((ROOT / "configs/quickstart.yaml").read_text().replace("quickstart", "mine"))
    assert "experiment: mine" in printed(["fit", "--config", "quickstart", "--print_config"], capsys)


def test_what_is_nowhere_is_one_line(tmp_path):
    said = fail(["fit", "--config", "lra/listops/b2s"], tmp_path)
    assert said == "no config lra/listops/b2s: not a file and not one of ours; did you mean 'lra/listops/b2s6'?"
    assert fail(["fit", "--config=none.yaml"], tmp_path).endswith("`lra-ssm configs` lists ours")
    assert "our sweeps are ablation-scifar, " in fail(["submit", "none", "--dry-run"], tmp_path)
    said = fail(["submit", "lra", "--dry-run", "--template=one-gp"], tmp_path)
    assert said.endswith("did you mean 'one-gpu'?") and "no template one-gp" in said


def test_sweeps_and_templates_have_names_too(tmp_path):
    sweep = read_sweep("lra")
    assert len(sweep.runs) == 90 and {run.config.name for run in sweep.runs} == {"s4d.yaml", "mamba.yaml", "b2s6.yaml"}
    os.chdir(ROOT)  # whose configs/ has the same files: the sweep's folder is the same
    assert folder_of(read_sweep("slurm/sweeps/lra.yaml")) == folder_of(sweep)
    os.chdir(tmp_path)
    assert shipped.find("template", "one-gpu").is_file()
    for name in shipped.names("sweep"):
        assert read_sweep(name).runs
    os.mkdir("small")  # a folder of that name hides no sweep
    said = fail(["status", "small"], tmp_path)
    assert "sweep small was not submitted from here" in said


def test_the_list(capsys):
    lines = printed(["configs"], capsys).splitlines()
    assert [line.split()[0] for line in lines] == ["config", *shipped.names("config")]
    row = next(line for line in lines if line.startswith("lra/listops/b2s6 "))
    assert row.split() == ["lra/listops/b2s6", "listops", "B2S6", "8", "×", "128", "63.85", "±", "0.45", "missing"]
    said = printed(["configs", "synthetic"], capsys)
    assert said.count("generated") == 7 and len(said.splitlines()) == 8
    assert "no config nope" in refused(["configs", "nope"], capsys)


# The rows of tables that vary a setting, or give a figure at several steps: it is the config's own value that counts.
OF_ITS_SETTINGS = {
    "lra/listops/stable_ssm": "60.80", "lra/text/stable_ssm": "88.50", "lra/retrieval/stable_ssm": "91.30",
    "lra/image/stable_ssm": "87.39", "lra/pathfinder/stable_ssm": "94.80", "lra/pathx/stable_ssm": "96.10",
    "mnist/stable_ssm": "0.023475 ± 0.001414", "scifar/stable_ssm": "0.870412 ± 0.021024",
    "scifar/b2s6": "87.19 ± 0.26", "lm/slimpajama6b/s6": "21.0785", "lm/slimpajama6b/b2s6": "20.9773",
    "lm/slimpajama6b/s4d": "25.6661", "synthetic/associative_recall": "99.80",
    "synthetic/associative_recall_131k": "100.00", "lm/tinyshakespeare/b2s6": "1.88",
    "lm/wikitext103/stable_ssm_3b": "",
}  # fmt: skip


@pytest.mark.parametrize("name", shipped.names("config"))
def test_the_list_has_the_row_that_results_sets_beside_a_run_of_the_config(name, tmp_path, capsys):
    config = yaml.safe_load((ROOT / "configs" / f"{name}.yaml").read_text())
    row = None
    if "experiment" in config:
        make_run(tmp_path, name)
        (run,) = read(tmp_path)
        row = row_of(run)
    figure = "" if row is None or row.unmatched else row.figure
    listed = printed(["configs", name.rpartition("/")[0]], capsys).splitlines()
    (cells,) = [re.split(r"  +", line.strip()) for line in listed if line.startswith(f"{name} ")]
    assert cells[4:-1] == ([figure] if figure else [])
    assert figure == OF_ITS_SETTINGS.get(name, figure)


def test_prepared_data_is_ready(tmp_path):
    assert readiness("listops", tmp_path) == "missing" and readiness("first_token", tmp_path) == "generated"
    ListOps(root=str(tmp_path), num_train=8, num_val=4, num_test=4, length_bounds=(3, 20), max_depth=3).prepare_data()
    assert readiness("listops", tmp_path) == "prepared" and readiness("text", tmp_path) == "missing"


def test_the_list_loads_no_torch():
    code = "import sys; from lra_ssm.cli import main; main(['configs']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_config_is_printed_with_every_setting(capsys):
    config = yaml.safe_load(printed(["configs", "lra/listops/b2s6", "--resolved"], capsys))
    assert config["model"]["init_args"]["network"]["init_args"]["padding"] == "masked"
    assert "--resolved prints one config" in refused(["configs", "--resolved"], capsys)


def test_a_wheel_has_them_all():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["lra_ssm"]
    package = ROOT / "lra_ssm"
    taken = {file.resolve() for pattern in settings for file in package.glob(pattern)}
    assert {*(ROOT / "slurm").glob("*.sbatch")} <= taken
    assert {*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "slurm/sweeps").glob("*.yaml")} <= taken


UNTYPED = """
from lightning import LightningModule
from torch import nn
class MyTask(LightningModule):
    def __init__(self, network):
        super().__init__()
class Bare(LightningModule):
    def __init__(self):
        super().__init__()
class Net(nn.Module):
    pass
class Base(LightningModule):
    def __init__(self, net: nn.Module):
        super().__init__()
        assert isinstance(net, Net)
class Derived(Base):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
"""


def test_what_a_beginner_leaves_out_is_one_line_that_says_what_to_write(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "no model is given: give --config CONFIG (`lra-ssm configs`" in refused(["fit"], capsys)
    for early in (["--model.network.d_model=3"], ["--data.limit=3"]):
        assert "no class is given here; give it, or a --config" in refused(["fit", *early], capsys)
    Path("bad.yaml").write_text("experiment: x\nmodel: [1,\n  b: c: d\n")
    assert refused(["fit", "--config=bad.yaml"], capsys).startswith("bad.yaml, line 3: this is not valid YAML: ")
    Path("untyped_task.py").write_text(UNTYPED)
    said = refused(["fit", "--config=quickstart", "--model=untyped_task.MyTask"], capsys)
    assert "MyTask takes 'network' without a type" in said and "`network: NetworkFactory`" in said
    for model in (["Bare"], ["Derived", "--model.net=untyped_task.Net"]):
        code, _, said = in_process(["fit", f"--model=untyped_task.{model[0]}", *model[1:], "--data=FirstToken"], capsys)
        assert code == 1 and "No `training_step()` method" in said[-1]  # Lightning's own word: they were built
