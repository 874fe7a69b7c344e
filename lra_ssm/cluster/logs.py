"""What the log of a run says of its last attempt. Logs may be long: they are read from the end."""

import os
import re
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lra_ssm.errors import squeeze
from lra_ssm.runs.provenance import now

ATTEMPT, _ENDED = "== attempt ", "== ended: "  # what stands in a log before an attempt, and after some
_ERROR, _OURS = "lra-ssm: error: ", "lra-ssm: "
_TAIL, _FAR = 1 << 14, 1 << 22  # bytes that are read first, and at most
_ATTEMPT = re.compile(rf"^{ATTEMPT}(\S+) on (\S+)$", re.MULTILINE)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)$", re.MULTILINE)
# Slurm's last words, those that say why before those that say that; srun's about exit codes follow our own.
_SLURM = (
    re.compile(r"^(?:slurmstepd|srun): error: .*(?: DUE TO |oom_kill|[Oo]ut [Oo]f [Mm]emory|OOM|NODE FAIL).*$", re.M),
    re.compile(r"^(?:slurmstepd|srun): error: .*(?:CANCELLED|PREEMPT|exceeded|[Kk]illed).*$", re.M),
)


@dataclass(frozen=True)
class Attempt:
    """The last attempt in a log."""

    began: datetime | None = None  # where the log says so
    host: str | None = None
    error: str = ""  # its last `lra-ssm: error: …`
    ended: str = ""  # how its process ended, by whoever had started it
    ours: str = ""  # another line of ours, the last one
    others: str = ""  # the last line of a traceback, or Slurm's words
    last: str = ""  # the last line of all

    @property
    def over(self) -> bool:
        """Whether the log says that it ended, however."""
        return bool(self.error or self.ended or self.others) or self.ours.startswith("stopped by")


def begin_line() -> str:
    """What stands in a log before an attempt; Slurm's script writes the same."""
    return f"{ATTEMPT}{now()} on {socket.gethostname()}"


def ended_line(how: str) -> str:
    """What stands after an attempt whose process said nothing itself."""
    return f"{_ENDED}{how}"


def last_attempt(log: Path) -> Attempt | None:
    """None where there is no log. Raises nothing for what a log may hold."""
    try:
        text = _tail(log)
    except OSError:
        return None
    began = host = None
    if found := list(_ATTEMPT.finditer(text)):
        host, text = found[-1][2], text[found[-1].end() :]
        try:
            began = datetime.fromisoformat(found[-1][1])
            began = began if began.tzinfo else began.replace(tzinfo=UTC)
        except ValueError:
            pass
    lines = [line for line in text.splitlines() if line.strip()]
    plain = [line for line in lines if not line.startswith(_ERROR)]
    crash = next((match[1] for match in reversed(list(_TRACEBACK.finditer(text)))), "")
    words = (_last(lines, _ERROR), _last(lines, _ENDED), _last(plain, _OURS), crash or _slurm(text), _last(lines, ""))
    return Attempt(began, host, *map(squeeze, words))


def _last(lines: list[str], prefix: str) -> str:
    return next((line.removeprefix(prefix) for line in reversed(lines) if line.startswith(prefix)), "")


def _slurm(text: str) -> str:
    for pattern in _SLURM:
        if found := pattern.findall(text):
            words = found[-1].partition("error: ")[2].strip(" *")
            return f"Slurm: {words}"
    return ""


def _tail(log: Path) -> str:
    """The end of a log, back to where its last attempt begins if that is not too far."""
    with open(log, "rb") as file:
        size, tail = file.seek(0, os.SEEK_END), _TAIL
        while True:
            file.seek(max(0, size - tail))
            text = file.read(tail).decode(errors="replace").replace("\r", "\n")
            if tail >= min(size, _FAR) or _ATTEMPT.search(text):
                return text
            tail *= 8
