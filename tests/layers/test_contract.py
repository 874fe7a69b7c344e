"""What every layer and block of ours shares: its equations as loops with every gradient; steps, states, documents,
padding, both directions; precisions, empty batches, and what is refused."""

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from lra_ssm.layers import parameter_roles
from lra_ssm.layers.contract import check_call
from tests.layers import naive
from tests.layers.cases import ALL, build, sequences
from tests.pairwise import pairwise

every_one = pytest.mark.parametrize("name", ALL)
either_way = pytest.mark.parametrize("bidirectional", [False, True])


def of(name, B=2, L=7):
    return sequences(B, L, ALL[name].width)


def gradients(y, inputs):
    weights = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(2))
    return torch.autograd.grad((y * weights).sum(), inputs, retain_graph=True)


def assert_same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def assert_states(name, module, a, b):
    """Two states are equal and continue equally. (Attention's may also hold positions that nothing sees.)"""
    x = of(name, len(tree_leaves(a)[0]), 3)
    assert_same(module(x, initial_state=a), module(x, initial_state=b))
    if not ALL[name].attends:
        assert_same(tree_leaves(a), tree_leaves(b))


def rows(state, i):
    return tree_map(lambda part: part[i : i + 1], state)


def state_of(name, module, B):
    """Return the state after other sequences."""
    return module(of(name, B, 2).flip(1) + 1, return_last_state=True)[1]


def check_equations(module, x, equations=naive.forward):
    """Compare values and every gradient with the equations as a loop."""
    inputs = dict(module.named_parameters()) | {"x": x.requires_grad_()}
    fast, slow = module(x), equations(module, x)
    assert_same(fast, slow)
    ours, theirs = (dict(zip(inputs, gradients(y, list(inputs.values())), strict=True)) for y in (fast, slow))
    assert x.shape[1] == 1 or all(gradient.any() for gradient in ours.values())
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(*pairwise(name=ALL, bidirectional=[False, True], L=[1, 2, 63], rest=False).args)
def test_equals_its_equations_with_every_gradient(name, bidirectional, L):
    check_equations(build(name, bidirectional), of(name, L=L))


@pytest.mark.parametrize("L", [1, 2, 63])
def test_one_real_block_of_b2s6_without_bias_is_the_papers_s6(L):
    module = build("b2s6-as-s6")
    torch.testing.assert_close(module.A_log.exp(), torch.arange(1.0, 4).double(), rtol=1e-6, atol=0)  # S4D-Real
    check_equations(module, of("b2s6-as-s6", L=L), naive.paper_s6)


@every_one
def test_steps_equal_the_parallel_form_with_gradients(name):
    module, x = build(name), of(name, L=11).requires_grad_()
    check_call(module, "layer", "x", "lengths")
    whole, last = module(x, return_last_state=True)
    assert_same(whole, module(x))
    state, outputs = module.initial_state(2), []
    for t in range(11):
        y, state = module.step(x[:, t], state)
        outputs.append(y)
    assert_same(torch.stack(outputs, 1), whole)
    assert_states(name, module, state, last)
    assert_same(module.step(x[:, 5], module(x[:, :5], return_last_state=True)[1])[0], whole[:, 5])
    inputs = [x, *module.parameters()]
    # of the outputs, and of the last state, which C and D have no part in
    of_states = [sum(part.abs().sum() for part in tree_leaves(s) if part.requires_grad) for s in (state, last)]
    stepped, parallel = (torch.autograd.grad(s, inputs, materialize_grads=True, retain_graph=True) for s in of_states)
    torch.testing.assert_close(stepped, parallel, rtol=1e-8, atol=1e-10)
    stepped, parallel = gradients(torch.stack(outputs, 1), inputs), gradients(whole, inputs)
    torch.testing.assert_close(stepped, parallel, rtol=1e-8, atol=1e-10)


@every_one
@either_way
def test_padding_never_leaks(name, bidirectional):
    module, x, lengths = build(name, bidirectional), of(name, B=3, L=9), torch.tensor([9, 4, 1])
    x[1, 4:], x[2, 1:] = 1e3, 1e4 if ALL[name].attends else torch.nan  # whatever stands there, it must not be seen
    y = module(x, lengths)
    for i, n in enumerate(lengths.tolist()):
        assert_same(y[i, :n], module(x[i : i + 1, :n])[0])
        assert (y[i, n:] == 0).all()


@pytest.mark.parametrize(*pairwise(name=ALL, bidirectional=[False, True], bad=[torch.nan, torch.inf], rest=False).args)
def test_a_reset_separates_documents(name, bidirectional, bad):
    """Through recurrence and convolution, and in the state; what it drops may even be infinite."""
    module, x = build(name, bidirectional), of(name, L=10)
    reset, dirty = torch.zeros(2, 10, dtype=torch.bool), x.clone()
    reset[0, 4] = reset[1, 0] = reset[1, 7] = reset[1, 8] = True
    dirty[0, 3] = bad  # the last token of a document
    y, found = module(x, reset=reset), module(dirty, reset=reset)
    assert_same(y[0], torch.cat([module(x[:1, :4])[0], module(x[:1, 4:])[0]]))
    assert_same(y[1], torch.cat([module(x[1:, a:b])[0] for a, b in [(0, 7), (7, 8), (8, 10)]]))
    assert not found[0, 3].isfinite().all()
    assert_same(found[0, 4:], y[0, 4:])
    assert_same(found[1], y[1])
    if bidirectional:
        return
    last = module(dirty, reset=reset, return_last_state=True)[1]
    for row, begin in ((0, 4), (1, 8)):
        own = module(x[row : row + 1, begin:], return_last_state=True)[1]
        assert_states(name, module, rows(last, row), own)
    before = state_of(name, module, 2)
    if name != "attention-window of one":  # which sees nothing of it
        assert not torch.allclose(module(x, reset=reset, initial_state=before)[0, :4], y[0, :4])
    before = tree_map(lambda part: part if part.dtype == torch.int64 else part * bad, before)
    from_a_state = module(x, reset=reset, initial_state=before)
    assert_same(from_a_state[0, 4:], y[0, 4:])
    assert_same(from_a_state[1], y[1])


