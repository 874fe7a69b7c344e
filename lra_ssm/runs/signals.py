"""What ends a run from outside: signals, and the end of a process beside it. Nothing in the handlers blocks.

Before a step is made there is nothing to save: a signal raises `Stopped` where the process is. While a fit trains it
sets a flag, which `runs/stopping.py` reads between steps. A thread of its own sees what the main thread, waiting for
other processes in a collective, cannot: a second signal, which ends the process at once, and a process that died.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import torch.distributed
from lightning.fabric.plugins.environments import LightningEnvironment, SLURMEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only

from lra_ssm.errors import InputError, squeeze
from lra_ssm.runs import peers

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
_TAKEN = tuple(signal.Signals[name] for name in _NAMES if name in signal.Signals.__members__)
_URGENT = (signal.SIGINT, signal.SIGTERM)  # the second of these ends the process at once
_ONE = 0.3  # seconds: what a process group and its leader are sent by `timeout` or a launcher is one request
_PATIENCE = 8.0  # seconds for a main thread with nothing to save, or without its peers, to come to an end by itself
_POLL = 0.25  # seconds
_HELD = 20.0  # seconds for which a signal waits until the others can be told; Slurm kills half a minute after SIGTERM


class Ended(BaseException):
    """The process is to end with an exit code; like KeyboardInterrupt no Exception, so that nobody mistakes it for a
    failure."""

    def __init__(self, code: int, why: str = "") -> None:
        super().__init__(why)
        self.code = code


class Stopped(Ended):
    """A signal ended the run; the exit code is the one that shells give such a process."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum, f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


