"""Words by counter."""

import numpy as np

from lra_ssm.datamodules.synthetic.counter_random import _mixed, counter_random


def test_words_depend_on_seed_and_counters_alone() -> None:
    words = counter_random(3, 7, np.arange(1000))
    assert counter_random(3, 7, np.array([999, 5])).tolist() == [words[999], words[5]]
    assert words[:2].tolist() == [15626884958571197178, 8266474921873978720]
    # splitmix64's published first output for seed 0.
    assert _mixed(np.zeros(1, dtype=np.uint64))[0] == 0xE220A8397B1DCDAF
    others = [counter_random(*at, np.arange(1000)) for at in ((4, 7), (3, 8), (-1, 0))]
    assert len({int(word) for array in (words, *others) for word in array}) == 4000


def test_counters_have_their_shape_together() -> None:
    table = counter_random(1, np.arange(3)[:, None], 2, np.arange(5))
    assert table.shape == (3, 5)
    assert table[2].tolist() == counter_random(1, 2, 2, np.arange(5)).tolist()
