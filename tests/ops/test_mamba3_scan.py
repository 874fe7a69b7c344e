"""What is particular to Mamba-3's scan: long phases, what is not finite, and that Mamba-2's is a case of it."""

import pytest
import torch

from lra_ssm.ops import mamba3_scan, ssd_scan
from tests.ops.operators import make_mamba3, mamba3_loop
from tests.ops.scan_cases import assert_close, narrowed


def test_eulers_rule_without_rotation_is_the_scan_of_mamba2():
    x = make_mamba3(R=0, optional=("D",))
    A = -torch.rand(3, dtype=torch.float64)
    y = mamba3_scan(**x | {"trapezoid": torch.ones_like(x["delta"]), "A": A.expand_as(x["delta"])})
    torch.testing.assert_close(y, ssd_scan(x["x"], x["delta"], A, x["B"], x["C"], x["D"]), rtol=1e-9, atol=1e-11)


def test_a_nan_angle_reaches_all_that_follows():
    x = make_mamba3(optional=("D",))
    x["angles"][0, 5] = torch.nan
    y, state = mamba3_scan(**x, return_last_state=True)
    assert y[0, 5:].isnan().all() and state[0, :, :2, :4].isnan().all()
    assert y[1].isfinite().all() and state[1].isfinite().all()


@pytest.mark.parametrize("decay", [1e-6, 1e3])
def test_float32(decay):
    wide = make_mamba3(L=300, decay=decay, optional=("D",))
    y, expected = mamba3_scan(**narrowed(wide)), mamba3_loop(**wide)[0]
    assert y.dtype == torch.float32
    assert_close({"y": y.double()}, {"y": expected}, 2e-5)  # phases of up to 900 radians, in float32 inputs
