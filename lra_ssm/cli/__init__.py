"""The commands: `lightning fit …` is `lra-ssm fit …` is `python -m lra_ssm fit …`.

This module loads neither torch nor lightning, so that `--help` and a mistyped command answer at once; each command's
own module does.
"""

import io
import logging
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from lra_ssm import __version__
from lra_ssm.errors import InputError, chain, hint, printable, squeeze
from lra_ssm.files import one_reason

# name -> (module, what it does); the module's main(command, arguments) returns an exit code.
COMMANDS = {
    "fit": ("lra_ssm.cli.run", "train a model; started again, a killed run is resumed"),
    "validate": ("lra_ssm.cli.run", "score a run's best checkpoint on the validation split"),
    "test": ("lra_ssm.cli.run", "score a run's best checkpoint on the test split"),
    "predict": ("lra_ssm.cli.run", "predict a split of a run's data, into a CSV file"),
    "configs": ("lra_ssm.cli.configs", "list the configs that come with the package, or print one"),
    "results": ("lra_ssm.cli.results", "what runs gave: a table beside the published rows, curves, ablations"),
    "runs": ("lra_ssm.cli.runs", "list runs, how far they are and what differs between them"),
    "prepare": ("lra_ssm.cli.prepare", "make a dataset ready: download, generate, or read its files"),
    "submit": ("lra_ssm.cli.submit", "run a sweep: one Slurm array, or some runs at a time here"),
    "status": ("lra_ssm.cli.status", "show where each run of a sweep stands"),
    "generate": ("lra_ssm.cli.generate", "continue texts with a language model"),
    "score": ("lra_ssm.cli.score", "say a language model's perplexity and bits per byte of any text"),
    "pull": ("lra_ssm.cli.pull", "fetch a saved model: the Hub, wandb; or list the names we know"),
    "push": ("lra_ssm.cli.push", "share a trained run: a folder, the Hub, wandb; with its card"),
    "export": ("lra_ssm.cli.export", "write a checkpoint, or the average of several, as a saved model"),
    "inspect": ("lra_ssm.cli.inspect", "show what a trained model remembers, and what in it is near instability"),
    "coordcheck": ("lra_ssm.cli.coordcheck", "check over widths whether a model's settings can hold for a wider one"),
    "doctor": ("lra_ssm.cli.doctor", "show what a bug report needs, run every backend, and say what is wrong here"),
}

HELP = f"""usage: lra-ssm COMMAND [options]      (also: lightning COMMAND, python -m lra_ssm COMMAND)

State-space models on the Long Range Arena and on language.

commands:
{chr(10).join(f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items())}

example:
  lightning fit --config quickstart

`lra-ssm COMMAND --help` lists a command's options; --debug shows the traceback behind a one-line error.
"""
_TOGETHER = ("fit", "validate", "test")  # what may be several processes
_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
DEBUG = "--debug"  # of every command; LRA_SSM_DEBUG=1 says the same


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. Bad input is one line on stderr and exit code 2."""
    try:
        code = _command(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return _unread()


def _command(argv: Sequence[str] | None) -> int:
    _wait_asleep()
    _plain_output()
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = [argument for argument in given if argument != DEBUG]
    debug = arguments != given or bool(os.environ.get("LRA_SSM_DEBUG"))
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    command, *rest = arguments
    if command in ("-V", "--version"):
        print(f"lra_ssm {__version__}")
        return 0
    if command not in COMMANDS:
        return _fail(f"unknown command {command!r}; {hint(command, COMMANDS)}")
    # A console script does not search the working folder; a user's own layer lives there (class_path: my_layer.Mine).
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return _run(command, rest, debug)


def _run(command: str, arguments: list[str], debug: bool) -> int:
    """The command's exit code; what it raises is told."""
    shown = warnings.formatwarning
    mask = _hold_signals_back() if command in _TOGETHER else None
    try:
        run = import_module(COMMANDS[command][0]).main
        shown = warnings.formatwarning  # Lightning's import set its own
        warnings.formatwarning = _warning_line
        return run(command, arguments)
    except (InputError, OSError) as error:
        if isinstance(error, BrokenPipeError) or _is_of_a_pipe(error):
            raise BrokenPipeError from error
        _show_traceback(debug)
        if isinstance(error, InputError):
            return _fail(str(error) if debug else f"{error}{error.more}")
        return _fail(one_reason(error))  # a folder on the way that nobody thought of, a disk that is full or read-only
    except Exception as error:
        _show_traceback(True)
        return _fail(f"{type(error).__name__}: {error}: not foreseen; please report it with the lines above", code=1)
    except KeyboardInterrupt:
        if int(os.environ.get("LOCAL_RANK") or 0):  # the first of several processes (DDP) speaks for all
            return 130
        return _fail("interrupted", code=130)
    finally:
        warnings.formatwarning = shown
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _hold_signals_back() -> set[int] | None:
    """Where srun starts several processes, a signal to one waits until it can tell the others, who would wait for it.

    `Signals.meet` takes the signals up again. Returns what was held back before.
    """
    if os.environ.get("SLURM_NTASKS", "1") == "1":
        return None
    return signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def _wait_asleep() -> None:
    """Threads that wait for each other sleep, unless the user chose otherwise: docs/threads.md says why."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & set(os.environ):
        os.environ["OMP_WAIT_POLICY"] = "passive"


def _fail(reason: str, code: int = 2) -> int:
    print(f"lra-ssm: error: {squeeze(reason)}", file=sys.stderr)
    return code


def _is_of_a_pipe(error: BaseException) -> bool:
    """Whether what is told as bad input began with a printed line that nobody reads."""
    pipe = select.poll()
    pipe.register(1, 0)
    return any(isinstance(e, BrokenPipeError) for e in chain(error)) and bool(pipe.poll(0))


def _unread() -> int:
    """Whoever read what is printed has read enough (`| head`): nothing more is said, as shells have it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes what is left
    return 128 + signal.SIGPIPE


def _show_traceback(debug: bool) -> None:
    if debug:
        print("\n".join(map(printable, traceback.format_exc().split("\n"))), end="", file=sys.stderr)


def _warning_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as one line. Where it comes from helps with other people's code; ours and Lightning's say enough."""
    known = {"lra_ssm", "lightning"} & set(Path(filename).parts)
    return squeeze(f"warning: {message}" + ("" if known else f" ({filename}:{lineno})")) + "\n"


def _plain_output() -> None:
    """What is printed may quote what others wrote: no character of it fails, and a warning is a printable line."""

    class Line(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return squeeze(super().format(record))

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if logging.lastResort is not None:  # what prints our warnings, as these commands set up no logging
        logging.lastResort.setFormatter(Line())
