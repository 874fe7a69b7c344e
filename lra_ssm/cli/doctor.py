"""`lra-ssm doctor`: print what a bug report needs, and check whether each backend of the scans works here."""

import shutil
from pathlib import Path
from typing import Any

from lra_ssm.cli.summary import show_prepared
from lra_ssm.datamodules.storage import resolve_root
from lra_ssm.errors import to_one_line
from lra_ssm.tables import table, terminal_width, wrapped

_WIDTH = 11  # of the column of names
_TOLERANCE = 1e-4  # largest float32 error relative to float64; B2S6's gradients on a CPU have a thirtieth of it
_LITTLE = 1e9  # bytes
B, D, N, L = 1, 32, 8, 256  # batch, channels, states, length of the scan that is tried


def doctor(*, root: str | None = None, verify: bool = False) -> int:
    """Print versions, hardware, free space and prepared data, and run every backend of the scans once against the
    reference. The exit code is 1 if a backend gives wrong values or fails, or if there is no space.

    Args:
        root: data root; default: LRA_SSM_DATA, else ./data.
        verify: read all prepared data and compare its digests.

    Examples:
        lra-ssm doctor
        lra-ssm doctor --root=/data/lra --verify
        lra-ssm doctor > report.txt
    """
    import torch

    problems = _show_installation()
    problems += _show_space("runs", Path("runs").absolute())
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    print()
    for device in devices:
        problems += _show_backends(torch.device(device))
    print()
    data_root = resolve_root(root)
    problems += _show_space("data root", data_root)
    problems += show_prepared(data_root, verify)
    print()
    for line in problems:
        print(wrapped(f"WRONG: {to_one_line(line)}", 7))
    if not problems:
        print("nothing is wrong")
    return 1 if problems else 0


def _show(name: str, text: str) -> None:
    print(wrapped(to_one_line(f"{name:<{_WIDTH}}{text}"), _WIDTH), flush=True)


def _show_installation() -> list[str]:
    """Print versions and hardware; return a list of problems."""
    import sys

    import torch

    import lra_ssm
    from lra_ssm.runs.provenance import environment

    facts = environment()
    hardware = facts["hardware"]
    _show("versions", ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version))
    _show("installed", f"{Path(lra_ssm.__file__).parent}, for {sys.executable}")
    _show("hardware", f"{hardware['machine']}, {hardware['cpu']}, {hardware['cpus']} cores")
    properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    gpus = [f"{p.name}, {p.total_memory / 1e9:.0f} GB, compute capability {p.major}.{p.minor}" for p in properties]
    _show("GPUs", "; ".join(gpus) or "none")
    _show("commands", ", ".join(f"{name}: {shutil.which(name)}" for name in ("lightning", "lra-ssm", "sbatch")))
    command = shutil.which("lightning")
    if command and b"lra_ssm.cli" not in Path(command).read_bytes()[: 1 << 14]:
        return [
            f"{command} belongs to another package: use lra-ssm, or install it again (pip install --force-reinstall)"
        ]
    if not gpus and Path("/proc/driver/nvidia/version").exists():
        built = torch.version.cuda or "no CUDA"
        return [f"there is an NVIDIA driver, but torch {torch.__version__} (built for {built}) finds no GPU"]
    return []


def _show_space(name: str, folder: Path) -> list[str]:
    """Print the free space; return a list of problems."""
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    _show(name, f"{folder}, {free / 1e9:,.1f} GB free" + ("" if existing == folder else ", does not exist yet"))
    return [f"{folder}: only {free / 1e9:.2f} GB are free"] if free < _LITTLE else []


def _show_backends(device: Any) -> list[str]:
    """Run the scans of S6 and B2S6 with each backend of the device; return a list of problems."""
    import torch

    from lra_ssm import ops

    problems, rows = [], []
    for backend, reason in ops.scan_backends(device).items():
        cells = [str(device), backend]
        for scan, discretization in (("S6", "euler"), ("B2S6", "zoh")):
            if reason is not None:
                continue
            try:
                error = _largest_error(device, backend, discretization)
            except Exception as failure:  # any error of a compiler, a driver or a kernel
                message = to_one_line(str(failure))[:200]
                supported = "cannot run this call" not in message
                cells.append("fails" if supported else f"does not support it: {message.partition('this call: ')[2]}")
                problems += [f"{scan} by {backend} on {device} fails: {message}"] if supported else []
                continue
            cells.append(f"off by {error:.0e}")
            if not error <= _TOLERANCE:  # NaN is wrong, too
                problems.append(f"{scan} by {backend} on {device} is off by {error:.1e}; please report it")
        rows.append(cells if reason is None else [*cells, f"not here: {reason}", ""])
    print(table(("device", "backend", "S6, forward and backward", "B2S6"), rows, 4, terminal_width()), flush=True)
    if device.type == "cuda" and not any(row[1] in ("triton", "mamba_ssm") and "off" in row[2] for row in rows):
        problems.append("no fast scan runs on the GPU: pip install triton")
    torch.cuda.empty_cache()
    return problems


def _largest_error(device: Any, backend: str, discretization: str) -> float:
    """Return the largest difference of y and of the gradients from the reference in float64, over its largest value."""
    import torch

    from lra_ssm import ops

    random = torch.Generator().manual_seed(0)

    def randn(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=random)

    inputs: dict[str, Any] = {"u": randn(B, D, L), "delta": 0.1 * randn(B, D, L)}
    inputs |= {"D": randn(D), "delta_bias": randn(D) - 4}
    if discretization == "euler":
        inputs |= {"A": ops.initialize_A("real", N).repeat(D, 1), "B": randn(B, 1, N, L), "C": randn(B, 1, N, L)}
    else:
        groups = [torch.complex(randn(B, 8, N, L), randn(B, 8, N, L)) for _ in range(2)]
        inputs |= {"A": ops.initialize_A("legs", N), "B": groups[0], "C": groups[1].real}
        inputs["B_bias"] = torch.complex(randn(D, N), randn(D, N))
    weights = randn(B, D, L)

    def results(dtype: Any, scan_backend: str) -> list[torch.Tensor]:
        arguments: dict[str, Any] = {}
        for name, x in inputs.items():
            arguments[name] = x.to(device, dtype.to_complex() if x.is_complex() else dtype).requires_grad_()
        options: dict[str, Any] = {"delta_softplus": True, "discretization": discretization, "backend": scan_backend}
        y: Any = ops.selective_scan(**arguments, **options)
        return [y.detach(), *torch.autograd.grad(y, list(arguments.values()), weights.to(y))]

    pairs = zip(results(torch.float32, backend), results(torch.float64, "reference"), strict=True)
    errors = [(x.to(want.dtype) - want).abs().max() / (want.abs().max() or 1.0) for x, want in pairs]
    return float(torch.stack(errors).max())
