"""A run's id: what it was before there were more settings, and which spellings are one."""

import copy
import hashlib
import json
from functools import cache
from pathlib import Path

import pytest
import yaml
from lightning.fabric.plugins.precision.precision import _PRECISION_INPUT_STR_ALIAS_CONVERSION

from lra_ssm.cli.run_options import read_fit_options
from lra_ssm.runs import Run, identity
from lra_ssm.runs.directory import RunDirectory
from lra_ssm.runs.identity import run_identities, run_identity
from lra_ssm.runs.record import flatten, result_settings
from tests.runner import FIT, SHORT, in_process, only_run, options_of
from tests.test_runs import parts

CONFIGS = Path(__file__).parents[1] / "configs"
OPTIMIZER, NETWORK = "model.init_args.optimizer", "model.init_args.network.init_args"
# Several spellings of one setting; the first counts.
SPELLED = [
    {"gradient_clip_val": 1.0, "precision": "32-true"},
    {"gradient_clip_val": 1.0, "precision": "32"},
    {"gradient_clip_val": 1, "precision": "32-true"},
    {"gradient_clip_val": 1, "precision": 32},
]


def counting(config):
    return flatten(result_settings(config))


@cache
def once(name):
    found = options_of(yaml.load((CONFIGS / f"{name}.yaml").read_text(), yaml.CSafeLoader))
    return found.resolved, found.neutral


def resolved(name, **trainer):
    """Of a shipped config a copy of what it comes to, and what does not count in it; with another Trainer."""
    config, neutral = copy.deepcopy(once(name))
    config["trainer"] |= trainer
    return config, neutral


# Settings that there were not.
SINCE = (
    "cosine_by", "learn_B", "algorithm", "arguments", "schedule",
    "schedule_arguments", "ema_decay", "label_smoothing", "class_weights", "metrics", "width", "padding",
    "discretization", "embedding_std",
)  # fmt: skip


def as_it_was(node):
    if isinstance(node, list):
        return [as_it_was(item) for item in node]
    return {k: as_it_was(v) for k, v in node.items() if k not in SINCE} if isinstance(node, dict) else node


def old_id(config, neutral):
    """A run's id as it was when every spelling had its own, and every setting counted."""
    found = as_it_was(identity._without_neutral(config, neutral))
    found["trainer"] = identity.without_trainer_defaults(found["trainer"])
    return hashlib.sha256(json.dumps(found, sort_keys=True, default=str).encode()).hexdigest()[:10]


# --- spellings ---


def test_precisions_have_the_names_that_lightning_takes_them_for():
    assert identity.PRECISIONS == _PRECISION_INPUT_STR_ALIAS_CONVERSION


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        *(({"precision": short}, {"precision": full}) for short, full in identity.PRECISIONS.items()),
        *(({"precision": bits}, {"precision": identity.PRECISIONS[str(bits)]}) for bits in (16, 32, 64)),
        ({"gradient_clip_val": 0}, {"gradient_clip_val": 0.0}),
        ({"gradient_clip_val": 2, "precision": "bf16"}, {"gradient_clip_val": 2.0, "precision": "bf16-mixed"}),
    ],
)
def test_spellings_of_one_setting_are_one_run(given, counts):
    one, other = resolved("lra/listops/b2s6", **given), resolved("lra/listops/b2s6", **counts)
    assert run_identity(*one) == run_identity(*other) == old_id(*other) != old_id(*one)
    assert counting(one[0]) == counting(other[0])
    assert old_id(*one) in run_identities(*other) and run_identities(*one) == run_identities(*other)


@pytest.mark.parametrize("name", ["limit_train_batches", "limit_val_batches", "overfit_batches", "val_check_interval"])
def test_of_batches_one_and_all_of_them_are_two_runs(name):
    one, every = (resolved("lra/listops/b2s6", **{name: value}) for value in (1, 1.0))
    assert run_identity(*one) != run_identity(*every) and not {*run_identities(*one)} & {*run_identities(*every)}


