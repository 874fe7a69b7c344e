"""Make a CPU build of torch report one H100, for fake tensors. Import this before torch, in a separate process."""

import ctypes
import hashlib
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SOURCE = Path(__file__).with_name("guard.cpp")
PROPERTIES = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, total_memory=80 << 30, multi_processor_count=132, warp_size=32,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, L2_cache_size=50 << 20, uuid="",
    shared_memory_per_block_optin=232448, gcnArchName="",
)  # fmt: skip


def build() -> Path:
    """Return the compiled guard; compile it if it does not exist."""
    torch = Path(str(find_spec("torch").origin)).parent  # type: ignore[union-attr]
    key = hashlib.sha256(SOURCE.read_bytes() + (torch / "version.py").read_bytes()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"lra_ssm-guard-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{key}.so"
    if not library.exists():
        flags = ["-shared", "-fPIC", "-std=c++20", "-D_GLIBCXX_USE_CXX11_ABI=1", f"-I{torch / 'include'}"]
        made = folder / f"{key}-{os.getpid()}.new"
        subprocess.run(["c++", *flags, str(SOURCE), "-o", str(made)], check=True)
        made.replace(library)
    return library


def install(library: Path) -> None:
    assert "torch" not in sys.modules
    folder = Path(str(find_spec("torch").origin)).parent / "lib"  # type: ignore[union-attr]
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library))
    import torch
    import torch._subclasses.fake_tensor as fake_tensor

    def gives(value: Any) -> Any:
        return lambda *args, **kwargs: value

    torch.version.cuda = "13.0"
    fake_tensor.init_gpu_context = gives(None)
    for name, value in {
        "_lazy_init": None, "is_available": True, "device_count": 1, "current_device": 0, "set_device": None,
        "synchronize": None, "is_bf16_supported": True, "manual_seed": None, "manual_seed_all": None,
        "is_initialized": True, "get_device_properties": PROPERTIES, "get_device_name": PROPERTIES.name,
        "get_device_capability": (9, 0), "mem_get_info": (79 << 30, 80 << 30), "memory_allocated": 0,
        "max_memory_allocated": 0, "get_rng_state_all": [], "set_rng_state_all": None, "set_rng_state": None,
        "empty_cache": None, "reset_peak_memory_stats": None,
    }.items():  # fmt: skip
        setattr(torch.cuda, name, gives(value))
    torch.cuda._initialized = True
    torch.cuda.get_rng_state = lambda *_: torch.zeros(16, dtype=torch.uint8)
    torch.cuda.device = lambda *_: nullcontext()  # type: ignore[assignment,misc]
    import torch.utils.checkpoint as checkpoint

    checkpoint.get_device_states = gives(([], []))
    checkpoint.set_device_states = gives(None)
