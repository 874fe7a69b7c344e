"""What experiments share: cells of all combinations, rows by their settings, judgements within and beyond a spread."""

import pandas as pd
import pytest

from lra_ssm.experiments.base import Experiment, Judgement, claim, grid, only


def test_a_grid_has_every_combination_and_its_last_setting_changes_first():
    assert grid(seed=range(2), form=("a", "b")) == [
        {"seed": 0, "form": "a"},
        {"seed": 0, "form": "b"},
        {"seed": 1, "form": "a"},
        {"seed": 1, "form": "b"},
    ]


def test_claims_are_what_methods_judge_once_a_case_in_their_order():
    class Sizes(Experiment):
        @claim("rule")
        def first(self, rows):
            """a statement
            of two lines"""
            return Judgement.of(rows > 1, "")

        @claim("above {bound}", "{bound}", grid(bound=(2, 3)))
        def above(self, rows, bound):
            """more than {bound}"""
            return Judgement.of(rows > bound, "")

    assert [each[:3] for each in Sizes.claims] == [
        ("first", "a statement of two lines", "rule"),
        ("2", "more than 2", "above 2"),
        ("3", "more than 3", "above 3"),
    ]
    assert [each.judge(None, 3).outcome for each in Sizes.claims] == ["holds", "holds", "does not hold"]


def test_rows_are_chosen_by_all_settings_that_are_named():
    rows = pd.DataFrame({"d": [1, 1, 2], "norm": [True, False, False], "y": [3, 4, 5]})
    assert only(rows, d=1, norm=False)["y"].tolist() == [4]


@pytest.mark.parametrize(
    "difference, outcome",
    [(0.3, "holds"), (0.2, "undecided"), (0, "undecided"), (-0.2, "undecided"), (-0.3, "does not hold")],
)
def test_a_difference_within_the_spread_is_undecided(difference, outcome):
    assert Judgement.beyond(difference, 0.2, "") == Judgement(outcome, "")
