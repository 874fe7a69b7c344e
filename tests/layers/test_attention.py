"""Attention's cache and positions; test_contract.py has what all layers share."""

import pytest
import torch

from lra_ssm.layers import Attention
from tests.layers.cases import build, sequences

D, H = 8, 4


@pytest.mark.parametrize("window", [None, 4])
def test_the_cache_grows_up_to_the_window_and_holds_only_the_last_document(window):
    layer, x = Attention(D, H, window=window).double(), sequences(L=60, D=D)
    state = layer.initial_state(2)
    for t in range(9):
        state = layer.step(x[:, t], state)[1]
        assert state[0].shape[1] == min(t + 1, window or 9)
    reset = torch.zeros(2, 60, dtype=torch.bool)
    reset[0, ::7], reset[1, 3::5] = True, True
    for begin in range(0, 60, 6):
        part = slice(begin, begin + 6)
        state = layer(x[:, part], reset=reset[:, part], initial_state=state, return_last_state=True)[1]
        assert state[0].shape[1] == state[1].shape[1] == state[2].shape[1] <= min(7, window or 7)


@pytest.mark.parametrize("window", [None, 3])
def test_learned_positions_limit_the_document_and_not_the_sequence(window):
    layer, x = Attention(D, H, positions="learned", max_length=5, window=window).double(), sequences(L=12, D=D)
    reset = torch.zeros(2, 12, dtype=torch.bool)
    reset[:, [0, 4, 7]] = True
    torch.testing.assert_close(layer(x, reset=reset)[:, 7:], layer(x[:, 7:]))
    torch.testing.assert_close(layer(x, torch.tensor([5, 3]))[:, :5], layer(x[:, :5], torch.tensor([5, 3])))
    three, five = (layer(x[:, :length], return_last_state=True)[1] for length in (3, 5))
    for longest, call in [
        (6, lambda: layer(x[:, :3], initial_state=three)),
        (6, lambda: layer.step(x[:, 5], five)),
        (8, lambda: layer(x, reset=reset & (torch.arange(12) < 5))),
        (12, lambda: layer(x)),
    ]:
        with pytest.raises(ValueError, match=f"a document has {longest} positions or more, and .* max_length 5"):
            call()


def test_positions_far_behind_are_exact_in_float32():
    """The angle at position 10^6 is known to a rounding of itself."""
    layer, x = build("attention").float(), sequences(L=3, D=D).float()
    far = (*(part[:, :0].new_zeros(2, 1, H, D // H) for part in (x, x)), torch.full((2, 1), 10**6))
    cut = torch.zeros(2, 3, dtype=torch.bool)
    cut[:, 0] = True
    assert torch.allclose(layer(x, reset=cut, initial_state=far), layer(x), atol=1e-6)


def test_dropout_is_off_in_evaluation():
    torch.manual_seed(0)
    layer, x = Attention(D, H, dropout=0.5), sequences(D=D).float()
    assert not torch.equal(layer(x), layer(x)) and torch.equal(layer.eval()(x), layer(x))
