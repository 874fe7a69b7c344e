"""The layers' equations, written from the papers and not from the code under test, with one loop over time."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.functional import linear, softplus

from lra_ssm.layers.hyena import HalfGLU
from tests.ops.operators import mamba3_loop


def states(a: Tensor, b: Tensor) -> Tensor:
    """x_t = a_t x_{t−1} + b_t from x_{−1} = 0: b (batch, L, …) and a of this shape, or constant -> x (batch, L, …)."""
    a, x, after = a.expand_as(b), torch.zeros_like(b[:, 0]), []
    for t in range(b.shape[1]):
        x = a[:, t] * x + b[:, t]
        after.append(x)
    return torch.stack(after, 1)


def convolved(kernel: Tensor, u: Tensor) -> Tensor:
    """y_t = Σ_j k_j u_{t−j}, per channel: kernel (D, W), u (batch, L, D)."""
    taps = [range(min(kernel.shape[1], t + 1)) for t in range(u.shape[1])]
    return torch.stack([sum(kernel[:, j] * u[:, t - j] for j in seen) for t, seen in enumerate(taps)], 1)


def real_rate(w: Tensor, form) -> Tensor:
    """-exp(w), or what Wang & Li 2024, tables 5 and 7, have for continuous time."""
    if form.name == "best":
        a, b = form.numbers
        return -1 / (a * w**2 + b)
    forms = {"exp": lambda: -w.exp(), "softplus": lambda: -torch.log(1 + w.exp()), "relu": lambda: -w.clamp(min=0)}
    return (forms | {"direct": lambda: w, "clip": lambda: w.clamp(max=-1e-4)})[form.name]()


def zoh_factor(delta: Tensor, A: Tensor) -> Tensor:
    """A⁻¹(exp(ΔA) − 1)."""
    return (torch.exp(delta * A) - 1) / A


# --- layers; of those whose reversed direction has parameters of its own, one direction ---


def s4d(layer, x: Tensor) -> Tensor:
    """Yu & Erichson 2025, eq. 1-2, and D; the reversed direction starts one position later (public S4 code)."""
    D = layer.D.shape[0]
    A = torch.complex(real_rate(layer.A_log, layer.parameterization), layer.A_imag).expand(D, -1)
    B, C = torch.view_as_complex(layer.B).expand(D, -1), torch.view_as_complex(layer.C).expand(-1, D, -1)
    delta = layer.log_delta.exp()[:, None]
    A_bar, B_bar = torch.exp(delta * A), zoh_factor(delta, A) * B
    if layer.discretization == "bilinear":  # Gu et al. 2022 (S4), eq. 3
        A_bar, B_bar = (1 + delta * A / 2) / (1 - delta * A / 2), delta * B / (1 - delta * A / 2)
    y, *backward = (
        2 * (C_way * states(A_bar, B_bar * u[..., None])).sum(-1).real
        for C_way, u in zip(C, (x, x.flip(1)), strict=False)
    )
    for reversed_y in backward:
        y = y + F.pad(reversed_y.flip(1)[:, 1:], (0, 0, 0, 1))
    return y + layer.D * x


def s5(layer, x: Tensor) -> Tensor:
    """Smith et al. 2023, eq. 5-6 and its public code; the reversed direction sees the present position too."""
    A = torch.complex(real_rate(layer.A_weight, layer.parameterization), layer.A_imag)
    delta, B, C = layer.log_delta.exp(), torch.view_as_complex(layer.B), torch.view_as_complex(layer.C)
    A_bar, B_bar = torch.exp(delta * A), zoh_factor(delta, A)[:, None] * B
    y, *backward = (
        2 * (states(A_bar, u.to(B.dtype) @ B_bar.T) @ C_way.T).real for C_way, u in zip(C, (x, x.flip(1)), strict=False)
    )
    return y + layer.D * x + sum(reversed_y.flip(1) for reversed_y in backward)


def s6(unit, x: Tensor) -> Tensor:
    """Gu & Dao 2023, algorithm 2, with its public code's projections and Euler's rule."""
    delta = softplus(x @ unit.delta_down.T @ unit.delta_up.T + unit.delta_bias)[..., None]
    B, C = ((x @ weight.T)[..., None, :] for weight in (unit.B, unit.C))
    return (states(torch.exp(delta * real_rate(unit.A_log, unit.parameterization)), delta * B * x[..., None]) * C).sum(
        -1
    ) + unit.D * x


def paper_s6(unit, x: Tensor) -> Tensor:
    """The S6 of Yu & Erichson 2025, eq. 3-4, with the weights of a B2S6 of one block, and its skip D."""
    A, (w,), (B,), (C,) = -unit.A_log.exp(), unit.delta_weight, unit.B_weight, unit.C
    delta = softplus((x @ w)[..., None] + unit.delta_bias)[..., None]
    A_bar = torch.exp(delta * A)
    state = states(A_bar, (A_bar - 1) / A * (x @ B)[..., None, :] * x[..., None])
    return torch.einsum("bln,bldn->bld", x @ C, state) + unit.D * x


def b2s6(unit, x: Tensor) -> Tensor:
    """B2S6 block by block: Yu & Erichson 2025, eq. 7-8."""
    H, P, N = unit.H, unit.P, unit.N
    parts = (lambda w: torch.view_as_complex(w.unflatten(-1, (N, 2)))) if unit.complex_state else (lambda w: w)
    A, scale = real_rate(unit.A_log, unit.parameterization), 1
    if unit.complex_state:
        A, scale = torch.complex(A, unit.A_imag), 2
    B_weight, C_weight = parts(unit.B_weight), parts(unit.C) if unit.complex_C else unit.C
    bias = torch.zeros(H * P, N, dtype=A.dtype)
    if unit.B_bias is not None:
        bias = torch.view_as_complex(unit.B_bias) if unit.complex_state else unit.B_bias
    blocks = []
    for j in range(H):
        own = slice(j * P, (j + 1) * P)
        u = x[..., own]
        delta = softplus((u @ unit.delta_weight[j])[..., None] + unit.delta_bias[own])[..., None]
        B = (u.to(B_weight.dtype) @ B_weight[j])[..., None, :] + bias[own]
        C = (u.to(C_weight.dtype) @ C_weight[j])[..., None, :]
        state = states(torch.exp(delta * A), zoh_factor(delta, A) * B * u[..., None])
        blocks.append(scale * (C * state).sum(-1).real + unit.D[own] * u)
    return torch.cat(blocks, -1)


def ssd(unit, x: Tensor) -> Tensor:
    """SSD head by head: Dao & Gu 2024, section 2.1 with A a multiple of the identity; its public code for the rest.

    x is the unit's own input, or has B, C and Δ behind it.
    """
    (H, P, N), G, D = unit.state_shape, unit.n_groups, unit.d_model
    if x.shape[-1] == D:
        B, C, delta = x @ unit.B.T, x @ unit.C.T, x @ unit.delta_weight.T
    else:
        x, B, C, delta = x.split([D, G * N, G * N, H], -1)
    delta, A, heads = softplus(delta + unit.delta_bias), real_rate(unit.A_log, unit.parameterization), []
    for h in range(H):
        group = slice(h // (H // G) * N, (h // (H // G) + 1) * N)
        u, step = x[..., h * P : (h + 1) * P], delta[..., h, None, None]
        state = states(torch.exp(step * A[h]), step * u[..., None] * B[..., None, group])
        heads.append((state * C[..., None, group]).sum(-1) + unit.D[h] * u)
    return torch.cat(heads, -1)


def mamba3(unit, x: Tensor) -> Tensor:
    """Mamba-3: Lahoti et al. 2026; its public code for the projections. x as of `ssd`."""
    H, P, N = unit.state_shape[0], unit.state_shape[1] - 1, unit.state_shape[2] - 1
    G, D = unit.n_groups, unit.d_model
    if x.shape[-1] == D:
        names = ("B", "C", "A_weight", "trapezoid_weight", "angle_weight", "delta_weight")
        x = torch.cat([x, *(x @ getattr(unit, name).T for name in names)], -1)
    x, B, C, A, trap, angle, delta = x.split([D, G * N, G * N, H, H, unit.n_angles, H], -1)
    delta, trap = softplus(delta + unit.delta_bias), 1 / (1 + torch.exp(-trap))
    rate = torch.log(1 + A.exp()) if unit.A_function == "softplus" else torch.where(A >= 0, 1 + A, 1 / (1 - A))
    rate = rate.clamp(min=unit.A_min)
    B, C = (t.unflatten(-1, (G, N)).repeat_interleave(H // G, 2) for t in (B, C))
    B, C = rms_norm(B, unit.B_norm) + unit.B_bias, rms_norm(C, unit.C_norm) + unit.C_bias
    heads = x.unflatten(-1, (H, P))
    return mamba3_loop(heads, delta, -rate, trap, math.pi * torch.tanh(angle), B, C, unit.D)[0].flatten(2)


def rglru(unit, x: Tensor) -> Tensor:
    """RG-LRU: De et al. 2024, eq. 1-4, with a = sigmoid(-Λ), hence -log a = softplus(Λ)."""
    P = unit.gate_weight.shape[1]
    gates = [u @ weight for u, weight in zip(x.split(P, -1), unit.gate_weight, strict=True)]  # both, of each block
    r, i = (torch.cat([g[..., own] for g in gates], -1) for own in (slice(P), slice(P, None)))
    r, i = r + unit.gate_bias[0], i + unit.gate_bias[1]
    a = torch.sigmoid(-unit.decay_weight) ** (8 * torch.sigmoid(r))
    return states(a, (1 - a**2).sqrt() * torch.sigmoid(i) * x)


def lru(unit, x: Tensor) -> Tensor:
    """Orvieto et al. 2023, eq. 1 with λ = exp(-exp(ν) + i exp(θ)), section 3.3 and 3.4 for γ."""
    if unit.parameterization.name == "exp":
        eigenvalues = torch.exp(torch.complex(-unit.modulus_weight.exp(), unit.theta_log.exp()))
    else:  # Wang & Li 2024, "best" of discrete time
        a, b = unit.parameterization.numbers
        eigenvalues = (1 - 1 / (a * unit.modulus_weight**2 + b)) * torch.exp(1j * unit.theta_log.exp())
    B, C = torch.view_as_complex(unit.B), torch.view_as_complex(unit.C)
    state = states(eigenvalues, unit.gamma_log.exp() * (x.to(B.dtype) @ B.T))
    return (state @ C.T).real + unit.D * x


def stable_ssm(unit, x: Tensor) -> Tensor:
    """The real diagonal form: Wang & Li 2024, eq. 1-2, f from its tables 5 and 7."""
    w, form, factor = unit.eigenvalue_weight, unit.parameterization, 1
    if unit.delta is not None:
        rate = real_rate(w, form)
        factor, rate = zoh_factor(unit.delta, rate), torch.exp(unit.delta * rate)
    else:  # "best" of discrete time
        a, b = form.numbers
        rate = 1 - 1 / (a * w**2 + b)
    return unit.readout(states(rate, factor * (x @ unit.U.T + unit.b))) @ unit.C.T


def deep_linear(unit, x: Tensor) -> Tensor:
    """The stack, layer by layer (eq. 6 of its paper); its parameterization is direct."""
    for k, (rate, B, C) in enumerate(zip(unit.eigenvalue_weight, unit.B, unit.C, strict=True)):
        if k and unit.relu:
            x = x.clamp(min=0)
        gain = (1 - rate**2).abs() ** 0.5 if unit.normalize else 1
        x = (C * states(rate, gain * B * x[..., None])).sum(-1)
    return x


def attention(layer, x: Tensor) -> Tensor:
    """Vaswani et al. 2017, eq. 1; Su et al. 2021, eq. 34, for what turns queries and keys."""
    L, H, G, K = x.shape[1], layer.n_heads, layer.n_kv_heads, layer.d_head
    if layer.position_embedding is not None:
        x = x + layer.position_embedding.weight[:L]
    qkv = linear(x, layer.qkv_proj.weight, layer.qkv_proj.bias)
    q, k, v = (part.unflatten(-1, (-1, K)) for part in qkv.split([H * K, G * K, G * K], -1))
    if layer.positions == "rope":  # channel j and j + K/2 are a complex number, turned by position times base^(-2j/K)
        waves = torch.tensor([10_000 ** (-2 * j / K) for j in range(K // 2)], dtype=torch.float64)
        turns = torch.polar(torch.ones(()).double(), torch.arange(L)[:, None, None] * waves)
        turned = [torch.complex(*part.chunk(2, -1)) * turns for part in (q, k)]
        q, k = (torch.cat([part.real, part.imag], -1) for part in turned)
    k, v = (part.repeat_interleave(H // G, 2) for part in (k, v))
    seen = [[(s <= t or not layer.causal) and abs(s - t) < (layer.window or L) for s in range(L)] for t in range(L)]
    scores = torch.einsum("bthk,bshk->bhts", q, k) / math.sqrt(K)
    weights = scores.masked_fill(~torch.tensor(seen), -torch.inf).softmax(-1)
    y = torch.einsum("bhts,bshk->bthk", weights, v).flatten(2)
    return linear(y, layer.out_proj.weight, layer.out_proj.bias)


# --- blocks ---


def residual(block, norm, x: Tensor, f) -> Tensor:
    """x + f(norm(x)), or norm(x + f(x)), the norm by channels: RMSNorm, or LayerNorm."""

    def normalized(x: Tensor) -> Tensor:
        if "RMS" in type(norm).__name__:
            return rms_norm(x, norm.weight)
        return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias)

    return x + f(normalized(x)) if block.prenorm else normalized(x + f(x))


def rms_norm(x: Tensor, weight: Tensor | float = 1.0, eps: float = 1e-5) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def through(module, x: Tensor) -> Tensor:
    """A linear map, or a short convolution."""
    if isinstance(module, torch.nn.Linear):
        return linear(x, module.weight, module.bias)
    return convolved(module.weight[:, 0].flip(1), x) + (0 if module.bias is None else module.bias)


def s4_block(block, x: Tensor) -> Tensor:
    """The public S4 code's: GLU(GELU(layer))."""
    return residual(block, block.norm, x, lambda h: F.glu(through(block.glu, F.gelu(forward(block.layer, h)))))


