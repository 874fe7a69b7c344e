"""Data modules of text: loaders that resume anywhere, what a task asks of them, and the tokenizer that travels."""

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from lra_ssm.datamodules.batches import TokenBatch
from lra_ssm.datamodules.language.prepare import TextCounts
from lra_ssm.datamodules.loader import ResumableLoader
from lra_ssm.errors import InputError
from lra_ssm.runs.checks import check_tokenizer
from tests.datamodules.language.helpers import END, MadeUp
from tests.runner import in_process

LENGTHS = (5, 1, 1, 40, 3, 17, 2, 30, 1, 1)  # 101 tokens; val 50, test 69
MODES: list[dict[str, Any]] = [
    {"order": "shuffled"},
    {"order": "streams"},
    {"order": "streams", "isolate": False, "evaluation": "streams", "eval_batch_size": 3},
    {"order": "shuffled", "isolate": False, "evaluation": "sliding", "eval_stride": 3},
]


def prepared(root: Path, stage: str | None = None, **settings: Any) -> MadeUp:
    data = MadeUp(root=str(root), **settings)
    data.prepare_data()
    data.setup(stage)
    return data


def plain(batch: TokenBatch) -> list[Any]:
    return [None if part is None else part.tolist() for part in batch]


def targets(loader: ResumableLoader) -> list[int]:
    return sorted(t for batch in loader for t in batch.targets.flatten().tolist() if t != -100)


@pytest.mark.parametrize("settings", MODES, ids=str)
def test_every_token_is_a_target_once(tmp_path: Path, settings: dict[str, Any]) -> None:
    data = prepared(tmp_path, **settings)
    tokens = data.prepared.split("train")["tokens"].tolist()
    train = data.train_dataloader()
    assert targets(train) == targets(train) == sorted(tokens)
    assert targets(data.val_dataloader()) == sorted(tokens[:50])
    assert targets(data.test_dataloader()) == sorted(tokens[:69])
    for split, count in (("val", 50), ("train", 101)):
        data.predict_split = split
        data.setup("predict")
        assert targets(data.predict_dataloader()) == sorted(tokens[:count])


def test_what_a_task_asks_for(tmp_path: Path) -> None:
    data = prepared(tmp_path, order="streams", evaluation="sliding", eval_stride=2)
    assert data.end_of_text_id == END and data.manifest()["vocab_size"] == END + 1 and data.vocab_size is None
    assert data.carries_state and not data.eval_carries_state
    assert data.text_counts("train") == TextCounts(documents=10, tokens=101, bytes=404, words=101, lines=10)
    assert data.tokenizer_file.read_text() == "{}"
    assert data.tokenizer_digest == data.manifest()["tokenizer"]["sha256"]
    other = prepared(tmp_path, evaluation="streams")
    assert not other.carries_state and other.eval_carries_state
    assert plain(data.sample(3)) == [part[:3] if part else part for part in plain(next(iter(data.train_dataloader())))]
    assert plain(other.sample(2))[3] is None and other.sample(100).inputs.shape == (4, 8)
    assert data.describe() == (
        "made-up (made-up): 10 train, 5 val, 7 test documents; 101 train, 50 val, 69 test tokens; vocabulary of 300,"
        " 4.00 bytes a token; streams in windows of 8"
    )
    assert data.train_batches(2) == len(data.train_dataloader()) == 4