@every_one
def test_chunks_with_lengths_resets_and_a_state_give_the_whole(name):
    """And the state is the one after the last real position, also where documents start within the padding."""
    module, x, lengths = build(name), of(name, B=4, L=9), torch.tensor([9, 5, 1, 0])
    before, reset = state_of(name, module, 4), torch.zeros(4, 9, dtype=torch.bool)
    reset[0, 4] = reset[1, 0] = reset[1, 3] = reset[1, 7] = reset[2, 1] = reset[3, 2] = True
    whole, last = module(x, lengths, reset=reset, initial_state=before, return_last_state=True)
    for size in (1, 2):
        state, outputs = before, []
        for t in range(0, 9, size):
            piece = slice(t, t + size)
            real = (lengths - t).clamp(0, min(size, 9 - t))
            y, state = module(x[:, piece], real, reset=reset[:, piece], initial_state=state, return_last_state=True)
            outputs.append(y)
        assert_same(torch.cat(outputs, 1), whole)
        assert_states(name, module, state, last)
    assert_states(name, module, rows(last, 3), rows(before, 3))
    for i, n in enumerate(lengths[:3].tolist()):
        own = {"reset": reset[i : i + 1, :n], "initial_state": rows(before, i)}
        expected, state = module(x[i : i + 1, :n], **own, return_last_state=True)
        assert_same(whole[i : i + 1, :n], expected)
        assert_states(name, module, rows(last, i), state)


@every_one
@either_way
def test_an_empty_batch_gives_an_empty_output_and_no_gradient(name, bidirectional):
    module, x = build(name, bidirectional), of(name)[:0].requires_grad_()
    for training in (False, True):
        y = module.train(training)(x)
    assert y.shape == module(x, torch.ones(0, dtype=torch.int64)).shape == x.shape and y.dtype == x.dtype
    y.sum().backward()
    assert x.grad.shape == x.shape and not any(p.grad.any() for p in module.parameters() if p.grad is not None)
    if not bidirectional and not ALL[name].attends:
        states = module(x, return_last_state=True)[1], module.initial_state(0)
        assert [part.shape for part in tree_leaves(states[0])] == [part.shape for part in tree_leaves(states[1])]


@every_one
@either_way
def test_wrong_shapes_and_lengths_and_states_of_both_directions_are_refused(name, bidirectional):
    module, x, D = build(name, bidirectional), of(name), ALL[name].width
    for shape in ((2, 0, D), (0, 0, D), (7, D)):
        with pytest.raises(ValueError) as error:
            module(torch.zeros(shape, dtype=torch.float64))
        expected = "expected (batch, length, d_model), length at least 1"
        assert str(error.value) == f"{type(module).__name__}: x has the shape {shape}; {expected}"
    for wrong in ([7, 8], [-1, 7]):
        with pytest.raises(ValueError, match=r"among them; expected 0 to L = 7"):
            module(x, torch.tensor(wrong))
    assert not module(x, torch.tensor([0, 7]))[0].any()  # a sequence that has ended
    lengths, state = torch.tensor([7, 3]), build(name).initial_state(2)
    assert_same(module(x, lengths.to(torch.uint8)), module(x, lengths))
    calls = [
        lambda: module(x, initial_state=state),
        lambda: module(x, return_last_state=True),
        lambda: module.step(x[:, 0], state),
        *([] if ALL[name].attends else [lambda: module.initial_state(2)]),
    ]
    for call in calls if bidirectional else ():
        with pytest.raises(ValueError, match="is bidirectional|is not causal"):
            call()


@every_one
@either_way
def test_bfloat16_stays_near_float32(name, bidirectional):
    """By autocast, and in parameters, where a prenorm block keeps a float32 residual; the last position by a step."""
    full, low = build(name, bidirectional).float(), build(name, bidirectional).bfloat16()
    x = of(name, L=32).float()
    given, expected = x if getattr(low, "prenorm", False) else x.bfloat16(), full(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = full(x)
    y = low(given)
    if not bidirectional:
        last, _ = low.step(given[:, -1], low(given[:, :-1], return_last_state=True)[1])
        y = torch.cat([y[:, :-1], last[:, None]], 1)
    assert y.dtype == given.dtype
    for found, part in ((mixed, 0.05), (y, 0.1)):
        assert (found.float() - expected).norm() < part * expected.norm()
    y.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in low.parameters())


@every_one
@either_way
def test_it_can_be_built_on_the_meta_device_and_its_roles_name_its_parameters(name, bidirectional):
    with torch.device("meta"):
        module, x = ALL[name](bidirectional), torch.randn(2, 9, ALL[name].width)
        assert module(x).shape == module(x, torch.tensor([9, 4])).shape == x.shape
    assert set(parameter_roles(module).values()) <= {"base", "recurrent", "delta", "no_decay", "norm"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["s4block", "mamba", "mamba2", "mamba3block", "griffin", "hyena", "transformer", "plain"]
)
def test_a_block_compiles_as_one_graph(name):
    torch._dynamo.reset()
    block, x, lengths = build(name), of(name), torch.tensor([7, 3])
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), block(x))
    torch.testing.assert_close(compiled(x, lengths), block(x, lengths))
    own, theirs = (torch.autograd.grad(f(x).square().sum(), list(block.parameters())) for f in (block, compiled))
    torch.testing.assert_close(theirs, own)
