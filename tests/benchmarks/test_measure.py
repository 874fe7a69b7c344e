"""Times on a clock that the test moves, memory of known size, and what is compared against the references."""

import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import measure
import operators
import steps
from bench import Bench, Contender, options
from lra_ssm.ops import selective_scan
from measure import Effort, Timing, errors_against, interleave, median_and_spread, peak_memory
from operators import B2S6, S6, Shape, scan

CPU, DOUBLE, SHAPE = torch.device("cpu"), torch.float64, Shape(2, 16, 3, 37)


def interleaved(calls, effort):
    """The timings on a clock that only calls move, and the order of the calls. calls: name -> seconds."""
    order = []
    started = {name: partial(order.append, name) for name in calls}
    return interleave(started, effort, lambda: sum(calls[name] for name in order)), order


def test_short_calls_are_repeated_within_a_sample_and_the_order_rotates():
    found, order = interleaved({"a": 1e-3, "b": 1.0, "c": 1.0}, Effort(repeats=3, budget=100, sample=0.005))
    assert found["a"].inner == 5 and found["b"].inner == 1
    assert found["a"].median == pytest.approx(1e-3) and found["b"].median == pytest.approx(1.0)
    assert list(found["a"].seconds) == list(found["b"].seconds) == [0, 1, 2]
    # two calls each to warm up and to see how long
    assert "".join(order).replace("aaaaa", "a") == "aabbcc" + "abc" + "bca" + "cab"


def test_a_slow_contender_takes_part_in_fewer_rounds_but_at_least_some():
    found, order = interleaved({"fast": 0.1, "slow": 2.5, "slower": 60.0}, Effort(repeats=10, budget=10, least=2))
    assert [len(timing.seconds) for timing in found.values()] == [10, 4, 2]
    assert all(0 in timing.seconds for timing in found.values())
    assert order.count("slower") == 3  # one call to warm up: a second one would take too long


def test_a_ratio_is_over_common_rounds_and_spreads_are_interquartile():
    assert median_and_spread([3.0, 1.0, 2.0, 5.0, 4.0]) == (3.0, pytest.approx(2 / 3))  # quartiles 2 and 4
    assert Timing(1, {0: 4.0, 2: 9.0}).over(Timing(1, {0: 2.0, 1: 100.0, 2: 3.0}))[0] == pytest.approx(2.5)


def test_memory_is_that_of_what_exists_at_once():
    block = partial(torch.ones, 12_000_000)  # 48 MB
    for _ in range(2):
        assert peak_memory(lambda: block() + block()[0] + 1, CPU) == pytest.approx(3 * 48, rel=1e-3)


def test_a_contender_that_cannot_run_stays_with_its_reason(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mamba_ssm", None)
    bench = Bench("here", options("", "").parse_args(["--quick", f"--out={tmp_path}", "--device=cpu"]))
    contenders = [Contender(by, partial(scan, S6, SHAPE, by, CPU)) for by in (operators.MAMBA, "eager")]
    mamba, _, eager, _ = bench.compare("here", SHAPE._asdict(), contenders)
    assert mamba.ms is None and "mamba_ssm" in mamba.note and eager.ms > 0 and eager.note is None
    assert mamba.megabytes is None and 0 < eager.megabytes < 1
    assert "mamba_ssm" in capsys.readouterr().out


def test_layouts_and_half_precision():
    last = operators.scan_inputs(S6, SHAPE, CPU, channels_last=True, half=True)
    assert last["u"].stride(1) == 1
    assert {name for name, x in last.items() if x.dtype == torch.bfloat16} == {"u", "delta", "B", "C"}
    for kind, discretization in ((S6, "euler"), (B2S6, "zoh")):
        run = partial(selective_scan, backend="reference", delta_softplus=True, discretization=discretization)
        reference = measure.prepare(run, operators.in_float64(operators.scan_inputs(kind, SHAPE, CPU))).results()
        found = scan(kind, SHAPE, "eager", CPU, DOUBLE, channels_last=True).results()
        value, gradient = errors_against(found, reference)
        assert value < 1e-9 and gradient < 1e-9
    rounded = scan(S6, SHAPE, "eager", CPU, DOUBLE, half=True).results()
    value, gradient = errors_against(scan(S6, SHAPE, "eager", CPU, half=True).results(), rounded)
    assert 1e-5 < value < 1e-2 and gradient < 2e-2


def test_steps_of_published_configs():
    found = {name: steps.sized(steps.read(steps.CONFIGS / f"{name}.yaml"), None) for name in steps.PUBLISHED}
    assert steps.size_of(found["lra/pathx/b2s6"]) == (24, 16384) and steps.size_of(found["scifar/b2s6"]) == (48, 1024)
    assert steps.size_of(steps.sized(found["lra/retrieval/b2s6"], 3, 100)) == (3, 100)
    assert steps.variant(found["lra/text/mamba"], "without bias") is None
    small = steps.sized(found["scifar/b2s6"], 2, 16, tiny=True)
    losses = []
    for config in (small, steps.variant(small, "bf16-mixed"), steps.variant(small, "without bias")):
        torch.manual_seed(0)  # of dropout
        losses.append(float(steps.step(config, CPU)[0]()))
    assert len(set(losses)) == 3 and losses == pytest.approx([losses[0]] * 3, rel=0.05)


def test_launches_and_waits_of_a_step():
    def event(name, device="CPU", us=0.0):
        time = SimpleNamespace(elapsed_us=lambda: us)
        return SimpleNamespace(name=name, device_type=f"DeviceType.{device}", time_range=time)

    events = [
        event("aten::mm"), event("cudaLaunchKernel"), event("cuLaunchKernelEx"), event("cudaStreamSynchronize"),
        event("cudaDeviceSynchronize"), event("gemm", "CUDA", 1500.0), event("scan_kernel", "CUDA", 500.0),
        event("part: scan", "CUDA", 500.0), event("Optimizer.step#AdamW.step", "CUDA", 500.0),
    ]  # fmt: skip
    assert steps.on_gpu(events) == {"ms on the GPU": 2.0, "launches": 2, "waits": 1}
