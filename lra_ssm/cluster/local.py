"""A sweep's runs on this machine, some at a time: each a process of its own, as Slurm would start it."""

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO, Any

from lra_ssm.cluster.folder import FolderRun, SweepFolder
from lra_ssm.cluster.logs import begin_line, ended_line, last_attempt
from lra_ssm.cluster.queue import Queue
from lra_ssm.cluster.rows import duration, lines, summary, titles
from lra_ssm.cluster.status import RunState, run_state, states
from lra_ssm.machine import available_cores
from lra_ssm.tables import terminal_width

_POLL = 0.1  # seconds
_DRAWN_EVERY, _SAID_EVERY = 1.0, 60.0  # in a terminal; in a job's log
_PATIENCE = 60.0  # seconds
_ONE = 0.3  # seconds: what a process group and its leader are sent by `timeout` or a launcher is one request
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


def run_local(folder: SweepFolder, indices: Sequence[int], at_a_time: int) -> int:
    """Trains and tests these runs of a sweep, `at_a_time` of them at once, their data prepared first; returns an exit
    code: 0, 1 where a run failed, 128 and the signal's number where one stopped it.

    Signals stop it: every process is sent SIGTERM, once, and saves; the second one ends them at once. No process
    outlives this one: the system sends them SIGTERM when it dies.
    """
    return _Local(folder, indices, at_a_time).run()


@dataclass
class _Task:
    """A run that a process of ours works at."""

    run: FolderRun
    log: IO[bytes]
    process: subprocess.Popen[bytes]
    since: float
    testing: bool