def s5_block(block, x: Tensor) -> Tensor:
    """lindermanlab/S5, s5/layers.py: h · sigmoid(W g + b), h = g, y or another map of g."""

    def f(h: Tensor) -> Tensor:
        y = forward(block.layer, h)
        g = F.gelu(y, approximate="tanh")
        if block.activation == "full_glu":
            return F.glu(through(block.glu, g))
        return (g if block.activation == "half_glu1" else y) * torch.sigmoid(through(block.glu, g))

    return residual(block, block.norm, x, f)


def plain_block(block, x: Tensor) -> Tensor:
    """Yu & Erichson 2025, eq. 5, between its two linear maps."""
    return block.nonlinearity(forward(block.layer, x) + block.bias)


def with_mlp(block, x: Tensor) -> Tensor:
    """The second half of a Transformer's block or of Hyena's."""
    if block.norm2 is None:
        return x

    def mlp(h: Tensor) -> Tensor:
        y = through(block.mlp.fc1, h)
        if y.shape[-1] == block.mlp.fc2.in_features:
            return through(block.mlp.fc2, F.gelu(y, approximate="tanh"))
        a, b = y.chunk(2, -1)
        gate = F.gelu(a, approximate="tanh") if block.mlp.activation == "geglu" else F.silu(a)
        return through(block.mlp.fc2, gate * b)

    return residual(block, block.norm2, x, mlp)


