"""The interleaved timer on clocks that do as they are told."""

import time

import pytest

from lra_ssm.bench.measure import (
    Effort,
    Timing,
    WallTimer,
    core_seconds,
    interleave,
    median_and_spread,
    ratio,
    waiting_share,
)


class Clock:
    """Time passes only where a call says so; `slowdown` says how slow the machine is at the moment."""

    def __init__(self, slowdown=lambda now: 1.0):
        self.now, self.slowdown, self.order = 0.0, slowdown, []

    def call(self, name, seconds):
        def run():
            self.order.append(name)
            self.now += seconds * self.slowdown(self.now)

        return run

    def timer(self):
        return WallTimer(lambda: self.now)


def test_median_and_spread():
    assert median_and_spread([3.0, 1.0, 2.0, 5.0, 4.0]) == (3.0, pytest.approx(2 / 3))  # quartiles 2 and 4
    assert median_and_spread([7.0]) == (7.0, 0.0)


def test_times_are_per_call_and_short_calls_are_repeated_within_a_sample():
    clock = Clock()
    calls = {"short": clock.call("short", 1e-3), "long": clock.call("long", 1.0)}
    found = interleave(calls, clock.timer(), Effort(repeats=4, budget=100, sample=0.005))
    assert found["short"].inner == 5 and found["long"].inner == 1
    assert found["short"].median == pytest.approx(1e-3) and found["long"].median == pytest.approx(1.0)
    assert list(found["short"].seconds) == list(found["long"].seconds) == [0, 1, 2, 3]


def test_every_round_has_everybody_in_an_order_that_rotates():
    clock = Clock()
    interleave({n: clock.call(n, 1.0) for n in "abc"}, clock.timer(), Effort(repeats=3, budget=100))
    assert "".join(clock.order) == "aabbcc" + "abc" + "bca" + "cab"  # two calls each to warm up and to see how long


def test_a_slow_contender_takes_part_in_fewer_rounds_but_at_least_some():
    clock = Clock()
    calls = {"fast": clock.call("fast", 0.1), "slow": clock.call("slow", 2.5), "slower": clock.call("slower", 60.0)}
    found = interleave(calls, clock.timer(), Effort(repeats=10, budget=10, least=2))
    assert [len(found[n].seconds) for n in calls] == [10, 4, 2]
    assert all(0 in timing.seconds for timing in found.values())
    assert clock.order.count("slower") == 3  # one call to warm up, for a second one would only cost


def test_a_machine_that_slows_down_changes_times_but_not_ratios():
    clock = Clock(slowdown=lambda now: 1.0 if now < 40 else 3.0)
    calls = {"one": clock.call("one", 1.0), "two": clock.call("two", 2.0)}
    found = interleave(calls, clock.timer(), Effort(repeats=20, budget=1000))
    assert found["one"].spread > 0.5
    middle, spread = ratio(found["two"], found["one"])
    assert middle == pytest.approx(2.0) and spread < 0.01


def test_a_ratio_is_taken_over_common_rounds_alone():
    a, b = Timing({0: 4.0, 2: 9.0}, 1), Timing({0: 2.0, 1: 100.0, 2: 3.0}, 1)
    assert ratio(a, b)[0] == pytest.approx(2.5)


def test_ticks_come_between_samples():
    clock, ticks = Clock(), []
    interleave({n: clock.call(n, 1.0) for n in "ab"}, clock.timer(), Effort(repeats=2), lambda: ticks.append(clock.now))
    assert len(ticks) == 2 + 4 and ticks == sorted(ticks)


def test_the_share_of_time_without_a_core():
    assert waiting_share((1.0, 2.0), (4.0, 3.0)) == 0.25
    assert waiting_share((4.0, 3.0), (4.0, 3.0)) is None  # nothing ran
    assert waiting_share(None, (1.0, 1.0)) is None  # the system does not count
    before = core_seconds()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    after = core_seconds()
    if before is not None:
        assert after[0] - before[0] > 0.04 and after[1] >= before[1]
