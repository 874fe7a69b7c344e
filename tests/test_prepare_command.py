"""`lra-ssm prepare`, `configs` and `doctor`: what they print and leave; what is wrong with them: test_bad_input.py."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from lra_ssm import datamodules, ops, shipped
from lra_ssm.cli import doctor
from lra_ssm.datamodules import Text
from lra_ssm.results.published import row_of_config
from lra_ssm.sweeps.submit import folder_of
from lra_ssm.sweeps.sweep import read_sweep
from tests.runner import in_process, printed, refused
from tests.small_data import write_cifar10, write_imdb, write_mnist, write_texts

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"


@pytest.fixture(autouse=True)
def _elsewhere(here, monkeypatch):
    monkeypatch.delenv("LRA_SSM_DATA", raising=False)


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("a folder of files")
    writers = {"corpus": write_texts, "text": write_imdb, "image": write_cifar10, "mnist": write_mnist}
    return {name: write(folder / name) for name, write in writers.items()}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A data root that all datasets here are prepared in."""
    return tmp_path_factory.mktemp("prepared")


# --- prepare ---

OPTIONS = {  # dataset -> what it is prepared with; the data module's class
    "listops": (["--num_train=20", "--num_val=4", "--num_test=4", "--length_bounds=[3,20]", "--max_depth=3"],
                "ListOps"),
    "text": (["--source={text}", "--min_freq=1"], "Text"),
    "image": (["--source={image}", "--limit=10", "--split_seed=1"], "Image"),
    "mnist": (["--source={mnist}"], "MNIST"),
    "pathx": (["--limit=2"], "Pathfinder"),
    "corpus": (["--source={corpus}", "--tokenizer=bytes"], "Corpus"),
}  # fmt: skip


def prepared(out):
    """The folder that `prepare` names and the options of a fit that it ends with."""
    lines = out.splitlines()
    (line,) = [line for line in lines if line.startswith("train on it: ")]
    program, *command = shlex.split(line.removeprefix("train on it: "))
    assert program == "lightning" and command[0] == "fit"
    return Path(next(line for line in lines if ": " in line and "train" in line).split(": ")[0]), command[1:]


@pytest.mark.parametrize("dataset", OPTIONS)
def test_a_dataset_is_prepared_once_and_the_options_that_take_it_are_printed(dataset, sources, root, capsys):
    options, name = OPTIONS[dataset]
    given = [option.format(**sources) for option in options]
    command = ["prepare", dataset, *given, "--root", str(root)]
    shown = printed(["prepare", dataset, "--help"], capsys)
    assert "--source" in shown and "--root" in shown and "--batch_size" not in shown
    folder, (_, _, chosen, *taken) = prepared(out := printed(command, capsys))
    assert folder.parent.parent == root and chosen == f"--data={name}"
    rows = ["--model.network.vocab_size=257"] if dataset == "corpus" else []
    resolution = ["--data.resolution=128"] if dataset == "pathx" else []
    assert taken == [*resolution, *(f"--data.{option[2:]}" for option in given), f"--data.root={root}", *rows]
    pairs = [option.removeprefix("--data.").split("=", 1) for option in taken if option not in rows]
    arguments = {key: yaml.safe_load(value) for key, value in pairs}
    assert getattr(datamodules, name)(**arguments).prepared_folder == folder
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*") if p.is_file()}
    assert printed(command, capsys) == out
    assert {p: p.stat().st_mtime_ns for p in root.rglob("*") if p.is_file()} == before


def test_a_configuration_prepares_what_its_fit_needs(sources, capsys):
    """A fit whose data is missing names the command: the options of the fit itself."""
    options = [f"--config={CONFIGS / 'lra/text/s4d.yaml'}", "--data.limit=4", "--model.network.d_model=4"]
    assert f"`lra-ssm prepare {' '.join(options)}` downloads them" in refused(["fit", *options], capsys)
    folder, command = prepared(printed(["prepare", *options, f"--data.source={sources['text']}"], capsys))
    assert command == [*options, f"--data.source={sources['text']}"]
    assert folder == Text(limit=4, source=str(sources["text"])).prepared_folder and (folder / "manifest.json").is_file()
    small = ["--trainer.fast_dev_run=1", "--trainer.accelerator=cpu", "--model.network.n_layers=1"]
    printed(["fit", *command, *small], capsys)
    for name in ("first_token", "--config=synthetic/first_token"):
        assert "nothing to prepare" in printed(["prepare", name], capsys)


def test_the_table_of_what_is_prepared_names_damage_and_what_is_not_finished(sources, root, tmp_path, capsys):
    for dataset, (options, _) in OPTIONS.items():
        printed(["prepare", dataset, *(each.format(**sources) for each in options), f"--root={root}"], capsys)
    columns, *lines = printed(["prepare", "--summary", f"--root={root}"], capsys).splitlines()
    assert columns.split()[:5] == ["folder", "settings", "inputs", "split", "examples"]
    rows = [line.split() for line in lines]
    datasets = list(dict.fromkeys(row[0].partition("/")[0] for row in rows))
    assert datasets == ["cifar10", "corpus", "listops", "mnist", "pathfinder", "text"]
    listops = next(row for row in rows if "listops" in row[0] and "train" in row)
    assert listops[1:5] == ["3", "to", "20", "tokens"] and listops[6:9] == ["20", "10", "18"]
    assert any("limit 10" in line and "32×32×1" in line for line in lines)
    assert any("bytes" in line and "257" in line for line in lines)
    ready = printed(["configs", "s4d", f"--root={root}"], capsys).splitlines()  # some of the dataset is prepared
    assert {line.split()[1]: line.split()[-1] for line in ready if line.startswith(("mnist/s4d", "lra/retrieval"))} == {
        "mnist": "prepared", "retrieval": "missing"
    }  # fmt: skip
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    damaged = next(copy.glob("mnist/*/manifest.json"))
    damaged.write_text("{}")
    (copy / "text/.parts-files-0123").mkdir()
    out = printed(["prepare", "--summary", f"--root={copy}"], capsys)
    assert f"damaged: {damaged}" in out and f"not finished: {copy}/text/.parts-files-0123" in out
    empty = printed(["prepare", "--summary", "--root=empty"], capsys)
    assert empty == f"nothing is prepared below {tmp_path}/empty\n"


