"""Every config has the values of the sources that it cites, and its network their parameters."""

import copy
import re

import pytest
import torch

from lra_ssm.layers import NetworkSpec
from lra_ssm.layers.roles import ROLES
from lra_ssm.tasks import OptimizerSettings
from lra_ssm.tasks.optim import format_groups, parameter_groups, parameter_rates
from tests.test_configs import (
    CONFIGS,
    FILES,
    LAYER,
    MODELS,
    NETWORK,
    OPTIMIZER,
    SOURCES,
    load,
    network,
    on_meta,
    parameters,
    parsed,
    same,
    settings_of,
    values,
)


def lines(name):
    """Last part of a setting's name, with its role where it has one -> (value, comment or "")."""
    return {
        key.partition(".roles.")[2] or key.rpartition(".")[2]: found
        for key, found in settings_of(CONFIGS / f"{name}.yaml").items()
        if not key.endswith("class_path")
    }


def published(source, task):
    return SOURCES[source].get("every", {}) | SOURCES[source]["settings"][task]


LRA = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
ROWS = [("b2s6", "table4"), ("s4d", "s4-v3"), ("mamba", "jsie7"), ("s5", "s5"), ("transformer", "lra")]


@pytest.mark.parametrize("task", LRA)
@pytest.mark.parametrize("model, source", ROWS)
def test_rows_have_every_setting_of_their_source(task, model, source):
    assert MODELS[model]["source"] == source
    ours, cite = lines(f"lra/{task}/{model}"), SOURCES[source]["cite"].split(",")[0]
    settings = published(source, task)
    assert len(settings) > 9
    for key, value in settings.items():
        assert same(ours[key][0], value) and cite in ours[key][1], f"{task}/{model}: {key} is not {source}'s {value}"


@pytest.mark.parametrize("task", LRA)
@pytest.mark.parametrize("source", [name for name in SOURCES if SOURCES[name]["settings"].keys() >= set(LRA)])
def test_what_cites_a_source_is_what_stands_there(task, source):
    """Also where a config takes single values: those that B2S6's paper leaves out are its authors' earlier code's."""
    settings, cite, cited = published(source, task), SOURCES[source]["cite"], 0
    for model in ("b2s6", "s4d", "s6", "mamba", "s5", "transformer"):
        for key, (value, comment) in lines(f"lra/{task}/{model}").items():
            if comment.startswith(cite) and key in settings:
                assert same(value, settings[key]), f"{task}/{model}: {key} is {value}, {source} has {settings[key]}"
                cited += 1
    assert cited > 7


@pytest.mark.parametrize("task", LRA)
def test_b2s6_takes_from_its_authors_earlier_code_what_its_paper_leaves_out(task):
    ours = lines(f"lra/{task}/b2s6")
    # Of its steps and warm-up our choice is a tenth of the run's; table 4 gives epochs.
    left = published("freqbias", task).keys() - published("table4", task).keys() - {"max_steps", "warmup_steps"}
    assert {"dropout", "d_state", "delta_min", "recurrent.lr", "pooling"} <= left
    for key in left:
        assert ours[key][1].startswith("FreqBiasSSM"), f"{task}: {key}"
    assert ours["warmup_steps"][0] == 0.1 and ours["warmup_steps"][1].startswith("ours")


@pytest.mark.parametrize("task", LRA)
def test_b2s6_trains_delta_below_its_base_rate(task):
    """Yu & Erichson 2025, section 6."""
    ours = OptimizerSettings.of(parsed(CONFIGS / f"lra/{task}/b2s6.yaml")["model"]["init_args"]["optimizer"])
    assert 0 < ours.of_role("delta").lr < ours.lr


