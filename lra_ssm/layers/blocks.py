"""Blocks: a recurrent layer with what stands around it, as models stack them.

A block is built as `Block(d_model, layer, …)`, `layer` a specification, and is called as layers are. A block of your
own needs `forward(x, lengths=None)` alone; `Block` gives norm, residual, padding, states, steps and final norm for an
`f` of yours.

Shapes: B batch, L length, D channels, E = expand · D inner channels, W taps of the convolution.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers.contract import check_output, wrong_output
from lra_ssm.layers.convolution import ShortConvolution
from lra_ssm.layers.dropout import TiedDropout
from lra_ssm.layers.masking import check_lengths, check_sequence, mask_padding
from lra_ssm.layers.norms import NormName, RMSNorm, make_norm
from lra_ssm.layers.roles import Role, WidthRole, linear_roles
from lra_ssm.layers.spec import LayerFactory, LayerSpec
from lra_ssm.ops import mamba_step, step_linear

M = TypeVar("M", bound=nn.Module)
State = Any  # of a layer or a block: a tensor, or a tuple of states


def asked_of(module: nn.Module, reset: Tensor | None, initial_state: State, return_last_state: bool) -> dict[str, Any]:
    """The keyword arguments of a layer's, block's or network's call, without what is not asked for: one of a user's own
    needs `forward(x, lengths=None)` alone. Raises ValueError naming the class and the argument that it lacks."""
    asked = {"reset": reset, "initial_state": initial_state, "return_last_state": return_last_state or None}
    asked = {name: value for name, value in asked.items() if value is not None}
    if asked:
        own = getattr(module, "_orig_mod", module)  # of torch.compile
        taken = inspect.signature(own.forward).parameters
        anything = any(p.kind is p.VAR_KEYWORD for p in taken.values())
        for name in asked:
            if name not in taken and not anything:
                needed = (
                    "documents cannot be packed with it, unless `isolate: false` of the data lets them run together"
                    if name == "reset"
                    else "it has no state to carry on with it"
                )
                raise ValueError(f"{type(own).__name__}.forward takes no `{name}`: {needed}")
    return asked


def run_with_state(
    module: nn.Module,
    x: Tensor,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    initial_state: State = None,
    return_last_state: bool = False,
    width: int | None = None,
) -> tuple[Tensor, State]:
    """(y, state) of a layer or block; state None unless return_last_state. width: y's, where it is not x's.

    Raises ValueError as `asked_of`, InputError where what it returns is not of x's shape.
    """
    asked = asked_of(module, reset, initial_state, return_last_state)
    out = module(x, lengths, **asked)
    if return_last_state and not (isinstance(out, tuple) and len(out) == 2):
        raise wrong_output(module, out, x, "with return_last_state it returns (y, state)")
    y, state = out if return_last_state else (out, None)
    check_output(module, y, (*x.shape[:-1], x.shape[-1] if width is None else width), x, _KEPT)
    return y, state


_KEPT = "layers and blocks keep (batch, length, d_model)"


def need(module: nn.Module, method: str) -> Any:
    """The method of a layer or block; ValueError naming both where it has none."""
    found = getattr(module, method, None)
    if found is None:
        raise ValueError(f"{type(module).__name__} has no `{method}`: it cannot run step by step")
    return found


def inner_width(name: str, factor: float, d_model: int) -> int:
    """factor · d_model; ValueError, naming the setting, where it is no positive whole number."""
    width = factor * d_model
    whole = round(width) if math.isfinite(width) else 0
    if whole < 1 or not math.isclose(whole, width, rel_tol=1e-9):
        raise ValueError(f"{name} {factor}: times d_model {d_model} it must be a positive whole number")
    return whole


def apply_linear(linear: nn.Module, x: Tensor) -> Tensor:
    """(…, D) -> (…, D'); one position (B, D) the fast way. What stands in an nn.Linear's place is called as it is."""
    if x.dim() == 2 and _is_plain(linear, nn.Linear):
        return step_linear(x, linear.weight, linear.bias)
    return linear(x)


def _is_plain(module: nn.Module | None, kind: type[M]) -> TypeGuard[M]:
    """Whether its parameters say all that calling it does."""
    return type(module) is kind and not module._forward_hooks and not module._forward_pre_hooks


class Block(nn.Module):
    """x + f(norm(x)) with `prenorm`, norm(x + f(x)) without; a subclass gives `f`. Output is 0 at padding, unless the
    norm counts padding: see `counts_padding`.

    `stateful` names the parts that keep a state, in the order in which f takes x through them; the block's state is
    that of the one, or a tuple of theirs, which is empty where there is none.
    """

    stateful: tuple[str, ...] = ("layer",)
    residual = True  # else f's output alone goes on

    def __init__(self, d_model: int, norm: NormName | None, prenorm: bool) -> None:
        super().__init__()
        self.norm: nn.Module | None = None if norm is None else make_norm(norm, d_model)
        self.norm_name, self.prenorm = norm, prenorm

    @property
    def counts_padding(self) -> bool:
        """Whether the norm is "batch_padded". Padding then is as in the public S4 code: stateful parts read zeros
        there, and what they and the rest of the block make of it goes on, through the residual too, to the next norm.
        """
        return self.norm_name == "batch_padded"

    def f(self, x: Tensor, through: Callable[..., Tensor]) -> Tensor:
        """x (B, L, D), or one position of it (B, D) -> the same shape.

        `through(part, u)` is what a stateful part makes of u; its state, documents and padding are looked after.
        width: of what it makes, where that is not u's.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `f`")

    def inner(
        self, x: Tensor, lengths: Tensor | None, reset: Tensor | None, initial_state: State, return_last_state: bool
    ) -> tuple[Tensor, State]:
        """f of a sequence: x (B, L, D) -> (y (B, L, D), state or None); arguments as in `forward`."""
        before = self._parts(initial_state)
        after: list[State] = []

        def through(part: nn.Module, u: Tensor, width: int | None = None) -> Tensor:
            state, real = before[len(after)], lengths
            if self.counts_padding and not return_last_state:
                u, real = mask_padding(u, lengths), None
            y, state = run_with_state(part, u, real, reset, state, return_last_state, width)
            after.append(state)
            return y

        return self.f(x, through), self._joined(after)

    def inner_step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """f at one position: x_t (B, D), state -> (y_t (B, D), state)."""
        before = self._parts(state)
        after: list[State] = []

        def through(part: nn.Module, u: Tensor, width: int | None = None) -> Tensor:
            y, one = need(part, "step")(u, before[len(after)])
            after.append(one)
            return y

        return self.f(x_t, through), self._joined(after)

    def initial_state(self, batch_size: int) -> State:
        """The state before the first position."""
        return self._joined([need(getattr(self, name), "initial_state")(batch_size) for name in self.stateful])

    def _parts(self, state: State) -> Sequence[State]:
        if state is None:
            return [None] * len(self.stateful)
        return [state] if len(self.stateful) == 1 else state

    def _joined(self, states: list[State]) -> State:
        return states[0] if len(self.stateful) == 1 else tuple(states)

    def before(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """What f reads."""
        return self.norm(x, lengths) if self.norm is not None and self.prenorm else x

    def behind(self, y: Tensor, lengths: Tensor | None = None) -> Tensor:
        """What is made of the sum."""
        return y if self.norm is None or self.prenorm else self.norm(y, lengths)

    def forward(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        initial_state: State = None,
        return_last_state: bool = False,
    ) -> Tensor | tuple[Tensor, State]:
        """x (B, L, D), lengths (B,), reset (B, L) bool, true where a new document starts -> (B, L, D), or with the
        state after the last real position. Raises ValueError, naming it, for what the layer does not take, for an x
        of another shape or without a position, and for lengths that it cannot have."""
        check_sequence(x, self)
        check_lengths(lengths, x)
        y, state = self.inner(self.before(x, lengths), lengths, reset, initial_state, return_last_state)
        y = x + y if self.residual else y
        y = self.behind(y, lengths)
        y = y if self.counts_padding else mask_padding(y, lengths)
        return (y, state) if return_last_state else y

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One position: x_t (B, D), state -> (y_t (B, D), state)."""
        y, state = self.inner_step(self.before(x_t), state)
        return self.behind(x_t + y if self.residual else y), state

    def extra_repr(self) -> str:
        return f"prenorm={self.prenorm}"

    def final_norm(self, d_model: int) -> nn.Module | None:
        """What a stack of such blocks ends with: with `prenorm` a norm of the same kind, without nothing."""
        return make_norm(self.norm_name, d_model) if self.norm_name is not None and self.prenorm else None


class S4Block(Block):
    """The block of the published LRA models: f = dropout ∘ GLU(linear) ∘ dropout ∘ GELU ∘ layer.

    Args:
        d_model: D.
        layer: built as `layer(D)`.
        norm: "batch", "layer" or "rms".
        prenorm: the norm stands before the layer; else after the residual.
        dropout: its probability; tied over length, after the GELU and before the residual, as in the public S4 code.
    """

    def __init__(
        self,
        d_model: int,
        layer: LayerFactory,
        norm: NormName = "batch",
        prenorm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(d_model, norm, prenorm)
        self.layer = LayerSpec.of(layer)(d_model)
        self.dropout = TiedDropout(dropout)
        self.glu = nn.Linear(d_model, 2 * d_model)

    def f(self, x: Tensor, through: Callable[..., Tensor]) -> Tensor:
        y = self.dropout(F.gelu(through(self.layer, x)))
        return self.dropout(F.glu(self.glu(y), dim=-1))

    def optim_roles(self) -> dict[str, Role]:
        return {"glu.bias": "no_decay"}

    def width_roles(self) -> dict[str, WidthRole]:
        return linear_roles(glu=(self.glu, "hidden"))


class MambaBlock(Block):
    """Mamba's block: f(x) = out_proj(Γ(SiLU(conv(u))) · SiLU(z)) with (u, z) = in_proj(x); Γ any layer.

    Sources: Gu & Dao 2023, figure 3, and its public code (modules/mamba_simple.py); Yu & Erichson 2025, appendix G, has
    it with Γ one of S4D, S6 and B2S6.

    Args:
        d_model: D.
        layer: Γ, built as `layer(E)`.
        expand: E / D, such that E is a whole number.
        d_conv: W, the taps of the depthwise convolution, which is causal whatever Γ is.
        norm: "batch", "layer" or "rms", which is Mamba's.
        prenorm: the norm stands before f, as in Mamba; else after the residual.
        dropout: before the residual, tied over length; Mamba has none.
        bias: of both projections.
        conv_bias: of the convolution.
        glu: f ends as S4's block does, with GELU and a gated linear unit; Mamba has neither. (The code believed to
            stand behind LRA's published Mamba row has: jsie7/ssm-benchmark; docs/reproduction.md.)

    Raises:
        ValueError: E is no whole number, or there is no tap.
    """

    stateful = ("conv1d", "layer")

    def __init__(
        self,
        d_model: int,
        layer: LayerFactory,
        expand: float = 2.0,
        d_conv: int = 4,
        norm: NormName = "rms",
        prenorm: bool = True,
        dropout: float = 0.0,
        bias: bool = False,
        conv_bias: bool = True,
        glu: bool = False,
    ) -> None:
        super().__init__(d_model, norm, prenorm)
        E = inner_width("MambaBlock expand", expand, d_model)
        if d_conv < 1:
            raise ValueError(f"MambaBlock d_conv is {d_conv}; it must be at least 1")
        self.in_proj = nn.Linear(d_model, 2 * E, bias=bias)
        self.conv1d = ShortConvolution(E, d_conv, bias=conv_bias, silu=True)
        self.layer = LayerSpec.of(layer)(E)
        self.out_proj = nn.Linear(E, d_model, bias=bias)
        self.glu = nn.Linear(d_model, 2 * d_model) if glu else None
        self.dropout = TiedDropout(dropout)

    def f(self, x: Tensor, through: Callable[..., Tensor]) -> Tensor:
        u, z = apply_linear(self.in_proj, x).chunk(2, dim=-1)
        y = through(self.layer, through(self.conv1d, u))
        y = apply_linear(self.out_proj, y * F.silu(z))
        return self.dropout(y if self.glu is None else F.glu(self.glu(self.dropout(F.gelu(y))), dim=-1))

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Block.step`; with S6, as Mamba has it, one call where `ops.mamba_step` can."""
        return self._step_at_once(x_t, state) or super().step(x_t, state)

    def _step_at_once(self, x_t: Tensor, state: State) -> tuple[Tensor, State] | None:
        selective_weights = getattr(self.layer, "selective_weights", None)
        plain = (
            _is_plain(self.norm, RMSNorm)
            and _is_plain(self.in_proj, nn.Linear)
            and _is_plain(self.out_proj, nn.Linear)
            and type(self.conv1d) is ShortConvolution
        )
        dropping = self.training and self.dropout.p > 0
        if selective_weights is None or not plain or not self.prenorm or dropping or self.glu is not None:
            return None
        unit = selective_weights()
        if unit is None or self.in_proj.bias is not None:
            return None
        conv = self.conv1d
        return mamba_step(
            x_t, self.norm.weight, self.norm.eps, self.in_proj.weight, conv.weight.squeeze(1), conv.bias, unit,
            self.out_proj.weight, *state,
        )  # fmt: skip

    @torch.no_grad()
    def scale_residual(self, factor: float) -> None:
        """Scales what f adds to the residual at initialization, where many blocks add up."""
        self.out_proj.weight *= factor

    def optim_roles(self) -> dict[str, Role]:
        own = ("in_proj.bias", "conv1d.bias", "out_proj.bias", "glu.bias")
        return {name: "no_decay" for name, _ in self.named_parameters() if name in own}

    def width_roles(self) -> dict[str, WidthRole]:
        maps: dict[str, tuple[nn.Module | None, WidthRole]] = {
            name: (getattr(self, name), "hidden") for name in ("in_proj", "out_proj", "glu")
        }
        return linear_roles(**maps)
