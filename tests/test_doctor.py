"""`lra-ssm doctor`: what it says of this installation and machine, and what it finds wrong, with stand-ins."""

import os
import shutil
import socket
import sys
import time
from pathlib import Path

import pytest

from lra_ssm.cli import doctor, doctor_checks, doctor_operators
from lra_ssm.cli.doctor_checks import cache, command, gpus, hub, requirements, slurm, space, wandb
from lra_ssm.cli.doctor_operators import Check
from tests import local_server
from tests.runner import free_port, in_process, run


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A PATH with one folder of ours, an empty folder to work in, and no Hub to wait for."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("LRA_SSM_DATA", "WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "HF_ENDPOINT", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return tools


# --- the command ---


def test_it_shows_everything_and_nothing_is_wrong(bare, monkeypatch, capsys):
    monkeypatch.setattr(doctor_operators, "_SECONDS", 1e-3)
    for name in ("lightning", "lra-ssm"):
        script(bare / name, f"#!{sys.executable}\n{OURS}")
    code, out, err = in_process(["doctor"], capsys)
    assert code == 0 and out.endswith("nothing is wrong\n") and "Traceback" not in "".join(err)
    shown = dict(line.split(maxsplit=1) for line in out.splitlines() if line and not line.startswith(" "))
    assert "torch 2." in shown["versions"] and "lra_ssm 0." in shown["versions"]
    assert shown["lightning"] == f"{bare / 'lightning'}, ours" and shown["lra-ssm"] == f"{bare / 'lra-ssm'}, ours"
    assert "GB free" in shown["data"] and "GB free" in shown["runs"] and "GB free" in shown["cache"]
    assert shown["slurm"] == "no Slurm here" and "offline" in shown["hub"] and "not logged in" in shown["wandb"]
    rows = [line for line in out.splitlines() if line.startswith("  ") and " tokens/s, off by " in line]
    assert len(rows) >= 14 and len({line.index("tokens/s") for line in rows}) == 1
    assert "mamba_ssm  does not: runs tensors on a CUDA device only" in out


def test_what_is_wrong_comes_last_and_decides_the_exit_code(bare, monkeypatch, capsys):
    found = [
        Check("scan", "good", error=1e-7, tokens_per_s=12345.6),
        Check("scan", "bad", error=0.25, tokens_per_s=1.0),
        Check("scan", "dead", failure="RuntimeError: no kernel image is available"),
    ]
    monkeypatch.setattr(
        doctor_operators, "check_operators", lambda device, begun: (begun(c.operator, c.backend) or c for c in found)
    )
    script(bare / "lightning", "#!/bin/sh\nexec lightning_sdk\n")
    code, out, _ = in_process(["doctor"], capsys)
    assert code == 1 and "runs,      12,346 tokens/s" in out and "nothing is wrong" not in out
    last = out[out.index("\nWRONG:\n") :].splitlines()[2:]
    assert len(last) == 3 and all(line.startswith("  ") for line in last)
    assert "not lra_ssm's: another package has taken the name; use " in last[0] and "-m lra_ssm" in last[0]
    assert "scan by bad on cpu is off by 2.5e-01 of the largest value, more than 0.0001" in last[1]
    assert "scan by dead on cpu fails (RuntimeError: no kernel image is available)" in last[2]


@pytest.mark.slow
def test_without_the_compiled_kernels_it_goes_on(tmp_path):
    """In a home that is a file, so that no cache can be written either."""
    (tmp_path / "home").write_text("")
    places = {"HOME": str(tmp_path / "home"), "LRA_SSM_CACHE": "", "XDG_CACHE_HOME": "", "HF_HUB_OFFLINE": "1"}
    env = {**places, "PATH": str(tmp_path), "CXX": "no-such-compiler"}
    done = run(["doctor", f"--root={tmp_path / 'data'}"], tmp_path, env)
    assert done.code == 0 and "nothing is wrong" in done.out, done.out + done.err
    assert "no C++ compiler was found (CXX=no-such-compiler): " in done.out and "cpu        does not: " in done.out
    assert "order of magnitude slower" in done.out
    assert "every process compiles the CPU kernels anew" in done.out and "set LRA_SSM_CACHE" in done.out
    assert "eager      runs, " in done.out and "selective_scan, S6     cpu" not in done.out


# --- the commands on the PATH ---


OURS = "import sys\nfrom lra_ssm.cli import main\nsys.exit(main())\n"
SHELL = f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n{OURS}"  # of a long path, or one with blanks
TAKEN = "another package has taken the name"


@pytest.mark.parametrize(
    ("text", "shown", "wrong"),
    [
        (f"#!{sys.executable}\n{OURS}", "ours", None),
        (SHELL, "ours", None),
        (f"#!/other/bin/python\n{OURS}", "of another installation", "first on the PATH"),
        ("#!/usr/bin/python\nfrom lightning_sdk.cli.entrypoint import main_cli\n", "not ours", TAKEN),
        ("\x7fELF", "not ours", TAKEN),
        ("", "not ours", "pip install --force-reinstall --no-deps lra-ssm"),
    ],
)
def test_whose_a_command_is(bare, text, shown, wrong):
    script(bare / "lightning", text)
    found = command("lightning")
    assert found.text == f"{bare / 'lightning'}, {shown}" and len(found.wrong) == (wrong is not None)
    assert wrong is None or wrong in found.wrong[0] and str(bare / "lightning") in found.wrong[0]


def test_a_command_that_is_not_there(bare):
    assert "not on the PATH" in command("lightning").text and "-m lra_ssm is the same" in command("lightning").notes[0]


# --- Slurm ---