class _Local:
    def __init__(self, folder: SweepFolder, indices: Sequence[int], at_a_time: int) -> None:
        self.folder, self.at_a_time = folder, at_a_time
        wanted = set(indices)
        self.mine = [run for run in folder.runs if run.index in wanted]
        self.left = [run for run in self.mine if not run.done]
        self.tasks: list[_Task] = []
        self.preparing: subprocess.Popen[bytes] | None = None
        self.asked: tuple[float, int] | None = None  # when a signal came first, and which
        self.at_once = False
        self.environment = dict(os.environ)
        self.environment.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // at_a_time)))
        self.titles = titles(folder)
        self.live: Any = None
        self.shown = 0.0

    def run(self) -> int:
        self.folder.log(0).parent.mkdir(exist_ok=True)  # whoever removed the logs meant the logs
        with ExitStack() as stack:
            for signum in _STOPS:
                # One that is ignored stays so (nohup).
                if (before := signal.getsignal(signum)) is not signal.SIG_IGN:
                    signal.signal(signum, self._on_signal)
                    stack.callback(signal.signal, signum, before)
            stack.callback(self._end_all, _PATIENCE)  # of an error here: there is nothing left otherwise
            if terminal_width() is not None:
                from rich.console import Console
                from rich.live import Live

                live = Live(console=Console(), auto_refresh=False, vertical_overflow="crop")
                self.live = stack.enter_context(live)
            if not self._prepare():
                return 1
            while self.tasks or (self.left and not self.asked):
                while self.left and not self.asked and len(self.tasks) < self.at_a_time:
                    self._start(self.left.pop(0))
                for task in list(self.tasks):
                    if task.process.poll() is not None:
                        self._ended(task)
                self._show()
                if self.at_once:
                    self._end_all()
                time.sleep(_POLL)
            return self._close()

    # -- signals ---------------------------------------------------------------------------------------------------

    def _on_signal(self, signum: int, frame: Any) -> None:
        if self.asked is None:
            self.asked = (time.monotonic(), signum)
            for process in self._processes:
                process.send_signal(signal.SIGTERM)  # whichever it was: before a fit listens it ends it silently
        elif time.monotonic() - self.asked[0] > _ONE:
            self.at_once = True

    @property
    def _processes(self) -> list[subprocess.Popen[bytes]]:
        return [*(task.process for task in self.tasks), *([self.preparing] if self.preparing else [])]

    def _end_all(self, patience: float = 0.0) -> None:
        """Ends what still runs, with what it started; after some seconds in which it may save, if there are any."""
        until = time.monotonic() + patience
        for process in self._processes if patience else []:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    # -- processes -------------------------------------------------------------------------------------------------

    def _popen(self, arguments: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        # A process group of its own: Ctrl-C reaches this process alone, which passes it on once.
        command = [sys.executable, "-m", "lra_ssm", *arguments]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, process_group=0,
            preexec_fn=_die_with(os.getpid()) if sys.platform == "linux" else None,
        )  # fmt: skip

    def _prepare(self) -> bool:
        """Makes the data of all runs ready, one after the other."""
        file = self.folder.path / "logs" / "prepare.log"
        for options in self.folder.prepares if self.left else []:
            if self.asked:
                break
            with open(file, "ab") as log:
                _write(log, begin_line())
                self.preparing = self._popen(["prepare", *options], log)
                started = time.monotonic()
                while self.preparing.poll() is None:
                    self._show(f"preparing data: {' '.join(options)} ({file})", started)
                    if self.at_once:
                        self._end_all()
                    time.sleep(_POLL)
            code, self.preparing = self.preparing.returncode, None
            if code and not self.asked:
                attempt = last_attempt(file)
                why = (attempt.error or attempt.others or attempt.last) if attempt else ""
                print(f"lra-ssm: error: data is not prepared: {why or f'exit code {code}'} ({file})", file=sys.stderr)
                return False
        return True

    def _start(self, run: FolderRun) -> None:
        log = open(self.folder.log(run.index), "ab")
        if not _lock(log):
            log.close()
            self._say(f"run {run.index} is left alone: another process works at it")
            return
        _write(log, begin_line())
        testing = run.directory.finished
        process = self._popen(["test" if testing else "fit", *run.options], log)
        self.tasks.append(_Task(run, log, process, time.monotonic(), testing))
        self._say(f"run {run.index} begins: {self.titles[run.index]}")

    def _ended(self, task: _Task) -> None:
        code = task.process.returncode
        # One that was stopped by its time limit (max_time) ends well, and is not trained.
        if code == 0 and not task.testing and not self.asked and task.run.directory.finished:
            task.testing = True
            task.process = self._popen(["test", *task.run.options], task.log)
            return
        self.tasks.remove(task)
        if code < 0:
            asked = self.asked is not None and -code == signal.SIGTERM
            how = f"{'stopped' if asked else 'killed'} by {signal.Signals(-code).name}"
            _write(task.log, ended_line(how))
        task.log.close()
        found = run_state(self.folder, task.run, Queue())
        took = duration(time.monotonic() - task.since)
        metrics = "".join(f", {name} {value:.4g}" for name, value in found.test.items())
        why = (
            f": {found.reason.removeprefix(found.state).strip()} ({self.folder.log(task.run.index)})"
            if found.reason
            else ""
        )
        self._say(f"run {task.run.index} {found.state} after {took}{metrics}{why}")

    # -- what is shown ---------------------------------------------------------------------------------------------

    def _say(self, line: str) -> None:
        """An event; in a terminal the table shows it."""
        if self.live is None:
            print(line, flush=True)
            self.shown = time.monotonic()
        else:
            self.shown = 0.0

    def _show(self, preparing: str = "", since: float = 0.0) -> None:
        now = time.monotonic()
        if now - self.shown < (_SAID_EVERY if self.live is None else _DRAWN_EVERY):
            return
        self.shown = now
        if self.live is None:
            every = states(self.folder)
            parts = [preparing] if preparing else [summary(every), *map(self._short, every)]
            print("; ".join(filter(None, parts)), flush=True)
            return
        from rich.text import Text

        stopping = "stopping: each run saves; once more ends them at once" if self.asked and self.tasks else ""
        columns, height = shutil.get_terminal_size()
        if not preparing:
            every = states(self.folder)
            preparing = lines(self.folder, every, every, columns, height - bool(stopping))
        text = "\n".join(filter(None, [preparing, stopping]))
        self.live.update(Text(text, overflow="fold"), refresh=True)

    def _short(self, run: RunState) -> str:
        if run.state != "running" or run.step is None:
            return ""
        return f"run {run.index} {run.phase} at step {run.step}/{'?' if run.of is None else run.of}"

    def _close(self) -> int:
        """Shows what stands, and gives the exit code."""
        mine = {run.index for run in self.mine}
        every = states(self.folder)
        if self.live is not None:
            self.shown = 0.0
            self._show()
        else:
            print(summary(every), flush=True)
        if self.asked:
            return 128 + self.asked[1]
        return int(any(run.state in ("failed", "lost", "stopped") for run in every if run.index in mine))


def _write(log: IO[bytes], line: str) -> None:
    log.write(f"{line}\n".encode())
    log.flush()


def _lock(log: IO[bytes]) -> bool:
    """Holds the log for as long as this process or one that it starts has it open; False where another one does."""
    until = time.monotonic() + 1.0
    while True:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:  # no mere look by `lra-ssm status`
                return False
            time.sleep(_POLL)
        except OSError:  # no locks on this file system
            return True


def _die_with(parent: int) -> Callable[[], None]:
    """What a new process does first: it asks for SIGTERM at its parent's death, so that it saves and ends."""
    system = ctypes.CDLL(None)

    def ask() -> None:
        system.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask
