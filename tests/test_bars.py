"""How far something is: plain lines in a job's log (a terminal's bar is tested with fits and readers of data)."""

import io
import math

import pytest

from lra_ssm import bars
from lra_ssm.bars import Bar


@pytest.fixture
def clock(monkeypatch):
    """Seconds, which a test moves on."""
    now = [100.0]
    monkeypatch.setattr(bars.time, "monotonic", lambda: now[0])
    return now


def test_a_line_now_and_then_with_rate_and_time_left(clock):
    said = io.StringIO()
    with Bar("reading files", 100_000_000, in_bytes=True, done=40_000_000, stream=said) as bar:
        for seconds in (10, 25, 31, 45, 62):
            clock[0] = 100.0 + seconds
            bar.update(40_000_000 + 500_000 * seconds, 100_000_000)
    assert said.getvalue().splitlines() == [
        "reading files 56/100 MB, 0.5 MB/s, 89 s left",
        "reading files 71/100 MB, 0.5 MB/s, 58 s left",
    ]


def test_what_takes_over_ten_seconds_each_is_given_in_seconds(clock):
    said = io.StringIO()
    bar = Bar("fits", 105, stream=said, line_every_s=0)
    for _ in range(2):
        clock[0] += 31
        bar.advance(1)
    assert said.getvalue().splitlines()[-1] == "fits 2/105, 31 s each, 53.2 min left"


def test_what_is_soon_over_or_not_wanted_is_not_shown(clock):
    said = io.StringIO()
    with Bar("reading", 10, stream=said) as bar:
        clock[0] += 29
        bar.advance(10)
    with Bar("reading", 10, stream=said, show=False) as bar:
        clock[0] += 99
        bar.advance(5)
    assert said.getvalue() == ""


def test_the_rate_is_of_the_last_lines_and_from_the_first_where_it_tells_what_was_done_before(clock):
    said = io.StringIO()
    bar = Bar("step", math.inf, unit="steps", done=None, stream=said, line_every_s=0)
    for step in (5000, 5001, 5003):
        bar.done = step
        bar.draw(f"epoch {step % 10}", ["", "loss 2"])
        clock[0] += 1
    assert said.getvalue().splitlines() == [
        "step 5,000, epoch 0, loss 2",
        "step 5,001, epoch 1, 1.0 steps/s, loss 2",
        "step 5,003, epoch 3, 1.5 steps/s, loss 2",
    ]
