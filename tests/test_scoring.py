"""validate, test and predict: what they score, by which name, what they write, and which scores are a run's own."""

import json
import re
import shutil

import pytest
import torch
import yaml
from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from lra_ssm.cli.write_predictions import WritePredictions
from lra_ssm.datamodules import ListOps
from lra_ssm.files import sha256
from tests.runner import FIT, SHORT, only_run, printed, refused, run_here, succeed
from tests.test_callbacks import QUIET, Line
from tests.test_cli import rows_of

SCORE = [*FIT[1:], *SHORT]
TEST = ["test", *SCORE]


def shown(out):
    """Metrics that a command printed, by name."""
    return dict(line.split() for line in out.splitlines() if line.startswith("  test/"))


@pytest.fixture
def here(tested, tmp_path):
    """A copy of a finished and tested run, and its data."""
    return shutil.copytree(tested, tmp_path / "copy")


@pytest.fixture(scope="module")
def pushed(tested, tmp_path_factory):
    """A folder with a finished, tested run that was pushed to `model`, and the metrics of its test."""
    folder = shutil.copytree(tested, tmp_path_factory.mktemp("pushed"), dirs_exist_ok=True)
    metrics = shown(succeed(["test", str(only_run(folder))], folder).out)
    assert "test/accuracy" in metrics
    succeed(["push", str(only_run(folder)), "model"], folder)
    return folder, metrics


# --- what is scored and predicted ---


def test_validate_test_and_predict_take_the_runs_best_checkpoint(here):
    path, found = only_run(here), {}
    for command, name in (("validate", "val/accuracy"), ("test", "test/accuracy")):
        succeed([command, *SCORE], here)
        written = json.loads((path / f"{command}.json").read_text())
        assert written["checkpoint"].endswith("best.ckpt")
        found[name] = written["metrics"][name]
    logged = [float(row["val/accuracy"]) for row in rows_of(path / "metrics.csv") if row["val/accuracy"]]
    assert found["val/accuracy"] == pytest.approx(max(logged))
    settings = yaml.safe_load((path / "config.yaml").read_text())["data"]["init_args"]
    data = ListOps(**{**settings, "root": str(here / "data")})
    for split, examples in {"val": 20, "test": 20, "train": 16}.items():
        given = SCORE if split != "train" else [str(path)]  # by its directory, too
        out = succeed(["predict", *given, *([f"--split={split}"] if split != "val" else [])], here).out
        rows = rows_of(path / f"predictions-{split}.csv")
        right = sum(row["prediction"] == row["label"] for row in rows) / examples
        assert f"{examples} predictions, {right:.2%} of them right," in out and len(rows) == examples
        assert right == pytest.approx(found.get(f"{split}/accuracy", right))
        data.predict_split = split
        data.setup("predict")
        labels = torch.cat([batch.labels for batch in data.predict_dataloader()]).tolist()
        assert [int(row["label"]) for row in rows] == labels
        for row in rows:
            probabilities = [float(row[f"p_{i}"]) for i in range(10)]
            assert sum(probabilities) == pytest.approx(1, abs=1e-4)
            assert probabilities[int(row["prediction"])] == max(probabilities)


def test_fit_and_validate_never_touch_the_test_split(here):
    (prepared,) = (p for p in (here / "data/listops").iterdir() if p.is_dir())
    files = list(prepared.glob("test*"))
    assert files
    for file in files:  # the same size, no meaning: whoever reads it fails
        file.write_bytes(b"\xff" * file.stat().st_size)
    succeed([*FIT, *SHORT, "--fresh"], here)
    succeed(["validate", *SCORE], here)
    assert run_here(TEST, here).code > 0


@pytest.mark.parametrize("what", ["named classes", "classes", "values"])
def test_predictions_with_and_without_labels_and_names(what, tmp_path, capsys):
    class Data(LightningDataModule):
        def predict_dataloader(self):
            labels = [torch.tensor([0, 1, 2, 0, 0])] if what == "named classes" else []
            return DataLoader(TensorDataset(inputs, *labels), batch_size=2)

    inputs, model, data = torch.linspace(-1, 1, 5)[:, None], Line(), Data()
    names = ["0", "1", "2"]
    if what == "named classes":
        data.class_names = names = ["cat", "dog", "frog"]
    if what == "values":
        model.predicts_classes = False
        model.predict_step = lambda batch, batch_idx: model.linear(batch[0])
    Trainer(**QUIET, callbacks=[WritePredictions(tmp_path / "p.csv")]).predict(model, data)
    rows = rows_of(tmp_path / "p.csv")
    assert "5 predictions" in capsys.readouterr().out and [row["example"] for row in rows] == [*"01234"]
    columns = ["y0", "y1", "y2"] if what == "values" else [f"p_{name}" for name in names]
    others = {"values": [], "classes": ["prediction"], "named classes": ["label", "prediction"]}[what]
    assert list(rows[0]) == ["example", *others, *columns]
    for row, x in zip(rows, inputs, strict=True):
        expected = model.predict_step([x[None]], 0)[0]
        assert [float(row[name]) for name in columns] == pytest.approx(expected.tolist(), 1e-4)
        assert what == "values" or row["prediction"] == names[expected.argmax()]
    if what == "named classes":
        assert [row["label"] for row in rows] == ["cat", "dog", "frog", "cat", "cat"]


