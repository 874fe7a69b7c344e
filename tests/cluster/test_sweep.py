"""Which runs a sweep file stands for."""

from pathlib import Path

import pytest
import yaml

from lra_ssm.cluster.folder import in_common
from lra_ssm.cluster.sweep import read_sweep
from lra_ssm.errors import InputError


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with two configs, which are not read."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(f"{name}.yaml").touch()
    return tmp_path


def sweep(**parts):
    Path("sweep.yaml").write_text(yaml.safe_dump({"configs": ["a.yaml"], **parts}, sort_keys=False))
    return read_sweep(Path("sweep.yaml"))


def changes(**parts):
    return [run.changes for run in sweep(**parts).runs]


def test_every_combination_in_order_seeds_slowest(here):
    found = sweep(configs=["a.yaml", "b.yaml"], seeds=[3, 4], set={"x": 1}, grid={"m.lr": [0.1, 0.2]})
    assert [(r.index, r.config.stem, r.changes["seed_everything"], r.changes["m.lr"]) for r in found.runs] == [
        (1, "a", 3, 0.1), (2, "a", 3, 0.2), (3, "b", 3, 0.1), (4, "b", 3, 0.2),
        (5, "a", 4, 0.1), (6, "a", 4, 0.2), (7, "b", 4, 0.1), (8, "b", 4, 0.2),
    ]  # fmt: skip
    assert (found.name, found.runs_dir) == ("sweep", "runs")
    assert in_common([run.changes for run in found.runs]) == {"x": 1}


def test_options_are_those_of_fit(here):
    values = {"a": None, "b": True, "c": "text", "d": [1, 2], "e": 1e-5, "f": {"class_path": "X"}}
    (run,) = sweep(set=values, runs_dir="others").runs
    assert run.options(Path("copy.yaml")) == [
        "--config=copy.yaml", "--a=null", "--b=true", "--c=text", "--d=[1, 2]", "--e=1e-05", '--f={"class_path": "X"}',
        "--runs_dir=others",
    ]  # fmt: skip


def test_variants_have_names_and_experiments_are_called_by_them(here):
    found = changes(experiment="e/{config}/{variant}", variants={"one": {"n": 1}, "whole": {}})
    assert found == [{"experiment": "e/a/one", "n": 1}, {"experiment": "e/a/whole"}]


def test_ranges_of_a_grid(here):
    found = changes(grid={"lr": {"from": 0.001, "to": 1, "points": 4, "scale": "log"}})
    assert [change["lr"] for change in found] == [0.001, 0.01, 0.1, 1.0]
    found = changes(grid={"width": {"from": 64, "to": 256, "points": 3, "scale": "log"}})
    assert [change["width"] for change in found] == [64, 128, 256] and type(found[0]["width"]) is int
    found = changes(grid={"p": {"from": 0.0, "to": 0.3, "points": 4}})
    assert [change["p"] for change in found] == [0, 0.1, 0.2, 0.3]
    found = changes(grid={"lr": {"from": "1e-4", "to": "1e-2", "points": 3, "scale": "log"}})  # YAML's text
    assert [change["lr"] for change in found] == [0.0001, 0.001, 0.01]


def test_options_that_go_together(here):
    found = changes(grid={"m.lr, m.other_lr": [0.1, 0.2], "c, d": [[True, False], [False, True]]})
    assert [tuple(change.values()) for change in found] == [
        (0.1, 0.1, True, False), (0.1, 0.1, False, True), (0.2, 0.2, True, False), (0.2, 0.2, False, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "ordered"),
    [
        (["m.layer.n", "m.layer"], ["m.layer", "m.layer.n"]),
        (["lr", "m.layer.n", "x", "m.layer", "m"], ["lr", "m", "m.layer", "m.layer.n", "x"]),
        (["m.layer.init_args.n", "m.layer.class_path"], ["m.layer.class_path", "m.layer.init_args.n"]),
        (["m.layers", "m.layer", "b", "a"], ["m.layers", "m.layer", "b", "a"]),
    ],
)  # fmt: skip
def test_a_class_stands_before_what_is_set_of_it_and_nothing_else_moves(here, given, ordered):
    """A class in another's place starts from its own defaults: what was set before it would be lost."""
    first, *rest = given
    (found,) = changes(set={first: 16}, grid={key: [1] for key in rest})
    assert list(found) == ordered and found[first] == 16


