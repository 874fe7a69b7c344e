"""Every config has the values of the sources that it cites, and its network their parameters."""

import copy
import re

import pytest
import torch

from lra_ssm.layers import NetworkSpec
from lra_ssm.tasks import OptimizerSettings
from lra_ssm.tasks.optim import parameter_rates
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
LRU = [*(f"lra/{task}/lru" for task in LRA if task != "image"), "scifar/lru"]
SMALL, LARGE = "lm/wikitext103/stable_ssm", "lm/wikitext103/stable_ssm_3b"
ROWS = [
    *((f"lra/{task}/{model}", MODELS[model]["source"])
      for model in ("b2s6", "s4d", "mamba", "s5", "transformer") for task in LRA),
    *((name, MODELS["lru"]["source"]) for name in LRU),
    (SMALL, "hyena-s5"),
]  # fmt: skip


@pytest.mark.parametrize("name, source", ROWS)
def test_rows_have_every_setting_of_their_source(name, source):
    ours, cite = lines(name), SOURCES[source]["cite"].split(",")[0]
    settings = published(source, name.split("/")[-2])
    assert len(settings) > 9
    for key, value in settings.items():
        assert same(ours[key][0], value) and cite in ours[key][1], f"{name}: {key} is not {source}'s {value}"


STABLE_SSM = {"betas": [0.9, 0.999], "min_lr_factor": 0.0, "cosine_by": "epoch", "learn_B": False, "batch_size": 128}
CITED = [
    *((name, "NicolasZucchet/minimal-LRU", {"lr": 0.001, "no_decay.weight_decay": 0.05, "precision": "32-true"})
      for name in LRU),
    ("mnist/stable_ssm", "radarFudan/StableSSM", STABLE_SSM | {"mean": 0.1307, "std": 0.3081}),
    ("scifar/stable_ssm", "radarFudan/StableSSM", STABLE_SSM | {"std": [0.2023, 0.1994, 0.201]}),
    (SMALL, "Wang & Li 2024", {"max_steps": 115200, "batch_size": 16, "warmup_steps": 1000, "weight_decay": 0.25,
     "lr": 0.005, "recurrent.lr": 0.004, "parameterization": "best", "delta": None}),  # appendix F.2
]  # fmt: skip


@pytest.mark.parametrize("name, cite, settings", CITED)
def test_what_is_not_in_published_yaml_is_as_its_source_has_it(name, cite, settings):
    ours = lines(name)
    for key, value in settings.items():
        assert same(ours[key][0], value) and ours[key][1].startswith(cite), f"{name}: {key}"
    if name == SMALL:
        cited = {key for key, (_, comment) in ours.items() if comment.startswith("lindermanlab/S5")}
        assert cited == published("hyena-s5", "wikitext103").keys() | {"no_decay.weight_decay"}


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


# Pairs of configs, and the only settings in which they differ (names that begin so).
UNIT = ("experiment", NETWORK + "layer.class_path", LAYER)
ONLY = [
    *((f"{task}/b2s6", f"{task}/s6", UNIT) for task in (*(f"lra/{task}" for task in LRA), "scifar")),
    # Wang & Li 2024 give no settings for LRA: S4D's, so that f makes the difference.
    *((f"lra/{task}/s4d", f"lra/{task}/stable_ssm", UNIT) for task in LRA),
    ("lra/image/lru", "scifar/lru", ("experiment", "data.class_path", NETWORK + "d_input")),
    ("lm/wikitext103/mamba", "lm/wikitext103/mamba2", ("experiment", NETWORK + "block", NETWORK + "layer")),
    (SMALL, LARGE, ("experiment", "trainer.precision", *(NETWORK + name for name in (
        "d_model", "n_layers", "activation_checkpointing")), OPTIMIZER + "lr", OPTIMIZER + "roles")),
]  # fmt: skip


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


