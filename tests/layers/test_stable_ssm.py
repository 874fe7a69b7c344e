"""StableSSM's real form under every f, against its equations as a loop."""

import pytest
import torch

from lra_ssm.layers import StableSSM
from lra_ssm.layers.roles import parameter_roles
from lra_ssm.ops.parameterization import FORMS
from tests.layers.cases import D, sequences
from tests.layers.test_contract import assert_same, check_equations


@pytest.mark.parametrize(("form", "time"), FORMS)
@pytest.mark.parametrize("L", [1, 31])
def test_the_real_form_equals_the_equations_under_every_f_with_every_gradient(form, time, L):
    torch.manual_seed(0)
    delta = None if time == "discrete" else 0.1
    layer = StableSSM(D, 5, "real", parameterization=form, readout="identity", delta=delta).double()
    torch.nn.init.normal_(layer.system.b)
    check_equations(layer, sequences(L=L))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_b_that_is_not_learned_stays_1_and_changes_nothing_else(bidirectional):
    learned, fixed = (
        StableSSM(D, 6, bidirectional=bidirectional, learn_B=learn_B).double() for learn_B in (True, False)
    )
    names = {name for name, _ in learned.named_parameters()}
    assert {name for name, _ in fixed.named_parameters()} == names - {"system.B"}
    assert fixed.system.B.tolist() == [[[1.0, 0.0]] * 3] * D and not fixed.system.B.requires_grad
    fixed.load_state_dict(learned.state_dict())
    x = sequences(L=63)
    assert_same(fixed(x), learned(x))
    roles = parameter_roles(fixed)
    assert roles == {name: role for name, role in parameter_roles(learned).items() if name != "system.B"}
    with pytest.raises(ValueError, match="learn_B is false; only form s4d has a B"):
        StableSSM(D, 6, "real", learn_B=False)
