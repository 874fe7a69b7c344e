"""Text in the run commands: killed and gone on with; another tokenizer."""

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
    """Fits a corpus, in ten batches of two epochs."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "train.txt").write_text("Some text of a.\n" * 19)
    (tmp_path / "a" / "val.txt").write_text("Other text of a.\n" * 5)
    settings = {"source": "a", "tokenizer": "bytes", "root": "data", "length": 16, "batch_size": 4}
    return write(
        tmp_path,
        model={"class_path": "mine.Language", "init_args": {"network": NETWORK, "optimizer": {"lr": 0.1}}},
        data={"class_path": "lra_ssm.datamodules.Corpus", "init_args": settings},
        checkpoint={"monitor": "val/loss", "mode": "min", "every_n_steps": 2},
    )


def test_text_is_fitted_killed_and_resumed(command: list[str], tmp_path: Path) -> None:
    assert run(command, tmp_path, {"KILL_AT": "train_batch_end:7"}).code == -9
    assert "going on from" in succeed(command, tmp_path).out
    path = only_run(tmp_path)
    record = json.loads((path / "run.json").read_text())
    assert record["data"]["batches"]["length"] == 16
    resumed = torch.load(path / "checkpoints/last.ckpt", weights_only=True)
    assert resumed["Corpus"]["tokenizer"]["file"] == "vocabulary.json" and resumed["global_step"] == 10
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
