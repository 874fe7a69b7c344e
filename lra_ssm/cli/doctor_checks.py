"""What `lra-ssm doctor` finds out about an installation and its machine, apart from the operators and the data."""

import netrc
import os
import re
import shlex
import shutil
import sys
import sysconfig
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lra_ssm.files import one_reason

_LITTLE = 1e9  # bytes free: less is said
_HUB_PATIENCE = 2.5  # seconds
_WANDB = "https://api.wandb.ai"


@dataclass
class Finding:
    """text: what is shown behind the check's name; wrong: what must be mended; notes: what is gone on without."""

    text: str
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


# --- the installation ---


def requirements() -> Finding:
    """Whether what is installed is what this package asks for."""
    from packaging.requirements import Requirement

    try:
        stated = metadata.requires("lra-ssm") or []
    except metadata.PackageNotFoundError:
        return Finding("", notes=["lra-ssm is not installed, only imported: its requirements are not checked"])
    wrong = []
    for text in stated:
        asked = Requirement(text)
        if asked.marker is not None and not asked.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(asked.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{asked.name} is not installed: pip install '{_plain(asked)}'")
            continue
        if not asked.specifier.contains(version, prereleases=True):
            wrong.append(f"{asked.name} {version} is installed, lra_ssm takes others: pip install '{_plain(asked)}'")
    return Finding("", wrong)


def _plain(requirement: Any) -> str:
    return f"{requirement.name}{requirement.specifier}"


def gpus() -> Finding:
    """The GPUs that torch sees, and whether there are some that it does not."""
    import torch

    found = []
    for number in range(torch.cuda.device_count()):
        is_ = torch.cuda.get_device_properties(number)
        found.append(f"{is_.name}, {is_.total_memory / 1e9:.0f} GB, compute capability {is_.major}.{is_.minor}")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if found or hidden is not None or not Path("/proc/driver/nvidia/version").exists():
        return Finding("; ".join(found) or ("no GPU" if hidden is None else f"no GPU (CUDA_VISIBLE_DEVICES={hidden})"))
    built = f"was built for CUDA {torch.version.cuda}" if torch.version.cuda else "was built without CUDA"
    said = f"there is an NVIDIA driver, but torch {torch.__version__} {built} and finds no GPU"
    return Finding("no GPU", [f"{said}: install torch for this driver (nvidia-smi shows its CUDA version)"])


def command(name: str) -> Finding:
    """Whether `name` on the PATH is this installation's command."""
    given = shutil.which(name)
    own = f"{shlex.quote(sys.executable)} -m lra_ssm"
    if given is None:
        said = f"{name} is not on the PATH: {own} is the same, or add {sysconfig.get_path('scripts')} to the PATH"
        return Finding("not on the PATH", notes=[said])
    script = Path(given).read_bytes()[: 1 << 14]
    if b"lra_ssm.cli" not in script:
        said = f"{name} on the PATH is {given}, which is not lra_ssm's: another package has taken the name"
        repair = "pip install --force-reinstall --no-deps lra-ssm (in a checkout: -e .)"
        return Finding(f"{given}, not ours", [f"{said}; use {own}, or install this package again: {repair}"])
    # In the first line, or where its path is long or has blanks in a shell's command below.
    if os.fsencode(Path(sys.executable).with_name("python")) in script:
        return Finding(f"{given}, ours")
    said = f"{name} on the PATH is {given}, of another installation"
    repair = f"put {sysconfig.get_path('scripts')} first on the PATH"
    return Finding(f"{given}, of another installation", [f"{said}; use {own}, or {repair}"])


# --- the machine ---


def space(name: str, folder: Path) -> Finding:
    """Free bytes on the disk of a folder, which need not exist yet."""
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    try:
        free = shutil.disk_usage(there).free
    except OSError as error:
        return Finding(f"{folder}: {error.strerror}", notes=[f"{name} {folder}: {error.strerror}"])
    parts = [f"{free / 1e9:,.1f} GB free"]
    if there != folder:
        parts.append("not there yet")
    if not os.access(there, os.W_OK):
        parts.append("cannot be written")
    wrong = [f"{name} {folder}: {free / 1e9:.2f} GB are free: make room, or choose another"] if free < _LITTLE else []
    return Finding(f"{folder}, {', '.join(parts)}", wrong)


def cache(folders: list[Path]) -> Finding:
    """Where the compiled kernels are kept: the first of the folders that can be written."""
    for folder in folders:
        with suppress(OSError):  # as the first use of the kernels does
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return space("the cache", folder)
    tried = " and ".join(map(str, folders)) or "a cache (there is no HOME)"
    said = f"{tried} cannot be written: every process compiles the CPU kernels anew, which takes minutes"
    return Finding("none", notes=[f"{said}; set LRA_SSM_CACHE to a folder that can"])


def slurm() -> Finding:
    return Finding(shutil.which("sbatch") or "no Slurm here")


def wandb() -> Finding:
    """Whether wandb is installed and knows an account; it is not imported, which takes a second."""
    try:
        version = metadata.version("wandb")
    except metadata.PackageNotFoundError:
        return Finding("not installed")
    mode = os.environ.get("WANDB_MODE")
    if os.environ.get("WANDB_API_KEY"):
        login = "logged in (WANDB_API_KEY)"
    else:
        host = urlsplit(os.environ.get("WANDB_BASE_URL") or _WANDB).hostname or ""
        try:
            file = os.environ.get("NETRC")
            login = "logged in" if netrc.netrc(file).hosts.get(host) else "not logged in"
        except (OSError, netrc.NetrcParseError):
            login = "not logged in"
    return Finding(", ".join([version, login, *([f"WANDB_MODE={mode}"] if mode else [])]))


def hub() -> Finding:
    """Whether the Hub answers, unless it is not to be asked."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.utils import get_session

    token = "a token is set" if get_token() else "no token (public models need none)"
    endpoint = constants.ENDPOINT
    place = re.sub(r"//[^/]*@", "//…@", endpoint)  # without a password in it
    shown = f"{place}, {token}"
    if constants.HF_HUB_OFFLINE:
        return Finding(f"{shown}, offline (HF_HUB_OFFLINE): not asked")
    said: list[str] = []

    def ask() -> None:
        try:
            status = get_session().head(endpoint, timeout=_HUB_PATIENCE).status_code
            said.append("" if status < 500 else f"answers with status {status}")
        except Exception as error:  # of several libraries, with the versions of huggingface_hub
            said.append(one_reason(error)[:200])

    asking = threading.Thread(target=ask, daemon=True)  # looking up a name may take longer than any timeout
    asking.start()
    asking.join(_HUB_PATIENCE)
    failure = said[0] if said else f"no answer within {_HUB_PATIENCE:g} s"
    if not failure:
        return Finding(f"{shown}, answers")
    found = Finding(f"{shown}, cannot be reached")
    reason = f"the Hub at {place} cannot be reached ({failure.replace(endpoint, place)})"
    if os.environ.get("HF_ENDPOINT"):
        found.wrong.append(f"{reason}, which is what HF_ENDPOINT says: correct it")
    else:
        more = "HF_ENDPOINT names a mirror, HF_HUB_OFFLINE=1 says not to ask"
        found.notes.append(f"{reason}: pull and push need it; {more}")
    return found
