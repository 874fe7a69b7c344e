"""A sweep's runs on this machine, some at a time: each a process of its own, as Slurm would start it."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any

from lra_ssm.cluster.folder import FolderRun, SweepFolder
from lra_ssm.cluster.logs import begin_line, ended_line, last_attempt
from lra_ssm.cluster.status import RunState, run_state, states
from lra_ssm.cluster.table import redrawn, summary, titles
from lra_ssm.errors import InputError
from lra_ssm.datamodules.processes import available_cores
from lra_ssm.tables import duration, terminal_width

_DRAWN_EVERY, _SAID_EVERY = 1.0, 60.0  # seconds: in a terminal, in a job's log
_ONE = 0.3  # seconds in which two signals are one request: `timeout` signals a process and its group
# Asks Linux for SIGTERM at the parent's death, then becomes the command; preexec_fn is not safe beside threads.
_WITH_PARENT = """import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM
os.getppid() == int(sys.argv[1]) and os.execv(sys.argv[2], sys.argv[2:])"""


def run_local(folder: SweepFolder, indices: Collection[int], at_a_time: int) -> int:
    """Trains and tests these runs of a sweep, `at_a_time` of them at once, their data prepared first.

    The first SIGINT, SIGTERM or SIGHUP goes to every process as SIGTERM: it saves and ends. The second one ends them
    at once. If this process dies, Linux sends them SIGTERM.

    Returns the exit code: 0, 1 if a run failed, or 128 and the number of the signal that stopped them.

    Raises InputError if data cannot be prepared.
    """
    folder.logs.mkdir(exist_ok=True)  # a user may have removed it
    left = [run for run in folder.runs if run.index in indices and not run.done]
    processes = _Processes(at_a_time)
    with ExitStack() as stack:
        stack.enter_context(processes.listening())
        in_terminal = terminal_width() is not None
        draw = stack.enter_context(redrawn(folder)) if in_terminal else _draw_line
        every_s = _DRAWN_EVERY if in_terminal else _SAID_EVERY
        pool = stack.enter_context(ThreadPoolExecutor(at_a_time))
        stack.callback(processes.save_and_end, signal.SIGTERM)  # after an error here; else none is left

        def say(line: str) -> None:
            if not in_terminal:  # there the table says it
                print(f"{line}\n", end="", flush=True)  # whole: print itself writes the newline apart

        def finish(work: Collection[Future[None]], note: str = "") -> None:
            while work:
                done, work = wait(work, every_s, FIRST_EXCEPTION)
                for one in done:
                    one.result()
                if processes.stopped_by:
                    note = "stopping: each run saves; a second signal ends them at once"
                if work:
                    every = states(folder)
                    draw(every, every, note)

        for options in folder.prepares if left else []:
            note = f"preparing data: {' '.join(options)} ({folder.logs / 'prepare.log'})"
            finish([pool.submit(_prepare, processes, folder, options)], note)
        names = titles(folder)
        finish([pool.submit(_train_and_test, processes, folder, run, names[run.index], say) for run in left])
        every = states(folder)
        draw(every, every, "")
        if processes.stopped_by:
            return 128 + processes.stopped_by
        return int(any(run.index in indices and run.state in ("failed", "lost", "stopped") for run in every))


def _draw_line(found: Sequence[RunState], every: Sequence[RunState], note: str) -> None:
    print(note or summary(every), flush=True)


class _Processes:
    """The commands that run, and the signals that end them."""

    def __init__(self, at_a_time: int) -> None:
        threads = str(max(1, available_cores() // at_a_time))
        self._environment = {"OMP_NUM_THREADS": threads, **os.environ}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.RLock()  # a second signal may come while the first one is handled
        self._asked_at = 0.0
        self.stopped_by = 0  # the first signal

    def run(self, arguments: list[str], log: IO[bytes]) -> int:
        """The exit code of a command of ours; after a signal none starts."""
        command = [sys.executable, "-m", "lra_ssm", *arguments]
        if sys.platform == "linux":
            command = [sys.executable, "-Ic", _WITH_PARENT, str(os.getpid()), *command]
        with self._lock:
            if self.stopped_by:
                return -signal.SIGTERM
            # A process group of its own: Ctrl-C reaches this process alone, which passes it on once.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                process_group=0,
            )
            self._running.add(process)
        process.wait()
        with self._lock:
            self._running.remove(process)
        return process.returncode

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Signals end the commands; one that is ignored stays so (nohup)."""
        signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        before = {one: old for one in signals if (old := signal.getsignal(one)) is not signal.SIG_IGN}
        try:
            for signum in before:
                signal.signal(signum, self._on_signal)
            yield
        finally:
            for signum, old in before.items():
                signal.signal(signum, old)

    def _on_signal(self, signum: int, frame: Any) -> None:
        with self._lock:
            if not self.stopped_by:
                self.save_and_end(signum)
            elif time.monotonic() - self._asked_at > _ONE:
                for process in self._running:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started

    def save_and_end(self, signum: int) -> None:
        """Asks every command, once, to save and end."""
        with self._lock:
            if not self.stopped_by:
                self.stopped_by, self._asked_at = signum, time.monotonic()
                for process in self._running:  # for SIGINT too: a fit that is still starting ends silently
                    process.send_signal(signal.SIGTERM)


def _prepare(processes: _Processes, folder: SweepFolder, options: list[str]) -> None:
    file = folder.logs / "prepare.log"
    with open(file, "ab") as log:
        _write(log, begin_line())
        code = processes.run(["prepare", *options], log)
    if code and not processes.stopped_by:
        attempt = last_attempt(file)
        why = (attempt.error or attempt.others or attempt.last) if attempt else ""
        raise InputError(f"data is not prepared: {why or f'exit code {code}'} ({file})")


def _train_and_test(
    processes: _Processes, folder: SweepFolder, run: FolderRun, name: str, say: Callable[[str], None]
) -> None:
    """Does what is left of a run; `say` gets a line at its beginning and one at its end."""
    if processes.stopped_by:
        return
    file, since = folder.log(run.index), time.monotonic()
    with open(file, "ab") as log:
        if not _locked(log):
            say(f"run {run.index} is left alone: another process works at it")
            return
        say(f"run {run.index} begins: {name}")
        _write(log, begin_line())
        code = 0 if run.directory.finished else processes.run(["fit", *run.options], log)
        if code == 0 and run.directory.finished:  # a fit that max_time stopped ends well, and is not finished
            code = processes.run(["test", *run.options], log)
        if code < 0:
            how = "stopped" if processes.stopped_by and -code == signal.SIGTERM else "killed"
            _write(log, ended_line(f"{how} by {signal.Signals(-code).name}"))
    found = run_state(folder, run)
    metrics = "".join(f", {name} {value:.4g}" for name, value in found.test.items())
    if found.state == "done" and not metrics:
        metrics = ", no test split"
    why = f": {found.reason.removeprefix(found.state).strip()} ({file})" if found.reason else ""
    say(f"run {run.index} {found.state} after {duration(time.monotonic() - since)}{metrics}{why}")


def _write(log: IO[bytes], line: str) -> None:
    log.write(f"{line}\n".encode())
    log.flush()


def _locked(log: IO[bytes]) -> bool:
    """Locks the log while this process or its command has it open; False where another process holds it."""
    for _ in range(10):
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:  # by another start, or for a moment by `lra-ssm status`
            time.sleep(0.1)
        except OSError:  # no locks on this file system
            return True
    return False
