"""S4D, the diagonal linear time-invariant state-space layer.

Shapes: B batch, L length, D channels, N states (conjugate pairs), K directions (1, or 2 where bidirectional).
Sources: Gu et al. 2022, "On the Parameterization and Initialization of Diagonal State Space Models"; the notation of
Yu & Erichson 2025, eq. 1-2.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from lra_ssm.layers.complex import as_complex, stable_diagonal
from lra_ssm.layers.masking import mask_padding, real_resets, valid_mask
from lra_ssm.layers.selective import flip_reset, refuse_state
from lra_ssm.layers.spec import Role
from lra_ssm.ops import (
    bidirectional_convolution,
    causal_convolution,
    initialize_A,
    log_uniform_delta,
    s4d_kernel,
    selective_scan,
)


class S4D(nn.Module):
    """y = SSM(u) + D u with Ā = exp(ΔA), B̄ = A⁻¹(Ā − I)B, as one FFT convolution. x (B, L, D) -> (B, L, D).

    d_state: real states; the layer holds d_state / 2 conjugate pairs. init: A's diagonal, "legs", "lin", "inv" or
    "real". tie_A, tie_B, tie_C: one for all channels, else one per channel (Yu & Erichson 2025, section 3, ablates B
    and C; their eq. 1 ties A, the public S4D does not). Δ is always per channel, at initialization log-uniform in
    [delta_min, delta_max]. B starts at 1 (the public full kernel takes LegS's B from HiPPO; its minimal form, and ours,
    leaves it to C), C complex normal with E|C|² = 1 and D normal, as in the public code.
    bidirectional: the public S4's: a second C for the reversed direction, which starts one position later; A, B and Δ
    are shared.
    Raises ValueError for an odd d_state.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        init: Literal["legs", "lin", "inv", "real"] = "legs",
        tie_A: bool = False,
        tie_B: bool = False,
        tie_C: bool = False,
        delta_min: float = 1e-3,
        delta_max: float = 1e-1,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        if d_state % 2:
            raise ValueError(f"S4D d_state {d_state} is odd: the layer holds d_state / 2 conjugate pairs")
        D, N, K = d_model, d_state // 2, 2 if bidirectional else 1
        self.bidirectional = bidirectional
        A = initialize_A(init, N).to(torch.complex64)
        self.log_delta = nn.Parameter(log_uniform_delta(D, delta_min, delta_max).log())
        self.A_log = nn.Parameter((-A.real).log().repeat(1 if tie_A else D, 1))
        self.A_imag = nn.Parameter(A.imag.repeat(1 if tie_A else D, 1))
        one = torch.ones(1 if tie_B else D, N, 1)
        self.B = nn.Parameter(torch.cat([one, 0 * one], -1))
        self.C = nn.Parameter(torch.randn(K, 1 if tie_C else D, N, 2) * 0.5**0.5)
        self.D = nn.Parameter(torch.randn(D))

    def _system(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """delta (D,), A (D, N), B (D, N), C (K, D, N), the last three complex."""
        D = self.D.shape[0]
        A = stable_diagonal(self.A_log, self.A_imag).expand(D, -1)
        return self.log_delta.exp(), A, as_complex(self.B).expand(D, -1), as_complex(self.C).expand(-1, D, -1)

    def forward(
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        initial_state: Tensor | None = None,
        return_last_state: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """x (B, L, D) -> y (B, L, D), or (y, state) with `return_last_state`; see `SelectiveLayer.forward`.

        A convolution has no states and no boundaries, so a call with reset, initial_state or return_last_state runs
        the same system as a scan: equal values, slower.
        """
        if self.bidirectional and (initial_state is not None or return_last_state):
            refuse_state(self)
        x, reset = mask_padding(x, lengths), real_resets(reset, lengths)
        if reset is None and initial_state is None and not return_last_state:
            return mask_padding(self._convolve(x), lengths)
        valid = valid_mask(lengths, x.shape[1]) if lengths is not None else None
        y, state = self._scan(x, 0, valid, reset, initial_state)
        y = y + self.D * x
        if self.bidirectional:
            # y_t takes what the reversed scan has seen after t: its output at t + 1, unless a document starts there.
            backward = self._scan(x.flip(1), 1, reset=flip_reset(reset))[0].flip(1)[:, 1:]
            if reset is not None:
                backward = backward.masked_fill(reset[:, 1:, None], 0)
            y = y + nn.functional.pad(backward, (0, 0, 0, 1))
        y = mask_padding(y, lengths)
        return (y, state) if return_last_state else y

    def _convolve(self, x: Tensor) -> Tensor:
        delta, A, B, C = self._system()
        u = x.transpose(1, 2)
        k = s4d_kernel(delta, A, B, C, x.shape[1])
        y = bidirectional_convolution(u, k[0], k[1]) if self.bidirectional else causal_convolution(u, k[0])
        return y.transpose(1, 2) + self.D * x

    def _scan(
        self,
        x: Tensor,
        direction: int,
        valid: Tensor | None = None,
        reset: Tensor | None = None,
        initial_state: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        delta, A, B, C = self._system()
        u = x.transpose(1, 2)
        steps = delta[:, None].expand_as(u)
        if valid is not None:
            steps = steps.masked_fill(~valid.transpose(1, 2), 0)  # no time passes at padding
        y, state = selective_scan(
            u, steps, A, B, C[direction], discretization="zoh", reset=reset, initial_state=initial_state,
            return_last_state=True,
        )  # fmt: skip
        return y.transpose(1, 2), state

    def initial_state(self, batch_size: int) -> Tensor:
        """The state before the first position: complex zeros (batch_size, D, N)."""
        if self.bidirectional:
            refuse_state(self)
        dtype = torch.promote_types(self.D.dtype, torch.float32).to_complex()
        return torch.zeros(batch_size, self.D.shape[0], self.A_log.shape[1], dtype=dtype, device=self.D.device)

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: x_t (B, D), state (B, D, N) -> (y_t (B, D), state)."""
        if self.bidirectional:
            refuse_state(self)
        y, state = self._scan(x_t.unsqueeze(1), 0, initial_state=state)
        return y.squeeze(1) + self.D * x_t, state

    def optim_roles(self) -> dict[str, Role]:
        return {
            "A_log": "recurrent",
            "A_imag": "recurrent",
            "B": "recurrent",
            "log_delta": "recurrent",
            "D": "no_decay",
        }
