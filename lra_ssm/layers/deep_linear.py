"""DeepLinearSSM, a stack of diagonal linear systems with nothing between them: what depth does to memory.

Shapes: L length, D channels, K layers of the stack, N states of each.
Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission).
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from lra_ssm.layers.recurrent import RecurrentLayer, ScanContext, linear_recurrence
from lra_ssm.layers.roles import Role, WidthRole
from lra_ssm.ops import Form, Parameterization


class DeepLinearSSM(RecurrentLayer):
    """x^(k)_t = Λ_k x^(k)_{t-1} + B_k y^(k-1)_t, y^(k)_t = C_k x^(k)_t for k = 1 … K. x (batch, L, D) -> (batch, L, D).

    Every channel has its own stack, with one input and one output (eq. 1 and 6); Λ is real and diagonal.

    Args:
        d_model: D.
        n_layers: K.
        d_state: N, real states of each layer.
        normalize: B_k is multiplied by sqrt(|1 - Λ_k²|), as by LRU's γ: every state then has the variance of white
            noise at its input (figure 2B).
        relu: a ReLU between the layers (figure 3C).
        lambda_min: least λ at initialization, where it is uniform (the paper gives none: ours).
        lambda_max: greatest λ at initialization.
        scale: standard deviation of B and C at initialization (section 4.2 compares 1 and 50).
        trained: which of A, B and C are learned; a B or C that is not learned is 1 (figure 3A).
        bidirectional: a second stack, with its own parameters, over the reversed sequence; its outputs are added.
        parameterization: f of λ = f(w), `ops.parameterization`: "direct", or a name or {name, a, b} of discrete time.

    Raises:
        ValueError: invalid sizes or ranges, or f does not reach an initial λ.
    """

    zero_preserving = True
    B: Tensor
    C: Tensor

    def __init__(
        self,
        d_model: int,
        n_layers: int = 2,
        d_state: int = 1,
        normalize: bool = False,
        relu: bool = False,
        lambda_min: float = 0.0,
        lambda_max: float = 1.0,
        scale: float = 1.0,
        trained: Literal["A", "AB", "AC", "ABC"] = "ABC",
        bidirectional: bool = False,
        parameterization: Form = "direct",
    ) -> None:
        super().__init__()
        if n_layers < 1 or d_state < 1:
            raise ValueError(f"DeepLinearSSM n_layers {n_layers}, d_state {d_state}: both must be at least 1")
        if not -math.inf < lambda_min <= lambda_max < math.inf:
            raise ValueError(
                f"DeepLinearSSM lambda_min {lambda_min}, lambda_max {lambda_max}: must be finite, in order"
            )
        K, D, N = n_layers, d_model, d_state
        self.normalize, self.relu, self.state_shape = normalize, relu, (K, D, N)
        self.parameterization = Parameterization.of(parameterization, "discrete")
        eigenvalues = torch.empty(K, D, N, dtype=torch.float64).uniform_(lambda_min, lambda_max)
        self.eigenvalue_weight = nn.Parameter(self.parameterization.inverse(eigenvalues).float())
        for name in ("B", "C"):
            if name in trained:
                self.register_parameter(name, nn.Parameter(torch.randn(K, D, N) * scale))
            else:
                self.register_buffer(name, torch.ones(K, D, N))
        if bidirectional:
            self.add_reverse()

    def _system(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return eigenvalues, B and C, each (K, D, N); B includes the normalization."""
        eigenvalues = self.parameterization.f(self.eigenvalue_weight)
        B = (1 - eigenvalues.square()).abs().sqrt() * self.B if self.normalize else self.B
        return eigenvalues, B, self.C

    def scan(self, x: Tensor, context: ScanContext) -> tuple[Tensor, Tensor | None]:
        """See `RecurrentLayer.scan`; state (batch, K, D, N)."""
        eigenvalues, B, C = self._system()
        K, D, N = self.state_shape
        y, last = x, []
        for k in range(K):
            inputs = (y.relu() if self.relu and k else y).unsqueeze(-1) * B[k]
            before = None if context.initial_state is None else context.initial_state[:, k].flatten(1)
            states, end = linear_recurrence(
                eigenvalues[k].flatten(), inputs.flatten(-2), context._replace(initial_state=before)
            )
            y = (states.unflatten(-1, (D, N)) * C[k]).sum(-1)
            if end is not None:
                last.append(end.unflatten(-1, (D, N)))
        dtype = torch.promote_types(x.dtype, C.dtype)  # a state in float32 is not to be seen in y
        return y.to(dtype), torch.stack(last, 1) if last else None

    def roles(self) -> dict[str, Role]:
        return {"eigenvalue_weight": "recurrent"}

    def width_roles(self) -> dict[str, WidthRole]:
        """Every channel has its own stack."""
        return {name: "vector" for name in ("eigenvalue_weight", "B", "C")}