def test_slurms_partitions_in_one_line(bare):
    assert slurm().text == "no Slurm here"
    script(bare / "sbatch", "#!/bin/sh\necho slurm 23.11.4\n")
    lines = ["gpu* (8 nodes, 2-00:00:00, gpu:a100:4, up)", "old (3 nodes, infinite, (null), down)"]
    script(bare / "sinfo", "#!/bin/sh\n" + "\n".join(f"echo '{line}'" for line in lines))
    partitions = "gpu* (8 nodes, 2-00:00:00, gpu:a100:4), old (3 nodes, infinite, down)"
    assert slurm() == doctor_checks.Finding(f"slurm 23.11.4; partitions {partitions}")
    script(bare / "sinfo", "#!/bin/sh\n" + "\n".join(f"echo 'p{i} (1 nodes, 1:00, (null), up)'" for i in range(1, 11)))
    assert slurm().text.endswith("p8 (1 nodes, 1:00) and 2 more")


@pytest.mark.parametrize(
    ("sinfo", "reason"),
    [
        (
            "echo sinfo: error: looking >&2\necho sinfo: fatal: no configuration >&2\nexit 1",
            "sinfo fails: looking fatal: no conf",
        ),
        ("exit 3", "sinfo fails: exit code 3"),
        pytest.param(f"exec {shutil.which('sleep')} 20", "sinfo did not answer within 3 s", marks=pytest.mark.slow),
        (None, "sinfo cannot be run: No such file"),
    ],
)
def test_half_a_slurm_is_a_note(bare, sinfo, reason):
    script(bare / "sbatch", "#!/bin/sh\necho slurm 23.11.4\n")
    if sinfo is not None:
        script(bare / "sinfo", f"#!/bin/sh\n{sinfo}\n")
    start = time.monotonic()
    found = slurm()
    assert not found.wrong and reason in found.notes[0] and "submit --local does not" in found.notes[0]
    assert time.monotonic() - start < 10


# --- the Hub, wandb ---


def test_the_hub(bare, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecret")
    text = hub().text
    assert "a token is set" in text and "offline (HF_HUB_OFFLINE)" in text and "secret" not in text
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint := f"http://127.0.0.1:{free_port()}")
    found = hub()
    assert "cannot be reached" in found.text and not found.wrong
    assert endpoint in found.notes[0] and "HF_HUB_OFFLINE=1 says not to ask" in found.notes[0]
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint.replace("//", "//user:secret@"))
    found = hub()
    assert "secret" not in found.text + found.wrong[0]
    assert not found.notes and "which is what HF_ENDPOINT says: correct it" in found.wrong[0]


def test_a_hub_that_answers_and_one_that_does_not(bare, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with local_server.serving(Answering, None) as url:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        assert hub().text.endswith(", answers")
    monkeypatch.setattr(doctor_checks, "_HUB_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:  # it takes the connection, and says nothing
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert "cannot be reached" in hub().text


class Answering(local_server.Handler):
    def do_HEAD(self):
        self.send(200, b"", {})


def test_wandb_knows_an_account_and_shows_no_key(bare, monkeypatch, tmp_path):
    assert wandb().text.endswith("not logged in")
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password secret\n")
    assert wandb().text.endswith(", logged in") and "secret" not in wandb().text
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert wandb().text.endswith("not logged in")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert wandb().text.endswith("logged in (WANDB_API_KEY), WANDB_MODE=offline")

    def missing(name):
        raise doctor_checks.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor_checks.metadata, "version", missing)
    assert wandb().text == "not installed"


# --- space, versions, GPUs ---


def test_space(tmp_path, monkeypatch):
    found = space("the data root", tmp_path / "a/b")
    assert "GB free, not there yet" in found.text and not found.wrong and not (tmp_path / "a").exists()
    assert "not there yet" not in space("the data root", tmp_path).text
    usage = type(shutil.disk_usage("/"))(10, 10, 12_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    (said,) = space("the data root", tmp_path).wrong
    assert said == f"the data root {tmp_path}: 0.01 GB are free: make room, or choose another"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o555)
    assert "cannot be written" in space("the data root", tmp_path / "data").text


def test_the_cache_is_the_first_folder_that_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    blocked = tmp_path / "file/cache"
    assert str(tmp_path / "cache") in cache([blocked, tmp_path / "cache"]).text
    (said,) = cache([blocked]).notes
    assert f"{blocked} cannot be written: " in said and "LRA_SSM_CACHE" in said


def test_installed_versions_are_compared_with_what_is_asked_for(monkeypatch):
    assert requirements() == doctor_checks.Finding("")
    version = doctor_checks.metadata.version
    others = {"torch": "1.13.0", "lightning": "2.6.2"}
    monkeypatch.setattr(doctor_checks.metadata, "version", lambda name: others.get(name) or version(name))
    wrong = requirements().wrong
    assert len(wrong) == 2 and "torch 1.13.0 is installed" in wrong[0] and "lightning 2.6.2" in wrong[1]
    assert "pip install 'torch" in wrong[0] and "pip install 'lightning" in wrong[1]


def test_a_gpu_that_torch_does_not_see(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.version.cuda", None)
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == "/proc/driver/nvidia/version" or exists(path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (said,) = gpus().wrong
    assert "was built without CUDA and finds no GPU: install torch for this driver" in said
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # somebody wanted it so
    assert gpus() == doctor_checks.Finding("no GPU (CUDA_VISIBLE_DEVICES=)")


def test_a_gpu_without_a_fast_scan_is_wrong(bare, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_devices", lambda: ["cuda"])
    monkeypatch.setattr(
        doctor_operators,
        "check_operators",
        lambda device, begun: [Check("scans", "triton", refused="is not installed")],
    )
    code, out, _ = in_process(["doctor"], capsys)
    assert code == 1 and "no fast scan runs on the GPU: pip install triton" in out and "does not: is not inst" in out