def test_a_batch_is_drawn(sources, root, capsys):
    arguments = [f"--root={root}", f"--source={sources['mnist']}", "--permutation=random", "--picture=batch.png"]
    assert printed(["prepare", "mnist", *arguments], capsys).endswith("batch.png\n")
    assert Path("batch.png").read_bytes()[:4] == b"\x89PNG"


# --- configs ---


def test_the_list_of_configs_has_the_row_that_results_sets_next_to_a_run(capsys):
    lines = printed(["configs"], capsys).splitlines()[1:]
    assert [line.split()[0] for line in lines] == shipped.names("config")
    row = next(line for line in lines if line.startswith("lra/listops/b2s6 "))
    assert row.split() == ["lra/listops/b2s6", "listops", "B2S6", "8", "×", "128", "63.85", "±", "0.45", "missing"]
    for name, line in zip(shipped.names("config"), lines, strict=True):
        config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
        row = row_of_config(config) if "experiment" in config else None
        figures = [] if row is None or row.unmatched else [row.figure]
        assert re.split(r"  +", line.strip())[4:-1] == figures, name
    out = printed(["configs", "synthetic"], capsys)
    assert out.count("generated") == 7 and len(out.splitlines()) == 8
    config = yaml.safe_load(printed(["configs", "lra/listops/b2s6", "--resolved"], capsys))
    assert config["model"]["init_args"]["network"]["init_args"]["padding"] == "masked"
    code = "import sys; from lra_ssm.cli import main; main(['configs']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_sweeps_and_templates_have_names_too_and_are_in_a_wheel(monkeypatch):
    sweep = read_sweep("lra")
    assert shipped.find("template", "one-gpu").is_file()
    monkeypatch.chdir(ROOT)  # whose configs/ has the same files: the sweep's folder is the same
    assert folder_of(read_sweep("slurm/sweeps/lra.yaml")) == folder_of(sweep)
    settings = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["lra_ssm"]
    taken = {file.resolve() for pattern in settings for file in (ROOT / "lra_ssm").glob(pattern)}
    assert {*(ROOT / "slurm").glob("*.sbatch"), *CONFIGS.rglob("*.yaml"), *ROOT.glob("slurm/sweeps/*.yaml")} <= taken


# --- doctor ---


def test_doctor_shows_everything_and_compares_digests(trained, capsys):
    code, out, errors = in_process(["doctor", f"--root={trained[0] / 'data'}"], capsys)
    assert code == 0 and out.endswith("nothing is wrong\n") and "Traceback" not in "".join(errors)
    shown = dict(line.split(maxsplit=1) for line in out.splitlines() if line and not line.startswith(" "))
    assert "torch 2." in shown["versions"] and "lra_ssm 0." in shown["versions"] and "cores" in shown["hardware"]
    assert "GB free" in shown["data"] and "GB free, does not exist yet" in shown["runs"]
    rows = {line.split()[1]: line for line in out.splitlines() if line.startswith("cpu ")}
    assert rows.keys() == ops.scan_backends("cpu").keys()
    assert "not here: " in rows["mamba_ssm"] and rows["eager"].count("off by ") == 2
    assert any(line.startswith("listops/") and "train" in line for line in out.splitlines())
    shutil.copytree(trained[0] / "data", "data")
    assert "all digests are as recorded" in in_process(["doctor", "--verify"], capsys)[1]
    labels = next(Path("data").glob("listops/*/test_labels.npy"))
    labels.write_bytes(labels.read_bytes()[:-8] + bytes(8))
    assert in_process(["doctor"], capsys)[0] == 0
    code, out, _ = in_process(["doctor", "--verify"], capsys)
    assert code == 1 and "does not have its recorded sha256" in out and "all digests" not in out


def test_what_is_wrong_comes_last_and_decides_the_exit_code(tmp_path, monkeypatch, capsys):
    def error(device, backend, discretization):
        if backend == "eager":
            raise RuntimeError("no kernel image is available")
        return {"euler": 1e-7, "zoh": float("nan")}[discretization]

    monkeypatch.setattr(doctor, "_largest_error", error)
    usage = type(shutil.disk_usage("/"))(10, 10, 12_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    command = tmp_path / "lightning"
    command.write_text("#!/bin/sh\nexec lightning_sdk\n")
    monkeypatch.setattr(shutil, "which", lambda name: str(command) if name == "lightning" else None)
    (tmp_path / "data/listops/abc").mkdir(parents=True)
    (tmp_path / "data/listops/abc/manifest.json").write_text("{")
    code, out, _ = in_process(["doctor"], capsys)
    assert code == 1 and "nothing is wrong" not in out
    wrong = [line for line in out.splitlines() if line.startswith("WRONG: ")]
    assert "lightning belongs to another package: use lra-ssm" in wrong[0] and "only 0.01 GB are free" in wrong[1]
    assert "WRONG: S6 by eager on cpu fails: no kernel image is available" in wrong
    assert any(line.startswith("WRONG: B2S6 by reference on cpu is off by nan") for line in wrong)
    assert "manifest.json" in wrong[-1]
