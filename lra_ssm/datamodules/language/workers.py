"""Processes that make parts, each with one thread, each taking the next piece when it has made one.

Plain child processes instead of multiprocessing, for the reasons given in listops/generator.py: a child holds no lock
of its parent's, and ends when nobody reads from it any more. Needs no torch.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from lra_ssm.datamodules.language.documents import CorpusReader, Piece
from lra_ssm.datamodules.language.parts import write_part
from lra_ssm.datamodules.language.saved import load_tokenizer
from lra_ssm.errors import InputError
from lra_ssm.files import one_reason

Progress = Callable[[int, int], None]  # bytes of files and tokens done since the last call

_ONE_THREAD = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_NUM_THREADS": "1",
}
_REASON = 600  # characters of a reason, so that its message is one write to the pipe, whatever they are


class BadCorpus(InputError):
    """The corpus cannot be read as it is: what was made of it will not serve when it is mended."""


class Job(NamedTuple):
    """What all parts of a corpus have in common."""

    parts: Path
    tokenizer: Path  # the saved one
    end_of_text: int
    reader: CorpusReader


def make_parts(job: Job, pieces: Sequence[tuple[int, Piece]], processes: int, progress: Progress) -> None:
    """Makes the parts of pieces, given with their numbers.

    Args:
        job: what they have in common.
        pieces: the largest first is quickest.
        processes: how many; 1 for none but this one.
        progress: is told as they go.

    Raises:
        BadCorpus: a piece cannot be read; what other pieces were under way leave nothing.
        InputError: a process was killed, or the disk is full.
    """
    processes = min(processes, len(pieces))
    if processes <= 1 or not sys.executable:
        tokenizer = load_tokenizer(job.tokenizer, job.end_of_text)
        for number, piece in pieces:
            try:
                write_part(job.parts, number, piece, job.reader, tokenizer, progress)
            except InputError as error:
                raise BadCorpus(str(error)) from error
        return
    reading, writing = os.pipe()
    children: list[subprocess.Popen[bytes]] = []
    try:
        try:
            for index in range(processes):
                children.append(_start(job, index, writing))
        finally:
            os.close(writing)
        waiting = iter(pieces)
        for child in children:
            _give(child, next(waiting, None))
        left = len(pieces)
        with os.fdopen(reading) as messages:
            for line in messages:
                index, what, value = json.loads(line)
                if what == "bad":
                    raise BadCorpus(value)
                if what == "failed":
                    raise InputError(value)
                if what == "done":
                    left -= 1
                    _give(children[index], next(waiting, None))
                else:
                    progress(*value)
        if left:
            codes = [child.wait() for child in children]
            raise InputError(
                f"{job.parts}: processes that tokenise ended with exit codes {codes} (-9: killed, as for want of"
                " memory); start again with fewer --processes: what is done stays done"
            )
    finally:
        for child in children:
            child.kill()
            assert child.stdin is not None
            try:
                child.stdin.close()
            except BrokenPipeError:
                pass
            child.wait()


def _start(job: Job, index: int, writing: int) -> "subprocess.Popen[bytes]":
    start = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from lra_ssm.datamodules.language import workers"
    child = subprocess.Popen(
        [sys.executable, "-c", f"{start}; workers.work(int(sys.argv[2]))"]
        + [json.dumps([entry or os.getcwd() for entry in sys.path]), str(index)],
        stdin=subprocess.PIPE,
        stdout=writing,
        env={**os.environ, **_ONE_THREAD},
    )
    _send(child, job)
    return child


def _give(child: "subprocess.Popen[bytes]", piece: tuple[int, Piece] | None) -> None:
    """The next piece; None: there is none left."""
    _send(child, piece)


def _send(child: "subprocess.Popen[bytes]", what: Any) -> None:
    assert child.stdin is not None
    try:
        pickle.dump(what, child.stdin)
        child.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended: its exit code is looked at when nobody writes any more


def work(index: int) -> None:
    """A child: reads its job and then pieces from the standard input, says on the standard output what it did."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent is the one to act on it
    given: IO[bytes] = sys.stdin.buffer
    try:
        job: Job = pickle.load(given)
        tokenizer = load_tokenizer(job.tokenizer, job.end_of_text)
        while (task := pickle.load(given)) is not None:
            number, piece = task
            write_part(job.parts, number, piece, job.reader, tokenizer, lambda *done: _say(index, "progress", done))
            _say(index, "done", number)
    except (EOFError, BrokenPipeError):
        sys.exit(0)  # the parent was killed
    except (InputError, OSError) as error:
        _say(index, "failed" if isinstance(error, OSError) else "bad", one_reason(error)[:_REASON])


def _say(*message: Any) -> None:
    """One write, shorter than a pipe takes at once, so that messages of several processes do not mix."""
    os.write(1, json.dumps(message, ensure_ascii=False).encode() + b"\n")
