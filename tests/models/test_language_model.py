"""The language model: logits, states, steps and log-likelihoods agree; initial values, padding, wrong settings."""

import math

import pytest
import torch

from tests.models.cases import LAYERS, STACKS, model, tokens


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("stack", STACKS)
def test_prefixes_steps_and_documents_give_the_logits_of_the_whole(layer, stack):
    lm, ids = model(layer, block=STACKS[stack]).double(), tokens()
    whole = lm(ids)
    assert whole.shape == (3, 11, 16)
    first, state = lm(ids[:, :6], return_last_state=True)
    torch.testing.assert_close(first, whole[:, :6])
    rest = lm(ids[:, 6:], initial_state=state)
    torch.testing.assert_close(rest, whole[:, 6:])
    for t in range(6, 11):
        logits, state = lm.step(ids[:, t], state)
        torch.testing.assert_close(logits, whole[:, t])
    torch.testing.assert_close(lm.step(ids[:, 0], lm.initial_state(3))[0], whole[:, 0])
    reset = torch.zeros_like(ids, dtype=torch.bool)
    reset[:, 6] = True
    apart = torch.cat([first, lm(ids[:, 6:])], 1)
    torch.testing.assert_close(lm(ids, reset=reset), apart)
    assert not torch.allclose(apart, whole)


@pytest.mark.parametrize("tied", [True, False])
def test_log_likelihoods_are_those_of_the_logits_in_value_and_gradient(tied):
    lm, ids = model(tie_embeddings=tied).double().train(), tokens()
    targets = ids.roll(-1, 1)
    targets[:, -1] = -100
    logits = lm(ids)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    nll, _ = lm.negative_log_likelihood(ids, targets)
    torch.testing.assert_close(nll.flatten(), expected)
    gradients = torch.autograd.grad(expected.sum(), list(lm.parameters()))
    total, _ = lm.negative_log_likelihood(ids, targets, reduction="sum")
    for ours in (total, nll.sum()):
        torch.testing.assert_close(torch.autograd.grad(ours, list(lm.parameters())), gradients)


def test_score_is_the_log_likelihood_of_each_token_given_those_before():
    lm, ids = model(), tokens()
    expected = lm(ids).log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
    torch.testing.assert_close(lm.score(ids), expected)
    scores = lm.score(ids, torch.tensor([11, 4, 1]))
    torch.testing.assert_close(scores[1, :3], expected[1, :3])
    assert not scores[1, 3:].any() and not scores[2].any()
    padded = ids.index_fill(1, torch.arange(8, 11), -100)  # ids at padding are not read
    assert torch.equal(lm.score(padded, torch.tensor([8] * 3)), lm.score(ids, torch.tensor([8] * 3)))
    with pytest.raises(ValueError, match=r"ids: shape \(3, 1\); expected \(B, L\) with L >= 2"):
        lm.score(ids[:, :1])


def test_initial_values_are_those_of_mambas_code_and_the_vocabulary_is_padded():
    lm = model(vocab_size=1000, d_model=64, n_layers=4)
    assert lm.head_weight is lm.backbone.embedding.weight and lm.head_weight.shape == (1000, 64)
    assert lm.head_weight.std().item() == pytest.approx(0.02, rel=0.05)
    bound = (128**-0.5) / math.sqrt(4)
    largest = max(block.out_proj.weight.abs().max().item() for block in lm.backbone.blocks)
    assert 0.98 * bound < largest <= bound * (1 + 1e-6)
    assert model(vocab_size=16).score(tokens()).mean().item() == pytest.approx(-math.log(16), rel=0.05)
    assert model(vocab_size=50277, d_model=2, n_layers=1).head_weight.shape == (50280, 2)
    untied = model(tie_embeddings=False)
    assert untied.head_weight is not untied.backbone.embedding.weight and untied.head_weight.shape == (16, 8)


@pytest.mark.parametrize("layer", ["S6", "B2S6"])
def test_activation_checkpointing_changes_no_gradient(layer):
    plain, again, ids = model(layer), model(layer, activation_checkpointing=True), tokens()
    gradients = []
    for lm in (plain.train(), again.train()):
        lm.negative_log_likelihood(ids, ids, reset=ids == 3, reduction="sum")[0].backward()
        gradients.append([p.grad for p in lm.parameters()])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_the_residual_is_float32_in_lower_precision():
    ids, low, mixed, seen = tokens(), model().to(torch.bfloat16), model(), {}
    assert low.generate(ids, 3).shape == (3, 14)
    for module in [*low.modules(), *mixed.modules()]:
        if type(module).__name__ in ("RMSNorm", "MambaBlock", "S6"):
            module.register_forward_hook(lambda m, _, out: seen.update({type(m).__name__: out.dtype}))
    logits = low(ids)
    bf16 = {"RMSNorm": torch.bfloat16, "MambaBlock": torch.float32, "S6": torch.bfloat16}
    assert seen == bf16 and logits.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        mixed(ids)
    assert seen == {**bf16, "RMSNorm": torch.float32}
    torch.testing.assert_close(logits.float(), model()(ids), atol=2e-3, rtol=0.1)
