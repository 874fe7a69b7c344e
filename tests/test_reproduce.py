"""`lra-ssm reproduce`: cells that are kept, claims that are judged, a list that is true."""

import json
import runpy

import pandas as pd
import pytest
import yaml
from matplotlib.figure import Figure

from lra_ssm.experiments.artifacts import artifacts, chosen
from lra_ssm.experiments.base import Experiment, Judgement, claim
from lra_ssm.experiments.run import reproduce
from lra_ssm.shipped import FOLDERS, PACKAGE
from tests.runner import printed, refused

EXPERIMENTS = [one.name for one in artifacts() if one.experiment]


class Squares(Experiment):
    stop_at = None

    @claim("to 5", "sum")
    def adds_up(self, rows):
        """squares add up"""
        return Judgement.of(rows["y"].sum() == 5, str(rows["y"].sum()))

    def cells(self, form):
        return [{"x": x} for x in range(3)]

    def run(self, cell):
        if cell["x"] == self.stop_at:
            raise KeyboardInterrupt
        return [{"y": cell["x"] ** 2}]

    def draw(self, rows, figure):
        figure.subplots().plot(rows["x"], rows["y"])


def test_a_stopped_experiment_goes_on_where_it_was(tmp_path):
    stopped = Squares()
    stopped.stop_at = 2
    with pytest.raises(KeyboardInterrupt):
        reproduce(stopped, "default", tmp_path, show=False)
    assert json.loads((tmp_path / "experiment.json").read_text())["claims"][0]["rule"] == "to 5"  # before it ran
    with (tmp_path / "cells.jsonl").open("a") as file:
        file.write('{"cell": {"x": 2}, "ro')  # a kill cut it off
    ran = []
    whole = Squares()
    whole.run = lambda cell: ran.append(cell) or [{"y": cell["x"] ** 2}]
    result = reproduce(whole, "default", tmp_path, show=False)
    assert ran == [{"x": 2}]
    assert result.judgements == {"sum": Judgement("holds", "5")}
    assert pd.read_csv(tmp_path / "results.csv").to_dict("list") == {"x": [0, 1, 2], "y": [0, 1, 4]}
    assert (tmp_path / "figure.png").stat().st_size > 1000
    found = json.loads((tmp_path / "claims.json").read_text())["claims"][0]
    assert found["outcome"] == "holds" and found["statement"] == "squares add up"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_quick_form_runs_and_judges_all_claims(name, tmp_path, monkeypatch):
    # Pictures take half of the time: small ones, whose parts nothing moves out of each other's way.
    monkeypatch.setattr("lra_ssm.experiments.run.DPI", 30)
    monkeypatch.setattr("lra_ssm.experiments.run.Figure", lambda figsize, layout: Figure(figsize))
    (one,) = chosen([name])
    experiment = one.load()
    result = reproduce(experiment, "quick", tmp_path, show=False)
    assert set(result.judgements) == {claim.name for claim in experiment.claims} and experiment.claims
    assert all(judgement.numbers for judgement in result.judgements.values())


def test_the_list_names_every_artifact_once_and_how_it_is_made(capsys):
    papers = yaml.safe_load((PACKAGE / "published.yaml").read_text())["papers"]
    found = artifacts()
    assert len({(one.paper, one.artifact) for one in found}) == len(found)
    for one in found:
        assert one.paper in papers
        assert bool(one.name) == bool(one.experiment) == bool(one.minutes)
        assert one.experiment or one.sweep or one.cannot, one
        assert not one.sweep or (FOLDERS["sweep"] / f"{one.sweep}.yaml").is_file(), one.sweep
    out = printed(["reproduce", "--list"], capsys)
    assert all(name in out for name in EXPERIMENTS)


def test_wrong_names_are_one_line(capsys):
    said = refused(["reproduce", "b2s6-fig55"], capsys)
    assert "no experiment is called 'b2s6-fig55'; did you mean 'b2s6-fig5'?" in said
    assert "name an experiment" in refused(["reproduce"], capsys)


def test_the_page_is_what_the_results_say():
    script = runpy.run_path(str(PACKAGE.parent / "docs/experiments_page.py"))
    assert script["PAGE"].read_text() == script["page"](), "run docs/experiments_page.py"
