"""Every config parses, is complete, says where its values come from, and trains."""

import copy
import inspect
import itertools
import re
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import Trainer

import lra_ssm
from lra_ssm.layers import NetworkSpec
from lra_ssm.layers.roles import ROLES
from lra_ssm.layers.spec import import_object
from lra_ssm.runs.checkpoints import CheckpointSettings
from lra_ssm.tasks import OptimizerSettings
from lra_ssm.tasks.optim import format_groups, parameter_groups, parameter_rates
from tests.runner import in_process, options_of
from tests.small_data import options

CONFIGS = Path(__file__).parents[1] / "configs"
# How a fit is spread over devices, to be given as a second --config: parts, which stand for no experiment.
STRATEGIES = sorted(CONFIGS.glob("lm/strategies/*.yaml"))
FILES = sorted(set(CONFIGS.rglob("*.yaml")) - set(STRATEGIES))
QUICKSTART = CONFIGS / "quickstart.yaml"  # whose comments are for newcomers
# The model as published but for its depth, and the width of those that take seconds; the data small.
ONE_STEP = [
    "--model.network.n_layers=1",
    "--trainer.max_steps=1",
    "--trainer.accelerator=cpu",
    "--trainer.logger=false",
    "--data.batch_size=2",
    "--data.num_workers=0",
]
# Where such an option stands in a file.
SECTIONS = {
    "data": ["data", "init_args"],
    "model": ["model", "init_args", "network", "init_args"],
    "trainer": ["trainer"],
}
PUBLISHED = yaml.safe_load((Path(lra_ssm.__file__).parent / "published.yaml").read_text())
SOURCES, MODELS = PUBLISHED["sources"], PUBLISHED["models"]


def values(node, path=()):
    if isinstance(node, dict):
        for key, value in node.items():
            yield from values(value, (*path, key))
    else:
        yield ".".join(path), node


@cache
def parsed(path):
    return yaml.load(path.read_text(), yaml.CSafeLoader)


@cache
def resolved(*paths):
    """Every setting that files come to, the later over the earlier."""
    return dict(values(options_of(*map(parsed, paths)).resolved))


def changed(path, arguments):
    """A file's configuration with options of fit."""
    config = copy.deepcopy(parsed(path))
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        section = config
        for key in SECTIONS[name.partition(".")[0]]:
            section = section[key]
        section[name.rpartition(".")[2]] = yaml.safe_load(value)
    return config


def one_step(path, more, folder, monkeypatch, capsys):
    """A run of one step on small data, by a parser that is made once; every setting given, and what it came to."""
    monkeypatch.chdir(folder)
    cls = parsed(path)["data"]["class_path"].rpartition(".")[2]
    config = changed(path, [*options(cls, folder), *more, *ONE_STEP])
    read = options_of(config)
    monkeypatch.setattr("lra_ssm.cli.fit.read_fit_options", lambda options: read)
    given, taken = dict(values(config)), dict(values(read.resolved))
    code, _, errors = in_process(["fit"], capsys)
    assert code == 0, errors
    assert len(list(folder.glob("runs/**/config.yaml"))) == 1
    return given, taken


def specifications(node):
    """What names a class in a configuration, at any depth."""
    if isinstance(node, dict) and "class_path" in node:
        yield node
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from specifications(part)


def covering(configs):
    """Of configurations by names as few as a greedy choice needs for every class that one of them has."""
    named = {name: {node["class_path"] for node in specifications(config)} for name, config in configs.items()}
    missing, chosen = set().union(*named.values()), set()
    while missing:
        chosen.add(best := max(named, key=lambda name: len(named[name] & missing)))
        missing -= named[best]
    return chosen


