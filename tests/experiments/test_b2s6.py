"""B2S6's experiments: what counts as a spike of a loss."""

from lra_ssm.experiments.b2s6_stability import spikes


def test_a_spike_is_a_rise_above_half_as_much_again_and_ends_on_the_way_back():
    falling = [10.0, 8, 6, 5, 4, 3, 2, 1]
    assert spikes(falling, width=1) == 0
    assert spikes([4, 2, 3, 2.9, 2, 1, 1.4], width=1) == 0  # 1.5 times is not above it
    assert spikes([4, 2, 3.1, 9, 2.5, 5, 2.3, 1, 1.6], width=1) == 2  # 2.5 is not back at 1.2 · 2; 2.3 is
    assert spikes([2, 2, 2, 9, 2, 2], width=3) == 0  # one step alone is noise: the median passes over it
