"""Settings by dotted name: what counts, what differs, what a user means by a name."""

import inspect

import pytest

from lra_ssm.errors import InputError
from lra_ssm.results import settings
from lra_ssm.results.settings import ABSENT, counting, differing, flat, resolve, shown
from lra_ssm.runs.identity import short_names
from tests.results.made import config_of


def test_names_are_those_that_users_write():
    found = flat(config_of("lra/listops/s4d"))
    assert found["model.network.layer"] == "lra_ssm.layers.S4D" and found["model.network.layer.d_state"] == 64
    assert found["model.network.pooling"] == "lra_ssm.models.MeanPooling"  # without arguments: its path alone
    assert not any("init_args" in key for key in found)


def test_what_cannot_change_a_result_does_not_count():
    plain = config_of("lra/listops/s4d")
    for key, value in {"seed_everything": 5, "experiment": "x", "runs_dir": "y", "trainer.devices": 4,
                       "trainer.callbacks": [{"class_path": "lra_ssm.progress.Progress"}], "data.init_args.root": "/d",
                       "data.init_args.num_workers": 3, "checkpoint.every_n_steps": 7}.items():  # fmt: skip
        assert counting(config_of("lra/listops/s4d", changes={key: value})) == counting(plain), key
    for key in ("trainer.max_steps", "data.init_args.batch_size", "checkpoint.mode", "trainer.accumulate_grad_batches"):
        assert counting(config_of("lra/listops/s4d", changes={key: 7})) != counting(plain), key
    other = config_of("lra/listops/s4d", changes={"data.init_args.eval_batch_size": 7})
    assert counting(other) == counting(plain) and counting(other, ()) != counting(plain, ())


def test_names_that_do_not_count_are_those_of_the_runs():
    from lightning.pytorch import Trainer

    from lra_ssm.runs.identity import TRAINER_NEUTRAL

    given = {name: p.default for name, p in inspect.signature(Trainer).parameters.items() if p.default}
    counts = {name: value for name, value in given.items() if name not in TRAINER_NEUTRAL}
    assert settings.TRAINER_DEFAULTS == counts


def test_of_classes_that_differ_what_one_alone_has_is_not_told():
    more = {"S4D": {"layer.init": "legs"}, "B2S6": {"layer.blocks": 8}, "LRU": {"layer.blocks": 4}}
    s4d, b2s6, lru = ({"lr": 1, "layer": f"x.{name}", "layer.n": 1, **own} for name, own in more.items())
    assert differing([s4d, b2s6]) == {"layer": ["x.S4D", "x.B2S6"]}
    assert differing([s4d, b2s6, lru])["layer.blocks"] == [ABSENT, 8, 4]
    assert differing([s4d, s4d | {"lr": 1.0}]) == {}
    assert differing([{"lr": 1}, {}]) == {"lr": [1, ABSENT]}


def test_a_name_may_be_the_end_of_one():
    keys = [
        "model.optimizer.lr",
        "model.optimizer.roles.recurrent.lr",
        "model.network.dropout",
        "model.network.block.dropout",
    ]
    assert resolve("lr", keys) == resolve("optimizer.lr", keys) == "model.optimizer.lr"
    assert resolve("block.dropout", keys) == "model.network.block.dropout"
    assert resolve("seed", ["seed_everything", "data.seed"]) == "seed_everything"
    with pytest.raises(InputError, match="'dropout' may be any of model.network.block.dropout, model.network.dropout:"):
        resolve("dropout", keys)
    with pytest.raises(InputError, match="no run has a setting 'dropuot'; did you mean 'dropout'"):
        resolve("dropuot", keys)
    assert list(short_names(keys).values()) == ["lr", "recurrent.lr", "network.dropout", "block.dropout"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (1e-05, "1e-05"), (3, "3"), ("lra_ssm.layers.S4D", "S4D"), ("exp", "exp"),
     ([0.9, 0.95], "[0.9, 0.95]"), ("/data/a.Txt", "/data/a.Txt"), ({"class_path": "my.Own"}, "Own")],
)  # fmt: skip
def test_values_are_shown_short(value, text):
    assert shown(value) == text
