"""Teachers: noise, and the outputs of a fixed diagonal linear system, which a student learns.

Source: "On the Interplay between Learning and Memory in Deep State Space Models" (anonymous, ICLR 2025 submission),
section 4: white noise N(0, 1), squared error, teachers whose B and C are 1. The paper does not state the
sequence length or the number of examples.
"""

from collections.abc import Sequence

import numpy as np

from lra_ssm.datamodules.synthetic.base import ExampleRandom, FloatArray, SyntheticData
from lra_ssm.datamodules.synthetic.filters import Float64, causal_filter, diagonal_response

Layers = tuple[tuple[float, ...], ...]  # a number for each state, by layer


class TeacherStudent(SyntheticData):
    """The outputs of a teacher: layers x_t = λ x_{t−1} + B u_t, y_t = Re(C x_t), each on the one before.

    Batches are `Batch` with a real target at every position.

    Args:
        eigenvalues: λ of every state, by layer, inside the unit circle; with phases, their moduli. Figure 3A of the
            paper has one layer of two states, [[0.9, 0.99]]; figure 5 [[0.9, 0.4, 0.9, 0.3, 0.2]].
        phases: angles of the eigenvalues in radians, in the same form; None for real eigenvalues.
        B: real weights of the input, in the same form; None for 1.
        C: real weights of the output; None for 1.
        length: length of the sequences.
    """

    dataset = "teacher_student"
    d_input, num_outputs = 1, 1

    eigenvalues: Sequence[Sequence[float]] = ((0.9, 0.99),)
    phases: Sequence[Sequence[float]] | None = None
    B: Sequence[Sequence[float]] | None = None
    C: Sequence[Sequence[float]] | None = None
    length: int = 512
    resample: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        states = [len(layer) for layer in self.eigenvalues]
        inside = all(abs(value) < 1 for layer in self.eigenvalues for value in layer)
        self.require(inside, "eigenvalues", "must be inside the unit circle")
        for name, value in {"phases": self.phases, "B": self.B, "C": self.C}.items():
            same = value is None or [len(layer) for layer in value] == states
            self.require(same, name, f"must have a number for each of the eigenvalues, by layer: {states}")
        self.eigenvalues = _layers(self.eigenvalues, states, 0.0)
        self.phases = _layers(self.phases, states, 0.0)
        self.B, self.C = _layers(self.B, states, 1.0), _layers(self.C, states, 1.0)

    def response(self) -> Float64:
        """Return the teacher's impulse response (length,)."""
        assert self.phases is not None and self.B is not None and self.C is not None
        layers = zip(self.eigenvalues, self.phases, strict=True)
        complex_ = [np.array(moduli) * np.exp(1j * np.array(phases)) for moduli, phases in layers]
        return diagonal_response(complex_, self.B, self.C, self.length)

    def make(self, draws: ExampleRandom) -> tuple[FloatArray, FloatArray]:
        """Return u (B, L, 1) and the teacher's outputs (B, L, 1)."""
        inputs = draws.normal(0, self.length)
        return inputs[..., None], causal_filter(inputs, self.response())[..., None]


def _layers(values: Sequence[Sequence[float]] | None, states: Sequence[int], default: float) -> Layers:
    return tuple(map(tuple, [[default] * n for n in states] if values is None else values))
