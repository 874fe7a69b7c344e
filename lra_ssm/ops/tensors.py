"""Checks and helpers for the tensors of all operations, whatever their shapes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_DTYPES = {"bool": (torch.bool,), "int64": (torch.int64,), "int64 or int32": (torch.int64, torch.int32)}


def check_tensors(tensors: Mapping[str, Any], optional: Collection[str] = (), **kinds: str) -> None:
    """Check that the values are dense tensors on one device, the first one's.

    optional: names of those that may be None. kinds: of dtypes: "real floating" without an entry, "complex", "real or
        complex floating", or one of `_DTYPES`; `reset` is bool.

    Raises ValueError naming the argument, what it is and what it should be.
    """
    first = next(iter(tensors))
    for name, x in tensors.items():
        if x is None and name in optional:
            continue
        if not isinstance(x, Tensor):
            raise ValueError(f"{name}: {'None' if x is None else type(x).__name__}; expected a tensor")
        if x.is_nested or x.layout != torch.strided:
            kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
            instead = ", with the sequences padded to one length" if x.is_nested else ""
            raise ValueError(f"{name}: a {kind} tensor; expected a dense one{instead}")
        kind = kinds.get(name, "bool" if name == "reset" else "real floating")
        floating = ("real" in kind and x.is_floating_point()) or ("complex" in kind and x.is_complex())
        if not floating and x.dtype not in _DTYPES.get(kind, ()):
            raise ValueError(f"{name}: dtype {x.dtype}; expected {'an' if kind[0] == 'i' else 'a'} {kind} dtype")
        if x.device != tensors[first].device:
            raise ValueError(f"{name}: on {x.device}; expected {tensors[first].device}, where {first} is")


def read_sizes(name: str, x: Tensor, dimensions: str) -> dict[str, int]:
    """Return the sizes of x by its dimensions' names, such as "batch D L".

    Raises ValueError for another number of dimensions, or if one other than the first is empty.
    """
    names = dimensions.split()
    if x.dim() != len(names) or any(size < 1 for size in x.shape[1:]):
        filled = " and ".join(f"{name} >= 1" for name in names[1:])
        raise ValueError(f"{name}: shape {tuple(x.shape)}; expected ({', '.join(names)}) with {filled}")
    return dict(zip(names, x.shape, strict=True))


def check_shapes(tensors: Mapping[str, Any], expected: Mapping[str, str], sizes: Mapping[str, int]) -> None:
    """Compare shapes with the dimensions expected of each name, such as "batch D L", of these sizes.

    Raises ValueError naming the first tensor that does not fit; None fits.
    """
    for name, dimensions in expected.items():
        x, names = tensors[name], dimensions.split()
        shape = tuple(sizes[dimension] for dimension in names)
        if x is not None and tuple(x.shape) != shape:
            letters = ", ".join(names) + ("," if len(names) == 1 else "")
            raise ValueError(f"{name}: shape {tuple(x.shape)}; expected ({letters}) = {shape}")


def has_double(*tensors: Tensor | None) -> bool:
    """Return whether any is in double precision, real or complex."""
    return any(x is not None and x.dtype in (torch.float64, torch.complex128) for x in tensors)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Turn autocast off, so that arithmetic has the dtypes that the code names; the meta device has no autocast."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, run: Callable[..., tuple[Tensor, ...]], keep: bool, *inputs: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.run, ctx.kept = run, None
        if keep:
            ctx.kept = _with_graph(run, inputs, ctx.needs_input_grad[2:])
            return tuple(y.detach() for y in ctx.kept[1])
        ctx.save_for_backward(*inputs)
        return run(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        inputs, outputs = ctx.kept or _with_graph(ctx.run, ctx.saved_tensors, needed)
        results = [(y, g) for y, g in zip(outputs, grads, strict=True) if y.requires_grad]
        targets = [x for x in inputs if x is not None and x.requires_grad]
        with without_autocast(grads[0].device):
            gradients = torch.autograd.grad(
                [y for y, _ in results], targets, [g for _, g in results], bool(ctx.kept), allow_unused=True
            )
        remaining = iter(gradients)
        return None, None, *(next(remaining) if n else None for n in needed)


def _with_graph(
    run: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor | None], needed: Sequence[bool]
) -> tuple[list[Tensor | None], tuple[Tensor, ...]]:
    """Return the inputs as leaves, and run of them, recorded for autograd."""
    leaves = [None if x is None else x.detach().requires_grad_(n) for x, n in zip(inputs, needed, strict=True)]
    device = next(x.device for x in inputs if x is not None)
    with torch.enable_grad(), without_autocast(device):
        return leaves, run(*leaves)


def recompute(run: Callable[..., tuple[Tensor, ...]], *inputs: Tensor | None, keep: bool = False) -> tuple[Tensor, ...]:
    """Return run(*inputs), keeping only the inputs for backward, which runs it a second time.

    It is like `torch.utils.checkpoint`, but autocast is off in backward too, and a second derivative is an error. keep:
    nothing runs a second time; what autograd needs is kept, unless hooks such as those of `torch.utils.checkpoint`
    around the call replace what is saved.
    """
    if keep:
        keep = torch.is_grad_enabled() and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    return _Recomputed.apply(run, keep, *inputs)


def is_clean(*tensors: Tensor | None) -> bool:
    """Return whether all are known to be finite.

    It is False on a GPU, where reading the values would wait, and under torch.compile.
    """
    present = [x for x in tensors if x is not None]
    if torch.compiler.is_compiling() or any(x.device.type != "cpu" for x in present):
        return False
    return all(bool(x.isfinite().all()) for x in present)


def without_nonfinite(x: Tensor) -> Tensor:
    """Return x with 0 in place of inf and NaN."""
    return x.nan_to_num(0.0, 0.0, 0.0)


def is_nonfinite(x: Tensor) -> Tensor:
    """Return where x is inf or NaN, in two launches: x - x is NaN there, which is not equal to 0."""
    return (x - x) != 0


def copy_to_cpu_async(x: Tensor) -> Callable[[], Tensor]:
    """Start copying x to the CPU; return a function that waits for the copy and returns it. On a CPU that is x itself.

    A caller that reads it a step later does not wait, because the device has computed it by then.
    """
    if x.device.type != "cuda":
        return lambda: x
    host_copy = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    host_copy.copy_(x, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def read() -> Tensor:
        copied.synchronize()
        return host_copy

    return read
