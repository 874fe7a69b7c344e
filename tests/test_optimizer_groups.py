"""Parameters, learning rate, weight decay and algorithm of every optimizer group of every shipped config."""

import pytest

from tests.optimizer_groups import TABLE, files, groups, name_of


def test_the_table_has_every_config_and_no_other():
    assert {line.partition(" | ")[0] for line in TABLE.read_text().splitlines()} == {name_of(path) for path in files()}


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_groups_are_those_of_the_table(path):
    lines = TABLE.read_text().splitlines()
    assert list(groups(path)) == [line for line in lines if line.startswith(f"{name_of(path)} | ")]