# --- a saved model by its name ---


def test_a_model_brings_its_configuration_along_and_with_another_is_a_checkpoint(pushed):
    folder, metrics = pushed
    before = (only_run(folder) / "test.json").read_bytes()
    result = succeed(["test", "model", "--trust", "tests.helpers.KillMe"], folder)
    assert shown(result.out) == metrics and "test of model" in result.out.splitlines()
    assert not {"DataLoader", "Restor", "Loaded"} & set(re.findall(r"DataLoader|Restor|Loaded", "".join(result[1:])))
    assert (only_run(folder) / "test.json").read_bytes() == before
    assert "val/accuracy" in succeed(["validate", "model", "--trust", "tests.helpers.KillMe"], folder).out
    command = [*SCORE, "--ckpt_path=model"]
    assert shown(succeed(["test", *command], folder).out) == metrics
    succeed(["predict", *command, "--split=test"], folder)
    assert len(rows_of(folder / "predictions-test.csv")) == 20


@pytest.fixture
def copy(pushed, tmp_path, monkeypatch):
    """Changes the configuration of a copy of the model that lies in the working folder, with its run's data."""
    monkeypatch.chdir(tmp_path)
    for name in ("model", "data"):
        shutil.copytree(pushed[0] / name, name)

    def changed(change):
        config = yaml.safe_load((pushed[0] / "model/config.yaml").read_text())
        change(config)
        (tmp_path / "model/config.yaml").write_text(yaml.safe_dump(config))

    return changed


def test_lightnings_own_callbacks_need_no_trust(pushed, copy, capsys):
    callback = {"class_path": "lightning.pytorch.callbacks.EMAWeightAveraging"}
    copy(lambda config: config["trainer"].update(callbacks=[callback]))
    assert shown(printed(["test", "model"], capsys)) == pushed[1]


@pytest.mark.parametrize("path", ["lra_ssm.files.os.system", "torch.hub.load", "lightning.pytorch.cli.LightningCLI"])
def test_what_others_import_or_run_is_refused_in_a_network_too(path, copy, tmp_path, capsys):
    message = refused(["test", "model"], capsys)
    assert "its config.yaml names tests.helpers.KillMe, which is not a class that" in message
    trusting = ["test", "model", *message.partition("give ")[2].split()]
    network = {"class_path": path, "init_args": {"command": "touch was-run"}}
    copy(lambda config: config["model"]["init_args"].update(network=network))
    message = refused(trusting, capsys)
    assert f"names {path}, which is not a class that lra_ssm, lightning, torch or torchmetrics has" in message
    copy(lambda config: config["data"].update(class_path=path))  # of a config, inspect builds the data only
    assert f"names {path}, which is not a class that" in refused(["inspect", "model"], capsys)
    (tmp_path / "model/vocabulary.json").write_text(f"class_path: {path}")  # jsonargparse would read it
    for file in ("vocabulary.json", "model/vocabulary.json", str(tmp_path / "model/vocabulary.json")):
        copy(lambda config, file=file: config["model"]["init_args"].update(network=file))
        assert f"its config.yaml names the file {file}: settings of another" in refused(trusting, capsys)
    assert not (tmp_path / "was-run").exists()


# --- which scores count as a run's own ---


def scores(folder):
    """test.json and the other scores."""
    own, others = (only_run(folder) / name for name in ("test.json", "test-others.json"))
    return json.loads(own.read_text()), json.loads(others.read_text())["others"] if others.exists() else []


def test_a_score_has_the_digest_of_its_checkpoint_and_its_batches(here):
    own, others = scores(here)
    run = only_run(here)
    best = run / "checkpoints/best.ckpt"
    assert own["checkpoint_sha256"] == sha256(best) == json.loads((run / "run.json").read_text())["best"]["sha256"]
    assert own["batches"] == own["of_batches"] == 3 and own["settings"] == {} and others == []
    assert own["began"] <= own["time"] and own["metrics"]["test/loss"] > 0
    succeed([*TEST, "--trainer.fast_dev_run=true"], here)
    assert scores(here) == (own, others)  # a trial of a few batches is not recorded


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--trainer.limit_test_batches=1"], "1 of 3 batches"),
        (["--ckpt_path={best}", "--trainer.precision=bf16-mixed"], "trainer.precision None there, 'bf16-mixed' here"),
        (["--ckpt_path={own}"], None),  # a file in another folder is not a checkpoint of the run
        (["--ckpt_path={best}", "--data.num_test=12"], "other data than the run's"),
    ],
)
def test_other_scores_do_not_count_as_the_runs(flags, why, here):
    before, run = scores(here)[0], only_run(here)
    (run / "own_checkpoints").mkdir()
    state = torch.load(run / "checkpoints/best.ckpt", weights_only=True)
    torch.save({**state, "epoch": 7}, run / "own_checkpoints/best.ckpt")
    names = {"best": run / "checkpoints/best.ckpt", "own": run / "own_checkpoints/best.ckpt"}
    out = succeed([*TEST, *(flag.format(**names) for flag in flags)], here).out
    own, others = scores(here)
    assert own == before and len(others) == (why is not None)
    assert why is None or why in others[0]["why"] and "not as the run's result" in out
