"""docs/inspect.md: its example runs, it names every function, and nothing that is not there."""

import re
from pathlib import Path

import lra_ssm.analysis

TEXT = (Path(__file__).parents[2] / "docs/inspect.md").read_text()


def test_the_example_runs():
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(block, "docs/inspect.md", "exec"), found := {})
    assert found["S"].shape == (1, 100) and found["h"].shape == (1, 100, 64) and found["longest"] > 1


def test_every_function_is_named():
    rows = re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == set(lra_ssm.analysis.__all__) - {"by_lag"}
