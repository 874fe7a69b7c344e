"""`lra-ssm doctor`: what it prints of this installation and machine, and what it finds wrong, with stand-ins."""

import shutil
from pathlib import Path

import pytest

from lra_ssm import ops
from lra_ssm.cli import doctor
from tests.runner import in_process


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRA_SSM_DATA", raising=False)
    return tmp_path


def test_it_shows_everything_and_nothing_is_wrong(here, trained, capsys):
    code, out, err = in_process(["doctor", f"--root={trained[0] / 'data'}"], capsys)
    assert code == 0 and out.endswith("nothing is wrong\n") and "Traceback" not in "".join(err)
    shown = dict(line.split(maxsplit=1) for line in out.splitlines() if line and not line.startswith(" "))
    assert "torch 2." in shown["versions"] and "lra_ssm 0." in shown["versions"] and "cores" in shown["hardware"]
    assert "GB free" in shown["data"] and "GB free, does not exist yet" in shown["runs"]
    rows = {line.split()[1]: line for line in out.splitlines() if line.startswith("cpu ")}
    assert rows.keys() == ops.scan_backends("cpu").keys()
    assert "not here: " in rows["mamba_ssm"] and rows["eager"].count("off by ") == 2
    assert any(line.startswith("listops/") and "train" in line and "examples" in line for line in out.splitlines())


def test_what_is_wrong_comes_last_and_decides_the_exit_code(here, monkeypatch, capsys):
    def error(device, backend, discretization):
        if backend == "eager":
            raise RuntimeError("no kernel image is available")
        return {"euler": 1e-7, "zoh": float("nan")}[discretization]

    monkeypatch.setattr(doctor, "_largest_error", error)
    usage = type(shutil.disk_usage("/"))(10, 10, 12_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    command = here / "lightning"
    command.write_text("#!/bin/sh\nexec lightning_sdk\n")
    monkeypatch.setattr(shutil, "which", lambda name: str(command) if name == "lightning" else None)
    code, out, _ = in_process(["doctor"], capsys)
    assert code == 1 and "nothing is wrong" not in out
    wrong = [line for line in out.splitlines() if line.startswith("WRONG: ")]
    assert "lightning belongs to another package: use lra-ssm" in wrong[0] and "only 0.01 GB are free" in wrong[1]
    assert "WRONG: S6 by eager on cpu fails: no kernel image is available" in wrong
    assert any(line.startswith("WRONG: B2S6 by reference on cpu is off by nan") for line in wrong)


def test_a_damaged_folder_of_data_is_named(here, capsys):
    folder = Path("data/listops/abc")
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{")
    code, out, _ = in_process(["doctor"], capsys)
    assert code == 1 and "WRONG: " in out and "manifest.json" in out


def test_digests_are_compared_if_asked_for(here, trained, capsys):
    shutil.copytree(trained[0] / "data", "data")
    assert "all digests of 1 prepared folders are as recorded" in in_process(["doctor", "--verify"], capsys)[1]
    labels = next(Path("data").glob("listops/*/test_labels.npy"))
    labels.write_bytes(labels.read_bytes()[:-8] + bytes(8))
    assert in_process(["doctor"], capsys)[0] == 0
    code, out, _ = in_process(["doctor", "--verify"], capsys)
    assert code == 1 and "does not have its recorded sha256" in out and "all digests" not in out
