"""Whether the disk has room for what is to be written, and how long that takes."""

import shutil
import sys
from pathlib import Path

from lra_ssm.errors import InputError
from lra_ssm.tables import duration, wrapped

SOON_S = 5.0


def check_disk_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Makes sure that a folder's disk has room.

    Args:
        folder: an existing folder on the disk.
        needed_bytes: what is still to be written.
        what: what needs the room, as the message begins.

    Raises:
        InputError: there is less; names both amounts in GB (10⁹ bytes).
    """
    free = shutil.disk_usage(folder).free
    if needed_bytes > free:
        raise InputError(
            f"{what} needs {needed_bytes / 1e9:.3f} GB on the disk of {folder}, where {free / 1e9:.3f} GB are free;"
            " make room or choose another data root"
        )


def say_cost(what: str, seconds: float, needed_bytes: int) -> None:
    """Says what time and room something takes whose parts are kept when it is stopped; nothing of what is soon over."""
    if seconds >= SOON_S:
        more = "stopped, the same command goes on from what is drawn"
        said = f"{what}: about {duration(seconds)} and {needed_bytes / 1e9:.1f} GB; {more}"
        print(wrapped(said), file=sys.stderr, flush=True)
