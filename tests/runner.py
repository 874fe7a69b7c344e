"""Run `lra_ssm.cli.main` in the test's process, or in one that is forked from a server with the package imported."""

import contextlib
import io
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import yaml

TINY = Path(__file__).parent / "tiny.yaml"
FIT = ["fit", f"--config={TINY}"]
_LOGGERS = ("lightning", "lightning.pytorch", "lightning.fabric", "huggingface_hub")
SHORT = ["--trainer.max_epochs=1", "--data.num_train=16"]

_context = multiprocessing.get_context("forkserver")  # no copy of the test's process, whose threads would be missing
_context.set_forkserver_preload(["lra_ssm.cli.fit"])


Env = dict[str, str] | None
Call = Callable[[list[str]], int] | None


class Result(NamedTuple):
    code: int  # negative: the signal that ended it
    out: str
    err: str


class Command:
    """A started command, or another function of a list that gives an exit code; `wait()` gives its result."""

    def __init__(self, arguments: list[str], cwd: Path, env: Env = None, call: Call = None) -> None:
        self._out, self._err = (tempfile.NamedTemporaryFile("w+", suffix=".txt") for _ in range(2))
        given = (call, arguments, str(cwd), {**os.environ, **(env or {})}, self._out.name, self._err.name)
        self.process = _context.Process(target=_child, args=given)
        self.process.start()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)

    def wait(self, timeout: float = 240) -> Result:
        self.process.join(timeout)
        assert self.process.exitcode is not None, "the command did not end"
        return Result(self.process.exitcode, Path(self._out.name).read_text(), Path(self._err.name).read_text())


def run(arguments: list[str], cwd: Path, env: Env = None) -> Result:
    return Command(arguments, cwd, env).wait()


@contextmanager
def rendezvous() -> Iterator[dict[str, str]]:
    """The environment in which processes find each other, as torchrun's agent gives it; the store is served here."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
           "TORCHELASTIC_RESTART_COUNT": "0"}  # fmt: skip


def run_by(devices: int, arguments: list[str], cwd: Path, env: Env = None, srun: bool = False) -> list[Result]:
    """Run a command by several processes on CPUs, with what torchrun or srun tells each of them in its environment."""
    line, count = [*arguments, f"--trainer.devices={devices}"], str(devices)
    if srun:
        given = {"SLURM_NTASKS": count, "SLURM_JOB_NAME": "fit", "SLURM_NTASKS_PER_NODE": count, "SLURM_JOB_ID": "12",
                 "SLURM_NODEID": "0"}  # fmt: skip
    else:
        given = {"WORLD_SIZE": count, "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": count, "TORCHELASTIC_RUN_ID": "tests"}
    names = ("RANK", "SLURM_PROCID", "SLURM_LOCALID") if srun else ("RANK", "LOCAL_RANK")
    with rendezvous() as found:
        ranks = [dict.fromkeys(names, str(rank)) for rank in range(devices)]
        started = [Command(line, cwd, {**found, **given, **(env or {}), **rank}) for rank in ranks]
        return [command.wait() for command in started]


def run_here(arguments: list[str], cwd: Path) -> Result:
    """A command in this process, as if it was started in `cwd`: it costs no start and no imports.

    For signals, kills, environments and the start itself see `run`."""
    import torch

    deterministic = torch.are_deterministic_algorithms_enabled()
    out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with (
        contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ), mock.patch.object(sys, "argv", ["lra-ssm", *arguments]),
        mock.patch.object(sys, "path", [*sys.path]),
    ):  # fmt: skip
        code = _exit_code(arguments)
    torch.use_deterministic_algorithms(deterministic)
    return Result(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


def _exit_code(arguments: list[str], call: Call = None) -> int:
    """Call a command, or another function, in this process as its script does."""
    import torch
    from lightning.pytorch.utilities import rank_zero_only

    from lra_ssm.cli import main

    rank_zero_only.rank = int(os.environ.get("RANK", 0))  # Lightning asked when it was imported
    torch.set_num_threads(1)
    for handler in (handler for name in _LOGGERS for handler in logging.getLogger(name).handlers):
        if isinstance(handler, logging.StreamHandler):
            handler.stream = sys.stderr  # it has the stream of an earlier command
    try:
        return (call or main)(arguments)
    except SystemExit as end:  # of --help and --print_config
        return end.code or 0
    except Exception:  # as Python ends with it
        traceback.print_exc()
        return 1


def options_of(*configs: dict[str, Any]) -> Any:
    """What `read_fit_options` gives of configurations, the later over the earlier."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}.yaml") for number in range(len(configs))]
        for file, config in zip(files, configs, strict=True):
            file.write_text(yaml.safe_dump(config, sort_keys=False))
        from lra_ssm.cli.config import read_fit_options

        return read_fit_options([f"--config={file}" for file in files])


