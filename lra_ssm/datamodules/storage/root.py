"""Where datasets live: the argument, else the environment variable LRA_SSM_DATA, else ./data."""

import os
from pathlib import Path

from lra_ssm.errors import InputError

ENVIRONMENT_VARIABLE = "LRA_SSM_DATA"


def resolve_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The data root as an absolute path; looks at nothing and creates nothing.

    Args:
        root: the user's choice (`--data.root`); None or "" means LRA_SSM_DATA, else `data` in the working directory.
    """
    chosen = os.fspath(root or os.environ.get(ENVIRONMENT_VARIABLE) or "data")
    return Path(os.path.abspath(os.path.expanduser(chosen)))


def ensure_root(root: Path) -> bool:
    """Makes sure that the data root exists and can be written.

    Returns:
        True if this call created it.

    Raises:
        InputError: its parent is missing, it is no folder, or it cannot be written; nothing is created then.
    """
    hint = f"choose another with --data.root or {ENVIRONMENT_VARIABLE}"
    created = False
    if not root.exists():
        if not root.parent.is_dir():
            raise InputError(f"data root {root}: its parent {root.parent} is no existing folder; create it, or {hint}")
        try:
            root.mkdir()
            created = True
        except FileExistsError:
            pass  # another process was faster
        except OSError as error:
            raise InputError(f"data root {root}: cannot be created ({error.strerror}); {hint}") from error
    if not root.is_dir():
        raise InputError(f"data root {root}: is a file, not a folder; {hint}")
    if not os.access(root, os.W_OK | os.X_OK):
        raise InputError(f"data root {root}: cannot be written; change its permissions, or {hint}")
    return created
