"""The scripts in experiments/: quick forms, verdicts, results that count only for the code that made them, the page."""

import ast
import json
import math
import sys
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

import helper
from helper import Claim, beyond, digest, main, mean, missing

FOLDER = Path(__file__).parents[2] / "experiments"
NAMES = sorted(path.stem for path in FOLDER.glob("*_*.py"))
# In these a second seed whose results are NaN decides nothing; in the others a claim is about each run.
SEEDED = {"b2s6_fig3", "b2s6_fig4", "b2s6_fig5", "deep_fig4", "stable_fig3a", "stable_fig4a", "width_table3"}
SCRIPT = """
from helper import Claim
FACTOR = 2
def cells(size): return [{"x": x} for x in range(3)]
def run(x):
    print("runs", x)
    if x == FACTOR: raise KeyboardInterrupt
    yield {"y": x * x}
def claims(rows): yield Claim("squares", "sum to 5", rows["y"].sum() == 5, {"sum": rows["y"].sum()})
def draw(rows, figure): figure.subplots().plot(rows["x"], rows["y"])
"""


@pytest.mark.parametrize("name", NAMES)
def test_quick_forms_run_and_claims_have_a_rule_and_numbers_and_do_not_hold_on_nan(name):
    module = import_module(name)
    rows = [{**cell, **row} for cell in module.cells("quick") for row in module.run(**cell)]
    claims = list(module.claims(pd.DataFrame(rows)))
    assert claims and all(claim.rule and claim.numbers for claim in claims)
    assert len({claim.statement for claim in claims}) == len(claims)
    module.draw(pd.DataFrame(rows), Figure())
    kept = {*module.cells("quick")[0], "end", "beta"}  # settings, no results
    lost = [{k: math.nan if isinstance(v, float) and k not in kept else v for k, v in row.items()} for row in rows]
    assert not [claim.statement for claim in module.claims(pd.DataFrame(lost)) if claim.verdict == "holds"]
    if name in SEEDED:
        seed = "trial" if "trial" in rows[0] else "seed"
        both = pd.DataFrame(rows + [{**row, seed: 99} for row in lost])
        assert {claim.verdict for claim in module.claims(both)} <= {"undecided", "does not hold"}
    for size in ("quick", "default", "long"):
        cells = module.cells(size)
        assert len({frozenset(cell) for cell in cells}) == 1  # the same settings
        assert len({json.dumps(cell, sort_keys=True) for cell in cells}) == len(cells)  # with different values


def test_verdicts():
    def verdict(holds, **numbers):
        return Claim("", "", holds, numbers).verdict

    assert verdict(True, a=1.0) == "holds" and verdict(False, a=(1.0, 0.1)) == "does not hold"
    assert verdict(None, a=1.0) == verdict(True) == verdict(True, a=math.nan) == "undecided"
    assert verdict(True, a=(1.0, math.nan)) == "undecided" and verdict(False, a=math.inf) == "does not hold"
    assert beyond(0.3, 0.2) is True and beyond(-0.3, 0.2) is False
    assert beyond(0.2, 0.2) is None and beyond(math.nan, 0.2) is None
    assert math.isnan(mean(pd.Series([1.0, math.nan]))[0]) and mean(pd.Series([2.0])) == (2.0, 0.0)


