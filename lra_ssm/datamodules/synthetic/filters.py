"""Linear systems on sequences, in float64, from which targets are computed.

B batch, L length.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


def causal_filter(inputs: Float64, response: Float64) -> Float64:
    """Return y_t = Σ_{k ≤ t} response_k u_{t−k} for every row: inputs (B, L), response (L,) -> (B, L).

    numpy transforms each row by itself: a row does not depend on the others in its batch.
    """
    length = inputs.shape[-1]
    transformed = np.fft.rfft(inputs, 2 * length) * np.fft.rfft(response, 2 * length)
    return np.fft.irfft(transformed, 2 * length)[:, :length]


def diagonal_response(
    eigenvalues: Sequence[npt.ArrayLike],
    B: Sequence[npt.ArrayLike],
    C: Sequence[npt.ArrayLike],
    length: int,
) -> Float64:
    """Return the impulse response (length,) of diagonal systems in a row: x_t = λ x_{t−1} + B u_t, y_t = Re(C x_t).

    One system has the response Re Σ_n C_n B_n λ_n^t; several have the convolution of all responses.
    """
    times, response = np.arange(length), np.eye(1, length)
    for layer_eigenvalues, layer_B, layer_C in zip(eigenvalues, B, C, strict=True):
        powers = np.asarray(layer_eigenvalues, dtype=np.complex128)[:, None] ** times
        layer_response = ((np.asarray(layer_B) * np.asarray(layer_C))[:, None] * powers).sum(0).real
        response = causal_filter(response, layer_response)
    return response[0]


def correlated(white: Float64, correlation: float) -> Float64:
    """Turn white noise N(0, 1) into noise with autocorrelation R(Δ) = correlation^|Δ|, from its first value on.

    u_0 = ε_0, u_t = ρ u_{t−1} + √(1 − ρ²) ε_t; white (B, L) -> (B, L), each value N(0, 1). |ρ| < 1.
    """
    scaled = white * (1 - correlation**2) ** 0.5
    scaled[:, 0] = white[:, 0]
    return causal_filter(scaled, np.power(correlation, np.arange(white.shape[1]), dtype=np.float64))
