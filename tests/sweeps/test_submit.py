"""`lra-ssm submit` without a Slurm: the folder, the script, what is refused; and `lra-ssm status` of a sweep."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from lra_ssm.cli import config
from lra_ssm.errors import InputError
from lra_ssm.sweeps.submit import SweepFolder
from tests.runner import TINY, in_process, printed, refused

ROOT = Path(__file__).parents[2]
SWEEP, DRY = ["submit", "sweep.yaml"], ["submit", "sweep.yaml", "--dry-run"]


@pytest.fixture(autouse=True)
def _programs(here, monkeypatch):
    """The working folder has a config, and programs are looked for in it."""
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")
    Path("tiny.yaml").write_bytes(TINY.read_bytes())


def write_sweep(**parts):
    content = {"name": "mine", "configs": ["tiny.yaml"], "set": {"data.num_train": 16}, **parts}
    Path("sweep.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def folder():
    (found,) = Path("runs/sweeps").iterdir()
    return found


def stand_in(name, text):
    Path(name).write_text(f"#!/bin/sh\n{text}\n")
    Path(name).chmod(0o755)


TESTED = ("finished", {"test/accuracy": 0.75})


def leave(run, status, score=None, **record):
    """What a run leaves that was trained, and tested if it has a score."""
    run.path.mkdir(parents=True)
    starts = [{"time": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T00:10:00+00:00"}]
    files = {
        "config.yaml": {"model": {}, "data": {}, "checkpoint": {"monitor": "val/accuracy"}},
        "run.json": {"status": status, "starts": starts, **record},
        "progress.json": {"step": 40, "of": 100, "rate": 2.0},
    }
    for name, content in files.items() if score is None else {**files, "test.json": {"metrics": score}}.items():
        (run.path / name).write_text(json.dumps(content))
    (run.path / "metrics.csv").write_text("step,epoch,val/accuracy\n19,0,0.5\n39,0,0.25\n39,0,")


# -- the folder and the script -----------------------------------------------------------------------------------------

TEMPLATE = """#!/bin/bash
#SBATCH --job-name=mine
#SBATCH --time=1:00
#SBATCH --mem=64G
module load cuda
srun mine "$@"
"""


def test_a_dry_run_prints_the_script_and_checks_each_config_once(here, capsys, monkeypatch):
    read, options = [], config.read_fit_options
    monkeypatch.setattr(config, "read_fit_options", lambda given: read.append(given) or options(given))
    write_sweep(seeds=[0, 1], grid={"model.optimizer.lr": [0.1, 0.2]})
    Path("my.sbatch").write_text(TEMPLATE)
    sbatch = "--sbatch=--partition=gpu -t 60\n--exclude=n7 --time=2:00"
    code, out, err = in_process([*DRY, "--template=my.sbatch", sbatch, "--concurrency=3"], capsys)
    assert code == 0 and "nothing is submitted" in err[-1]
    assert len(read) == 2  # once for all seeds
    assert [line.split() for line in err[:5]] == [
        ["run", "experiment", "settings", "state"],
        *(f"{i} tiny seed {seed}, lr {lr} not started".split()
          for i, (seed, lr) in enumerate([(0, 0.1), (0, 0.2), (1, 0.1), (1, 0.2)], 1)),
    ]  # fmt: skip
    at = here / folder()
    # Paths are absolute. sbatch takes the last of two values: the user's before the template's, and ours before both.
    assert [line.removeprefix("#SBATCH ") for line in out.splitlines() if line.startswith("#SBATCH")] == [
        "--job-name=mine", "--time=1:00", "--mem=64G", "--partition=gpu -t 60 --exclude=n7 --time=2:00",
        f"--job-name={at.name}", "--array=1-4%3", f'--output="{at}/logs/%a.log"', f'--chdir="{here}"',
    ]  # fmt: skip
    assert out.endswith('module load cuda\nsrun mine "$@"\n')
    assert out == (at / "submit.sbatch").read_text() and str(at / "runs.txt") in out


@pytest.mark.parametrize("name", ["one-gpu", "one-node", "several-nodes", "cpu"])
def test_templates_run_alone_and_as_a_task_that_reads_its_own_options(name, here, capsys):
    """With a stand-in of srun, and an option that a shell could take apart."""
    experiment = 'it\'s "a $HOME" & name'
    write_sweep(seeds=[0, 1], experiment=experiment)
    printed([*DRY, f"--template={name}"], capsys)
    stand_in("srun", 'printf "%s\\n" "$@" >> given')
    options = SweepFolder(folder()).runs[1].options
    assert f"--experiment={experiment}" in options and "--seed_everything=1" in options
    fit, test = (["python", "-m", "lra_ssm", command, *options] for command in ("fit", "test"))
    if name in ("one-node", "several-nodes"):
        fit = ["--kill-on-bad-exit=1", *fit, "--trainer.devices=8", "--trainer.num_nodes=2"]
        test = ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1", *test, "--trainer.devices=1", "--trainer.num_nodes=1",
                "--trainer.strategy=auto"]  # fmt: skip
    slurm = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_NTASKS_PER_NODE": "8", "SLURM_NNODES": "2"}
    for script in ([folder() / "submit.sbatch"], [ROOT / f"slurm/{name}.sbatch", *options]):
        Path("given").write_text("")
        subprocess.run(["bash", *script], env={"PATH": os.environ["PATH"], **slurm}, check=True)
        assert Path("given").read_text().splitlines() == [*fit, *test]


def test_the_folder_keeps_what_was_submitted_and_its_runs_are_those_of_fit(here, capsys):
    write_sweep(seeds=[0, 7], set={"data.num_train": 16, "trainer.max_steps": 1})
    printed(DRY, capsys)
    first = SweepFolder.find("sweep.yaml")
    run = first.runs[0]
    assert run.options[0] == f"--config={first.path}/configs/1-tiny.yaml" and run.changes["seed_everything"] == "0"
    assert run.path.parent == Path("runs/tiny") and run.record.status == "not started"
    lines = [shlex.split(line) for line in (first.path / "runs.txt").read_text().splitlines()]
    assert lines == [[str(run.path.relative_to("runs")), *run.options] for run in first.runs]
    # Where its fits go, and what results say of those that have not begun.
    for name in ("fit", "test"):
        printed([name, *run.options], capsys)
    out = printed(["results", "sweep.yaml"], capsys)
    assert out.splitlines()[1].split()[:2] == ["tiny", "tiny"]
    assert f"not started: tiny/{first.runs[1].path.name}" in out
    assert printed(["results", str(first.path)], capsys) == out
    # An edited config is another sweep; the folder of the first one stays as it was.
    Path("tiny.yaml").write_text(Path("tiny.yaml").read_text().replace("dropout: 0.2", "dropout: 0.3"))
    with pytest.raises(InputError, match=r"not submitted from here as it is now \(give runs/sweeps/mine-.* for its"):
        SweepFolder.find("sweep.yaml")
    printed(DRY, capsys)
    second = SweepFolder.find("sweep.yaml")
    assert second.path != first.path and second.runs[0].path != run.path
    assert "dropout: 0.2" in (first.path / "configs/1-tiny.yaml").read_text()
    assert not list(Path("runs/sweeps").glob(".unfinished*"))


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ({"set": {"model.optimizer.rl": 1}}, [], "sweep sweep.yaml, run 1 (--model.optimizer.rl=1 --runs_dir=runs): "),
        ({"configs": ["tiny.yaml", "tiny.yaml"]}, [], "run 2 is the same as run 1"),
        ({}, ["--local=0"], "--local"),
        ({}, ["--partition=gpu"], "unknown option --partition"),
        ({}, ["--template=none.sbatch"], "no template none.sbatch: not a file and not one of ours; "),
        ({}, ["--template=tiny.yaml"], "tiny.yaml has no #SBATCH line"),
        ({}, ["--sbatch=partition=gpu"], "an option of sbatch begins with -"),
        ({}, ["--sbatch=--array=1-3"], "--array is set by the sweep"),
    ],
)
def test_bad_input_leaves_nothing(capsys, parts, options, message):
    write_sweep(**parts)
    assert message in refused([*DRY, *options], capsys)
    assert not list(Path().rglob("submit.sbatch"))
    of_script = "SBATCH" in message or "--sbatch" in str(options)  # which is written last
    assert of_script or not Path("runs").exists()


# -- what is queued ----------------------------------------------------------------------------------------------------


def test_runs_without_data_are_named_and_not_queued(capsys):
    stand_in("sbatch", "echo 7")
    groups = [{}, {"set": {"data.source": "lra", "data.root": "elsewhere"}, "experiment": "lra/x"},
              {"configs": ["lra/listops/s4d"], "seeds": [0]}]  # fmt: skip
    Path("elsewhere").mkdir()
    write_sweep(seeds=[0, 1], groups=groups, set={})
    code, out, err = in_process(SWEEP, capsys)
    lines = " ".join(" ".join(err).split())
    assert code == 1 and out.startswith("job 7: 3 runs; ")
    assert "not submitted: 3-4: their data is missing; lra-ssm prepare --config=" in lines
    assert "--data.source=lra --data.root=elsewhere" in lines
    assert "note: 5: data.source is generated, the published figure has lra" in lines
    assert "--array=1-2,5\n" in (folder() / "submit.sbatch").read_text()


def test_a_sweep_is_submitted_once_and_resumed_without_what_is_queued_or_done(here, capsys, monkeypatch):
    write_sweep(seeds=[0, 1, 2, 3])
    with monkeypatch.context() as nowhere:
        nowhere.setenv("PATH", "/nothing")
        assert refused(SWEEP, capsys).startswith("there is no sbatch here: submit from a machine of the cluster, or ")
    stand_in("sbatch", 'echo "sbatch: error: Batch job submission failed: no such partition" >&2; exit 1')
    assert refused(SWEEP, capsys) == "sbatch refuses: Batch job submission failed: no such partition"
    at = here / folder()
    assert not (at / "jobs.txt").exists()
    stand_in("sbatch", 'echo "$@" >> asked; echo "12;cluster"')
    stand_in("squeue", 'echo "$@" > asked-squeue\necho "2|RUNNING|None"\necho "4|PENDING|Resources"')
    assert printed(SWEEP, capsys) == f"job 12: 4 runs; lra-ssm status {at}\n"
    assert Path("asked").read_text() == f"--parsable {at}/submit.sbatch\n"
    assert (at / "jobs.txt").read_text().endswith(" job 12: runs 1-4\n")
    assert "was submitted before: --resume submits" in refused(SWEEP, capsys)
    first, second, third, fourth = SweepFolder.find("sweep.yaml").runs
    leave(third, *TESTED)
    printed(["submit", str(at), "--resume", "--sbatch=--mem=2G"], capsys)
    again = (at / "submit.sbatch").read_text()
    assert "--array=1\n" in again and again.index("--mem=64G\n") < again.index("--mem=2G\n")
    assert Path("asked-squeue").read_text().split()[:4] == ["--noheader", "--array", "--me", f"--name={at.name}"]
    assert printed([*DRY, "--local=2"], capsys) == "" and not first.path.exists()
    for run in (first, second, fourth):
        leave(run, *TESTED)
    assert "nothing is left to run" in in_process([*SWEEP, "--resume"], capsys)[2][-1]


# -- status of a sweep -------------------------------------------------------------------------------------------------


def test_status_says_where_each_run_stands(capsys):
    stand_in("sbatch", "echo 7")
    write_sweep(seeds=[*range(1, 9)])
    printed(SWEEP, capsys)
    runs = SweepFolder.find("sweep.yaml").runs
    leave(runs[0], *TESTED)
    leave(runs[1], "started")
    leave(runs[2], "failed", reason="the loss is nan")
    leave(runs[3], "interrupted")
    runs[3].log.write_text("== attempt at 2026\nlra-ssm: stopped by SIGTERM at step 40, saved\n")
    last = "lra-ssm: error: no data root\nsrun: error: 2\n"  # it ended before it had a directory
    runs[4].log.write_text(f"== attempt 1\nfirst\n== attempt 2\n{last}")
    leave(runs[7], "started")
    (runs[7].path / ".holder.json").write_text(json.dumps({"host": os.uname().nodename}))
    stand_in("squeue", 'echo "6|PENDING|Resources"\necho "7|RUNNING|None"')
    with FileLock(runs[1].path / ".lock"):
        out = printed(["status", "sweep.yaml"], capsys).splitlines()
    states = ["done", "running", "failed", "stopped", "failed", "waiting", "running", "killed"]
    assert [line.split()[4] for line in out[1:9]] == states
    assert out[0].split() == ["run", "experiment", "settings", "state", "step", "left", "validation", "test", "time"]
    assert out[2].split()[4:10] == ["running", "40/100", "30", "s", "…", "25.00"] and "75.00 %" in out[1]
    assert out[9:] == [
        "3 failed: the loss is nan", "4 stopped by SIGTERM at step 40, saved", "5 failed: no data root",
        "6 waiting: Resources", "8 in all: 1 done, 2 running, 2 failed, 1 stopped, 1 waiting, 1 killed",
    ]  # fmt: skip
    stand_in("squeue", "echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1")
    code, out, err = in_process(["status", str(folder())], capsys)
    assert code == 0 and "not started" in out
    assert err == ["squeue refuses: Unable to contact slurm controller; the table is without it"]


def test_a_folder_is_found_from_anywhere_or_named_as_missing(here, capsys, monkeypatch):
    write_sweep()
    line = refused(["status", "sweep.yaml"], capsys)
    assert line.endswith("sweep sweep.yaml was not submitted from here: lra-ssm submit sweep.yaml")
    with pytest.raises(InputError, match="x is not a sweep's folder"):
        SweepFolder(Path("x"))
    printed(DRY, capsys)
    at = here / folder()
    (expected,) = SweepFolder.find("sweep.yaml").runs
    for place, given in ((".", "."), ("..", at.name), ("../..", f"sweeps/{at.name}")):
        monkeypatch.chdir(at / place)
        (run,) = SweepFolder.find(given).runs
        assert run.path.resolve() == here / expected.path
