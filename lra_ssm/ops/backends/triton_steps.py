"""What the Triton scan's kernels are made of: where a program works, tiles of four steps, sums over them.

Shapes in a program: channel tiles (BLOCK_D, 4), four steps of u or the like; state tiles (BLOCK_N, BLOCK_D), channels
last, so that lanes lie along channels and the sum over states stays within a thread, or nearly so; steps (BLOCK_D,) or
(BLOCK_N,).  u, delta and y's gradient are zeros at padded channels and steps, B and C at padded states: they leave
every sum and the state as they are.  (D channels, N states, W = 2 for complex A, else 1.)

A tensor that varies in time comes as a `Steps` or `Matrix` of triton_call.py: with its strides.

Time goes in fours because four float32 steps are the 16 bytes that a thread reads at once.  A complex tensor is a pair
of real ones; with real A the imaginary half is a stand-in that nothing depends on and the compiler removes.
"""

# The bodies are Triton's language, not Python's: its tensors and tuples have no types that mypy could check.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from lra_ssm.ops.backends.triton_discretization import INTERPRETED

CONSTANT = tl.constexpr(0)  # forms of B and C: (D, N); real per step; complex per step
REAL_STEPS = tl.constexpr(1)
COMPLEX_STEPS = tl.constexpr(2)


@triton.constexpr_function
def halvings(size):
    """Return how often a power of two is halved until it is 1."""
    return size.bit_length() - 1


@triton.jit
def split4(x):
    """(M, 4) -> four (M,)."""
    even, odd = tl.split(tl.reshape(x, (x.shape[0], 2, 2)))
    x0, x2 = tl.split(even)
    x1, x3 = tl.split(odd)
    return x0, x1, x2, x3


@triton.jit
def join4(x0, x1, x2, x3):
    """Four (M,) -> (M, 4)."""
    return tl.reshape(tl.join(tl.join(x0, x2), tl.join(x1, x3)), (x0.shape[0], 4))