def transformer_block(block, x: Tensor) -> Tensor:
    """Vaswani et al. 2017, section 3, any layer in attention's place."""
    return with_mlp(block, residual(block, block.norm, x, lambda h: forward(block.layer, h)))


def mamba_block(block, x: Tensor) -> Tensor:
    """Gu & Dao 2023, figure 3: x + out_proj(Γ(silu(conv(u))) · silu(z)), (u, z) = in_proj(norm(x))."""

    def f(h: Tensor) -> Tensor:
        u, z = through(block.in_proj, h).chunk(2, -1)
        y = through(block.out_proj, forward(block.layer, F.silu(through(block.conv1d, u))) * F.silu(z))
        return y if block.glu is None else F.glu(through(block.glu, F.gelu(y)))

    return residual(block, block.norm, x, f)


def mamba2_block(block, x: Tensor) -> Tensor:
    """Dao & Gu 2024, figure 6: x + out_proj(rms(Γ(silu(conv(u)), Δ) · silu(z))), (z, u) = in_proj(h), Δ of h too."""

    def f(h: Tensor) -> Tensor:
        z, u = through(block.in_proj, h).tensor_split([block.out_proj.in_features], -1)
        v = F.silu(through(block.conv1d, u))
        if block.delta_proj is not None:
            v = torch.cat([v, through(block.delta_proj, h)], -1)
        y = (forward(block.layer, v) * F.silu(z)).unflatten(-1, (block.gated_norm.groups, -1))
        return through(block.out_proj, rms_norm(y).flatten(-2) * block.gated_norm.weight)

    return residual(block, block.norm, x, f)


