"""Text in the run commands: killed and gone on with; a mixture in a configuration; another tokenizer."""

import json
from pathlib import Path

import pytest
import torch

from tests.runner import fail, only_run, run, succeed
from tests.test_shape import LAYER, write

NETWORK = {
    "class_path": "mine.NextToken",
    "init_args": {"vocab_size": 257, "d_model": 4, "n_layers": 1, "layer": LAYER,
                  "block": "lra_ssm.layers.MambaBlock"},
}  # fmt: skip


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """Fits a mixture of two corpora, in ten batches of two epochs."""
    for name, count in (("a", 40), ("b", 13)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.txt").write_text(f"Some text of {name}.\n" * count)
        (tmp_path / name / "val.txt").write_text(f"Other text of {name}.\n" * 5)
    own = {name: {"source": name, "tokenizer": "bytes"} for name in "ab"}
    corpora = [{"class_path": "lra_ssm.datamodules.Corpus", "init_args": settings} for settings in own.values()]
    windows = {"epoch_windows": 20, "length": 16, "batch_size": 4}
    settings = {"corpora": corpora, "weights": [1, 2], "root": "data", **windows}
    return write(
        tmp_path,
        model={"class_path": "mine.Language", "init_args": {"network": NETWORK, "optimizer": {"lr": 0.1}}},
        data={"class_path": "lra_ssm.datamodules.Mixture", "init_args": settings},
        checkpoint={"monitor": "val/loss", "mode": "min", "every_n_steps": 2},
    )


def test_a_mixture_is_fitted_killed_and_gone_on_with(command: list[str], tmp_path: Path) -> None:
    assert run(command, tmp_path, {"KILL_AT": "train_batch_end:7"}).code == -9
    out = succeed(command, tmp_path).out
    assert "going on from" in out
    assert "an epoch has 7 of 41 windows (35.0%) of corpus (files), 13 of 14 windows (65.0%) of corpus (files)" in out
    path = only_run(tmp_path)
    record = json.loads((path / "run.json").read_text())
    assert len(record["data"]["splits"]) == 4 and record["data"]["batches"]["length"] == 16
    resumed = torch.load(path / "checkpoints/last.ckpt", weights_only=True)
    assert resumed["Mixture"]["tokenizer"]["file"] == "vocabulary.json" and resumed["global_step"] == 10
    succeed([*command, "--fresh"], tmp_path)
    whole = torch.load(path.with_name(f"{path.name}-2") / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(resumed["state_dict"][name], whole[name]) for name in whole)
    # What was learnt of bytes says nothing of characters.
    (tmp_path / "mine.yaml").write_text((tmp_path / "mine.yaml").read_text().replace("bytes", "words"))
    checkpoint = path / "checkpoints/last.ckpt"
    data = ["--data=Corpus", "--data.source=a", "--data.tokenizer=words", "--data.root=data", "--data.length=16"]
    config = ["--config", "mine.yaml", *data]
    for other in (["fit", *config, f"--init_from={checkpoint}"], ["validate", *config, f"--ckpt_path={checkpoint}"]):
        assert fail(other, tmp_path).startswith(f"{checkpoint}: the checkpoint's tokenizer (sha256 ")
    assert len(list((tmp_path / "runs/tiny").iterdir())) == 2  # nothing was begun
