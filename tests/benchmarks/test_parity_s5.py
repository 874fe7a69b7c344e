"""What S5 and minimal-LRU share, and the runs that measure their differences from our configs."""

import math

import pytest
import torch
from torch import nn

import s5_effects
from s5_family import public_schedule


def test_the_schedule_warms_up_late_and_stands_at_the_end_for_the_warm_ups_epochs():
    """Rates of two groups by step, for 3 epochs of 4 steps with one of warm-up."""
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [weights[0]], "lr": 1.0}, {"params": [weights[1]], "lr": 0.5}])
    schedule = public_schedule(optimizer, steps_per_epoch=4, epochs=3, warmup_epochs=1, lr_min=0.1)
    rates = []
    for _ in range(12):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    cosine = [0.5 * (1 + math.cos(math.pi * min(k, 8) / 8)) for k in range(4, 11)]
    shares = [1, 0.25, 0.5, 0.75, 1]
    for i, base in enumerate((1.0, 0.5)):
        expected = [base * share for share in shares] + [(base - 0.1) * share + 0.1 for share in cosine]
        assert [row[i] for row in rates] == pytest.approx(expected)


@pytest.mark.parametrize("model", ["LRU", pytest.param("S5", marks=pytest.mark.slow)])
def test_every_recipe_trains_and_no_run_is_made_twice(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(s5_effects, "EPOCHS", 2)
    monkeypatch.setattr(s5_effects, "STEPS_PER_EPOCH", 1)
    out = tmp_path / "effects.csv"
    monkeypatch.setattr("sys.argv", ["s5_effects.py", "--models", model, "--seeds", "1", "--out", str(out)])
    s5_effects.main()
    before = out.read_text()
    assert len(before.splitlines()) == 1 + len(s5_effects.RECIPES[model])
    s5_effects.main()
    assert out.read_text() == before and "our config" in capsys.readouterr().out
