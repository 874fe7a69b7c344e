"""StableSSM's language models: their settings, sizes and sweep; such a model learns."""

import torch

from lra_ssm.layers import BlockSpec, HyenaBlock, LayerSpec, StableSSM
from lra_ssm.layers.roles import ROLES
from lra_ssm.models import LanguageModel
from tests.test_configs import LAYER, NETWORK, OPTIMIZER, lines, load, on_meta, parameters, published, same

SMALL, LARGE = "lm/wikitext103/stable_ssm", "lm/wikitext103/stable_ssm_3b"


def test_settings_are_the_papers_and_the_rest_the_codes():
    """Wang & Li 2024, appendix F.2."""
    ours = lines(SMALL)
    paper = {"max_steps": 115200, "batch_size": 16, "warmup_steps": 1000, "weight_decay": 0.25, "lr": 0.005,
             "recurrent.lr": 0.004, "parameterization": "best", "delta": None}  # fmt: skip
    for key, value in paper.items():
        assert same(ours[key][0], value) and ours[key][1].startswith("Wang & Li 2024"), key
    code = published("hyena-s5", "wikitext103")
    for key, value in code.items():
        assert same(ours[key][0], value) and "lindermanlab/S5" in ours[key][1], key
    cited = {key for key, (_, comment) in ours.items() if comment.startswith("lindermanlab/S5")}
    assert cited == code.keys() | {"no_decay.weight_decay"}


def test_the_small_one_has_the_parameters_of_the_code_behind_it():
    """128,496,384, as radarFudan/S6 prints them, with B and C real, and w and b for the two parts of Λ and Δ."""
    D, N, layers = 768, 128, 12
    assert parameters(SMALL) == 128_496_384 - layers * (2 * D * N + N)


def test_the_large_one_has_three_billion_parameters_and_the_small_ones_settings():
    model = on_meta(LARGE, n_layers=2)
    assert 2.95e9 < parameters(LARGE) < 3.05e9 and all(p.is_meta for p in model.parameters())
    assert model(torch.zeros(2, 16, dtype=torch.int64, device="meta")).shape == (2, 16, 50257)
    small, large = load(SMALL), load(LARGE)
    assert {key for key in small.keys() | large.keys() if small[key] != large[key]} == {
        "experiment", "trainer.precision", NETWORK + "d_model", NETWORK + "n_layers",
        NETWORK + "activation_checkpointing", OPTIMIZER + "lr", *(OPTIMIZER + f"roles.{role}" for role in ROLES[1:]),
    }  # fmt: skip
    assert large[OPTIMIZER + "lr"] == 0.01 and large[LAYER + "parameterization"] == "best"  # table 6


def test_a_tiny_one_learns_a_batch_by_heart_and_says_it_step_by_step():
    torch.manual_seed(0)
    layer = LayerSpec(StableSSM, d_state=16, form="real", readout="identity", parameterization="best")
    block = BlockSpec(HyenaBlock, activation="gelu", mlp_factor=2.0)
    model = LanguageModel(layer, vocab_size=20, d_model=32, n_layers=2, block=block)
    ids = torch.randint(20, (3, 17))
    ids[:, 0] = torch.arange(3)  # no two begin alike
    optimizer = torch.optim.AdamW(model.parameters(), 0.02)
    for _ in range(50):
        optimizer.zero_grad()
        loss = model.negative_log_likelihood(ids[:, :-1], ids[:, 1:], reduction="sum")[0] / ids[:, 1:].numel()
        loss.backward()
        optimizer.step()
    assert loss < 0.01
    model.eval()
    token, state = ids[:, 0], model.initial_state(3)
    for t in range(1, 17):
        logits, state = model.step(token, state)
        token = logits.argmax(-1)
        assert torch.equal(token, ids[:, t])
