"""The layers' equations as loops over time, written from the papers and not from the code under test."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

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
    """One direction of S6: Mamba's form, or Yu & Erichson 2025, eq. 3-4."""
    A = real_part(unit)
    state, outputs = torch.zeros(x.shape[0], x.shape[2], A.shape[-1], dtype=x.dtype), []
    for t in range(x.shape[1]):
        u = x[:, t]
        if unit.low_rank:
            delta = softplus(u @ unit.delta_down.T @ unit.delta_up.T + unit.delta_bias)[..., None]
            factor = delta
        else:
            delta = softplus((u @ unit.delta_weight)[:, None] + unit.delta_bias)[..., None]
            factor = zoh_factor(delta, A)
        state = torch.exp(delta * A) * state + factor * (u @ unit.B.T)[:, None, :] * u[..., None]
        outputs.append((state * (u @ unit.C.T)[:, None, :]).sum(-1) + unit.D * u)
    return torch.stack(outputs, 1)


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


DISCRETE = {
    "direct": lambda w: w,
    "clip": lambda w: w.clamp(-1 + 1e-4, 1 - 1e-4),
    "relu": lambda w: torch.exp(-w.clamp(min=0)),
    "exp": lambda w: torch.exp(-torch.exp(w)),
    "softplus": lambda w: 1 / (1 + torch.exp(w)),
    "tanh": lambda w: (torch.exp(2 * w) - 1) / (torch.exp(2 * w) + 1),
}


def stable_ssm(unit, x: Tensor) -> Tensor:
    """One direction of the real diagonal form: Wang & Li 2024, eq. 1-2, f from its tables 5 and 7."""
    w, form, held = unit.eigenvalue_weight, unit.parameterization, 1
    if unit.delta is not None:
        rate = real_rate(w, form)
        held, rate = (torch.exp(unit.delta * rate) - 1) / rate, torch.exp(unit.delta * rate)
    elif form.name == "best":
        a, b = form.numbers
        rate = 1 - 1 / (a * w**2 + b)
    else:
        rate = DISCRETE[form.name](w)
    state, outputs = torch.zeros(len(x), len(rate), dtype=x.dtype), []
    for t in range(x.shape[1]):
        state = rate * state + held * (x[:, t] @ unit.U.T + unit.b)
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


DIRECTIONS = {
    "S6": s6, "B2S6": b2s6, "SSD": ssd, "LRU": lru, "_RealDiagonal": stable_ssm, "DeepLinearSSM": deep_linear,
}  # fmt: skip


def selective(direction, layer, x: Tensor) -> Tensor:
    y = direction(layer, x)
    if layer.bidirectional:
        y = y + direction(layer.reverse, x.flip(1)).flip(1)
    return y


def forward(layer, x: Tensor) -> Tensor:
    """The naive output of any of our layers."""
    name = type(layer).__name__
    if name == "StableSSM":
        return forward(layer.system, x)
    if name in ("S4D", "S5"):  # their directions share parameters
        return {"S4D": s4d, "S5": s5}[name](layer, x)
    return selective(DIRECTIONS[name], layer, x)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def short_convolution(conv, u: Tensor) -> Tensor:
    """y_t = bias + Σ_j weight_{W-1-j} u_{t-j}, per channel."""
    W, outputs = conv.weight.shape[-1], []
    for t in range(u.shape[1]):
        y = conv.bias
        for j in range(min(W, t + 1)):
            y = y + conv.weight[:, 0, W - 1 - j] * u[:, t - j]
        outputs.append(y)
    return torch.stack(outputs, 1)


def mamba_block(block, x: Tensor) -> Tensor:
    """Gu & Dao 2023, figure 3: x + out_proj(Γ(silu(conv(u))) · silu(z)), (u, z) = in_proj(rms(x))."""
    E = len(block.conv1d.weight)
    u, z = (rms_norm(x, block.norm.weight) @ block.in_proj.weight.T).split(E, -1)
    v = short_convolution(block.conv1d, u)
    y = forward(block.layer, v * torch.sigmoid(v)) * z * torch.sigmoid(z)
    y = y @ block.out_proj.weight.T
    if block.glu is not None:
        y, gate = (y * torch.special.ndtr(y) @ block.glu.weight.T + block.glu.bias).split(x.shape[-1], -1)
        y = y * torch.sigmoid(gate)
    return x + y


def mamba2_block(block, x: Tensor) -> Tensor:
    """Dao & Gu 2024, figure 6: x + out_proj(rms(Γ(silu(conv(u)), Δ) · silu(z))), (z, u) = in_proj(h), Δ of h too."""
    E = block.out_proj.in_features
    h = rms_norm(x, block.norm.weight)
    z, u = (h @ block.in_proj.weight.T).tensor_split([E], -1)
    v = short_convolution(block.conv1d, u)
    v = v * torch.sigmoid(v)
    if block.delta_proj is not None:
        v = torch.cat([v, h @ block.delta_proj.weight.T], -1)
    y = forward(block.layer, v) * z * torch.sigmoid(z)
    weights = block.gated_norm.weight.chunk(block.gated_norm.groups)
    y = torch.cat([rms_norm(part, w) for part, w in zip(y.chunk(len(weights), -1), weights, strict=True)], -1)
    return x + y @ block.out_proj.weight.T


def layer_norm(x: Tensor, norm) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


def hyena_block(block, x: Tensor) -> Tensor:
    """Poli et al. 2023, definition 3.1 at order 2, and the MLP of its public code after it; norms come first."""
    linear = torch.nn.functional.linear
    u = linear(layer_norm(x, block.norm), block.in_proj.weight, block.in_proj.bias)
    q, k, v = short_convolution(block.conv1d, u).split(x.shape[-1], -1)
    y = forward(block.layer, k * v)
    y = y if block.D is None else y + block.D * k * v
    if isinstance(block.activation, torch.nn.GELU):
        y = y * torch.special.ndtr(y)
    elif isinstance(block.activation, HalfGLU):
        gate = linear(y * torch.special.ndtr(y), block.activation.gate.weight, block.activation.gate.bias)
        y = y / (1 + torch.exp(-gate))
    x = x + linear(q * y, block.out_proj.weight, block.out_proj.bias)
    if block.norm2 is None:
        return x
    y = linear(layer_norm(x, block.norm2), block.fc1.weight, block.fc1.bias)
    y = y / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (y + 0.044715 * y**3)))
    return x + linear(y, block.fc2.weight, block.fc2.bias)