def test_a_run_that_was_made_before_is_found_by_every_spelling(tmp_path):
    def found(trainer, fresh=False):
        config, neutral = resolved("lra/listops/b2s6", **trainer)
        run_id, *former = run_identities({**config, "seed_everything": 3}, neutral)
        return RunDirectory.find(tmp_path, "runs", run_id, fresh, former).path.name

    def its_own(trainer):
        config, neutral = resolved("lra/listops/b2s6", **trainer)
        return old_id({**config, "seed_everything": 3}, neutral)

    ids = [its_own(trainer) for trainer in SPELLED]
    assert len({*ids}) == 4 and {found(trainer) for trainer in SPELLED} == {ids[0]}
    (tmp_path / f"runs/{ids[-1]}-2").mkdir(parents=True)  # begun with --fresh
    assert {found(trainer, fresh=True) for trainer in SPELLED} == {f"{ids[-1]}-2"}
    for old in reversed(ids):  # the one that counts comes last, and goes before the others
        (tmp_path / "runs" / old).mkdir()
        assert {found(trainer) for trainer in SPELLED} == {old}


@pytest.mark.slow
def test_a_run_made_under_another_spelling_is_gone_on_with_finished_and_scored(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def asked(clip, precision):
        return [*FIT[1:], *SHORT, f"--trainer.gradient_clip_val={clip}", f"--trainer.precision={precision}"]

    assert in_process(["fit", *asked("1.0", "32-true")], capsys)[0] == 0
    found = read_fit_options(asked("1.0", "32-true"))
    old = run_identities(found.resolved, found.neutral)[-1]
    made = only_run(tmp_path)
    made = made.rename(made.with_name(old))
    (made / "run.json").write_text((made / "run.json").read_text().replace('"finished"', '"interrupted"'))
    code, out, _ = in_process(["fit", *asked("1", "32-true")], capsys)
    assert code == 0 and f"run runs/tiny/{old}, going on from " in out
    assert f"{old} is finished" in in_process(["fit", *asked("1.0", "32")], capsys)[1]
    assert in_process(["test", *asked("1", "32")], capsys)[0] == 0 and (made / "test.json").is_file()
    assert only_run(tmp_path).name == old


# --- settings that came later ---


@pytest.mark.parametrize(
    ("name", "place", "later"),
    [
        ("quickstart", OPTIMIZER, "optimizer.later"),
        ("lm/wikitext103/stable_ssm", f"{NETWORK}.layer", "layer.later"),
        ("quickstart", f"{NETWORK}.layer", "network.layer.later"),
        ("quickstart", f"{NETWORK}.pooling", "pooling.later"),  # which had no settings
        ("quickstart", "checkpoint", "checkpoint.later"),
        ("quickstart", "", "later"),
    ],
)
@pytest.mark.parametrize("value", ["adamw", False, None, [0.9, 0.95]])
def test_a_setting_that_came_later_counts_where_it_differs(name, place, later, value, monkeypatch):
    config, neutral = resolved(name)
    stored, before = run_identity(config, neutral), counting(config)
    node = config
    for part in place.split(".") if place else ():
        node = node[int(part) if part.isdecimal() else part]
    if "class_path" in node:
        node = node.setdefault("init_args", {})
    node["later"] = value
    assert run_identity(config, neutral) != stored
    monkeypatch.setitem(identity.AS_BEFORE, later, value)
    assert run_identity(config, neutral) == stored and counting(config) == before
    node["later"] = "another"
    assert run_identity(config, neutral) != stored and counting(config) != before


def test_a_class_that_had_no_settings_is_found_in_python_too(monkeypatch):
    config, neutral = resolved("quickstart")
    pooling = config["model"]["init_args"]["network"]["init_args"]["pooling"]
    pooling["init_args"] = {}
    old = old_id(config, neutral)
    pooling["init_args"]["later"] = 1
    monkeypatch.setitem(identity.AS_BEFORE, "pooling.later", 1)
    found = run_identities(config, neutral)
    assert found[0] == run_identity(*resolved("quickstart")) != old and old in found


def test_a_setting_of_another_name_or_place_is_not_the_later_one(monkeypatch):
    config, neutral = resolved("quickstart")
    later = {"optimizer.later": 1, "zer.lr": 0.008, "data.batch_size": 33}
    monkeypatch.setattr(identity, "AS_BEFORE", {**identity.AS_BEFORE, **later})
    config["data"]["init_args"]["later"] = 1
    assert run_identity(config, neutral) == old_id(config, neutral)


def test_what_users_call_by_the_name_of_a_later_setting_stays_theirs(tmp_path, monkeypatch):
    """In `settings` it counts."""
    monkeypatch.chdir(tmp_path)

    def of(**settings):
        return Run.of(*parts(tmp_path), trainer={"max_epochs": 1}, settings=settings).path

    before = of(optimizer={"later": 1})
    monkeypatch.setitem(identity.AS_BEFORE, "optimizer.later", 1)
    assert of(optimizer={"later": 1}) == before != of(optimizer={})
