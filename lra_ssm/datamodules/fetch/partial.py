"""The part of a file that has been downloaded, and what it is a part of."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lra_ssm.datamodules.fetch.answers import Answer, date, strong_etag


@dataclass(frozen=True)
class Version:
    """What a partial file is a part of: address, strong ETag or date of change, size; None where not known."""

    url: str
    etag: str | None = None
    last_modified: str | None = None
    size: int | None = None

    @property
    def validator(self) -> str | None:
        """What tells this version from others."""
        return self.etag or self.last_modified

    def is_of(self, answer: Answer, lenient: bool) -> bool:
        """Whether an answer is of this version; `lenient`: or does not say of which."""
        now = answer.etag if self.etag else answer.last_modified
        return now == self.validator or (lenient and now is None)


class PartialFile:
    """<name>.partial and, beside it, <name>.partial.json. The two never disagree, whenever the process is killed."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.partial"
        self._note = folder / f"{name}.partial.json"
        self.files = self.path, self._note

    def received(self) -> int:
        """How many bytes are there."""
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self) -> Version | None:
        """What it is a part of; None if nobody knows."""
        try:
            found = Version(**json.loads(self._note.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError, RecursionError):
            return None
        known = isinstance(found.url, str) and (found.size is None or type(found.size) is int)
        sound = found.etag == strong_etag(found.etag) and found.last_modified == date(found.last_modified)
        return found if known and sound else None

    def begin(self, version: Version) -> None:
        """Forgets what was received: this is coming now, from its beginning."""
        self.discard()  # before the new note is written
        self._note.write_text(json.dumps(asdict(version)), encoding="utf-8")

    def finish(self) -> None:
        """The partial file has got its own name."""
        self._note.unlink(missing_ok=True)

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)
