"""Every config parses, is complete, says where its values come from, and trains."""

import inspect
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
from lra_ssm.runs.record import flatten
from lra_ssm.tasks import OptimizerSettings
from tests.runner import options_of, printed
from tests.small_data import options

CONFIGS = Path(__file__).parents[1] / "configs"
# How a fit is spread over devices, to be given as a second --config: parts, which stand for no experiment.
STRATEGIES = sorted(CONFIGS.glob("lm/strategies/*.yaml"))
FILES = sorted(set(CONFIGS.rglob("*.yaml")) - set(STRATEGIES))
QUICKSTART = CONFIGS / "quickstart.yaml"  # whose comments are for newcomers
# The model as published but for its depth, and the width of those that take seconds; the data small.
ONE_STEP = ["--model.network.n_layers=1", "--trainer.max_steps=1", "--trainer.accelerator=cpu",
            "--trainer.logger=false", "--data.batch_size=2", "--data.num_workers=0"]  # fmt: skip
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
def options_of_files(*paths):
    """What `fit` reads of files, the later over the earlier."""
    return options_of(*map(parsed, paths))


def resolved(*paths):
    """Every setting that files come to."""
    return dict(values(options_of_files(*paths).resolved))


def class_paths(node, name=""):
    """(dotted name with a dot behind it, import path) of every class in a configuration, except those in lists."""
    if isinstance(node, dict):
        if "class_path" in node:
            yield name, node["class_path"]
        for key, value in node.items():
            yield from class_paths(value, f"{name}{key}.")


def covering():
    """As few files as a greedy choice needs for every class of a model."""
    named = {path: {cls for _, cls in class_paths(parsed(path)["model"])} for path in FILES}
    missing, chosen = set().union(*named.values()), set()
    while missing:
        chosen.add(best := max(named, key=lambda path: len(named[path] & missing)))
        missing -= named[best]
    return chosen


# Of the files that are not run by default half with `pytest -m slow`, some of each folder, and half with `-m trials`.
OTHERS = [path for path in FILES if path not in covering()]
MARKS = {path: [(pytest.mark.slow, pytest.mark.trials)[i % 2]] for i, path in enumerate(OTHERS)}
STEPS = [pytest.param(path, marks=MARKS.get(path, []), id=str(path.relative_to(CONFIGS))) for path in FILES]


@pytest.mark.parametrize("path", STEPS)
def test_one_step_of_every_file_as_it_stands_with_nothing_added(path, here, capsys):
    more = ["--data.resolution=32"] if path.parent.name == "pathx" else []
    if CONFIGS / "lm" in path.parents or path.parent.name in ("image", "scifar"):
        more = ["--model.network.d_model=64"]
        assert parameters(str(path.relative_to(CONFIGS).with_suffix(""))) > 1e4  # at its width it can be built
    small = [*options(parsed(path)["data"]["class_path"].rpartition(".")[2], here), *more, *ONE_STEP]
    printed(["fit", f"--config={path}", *small], capsys)
    (file,) = here.glob("runs/**/config.yaml")
    given, taken = flatten(parsed(path)), flatten(yaml.safe_load(file.read_text()))
    for key in given.keys() - {option.removeprefix("--").partition("=")[0] for option in small}:
        assert includes(taken[key], given[key]), key


def includes(whole, part):
    """Whether a resolved value has everything that a config says; what it leaves out has the class's default."""
    if isinstance(part, dict):
        return all(key in whole and includes(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(includes, whole, part))
    return whole == part


@pytest.mark.parametrize("path", STRATEGIES, ids=lambda p: p.stem)
def test_strategies_only_change_the_trainer(path):
    before, after, given = resolved(QUICKSTART), resolved(QUICKSTART, path), dict(values(parsed(path)))
    assert given.items() <= after.items() and all(key.startswith("trainer.") for key in given)
    assert {k for k, v in before.items() if k not in given and after.get(k) != v} <= {"trainer.strategy"}
    if path.stem == "fsdp2":
        sizes = [given[f"trainer.strategy.init_args.{name}_parallel_size"] for name in ("data", "tensor")]
        assert sizes == [given["trainer.devices"] * given["trainer.num_nodes"], 1]


HEAD = (
    '# A comment names a value\'s source; "ours" or no comment: our choice. The rest: lra-ssm configs NAME --resolved.'
)
ORIGIN = (
    r"^ours\b|configs/[\w/]+\.yaml|Yu & Erichson 2025|Tay et al\. 2021|Gu & Dao 2023|Dao & Gu 2024|state-spaces/s4"
    r"|state-spaces/mamba"
    r"|FreqBiasSSM|AnnanYu/mamba-bare|jsie7/ssm-benchmark"
    r"|Wang & Li 2024|Orvieto et al\. 2023|radarFudan/StableSSM|NicolasZucchet/minimal-LRU"
    r"|HazyResearch/safari|lindermanlab/S5|deep linear SSMs, ICLR 2025 submission|karpathy/nanoGPT"
    r"|not-from-scratch|Amos, Berant & Gupta 2024|long-transformers|Arora et al. 2024|De et al\. 2024"
    r"|google-deepmind/recurrentgemma"
)


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
    signatures = {above: inspect.signature(cls).parameters for above, cls in classes.items()}
    found = {f"{above}.{name}": p.default for above, own in signatures.items() for name, p in own.items()}
    return {"seed_everything": 0, **found, **NONE_MEANS}


def is_default(value, default):
    if inspect.isclass(default):
        return isinstance(value, str) and default is not inspect.Parameter.empty and import_object(value) is default
    return same(value, list(default) if isinstance(default, tuple) else default)


@pytest.mark.parametrize("path", [*FILES, *STRATEGIES], ids=str)
def test_every_value_is_ours_or_names_its_source_and_a_default_names_one(path):
    lines, settings, defaults = path.read_text().splitlines(), settings_of(path), defaults_of(parsed(path))
    assert len(settings.keys() & defaults.keys()) > (9 if path in FILES else 2)
    if path != QUICKSTART:
        assert HEAD in lines[: lines.index("")]
        for line in lines:
            value, _, comment = line.partition("  # ")
            if re.match(r"\s*\w+: [^\s#]", value):
                assert not comment or re.search(ORIGIN, comment), f"neither a source nor ours: {line}"
    for key in (settings.keys() & defaults.keys()) if path in FILES else ():
        value, comment = settings[key]
        if key.rpartition(".")[2] not in ALWAYS and is_default(value, defaults[key]):
            assert comment and not comment.startswith("ours"), f"{key} is the default, and no source says it"


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


def same(a, b):
    """Equal, and true is not 1."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


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