def of_mamba(task, s, K, given):
    """jsie7/ssm-benchmark, models/mamba.py over mamba-ssm 1.1.4; ours has a final norm more where norms come first."""
    D, E, N = s["d_model"], int(s["expand"] * s["d_model"]), s["d_state"]
    R = -(-D // 16)
    mamba = D * 2 * E + E * s["d_conv"] + E + E * (R + 2 * N) + R * E + E + E * N + E + E * D
    count = s["n_layers"] * (mamba + D * 2 * D + 2 * D + 2 * D) + 2 * D + D * K + K
    if task == "retrieval":
        count += 2 * K * 512 + 512 + 512 * 256 + 256 + 256 * K + K
    return count + (2 * D if s["prenorm"] else 0)


def of_s5(task, s, K, given):
    """lindermanlab/S5: Λ and Δ of P conjugate pairs, B, two C, D; half a GLU's map, a norm.
    Its tokens are one-hot vectors of a linear map, whose bias an embedding has not."""
    D, P = s["d_model"], s["d_state"] // 2
    layer = 3 * P + 2 * P * D + 2 * 2 * P * D + D + D * D + D + 2 * D
    count = s["n_layers"] * layer + (given["vocab_size"] * D if "vocab_size" in given else 2 * D)
    return count + (4 * D * D + D + D * K + K if task == "retrieval" else D * K + K)


def of_transformer(task, s, K, given):
    """google-research/long-range-arena, lra_benchmarks/models; its vocabularies are ours."""
    embedding = given["embedding"]["init_args"]
    D, M, F = s["d_model"], embedding["max_length"], s["width"]
    Q = s["n_heads"] * (s["d_head"] or D // s["n_heads"])
    block = 2 * 2 * D + 4 * D * Q + D * F + F + F * D + D
    count = given["vocab_size"] * D + s["n_layers"] * block + 2 * D
    count += D if s["class_token"] else 0
    count += (M + s["class_token"]) * D if embedding["positions"] == "learned" else 0
    half = F // 2
    return count + (2 * D * F + F + F * half + half + half * K + K if task == "retrieval" else D * F + F + F * K + K)


@pytest.mark.parametrize("task", LRA)
@pytest.mark.parametrize("count", [of_mamba, of_s5, of_transformer])
def test_networks_have_the_parameters_of_the_code_behind_them(count, task):
    """Counted from its modules."""
    model = count.__name__.removeprefix("of_")
    classes = {"listops": 10, "image": 10}.get(task, 2)
    settings, given = published(MODELS[model]["source"], task), network(f"lra/{task}/{model}")["init_args"]
    assert parameters(f"lra/{task}/{model}") == count(task, settings, classes, given)


@pytest.mark.parametrize(("name", "layers", "inputs", "count"), [("mnist", 1, 1, 17_546), ("scifar", 6, 3, 101_514)])
def test_stable_ssm_has_the_parameters_of_its_public_code(name, layers, inputs, count):
    """radarFudan/StableSSM, counted from its modules: Δ, A and C of D × N / 2 modes, D, the GLU's map, a norm; maps
    before and after them. With a B that is learned there are D × N more in each layer."""
    D, N = 64, 64
    layer = D + 2 * D * N // 2 + D * N + D + D * 2 * D + 2 * D + 2 * D
    assert count == layers * layer + inputs * D + D + D * 10 + 10 == parameters(f"{name}/stable_ssm")
    spec = copy.deepcopy(network(f"{name}/stable_ssm"))
    spec["init_args"]["layer"]["init_args"]["learn_B"] = True
    with torch.device("meta"):
        assert sum(p.numel() for p in NetworkSpec.of(spec)().parameters()) == count + layers * D * N


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
    ("corpus", "units", "about", "windows"),
    [("slimpajama6b", "s6 b2s6 s4d", 250e6, 96), ("wikitext103", "mamba mamba2 b2s6 s4d", 129e6, 256)],
)
def test_units_of_language_models_have_as_many_parameters_and_windows_a_step(corpus, units, about, windows):
    names = [f"lm/{corpus}/{unit}" for unit in units.split()]
    counts = [*map(parameters, names)]
    assert max(counts) < 1.01 * min(counts) and max(counts) < 1.01 * about and min(counts) > 0.99 * about
    for found in map(load, names):
        assert found["data.init_args.batch_size"] * found["trainer.accumulate_grad_batches"] == windows
        assert found["data.init_args.length"] == 2048


@pytest.mark.parametrize("unit", ["slimpajama6b/s6", "slimpajama6b/b2s6", "slimpajama6b/s4d", "wikitext103/mamba",
                                  "wikitext103/b2s6", "wikitext103/s4d"])  # fmt: skip
def test_what_decays_in_language_models_decays_in_the_code_they_cite(unit):
    """AnnanYu/mamba-bare's train/optim/param_grouping.py exempts biases, A and D, nn.Embedding and torch's own norms;
    Mamba's RMSNorm is none of these. Of Δ we have one decay for all (docs/reproduction-language.md)."""
    built = on_meta(f"lm/{unit}", n_layers=2)
    given = parsed(CONFIGS / f"lm/{unit}.yaml")["model"]["init_args"]["optimizer"]
    rates = parameter_rates(built, OptimizerSettings.of(given))
    assert rates["backbone.embedding.weight"].weight_decay == 0 and built.head is None
    for full, rate in rates.items():
        module, _, own = full.rpartition(".")
        if module.endswith("norm") or own == "weight" and full != "backbone.embedding.weight":
            assert rate.weight_decay == 0.1, full  # norms, projections, the convolution
        elif own in ("bias", "A_log", "A_imag", "delta_bias", "B_bias"):
            assert rate.weight_decay == 0, full


def test_mambas_130_m_is_the_published_model():
    """129,135,360 parameters with GPT-NeoX's tokenizer, 50,277 tokens; facts of state-spaces/mamba-130m."""
    mamba = on_meta("lm/wikitext103/mamba", vocab_size=50277, pad_vocab_size_multiple=8)
    assert sum(p.numel() for p in mamba.parameters()) == 129_135_360


def test_stable_ssms_language_models_have_the_parameters_of_the_code_behind_them():
    """128,496,384, as radarFudan/S6 prints them, with B and C real, and w and b for the two parts of Λ and Δ; and the
    3 B of table 6, at its rate."""
    D, N, layers = 768, 128, 12
    assert parameters(SMALL) == 128_496_384 - layers * (2 * D * N + N)
    assert 2.95e9 < parameters(LARGE) < 3.05e9 and load(LARGE)[OPTIMIZER + "lr"] == 0.01