# Every class of a model by default; of the other files half with `pytest -m slow`, some of each folder, and half with
# `-m trials`.
BY_DEFAULT = covering({path: parsed(path)["model"] for path in FILES})
OTHERS = [path for path in FILES if path not in BY_DEFAULT]
MARKS = {path: [(pytest.mark.slow, pytest.mark.trials)[i % 2]] for i, path in enumerate(OTHERS)}
STEPS = [pytest.param(path, marks=MARKS.get(path, []), id=str(path.relative_to(CONFIGS))) for path in FILES]


@pytest.mark.parametrize("path", STEPS)
def test_one_step_of_every_file_as_it_stands_with_nothing_added(path, tmp_path, monkeypatch, capsys):
    more = ["--data.resolution=32"] if path.parent.name == "pathx" else []
    if CONFIGS / "lm" in path.parents or path.parent.name in ("image", "scifar"):
        more = ["--model.network.d_model=64"]
        assert parameters(str(path.relative_to(CONFIGS).with_suffix(""))) > 1e4  # at its width it can be built
    given, taken = one_step(path, more, tmp_path, monkeypatch, capsys)
    for key, value in given.items():
        found = taken[key] if key in taken else taken[f"{key}.class_path"]  # a class by its path only
        assert includes(found, value), key


def includes(whole, part):
    """Whether a resolved value has everything that a config says; what it leaves out has the class's default."""
    if isinstance(part, dict):
        return all(key in whole and includes(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(includes, whole, part))
    return whole == part


@pytest.mark.parametrize("path", STRATEGIES, ids=lambda p: p.stem)
def test_strategies_change_the_trainer_alone_and_as_they_say(path):
    first = CONFIGS / "quickstart.yaml"
    before, after, given = resolved(first), resolved(first, path), dict(values(parsed(path)))
    assert given.items() <= after.items() and all(key.startswith("trainer.") for key in given)
    assert {k for k, v in before.items() if k not in given and after.get(k) != v} <= {"trainer.strategy"}
    if path.stem == "fsdp2":
        sizes = [given[f"trainer.strategy.init_args.{name}_parallel_size"] for name in ("data", "tensor")]
        assert sizes == [given["trainer.devices"] * given["trainer.num_nodes"], 1]


# What the head of every config says.
HEAD = (
    '# A comment names a value\'s source; "ours" or no comment: our choice. The rest: lra-ssm configs NAME --resolved.'
)
ORIGIN = (
    r"^ours\b|configs/[\w/]+\.yaml|Yu & Erichson 2025|Tay et al\. 2021|Gu & Dao 2023|Dao & Gu 2024|state-spaces/s4"
    r"|state-spaces/mamba"
    r"|FreqBiasSSM|AnnanYu/mamba-bare|jsie7/ssm-benchmark"
    r"|Wang & Li 2024|Orvieto et al\. 2023|radarFudan/StableSSM|NicolasZucchet/minimal-LRU"
    r"|HazyResearch/safari|lindermanlab/S5|deep linear SSMs, ICLR 2025 submission|karpathy/nanoGPT"
    r"|not-from-scratch|Amos, Berant & Gupta 2024|long-transformers|Arora et al. 2024"
)


@pytest.mark.parametrize("path", [path for path in [*FILES, *STRATEGIES] if path != QUICKSTART], ids=str)
def test_every_comment_names_its_source_and_the_head_says_what_none_means(path):
    lines = path.read_text().splitlines()
    assert HEAD in itertools.takewhile(lambda line: line.startswith("#"), lines)
    comments = [(line, line.partition("  # ")[2]) for line in lines if re.match(r"\s*\w+: [^\s#]", line)]
    assert len(comments) > 5
    for line, comment in comments:
        assert not comment or re.search(ORIGIN, comment), f"{path}: neither a source nor ours: {line}"


NETWORK, OPTIMIZER = "model.init_args.network.init_args.", "model.init_args.optimizer."
LAYER = NETWORK + "layer.init_args."


def load(name):
    """Every setting that a config comes to, defaults too; of each role its rate and decay."""
    path = CONFIGS / f"{name}.yaml"
    found = {key: value for key, value in resolved(path).items() if not key.startswith(f"{OPTIMIZER}roles")}
    settings = OptimizerSettings.of(parsed(path)["model"]["init_args"]["optimizer"])
    return found | {f"{OPTIMIZER}roles.{role}": settings.of_role(role)[:2] for role in ROLES[1:]}


# What every config says, default or not: the first things that one looks for, and how the data is another than that of
# the published figures.
ALWAYS = ("d_model", "n_layers", "lr", "batch_size", *{key for data in PUBLISHED["data"].values() for key in data})
# What Lightning makes of None.
NONE_MEANS = {"trainer.precision": "32-true", "trainer.log_every_n_steps": 50}


def defaults_of(config):
    """Dotted name -> default, of every setting of the classes that a config names."""
    classes = {"trainer": Trainer, "checkpoint": CheckpointSettings, "model.init_args.optimizer": OptimizerSettings}
    classes |= {f"{name}init_args": import_object(path) for name, path in class_paths(config)}
    found = {f"{above}.{name}": p.default for above, cls in classes.items() for name, p in signature(cls)}
    return {"seed_everything": 0, **found, **NONE_MEANS}


def class_paths(node, name=""):
    """(dotted name with a dot behind it, import path) of every class in a configuration, but those in lists."""
    if isinstance(node, dict):
        if "class_path" in node:
            yield name, node["class_path"]
        for key, value in node.items():
            yield from class_paths(value, f"{name}{key}.")


def signature(cls):
    return inspect.signature(cls).parameters.items()


def is_default(value, default):
    if inspect.isclass(default):
        return isinstance(value, str) and default is not inspect.Parameter.empty and import_object(value) is default
    return same(value, list(default) if isinstance(default, tuple) else default)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_value_that_is_the_default_names_its_source(path):
    defaults, checked = defaults_of(parsed(path)), 0
    for key, (value, comment) in settings_of(path).items():
        if key in defaults and key.rpartition(".")[2] not in ALWAYS and is_default(value, defaults[key]):
            assert comment and not comment.startswith("ours"), f"{path}: {key} is the default, and no source says it"
        checked += key in defaults
    assert checked > 9


def leaves(node, path=()):
    """(dotted name as in `values`, what stands there) of a composed file; a role's entry is a leaf for each setting."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        inside = (*path, key.value)
        if isinstance(value, yaml.MappingNode) and (not value.flow_style or "roles" in path):
            yield from leaves(value, inside)
        else:
            yield ".".join(inside), value


def settings_of(path):
    """Dotted name -> (value, comment or "") of every setting in a file."""
    text = path.read_text()
    comments = [line.partition("  # ")[2] for line in text.splitlines()]
    found = leaves(yaml.compose(text, yaml.CSafeLoader))
    return {key: (yaml.safe_load(yaml.serialize(node)), comments[node.start_mark.line]) for key, node in found}


def lines(name):
    """Last part of a setting's name, with its role where it has one -> (value, comment or "")."""
    return {
        key.partition(".roles.")[2] or key.rpartition(".")[2]: found
        for key, found in settings_of(CONFIGS / f"{name}.yaml").items()
        if not key.endswith("class_path")
    }


def published(source, task):
    return SOURCES[source].get("every", {}) | SOURCES[source]["settings"][task]


def same(a, b):
    """Equal, and true is not 1."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


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


def on_meta(name, **changes):
    """A config's network, on no device."""
    spec = network(name)
    with torch.device("meta"):
        return NetworkSpec.of({**spec, "init_args": {**spec["init_args"], **changes}})()


def parameters(name):
    """Of a config's network, from those of one and of two blocks: dozens take a second to be built."""
    one, two = (sum(p.numel() for p in on_meta(name, n_layers=n).parameters()) for n in (1, 2))
    return one + (network(name)["init_args"]["n_layers"] - 1) * (two - one)


def network(name):
    return parsed(CONFIGS / f"{name}.yaml")["model"]["init_args"]["network"]


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
