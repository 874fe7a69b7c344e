"""The dual encoder of LRA's Retrieval: do two documents belong together?

Shapes: B batch, L length, D channels, V vocabulary.
"""

from torch import Tensor

from lra_ssm.models.classifier import Classifier
from lra_ssm.models.heads import NLIHead


class DualEncoder(Classifier):
    """One backbone and pooling for both sequences of a pair, and a head on the two vectors.

    Arguments and errors as in `Classifier`; head: `NLIHead`, the public S4 code's, or `LRAPairHead`, LRA's own.
    """

    per_example = 2
    default_head = NLIHead

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Map inputs (B, 2, L) int64 or (B, 2, L, d_input) float and lengths (B, 2) to logits (B, num_classes).

        Raises ValueError if the inputs are not pairs.
        """
        if inputs.dim() < 3 or inputs.shape[1] != 2:
            raise ValueError(f"inputs {tuple(inputs.shape)}: a dual encoder takes pairs (batch, 2, length)")
        vectors = self.encode(inputs.flatten(0, 1), None if lengths is None else lengths.flatten())
        x, y = vectors.unflatten(0, (-1, 2)).unbind(1)
        return self.logits(x, y)
