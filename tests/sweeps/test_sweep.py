"""Which runs a sweep file lists."""

from pathlib import Path

import pytest
import yaml

from lra_ssm.errors import InputError
from lra_ssm.sweeps.sweep import read_sweep


@pytest.fixture(autouse=True)
def _configs(here):
    """Two configs, which are not read."""
    for name in ("a", "b"):
        Path(f"{name}.yaml").touch()


def sweep(text=None, **parts):
    Path("sweep.yaml").write_text(text or yaml.safe_dump({"configs": ["a.yaml"], **parts}, sort_keys=False))
    return read_sweep("sweep.yaml")


def changes(**parts):
    return [run.changes for run in sweep(**parts).runs]


def test_every_combination_in_order_seeds_slowest():
    found = sweep(configs=["a.yaml", "b.yaml"], seeds=[3, 4], set={"x": 1}, grid={"m.lr": [0.1, 0.2]})
    assert [(r.config.stem, r.changes["seed_everything"], r.changes["m.lr"]) for r in found.runs] == [
        ("a", 3, 0.1), ("a", 3, 0.2), ("b", 3, 0.1), ("b", 3, 0.2),
        ("a", 4, 0.1), ("a", 4, 0.2), ("b", 4, 0.1), ("b", 4, 0.2),
    ]  # fmt: skip
    assert (found.name, found.runs_dir) == ("sweep", "runs") and all(r.changes["x"] == 1 for r in found.runs)


def test_options_are_those_of_fit_and_values_of_yaml_keep_their_meaning():
    values = {"a": None, "b": True, "c": "text", "d": [1, 2], "e": 1e-5, "f": {"class_path": "X"}}
    (run,) = sweep(set=values).runs
    assert run.options(Path("copy.yaml"), "others") == [
        "--config=copy.yaml", "--a=null", "--b=true", "--c=text", "--d=[1, 2]", "--e=1e-05", '--f={"class_path": "X"}',
        "--runs_dir=others",
    ]  # fmt: skip
    found = sweep("configs: [a.yaml]\nset: {s: 2024-01-01}\ngrid: {n: [1, 1e-3, 1.5, yes]}\n")
    options = [run.options(Path("a.yaml"), "runs")[1:3] for run in found.runs]
    assert options == [["--s=2024-01-01", n] for n in ("--n=1", "--n=1e-3", "--n=1.5", "--n=true")]


def test_variants_settings_that_vary_together_and_groups():
    assert changes(experiment="e/{config}/{variant}", variants={"one": {"n": 1}, "whole": {}}) == [
        {"experiment": "e/a/one", "n": 1}, {"experiment": "e/a/whole"}
    ]  # fmt: skip
    found = changes(grid={"lr, other_lr": [0.1, 0.2], "c, d": [[True, False], [False, True]]})
    assert [tuple(change.values()) for change in found] == [
        (0.1, 0.1, True, False), (0.1, 0.1, False, True), (0.2, 0.2, True, False), (0.2, 0.2, False, True),
    ]  # fmt: skip
    groups = [{"set": {"y": 2}}, {"configs": ["b.yaml"], "seeds": [1], "grid": {"z": [5]}}]
    assert [(run.config.stem, run.changes) for run in sweep(set={"x": 1, "y": 1}, seeds=[0], groups=groups).runs] == [
        ("a", {"seed_everything": 0, "x": 1, "y": 2}),
        ("b", {"seed_everything": 1, "x": 1, "y": 1, "z": 5}),
    ]
    assert changes(grid={"x": [1, 2]}, groups=[{}, {"grid": {"y": [5]}}, {"grid": {"x": [3]}}]) == [
        {"x": 1}, {"x": 2}, {"x": 1, "y": 5}, {"x": 2, "y": 5}, {"x": 3}
    ]  # fmt: skip
    assert changes(variants={"a": {"x": 1}}, groups=[{}, {"variants": {"b": {"x": 2}}}]) == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize("keys", [("m.layer.n", "m.layer"), ("m.layer.init_args.n", "m.layer.class_path")])
def test_a_class_stands_before_its_settings(keys):
    """A new class starts from its own defaults: what was set before it would be lost."""
    settings, cls = keys
    (found,) = changes(set={settings: 16}, grid={"x.y.z": [1], cls: [1]})
    assert list(found).index(cls) < list(found).index(settings) and found[settings] == 16


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"seed": [1]}, "the file has 'seed'; did you mean 'seeds'?"),
        ({"configs": ["c.yaml"]}, "no config c.yaml: not a file and not one of ours"),
        ({"configs": "a.yaml"}, "configs is 'a.yaml'; give a list of names or files"),
        ({"seeds": [True]}, "seeds is [True]; give a list of whole numbers"),
        ({"grid": {"lr": []}}, "grid.lr is []; give a list of values"),
        ({"grid": {"a, b": [[1, 2, 3]]}}, "for 2 settings give 2 values"),
        ({"grid": {"a": [1]}, "groups": [{"grid": 3}]}, "groups[1].grid is 3; it takes settings"),
        ({"experiment": "{model}", "variants": {"a": {}}}, "use only {config} and {variant} in it"),
        ({"name": "a/b"}, "name is 'a/b'; it becomes a folder"),
        ({"groups": []}, "groups is not a list"),
        ({"groups": [{"runs_dir": "x"}]}, "groups[1] has 'runs_dir'; it takes configs, "),
        ({"text": "- 1"}, "the file is [1]; it takes settings"),
    ],
)
def test_a_mistake_is_named_with_its_place(parts, message):
    with pytest.raises(InputError) as error:
        sweep(**parts)
    assert message in str(error.value) and str(error.value).startswith("sweep sweep.yaml: ")
    with pytest.raises(InputError, match="sweep sweep.yaml is not valid YAML"):
        sweep("a: [")
