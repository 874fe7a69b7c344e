"""Every config's training step on a GPU that is not there: nothing on two devices, no waiting, and no more memory,
kernels and bytes than in bounds.json. They may fall; `python -m tests.gpu_walk.walk CONFIG…` prints what is counted.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER, ROOT = Path(__file__).parent, Path(__file__).parents[2]
BOUNDS: dict[str, dict[str, float]] = json.loads((FOLDER / "bounds.json").read_text())
BY_DEFAULT = ["mnist/s4d", "cpu/lm_imdb_hybrid"]
WAITS: dict[str, str] = {}  # a place where a step waits for the device, and why it has to
TOLERANCE = 1.001  # other versions of torch round their buffers otherwise

pytestmark = [
    pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the stand-in for CUDA is Linux's"),
]


def walked(configs: list[str], *flags: str, by: str = "walk") -> list[dict[str, Any]]:
    import torch

    if "+cpu" not in torch.__version__:
        pytest.skip("the stand-in is for a CPU build of torch")
    files = [str(ROOT / f"configs/{name}.yaml") if name != "known" else name for name in configs]
    line = [sys.executable, "-m", f"tests.gpu_walk.{by}", *flags, *files]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(text) for text in done.stdout.splitlines()]


def check(found: dict[str, Any]) -> None:
    name = found["config"]
    bound = BOUNDS[name]
    assert not found["mixed"], (name, found["mixed"])
    assert found["waits"].keys() <= WAITS.keys(), (name, found["waits"])
    assert found["peak"] <= 80e9, (name, found["peak"])
    for what, count in (
        ("launches", sum(found["launches"].values())),
        ("moved", found["moved"]),
        ("peak", found["peak"]),
    ):
        assert count <= bound[what] * TOLERANCE, (name, what, count, bound[what])


def test_two_configs_and_what_is_known_to_wait() -> None:
    known, *others = walked(["known", *BY_DEFAULT])
    assert {wait.partition(" ")[0]: count for wait, count in known["waits"].items()} == {
        "aten::index": 1, "aten::_local_scalar_dense": 1, "aten::_to_copy": 1, "aten::nonzero": 1, "aten::equal": 1,
    }  # fmt: skip
    assert len(known["mixed"]) == 1
    for found in others:
        check(found)


@pytest.mark.slow
def test_compiled_blocks_launch_fewer_kernels() -> None:
    """And the same scans; inductor lowers what it is given, for a GPU that is not there."""
    (found,) = walked(["cpu/listops200"], "--compiled")
    check(found)
    compiled = found["compiled launches"]
    assert sum(compiled.values()) < 0.7 * sum(found["launches"].values())
    assert compiled["lra_ssm::selective_scan_triton"] == 2 and compiled["fused"] > 0 and compiled["others"] < 100


@pytest.mark.slow
def test_calls_of_the_scan_are_compiled() -> None:
    """As a config makes them: forward and backward, and the config of each."""
    pytest.importorskip("triton")
    forward, backward = walked(["lra/listops/b2s6"], by="signatures")
    assert (forward["kernels"], backward["kernels"]) == (["scan"], ["gradient"])
    assert "listops/b2s6" in forward["configs"][0] and forward["TIED"] and forward["BLOCK_D"] * forward["BLOCK_N"] >= 32
    assert 10 < forward["instructions"] < backward["instructions"] and backward["stack"] < 1024


@pytest.mark.slow
def test_all_kernels_of_a_config_are_compiled_beforehand(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    assert walked(["mnist/s4d"], f"--cache={tmp_path}", by="signatures") == []
    assert {path.stem for path in tmp_path.rglob("*.cubin")} == {"s4d_kernel", "s4d_gradient_kernel"}


def test_every_config_has_its_bounds() -> None:
    configs = {
        str(path.relative_to(ROOT / "configs").with_suffix(""))
        for path in (ROOT / "configs").rglob("*.yaml")
        if "\ndata:" in path.read_text()
    }
    assert configs == BOUNDS.keys()


@pytest.mark.slow
def test_no_step_of_a_fit_waits(tmp_path: Path) -> None:
    """Of Lightning, the callbacks, the NaN stop, clipping; a step that is logged does, for what is logged."""
    flags = {"accelerator": "cuda", "devices": 1, "precision": "bf16-mixed", "gradient_clip_val": 1, "max_epochs": 1,
             "log_every_n_steps": 3, "limit_val_batches": 0}  # fmt: skip
    line = [sys.executable, "-m", "tests.gpu_walk.fit", "3,5,6", "--config", str(ROOT / "tests/tiny.yaml")]
    line += [f"--trainer.{name}={value}" for name, value in flags.items()]
    line += ["--checkpoint.every_n_steps=100", "--data.num_train=64"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, env=environment)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["code"] == 0, done.stderr[-3000:]
    between, logged = found["waits"]
    assert between == {}
    places = {
        "lra_ssm/callbacks.py",
        "lightning/fabric/utilities/apply_func.py",
    }  # the speed, and the values for the logger
    assert {wait.split()[1].partition(":")[0] for wait in logged} == places


@pytest.mark.parametrize("nth", [pytest.param(12, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.trials)])
def test_every_nth_config(nth: int) -> None:
    """By name, so that there are some of each task."""
    for found in walked(sorted(BOUNDS)[::nth]):
        check(found)