def test_draws_are_the_same_every_time_and_stay_when_more_is_drawn(here):
    lr = {"from": 0.0001, "to": 0.1, "scale": "log"}
    few = changes(random={"runs": 3, "seed": 1, "lr": lr})
    more = changes(random={"runs": 50, "seed": 1, "n": [4, 6], "lr": lr})
    assert [change["lr"] for change in more[:3]] == [change["lr"] for change in few]
    rates = [change["lr"] for change in more]
    assert all(0.0001 <= rate <= 0.1 for rate in rates) and 15 < sum(rate < 0.003162 for rate in rates) < 35
    assert {change["n"] for change in more} == {4, 6}
    assert changes(random={"runs": 3, "seed": 2, "lr": lr}) != few


def test_groups_share_what_stands_beside_them(here):
    groups = [{"set": {"y": 2}}, {"configs": ["b.yaml"], "seeds": [1], "grid": {"z": [5]}}]
    found = sweep(set={"x": 1, "y": 1}, seeds=[0], groups=groups)
    assert [(run.config.stem, run.changes) for run in found.runs] == [
        ("a", {"seed_everything": 0, "x": 1, "y": 2}),
        ("b", {"seed_everything": 1, "x": 1, "y": 1, "z": 5}),
    ]


def test_a_groups_grid_and_draws_are_added_to_those_beside(here):
    groups = [{}, {"grid": {"y": [5, 6]}}, {"grid": {"x": [3]}}]
    assert changes(grid={"x": [1, 2]}, groups=groups) == [
        {"x": 1}, {"x": 2}, {"x": 1, "y": 5}, {"x": 1, "y": 6}, {"x": 2, "y": 5}, {"x": 2, "y": 6}, {"x": 3}
    ]  # fmt: skip
    groups = [{"random": {"q": [2]}}, {"random": {"runs": 1, "p": [3]}}]
    found = changes(random={"runs": 2, "p": {"from": 0.0, "to": 1.0}}, groups=groups)
    assert [{**change, "p": "drawn" if change["p"] < 1 else 3} for change in found] == [
        {"p": "drawn", "q": 2}, {"p": "drawn", "q": 2}, {"p": 3}
    ]  # fmt: skip
    found = changes(variants={"a": {"x": 1}}, groups=[{}, {"variants": {"b": {"x": 2}}}])
    assert found == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"seed": [1]}, "it has 'seed'; did you mean 'seeds'?"),
        ({"configs": ["c.yaml"]}, "it.configs: no config c.yaml: neither such a file nor one of ours"),
        ({"configs": "a.yaml"}, "it.configs is 'a.yaml'; give a list of names or files"),
        ({"configs": None}, "it.configs is None; give a list of names or files"),
        ({"seeds": [0.5]}, "it.seeds is [0.5]; give a list of whole numbers"),
        ({"grid": {"lr": 3}}, "it.grid.lr is 3; give a list of values, or {from: "),
        ({"grid": {"lr": []}}, "it.grid.lr is []; give a list of values"),
        ({"grid": {"lr": {"from": 1, "to": 2}}}, "it.grid.lr.points is None; a range has 2 or more"),
        (
            {"grid": {"lr": {"from": 1, "to": 2, "steps": 2}}},
            "it.grid.lr has 'steps'; it takes from, to, points, scale",
        ),
        ({"grid": {"lr": {"from": 0, "to": 2, "points": 2, "scale": "log"}}}, "above 0 where the scale is log"),
        ({"grid": {"lr": {"from": "low", "to": 2, "points": 2}}}, "it.grid.lr goes from 'low' to 2; these are numbers"),
        ({"grid": {"a, b": [[1, 2, 3]]}}, "for 2 options that go together give 2 values"),
        ({"grid": {"a, b": [1], "b": [2]}}, "it.grid has b in two lines, of which only one would hold"),
        ({"grid": [1]}, "grid is [1], not options and their values"),
        ({"grid": {"a": [1]}, "groups": [{"grid": 3}]}, "groups[1].grid is 3, not options and their values"),
        ({"random": {"lr": [1]}}, "it.random.runs is None; say how many are drawn"),
        ({"random": {"runs": 2, "lr": 1}}, "it.random.lr is 1; give a list, or {from: "),
        ({"experiment": "{model}"}, "it.experiment is '{model}'; {model} is not known, {config} may"),
        ({"experiment": "x/{config.stem}"}, "it.experiment is 'x/{config.stem}'; {config.stem} is not known"),
        ({"experiment": "{config"}, "{config is not known"),
        ({"experiment": "x/{config}/{variant}"}, "{variant} is not known, {config} may stand in it"),
        ({"variants": {"one": 3}}, "it.variants.one is 3, not options and their values"),
        ({"name": "a/b"}, "name is 'a/b'; it names a folder"),
        ({"groups": []}, "groups is no list of groups"),
        ({"groups": [{}, {"seeds": []}]}, "groups[2].seeds is []"),
        ({"grid": {f"k{i}": list(range(101)) for i in range(2)}}, "more than 10,000 runs"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(here, parts, said):
    with pytest.raises(InputError) as error:
        sweep(**parts)
    assert said in str(error.value) and str(error.value).startswith("sweep sweep.yaml: ")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("seeds: [0]\nset: {x: 1}\nseeds: [1]\n", "line 4 has 'seeds' again, as line 2; keep one"),
        ("variants:\n  a: {x: 1}\n  a: {x: 2}\n", "line 4 has 'a' again, as line 3; keep one"),
        ("set: {x: 1, x: 2}\n", "line 2 has 'x' again, as line 2; keep one"),
    ],
)
def test_a_key_that_stands_twice_is_refused(here, more, said):
    """YAML keeps the last."""
    Path("sweep.yaml").write_text(f"configs: [a.yaml]\n{more}")
    with pytest.raises(InputError, match=f"sweep sweep.yaml: {said}"):
        read_sweep(Path("sweep.yaml"))


