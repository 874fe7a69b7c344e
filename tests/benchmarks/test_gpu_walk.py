"""A training step on a GPU that is not there: nothing on two devices, no waiting, and kernels that compile."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
CONFIGS = ["mnist/s4d", "cpu/lm_imdb_hybrid", "lra/listops/b2s6", "lra/text/s4d_pretrain"]

pytestmark = pytest.mark.skipif(
    shutil.which("c++") is None or sys.platform != "linux" or "+cpu" not in torch.__version__,
    reason="the stand-in for CUDA needs a C++ compiler, Linux, and a CPU build of torch",
)


def tool(name: str, configs: list[str], *flags: str) -> list[dict[str, Any]]:
    files = [config if config == "known" else str(ROOT / f"configs/{config}.yaml") for config in configs]
    line = [sys.executable, "-m", f"benchmarks.gpu_walk.{name}", *flags, *files]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(text) for text in done.stdout.splitlines()]


def test_steps_of_configs_and_what_is_known_to_wait() -> None:
    known, *others = tool("walk", ["known", *CONFIGS])
    assert {wait.partition(" ")[0]: count for wait, count in known["waits"].items()} == {
        "aten::index": 1, "aten::_local_scalar_dense": 1, "aten::_to_copy": 1, "aten::nonzero": 1, "aten::equal": 1,
    }  # fmt: skip
    assert len(known["mixed"]) == 1
    assert [found["config"] for found in others] == CONFIGS
    for found in others:
        assert not found["mixed"] and not found["waits"], found
        assert found["launches"].keys() == {"forward", "backward", "optimizer"} and found["peak"] < 80e9


@pytest.mark.slow
def test_kernels_of_configs_are_compiled_for_hopper(tmp_path: Path) -> None:
    """Into a cache, and with the instructions of each: registers that do not fit are on the stack."""
    pytest.importorskip("triton")
    kernels = tool("signatures", CONFIGS, f"--cache={tmp_path}")
    names = {"scan_kernel", "gradient_kernel", "s4d_kernel", "s4d_gradient_kernel", "convolution_kernel",
             "convolution_gradient_kernel", "losses_kernel"}  # fmt: skip
    assert names <= {path.stem for path in tmp_path.rglob("*.cubin")} & {kernel["kernel"] for kernel in kernels}
    forward, backward = (kernel for kernel in kernels if "listops/b2s6" in kernel["configs"][0]
                         and kernel["kernel"] in ("scan_kernel", "gradient_kernel"))  # fmt: skip
    assert forward["arguments"]["SHARED_A"]
    assert 10 < forward["instructions"] < backward["instructions"] and backward["stack"] < 1024