def test_a_stopped_script_continues_and_changed_code_starts_over(tmp_path, monkeypatch, capsys):
    path = tmp_path / "squares.py"
    monkeypatch.setattr(helper, "HERE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["squares.py", f"--out={tmp_path}"])
    for name in ("set_num_threads", "set_flush_denormal"):  # of the whole process
        monkeypatch.setattr(torch, name, lambda value: None)

    def start(source):
        path.write_text(source)
        module = type(sys)("__main__")
        module.__file__ = str(path)
        exec(source, vars(module))
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "__main__", module)
            main()
        return capsys.readouterr().out

    with pytest.raises(KeyboardInterrupt):
        start(SCRIPT)
    capsys.readouterr()
    (tmp_path / "squares/rows.jsonl.part").write_text('{"x": 2')  # a kill cut it off
    with pytest.raises(KeyboardInterrupt):
        start(SCRIPT.replace("sum to 5", "the sum is 5"))  # a rule makes no rows
    assert "runs 0" not in capsys.readouterr().out  # kept
    out = start(SCRIPT.replace("FACTOR = 2", "FACTOR = 3"))  # what `run` uses does
    assert [f"runs {x}" in out for x in range(3)] == [True] * 3 and "holds: squares [sum 5; sum to 5]" in out
    assert (tmp_path / "squares/figure.png").stat().st_size > 1000
    rows = [json.loads(line) for line in (tmp_path / "squares/rows.jsonl").read_text().splitlines()]
    assert [row["y"] for row in rows] == [0, 1, 4] and {row["digest"] for row in rows} == {digest(path)}
    assert missing([{"x": 0}, {"x": 7}], rows) == [{"x": 7}]


def test_a_digest_covers_the_files_that_run_uses(tmp_path, monkeypatch):
    monkeypatch.setattr(helper, "HERE", tmp_path)
    script, shared = tmp_path / "one.py", tmp_path / "shared.py"
    script.write_text("from shared import f\ndef cells(size): return []\ndef run(): yield f(1)\n")
    shared.write_text("A = 1\ndef f(x): return x + A\ndef draw(): pass\n")
    first = digest(script)
    shared.write_text('A = 1  # why\ndef f(x):\n    "Doc."\n    return x + A\ndef draw(): return 1\n')
    assert digest(script) == first
    shared.write_text("A = 2\ndef f(x): return x + A\n")
    assert digest(script) != first


def test_spikes_are_rises_above_half_as_much_again_that_end_on_the_way_back():
    spikes = import_module("b2s6_fig6").spikes
    assert spikes([10.0, 8, 6, 5, 4, 3, 2, 1], width=1) == 0
    assert spikes([4, 2, 3, 2.9, 2, 1, 1.4], width=1) == 0  # 1.5 times is not above it
    assert spikes([4, 2, 3.1, 9, 2.5, 5, 2.3, 1, 1.6], width=1) == 2  # 2.5 is not back at 1.2 · 2; 2.3 is
    assert spikes([2, 2, 2, 9, 2, 2], width=3) == 0  # the median passes over a single step


@pytest.mark.parametrize(("K", "N"), [(1, 4), (12, 1)])
def test_the_loss_of_students_is_that_of_running_the_layer_on_the_batch(K, N, monkeypatch):
    students = import_module("students")
    monkeypatch.setattr(students, "BATCHES", 1)
    T, layer = 24, students.started(K, N, 3, "normal").double()
    u = torch.randn(16, T, generator=torch.Generator().manual_seed(0)).double()
    target = torch.randn(3, T, dtype=torch.float64)
    lagged = torch.stack([torch.nn.functional.pad(u, (lag, 0))[:, :T] for lag in range(T)])
    wanted = torch.einsum("dk,kbt->btd", target, lagged)
    loss = (layer(u.unsqueeze(-1).expand(-1, -1, 3)) - wanted).square().mean((0, 1)).sum()
    difference = students.response(layer, T) - target
    own = (difference @ students.grams(T)[0].double() * difference).sum()
    torch.testing.assert_close(own, loss, rtol=1e-5, atol=0)  # the batch's Gram matrix is float32
    for a, b in zip(*(torch.autograd.grad(x, list(layer.parameters())) for x in (own, loss)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))


def test_scripts_use_public_names_only():
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("lra_ssm"):
                names = [*node.module.split("."), *(alias.name for alias in node.names)]
                assert not any(name.startswith("_") for name in names), f"{path.name}: {names}"
                assert names[1] in {"analysis", "datamodules", "layers", "models", "ops", "tasks", "width"}, path.name


def test_the_page_says_what_the_results_say():
    all_ = import_module("all")
    assert sorted(all_.NAMES) == NAMES
    for file, text in all_.pages().items():
        assert file.read_text() == text, f"{file}: run `python experiments/all.py --page`"
