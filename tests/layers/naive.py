"""The layers' equations as loops over time, written from the papers and not from the code under test."""

import math

import torch
from torch import Tensor
from torch.nn.functional import linear, softplus

from lra_ssm.layers.hyena import HalfGLU


def real_part(layer) -> Tensor:
    """Re A, or A, by the layer's parameterization."""
    return real_rate(layer.A_log, layer.parameterization)


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


def s4d(layer, x: Tensor) -> Tensor:
    """Yu & Erichson 2025, eq. 1-2, and D; the reversed direction starts one position later (public S4 code)."""
    D = layer.D.shape[0]
    A = torch.complex(real_part(layer), layer.A_imag).expand(D, -1)
    B = torch.view_as_complex(layer.B).expand(D, -1)
    delta = layer.log_delta.exp()[:, None]
    A_bar, B_bar = torch.exp(delta * A), zoh_factor(delta, A) * B
    if layer.discretization == "bilinear":  # Gu et al. 2022 (S4), eq. 3
        A_bar, B_bar = (1 + delta * A / 2) / (1 - delta * A / 2), delta * B / (1 - delta * A / 2)

    def run(u: Tensor, C: Tensor) -> list[Tensor]:
        state, outputs = torch.zeros(u.shape[0], *A.shape, dtype=A.dtype), []
        for t in range(u.shape[1]):
            state = A_bar * state + B_bar * u[:, t, :, None]
            outputs.append(2 * (C * state).sum(-1).real)
        return outputs

    C = torch.view_as_complex(layer.C).expand(-1, D, -1)
    y = torch.stack(run(x, C[0]), 1)
    if layer.bidirectional:
        backward = run(x.flip(1), C[1])[::-1][1:]
        y = y + torch.stack([*backward, torch.zeros_like(x[:, 0])], 1)
    return y + layer.D * x


def s6(unit, x: Tensor) -> Tensor:
    """One direction of S6, as in Mamba's code."""
    A = real_part(unit)
    state, outputs = torch.zeros(x.shape[0], x.shape[2], A.shape[-1], dtype=x.dtype), []
    for t in range(x.shape[1]):
        u = x[:, t]
        delta = softplus(u @ unit.delta_down.T @ unit.delta_up.T + unit.delta_bias)[..., None]
        state = torch.exp(delta * A) * state + delta * (u @ unit.B.T)[:, None, :] * u[..., None]
        outputs.append((state * (u @ unit.C.T)[:, None, :]).sum(-1) + unit.D * u)
    return torch.stack(outputs, 1)