def mamba3_block(block, x: Tensor) -> Tensor:
    """The public code's modules/mamba3.py: x + out_proj(Γ(u) · silu(z)), then x + a SwiGLU (Shazeer 2020, eq. 6)."""

    def f(h: Tensor) -> Tensor:
        z, u = through(block.in_proj, h).tensor_split([block.out_proj.in_features], -1)
        if block.delta_proj is not None:
            u = torch.cat([u, through(block.delta_proj, h)], -1)
        return through(block.out_proj, forward(block.layer, u) * F.silu(z))

    return with_mlp(block, residual(block, block.norm, x, f))


def griffin_block(block, x: Tensor) -> Tensor:
    """De et al. 2024, figure 2: x + out_proj(Γ(conv(u)) · gelu(z)), (u, z) = in_proj(h), then x + MLP."""

    def f(h: Tensor) -> Tensor:
        u, z = through(block.in_proj, h).chunk(2, -1)
        y = forward(block.layer, through(block.conv1d, u)) * F.gelu(z, approximate="tanh")
        return through(block.out_proj, y)

    return with_mlp(block, residual(block, block.norm, x, f))


def hyena_block(block, x: Tensor) -> Tensor:
    """Poli et al. 2023, definition 3.1 at order 2, and the MLP of its public code after it."""

    def f(h: Tensor) -> Tensor:
        q, k, v = through(block.conv1d, through(block.in_proj, h)).chunk(3, -1)
        y = forward(block.layer, k * v)
        y = y if block.D is None else y + block.D * k * v
        if isinstance(block.activation, torch.nn.GELU):
            y = F.gelu(y)
        elif isinstance(block.activation, HalfGLU):
            y = y * torch.sigmoid(through(block.activation.gate, F.gelu(y)))
        return through(block.out_proj, q * y)

    return with_mlp(block, residual(block, block.norm, x, f))


EQUATIONS = {
    "S4D": s4d, "S5": s5, "S6": s6, "B2S6": b2s6, "SSD": ssd, "Mamba3": mamba3, "LRU": lru,
    "RGLRU": rglru, "_RealDiagonal": stable_ssm,
    "StableSSM": lambda layer, x: forward(layer.system, x), "DeepLinearSSM": deep_linear, "Attention": attention,
    "LocalConvolution": lambda layer, x: convolved(layer.kernel, x),  # Miralles-González et al. 2025
    "S4Block": s4_block, "S5Block": s5_block, "PlainBlock": plain_block, "TransformerBlock": transformer_block,
    "MambaBlock": mamba_block, "Mamba2Block": mamba2_block, "Mamba3Block": mamba3_block,
    "GriffinBlock": griffin_block, "HyenaBlock": hyena_block,
}  # fmt: skip


def forward(module, x: Tensor) -> Tensor:
    """The naive output of any of our layers and blocks."""
    equation, reverse = EQUATIONS[type(module).__name__], getattr(module, "reverse", None)
    y = equation(module, x)
    return y if reverse is None else y + equation(reverse, x.flip(1)).flip(1)
