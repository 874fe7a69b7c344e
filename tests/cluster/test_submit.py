"""`lra-ssm submit` without a Slurm: folder, scripts, what is refused; and `prepare --config`."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from lra_ssm.cluster.folder import SweepFolder
from lra_ssm.cluster.script import Profile, array_script, ranges, read_profile
from lra_ssm.errors import InputError
from lra_ssm.runs.identity import short_names
from tests.runner import TINY, in_process

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


def test_a_dry_run_prints_the_script_and_what_each_run_changes(here, capsys):
    write_sweep(seeds=[0, 1], grid={"model.optimizer.lr": [0.1, 0.2]})
    asked = ["--partition=gpu", "--time=1:00:00", "--gpus=2", "--nodes=2", "--concurrency=3", "--before=module load x"]
    code, out, err = submit(capsys, "--dry-run", "--extra=--exclude=n7", *asked)
    assert code == 0
    assert [line.split() for line in err.splitlines()[:5]] == [
        ["run", "config", "seed", "lr"], ["1", "tiny", "0", "0.1"], ["2", "tiny", "0", "0.2"],
        ["3", "tiny", "1", "0.1"], ["4", "tiny", "1", "0.2"],
    ]  # fmt: skip
    assert "all of them: num_train 16" in err and "nothing is submitted" in err
    asked = {line.removeprefix("#SBATCH --") for line in out.splitlines() if line.startswith("#SBATCH")}
    assert asked == {
        "job-name=mine", "array=1-4%3", f"output={folder()}/logs/%a.log", "open-mode=append", "requeue",
        "signal=SIGUSR1@180", "partition=gpu", "time=1:00:00", "nodes=2", "ntasks-per-node=2", "gpus-per-node=2",
        "exclude=n7",
    }  # fmt: skip
    assert "\nmodule load x\n" in out and "--trainer.devices=2 --trainer.num_nodes=2" in out
    assert out == (folder() / "submit.sbatch").read_text()
    assert subprocess.run(["bash", "-n", folder() / "submit.sbatch"], capture_output=True).stderr == b""


def test_a_task_reads_its_own_options_whatever_they_hold(here, capsys):
    """The script is run with stand-ins of srun and python."""
    name = 'it\'s "a $HOME" & name'
    write_sweep(seeds=[0, 1], experiment=name)
    assert submit(capsys, "--dry-run", "--python=fake")[0] == 0
    Path("srun").write_text('#!/bin/sh\nshift 3\nprintf "%s\\n" "$@" >> said\n')
    Path("srun").chmod(0o755)
    script = folder() / "submit.sbatch"
    subprocess.run(["bash", script], env={"PATH": f"{here}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "2"}, check=True)
    options = SweepFolder(folder()).runs[1].options
    assert f"--experiment={name}" in options and "--seed_everything=1" in options
    assert Path("said").read_text().splitlines() == ["fit", *options, "test", *options]


def test_the_folder_keeps_what_was_submitted(here, capsys):
    write_sweep(seeds=[0, 1])
    submit(capsys, "--dry-run")
    first = SweepFolder.find("sweep.yaml")
    run = first.runs[0]
    assert run.options[0] == f"--config={first.path}/configs/tiny.yaml" and run.changes["seed_everything"] == 0
    assert run.directory.path.parent == Path("runs/tiny") and not run.done
    assert [shlex.split(line) for line in (first.path / "runs.txt").read_text().splitlines()] == [
        run.options for run in first.runs
    ]
    assert first.prepares == [[run.options[0], "--data.num_train=16"]]  # once for both
    # An edited config is another sweep; the folder of the first one stays as it was.
    Path("tiny.yaml").write_text(Path("tiny.yaml").read_text().replace("dropout: 0.2", "dropout: 0.3"))
    with pytest.raises(InputError, match=f"was not submitted from here; it was changed since {first.path} was"):
        SweepFolder.find("sweep.yaml")
    submit(capsys, "--dry-run")
    second = SweepFolder.find("sweep.yaml")
    assert second.path != first.path and second.runs[0].directory.path != run.directory.path
    assert "dropout: 0.2" in (first.path / "configs/tiny.yaml").read_text()
    assert not list(Path("runs/sweeps").glob(".unfinished*"))


def test_configs_of_one_name_are_copied_under_two(here, capsys):
    for name in ("a", "b"):
        Path(name).mkdir()
        Path(name, "tiny.yaml").write_bytes(TINY.read_bytes() + f"# {name}\n".encode())
    write_sweep(configs=["a/tiny.yaml", "b/tiny.yaml"], experiment="x/{config}")
    assert "runs 1 and 2 are the same run, runs/x/tiny/" in refused(capsys, "--dry-run")
    write_sweep(groups=[{"configs": ["a/tiny.yaml"]}, {"configs": ["b/tiny.yaml"], "seeds": [7]}])
    submit(capsys, "--dry-run")
    assert sorted(path.name for path in (folder() / "configs").iterdir()) == ["a-tiny.yaml", "b-tiny.yaml"]
    shutil.rmtree("runs")
    write_sweep(configs=["lra/listops/s4d", "mnist/s4d"], set={"trainer.max_steps": 1})  # wherever the package lies
    submit(capsys, "--dry-run")
    assert sorted(path.name for path in (folder() / "configs").iterdir()) == ["lra-listops-s4d.yaml", "mnist-s4d.yaml"]


def test_what_is_done_is_not_run_again(here, capsys):
    write_sweep(seeds=[0, 1])
    submit(capsys, "--dry-run")
    for run in SweepFolder.find("sweep.yaml").runs:
        run.directory.path.mkdir(parents=True)
        run.directory.write_record(status="finished")
        (run.directory.path / "test.json").write_text('{"metrics": {}}')
        code, out, err = submit(capsys, "--dry-run")
        if run.index == 1:
            assert "1 of 2 are done: 1" in err and "--array=2\n" in out
    assert code == 0 and not out and "nothing is left to run" in err


def test_what_is_done_with_other_data_or_weights_is_told(here, capsys):
    Path("text").mkdir()
    for split in ("train", "val", "test"):
        Path(f"text/{split}.txt").write_text("some text\n" * 20)
    Path("tiny.yaml").write_bytes((TINY.parent / "language.yaml").read_bytes())
    settings = {"source": "text", "tokenizer": "bytes", "length": 16, "batch_size": 2, "root": "data"}
    data = {"class_path": "lra_ssm.datamodules.Corpus", "init_args": settings}
    write_sweep(seeds=[0, 1], set={"data": data, "trainer.max_steps": 1, "init_from": "start.ckpt"})
    fit = ["fit", "--config=tiny.yaml", f"--data={json.dumps(data)}", "--trainer.max_steps=1", "--experiment=start"]
    assert in_process(fit, capsys)[0] == 0
    next(Path("runs/start").glob("*/checkpoints/last.ckpt")).rename("start.ckpt")
    assert submit(capsys, "--dry-run")[0] == 0
    first, second = SweepFolder.find("sweep.yaml").runs
    assert in_process(["fit", *first.options], capsys)[0] == 0
    (first.directory.path / "test.json").write_text('{"metrics": {}}')
    shutil.copytree(first.directory.path, second.directory.path)
    assert "warning" not in submit(capsys)[2]
    Path("text/train.txt").write_text("another text\n" * 20)
    (line,) = [line for line in submit(capsys)[2].splitlines() if "warning" in line]
    assert line.startswith("warning: 1-2: trained with other data: text has changed (fit --fresh with ")
    Path("start.ckpt").write_bytes(Path("start.ckpt").read_bytes() + b"0")
    code, _, err = submit(capsys)
    (line,) = [line for line in err.splitlines() if "warning" in line]
    others = "other data: text has changed; other weights: start.ckpt has changed"
    assert code == 0 and line.startswith(f"warning: 1-2: trained with {others} (fit --fresh with ")


@pytest.mark.parametrize(
    ("parts", "options", "said"),
    [
        (
            {"set": {"model.optimizer.rl": 1}},
            [],
            "sweep sweep.yaml, run 1 (rl 1): model: lra_ssm.tasks.Classification takes no key 'optimizer.rl'; did you",
        ),
        ({"set": {"trainer.max_epochs": "x"}}, [], "run 1 (max_epochs x): "),
        ({}, ["--nodes=0"], "nodes is 0; it must be a whole number, at least 1"),
        ({}, ["--local=0"], "--local: 0, but it must be at least 1"),
        ({}, ["--extra=exclude"], "extra has 'exclude'; these are options of sbatch"),
        ({}, ["--profile=none.yaml"], "no profile none.yaml: neither such a file"),
    ],
)
def test_bad_input_leaves_nothing(here, capsys, parts, options, said):
    write_sweep(**parts)
    assert said in refused(capsys, "--dry-run", *options)
    assert not Path("runs").exists()


def test_without_slurm_it_says_so_and_has_submitted_nothing(here, capsys, monkeypatch):
    write_sweep()
    monkeypatch.setenv("PATH", "/nothing")
    assert refused(capsys).startswith(
        "sbatch is not here: submit from a machine of the cluster, or run here with --loc"
    )
    assert not (folder() / "submissions.json").exists()


def slurm_of(text):
    Path("sbatch").write_text(f"#!/bin/sh\n{text}\n")
    Path("sbatch").chmod(0o755)


def test_the_array_waits_for_its_data_and_what_slurm_refuses_leaves_nothing_queued(here, capsys, monkeypatch):
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")
    write_sweep(seeds=[0, 1])
    slurm_of('echo "$@" >> asked; wc -l < asked')
    code, out, _ = submit(capsys, "--results", "--partition=gpu", "--mem=1G", "--before=module load x")
    at = folder()
    assert code == 0 and out.splitlines()[0] == f"job 1: {at}/prepare.sbatch"
    assert Path("asked").read_text().splitlines() == [
        f"--parsable {at}/prepare.sbatch",
        f"--parsable --dependency=afterok:1 --kill-on-invalid-dep=yes {at}/submit.sbatch",
        f"--parsable --dependency=afterany:2 --kill-on-invalid-dep=yes {at}/results.sbatch",
    ]
    record = json.loads((at / "submissions.json").read_text())
    assert record[0]["job"] == "2" and record[0]["indices"] == [1, 2]
    assert "--resume submits what failed" in refused(capsys)

    # What is left has the jobs' settings of before, but for what is given now.
    slurm_of("echo 9")
    Path("squeue").write_text("#!/bin/sh\nexit 0\n")
    Path("squeue").chmod(0o755)
    assert submit(capsys, "--resume", "--mem=2G")[0] == 0
    again = (at / "submit.sbatch").read_text()
    assert "--partition=gpu\n" in again and "\nmodule load x\n" in again and "--mem=2G\n" in again

    (at / "submissions.json").unlink()
    Path("asked").unlink()
    Path("scancel").write_text('#!/bin/sh\necho "$@" > cancelled\n')
    Path("scancel").chmod(0o755)
    slurm_of('case "$*" in *submit*) echo "sbatch: error: no such thing" >&2; exit 1;; esac; echo 7')
    assert refused(capsys) == "Slurm refuses submit.sbatch: no such thing"
    assert Path("cancelled").read_text() == "7\n" and not (at / "submissions.json").exists()


def test_profiles(here):
    for file in sorted((ROOT / "slurm/profiles").glob("*.yaml")):
        assert Profile(**read_profile(file)).time
    Path("p.yaml").write_text("time: 24:00:00\n")
    with pytest.raises(InputError, match="time is read as 86400 seconds by YAML: quote it"):
        read_profile(Path("p.yaml"))
    for text, said in (
        ("gpu: 1", "p.yaml: it has 'gpu'; did you mean 'gpus'?"),
        ("gpus: two", "p.yaml: gpus is 'two'; it must be a whole number"),
        ("before: x", "before is 'x', not a list of lines"), ("- 1", "it is [1], not options"), ("a: [", "is no YAML"),
    ):  # fmt: skip
        Path("p.yaml").write_text(text)
        with pytest.raises(InputError) as error:
            read_profile(Path("p.yaml"))
        assert said in str(error.value)
    Path("p.yaml").write_text("mem: 64\nbefore: [module load x]\n")
    assert Profile(**read_profile(Path("p.yaml"))) == Profile(mem="64", before=("module load x",))


def test_templates_and_scripts_are_shell(here, capsys):
    for file in (ROOT / "slurm").glob("*.sbatch"):
        assert subprocess.run(["bash", "-n", file], capture_output=True).stderr == b""
    write_sweep()
    submit(capsys, "--dry-run")
    (folder() / "logs").rmdir()
    submit(capsys, "--dry-run", "--results")
    assert (folder() / "logs").is_dir()  # Slurm makes none
    for name in ("prepare", "submit", "results"):
        assert subprocess.run(["bash", "-n", folder() / f"{name}.sbatch"], capture_output=True).stderr == b""
    alone = array_script(SweepFolder(folder()), [1], Profile(tasks=1))
    assert "--trainer.devices" not in alone and "kill-on-bad-exit" not in alone


def test_numbers_and_names_in_short():
    assert ranges([1]) == "1" and ranges([7, 1, 2, 3, 5]) == "1-3,5,7"
    names = ["model.optimizer.lr", "other.lr", "a.b.c", "seed_everything"]
    assert list(short_names(names).values()) == ["optimizer.lr", "other.lr", "c", "seed"]


def test_prepare_takes_a_configuration(here, capsys):
    code, out, _ = in_process(["prepare", "--config", "tiny.yaml", "--data.num_train=16"], capsys)
    assert code == 0 and "16 train, 20 val, 20 test" in out
    (made,) = (here / "data/listops").glob("generated-*")
    assert (
        in_process(["prepare", "--config", "tiny.yaml", "--data.num_train=16", "--seed_everything=5"], capsys)[0] == 0
    )
    assert list((here / "data/listops").glob("generated-*")) == [made]
    code, _, err = in_process(["prepare", "--config", "tiny.yaml", "--data.num_trains=16"], capsys)
    assert code == 2 and "did you mean 'num_train'?" in err[-1]
