"""Blocks: a sequence layer and the operations around it, as models stack them.

A block is built as `Block(d_model, layer, …)`, where `layer` is a specification, and is called as layers are. A user's
block only needs `forward(x, lengths=None)`; a subclass of `Block` gives a `mixer` and gets norm, residual, padding,
states, steps and the stack's final norm.

Shapes: B batch, L length, D channels, E = expand · D inner channels, W taps of the convolution.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any, Protocol, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.errors import InputError
from lra_ssm.layers.arguments import KeepsArguments
from lra_ssm.layers.contract import check_output, wrong_output
from lra_ssm.layers.convolution import ShortConvolution
from lra_ssm.layers.dropout import TiedDropout
from lra_ssm.layers.masking import check_lengths, check_sequence, mask_padding
from lra_ssm.layers.norms import NormName, RMSNorm, make_norm
from lra_ssm.layers.roles import channel_maps
from lra_ssm.layers.spec import LayerFactory, LayerSpec
from lra_ssm.ops import mamba_step, step_linear

M = TypeVar("M", bound=nn.Module)
State = Any  # of a layer or a block: a tensor, or a tuple of states


def supported_kwargs(
    module: nn.Module, reset: Tensor | None, initial_state: State, return_last_state: bool
) -> dict[str, Any]:
    """Return the keyword arguments for a layer's, block's or network's call, without those that are not needed.

    So a user's module only has to take the arguments that are used. Raises InputError naming the class and the argument
    that its `forward` lacks.
    """
    needed = {"reset": reset, "initial_state": initial_state, "return_last_state": return_last_state or None}
    needed = {name: value for name, value in needed.items() if value is not None}
    if not needed:
        return needed
    original = getattr(module, "_orig_mod", module)  # inside torch.compile
    parameters = inspect.signature(original.forward).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return needed
    for name in needed:
        if name not in parameters:
            reason = (
                "documents cannot be packed with it, unless `isolate: false` of the data lets them run together"
                if name == "reset"
                else "it has no state to carry on with it"
            )
            raise InputError(f"{type(original).__name__}.forward takes no `{name}`: {reason}")
    return needed


def run_with_state(
    module: nn.Module,
    x: Tensor,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    initial_state: State = None,
    return_last_state: bool = False,
    width: int | None = None,
) -> tuple[Tensor, State]:
    """Call a layer or block and return (y, state); the state is None unless return_last_state.

    width: the number of y's channels, if it is not x's.

    Raises ValueError as `supported_kwargs`, and InputError if the output has the wrong shape.
    """
    out = module(x, lengths, **supported_kwargs(module, reset, initial_state, return_last_state))
    if return_last_state and not (isinstance(out, tuple) and len(out) == 2):
        raise wrong_output(module, out, x, "with return_last_state it returns (y, state)")
    y, state = out if return_last_state else (out, None)
    shape = (*x.shape[:-1], x.shape[-1] if width is None else width)
    check_output(module, y, shape, x, "layers and blocks keep (batch, length, d_model)")
    return y, state


def require_method(module: nn.Module, method: str) -> Any:
    """Return a method of a layer or block. Raises ValueError naming both if it has no such method."""
    bound = getattr(module, method, None)
    if bound is None:
        raise ValueError(f"{type(module).__name__} has no `{method}`: it cannot run step by step")
    return bound


def inner_width(name: str, factor: float, d_model: int) -> int:
    """Return factor · d_model. Raises ValueError naming the setting if that is not a positive whole number."""
    width = factor * d_model
    whole = round(width) if math.isfinite(width) else 0
    if whole < 1 or not math.isclose(whole, width, rel_tol=1e-9):
        raise ValueError(f"{name} {factor}: times d_model {d_model} it must be a positive whole number")
    return whole


def apply_linear(linear: nn.Module, x: Tensor) -> Tensor:
    """Apply a linear map (…, D) -> (…, D'), to one position (B, D) the fast way.

    A module that replaces the nn.Linear, or has hooks, is called as it is.
    """
    if x.dim() == 2 and _is_plain(linear, nn.Linear):
        return step_linear(x, linear.weight, linear.bias)
    return linear(x)


def _is_plain(module: nn.Module | None, kind: type[M]) -> TypeGuard[M]:
    """Return whether calling the module only does what its parameters determine."""
    return type(module) is kind and not module._forward_hooks and not module._forward_pre_hooks


class RunPart(Protocol):
    """Runs a stateful part of a block, by its name, with its state, documents and padding."""

    def __call__(self, name: str, u: Tensor, width: int | None = None) -> Tensor:
        """Return the part's output for u; width: the number of its channels, if it is not u's."""


class Block(KeepsArguments):
    """x + mixer(norm(x)) with `prenorm`, norm(x + mixer(x)) without; a subclass implements `mixer`.

    The output is 0 at padding, unless the norm counts padding (see `counts_padding`). A block of another form
    overrides `body`, for example one of several sublayers.

    `stateful` names the parts that keep a state. The block's state is the state of the only such part, or a tuple in
    the order of `stateful`, empty if it names no part.
    """

    stateful: tuple[str, ...] = ("layer",)

    # The linear maps whose outputs are added to the residual, and how many outputs one residual gets.
    residual_maps: tuple[str, ...] = ()
    num_sublayers = 1

    def __init__(self, d_model: int, norm: NormName | None, prenorm: bool) -> None:
        super().__init__()
        self.norm: nn.Module | None = None if norm is None else make_norm(norm, d_model)
        self.norm_name, self.prenorm = norm, prenorm

    @property
    def counts_padding(self) -> bool:
        """Whether the norm is "batch_padded". Then padding is handled as in the public S4 code: stateful parts read
        zeros there, and their outputs at padding go on through the rest of the block, the residual and the next norm.
        """
        return self.norm_name == "batch_padded"

    def mixer(self, x: Tensor, run_part: RunPart) -> Tensor:
        """Map x (B, L, D), or one position of it (B, D), to the same shape.

        A stateful part is not called directly but as `run_part(name, u)`, for example `run_part("layer", u)`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `mixer`")

    def body(self, x: Tensor, run_part: RunPart, lengths: Tensor | None = None) -> Tensor:
        """Compute the whole block, norms and residuals included; arguments as of `mixer`."""
        return self.sublayer(x, self.norm, lambda u: self.mixer(u, run_part), lengths)

    def sublayer(
        self, x: Tensor, norm: nn.Module | None, mixer: Callable[[Tensor], Tensor], lengths: Tensor | None = None
    ) -> Tensor:
        """Return x + mixer(norm(x)) with `prenorm`, norm(x + mixer(x)) without; a norm that is None is the identity."""
        if norm is None:
            return x + mixer(x)
        return x + mixer(norm(x, lengths)) if self.prenorm else norm(x + mixer(x), lengths)

    def forward(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        initial_state: State = None,
        return_last_state: bool = False,
    ) -> Tensor | tuple[Tensor, State]:
        """Map x (B, L, D) to (B, L, D), or to that and the state after the last real position.

        lengths: (B,), the number of real positions. reset: (B, L) bool, true where a new document starts.

        Raises ValueError for what the layer does not take (naming it), for an x of another shape or without positions,
        and for invalid lengths.
        """
        check_sequence(x, self)
        check_lengths(lengths, x)
        before = self._states_by_name(initial_state)
        after: dict[str, State] = {}  # dict[str, State]() cannot be compiled

        def run_part(name: str, u: Tensor, width: int | None = None) -> Tensor:
            real = lengths
            if self.counts_padding and not return_last_state:
                u, real = mask_padding(u, lengths), None
            part: nn.Module = getattr(self, name)
            y, after[name] = run_with_state(part, u, real, reset, before.get(name), return_last_state, width)
            return y

        y = self.body(x, run_part, lengths)
        y = y if self.counts_padding else mask_padding(y, lengths)
        return (y, self._join_states(after)) if return_last_state else y

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """Advance by one position: x_t (B, D), state -> (y_t (B, D), state)."""
        before, after = self._states_by_name(state), dict[str, State]()

        def run_part(name: str, u: Tensor, width: int | None = None) -> Tensor:
            y, after[name] = require_method(getattr(self, name), "step")(u, before[name])
            return y

        return self.body(x_t, run_part), self._join_states(after)

    def initial_state(self, batch_size: int) -> State:
        """Return the state before the first position."""
        parts = {name: getattr(self, name) for name in self.stateful}
        return self._join_states(
            {name: require_method(part, "initial_state")(batch_size) for name, part in parts.items()}
        )

    def _states_by_name(self, state: State) -> dict[str, State]:
        """Split the block's state into its parts'; empty for None."""
        if state is None:
            return {}
        return dict(zip(self.stateful, [state] if len(self.stateful) == 1 else state, strict=True))

    def _join_states(self, states: dict[str, State]) -> State:
        """Return the block's state; the inverse of `_states_by_name`. Raises KeyError for a part that did not run."""
        in_order = tuple(states[name] for name in self.stateful)
        return in_order[0] if len(in_order) == 1 else in_order

    def extra_repr(self) -> str:
        return f"prenorm={self.prenorm}"

    @torch.no_grad()
    def scale_residual(self, factor: float) -> None:
        """Scale what is added to the residual at initialization, because many blocks add up.

        A block of n sublayers scales by another 1/√n.
        """
        for name, parameter in self.named_parameters():
            if name.removesuffix(".weight") in self.residual_maps:
                parameter.mul_(factor * self.num_sublayers**-0.5)

    def final_norm(self, d_model: int) -> nn.Module | None:
        """Return the norm that ends a stack of such blocks: with `prenorm` one of the same kind, otherwise None."""
        return make_norm(self.norm_name, d_model) if self.norm_name is not None and self.prenorm else None


class S4Block(Block):
    """The block of the published LRA models: mixer = dropout ∘ GLU(linear) ∘ dropout ∘ GELU ∘ layer.

    Args:
        d_model: D.
        layer: built as `layer(D)`.
        norm: "batch", "batch_padded", "layer" or "rms".
        prenorm: the norm is applied before the mixer; otherwise after the residual.
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

    def mixer(self, x: Tensor, run_part: RunPart) -> Tensor:
        y = self.dropout(F.gelu(run_part("layer", x)))
        return self.dropout(F.glu(self.glu(y), dim=-1))

    width_roles = channel_maps


class MambaBlock(Block):
    """Mamba's block: mixer(x) = out_proj(Γ(SiLU(conv(u))) · SiLU(z)) with (u, z) = in_proj(x); Γ is any layer.

    Sources: Gu & Dao 2023, figure 3, and its public code (modules/mamba_simple.py); Yu & Erichson 2025, appendix G,
    uses it with S4D, S6 and B2S6 as Γ.

    Args:
        d_model: D.
        layer: Γ, built as `layer(E)`.
        expand: E / D, such that E is a whole number.
        d_conv: W, the taps of the depthwise convolution, which is causal whatever Γ is.
        norm: "batch", "batch_padded", "layer" or "rms", which is Mamba's.
        prenorm: the norm is applied before the mixer, as in Mamba; otherwise after the residual.
        dropout: before the residual, tied over length; Mamba has none.
        bias: of both projections.
        conv_bias: of the convolution.
        glu: the mixer ends as S4's block does, with GELU and a gated linear unit; Mamba has neither. (The code believed
            to be behind LRA's published Mamba row has: jsie7/ssm-benchmark; docs/reproduction.md.)

    Raises:
        ValueError: E is not a whole number, or there is no tap.
    """

    stateful = ("conv1d", "layer")
    residual_maps = ("out_proj",)

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
        self.in_proj = nn.Linear(d_model, 2 * E, bias=bias)
        self.conv1d = ShortConvolution(E, d_conv, bias=conv_bias, silu=True)
        self.layer = LayerSpec.of(layer)(E)
        self.out_proj = nn.Linear(E, d_model, bias=bias)
        self.glu = nn.Linear(d_model, 2 * d_model) if glu else None
        self.dropout = TiedDropout(dropout)

    def mixer(self, x: Tensor, run_part: RunPart) -> Tensor:
        u, z = apply_linear(self.in_proj, x).chunk(2, dim=-1)
        y = run_part("layer", run_part("conv1d", u))
        y = apply_linear(self.out_proj, y * F.silu(z))
        return self.dropout(y if self.glu is None else F.glu(self.glu(self.dropout(F.gelu(y))), dim=-1))

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Block.step`; with Mamba's own S6 it is a single call if `ops.mamba_step` supports that."""
        return self._step_in_one_call(x_t, state) or super().step(x_t, state)

    def _step_in_one_call(self, x_t: Tensor, state: State) -> tuple[Tensor, State] | None:
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
        weights = selective_weights()
        if weights is None or self.in_proj.bias is not None:
            return None
        conv = self.conv1d
        return mamba_step(
            x_t, self.norm.weight, self.norm.eps, self.in_proj.weight, conv.weight.squeeze(1), conv.bias, weights,
            self.out_proj.weight, *state,
        )  # fmt: skip

    width_roles = channel_maps