# Pairs of configs, and the only settings in which they differ (names that begin so).
UNIT = ("experiment", NETWORK + "layer.class_path", LAYER)
ONLY = [
    *((f"{task}/b2s6", f"{task}/s6", UNIT) for task in (*(f"lra/{task}" for task in LRA), "scifar")),
    # Wang & Li 2024 give no settings for LRA: S4D's, so that f makes the difference.
    *((f"lra/{task}/s4d", f"lra/{task}/stable_ssm", UNIT) for task in LRA),
    ("lra/image/lru", "scifar/lru", ("experiment", "data.class_path", NETWORK + "d_input")),
    ("lm/wikitext103/mamba", "lm/wikitext103/mamba2", ("experiment", NETWORK + "block", NETWORK + "layer")),
]


@pytest.mark.parametrize(("one", "other", "only"), ONLY)
def test_configs_to_compare_differ_only_in_what_is_compared(one, other, only):
    first, second = load(one), load(other)
    changed = {key for key in first.keys() & second.keys() if first[key] != second[key]}
    assert all(key.startswith(only) for key in changed), changed
    assert all(key.startswith((*only, "data.init_args")) for key in first.keys() ^ second.keys())
    if other.endswith("/s6"):
        assert not changed & {LAYER + name for name in ("d_state", "delta_min", "delta_max", "bidirectional")}
    elif other.endswith("stable_ssm"):
        assert (second[LAYER + "parameterization"], second[LAYER + "form"]) == ("best", "s4d")
        assert changed == {*UNIT[:2], LAYER + "parameterization"}