class Signals:
    """The handlers of this process, its thread, and what they know."""

    def __init__(self) -> None:
        self.requested = 0  # the signal that asked a training fit to stop, at its next step
        self.training = False  # whether a step was made, so that there is something to save
        self.leaving = False  # whether the main thread is on its way out: its peers may end
        self.stopped_at: int | None = None  # the step that was saved for the signal
        self.job: str | None = None  # of Slurm, to be queued again
        self.lost: str | None = None  # which process beside this one died, and how
        self.run: Any = None  # a Run, whose file imports this one
        self.command: str | None = None  # that listens; None for a fit of a Trainer of one's own
        self._lost_at, self._lost_code = 0.0, 1
        self._launcher: Any = None
        self._environment: Any = None
        self._peers: peers.Peers | None = None
        self._together = 1  # how many processes srun started for the run
        self._parent = os.getppid()
        self._child = False  # of the first process on this machine
        self._first_is_gone = False  # without a word
        self._asked: tuple[float, int] | None = None  # when, and for which signal
        self._urgent_at = 0.0
        self._before: dict[int, Any] = {}
        self._last_word = threading.Lock()

    # -- taking and giving back the signals ------------------------------------------------------------------------

    def install(self) -> None:
        for signum in _TAKEN:
            before = signal.getsignal(signum)
            # One that is ignored stays so (nohup), and one with a handler belongs to whoever set it (submitit).
            if before in (signal.SIG_DFL, signal.default_int_handler) or signum in _URGENT and callable(before):
                self._before[signum] = before
                signal.signal(signum, self._handle)
        self._end, tip = os.pipe()
        os.set_blocking(tip, False)
        self._tip, self._tip_before = tip, signal.set_wakeup_fd(tip, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="lra-ssm-signals", daemon=True)
        self._thread.start()

    def uninstall(self) -> None:
        signal.set_wakeup_fd(self._tip_before)
        for signum, before in self._before.items():
            signal.signal(signum, before)
        os.write(self._tip, bytes([0]))
        self._thread.join()
        self._close()

    def forget(self) -> None:
        """In a forked process: it is no part of the run, and must not write into this one's pipe."""
        signal.set_wakeup_fd(-1)
        self._close()
        for signum in self._before:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)

    def _close(self) -> None:
        os.close(self._tip)
        os.close(self._end)
        if self._peers is not None:
            self._peers.close()

    def watch(self, trainer: Trainer, run: Any = None) -> None:
        """Knows the run, and the processes that Lightning starts for this Trainer, from now on.

        Lightning's own handlers are not set: its one for SIGTERM waits for the other processes within the handler, and
        hangs; the one for Slurm saves what no run of ours starts from. `stopping.py` queues the job again.
        """
        self.run, self._launcher = run, trainer.strategy.launcher
        self._environment = environment = trainer._accelerator_connector.cluster_environment
        self._child = isinstance(environment, LightningEnvironment) and environment.local_rank() > 0
        if isinstance(environment, SLURMEnvironment):
            self._together = trainer.world_size
        trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]

    def meet(self) -> None:
        """Waits for all processes that srun started for the run; from then on each knows when another one ends.

        Signals that the command has held back until now (so that the others could be told) are taken from here on.
        """
        try:
            if self._together > 1 and self is _active:
                here = self._environment
                self._peers = peers.Peers(here.global_rank(), self._together, here.main_address, here.main_port)
                self._peers.met.wait(_HELD)
        except OSError as error:
            said = f"port {here.main_port}, where the processes of a run meet, cannot be had: {error.strerror}"
            raise InputError(f"{said}; set MASTER_PORT to another") from error
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _TAKEN)
        if self._peers is not None:
            self._peers.met.wait()  # the thread ends it

    def leave(self, code: int) -> None:
        """On the way out, with this exit code."""
        if self._peers is not None and not self.leaving:
            self._peers.leave(code)
        self.leaving = True

    def ask_for_requeue(self, signum: int) -> None:
        """Has the job queued again, if this is the signal that Slurm announces its time's end with (--signal)."""
        environment = self._environment
        if isinstance(environment, SLURMEnvironment) and environment.auto_requeue:
            if signum == (environment.requeue_signal or signal.SIGUSR1):
                self.job = _job()

    # -- in the main thread ----------------------------------------------------------------------------------------

    def _handle(self, signum: int, frame: Any) -> None:
        if self.leaving:
            return
        if self.training:
            self.requested = self.requested or signum
        elif not self.requested:
            self.requested = signum
            raise Stopped(signum)

    def lost_peer(self, error: BaseException) -> bool:
        """Whether the error is the end of another process, told by a collective that it was to take part in."""
        if not torch.distributed.is_available():
            return False
        names = ("gloo", "ProcessGroup", "NCCL", "TCPStore") if torch.distributed.is_initialized() else ()
        told = isinstance(error, torch.distributed.DistError) or any(name in str(error) for name in names)
        until = time.monotonic() + _PATIENCE / 2
        while told and self.lost is None and time.monotonic() < until:
            time.sleep(_POLL)  # the thread learns which one it was; or the first process ends this one
        if told and self.lost is None:
            self.lost = f"another process cannot be reached ({squeeze(str(error))[:160]})"
        return told

    def say_lost(self) -> int:
        """Says once for all processes which one died, records it, and gives the exit code."""
        self.leaving = True
        if self._last_word.acquire(blocking=False):
            if self._speaks():
                self._say(str(self.lost))
        else:
            time.sleep(2 * _PATIENCE)  # the thread is at it, and ends the process
        return self._lost_code

    def say_stopped(self, stop: Stopped) -> None:
        self.leave(stop.code)
        if rank_zero_only.rank:  # type: ignore[attr-defined]  # set by Lightning
            return
        at = "" if self.stopped_at is None else f" at step {self.stopped_at}, saved"
        self._say(f"{stop}{at}")

    def queue_again(self) -> None:
        """Gives the job back to Slurm, when everything is saved and recorded. All processes wait for the first: the
        end of one may be the end of the job step."""
        if self.job is None:
            return
        if not rank_zero_only.rank:  # type: ignore[attr-defined]
            try:
                subprocess.run(["scontrol", "requeue", self.job], check=True, capture_output=True, timeout=60)
            except (OSError, subprocess.SubprocessError) as error:
                print(f"lra-ssm: job {self.job} is not queued again: {squeeze(str(error))}", file=sys.stderr)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()

    def end_children(self, patience: float = 0.0) -> None:
        """The processes that Lightning started end with this one."""
        until = time.monotonic() + patience
        for process in self._children():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            process.kill()

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while True:
            if select.select([self._end], [], [], _POLL)[0]:
                received = os.read(self._end, 256)
                if 0 in received:  # no signal: the end
                    return
                for signum in received:
                    self._note(signum)
            now = time.monotonic()
            if self._asked and not self.training and now - self._asked[0] > _PATIENCE:
                self._end_now(str(Stopped(self._asked[1])), self._asked[1])
            self._look_after_peers()
            patience = _PATIENCE if self._is_told() else _PATIENCE / 4
            if self._lost_at and not self.leaving and now - self._lost_at > patience:
                self._end_now(str(self.lost), self._lost_code - 128)

    def _is_told(self) -> bool:
        """Whether a collective of the main thread breaks off where a process is lost.

        Before the processes have met in torch there is none. NCCL's never ends; torch's watchdog sees it (at once, or
        after half an hour on one machine), waits for a minute and aborts the process, which then says nothing of ours.
        """
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return self._peers is None
        return torch.distributed.get_backend() == "gloo"

    def _note(self, signum: int) -> None:
        if signum not in self._before:  # somebody else's, such as SIGCHLD
            return
        now = time.monotonic()
        self._asked = self._asked or (now, signum)
        if signum in _URGENT:
            self._urgent_at = self._urgent_at or now
            if now - self._urgent_at > _ONE:
                self._end_now(f"ended at once by a second {signal.Signals(signum).name}", signum)

    def _look_after_peers(self) -> None:
        children = self._children()
        if children:
            for thread in threading.enumerate():
                if thread.name == "child-process-observer":  # Lightning's, which kills this process without a word
                    thread._child_processes = []  # type: ignore[attr-defined]
        if self.leaving or self.lost:
            return
        for rank, process in enumerate(children, 1):
            if code := process.poll():
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else peers.how(code)
                self._lose(rank, how, 128 - code if code < 0 else code)
        first_died = self._child and os.getppid() != self._parent
        if gone := (0, peers.DIED) if first_died else self._peers and self._peers.look():
            self._first_is_gone = gone in ((0, peers.DIED), (0, peers.ABSENT))
            self._lose(gone[0], peers.how(gone[1]), max(1, gone[1]))

    def _lose(self, rank: int, how: str, code: int) -> None:
        self.lost = f"{f'process {rank}' if rank else 'the first process'} of the run {how}"
        self._lost_code, self._lost_at = code, time.monotonic()

    def _end_now(self, why: str, signum: int) -> NoReturn:
        """Where the main thread cannot: it waits for something that may never come."""
        self.leave(128 + signum)
        if not self._last_word.acquire(blocking=False):
            time.sleep(_PATIENCE)
        elif self._speaks():
            self._say(why)
            if self.run is not None:
                with suppress(Exception):
                    self.run.close()
        with suppress(Exception):
            self.end_children()
        os._exit(128 + signum)

    # -- in both ---------------------------------------------------------------------------------------------------

    def _children(self) -> list[Any]:
        return list(getattr(self._launcher, "procs", ()))

    def _speaks(self) -> bool:
        """Whether this process is the one to say and record it: who holds the run, or can take it from the dead."""
        run, rank = self.run, getattr(rank_zero_only, "rank", 0)
        if run is None or not run.path.is_dir():
            return rank == 0 or (rank == 1 and self._first_is_gone)
        if run.held:
            return True
        with suppress(InputError, OSError):
            run.lock()
            if run.record.get("status") == "started":
                return True  # `close` records it
            run.release()
        return rank == 0

    def _say(self, why: str) -> None:
        """One line for the user; of the thread by the system's call, for the main thread may hold the stream."""
        if self._lost_code == 2:
            return  # the process that died has said why
        run = self.run
        if run is not None:
            where = f" from {run.last}" if run.last.is_file() else ": nothing was saved yet"
            why = f"{why}; the same command goes on{where}"
        if threading.current_thread() is threading.main_thread():
            print(f"lra-ssm: {why}", file=sys.stderr, flush=True)
        else:
            os.write(2, f"lra-ssm: {why}\n".encode())


def _job() -> str | None:
    """What Slurm calls this job, in an array its task."""
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ.get("SLURM_JOB_ID")


_active: Signals | None = None


def active() -> Signals | None:
    """The signals of this process, while somebody listens."""
    return _active


@contextmanager
def listening() -> Iterator[Signals]:
    """Takes the process's signals for the block, and gives them back after it; in the main thread, and once."""
    global _active
    if _active is not None or threading.current_thread() is not threading.main_thread():
        yield _active or Signals()
        return
    signals = Signals()
    try:
        _active = signals
        signals.install()
        yield signals
    finally:
        _active = None
        signals.uninstall()


def _forget() -> None:
    global _active
    if _active is not None:
        _active.forget()
        _active = None


os.register_at_fork(after_in_child=_forget)
