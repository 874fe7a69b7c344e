"""Which examples are chosen for trying out."""

import numpy as np

from lra_ssm.datamodules.storage.selection import choose, random_keys, text_keys


def test_choosing_is_balanced_and_nested() -> None:
    labels = np.array([0] * 50 + [1] * 30 + [2] * 4)
    keys = random_keys(len(labels), 3)
    before: set[int] = set()
    for count in (3, 12, 30, 84, 100):
        chosen = choose(labels, count, keys)
        assert (np.diff(chosen) > 0).all() and len(chosen) == min(count, 84) and before <= set(chosen.tolist())
        before = set(chosen.tolist())
    assert np.bincount(labels[choose(labels, 12, keys)]).tolist() == [4, 4, 4]
    assert np.bincount(labels[choose(labels, 30, keys)]).tolist() == [13, 13, 4]
    assert choose(labels, 30, keys).tolist() != choose(labels, 30, random_keys(len(labels), 4)).tolist()
    assert len(choose(labels[:0], 5, keys[:0])) == 0
    assert text_keys(["a", "b", "a"], 1)[0] == text_keys(["a"], 1)[0] != text_keys(["a"], 2)[0]
