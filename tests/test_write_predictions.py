"""predictions.csv, as `predict` writes it."""

import csv

import pytest
import torch
from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from lra_ssm.cli.write_predictions import WritePredictions
from tests.test_callbacks import QUIET, Line, loader


def predicted(tmp_path, model, data):
    """The rows of the file that predictions are written to."""
    path = tmp_path / "predictions.csv"
    Trainer(**QUIET, callbacks=[WritePredictions(path)]).predict(model, data)
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("labels", [None, torch.tensor([0, 1, 2, 1, 0])])
def test_predictions_have_a_row_each(labels, tmp_path, capsys):
    inputs, model = torch.linspace(0.1, 1, 5)[:, None], Line()
    data = TensorDataset(inputs) if labels is None else TensorDataset(inputs, labels)
    rows = predicted(tmp_path, model, DataLoader(data, batch_size=2))
    said = "5 predictions in" if labels is None else "5 predictions, "
    assert len(rows) == 5 and said in capsys.readouterr().out
    assert [row.get("label") for row in rows] == ([None] * 5 if labels is None else [str(int(i)) for i in labels])
    for row, x in zip(rows, torch.linspace(0.1, 1, 5), strict=True):
        expected = model.linear(x[None]).softmax(-1)
        assert int(row["prediction"]) == expected.argmax() and float(row["p_0"]) == pytest.approx(
            expected[0].item(), 1e-4
        )


def test_predictions_call_classes_by_the_names_that_the_data_has(tmp_path):
    class Named(LightningDataModule):
        class_names = ("cat", "dog", "frog")

        def predict_dataloader(self):
            return DataLoader(
                TensorDataset(torch.linspace(-1, 1, 4)[:, None], torch.tensor([0, 1, 2, 0])), batch_size=4
            )

    rows = predicted(tmp_path, Line(), Named())
    columns = [f"p_{name}" for name in Named.class_names]
    assert list(rows[0]) == ["example", "label", "prediction", *columns]
    assert [row["label"] for row in rows] == ["cat", "dog", "frog", "cat"]
    for row in rows:
        assert f"p_{row['prediction']}" == max(columns, key=lambda column: float(row[column]))


def test_predicted_values_have_a_column_each_and_no_class(tmp_path):
    class Values(Line):
        predicts_classes = False

        def predict_step(self, batch, batch_idx):
            return self.linear(batch[0])

    rows = predicted(tmp_path, Values(), loader(5))
    assert list(rows[0])[:2] == ["example", "y0"] and "prediction" not in rows[0]
    assert [row["example"] for row in rows] == ["0", "1", "2", "3", "4"]
