"""What every layer and block of ours keeps: checks that the tests of each call."""

import torch


def sequences(B=2, L=7, D=4):
    return torch.randn(B, L, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def gradients(y, inputs):
    weights = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(2))
    return torch.autograd.grad((y * weights).sum(), inputs, retain_graph=True)


def assert_same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def assert_states(a, b):
    for ours, theirs in zip(a, b, strict=True):
        assert_same(ours, theirs)


def check_equations(block, reference, L):
    """The block is what its equations, as a loop, say, and so is every gradient."""
    x = sequences(L=L).requires_grad_()
    inputs = dict(block.named_parameters()) | {"x": x}
    fast, slow = block(x), reference(block, x)
    assert_same(fast, slow)
    for key, a, b in zip(inputs, *(gradients(y, list(inputs.values())) for y in (fast, slow)), strict=True):
        assert a.abs().sum() > 0 or L < 3, f"{key} has no gradient"
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10, msg=lambda m, key=key: f"{key}: {m}")


def check_steps(block, x):
    """Steps give the parallel form's outputs, last state and gradients; returns both states, and what they are of."""
    x.requires_grad_()
    whole, last = block(x, return_last_state=True)
    assert_same(whole, block(x))
    state, outputs = block.initial_state(2), []
    for t in range(x.shape[1]):
        y, state = block.step(x[:, t], state)
        outputs.append(y)
    assert_same(torch.stack(outputs, 1), whole)
    assert_states(state, last)
    inputs = [x, *block.parameters()]
    for a, b in zip(gradients(torch.stack(outputs, 1), inputs), gradients(whole, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
    return state, last, inputs


def check_prefix(block, cut):
    """A prefix and its state go on as the whole, in the parallel form and by a step."""
    x = sequences(L=12)
    whole = block(x)
    y, state = block(x[:, :cut], return_last_state=True)
    assert_same(torch.cat([y, block(x[:, cut:], initial_state=state)], 1), whole)
    assert_same(block.step(x[:, cut], state)[0], whole[:, cut])


def check_last_state(block):
    """The last state is the one after the last real position."""
    x, lengths = sequences(B=3, L=9), torch.tensor([9, 4, 1])
    before = tuple(torch.randn_like(part) for part in block.initial_state(3))
    state = block(x, lengths, initial_state=before, return_last_state=True)[1]
    for i, n in enumerate(lengths.tolist()):
        start = tuple(part[i : i + 1] for part in before)
        own = block(x[i : i + 1, :n], initial_state=start, return_last_state=True)[1]
        assert_states([part[i : i + 1] for part in state], own)


def check_reset(block, bidirectional):
    """A reset separates documents, through recurrence and convolution, and in the state."""
    x = sequences(B=2, L=10)
    reset = torch.zeros(2, 10, dtype=torch.bool)
    reset[0, 4] = reset[1, 0] = reset[1, 7] = reset[1, 8] = True
    y = block(x, reset=reset)
    assert_same(y[0], torch.cat([block(x[:1, :4])[0], block(x[:1, 4:])[0]]))
    assert_same(y[1], torch.cat([block(x[1:, a:b])[0] for a, b in [(0, 7), (7, 8), (8, 10)]]))
    changed = x.clone()
    changed[0, 3] += 1  # the last token of a document
    assert torch.equal(block(changed, reset=reset)[0, 4:], y[0, 4:])
    if not bidirectional:
        for row, begin in ((0, 4), (1, 8)):
            state = block(x[row : row + 1], reset=reset[row : row + 1], return_last_state=True)[1]
            assert_states(state, block(x[row : row + 1, begin:], return_last_state=True)[1])


def check_chunks(block):
    """Chunks of one position, with lengths, resets and a state before the first, give the whole."""
    x, lengths = sequences(B=3, L=6), torch.tensor([6, 3, 1])
    before = tuple(torch.randn_like(part) for part in block.initial_state(3))
    reset = torch.zeros(3, 6, dtype=torch.bool)
    reset[0, 3] = reset[1, 1] = reset[1, 5] = True
    whole, last = block(x, lengths, reset=reset, initial_state=before, return_last_state=True)
    state, outputs = before, []
    for t in range(6):
        real = (lengths > t).long()
        y, state = block(x[:, t : t + 1], real, reset=reset[:, t : t + 1], initial_state=state, return_last_state=True)
        outputs.append(y)
    assert_same(torch.cat(outputs, 1), whole)
    assert_states(state, last)
