"""What is known of a downloaded file, and the note of it that is kept beside the file for the manifests.

<name>.download.json    beside a downloaded file
download.json           in a folder that was unpacked of one
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lra_ssm.files import write_json

NOTE = "download.json"


@dataclass(frozen=True)
class DownloadNote:
    """What is in the folder now. All fields are fit for a manifest.

    Args:
        url: where it came from; None: it was there already, and nobody has noted from where.
        bytes: its size.
        sha256: in hexadecimal.
        digest: "published": it has the digest that its publisher gives; "unknown": none is published.
    """

    url: str | None
    bytes: int
    sha256: str
    digest: Literal["published", "unknown"]


def note_of(path: Path) -> Path:
    """Where the note of a downloaded file is, or of an unpacked folder."""
    return path / NOTE if path.is_dir() else path.with_name(f"{path.name}.{NOTE}")


def write_note(path: Path, note: DownloadNote) -> None:
    """Writes the note of a file or folder, whole or not at all."""
    write_json(note_of(path), asdict(note))


def read_note(path: Path, sha256: str | None = None) -> dict[str, Any]:
    """url, bytes, sha256 and digest of a downloaded file, or of the archive that a folder was unpacked of.

    Args:
        path: the file or folder.
        sha256: of the file; a note on other bytes (somebody has replaced the file) then does not count.

    Returns:
        {} where there is no such note.
    """
    try:
        note = asdict(DownloadNote(**json.loads(note_of(path).read_text(encoding="utf-8"))))
    except (OSError, ValueError, TypeError):
        return {}
    return note if sha256 in (None, note["sha256"]) else {}
