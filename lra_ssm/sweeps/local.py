"""Train a sweep's runs on this machine, a few at a time, each in its own process as with Slurm."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lra_ssm.runs.provenance import now
from lra_ssm.runs.record import RunRecord
from lra_ssm.sweeps.submit import FolderRun
from lra_ssm.tables import duration

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_local(runs: Sequence[FolderRun], at_a_time: int) -> int:
    """Train and test these runs, `at_a_time` of them at once.

    The first SIGINT, SIGTERM or SIGHUP lets every process save and end; a second SIGINT kills them. Returns the exit
    code: 0; 1 if a run did not finish; or 128 plus the number of the signal.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    environment = {"OMP_NUM_THREADS": str(max(1, cores // at_a_time)), **os.environ}
    running: set[subprocess.Popen[bytes]] = set()
    signals: list[int] = []

    def on_signal(signum: int, frame: Any) -> None:
        signals.append(signum)
        for process in [*running]:
            if len(signals) == 1:
                process.terminate()
            elif signum == signal.SIGINT:
                os.killpg(process.pid, signal.SIGKILL)
        if len(signals) == 1:
            print("stopping: every run saves its step; Ctrl-C again kills them", flush=True)

    def call(arguments: list[str], log: Any) -> int:
        # A process group of its own: the terminal sends Ctrl-C to this process only, which passes it on once.
        process = subprocess.Popen(
            [sys.executable, "-m", "lra_ssm", *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env=environment, process_group=0,
        )  # fmt: skip
        running.add(process)
        if signals:  # a signal arrived while the process was starting
            process.terminate()
        code = process.wait()
        running.remove(process)
        return code

    def train_and_test(run: FolderRun) -> bool:
        """Train and test a run as far as it is not done; return whether it is done now."""
        if signals:
            return False
        began = time.monotonic()
        print(f"run {run.index} begins: {run.experiment}", flush=True)
        run.log.parent.mkdir(exist_ok=True)
        with open(run.log, "ab", buffering=0) as log:
            log.write(f"== attempt at {now()}\n".encode())
            if call(["fit", *run.options], log) == 0 and not signals:
                call(["test", *run.options], log)
        record, took = RunRecord.read(run.path), duration(time.monotonic() - began)
        if record.missing:
            print(f"run {run.index} not done after {took}: {run.last_line() or record.missing} ({run.log})", flush=True)
        else:
            metrics = record.tested.get("metrics", {})
            result = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()) or "no test split"
            print(f"run {run.index} done after {took}: {result}", flush=True)
        return not record.missing

    before = {signum: signal.signal(signum, on_signal) for signum in _SIGNALS}
    try:
        with ThreadPoolExecutor(at_a_time) as pool:
            done = [*pool.map(train_and_test, runs)]
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    return 128 + signals[0] if signals else int(not all(done))
