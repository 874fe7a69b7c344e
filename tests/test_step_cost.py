"""What is counted of a step: by hand for a linear map; for whole tasks in benchmarks/gpu_walk."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lra_ssm.runs.cost import GPUS, seconds_on
from lra_ssm.runs.step_cost import CountStep

CPU = torch.device("cpu")


@pytest.mark.parametrize("fake", [False, True])
def test_a_product_by_hand(fake: bool) -> None:
    """(128, 64) by (64, 256), float32, and its gradients, of which that of the inputs is not asked for."""
    x, w = torch.ones(128, 64), torch.ones(64, 256).requires_grad_()
    if fake:
        mode = FakeTensorMode()
        x, w = mode.from_tensor(x), mode.from_tensor(w)
    with CountStep(CPU) as counter:
        for tensor in (x, w):
            counter.track(tensor)
        held = counter.allocated
        y = x @ w
        kept = counter.allocated - held
        counter.phase = "backward"
        y.backward(torch.ones_like(y.detach()))
        del y
    cost, kb = counter.cost, 1024
    assert (held, kept) == ((32 + 64) * kb, 128 * kb)
    assert cost.total("dtype", "flops") == {torch.float32: 2 * 2 * 128 * 64 * 256}
    assert cost.total("phase", "launches") == {"forward": 1, "backward": 2}  # ones, and the product
    assert cost.total("operator", "size") == {"aten::mm": 2 * (32 + 64 + 128) * kb, "aten::ones_like": 2 * 128 * kb}
    assert cost.peak == held + (128 + 128 + 64) * kb and cost.peak_phase == "backward"
    assert counter.allocated == held + 64 * kb  # the gradient


def test_views_and_expanded_entries_cost_nothing() -> None:
    x = torch.ones(8, 1)
    with CountStep(CPU) as counter:
        x.expand(8, 1000).view(8, 10, 100).transpose(0, 1).sum()
    assert counter.cost.total("operator", "size") == {"aten::sum": 8 * 4 + 4}
    assert counter.cost.total("phase", "launches") == {"forward": 1}


def test_a_gpu_takes_the_longer_of_bytes_and_products() -> None:
    x = torch.empty(1024, 1024)
    with FakeTensorMode() as mode:
        x = mode.from_tensor(x)
        with CountStep(CPU) as counter:
            _ = x @ x, x + 1
    gpu = GPUS["H100"]
    for precision, rate in (("highest", gpu.float32), ("high", gpu.tf32)):
        expected = 2 * 1024**3 / rate + 2 * 4 * 1024**2 / gpu.bandwidth
        assert seconds_on(counter.cost, gpu, precision) == pytest.approx(expected)
