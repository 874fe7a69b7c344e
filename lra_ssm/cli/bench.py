"""`lra-ssm bench`: measures the package on this machine."""

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_ssm.cli.output import PlainParser
from lra_ssm.errors import InputError
from lra_ssm.files import replacing, write_json

if TYPE_CHECKING:
    from lra_ssm.bench.compare import Settings

SUITES = ("operators", "layers", "steps", "data", "tokens", "language")

DESCRIPTION = """\
Measures time, memory and errors on this machine, each contender in turn, and writes them to a folder as JSON and a
picture: operators (scans and S4D against the obvious PyTorch ways to write them, and growth with length), layers,
steps (whole training steps, samples/s and tokens/s, and where their time goes), data (loaders), tokens (texts to
tokens, against datasets.map), language (Mamba at two sizes, training and generation, against its matrix products,
mamba.py and transformers), tune (other cuts of the Triton kernels into programs, on a GPU), or all but tune."""

EXAMPLE = """\
examples:
  lra-ssm bench --quick
  lra-ssm bench all --out=docs/bench/my-laptop --threads=2
  lra-ssm bench steps --batch=8 --config=configs/lra/listops/b2s6.yaml
  lra-ssm bench tokens --source=corpus/ --tokenizer=gpt2
  lra-ssm bench language --sizes=small --threads=2
"""


def _parser() -> PlainParser:
    parser = PlainParser("lra-ssm bench", DESCRIPTION, EXAMPLE)
    parser.add_argument("suite", nargs="?", default="operators", choices=(*SUITES, "tune", "all"), metavar="SUITE",
                        help=f"{', '.join(SUITES)}, tune or all (but tune); default: operators")  # fmt: skip
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    parser.add_argument("--backends", default="auto", metavar="LIST", help="of the selective scan, comma-separated; "
                        "default: every one that runs on the device (layers and steps: the fastest)")  # fmt: skip
    parser.add_argument("--lengths", metavar="LIST", help="sequence lengths, comma-separated; steps take the first")
    parser.add_argument("--batch", type=_positive, metavar="N", help="batch size")
    parser.add_argument("--channels", type=_positive, metavar="N", help="D, of operators and layers")
    parser.add_argument("--states", type=_positive, metavar="N", help="N, of operators")
    parser.add_argument("--repeats", type=_positive, metavar="N", help="samples of each contender; default: 15")
    parser.add_argument("--budget", type=_positive, default=10, metavar="SECONDS",
                        help="of one contender at one size; slow ones get fewer samples; default: 10")  # fmt: skip
    parser.add_argument("--threads", type=_positive, metavar="N", help="of the CPU; default: torch's")
    parser.add_argument("--config", metavar="LIST", help="steps: these config files, comma-separated, instead of three "
                        "of ListOps (on a GPU: all six LRA tasks' and sCIFAR's)")  # fmt: skip
    parser.add_argument("--source", metavar="PATH", help="tokens: a text file, .jsonl, or folder of .txt; default: "
                        "made-up words")  # fmt: skip
    parser.add_argument("--tokenizer", metavar="NAME", help="tokens: a tokenizer.json, a name of the hub, words, "
                        "characters, bytes or bpe:N; default: bpe:16000, trained on the texts")  # fmt: skip
    parser.add_argument("--sizes", metavar="LIST", help="language: small (8 x 256) and 130m, comma-separated; default: "
                        "both")  # fmt: skip
    parser.add_argument("--compile", action="store_true", help="operators: also a loop under torch.compile; slow")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether everything runs, in seconds")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), metavar="FOLDER",
                        help="where <suite>.json and <suite>.png go; default: bench-results")  # fmt: skip
    return parser


def main(command: str, arguments: list[str]) -> int:
    parser = _parser()
    if arguments and arguments[0] in ("-h", "--help"):
        parser.print_help()
        return 0
    given = parser.parse_args(arguments)
    from lra_ssm.bench.report import LEGEND, check_folder, describe_machine, hardware_line

    settings = _settings(given)
    suites = SUITES if given.suite == "all" else (given.suite,)
    if "steps" in suites or "data" in suites:
        from lra_ssm.bench.steps import configs_of, read_config

        for file in configs_of(settings):
            read_config(file)
    if "tokens" in suites:
        from lra_ssm.bench.tokens import check

        check(settings)
    if "tune" in suites:
        from lra_ssm.bench import tune

        tune.check(settings)
    check_folder(given.out)
    machine = describe_machine(settings)
    print(f"{hardware_line(machine)}\n{LEGEND}\n", flush=True)
    for suite in suites:
        if suite in ("layers", "steps", "tune") and given.backends == "auto":
            settings.backends = settings.backends[:1]
        kept = _Kept(suite, machine, given.out)
        settings.done = kept.add
        try:
            with _sigterm_as_interrupt():
                result = _measured(suite, settings)
        except KeyboardInterrupt as stop:
            return kept.say_cut_off(code=int(str(stop) or 130))
        _show_and_write(suite, result, machine, given.out)
        kept.file.unlink(missing_ok=True)
    return 0


