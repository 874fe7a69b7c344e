"""Generation: greedy equals the parallel form's argmax, sampling follows the distribution, rows are independent."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from lra_ssm.models import Generation
from lra_ssm.models.generation import draw, keep_top_k, keep_top_p, penalize, row_seeds
from tests.models.cases import LAYERS, model, tokens


def sharp(layer="S6", **settings):
    """An untied model with large weights, whose logits differ and whose text changes from token to token."""
    lm = model(layer, tie_embeddings=False, **settings)
    with torch.no_grad():
        lm.head.weight.mul_(20)
        lm.backbone.embedding.weight.mul_(50)
    return lm


@pytest.mark.parametrize("layer", LAYERS)
def test_greedy_is_the_argmax_of_the_parallel_form_whatever_the_other_prompts_are(layer):
    lm, ids, lengths = sharp(layer).double(), tokens(length=5), torch.tensor([5, 1, 3])
    generation = Generation(lm, ids, 20, lengths=lengths)
    new = torch.stack(list(generation), 1)
    assert new.shape == (3, 20) and len(new.unique()) > 3 and torch.equal(generation.lengths, lengths + 20)
    for prompt, text, own, n in zip(ids, generation.ids, new, lengths, strict=True):
        assert torch.equal(text[: n + 20], torch.cat([prompt[:n], own])) and not text[n + 20 :].any()
        best = lm(text[None, : n + 20])[0, :, :13].argmax(-1)
        assert torch.equal(own, best[n - 1 : -1])
    assert torch.equal(lm.generate(ids, 20, lengths=lengths), generation.ids)
    for given in (new, generation.ids):  # ordinary tensors to train on, of which the model keeps nothing
        lm.negative_log_likelihood(given, given, reduction="sum")[0].backward()


def test_the_head_reads_one_position_of_a_prompt_and_the_state_does_not_grow():
    lm, ids = sharp(), tokens(length=50)
    seen = []
    whole, lm.logits = lm.logits, lambda x: seen.append(x.shape) or whole(x)
    generation = Generation(lm, ids, 30, temperature=1.0, seed=0, repetition_penalty=1.2, top_k=5)
    kept = [tree_leaves((generation._state, generation._new, generation._seen)) for _ in generation]
    assert len({sum(part.numel() for part in parts) for parts in kept}) == 1 and set(seen) == {(3, 8)}


def test_padding_of_the_vocabulary_is_never_drawn():
    lm = model(tie_embeddings=False)
    with torch.no_grad():
        lm.head.weight[13:] = 100 * lm.head.weight[:3]
    assert lm(tokens())[..., 13:].amax() > lm(tokens())[..., :13].amax()
    for temperature in (0.0, 1.0, 100.0):
        found = lm.generate(tokens(), 40, temperature=temperature, seed=0)
        assert found.max() < 13


def test_drawing_follows_the_distribution():
    logits = torch.tensor([1.0, -torch.inf, 0.0, 2.0, -torch.inf])
    n = 20_000
    uniform = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    counts = draw(logits.expand(n, 5), uniform).bincount(minlength=5)
    assert counts[1] == counts[4] == 0
    expected = logits.softmax(-1) * n
    real = expected > 0
    chi = ((counts - expected)[real] ** 2 / expected[real]).sum()
    assert chi < 13.8  # two degrees of freedom: exceeded once in a thousand
    edges = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    for at in (logits, logits.flip(0), torch.full((5,), 3.0)):
        for token in draw(at.expand(2, 5), edges):
            assert at[token] > -torch.inf
    assert draw(logits.flip(0).expand(2, 5), edges).tolist() == [1, 4]


def test_tokens_as_probable_as_the_last_are_kept_and_no_more_than_needed():
    assert keep_top_k(torch.tensor([[1.0, 2.0, 1.0, 0.0]]), 2).isfinite().tolist() == [[True, True, True, False]]
    assert keep_top_p(torch.tensor([[0.5, 0.25, 0.25]]).log(), 0.5).isfinite().tolist() == [[True, False, False]]


@pytest.mark.parametrize("V, scale", [(7, 1.0), (2500, 0.1), (3000, 4.0)])  # of flat ones more than are sorted first
def test_top_k_top_p_and_penalty_are_those_of_transformers(V, scale):
    transformers = pytest.importorskip("transformers", reason="transformers, which is compared, is not installed")
    logits = scale * torch.randn(4, V, generator=torch.Generator().manual_seed(0))
    ids = torch.randint(V, (4, 300), generator=torch.Generator().manual_seed(1))
    seen = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, ids, True)
    theirs = transformers.RepetitionPenaltyLogitsProcessor(1.3)(ids, logits)
    torch.testing.assert_close(penalize(logits, seen, 1.3), theirs, rtol=0, atol=0)
    for k in (1, 3, 50, V, 5000):
        torch.testing.assert_close(keep_top_k(logits, k), transformers.TopKLogitsWarper(k)(ids, logits), rtol=0, atol=0)
    for p in (1e-6, 0.01, 0.3, 0.5, 0.9, 0.999, 1.0):
        theirs = transformers.TopPLogitsWarper(p)(ids, logits.double())
        torch.testing.assert_close(keep_top_p(logits.double(), p), theirs, rtol=0, atol=0)


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"temperature": 1e-300}, {"top_p": 1e-300}], ids=str)
def test_the_most_extreme_settings_are_greedy(settings):
    lm, ids = model(), tokens()
    assert torch.equal(lm.generate(ids, 5, **{"temperature": 1.0, "seed": 1, **settings}), lm.generate(ids, 5))


@pytest.mark.parametrize("penalty", [1.4, 1e9])
def test_the_order_is_penalty_temperature_top_k_top_p(penalty):
    """Sample by hand from the parallel form with each row's own random numbers; padding of prompts is not penalized."""
    lm, ids, lengths = sharp().double(), torch.tensor([[4, 4, 4], [5, 0, 0], [7, 2, 0]]), torch.tensor([3, 1, 2])
    settings = {"temperature": 1.7, "top_k": 6, "top_p": 0.8, "repetition_penalty": penalty}
    found = lm.generate(ids, 8, lengths=lengths, seed=3, **settings)
    for text, n, seed in zip(found, lengths.tolist(), row_seeds(3, 3), strict=True):
        numbers = torch.rand(64, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        for t in range(n, n + 8):
            logits = lm(text[None, :t])[:, -1, :13]
            seen = torch.zeros(1, 13, dtype=torch.bool).scatter_(1, text[None, :t], True)
            logits = keep_top_p(keep_top_k(penalize(logits, seen, penalty) / 1.7, 6), 0.8)
            assert text[t] == draw(logits, numbers[t - n : t - n + 1])
    assert found.unique().numel() > 4


def test_a_rows_text_only_depends_on_seed_and_row_and_without_a_seed_on_torchs_generator():
    lm, ids = sharp().double(), tokens()

    def text(ids=ids, new=100, seed=7):
        return lm.generate(ids, new, temperature=1.0, top_p=0.95, seed=seed)

    found = text()
    assert torch.equal(found, text()) and not torch.equal(found, text(seed=8))
    assert torch.equal(found[:2], text(ids[:2])) and torch.equal(found[:, : 11 + 30], text(new=30))
    same = text(ids[:1].expand(3, -1))
    assert not torch.equal(same[0], same[1])  # three samples of one prompt
    assert torch.equal(text(ids[2:], seed=row_seeds(7, 3)[2:]), found[2:])
    torch.manual_seed(1)
    first, second = text(seed=None), text(seed=None)
    torch.manual_seed(1)
    assert torch.equal(first, text(seed=None)) and not torch.equal(first, second)
    state = torch.get_rng_state()
    lm.generate(ids, 30)
    assert text() is not None and torch.equal(state, torch.get_rng_state())


def test_a_row_ends_after_a_stop_or_by_the_caller_and_is_padded_with_0():
    lm, ids, lengths = sharp().double(), tokens(length=5), torch.tensor([5, 2, 4])
    free = Generation(lm, ids, 40, temperature=2.0, seed=1, lengths=lengths)
    new = torch.stack(list(free), 1)
    stops = (7, int(new[2, 3]))
    generation = Generation(lm, ids, 40, temperature=2.0, seed=1, lengths=lengths, stop=stops)
    steps = list(generation)
    for row, text in enumerate(new.tolist()):
        end = next((t + 1 for t in range(40) if text[t] in stops), 40)
        assert generation.lengths[row] == lengths[row] + end
        assert torch.equal(generation.ids[row, : lengths[row] + end], free.ids[row, : lengths[row] + end])
        assert not generation.ids[row, lengths[row] + end :].any()
        assert [int(step[row]) for step in steps] == text[:end] + [-1] * (len(steps) - end)
    assert len(steps) == max(generation.lengths - lengths) < 40  # nothing is computed once all have ended
    assert generation.ids.shape == (3, 45) and torch.equal(lm.generate(ids, 0), ids)
    generation = Generation(lm, ids, 10)
    for t, _ in enumerate(generation):
        generation.ended[1] |= t == 3  # by the caller
    assert (generation.lengths - ids.shape[1]).tolist() == [10, 4, 10]


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"temperature": -1.0}, "temperature is -1.0; it must be at least 0"),
        ({"top_k": 0}, "top_k is 0; it must be at least 1"),
        ({"top_p": 0.0}, "top_p is 0.0; it must be above 0 and at most 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be above 0"),
        ({"seed": -1, "temperature": 1.0}, "seed is -1; it must be 0 to 4294967295"),
        ({"seed": [1], "temperature": 1.0}, "seed: 1 of them; expected one number, or one for each of 3 rows"),
        ({"stop": 3}, r"stop is 3; expected tokens, 0 to 12, such as \(3,\)"),
        ({"stop": [13]}, r"stop is \[13\]; expected tokens, 0 to 12"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"lengths": torch.tensor([0, 1, 2])}, "lengths: 0 among them; expected 1 to L = 11"),
        ({"ids": torch.zeros(2, 0, dtype=torch.int64)}, r"ids: shape \(2, 0\); expected \(B, L\) with L >= 1"),
        ({"ids": torch.zeros(2, 3)}, "ids: dtype torch.float32; expected int64"),
        ({"ids": torch.tensor([[-1]])}, r"ids: \[-1\] among them; the model knows 0 to 12"),
        ({"ids": torch.tensor([[1, 13]])}, r"ids: \[13\] among them; the model knows 0 to 12"),
    ],
)
def test_wrong_arguments_are_one_line(wrong, message):
    with pytest.raises(ValueError, match=message) as error:
        model().generate(**{"ids": tokens(), "max_new_tokens": 1, **wrong})
    assert "\n" not in str(error.value)


def test_a_diverged_model_is_one_line():
    lm = model()
    with torch.no_grad():
        lm.head_weight[3] = torch.nan
    for temperature in (0.0, 1.0):
        with pytest.raises(ValueError, match="the logits of new token 1 are not finite: the model has diverged"):
            lm.generate(tokens(), 1, temperature=temperature)