def _result(arguments: list[str], cwd: Path, env: Env) -> Result:
    return run_here(arguments, cwd) if env is None else run(arguments, cwd, env)


def succeed(arguments: list[str], cwd: Path, env: Env = None) -> Result:
    """A command that ends well: in this process, or with `env` in one of its own."""
    result = _result(arguments, cwd, env)
    assert result.code == 0, f"{arguments} ended with {result.code}:\n{result.out[-2000:]}\n{result.err[-3000:]}"
    return result


def fail(arguments: list[str], cwd: Path, env: Env = None) -> str:
    """The one line on stderr that a command with bad input ends with; in which process, as `succeed`."""
    result = _result(arguments, cwd, env)
    assert result.code > 0, f"{arguments} ended with {result.code}\n{result.out}\n{result.err[-3000:]}"
    return _one_line(result.err)


def _one_line(err: str) -> str:
    lines = [line for line in err.splitlines() if line.startswith("lra-ssm: error: ")]
    assert len(lines) == 1 and err.strip().endswith(lines[0]), f"not one line:\n{err[-3000:]}"
    assert "Traceback" not in err
    return lines[0].removeprefix("lra-ssm: error: ")


def _child(call: Call, arguments: list[str], cwd: str, env: dict[str, str], out: str, err: str) -> None:
    os.chdir(cwd)
    os.environ.clear()  # it has the server's
    os.environ.update(env)
    sys.argv = ["lra-ssm", *arguments]
    # As a console script finds modules, then tests.helpers: a my_layer.py that lies beside README.md is nobody's here.
    checkout = str(Path(__file__).parents[1])
    sys.path[:] = [*(folder for folder in sys.path if folder not in ("", checkout)), cwd, checkout]
    for stream, name in ((1, out), (2, err)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_TRUNC | os.O_NOCTTY), stream)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
    from lra_ssm.ops.backends import native_build
    from lra_ssm.runs import run

    native_build.library.cache_clear()  # it looks for its kernels itself
    run.draw_curves = lambda *_: None  # see conftest.py's fixture `curves`
    code = _exit_code(arguments, call)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def only_run(folder: Path, experiment: str = "tiny") -> Path:
    (found,) = (folder / "runs" / experiment).iterdir()
    return found


def everything_below(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def in_process(arguments: list[str], capsys) -> tuple[int, str, list[str]]:
    """Exit code, stdout and the lines of stderr of a command in this process and folder."""
    capsys.readouterr()
    code = _exit_code(arguments)
    printed = capsys.readouterr()
    return code, printed.out, printed.err.splitlines()


def refused(arguments: list[str], capsys) -> str:
    """What `fail` gives, of a command in this process and folder."""
    code, out, errors = in_process(arguments, capsys)
    assert code > 0, f"{arguments} ended with {code}\n{out}\n{errors}"
    return _one_line("\n".join(errors))


def printed(arguments: list[str], capsys) -> str:
    """What a command prints that succeeds in this process and folder."""
    code, out, errors = in_process(arguments, capsys)
    assert code == 0, f"{arguments} ended with {code}\n{out}\n{errors}"
    return out