def paper_s6(A: Tensor, w: Tensor, b: Tensor, B: Tensor, C: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Yu & Erichson 2025, eq. 3-4: A (N,), w, b (D,), B (N, D), C (D, N) -> y (…, L, D), last state (…, D, N)."""
    state, outputs = torch.zeros(x.shape[0], x.shape[2], len(A), dtype=x.dtype), []
    for u in x.unbind(1):
        delta = softplus((u @ w)[:, None] + b)  # (batch, D)
        A_bar = torch.exp(delta[..., None] * A)
        B_bar = (A_bar - 1) / A * (u @ B.T)[:, None, :]  # (batch, D, N)
        state = A_bar * state + B_bar * u[..., None]
        outputs.append(torch.einsum("bn,bdn->bd", u @ C, state))
    return torch.stack(outputs, 1), state


def b2s6(unit, x: Tensor) -> Tensor:
    """One direction of B2S6, block by block: Yu & Erichson 2025, eq. 7-8."""
    H, P, N = unit.H, unit.P, unit.N
    parts = (lambda w: torch.view_as_complex(w.unflatten(-1, (N, 2)))) if unit.complex_state else (lambda w: w)
    A = real_part(unit)
    scale = 1
    if unit.complex_state:
        A, scale = torch.complex(A, unit.A_imag), 2
    B_weight = parts(unit.B_weight)
    C_weight = parts(unit.C) if unit.complex_C else unit.C
    bias = torch.zeros(H * P, N, dtype=A.dtype)
    if unit.B_bias is not None:
        bias = torch.view_as_complex(unit.B_bias) if unit.complex_state else unit.B_bias
    blocks = []
    for j in range(H):
        own = slice(j * P, (j + 1) * P)
        state, outputs = torch.zeros(x.shape[0], P, N, dtype=A.dtype), []
        for t in range(x.shape[1]):
            u = x[:, t, own]
            delta = softplus((u @ unit.delta_weight[j])[:, None] + unit.delta_bias[own])[..., None]
            B = (u.to(B_weight.dtype) @ B_weight[j])[:, None, :] + bias[own]
            state = torch.exp(delta * A) * state + zoh_factor(delta, A) * B * u[..., None]
            C = (u.to(C_weight.dtype) @ C_weight[j])[:, None, :]
            outputs.append(scale * (C * state).sum(-1).real + unit.D[own] * u)
        blocks.append(torch.stack(outputs, 1))
    return torch.cat(blocks, -1)


def ssd(unit, x: Tensor) -> Tensor:
    """One direction of SSD, head by head: Dao & Gu 2024, section 2.1 with A a multiple of the identity; its public
    code for the rest. x is the unit's own input, or has B, C and Δ behind it."""
    (H, P, N), G, D = unit.state_shape, unit.n_groups, unit.d_model
    if x.shape[-1] == D:
        B, C, delta = x @ unit.B.T, x @ unit.C.T, x @ unit.delta_weight.T
    else:
        B, C, delta = x[..., D : D + G * N], x[..., D + G * N : D + 2 * G * N], x[..., D + 2 * G * N :]
    delta, A = softplus(delta + unit.delta_bias), real_part(unit)
    heads = []
    for h in range(H):
        group = slice(h // (H // G) * N, (h // (H // G) + 1) * N)
        u = x[..., h * P : (h + 1) * P]
        state, outputs = torch.zeros(len(x), P, N, dtype=x.dtype), []
        for t in range(x.shape[1]):
            step = delta[:, t, h, None, None]
            state = torch.exp(step * A[h]) * state + step * u[:, t, :, None] * B[:, t, None, group]
            outputs.append((state * C[:, t, None, group]).sum(-1) + unit.D[h] * u[:, t])
        heads.append(torch.stack(outputs, 1))
    return torch.cat(heads, -1)


def mamba3(unit, x: Tensor) -> Tensor:
    """One direction of Mamba-3 by complex states (Lahoti et al. 2026: the exponential-trapezoidal rule and the complex
    transition), pairs of real states being one; its public code for the projections. x as of `ssd`."""
    H, P, N = unit.state_shape[0], unit.state_shape[1] - 1, unit.state_shape[2] - 1
    G, D, L = unit.n_groups, unit.d_model, x.shape[1]
    if x.shape[-1] == D:
        weights = torch.cat([getattr(unit, name) for name in
                             ("B", "C", "A_weight", "trapezoid_weight", "angle_weight", "delta_weight")])  # fmt: skip
        x = torch.cat([x, x @ weights.T], -1)
    x, B, C, A, trap, angle, delta = x.split([D, G * N, G * N, H, H, unit.n_angles, H], -1)
    delta, trap = softplus(delta + unit.delta_bias), 1 / (1 + torch.exp(-trap))
    rate = torch.where(A >= 0, 1 + A, 1 / (1 - A)).clamp(min=unit.A_min)
    angle = torch.cat([math.pi * torch.tanh(angle), x.new_zeros(len(x), L, N // 2 - unit.n_angles)], -1)
    heads = []
    for h in range(H):
        group = slice(h // (H // G) * N, (h // (H // G) + 1) * N)
        b = rms_norm(B[..., group], unit.B_norm) + unit.B_bias[h]
        c = rms_norm(C[..., group], unit.C_norm) + unit.C_bias[h]
        b, c = (torch.complex(t[..., 0::2], t[..., 1::2]) for t in (b, c))
        u = x[..., h * P : (h + 1) * P]
        state, outputs = torch.zeros(len(x), P, N // 2, dtype=b.dtype), []
        entered = torch.zeros_like(state)
        for t in range(L):
            step = delta[:, t, h, None, None]
            transition = torch.exp(step * torch.complex(-rate[:, t, h, None], -angle[:, t])[:, None])
            beta, gamma = (1 - trap[:, t, h, None, None]) * step, trap[:, t, h, None, None] * step
            state = transition * (state + beta * entered)
            entered = u[:, t, :, None] * b[:, t, None]
            state = state + gamma * entered
            outputs.append((state * c[:, t, None].conj()).sum(-1).real + unit.D[h] * u[:, t])
        heads.append(torch.stack(outputs, 1))
    return torch.cat(heads, -1)


def lru(unit, x: Tensor) -> Tensor:
    """One direction of LRU: Orvieto et al. 2023, eq. 1 with λ = exp(-exp(ν) + i exp(θ)), section 3.3 and 3.4 for γ."""
    if unit.parameterization.name == "exp":
        eigenvalues = torch.exp(torch.complex(-unit.modulus_weight.exp(), unit.theta_log.exp()))
    else:  # Wang & Li 2024, "best" of discrete time
        a, b = unit.parameterization.numbers
        eigenvalues = (1 - 1 / (a * unit.modulus_weight**2 + b)) * torch.exp(1j * unit.theta_log.exp())
    B, C = torch.view_as_complex(unit.B), torch.view_as_complex(unit.C)
    state, outputs = torch.zeros(len(x), len(B), dtype=B.dtype), []
    for t in range(x.shape[1]):
        state = eigenvalues * state + unit.gamma_log.exp() * (x[:, t].to(B.dtype) @ B.T)
        outputs.append((state @ C.T).real + unit.D * x[:, t])
    return torch.stack(outputs, 1)


def s5(layer, x: Tensor) -> Tensor:
    """Smith et al. 2023, eq. 5-6 and its public code; the reversed direction sees the present position too."""
    A = torch.complex(real_rate(layer.A_weight, layer.parameterization), layer.A_imag)
    delta = layer.log_delta.exp()
    A_bar, B_bar = torch.exp(delta * A), zoh_factor(delta, A)[:, None] * torch.view_as_complex(layer.B)

    def run(u: Tensor, C: Tensor) -> Tensor:
        state, outputs = torch.zeros(len(u), len(A), dtype=A.dtype), []
        for t in range(u.shape[1]):
            state = A_bar * state + u[:, t].to(A.dtype) @ B_bar.T
            outputs.append(2 * (state @ C.T).real)
        return torch.stack(outputs, 1)

    C = torch.view_as_complex(layer.C)
    y = run(x, C[0]) + layer.D * x
    return y + run(x.flip(1), C[1]).flip(1) if layer.bidirectional else y


def stable_ssm(unit, x: Tensor) -> Tensor:
    """One direction of the real diagonal form: Wang & Li 2024, eq. 1-2, f from its tables 5 and 7."""
    w, form, factor = unit.eigenvalue_weight, unit.parameterization, 1
    if unit.delta is not None:
        rate = real_rate(w, form)
        factor, rate = (torch.exp(unit.delta * rate) - 1) / rate, torch.exp(unit.delta * rate)
    else:  # "best" of discrete time
        a, b = form.numbers
        rate = 1 - 1 / (a * w**2 + b)
    state, outputs = torch.zeros(len(x), len(rate), dtype=x.dtype), []
    for t in range(x.shape[1]):
        state = rate * state + factor * (x[:, t] @ unit.U.T + unit.b)
        outputs.append(unit.readout(state) @ unit.C.T)
    return torch.stack(outputs, 1)


def deep_linear(unit, x: Tensor) -> Tensor:
    """One direction of the stack, layer by layer (eq. 6 of its paper); its parameterization is direct."""
    for k, (rate, B, C) in enumerate(zip(unit.eigenvalue_weight, unit.B, unit.C, strict=True)):
        if k and unit.relu:
            x = x.clamp(min=0)
        state, outputs = torch.zeros(len(x), *rate.shape, dtype=x.dtype), []
        for t in range(x.shape[1]):
            gain = (1 - rate**2).abs() ** 0.5 if unit.normalize else 1
            state = rate * state + gain * B * x[:, t, :, None]
            outputs.append((C * state).sum(-1))
        x = torch.stack(outputs, 1)
    return x


def leaky(unit, x: Tensor) -> Tensor:
    """One direction of the tests' own recurrence."""
    factor = torch.polar(unit.radius, unit.phase)
    state, outputs = torch.zeros(len(x), x.shape[-1], dtype=factor.dtype), []
    for t in range(x.shape[1]):
        state = factor * state + unit.b * x[:, t] + unit.bias
        outputs.append(state.real + x[:, t])
    return torch.stack(outputs, 1)


def attention(layer, x: Tensor) -> Tensor:
    """Vaswani et al. 2017, eq. 1, one query and one head after another; Su et al. 2021, eq. 34, for what turns them."""
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
    heads = []
    for h in range(H):
        g, outputs = h // (H // G), []
        for t in range(L):
            seen = [s for s in range(L) if (s <= t or not layer.causal) and abs(s - t) < (layer.window or L)]
            weights = (k[:, seen, g] @ q[:, t, h, :, None]).div(math.sqrt(K)).softmax(1)
            outputs.append((weights * v[:, seen, g]).sum(1))
        heads.append(torch.stack(outputs, 1))
    return linear(torch.cat(heads, -1), layer.out_proj.weight, layer.out_proj.bias)


def local_convolution(layer, x: Tensor) -> Tensor:
    """Miralles-González et al. 2025: y_t = Σ_{j < W} k_j u_{t−j}, per channel."""
    seen = [[layer.kernel[:, j] * x[:, t - j] for j in range(min(layer.width, t + 1))] for t in range(x.shape[1])]
    return torch.stack([torch.stack(terms).sum(0) for terms in seen], 1)


DIRECTIONS = {
    "LocalConvolution": local_convolution, "S6": s6, "B2S6": b2s6, "SSD": ssd, "Mamba3": mamba3,
    "LRU": lru, "_RealDiagonal": stable_ssm, "DeepLinearSSM": deep_linear, "Leaky": leaky,
}  # fmt: skip


def forward(module, x: Tensor) -> Tensor:
    """The naive output of any of our layers and blocks."""
    name = type(module).__name__
    if name == "StableSSM":
        return forward(module.system, x)
    if name in WHOLE:
        return WHOLE[name](module, x)
    y = DIRECTIONS[name](module, x)
    return y + DIRECTIONS[name](module.reverse, x.flip(1)).flip(1) if module.bidirectional else y


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def short_convolution(conv, u: Tensor) -> Tensor:
    """y_t = bias + Σ_j weight_{W-1-j} u_{t-j}, per channel."""
    W, outputs = conv.weight.shape[-1], []
    for t in range(u.shape[1]):
        y = torch.zeros(()) if conv.bias is None else conv.bias
        for j in range(min(W, t + 1)):
            y = y + conv.weight[:, 0, W - 1 - j] * u[:, t - j]
        outputs.append(y)
    return torch.stack(outputs, 1)


def normalized(norm, x: Tensor) -> Tensor:
    """By channels: RMSNorm, or LayerNorm."""
    if "RMS" in type(norm).__name__:
        return rms_norm(x, norm.weight)
    x = x - x.mean(-1, keepdim=True)
    return rms_norm(x, norm.weight) + norm.bias


def residual(block, norm, x: Tensor, f) -> Tensor:
    """x + f(norm(x)), or norm(x + f(x))."""
    return x + f(normalized(norm, x)) if block.prenorm else normalized(norm, x + f(x))


def gelu(x: Tensor) -> Tensor:
    return x * torch.special.ndtr(x)


def gelu_by_tanh(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def gated(glu, x: Tensor) -> Tensor:
    y, gate = linear(x, glu.weight, glu.bias).chunk(2, -1)
    return y * torch.sigmoid(gate)


def s4_block(block, x: Tensor) -> Tensor:
    """The public S4 code's: GLU(GELU(layer))."""
    return residual(block, block.norm, x, lambda h: gated(block.glu, gelu(forward(block.layer, h))))


def s5_block(block, x: Tensor) -> Tensor:
    """lindermanlab/S5, s5/layers.py: h · sigmoid(W g + b), h = g, y or another map of g."""

    def f(h: Tensor) -> Tensor:
        y = forward(block.layer, h)
        g = gelu_by_tanh(y)
        if block.activation == "full_glu":
            return gated(block.glu, g)
        gate = torch.sigmoid(linear(g, block.glu.weight, block.glu.bias))
        return (g if block.activation == "half_glu1" else y) * gate

    return residual(block, block.norm, x, f)


def plain_block(block, x: Tensor) -> Tensor:
    """Yu & Erichson 2025, eq. 5, between its two linear maps."""
    return block.nonlinearity(forward(block.layer, x) + block.bias)


def with_mlp(block, x: Tensor) -> Tensor:
    """The second half of a Transformer's block or of Hyena's."""
    if block.norm2 is None:
        return x

    def mlp(h: Tensor) -> Tensor:
        y, fc2 = linear(h, block.mlp.fc1.weight, block.mlp.fc1.bias), block.mlp.fc2
        if y.shape[-1] == fc2.weight.shape[1]:
            return linear(gelu_by_tanh(y), fc2.weight, fc2.bias)
        a, b = y.chunk(2, -1)
        return linear(silu(a) * b, fc2.weight, fc2.bias)

    return residual(block, block.norm2, x, mlp)


def transformer_block(block, x: Tensor) -> Tensor:
    """Vaswani et al. 2017, section 3, any layer in attention's place."""
    return with_mlp(block, residual(block, block.norm, x, lambda h: forward(block.layer, h)))


def mamba_block(block, x: Tensor) -> Tensor:
    """Gu & Dao 2023, figure 3: x + out_proj(Γ(silu(conv(u))) · silu(z)), (u, z) = in_proj(norm(x))."""

    def f(h: Tensor) -> Tensor:
        u, z = linear(h, block.in_proj.weight, block.in_proj.bias).chunk(2, -1)
        y = forward(block.layer, silu(short_convolution(block.conv1d, u))) * silu(z)
        y = linear(y, block.out_proj.weight, block.out_proj.bias)
        return y if block.glu is None else gated(block.glu, gelu(y))

    return residual(block, block.norm, x, f)


def mamba2_block(block, x: Tensor) -> Tensor:
    """Dao & Gu 2024, figure 6: x + out_proj(rms(Γ(silu(conv(u)), Δ) · silu(z))), (z, u) = in_proj(h), Δ of h too."""

    def f(h: Tensor) -> Tensor:
        z, u = linear(h, block.in_proj.weight, block.in_proj.bias).tensor_split([block.out_proj.in_features], -1)
        v = silu(short_convolution(block.conv1d, u))
        if block.delta_proj is not None:
            v = torch.cat([v, linear(h, block.delta_proj.weight, block.delta_proj.bias)], -1)
        y = forward(block.layer, v) * silu(z)
        weights = block.gated_norm.weight.chunk(block.gated_norm.groups)
        y = torch.cat([rms_norm(part, w) for part, w in zip(y.chunk(len(weights), -1), weights, strict=True)], -1)
        return linear(y, block.out_proj.weight, block.out_proj.bias)

    return residual(block, block.norm, x, f)


def mamba3_block(block, x: Tensor) -> Tensor:
    """The public code's modules/mamba3.py: x + out_proj(Γ(u) · silu(z)), then x + a SwiGLU (Shazeer 2020, eq. 6)."""

    def f(h: Tensor) -> Tensor:
        z, u = linear(h, block.in_proj.weight, block.in_proj.bias).tensor_split([block.out_proj.in_features], -1)
        if block.delta_proj is not None:
            u = torch.cat([u, linear(h, block.delta_proj.weight, block.delta_proj.bias)], -1)
        return linear(forward(block.layer, u) * silu(z), block.out_proj.weight, block.out_proj.bias)

    return with_mlp(block, residual(block, block.norm, x, f))


def hyena_block(block, x: Tensor) -> Tensor:
    """Poli et al. 2023, definition 3.1 at order 2, and the MLP of its public code after it."""

    def f(h: Tensor) -> Tensor:
        u = linear(h, block.in_proj.weight, block.in_proj.bias)
        q, k, v = short_convolution(block.conv1d, u).chunk(3, -1)
        y = forward(block.layer, k * v)
        y = y if block.D is None else y + block.D * k * v
        if isinstance(block.activation, torch.nn.GELU):
            y = gelu(y)
        elif isinstance(block.activation, HalfGLU):
            y = y * torch.sigmoid(linear(gelu(y), block.activation.gate.weight, block.activation.gate.bias))
        return linear(q * y, block.out_proj.weight, block.out_proj.bias)

    return with_mlp(block, residual(block, block.norm, x, f))


# What is no sum of two directions with parameters of their own.
WHOLE = {
    "S4D": s4d, "S5": s5, "Attention": attention, "S4Block": s4_block, "S5Block": s5_block, "PlainBlock": plain_block,
    "MambaBlock": mamba_block, "Mamba2Block": mamba2_block, "Mamba3Block": mamba3_block, "HyenaBlock": hyena_block,
    "TransformerBlock": transformer_block,
}  # fmt: skip
