"""Saved models by their names in validate, test and predict."""

import csv
import re
import shutil

import pytest
import yaml

from tests.runner import FIT, SHORT, fail, in_process, only_run, refused, succeed


def shown(out):
    """Metrics that a command printed, by name."""
    return dict(line.split() for line in out.splitlines() if line.startswith("  test/"))


@pytest.fixture(scope="module")
def pushed(trained, tmp_path_factory):
    """A folder with a finished, tested run that was pushed to `model`, and the metrics of its test."""
    folder = shutil.copytree(trained[0], tmp_path_factory.mktemp("pushed"), dirs_exist_ok=True)
    metrics = shown(succeed(["test", *FIT[1:], *SHORT], folder).out)
    assert "test/accuracy" in metrics
    succeed(["push", str(only_run(folder)), "model"], folder)
    return folder, metrics


def test_a_model_brings_its_configuration_along(pushed):
    folder, metrics = pushed
    before = (only_run(folder) / "test.json").read_bytes()
    result = succeed(["test", "model", "--trust", "tests.helpers.KillMe"], folder)
    assert shown(result.out) == metrics and "test of model" in result.out.splitlines()
    assert not {"DataLoader", "Restor", "Loaded"} & set(re.findall(r"DataLoader|Restor|Loaded", "".join(result[1:])))
    assert (only_run(folder) / "test.json").read_bytes() == before
    assert "val/accuracy" in succeed(["validate", "model", "--trust", "tests.helpers.KillMe"], folder).out


def test_a_run_is_scored_and_predicted_by_its_directory(pushed):
    folder, metrics = pushed
    run = str(only_run(folder).relative_to(folder))
    assert shown(succeed(["test", run], folder).out) == metrics
    succeed(["predict", run, "--split", "test"], folder)
    with open(only_run(folder) / "predictions-test.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 20
    shutil.copy(only_run(folder) / "checkpoints/best.ckpt", folder / "alone.ckpt")
    assert "alone.ckpt has no run's config.yaml: give --config, and --ckpt_path=alone.ckpt" in fail(
        ["test", "alone.ckpt"], folder
    )
    (folder / "empty").mkdir()
    assert "empty has no checkpoints/best.ckpt or last.ckpt" in fail(["test", "empty"], folder)


def test_with_a_configuration_it_is_a_checkpoint_as_any_other(pushed):
    folder, metrics = pushed
    command = [*FIT[1:], *SHORT, "--ckpt_path=model"]
    assert shown(succeed(["test", *command], folder).out) == metrics
    succeed(["predict", *command, "--split=test"], folder)
    with open(folder / "predictions-test.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 20
    said = fail(["test", *command, "--model.network.d_model=4"], folder)
    assert "has other shapes" in said


def test_what_its_configuration_names_is_not_imported(pushed):
    folder, _ = pushed
    said = fail(["test", "model"], folder)
    assert "its config.yaml names tests.helpers.KillMe, which is not a class that" in said and "--trust tests" in said
    shutil.copytree(folder / "model", folder / "bare")
    (folder / "bare/config.yaml").unlink()
    assert "bare has no config.yaml: give --config, and --ckpt_path=bare" in fail(["test", "bare"], folder)
    said = fail(["test", "nothing-like-it"], folder)  # of a Hub that cannot be reached it would say so
    assert "nothing-like-it: there is no such folder, and no such model comes with lra_ssm (it has " in said


LIGHTNINGS = {
    "callbacks": [
        {"class_path": f"lightning.pytorch.callbacks.{name}", "init_args": arguments}
        for name, arguments in {"EMAWeightAveraging": {}, "EarlyStopping": {"monitor": "val/loss"}, "Timer": {}}.items()
    ],
    "profiler": {"class_path": "lightning.pytorch.profilers.PassThroughProfiler"},
}


@pytest.fixture
def copy(pushed, tmp_path, monkeypatch):
    """Changes the configuration of a copy of the model that lies in the working folder, with its run's data."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pushed[0] / "model", "model")
    shutil.copytree(pushed[0] / "data", "data")

    def changed(change):
        config = yaml.safe_load((pushed[0] / "model/config.yaml").read_text())
        change(config)
        (tmp_path / "model/config.yaml").write_text(yaml.safe_dump(config))

    return changed


def test_lightnings_own_callbacks_need_no_trust(pushed, copy, capsys):
    copy(lambda config: config["trainer"].update(LIGHTNINGS))
    code, out, errors = in_process(["test", "model"], capsys)
    assert code == 0 and shown(out) == pushed[1], errors


@pytest.mark.parametrize("path", ["lra_ssm.files.os.system", "torch.hub.load", "lightning.pytorch.cli.LightningCLI"])
def test_what_others_import_or_run_is_refused_in_a_network_too(path, copy, tmp_path, capsys):
    trusting = ["test", "model", "--trust=tests.helpers.KillMe"]
    network = {"class_path": path, "init_args": {"command": "touch was-run"}}
    copy(lambda config: config["model"]["init_args"].update(network=network))
    said = refused(trusting, capsys)
    assert f"names {path}, which is not a class that lra_ssm, lightning, torch or torchmetrics has" in said
    (tmp_path / "model/vocabulary.json").write_text(f"class_path: {path}")  # jsonargparse would read it
    for file in ("vocabulary.json", "model/vocabulary.json", str(tmp_path / "model/vocabulary.json")):
        copy(lambda config, file=file: config["model"]["init_args"].update(network=file))
        assert f"its config.yaml names the file {file}: settings of another" in refused(trusting, capsys)
    assert not (tmp_path / "was-run").exists()