@triton.jit
def sum_channels(x, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    """(BLOCK_N, BLOCK_D) -> (BLOCK_N,), by adding neighbours: a thread has some of its own, and adds these first."""
    for i in tl.static_range(halvings(BLOCK_D)):
        low, high = tl.split(tl.reshape(x, (BLOCK_N, BLOCK_D >> (i + 1), 2)))
        x = low + high
    return tl.reshape(x, (BLOCK_N,))


@triton.jit
def sum_states(xs, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, COMPLEX: tl.constexpr):
    """Four (BLOCK_N, BLOCK_D) -> (BLOCK_D, 4).

    For complex A all at once, by adding one half of the states to the other: each halving moves a state bit from the
    lanes into a thread and another back, so that a thread exchanges half of what it has, where a butterfly would
    exchange all.  For real A, where a program has twice the states, that would be registers too many.
    """
    if COMPLEX:
        x = tl.join(tl.join(xs[0], xs[2]), tl.join(xs[1], xs[3]))
        for i in tl.static_range(halvings(BLOCK_N)):
            x = tl.reshape(x, (2, BLOCK_N >> (i + 1), BLOCK_D * 4))
            low, high = tl.split(tl.permute(x, (1, 2, 0)))
            x = low + high
        return tl.reshape(x, (BLOCK_D, 4))
    else:
        return join4(tl.sum(xs[0], axis=0), tl.sum(xs[1], axis=0), tl.sum(xs[2], axis=0), tl.sum(xs[3], axis=0))


@triton.jit
def locate(batch, channels, unit, BLOCK_D: tl.constexpr, EVEN: tl.constexpr):
    """(batch item, block of channels, segment, its first channel, which of its channels exist) of this program.

    A block never crosses a multiple of `unit`, so that all its channels are in one group of B and one of C.
    """
    per_unit = tl.cdiv(unit, BLOCK_D)
    blocks = (channels // unit) * per_unit
    program = tl.program_id(0)
    block = program % blocks
    inside = (block % per_unit) * BLOCK_D
    d0 = (block // per_unit) * unit + inside
    exists = tl.full((BLOCK_D,), True, tl.int1) if EVEN else inside + tl.arange(0, BLOCK_D) < unit
    return (program // blocks) % batch, block, program // (blocks * batch), d0, exists


@triton.jit
def last_step(length, WHOLE: tl.constexpr):
    """The last step, for masks; none where the length is of whole groups of four, and masks would cost for nothing."""
    if WHOLE:
        return 2147483647
    else:
        return length - 1


@triton.jit
def steps_mask(t0, last_t, channel_mask):
    """Return which of four steps and of the channels exist: (BLOCK_D, 4)."""
    return channel_mask[:, None] & (t0 + tl.arange(0, 4) <= last_t)[None, :]


@triton.jit
def channel_pointers(x, b, d0, t0, BLOCK_D: tl.constexpr):
    """Return pointers (BLOCK_D, 4) into Steps x (batch, D, L); 64 bits where an offset may need them."""
    base = x.data + tl.cast(b, tl.int64) * x.batch + tl.cast(d0, tl.int64) * x.channel
    base += tl.cast(t0, tl.int64) * x.step
    return base + tl.arange(0, BLOCK_D)[:, None] * x.channel + tl.arange(0, 4)[None, :] * x.step


@triton.jit
def load_channels(x, b, d0, t0, mask, BLOCK_D: tl.constexpr, COPIES: tl.constexpr = 1):
    """Load four steps of Steps x (batch, D, L) as float32, (BLOCK_D, 4), or (COPIES, BLOCK_D, 4).

    bfloat16 and float16 are widened by assembly: above a conversion that it knows, the compiler moves the spreading of
    a tile over all lanes, and every lane then computes every softplus, which doubles the instructions of a step.
    """
    pointers = channel_pointers(x, b, d0, t0, BLOCK_D)
    if COPIES > 1:
        pointers, mask = pointers[None, :, :] + tl.zeros((COPIES, 1, 1), tl.int32), mask[None, :, :]
    tile = tl.load(pointers, mask=mask, other=0.0)
    if tile.dtype == tl.float32 or INTERPRETED:
        return tile.to(tl.float32)
    elif tile.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise("cvt.f32.bf16 $0, $1;", "=f,h", [tile], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return tl.inline_asm_elementwise("cvt.f32.f16 $0, $1;", "=f,h", [tile], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def store_channels(x, b, d0, t0, mask, tile, BLOCK_D: tl.constexpr):
    """Store four steps (BLOCK_D, 4) to Steps x (batch, D, L), in its dtype."""
    tl.store(channel_pointers(x, b, d0, t0, BLOCK_D), tile.to(x.data.dtype.element_ty), mask=mask)


@triton.jit
def group_of(x, b, d0):
    """Return where Matrix x (batch, G, N, L[, 2]) begins for a batch item and the group of channel d0."""
    return x.data + tl.cast(b, tl.int64) * x.batch + tl.cast(d0 // x.channels, tl.int64) * x.group


@triton.jit
def load_matrix(x, b, d0, t0, last, states, BLOCK_N: tl.constexpr, FORM: tl.constexpr):
    """Load four steps of a variable B or C as they are, (BLOCK_N, 4[, 2]), for `split_matrix`."""
    n, t = tl.arange(0, BLOCK_N)[:, None], tl.arange(0, 4)[None, :]
    pointers = group_of(x, b, d0) + tl.cast(t0, tl.int64) * x.step + n * x.state + t * x.step
    mask = (n < states) & (t0 + t <= last)
    if FORM == COMPLEX_STEPS:
        pointers = pointers[:, :, None] + tl.arange(0, 2)[None, None, :] * x.part
        return tl.load(pointers, mask=mask[:, :, None], other=0.0)
    else:
        return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def split_matrix(tile, FORM: tl.constexpr):
    """Return what `load_matrix` read as four re (BLOCK_N,) and four im."""
    tile = tile.to(tl.float32)
    if FORM == COMPLEX_STEPS:
        re, im = tl.split(tile)
        return split4(re), split4(im)
    else:
        return split4(tile), split4(tl.zeros_like(tile))


@triton.jit
def matrix_pointers(x, b, d0, BLOCK_N: tl.constexpr, FORM: tl.constexpr):
    """Return where the states of a variable B or C are at step 0: (BLOCK_N,), or (BLOCK_N, 2) for re and im."""
    pointers = group_of(x, b, d0) + tl.arange(0, BLOCK_N) * x.state
    if FORM == COMPLEX_STEPS:
        return pointers[:, None] + tl.arange(0, 2)[None, :] * x.part
    else:
        return pointers


@triton.jit
def load_matrix_step(pointers, stride, t0, i, last, states, BLOCK_N: tl.constexpr, FORM: tl.constexpr):
    """(re, im) of one step of what `load_matrix` reads, where it is needed: four are registers that backward lacks.
    Beyond the end it is the last step's, which only meets zeros."""
    pointers += tl.cast(t0, tl.int64) * stride
    offset = tl.minimum(i, last - t0) * stride
    mask = tl.arange(0, BLOCK_N) < states
    if FORM == COMPLEX_STEPS:
        return tl.split(tl.load(pointers + offset, mask=mask[:, None], other=0.0).to(tl.float32))
    else:
        re = tl.load(pointers + offset, mask=mask, other=0.0).to(tl.float32)
        return re, tl.zeros_like(re)


@triton.jit
def fetch_matrix(x, b, d0, t0, last, states, BLOCK_N: tl.constexpr):
    """Prefetch what `load_matrix_step` will read for four steps into the first cache; nothing waits for it.

    With many states it requests every fourth: its neighbours come along where they lie side by side.
    """
    if not INTERPRETED:
        APART: tl.constexpr = 4 if BLOCK_N >= 32 else 1
        n = tl.minimum(tl.arange(0, BLOCK_N // APART) * APART, states - 1)[:, None]
        t = tl.minimum(tl.arange(0, 4), last - t0)[None, :]
        pointers = group_of(x, b, d0) + tl.cast(t0, tl.int64) * x.step + n * x.state + t * x.step
        tl.inline_asm_elementwise("prefetch.global.L1 [$1]; mov.b32 $0, 0;", "=r,l", [pointers], dtype=tl.int32,
                                  is_pure=False, pack=1)  # fmt: skip


@triton.jit
def coefficient(re, im, tile_re, tile_im, FORM: tl.constexpr, BIAS: tl.constexpr):
    """B or C at a step: the constant tile, the step's vector (BLOCK_N,), or the vector plus the bias, a tile."""
    if FORM == CONSTANT:
        return tile_re, tile_im
    elif BIAS:
        return re[:, None] + tile_re, im[:, None] + tile_im
    else:
        return re[:, None], im[:, None]


@triton.jit
def input_coefficient(re, im, tile_re, tile_im, inverse_re, inverse_im, FORM: tl.constexpr, BIAS: tl.constexpr,
                      STEPWISE_ZOH: tl.constexpr, COMPLEX: tl.constexpr):  # fmt: skip
    """`coefficient` of B; for STEPWISE_ZOH over A, which the tile is already.

    1/A is (BLOCK_N, BLOCK_D), or (BLOCK_N, 1) where all channels share A.
    """
    if not STEPWISE_ZOH or FORM == CONSTANT:
        return coefficient(re, im, tile_re, tile_im, FORM, BIAS)
    else:
        re, im = re[:, None], im[:, None]
        over_re, over_im = re * inverse_re, re * inverse_im
        if BIAS and inverse_re.shape[1] > 1:  # added first, it costs no more than the product
            over_re, over_im = tile_re + re * inverse_re, tile_im + re * inverse_im
        if FORM == COMPLEX_STEPS:
            over_re, over_im = over_re - im * inverse_im, over_im + im * inverse_re
        if BIAS and inverse_re.shape[1] == 1:
            over_re, over_im = tile_re + over_re, tile_im + over_im
        return over_re, over_im


@triton.jit
def load_resets(reset, b, t0, last):
    """Four steps of the reset, Steps (batch, L) of bytes, each (1,)."""
    t = tl.arange(0, 4)
    base = reset.data + tl.cast(b, tl.int64) * reset.batch + tl.cast(t0, tl.int64) * reset.step
    return split4(tl.load(base + t * reset.step, mask=t0 + t <= last, other=0)[None, :])


@triton.jit
def drop(re, im, reset, COMPLEX: tl.constexpr):
    """Zero where reset (1,) is set.  Selected, not multiplied: inf and nan are dropped too."""
    gone = (reset != 0)[:, None]
    if COMPLEX:
        im = tl.where(gone, 0.0, im)
    return tl.where(gone, 0.0, re), im


@triton.jit
def load_pairs(x, index, mask, COMPLEX: tl.constexpr):
    """(re, im) at index of a contiguous tensor (..., W)."""
    if COMPLEX:
        return tl.load(x + 2 * index, mask=mask, other=0.0), tl.load(x + 2 * index + 1, mask=mask, other=0.0)
    else:
        re = tl.load(x + index, mask=mask, other=0.0)
        return re, re


@triton.jit
def load_A(A, state_offsets, n, mask, states, SHARED_A: tl.constexpr, COMPLEX: tl.constexpr):
    """A (D, N) as a tile (BLOCK_N, BLOCK_D); (N,), of all channels, as (BLOCK_N, 1)."""
    if SHARED_A:
        return load_pairs(A, n, n < states, COMPLEX)
    else:
        return load_pairs(A, state_offsets, mask, COMPLEX)


@triton.jit
def store_pairs(x, index, mask, re, im, COMPLEX: tl.constexpr):
    if COMPLEX:
        tl.store(x + 2 * index, re, mask=mask)
        tl.store(x + 2 * index + 1, im, mask=mask)
    else:
        tl.store(x + index, re, mask=mask)


@triton.jit
def load_planes(x, tile, plane, mask, COMPLEX: tl.constexpr):
    """(re, im) from two planes, `plane` elements apart, of a tensor (..., W, N, D), where channels are contiguous."""
    re = tl.load(x + tile, mask=mask, other=0.0)
    if COMPLEX:
        return re, tl.load(x + plane + tile, mask=mask, other=0.0)
    else:
        return re, re


@triton.jit
def store_planes(x, tile, plane, mask, re, im, COMPLEX: tl.constexpr):
    tl.store(x + tile, re, mask=mask)
    if COMPLEX:
        tl.store(x + plane + tile, im, mask=mask)
