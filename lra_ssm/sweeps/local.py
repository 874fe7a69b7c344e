"""Train a sweep's runs on this machine, some at a time: each in its own process, as Slurm would start it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lra_ssm.runs.provenance import now
from lra_ssm.runs.record import RunRecord
from lra_ssm.sweeps.submit import FolderRun, SweepFolder
from lra_ssm.tables import duration


def run_local(folder: SweepFolder, indices: Sequence[int], at_a_time: int) -> int:
    """Train and test these runs, `at_a_time` of them at once.

    The first SIGINT, SIGTERM or SIGHUP lets every process save and end; a second SIGINT kills them. Returns the exit
    code: 0, 1 if a run did not come to its end, or 128 and the number of the signal.
    """
    folder.logs.mkdir(exist_ok=True)
    processes = _Processes(at_a_time)
    before = {signum: signal.signal(signum, processes.on_signal) for signum in _SIGNALS}
    try:
        with ThreadPoolExecutor(at_a_time) as pool:
            runs = [run for run in folder.runs if run.index in indices]
            ended_well = [*pool.map(processes.train_and_test, runs)]
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    return 128 + processes.stopped_by if processes.stopped_by else int(not all(ended_well))


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Processes:
    """The processes that run, and the signals that end them."""

    def __init__(self, at_a_time: int) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = str(max(1, cores // at_a_time))
        self._environment = {"OMP_NUM_THREADS": threads, **os.environ}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.RLock()  # a signal may come while the main thread holds it
        self.stopped_by = 0  # the first signal

    def on_signal(self, signum: int, frame: Any) -> None:
        with self._lock:
            first, self.stopped_by = not self.stopped_by, self.stopped_by or signum
            for process in [*self._running]:
                if first:
                    process.send_signal(signal.SIGTERM)
                elif signum == signal.SIGINT:
                    os.killpg(process.pid, signal.SIGKILL)
        if first:
            print("stopping: every run saves its step; Ctrl-C again kills them", flush=True)

    def train_and_test(self, run: FolderRun) -> bool:
        """Do what is left of a run; return whether it is done."""
        if self.stopped_by:
            return False
        began = time.monotonic()
        print(f"run {run.index} begins: {run.experiment}", flush=True)
        with open(run.log, "ab") as log:
            log.write(f"== attempt at {now()}\n".encode())
            log.flush()
            for command in ("fit", "test"):
                code = self._call([command, *run.options], log)
                if code:
                    break
        record = RunRecord.read(run.path)
        done = not record.missing
        result = ", ".join(f"{name} {value:.4g}" for name, value in record.tested.get("metrics", {}).items())
        took = duration(time.monotonic() - began)
        if done:
            print(f"run {run.index} done after {took}: {result or 'no test split'}", flush=True)
        else:
            print(f"run {run.index} not done after {took}: {last_line(run) or record.missing} ({run.log})", flush=True)
        return done

    def _call(self, arguments: list[str], log: Any) -> int:
        with self._lock:
            if self.stopped_by:
                return -signal.SIGTERM
            # A process group of its own: the terminal sends Ctrl-C to this process only, which passes it on once.
            command = [sys.executable, "-m", "lra_ssm", *arguments]
            given = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "env": self._environment}
            process = subprocess.Popen(command, process_group=0, **given)
            self._running.add(process)
        code = process.wait()
        with self._lock:
            self._running.remove(process)
        return int(code)


def last_line(run: FolderRun) -> str:
    """Return the last line of ours in the log of a run's last attempt, else its last line; empty if there is none."""
    try:
        with open(run.log, "rb") as file:
            file.seek(max(0, run.log.stat().st_size - 4096))
            text = file.read().decode(errors="replace").rpartition("== attempt")[2]
    except OSError:
        return ""
    lines = text.strip().splitlines()[1:]  # the first one is the rest of the attempt's
    ours = [line for line in lines if line.startswith("lra-ssm: ")]  # srun repeats its exit code after it
    return (ours or lines or [""])[-1].removeprefix("lra-ssm: ").removeprefix("error: ")
