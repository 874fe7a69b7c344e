"""The commands: `lightning fit …`, `lra-ssm fit …` and `python -m lra_ssm fit …` are the same.

This module loads neither torch nor lightning: `--help` and a mistyped command answer at once, and a command's module is
imported when the command is called.
"""

import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from lra_ssm import __version__
from lra_ssm.errors import InputError, describe_error, hint, to_one_line

# name -> ("module:function", what it does). The functions are typed, and `cli/command.py` makes their parsers.
COMMANDS = {
    "fit": ("lra_ssm.cli.fit:fit", "train a model, or resume a killed run"),
    "validate": ("lra_ssm.cli.fit:validate", "score a run's best checkpoint on the validation split"),
    "test": ("lra_ssm.cli.fit:test", "score a run's best checkpoint on the test split"),
    "predict": ("lra_ssm.cli.fit:predict", "predict a split of a run's data, into a CSV file"),
    "configs": ("lra_ssm.cli.data:configs", "list the configs that come with the package, or print one"),
    "results": (
        "lra_ssm.cli.sweeps:results",
        "show results of runs: a table next to the published rows, curves, plots",
    ),
    "prepare": ("lra_ssm.cli.data:prepare", "prepare a dataset: download, generate, or read its files"),
    "submit": ("lra_ssm.cli.sweeps:submit", "train the runs of a sweep: one Slurm array, or some at a time here"),
    "status": ("lra_ssm.cli.status:status", "show the progress of the runs of a sweep or a folder"),
    "generate": ("lra_ssm.cli.text:generate", "continue texts with a language model"),
    "score": ("lra_ssm.cli.text:score", "print a language model's perplexity and bits per byte of any text"),
    "pull": ("lra_ssm.cli.models:pull", "fetch a saved model: the Hub, wandb; or list the known names"),
    "push": ("lra_ssm.cli.models:push", "share a trained run: a folder, the Hub, wandb; with its card"),
    "export": ("lra_ssm.cli.models:export", "write a checkpoint, or the average of several, as a saved model"),
    "inspect": (
        "lra_ssm.cli.inspect:inspect",
        "show what a trained model remembers, and what in it is near instability",
    ),
    "coordcheck": (
        "lra_ssm.cli.coordcheck:coordcheck",
        "check over widths whether a model's settings hold for a wider one",
    ),
    "doctor": ("lra_ssm.cli.doctor:doctor", "show what a bug report needs, and run every backend"),
}

HELP = f"""usage: lra-ssm COMMAND [options]      (also: lightning COMMAND, python -m lra_ssm COMMAND)

State-space models on the Long Range Arena and on language.

commands:
{chr(10).join(f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items())}

example:
  lightning fit --config quickstart

`lra-ssm COMMAND --help` lists a command's options; with --debug an error is Python's own traceback.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    A user's mistake (InputError) or an error of the system (OSError) prints one line on stderr and gives exit code 2;
    any other error prints Python's own traceback.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = [argument for argument in given if argument != "--debug"]
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has read enough (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes what is left
        return 128 + signal.SIGPIPE
    except (InputError, OSError) as error:
        if arguments != given:
            raise
        print(f"lra-ssm: error: {to_one_line(describe_error(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if not int(os.environ.get("LOCAL_RANK") or 0):  # only the first of several processes (DDP) prints
            print("lra-ssm: error: interrupted", file=sys.stderr)
        return 130


def _run(arguments: list[str]) -> int:
    # Threads that wait for each other sleep, unless the user chose otherwise: docs/threads.md.
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & set(os.environ):
        os.environ["OMP_WAIT_POLICY"] = "passive"
    for stream in (sys.stdout, sys.stderr):  # other people's text may hold characters that a terminal cannot encode
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    command, *rest = arguments
    if command in ("-V", "--version"):
        print(f"lra_ssm {__version__}")
        return 0
    if command not in COMMANDS:
        raise InputError(f"unknown command {command!r}; {hint(command, COMMANDS)}")
    # A console script does not search the working folder, where a user's own layer is (class_path: my_layer.Mine).
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    module, _, name = COMMANDS[command][0].partition(":")
    function = getattr(import_module(module), name)
    if {"-h", "--help"} & set(rest):
        from lra_ssm.cli.help import show_help

        show_help(command, function, rest)
        return 0
    from lra_ssm.cli.command import call

    return call(command, function, rest)