@pytest.mark.parametrize("task", LRA)
def test_mamba_has_the_parameters_of_the_code_behind_it(task):
    """jsie7/ssm-benchmark, models/mamba.py over mamba-ssm 1.1.4, counted from its modules; ours has a final norm more
    where norms come first."""
    spec = network(f"lra/{task}/mamba")
    s = published("jsie7", task)
    D, E, N, K = s["d_model"], int(s["expand"] * s["d_model"]), s["d_state"], spec["init_args"]["num_classes"]
    R = -(-D // 16)
    mamba = D * 2 * E + E * s["d_conv"] + E + E * (R + 2 * N) + R * E + E + E * N + E + E * D
    count = s["n_layers"] * (mamba + D * 2 * D + 2 * D + 2 * D) + 2 * D + D * K + K
    if task == "retrieval":
        count += 2 * K * 512 + 512 + 512 * 256 + 256 + 256 * K + K
    assert parameters(f"lra/{task}/mamba") == count + (2 * D if s["prenorm"] else 0)


@pytest.mark.parametrize(("name", "layers", "inputs", "count"), [("mnist", 1, 1, 17_546), ("scifar", 6, 3, 101_514)])
def test_stable_ssm_has_the_parameters_and_settings_of_its_public_code(name, layers, inputs, count):
    """radarFudan/StableSSM, counted from its modules: Δ, A and C of D × N / 2 modes, D, the GLU's map, a norm; maps
    before and after them. With a B that is learned there are D × N more in each layer."""
    D, N = 64, 64
    layer = D + 2 * D * N // 2 + D * N + D + D * 2 * D + 2 * D + 2 * D
    assert count == layers * layer + inputs * D + D + D * 10 + 10 == parameters(f"{name}/stable_ssm")
    spec = copy.deepcopy(network(f"{name}/stable_ssm"))
    spec["init_args"]["layer"]["init_args"]["learn_B"] = True
    with torch.device("meta"):
        assert sum(p.numel() for p in NetworkSpec.of(spec)().parameters()) == count + layers * D * N
    ours = lines(f"{name}/stable_ssm")
    for key, value in {
        "betas": [0.9, 0.999], "min_lr_factor": 0.0, "cosine_by": "epoch", "learn_B": False, "batch_size": 128,
        **({"mean": 0.1307, "std": 0.3081} if name == "mnist" else {"std": [0.2023, 0.1994, 0.201]}),
    }.items():  # fmt: skip
        assert same(ours[key][0], value) and ours[key][1].startswith("radarFudan/StableSSM"), key


@pytest.mark.parametrize("task", [*(task for task in LRA if task != "image"), "scifar"])
def test_lru_has_every_setting_of_its_paper_and_the_rest_of_minimal_lru(task):
    assert MODELS["lru"]["source"] == "orvieto"
    lru, settings = lines("scifar/lru" if task == "scifar" else f"lra/{task}/lru"), published("orvieto", task)
    assert len(settings) > 18
    for key, value in settings.items():
        assert same(lru[key][0], value) and lru[key][1].startswith(SOURCES["orvieto"]["cite"]), f"{task}: {key}"
    for key, value in {"lr": 0.001, "no_decay.weight_decay": 0.05, "precision": "32-true"}.items():
        assert same(lru[key][0], value) and lru[key][1].startswith("NicolasZucchet/minimal-LRU"), f"{task}: {key}"
    assert lru["min_lr_factor"][0] * lru["lr"][0] == pytest.approx(1e-7)


def test_what_configs_take_from_each_other_is_the_same():
    checked = 0
    for path in FILES:
        for key, (value, comment) in settings_of(path).items():
            found = re.match(r"configs/([\w/]+)\.yaml", comment)
            if found and not key.endswith("class_path"):
                source = dict(values(parsed(CONFIGS / f"{found[1]}.yaml"))) if ".roles." in key else load(found[1])
                theirs = source[key] if key in source else source[f"{key}.class_path"]
                assert theirs == value, f"{path}: {key} is not {found[1]}'s"
                checked += 1
    assert checked > 100


@pytest.mark.parametrize(
    ("group", "about"),
    [
        (["lm/slimpajama6b/s6", "lm/slimpajama6b/b2s6", "lm/slimpajama6b/s4d"], 250e6),
        (["lm/wikitext103/mamba", "lm/wikitext103/mamba2", "lm/wikitext103/b2s6", "lm/wikitext103/s4d"], 129e6),
    ],
)
def test_units_of_language_models_have_as_many_parameters(group, about):
    counts = [parameters(name) for name in group]
    assert max(counts) < 1.01 * min(counts) and max(counts) < 1.01 * about and min(counts) > 0.99 * about


@pytest.mark.parametrize("unit", ["s6", "b2s6", "s4d"])
@pytest.mark.parametrize(("corpus", "windows"), [("slimpajama6b", 96), ("wikitext103", 256)])
def test_language_models_take_as_many_windows_a_step(unit, corpus, windows):
    name = f"lm/{corpus}/{'mamba' if (unit, corpus) == ('s6', 'wikitext103') else unit}"
    found = load(name)
    assert found["data.init_args.batch_size"] * found["trainer.accumulate_grad_batches"] == windows
    assert found["data.init_args.length"] == 2048


OF_MAMBA_BARE = ["slimpajama6b/s6", "slimpajama6b/b2s6", "slimpajama6b/s4d", "wikitext103/mamba", "wikitext103/b2s6",
                 "wikitext103/s4d"]  # fmt: skip


@pytest.mark.parametrize("name", OF_MAMBA_BARE)
def test_what_decays_in_language_models_decays_in_the_code_they_cite(name):
    """AnnanYu/mamba-bare's train/optim/param_grouping.py exempts biases, A and D, nn.Embedding and torch's own norms;
    Mamba's RMSNorm is none of these. Of Δ we have one decay for all (docs/reproduction-language.md)."""
    built = on_meta(f"lm/{name}", n_layers=2)
    given = parsed(CONFIGS / f"lm/{name}.yaml")["model"]["init_args"]["optimizer"]
    groups = parameter_groups(built, parameter_rates(built, OptimizerSettings.of(given)))
    names = {id(p): full for full, p in built.named_parameters()}
    decay = {names[id(p)]: group["weight_decay"] for group in groups for p in group["params"]}
    assert decay["backbone.embedding.weight"] == 0 and built.head is None
    for full, value in decay.items():
        module, _, own = full.rpartition(".")
        if module.endswith("norm") or own == "weight" and full != "backbone.embedding.weight":
            assert value == 0.1, full  # norms, projections, the convolution
        elif own in ("bias", "A_log", "A_imag", "delta_bias", "B_bias"):
            assert value == 0, full
    shown = format_groups(groups)
    assert "base, norm" in shown and "embedding, no_decay, recurrent" in shown


def test_mambas_130_m_is_the_published_model():
    """129,135,360 parameters with GPT-NeoX's tokenizer, 50,277 tokens; facts of state-spaces/mamba-130m."""
    mamba = on_meta("lm/wikitext103/mamba", vocab_size=50277, pad_vocab_size_multiple=8)
    assert sum(p.numel() for p in mamba.parameters()) == 129_135_360


# --- the rows of S5 and of LRA's Transformer, and StableSSM's language models ---


CLASSES = {"listops": 10, "image": 10}


@pytest.mark.parametrize("task", LRA)
def test_s5_has_the_parameters_of_its_public_code(task):
    """lindermanlab/S5, counted from its modules: Λ and Δ of P conjugate pairs, B, two C, D; half a GLU's map, a norm.
    Its tokens are one-hot vectors of a linear map, whose bias an embedding has not."""
    s = published("s5", task)
    D, P, K = s["d_model"], s["d_state"] // 2, CLASSES.get(task, 2)
    layer = 3 * P + 2 * P * D + 2 * 2 * P * D + D + D * D + D + 2 * D
    inputs = network(f"lra/{task}/s5")["init_args"]
    count = s["n_layers"] * layer + (inputs["vocab_size"] * D if "vocab_size" in inputs else 2 * D)
    count += 4 * D * D + D + D * K + K if task == "retrieval" else D * K + K
    assert parameters(f"lra/{task}/s5") == count


@pytest.mark.parametrize("task", LRA)
def test_s5_trains_every_parameter_as_its_public_code(task):
    """s5/train_helpers.py: Λ, without dt_global Δ, and B in "standard" are of Adam at the lower rate; all else decays.
    (On Path-X, "BandCdecay", B decays at the lower rate: here it does not.)"""
    s, built = published("s5", task), on_meta(f"lra/{task}/s5", n_layers=1)
    settings = parsed(CONFIGS / f"lra/{task}/s5.yaml")["model"]["init_args"]["optimizer"]
    slow, fast = (s["recurrent.lr"], 0.0), (s["lr"], s["weight_decay"])
    of_delta = fast if s.get("delta.lr_factor") == 1.0 else slow
    own = {"A_weight": slow, "A_imag": slow, "log_delta": of_delta, "B": fast if s["fast_B"] else slow}
    for name, rate in parameter_rates(built, OptimizerSettings.of(settings)).items():
        assert rate[:2] == pytest.approx(own.get(name.rpartition(".")[2], fast)), name


@pytest.mark.parametrize("task", LRA)
def test_the_transformer_has_the_parameters_of_lras_code(task):
    """google-research/long-range-arena, lra_benchmarks/models, counted from its modules; its vocabularies are ours."""
    s, inputs = published("lra", task), network(f"lra/{task}/transformer")["init_args"]
    given = inputs["embedding"]["init_args"]
    D, M, F, K = s["d_model"], given["max_length"], s["width"], CLASSES.get(task, 2)
    Q = s["n_heads"] * (s["d_head"] or D // s["n_heads"])
    block = 2 * 2 * D + 4 * D * Q + D * F + F + F * D + D
    count = inputs["vocab_size"] * D + s["n_layers"] * block + 2 * D
    count += D if s["class_token"] else 0
    count += (M + s["class_token"]) * D if given["positions"] == "learned" else 0
    half = F // 2
    count += 2 * D * F + F + F * half + half + half * K + K if task == "retrieval" else D * F + F + F * K + K
    assert parameters(f"lra/{task}/transformer") == count
    assert F == s["mlp_factor"] * D


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
