"""Settings by dotted name: what differs, what a user means by a name, how a value is shown."""

import pytest

from lra_ssm.errors import InputError
from lra_ssm.results.settings import ABSENT, differing, format_value, resolve, short_names


def test_what_a_class_says_is_left_out():
    more = {"S4D": {"layer.init": "legs"}, "B2S6": {"layer.blocks": 8}, "LRU": {"layer.blocks": 4}}
    s4d, b2s6, lru = ({"lr": 1, "layer": f"x.{name}", "layer.n": 1, **own} for name, own in more.items())
    assert differing([s4d, b2s6]) == {"layer": ["x.S4D", "x.B2S6"]}
    assert differing([s4d, b2s6, lru]) == {"layer": ["x.S4D", "x.B2S6", "x.LRU"]}
    assert differing([b2s6, lru, lru | {"layer.blocks": 2}])["layer.blocks"] == [8, 4, 2]
    assert differing([{"lr": 1}, {}]) == {"lr": [1, ABSENT]} and differing([s4d, s4d]) == {}


def test_a_name_may_be_the_end_of_one():
    keys = [
        "model.optimizer.lr",
        "model.optimizer.roles.recurrent.lr",
        "model.network.dropout",
        "model.network.block.dropout",
    ]
    assert resolve("lr", keys) == resolve("optimizer.lr", keys) == "model.optimizer.lr"
    assert resolve("block.dropout", keys) == "model.network.block.dropout"
    roles = ["model.optimizer.lr", "model.optimizer.roles.recurrent.lr"]
    assert resolve("lr", roles) == roles[0] and resolve("recurrent.lr", roles) == roles[1]
    assert resolve("seed", ["seed_everything", "data.seed"]) == "seed_everything"
    with pytest.raises(InputError, match="'dropout' may be any of model.network.block.dropout, model.network.dropout:"):
        resolve("dropout", keys)
    with pytest.raises(InputError, match="no run has a setting 'dropuot'; did you mean 'dropout'"):
        resolve("dropuot", keys)
    assert list(short_names(keys).values()) == ["lr", "recurrent.lr", "network.dropout", "block.dropout"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (1e-05, "1e-05"), (1, "1"), (1.0, "1.0"), ("lra_ssm.layers.S4D", "S4D"),
     ("my.S4D", "my.S4D"), ("exp", "exp"), ([0.9, 0.95], "[0.9, 0.95]"), ("/data/a.Txt", "/data/a.Txt"),
     ({"class_path": "torch.nn.GELU"}, "GELU"), (0.12345671, "0.12345671")],
)  # fmt: skip
def test_values_are_shown_short_and_different_ones_differ(value, text):
    assert format_value(value) == text
