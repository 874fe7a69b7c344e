"""What the bench does on a GPU alone, as far as a machine without one can tell."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lra_ssm.bench import operators, steps, tune
from lra_ssm.bench.compare import Contender, Settings, compare, errors_against
from lra_ssm.bench.measure import Effort
from lra_ssm.bench.profile import on_device
from lra_ssm.bench.scan import CHANNELS_LAST, MAMBA, S6, ScanTruth, ScanWork, scan_inputs
from lra_ssm.bench.work import BOTH, FORWARD, STEP, Shape
from lra_ssm.ops.backends import triton_call

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SHAPE = Shape(2, 16, 4, 32)
TINY = Effort(repeats=1, budget=0.1, least=1, sample=0)


def settings(device=CPU, **given):
    return Settings(device, ["eager"], 1, TINY, **given)


def test_the_sizes_are_three_widths_at_four_lengths():
    shapes = operators.shapes_of(settings(CUDA))
    assert len(shapes) == 12 and shapes[0] == Shape(8, 1536, 16, 1024) and shapes[-1] == Shape(1, 1536, 16, 65536)
    given = operators.shapes_of(settings(CUDA, batch=2, channels=16, states=4, lengths=[8]))
    assert given == [Shape(2, 16, 4, 8)]


def test_half_precision_keeps_the_small_parameters_and_stands_against_rounded_inputs():
    inputs = scan_inputs(S6, SHAPE, CHANNELS_LAST, CPU, torch.float32, half=True)
    assert {name for name, x in inputs.items() if x.dtype == torch.bfloat16} == {"u", "delta", "B", "C"}
    found = ScanWork(S6, SHAPE, "eager", CPU, half=True).build().results()
    truth = ScanTruth(S6, SHAPE, CPU, half=True).results()
    errors = errors_against(found, truth, "")
    assert 1e-5 < errors.value < 1e-2 and errors.worst_gradient < 2e-2


def test_equal_state():
    rows = operators._of_equal_state(SHAPE, settings())
    assert [(row.contender, row.mode) for row in rows][::2] == [
        (name, FORWARD) for name in ("S6", "B2S6 without bias", "B2S6")
    ]
    assert rows[0].base == "S6" and rows[-1].ratio is not None and rows[-1].extra["pairs of states"] == 2
    assert all(row.errors.value < 1e-4 for row in rows)


def test_what_is_not_installed_is_a_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "mamba_ssm", None)
    (row, _) = compare("here", {}, [Contender(MAMBA, ScanWork(S6, SHAPE, MAMBA, CPU))], settings())
    assert "mamba_ssm" in row.note and row.timing is None


def test_a_truth_that_fails_leaves_the_times(monkeypatch):
    def fail(self):
        raise torch.OutOfMemoryError("CUDA out of memory\nand more")

    monkeypatch.setattr(ScanTruth, "results", fail)
    contender = Contender("eager", ScanWork(S6, SHAPE, "eager", CPU), ScanTruth(S6, SHAPE, CPU))
    for row in compare("here", {}, [contender], settings()):
        assert row.timing is not None and row.errors is None
        assert row.extra["errors not measured:"] == "CUDA out of memory"


def test_every_published_step_in_both_precisions():
    works = steps.works(settings(CUDA))
    names = {"s4d, pathx", "mamba, retrieval", "b2s6, scifar", "b2s6, text without bias", "b2s6, image, bf16-mixed"}
    assert names <= works.keys() and len(works) == 7 * 3 * 2 + 7
    assert works["b2s6, pathx"].length == 16384 and works["b2s6, pathx"].batch == 24
    work = replace(works["b2s6, scifar"], device=CPU, batch=1, length=16, backend="auto")
    losses = []
    for mixed in (False, True):
        torch.manual_seed(0)  # of dropout
        losses.append(float(replace(work, mixed=mixed).build().calls[STEP]()))
    assert losses[0] != losses[1] and losses[1] == pytest.approx(losses[0], rel=0.05)


def test_launches_and_waits_of_a_step():
    def event(name, device="CPU", us=0.0):
        return SimpleNamespace(
            name=name, device_type=f"DeviceType.{device}", time_range=SimpleNamespace(elapsed_us=lambda: us)
        )

    events = [
        event("aten::mm"), event("cudaLaunchKernel"), event("cuLaunchKernelEx"), event("cudaStreamSynchronize"),
        event("cudaDeviceSynchronize"), event("gemm", "CUDA", 1500.0), event("scan_kernel", "CUDA", 500.0),
        event("part: scan", "CUDA", 500.0), event("Optimizer.step#AdamW.step", "CUDA", 500.0),
    ]  # fmt: skip
    assert on_device(events) == {"ms on the GPU": 2.0, "launches": 2, "waits": 1}


def test_a_cut_is_in_force_in_its_own_calls_alone(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "lra_ssm.bench.scan.run_backend", lambda case, by, **x: seen.append(triton_call.CHUNK) or x["u"]
    )
    before = triton_call.CHUNK
    calls = tune.CutWork(ScanWork(S6, SHAPE, "eager", CPU), "chunks of 32").build().calls
    assert triton_call.CHUNK == before
    calls[FORWARD]()
    assert seen == [32, 32] and triton_call.CHUNK == before
    assert all(vars(triton_call).keys() >= cut.keys() for cut in tune.CUTS.values()) and BOTH in calls


def test_the_script_goes_on_after_a_part_that_failed(tmp_path):
    script = Path(__file__).parents[2] / "docs/bench/gpu"
    environment = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "DEVICE": "cpu", "LIMIT": "0.005",
    }  # fmt: skip
    run = subprocess.run([script, tmp_path, "wide", "texts"], env=environment, capture_output=True, text=True)
    assert run.returncode == 1, run.stderr
    parts = [json.loads(line) for line in (tmp_path / "parts.jsonl").read_text().splitlines()]
    assert [part["part"] for part in parts] == ["wide", "texts"] and all(part["exit code"] == 124 for part in parts)
    table = run.stdout.splitlines()[-2:]
    assert [line.split()[:2] for line in table] == [["wide", "FAILED"], ["texts", "FAILED"]]
    assert all("out of time" in line and line in (tmp_path / "log.txt").read_text() for line in table)
    assert subprocess.run([script, tmp_path, "nothing"], capture_output=True).returncode == 2
    environment["LIMIT"] = "1"
    run = subprocess.run([script, tmp_path, "tune"], env=environment, capture_output=True, text=True)
    assert "tune                FAILED" in run.stdout and "which cpu does not run" in run.stdout.splitlines()[-1]