class _Kept:
    """What a suite has measured so far, on disk after each comparison: the rest may never come."""

    def __init__(self, suite: str, machine: dict[str, Any], folder: Path) -> None:
        self.file, self.rows = folder / f"{suite}.unfinished.json", list[Any]()
        self.suite, self.machine = suite, machine

    def add(self, rows: Sequence[Any]) -> None:
        from lra_ssm.bench.report import plain

        self.rows += rows
        write_json(self.file, plain({"suite": self.suite, "machine": self.machine, "rows": self.rows}))

    def say_cut_off(self, code: int) -> int:
        from lra_ssm.bench.report import rows_text

        left = "nothing was measured yet"
        if self.rows:
            print(rows_text(self.rows), flush=True)
            left = f"the comparisons that were finished are in {self.file}"
        print(f"lra-ssm: error: {self.suite} was interrupted; {left}", file=sys.stderr)
        return code


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM, which a scheduler sends at a job's end, stops as Ctrl-C does, with its own exit code."""

    def stop(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt(128 + signum)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return value


def _settings(given: argparse.Namespace) -> "Settings":
    """Checked against what this machine has; sets the number of threads."""
    import torch

    from lra_ssm.bench.compare import Settings
    from lra_ssm.bench.measure import Effort
    from lra_ssm.bench.work import auto_backends
    from lra_ssm.ops import scan_backends

    device = torch.device(given.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no GPU here")
    backends = auto_backends(device)
    if given.backends != "auto":
        reasons, backends = scan_backends(device), given.backends.split(",")
        for name in backends:
            if name not in reasons:
                raise InputError(f"--backends: unknown backend {name!r}; there are {', '.join(reasons)}")
            if reasons[name] is not None:
                raise InputError(f"--backends: {name} cannot run on {device.type}: {reasons[name]}")
    lengths = None
    if given.lengths is not None:
        try:
            lengths = [_positive(text) for text in given.lengths.split(",")]
        except argparse.ArgumentTypeError as error:
            raise InputError(f"--lengths: {error}") from error
    sizes = None
    if given.sizes is not None:
        from lra_ssm.bench.language import SIZES

        sizes = given.sizes.split(",")
        for name in sizes:
            if name not in SIZES:
                raise InputError(f"--sizes: unknown size {name!r}; there are {', '.join(SIZES)}")
    for name, group in (("channels", 8), ("states", 1)):  # B2S6 has 8 blocks of channels
        value = getattr(given, name)
        if value is not None and value % group:
            raise InputError(f"--{name} {value}: must be a multiple of {group}")
    if given.threads:
        torch.set_num_threads(given.threads)
    tiny = Effort(repeats=given.repeats or 3, budget=0.2, least=1, sample=0.0)
    effort = tiny if given.quick else Effort(given.repeats or 15, given.budget)
    same = {
        name: getattr(given, name) for name in ("quick", "batch", "channels", "states", "config", "source", "tokenizer")
    }
    threads = torch.get_num_threads()
    return Settings(device, backends, threads, effort, lengths=lengths, compiled=given.compile, sizes=sizes, **same)


def _measured(suite: str, settings: "Settings") -> dict[str, Any]:
    """Runs a suite under a progress line that moves between samples alone: a thread of its own would be measured."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from lra_ssm.bench.measure import core_seconds, waiting_share
    from lra_ssm.bench.report import WAITING

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.completed} measured"),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as progress:
        task = progress.add_task(suite)

        def announce(text: str) -> None:
            if not progress.console.is_terminal:  # a log file: one line for each thing measured
                progress.console.print(f"{suite}: {text}", highlight=False, soft_wrap=True)
            progress.update(task, description=f"{suite}: {text}")
            progress.refresh()

        def tick() -> None:
            progress.advance(task)
            progress.refresh()

        settings.announce, settings.tick = announce, tick
        before = core_seconds()
        result = import_module(f"lra_ssm.bench.{suite}").run(settings)
        return {**result, WAITING: waiting_share(before, core_seconds())}


def _show_and_write(suite: str, result: dict[str, Any], machine: dict[str, Any], folder: Path) -> None:
    from lra_ssm.bench.plot import bar_plot, growth_plot
    from lra_ssm.bench.report import hardware_line, plain, suite_text

    print(suite_text(suite, result), flush=True)
    title = hardware_line(machine)
    draw = growth_plot(result["growth"], title) if suite == "operators" else bar_plot(
        result["bars"], result["unit"], f"{suite}\n{title}"
    )  # fmt: skip
    with replacing(folder / f"{suite}.png", "wb") as file:
        draw(file)
    written = {name: value for name, value in result.items() if name not in ("growth", "bars", "unit")}
    write_json(folder / f"{suite}.json", plain({"suite": suite, "machine": machine, **written}))
    print(f"\n{folder / suite}.json, {folder / suite}.png\n", file=sys.stdout, flush=True)
