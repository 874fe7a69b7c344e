"""Every script of benchmarks/ at its smallest size, in this process."""

import gc
import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"
GPU = torch.cuda.is_available()


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Nothing looks for garbage in all that other tests have imported."""
    monkeypatch.setattr(gc, "collect", lambda: 0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(script: str, folder: Path, *options: str) -> dict:
    import_module(script).main(["--quick", "--repeats=1", "--threads=1", f"--out={folder}", *options])
    assert os.listdir(folder) == [f"{script}.json"]
    data = json.loads((folder / f"{script}.json").read_text())
    assert data["machine"]["versions"]["torch"] == torch.__version__ and "host" not in data["machine"]["hardware"]
    for row in data["rows"]:
        assert (row["ms"] or 0) > 0 or row["note"].startswith("not measured: "), row
        assert row["error"] is None or row["error"] < 1e-4, row
    return data


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_operators(tmp_path, capsys):
    data = run("operators", tmp_path, "--lengths=32", "--device=cpu")
    assert {(row["comparison"], row["contender"]) for row in data["rows"]} == {
        ("S6 by every way", "cpu"), ("S6 by every way", "reference"), ("N real states each", "S6"),
        ("N real states each", "B2S6"), ("S4D's kernel and convolution", "cpu"),
        ("S4D's kernel and convolution", "eager"),
    }  # fmt: skip
    assert all(row["ratio"][0] > 0 and row["megabytes"] > 0 for row in data["rows"])
    assert all(row["error"] < 1e-5 and row["gradient_error"] < 1e-5 for row in data["rows"])
    assert "; ratios to cpu" in capsys.readouterr().out


def test_steps_and_their_parts(tmp_path):
    configs = FOLDER.parent / "configs"
    files = [configs / f"{name}.yaml" for name in ("lra/listops/b2s6", "lra/listops/s4d", "synthetic/first_token")]
    data = run("steps", tmp_path, f"--config={','.join(map(str, files))}", "--variants=without bias,float32 products")
    rows = {row["contender"]: row for row in data["rows"]}
    assert list(rows)[:4] == ["lra/listops/b2s6", "lra/listops/b2s6, without bias",
                              "lra/listops/b2s6, float32 products", "lra/listops/s4d"]  # fmt: skip
    assert "lra/listops/s4d, without bias" not in rows and "synthetic/first_token" in rows
    assert all(row["extra"]["tokens/s"] > 0 and row["shape"] == {"B": 2, "L": 32} for row in rows.values())
    compared = {name for name, row in rows.items() if "over as it is" in row["extra"]}
    assert compared == {name for name in rows if "," in name}
    profiles = data["profiles, ms"]
    assert {"scan, forward", "scan, backward", "linear layers", "optimizer"} <= profiles["lra/listops/b2s6"].keys()
    assert {"S4D kernel, forward", "convolution, backward"} <= profiles["lra/listops/s4d"].keys()


def test_loaders(tmp_path, monkeypatch):
    loading = import_module("loading")
    for name in loading.TASKS.keys() - {"Retrieval", "sCIFAR"}:
        monkeypatch.delitem(loading.TASKS, name)
    rows = run("loading", tmp_path)["rows"]
    assert len(rows) == 2 * 2 and all(row["extra"]["ms a batch"] > 0 for row in rows)


def test_language_models_beside_their_matrix_products(tmp_path):
    data = run("language", tmp_path, "--sizes=small", "--device=cpu")
    modes = [row["mode"] for row in data["rows"] if row["contender"] == "ours"]
    assert modes == ["forward+backward", "step", "prompt", "8 tokens", "8 tokens"]
    notes = {row["note"] for row in data["rows"] if row["contender"] == "mamba-ssm"}
    assert notes == {"not measured: it needs an NVIDIA GPU"}


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        ("operators", ["--lengths=16,none"], "'none' is not a whole number of at least 1"),
        ("steps", ["--config=missing.yaml"], "--config missing.yaml: No such file"),
        ("steps", ["--variants=fast"], "--variants: choose from float32 products, "),
        ("language", ["--sizes=small,large"], "choose from small, 130m, not large"),
        pytest.param("steps", ["--device=cuda"], "torch sees no GPU", marks=pytest.mark.skipif(GPU, reason="GPU")),
    ],
)
def test_bad_input_is_one_line(script, options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        import_module(script).main(["--quick", *options])
    assert end.value.code and message in f"{end.value.code}{capsys.readouterr().err}"
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.slow
def test_the_gpu_script_goes_on_after_a_part_that_failed(tmp_path):
    """A script of the parts takes too long here, whatever it is."""
    python = tmp_path / "bin/python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\ncase $1 in benchmarks/*) exec sleep 60;; esac\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    env = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "DEVICE": "cpu", "LIMIT": "0.005"}
    done = subprocess.run([FOLDER / "gpu", tmp_path, "wide", "published"], env=env, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    parts = [json.loads(line) for line in (tmp_path / "parts.jsonl").read_text().splitlines()]
    assert [(part["part"], part["exit code"]) for part in parts] == [("wide", 124), ("published", 124)]
    table = done.stdout.splitlines()[-2:]
    assert [line.split()[:2] for line in table] == [["wide", "FAILED"], ["published", "FAILED"]]
    assert all("out of time" in line and line in (tmp_path / "log.txt").read_text() for line in table)
    assert subprocess.run([FOLDER / "gpu", tmp_path, "nothing"], capture_output=True).returncode == 2