def test_what_decides_a_result_is_said(tmp_path: Path) -> None:
    def identity(**settings: Any) -> str:
        return json.dumps(MadeUp(root=str(tmp_path), **settings).record(), sort_keys=True)

    settings: list[dict[str, Any]] = [
        {}, {"lengths": (3, 4)}, {"length": 9}, {"batch_size": 2}, {"order": "streams"}, {"isolate": False},
        {"evaluation": "streams"}, {"evaluation": "streams", "eval_batch_size": 2}, {"shuffle_seed": 8},
        {"evaluation": "sliding", "eval_stride": 2}, {"evaluation": "sliding", "eval_stride": 3},
    ]  # fmt: skip
    assert len({identity(**s) for s in settings}) == len(settings)
    assert identity(eval_batch_size=2, num_workers=1) == identity()  # windows are the same in batches of any size
    assert not {"eval_batch_size", "length"} & set(MadeUp.neutral_settings)
    said = prepared(tmp_path, evaluation="sliding", eval_stride=2).provenance()
    assert said["tokens"] == {"train": 101, "val": 50, "test": 69} and said["examples"]["train"] == 10
    assert said["batches"] == {"length": 8, "isolate": True, "evaluation": "sliding", "eval_stride": 2}
    assert "eval_batch_size" not in said["batches"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"length": 0}, "MadeUp length 0: must be at least 1"),
        ({"batch_size": 0}, "MadeUp batch_size 0: must be at least 1"),
        ({"order": "random"}, "MadeUp order 'random': must be one of shuffled, streams"),
        ({"evaluation": "stream"}, "MadeUp evaluation 'stream': must be one of windows, streams, sliding"),
        ({"evaluation": "sliding"}, "MadeUp eval_stride None: sliding evaluation needs one from 1 to length, 8"),
        (
            {"evaluation": "sliding", "eval_stride": 9},
            "eval_stride 9: sliding evaluation needs one from 1 to length, 8",
        ),
        (
            {"evaluation": "sliding", "eval_stride": 0},
            "eval_stride 0: sliding evaluation needs one from 1 to length, 8",
        ),
        ({"eval_stride": 4}, "MadeUp eval_stride 4: is only for sliding evaluation, not 'windows'"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        MadeUp(**settings)


def test_too_few_tokens_for_the_streams(tmp_path: Path) -> None:
    for settings in ({"order": "streams", "batch_size": 102}, {"evaluation": "streams", "eval_batch_size": 51}):
        with pytest.raises(
            InputError, match=r"made-up-\w+: a split of (101|50) tokens cannot be cut into (102|51) str"
        ):
            prepared(tmp_path, "fit", **settings)
    data = prepared(tmp_path, "fit", length=60)  # two windows
    with pytest.raises(InputError, match="2 examples cannot be divided among 4 devices"):
        data.train_batches(4)
    with pytest.raises(
        InputError, match="batch_size 4: it is the global batch, so it must be a positive multiple .* 3"
    ):
        prepared(tmp_path, "fit", order="streams").train_batches(3)


def test_the_commands_show_and_verify_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def command(*arguments: str) -> tuple[int, str]:
        return in_process([*arguments, f"--root={tmp_path}"], capsys)[:2]

    folder = prepared(tmp_path).prepared_folder
    code, out = command("doctor", "--verify")
    assert code == 0 and f"made-up/{folder.name}" in out and "nothing is wrong" in out
    manifest = json.loads((folder / "manifest.json").read_text())
    parts = {"web": {"documents": 3, "tokens": 11, "bytes": 44}, "books": {"documents": 7, "tokens": 90, "bytes": 360}}
    manifest["splits"]["train"]["sources"] = parts
    (folder / "manifest.json").write_text(json.dumps(manifest))
    head, *rows = [line.split() for line in command("prepare", "--summary")[1].splitlines()]
    assert head == "dataset source tokenizer split part documents tokens share vocabulary bytes/token".split()
    assert rows[:3] == [
        ["made-up", "test", "made-up", "train", "all", "10", "101", "100.0%", "300", "4.00"],
        ["made-up", "test", "made-up", "train", "books", "7", "90", "89.1%", "300", "4.00"],
        ["made-up", "test", "made-up", "train", "web", "3", "11", "10.9%", "300", "4.00"],
    ]
    for file in ("val_tokens.npy", "tokenizer.json"):
        whole = (folder / file).read_bytes()
        (folder / file).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        code, out = command("doctor", "--verify")
        assert code == 1 and f"WRONG: {folder / file}: does not have its recorded sha256" in out.replace(
            "\n       ", " "
        )
        (folder / file).write_bytes(whole)


# -- in a Trainer --------------------------------------------------------------------------------------------------


class Model(L.LightningModule):
    """Keeps what it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(END + 1, END + 1)
        self.trained: list[Any] = []

    def training_step(self, batch: TokenBatch, _: int) -> torch.Tensor:
        self.trained.append(plain(batch))
        return torch.nn.functional.cross_entropy(self.table(batch.inputs).flatten(0, 1), batch.targets.flatten())

    def validation_step(self, batch: TokenBatch, _: int) -> None:
        assert isinstance(batch, TokenBatch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(data: Any, steps: int, folder: Path, start: Path | None = None, accumulate: int = 1) -> tuple[L.Trainer, Model]:
    L.seed_everything(0)
    trainer = L.Trainer(
        accelerator="cpu", max_steps=steps, max_epochs=-1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        accumulate_grad_batches=accumulate,
    )  # fmt: skip
    model = Model()
    trainer.fit(model, datamodule=data, ckpt_path=start, weights_only=True)
    return trainer, model


@pytest.mark.parametrize("order", ["shuffled", "streams"])
@pytest.mark.filterwarnings("ignore")
def test_a_fit_goes_on_in_the_middle_of_an_epoch(tmp_path: Path, order: Any) -> None:
    _, whole = fit(MadeUp(root=str(tmp_path), order=order), 11, tmp_path)
    trainer, begun = fit(MadeUp(root=str(tmp_path), order=order), 6, tmp_path)
    trainer.save_checkpoint(tmp_path / "middle.ckpt")
    _, resumed = fit(MadeUp(root=str(tmp_path), order=order), 11, tmp_path, tmp_path / "middle.ckpt")
    assert begun.trained + resumed.trained == whole.trained and len(whole.trained) == 11
    assert torch.equal(resumed.table.weight, whole.table.weight)
    _, accumulated = fit(MadeUp(root=str(tmp_path), order=order), 5, tmp_path, accumulate=2)
    assert accumulated.trained == whole.trained[: len(accumulated.trained)]
    with pytest.raises(InputError, match="the checkpoint was written with isolate True, this run has False"):
        fit(MadeUp(root=str(tmp_path), order=order, isolate=False), 11, tmp_path, tmp_path / "middle.ckpt")


@pytest.mark.filterwarnings("ignore")
def test_the_tokenizer_travels_with_checkpoints(tmp_path: Path) -> None:
    data, path = MadeUp(root=str(tmp_path)), tmp_path / "a.ckpt"
    trainer, _ = fit(data, 2, tmp_path)
    trainer.save_checkpoint(path)
    stored = torch.load(path, weights_only=True)["MadeUp"]["tokenizer"]
    assert stored == {
        "file": "tokenizer.json", "sha256": data.tokenizer_digest, "text": "{}", "end_of_text": data.end_of_text_id,
    }  # fmt: skip
    check_tokenizer(path, data)
    other = prepared(tmp_path, tokenizer_text='{"other": 1}')
    ours = data.tokenizer_digest[:12]
    said = rf"the checkpoint's tokenizer \(sha256 {ours}…, end of text 299\) is not the data's \({other.root}"
    with pytest.raises(InputError, match=said):
        fit(other, 4, tmp_path, path)
    with pytest.raises(InputError, match=f"^{path}: {said}"):
        check_tokenizer(path, other)
    assert len(list(islice(other.train_dataloader(), 1))) == 1
