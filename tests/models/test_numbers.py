"""Networks that read token ids as numbers: the same as a network of one feature that holds the id."""

import pytest
import torch

from lra_ssm.layers import S4D, BlockSpec, LayerSpec, S4Block
from lra_ssm.models import Classifier, DualEncoder, LogitPairHead, NumberClassifier, NumberDualEncoder


@pytest.mark.parametrize("ours, theirs, head", [
    (NumberClassifier, Classifier, None), (NumberDualEncoder, DualEncoder, LogitPairHead),
])  # fmt: skip
def test_a_token_is_the_number_of_its_id(ours, theirs, head):
    settings = {"num_classes": 3, "d_model": 6, "n_layers": 1, "block": BlockSpec(S4Block, norm="layer"), "head": head}
    layer = LayerSpec(S4D, d_state=4)
    numbers, features = ours(layer, **settings), theirs(layer, d_input=1, **settings)
    features.load_state_dict(numbers.state_dict())
    shape = (3, 2, 7) if theirs is DualEncoder else (3, 7)
    ids = torch.randint(0, 300, shape, generator=torch.Generator().manual_seed(1))
    lengths = torch.full(shape[:-1], 5)
    logits = numbers(ids, lengths)
    torch.testing.assert_close(logits, features(ids[..., None].float(), lengths))
    assert numbers.backbone.embedding.weight.shape == (6, 1) and numbers.per_example == theirs.per_example
    other = ids.clone()
    other[..., 5:] = 77  # padding
    torch.testing.assert_close(numbers(other, lengths), logits)
