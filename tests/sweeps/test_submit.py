"""`lra-ssm submit` without a Slurm: the folder, the script, what is refused; and `lra-ssm status` of a sweep."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from lra_ssm.cli import config
from lra_ssm.cli import sweeps as command
from lra_ssm.errors import InputError
from lra_ssm.sweeps.submit import SweepFolder, ranges
from tests.runner import TINY, in_process, printed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_bytes(TINY.read_bytes())
    return tmp_path


def write_sweep(**parts):
    content = {"name": "mine", "configs": ["tiny.yaml"], "set": {"data.num_train": 16}, **parts}
    Path("sweep.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def submit(capsys, *options):
    code, out, err = in_process(["submit", "sweep.yaml", *options], capsys)
    return code, out, "\n".join(err)


def refused(capsys, *options):
    code, out, err = submit(capsys, *options)
    assert code == 2 and not out, err
    return err.splitlines()[-1].removeprefix("lra-ssm: error: ")


def folder():
    (found,) = Path("runs/sweeps").iterdir()
    return found


def finish(run, **record):
    """What a run leaves that is trained and tested."""
    run.path.mkdir(parents=True)
    (run.path / "config.yaml").write_text("{model: {}, data: {}}")
    (run.path / "run.json").write_text(json.dumps({"status": "finished", **record}))
    (run.path / "test.json").write_text('{"metrics": {"test/accuracy": 0.75}}')


def stand_in(name, text):
    Path(name).write_text(f"#!/bin/sh\n{text}\n")
    Path(name).chmod(0o755)


# -- the folder and the script -----------------------------------------------------------------------------------------


def test_a_dry_run_prints_the_script_and_checks_each_config_once(here, capsys, monkeypatch):
    read, options = [], config.read_fit_options
    monkeypatch.setattr(config, "read_fit_options", lambda given: read.append(given) or options(given))
    write_sweep(seeds=[0, 1], grid={"model.optimizer.lr": [0.1, 0.2]})
    code, out, err = submit(capsys, "--dry-run", "--sbatch=--partition=gpu -t 60\n--exclude=n7", "--concurrency=3")
    assert code == 0 and "nothing is submitted" in err
    assert len(read) == 2  # once for all seeds
    assert [line.split() for line in err.splitlines()[:5]] == [
        ["run", "experiment", "settings", "state"],
        *(f"{i} tiny seed {seed}, lr {lr} not started".split()
          for i, (seed, lr) in enumerate([(0, 0.1), (0, 0.2), (1, 0.1), (1, 0.2)], 1)),
    ]  # fmt: skip
    at = here / folder()
    options = [line.removeprefix("#SBATCH ") for line in out.splitlines() if line.startswith("#SBATCH")]
    template = [line.removeprefix("#SBATCH ") for line in (ROOT / "slurm/one-gpu.sbatch").read_text().splitlines()
                if line.startswith("#SBATCH") and "job-name" not in line and "output" not in line]  # fmt: skip
    # Paths are absolute; time, memory and GPUs are the template's; the options come last, where sbatch takes them.
    assert options == [
        f"--job-name={at.name}", "--array=1-4%3", f'--output="{at}/logs/%a.log"', f'--chdir="{here}"',
        *template, "--partition=gpu", "-t 60", "--exclude=n7",
    ]  # fmt: skip
    assert "--time=24:00:00" in template and "--mem=64G" in template
    assert out == (at / "submit.sbatch").read_text() and str(at / "runs.txt") in out


def test_a_task_reads_its_own_options_whatever_they_hold(here, capsys):
    """The script is run with a stand-in of srun."""
    name = 'it\'s "a $HOME" & name'
    write_sweep(seeds=[0, 1], experiment=name)
    assert submit(capsys, "--dry-run")[0] == 0
    stand_in("srun", 'shift 3\nprintf "%s\\n" "$@" >> said')
    env = {"PATH": f"{here}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "2"}
    subprocess.run(["bash", folder() / "submit.sbatch"], env=env, check=True)
    options = SweepFolder(folder()).runs[1].options
    assert f"--experiment={name}" in options and "--seed_everything=1" in options
    assert Path("said").read_text().splitlines() == ["fit", *options, "test", *options]


def test_the_folder_keeps_what_was_submitted_and_its_runs_are_those_of_fit(here, capsys):
    write_sweep(seeds=[0, 7], set={"data.num_train": 16, "trainer.max_steps": 1})
    submit(capsys, "--dry-run")
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
    with pytest.raises(
        InputError, match=r"not submitted from here as it is now \(give runs/sweeps/mine-.* for its runs"
    ):
        SweepFolder.find("sweep.yaml")
    submit(capsys, "--dry-run")
    second = SweepFolder.find("sweep.yaml")
    assert second.path != first.path and second.runs[0].path != run.path
    assert "dropout: 0.2" in (first.path / "configs/1-tiny.yaml").read_text()
    assert not list(Path("runs/sweeps").glob(".unfinished*"))


def test_configs_of_one_name_are_both_kept(here, capsys):
    Path("below").mkdir()
    Path("below/tiny.yaml").write_bytes(TINY.read_bytes() + b"# below\n")
    write_sweep(configs=["tiny.yaml", "below/tiny.yaml"])
    assert "run 2 is the same as run 1" in refused(capsys, "--dry-run")
    write_sweep(groups=[{"configs": ["tiny.yaml"]}, {"configs": ["below/tiny.yaml"], "seeds": [7]}])
    submit(capsys, "--dry-run")
    copies = [Path(run.options[0].removeprefix("--config=")) for run in SweepFolder(folder()).runs]
    assert [copy.name for copy in copies] == ["1-tiny.yaml", "2-below-tiny.yaml"]
    assert [copy.read_bytes() for copy in copies] == [Path(n).read_bytes() for n in ("tiny.yaml", "below/tiny.yaml")]


@pytest.mark.parametrize("name", ["one-gpu", "one-node", "several-nodes", "cpu"])
def test_templates_are_shell_for_one_run_and_for_an_array(name, here, capsys):
    file = ROOT / f"slurm/{name}.sbatch"
    write_sweep(seeds=[0, 1])
    code, out, _ = submit(capsys, "--dry-run", f"--template={name}")
    assert code == 0
    for script in (file.read_text(), out):
        assert subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True).stderr == ""
    stand_in("srun", 'echo "$@" >> said')
    env = {"PATH": f"{here}:/usr/bin:/bin", "SLURM_NTASKS_PER_NODE": "8", "SLURM_NNODES": "2"}
    subprocess.run(["bash", file, "--config=x", "--a=b c"], env=env, check=True)
    fit, test = Path("said").read_text().splitlines()
    assert "-m lra_ssm fit --config=x --a=b c" in fit and "-m lra_ssm test --config=x --a=b c" in test
    several = name in ("one-node", "several-nodes")
    assert ("--kill-on-bad-exit=1" in fit and fit.endswith("--trainer.devices=8 --trainer.num_nodes=2")) == several
    assert test.endswith("--trainer.devices=1 --trainer.num_nodes=1 --trainer.strategy=auto") == several


def test_a_template_of_ones_own(here, capsys):
    write_sweep()
    Path("my.sbatch").write_text('#!/bin/bash\n#SBATCH --time=1:00\nmodule load cuda\nsrun mine "$@"\n')
    code, out, _ = submit(capsys, "--dry-run", "--template=my.sbatch", "--sbatch=--time=2:00")
    assert code == 0 and out.endswith('module load cuda\nsrun mine "$@"\n')
    assert "#SBATCH --time=2:00\n" in out and "--time=1:00" not in out


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ({"set": {"model.optimizer.rl": 1}}, [], "sweep sweep.yaml, run 1 (--model.optimizer.rl=1 --runs_dir=runs): "),
        ({"set": {"trainer.max_epochs": "x"}}, [], "run 1 (--trainer.max_epochs=x "),
        ({}, ["--local=0"], "--local"),
        ({}, ["--template=none.sbatch"], "no template none.sbatch: not a file and not one of ours; "),
        ({}, ["--partition=gpu"], "unknown option --partition"),
    ],
)
def test_bad_input_leaves_nothing(here, capsys, parts, options, message):
    write_sweep(**parts)
    assert message in refused(capsys, "--dry-run", *options)
    assert not Path("runs").exists()


def test_bad_options_of_sbatch(here, capsys):
    write_sweep()
    Path("my.sbatch").write_text("srun mine\n")
    for option, message in (("--template=my.sbatch", "my.sbatch has no #SBATCH line"),
                            ("--sbatch=partition=gpu", "an option of sbatch begins with -"),
                            ("--sbatch=--array=1-3", "--array=1-3 is set by the sweep")):  # fmt: skip
        assert message in refused(capsys, "--dry-run", option)


# -- what is queued ----------------------------------------------------------------------------------------------------


def test_what_is_done_is_not_run_again(here, capsys, monkeypatch):
    monkeypatch.setattr(command, "run_local", lambda *_: pytest.fail("it trains"))
    write_sweep(seeds=[0, 1])
    code, out, err = submit(capsys, "--local=2", "--dry-run")
    assert code == 0 and out == "" and "2 runs in " in err and not Path("runs/tiny").exists()
    for run in SweepFolder.find("sweep.yaml").runs:
        finish(run)
        code, out, err = submit(capsys, "--dry-run")
        assert code == 0 and ("--array=2\n" in out if run.index == 1 else not out and "nothing is left to run" in err)


def test_runs_without_data_are_named_and_not_queued(here, capsys, monkeypatch):
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")
    stand_in("sbatch", "echo 7")
    groups = [{}, {"set": {"data.source": "lra", "data.root": "elsewhere"}, "experiment": "lra/x"},
              {"configs": ["lra/listops/s4d"], "seeds": [0]}]  # fmt: skip
    Path("elsewhere").mkdir()
    write_sweep(seeds=[0, 1], groups=groups, set={})
    code, out, err = submit(capsys)
    told = " ".join(err.split())
    assert code == 1 and out.startswith("job 7: 3 runs; ")
    assert "not submitted: 3-4: their data is missing; lra-ssm prepare --config=" in told
    assert "--data.source=lra --data.root=elsewhere" in told
    assert "note: 5: data.source is generated, the published figure has lra" in told
    assert "--array=1-2,5\n" in (folder() / "submit.sbatch").read_text()


def test_a_sweep_is_submitted_once_and_resumed_without_what_is_queued(here, capsys, monkeypatch):
    write_sweep(seeds=[0, 1, 2, 3])
    monkeypatch.setenv("PATH", "/nothing")
    assert refused(capsys).startswith("there is no sbatch here: submit from a machine of the cluster, or use --local N")
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")
    stand_in("sbatch", 'echo "sbatch: error: Batch job submission failed: no such partition" >&2; exit 1')
    assert refused(capsys) == "sbatch refuses: Batch job submission failed: no such partition"
    at = here / folder()
    assert not (at / "jobs.txt").exists()
    stand_in("sbatch", 'echo "$@" >> asked; echo "12;cluster"')
    stand_in("squeue", 'echo "$@" > asked-squeue\necho "2|RUNNING|None"\necho "4|PENDING|Resources"')
    code, out, _ = submit(capsys)
    assert code == 0 and out == f"job 12: 4 runs; lra-ssm status {at}\n"
    assert Path("asked").read_text() == f"--parsable {at}/submit.sbatch\n"
    assert (at / "jobs.txt").read_text().endswith(" job 12: runs 1-4\n")
    assert "was submitted before: --resume submits" in refused(capsys)
    finish(SweepFolder.find("sweep.yaml").runs[2])
    assert in_process(["submit", str(at), "--resume", "--sbatch=--mem=2G"], capsys)[0] == 0
    again = (at / "submit.sbatch").read_text()
    assert "--array=1\n" in again and "--mem=2G\n" in again and "--mem=64G" not in again
    assert Path("asked-squeue").read_text().split()[:4] == ["--noheader", "--array", "--me", f"--name={at.name}"]


# -- status of a sweep -------------------------------------------------------------------------------------------------


def leave(run, status, *, step=40, **record):
    run.path.mkdir(parents=True)
    (run.path / "config.yaml").write_text("{model: {}, checkpoint: {monitor: val/accuracy}}")
    starts = [{"time": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T00:10:00+00:00"}]
    (run.path / "run.json").write_text(json.dumps({"status": status, "starts": starts, **record}))
    (run.path / "progress.json").write_text(json.dumps({"step": step, "of": 100, "rate": 2.0}))
    (run.path / "metrics.csv").write_text("step,epoch,val/accuracy\n19,0,0.5\n39,0,0.25\n39,0,")


def test_status_says_where_each_run_stands(here, capsys, monkeypatch):
    from filelock import FileLock

    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")
    stand_in("sbatch", "echo 7")
    write_sweep(seeds=[*range(1, 9)])
    submit(capsys)
    runs = SweepFolder.find("sweep.yaml").runs
    finish(runs[0])
    leave(runs[1], "started")
    leave(runs[2], "failed", reason="the loss is nan")
    leave(runs[3], "interrupted")
    runs[3].log.write_text("== attempt at 2026\nlra-ssm: stopped by SIGTERM at step 40, saved\n")
    runs[4].log.write_text(
        "== attempt 1\nfirst\n== attempt 2\nlra-ssm: error: no data root\nsrun: error: 2\n"
    )  # it ended before it had a directory
    leave(runs[7], "started")
    (runs[7].path / ".holder.json").write_text(json.dumps({"host": os.uname().nodename}))
    stand_in("squeue", 'echo "6|PENDING|Resources"\necho "7|RUNNING|None"')
    with FileLock(runs[1].path / ".lock"):
        out = printed(["status", "sweep.yaml"], capsys).splitlines()
    assert [line.split()[4] for line in out[1:9]] == [
        "done", "running", "failed", "stopped", "failed", "waiting", "running", "killed"
    ]  # fmt: skip
    assert out[0].split() == ["run", "experiment", "settings", "state", "step", "left", "validation", "test", "time"]
    assert out[2].split()[4:10] == ["running", "40/100", "30", "s", "…", "25.00"] and out[1].endswith("75.00 %")
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
    code, _, err = in_process(["status", "sweep.yaml"], capsys)
    assert code == 2 and err[0].endswith("sweep sweep.yaml was not submitted from here: lra-ssm submit sweep.yaml")
    Path("x").mkdir()
    with pytest.raises(InputError, match="x is not a sweep's folder"):
        SweepFolder(Path("x"))
    submit(capsys, "--dry-run")
    at = here / folder()
    (run,) = SweepFolder.find("sweep.yaml").runs
    expected = run.path.resolve()
    for place, given in ((".", "."), ("..", at.name), ("../..", f"sweeps/{at.name}")):
        monkeypatch.chdir(at / place)
        (run,) = SweepFolder.find(given).runs
        assert run.path.resolve() == expected


def test_numbers_as_slurm_has_them():
    assert ranges([1]) == "1" and ranges([7, 1, 2, 3, 5]) == "1-3,5,7"