def test_what_an_anchor_brings_may_be_given_again(here):
    Path("sweep.yaml").write_text(
        "configs: [a.yaml]\nvariants: {p: {q: &q {<<: {x: 1, y: 1}, x: 2}}, r: {<<: *q, y: 3}}\n"
    )
    assert [run.changes for run in read_sweep(Path("sweep.yaml")).runs] == [{"q": {"x": 2, "y": 1}}, {"x": 2, "y": 3}]


def test_a_date_is_its_text(here):
    Path("sweep.yaml").write_text("configs: [a.yaml]\nset: {data.source: 2024-01-01}\ngrid: {n: [1, 1e-3, 1.5, yes]}\n")
    runs = read_sweep(Path("sweep.yaml")).runs
    assert runs[0].options(Path("a.yaml"))[1:] == ["--data.source=2024-01-01", "--n=1"]
    assert [run.changes["n"] for run in runs] == [1, "1e-3", 1.5, True]


def test_files_that_are_none(here):
    for text, said in (("a: [", "sweep x.yaml is no YAML"), ("- 1", "it is [1], not options")):
        Path("x.yaml").write_text(text)
        with pytest.raises(InputError, match=None) as error:
            read_sweep(Path("x.yaml"))
        assert said in str(error.value)
    with pytest.raises(InputError, match="no sweep y.yaml: neither such a file"):
        read_sweep(Path("y.yaml"))
