"""What the log of a run says of its last attempt."""

import re
import socket
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lra_ssm.errors import squeeze
from lra_ssm.runs.provenance import now

ATTEMPT, _ENDED = "== attempt ", "== ended: "  # lines before an attempt, and after some
_ERROR, _OURS = "lra-ssm: error: ", "lra-ssm: "
_TAIL = 1 << 20  # bytes at the end of a log that are read
_ATTEMPT = re.compile(rf"^{ATTEMPT}(\S+) on (\S+)$", re.MULTILINE)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)$", re.MULTILINE)
# Slurm's last words: first the lines that say why, then those that only say that it ended. What srun says about exit
# codes repeats our own error.
_SLURM = (
    re.compile(r"^(?:slurmstepd|srun): error: (.*(?: DUE TO |oom_kill|[Oo]ut [Oo]f [Mm]emory|OOM|NODE FAIL).*)$", re.M),
    re.compile(r"^(?:slurmstepd|srun): error: (.*(?:CANCELLED|PREEMPT|exceeded|[Kk]illed).*)$", re.M),
)


@dataclass(frozen=True)
class Attempt:
    """The last attempt in a log."""

    began: float = 0.0  # seconds since 1970; 0 where the log does not say
    host: str | None = None
    error: str = ""  # the text of its last `lra-ssm: error: …`
    ended: str = ""  # how its process ended, written by the process that started it
    ours: str = ""  # the last other line that begins with `lra-ssm: `
    others: str = ""  # the last line of a traceback, or Slurm's words
    last: str = ""  # the last line of all

    @property
    def over(self) -> bool:
        """Whether the log says that it ended."""
        return bool(self.error or self.ended or self.others) or self.ours.startswith("stopped by")


def begin_line() -> str:
    """The line before an attempt; the script for Slurm writes the same."""
    return f"{ATTEMPT}{now()} on {socket.gethostname()}"


def ended_line(how: str) -> str:
    """The line after an attempt whose process could not say itself how it ended."""
    return f"{_ENDED}{how}"


def timestamp(time: Any) -> float:
    """Seconds since 1970 of a time as records and logs have it; 0 for anything else."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except (ValueError, TypeError):
        return 0.0


def last_attempt(log: Path) -> Attempt | None:
    """The last attempt, whatever the log holds; None where there is no log."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            text = file.read().decode(errors="replace").replace("\r", "\n")
    except OSError:
        return None
    began, host = 0.0, None
    if found := list(_ATTEMPT.finditer(text)):
        began, host, text = timestamp(found[-1][1]), found[-1][2], text[found[-1].end() :]
    lines = [line for line in text.splitlines() if line.strip()]
    others = [line for line in lines if not line.startswith(_ERROR)]
    slurm = next((f"Slurm: {said[-1].strip(' *')}" for one in _SLURM if (said := one.findall(text))), "")
    crash = (_TRACEBACK.findall(text) or [slurm])[-1]
    words = (_last(lines, _ERROR), _last(lines, _ENDED), _last(others, _OURS), crash, _last(lines, ""))
    return Attempt(began, host, *map(squeeze, words))


def _last(lines: list[str], prefix: str) -> str:
    return next((line.removeprefix(prefix) for line in reversed(lines) if line.startswith(prefix)), "")
