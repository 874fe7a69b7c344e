"""`lra-ssm score`, as its user meets it; and language models that are scored and shared without a test split."""

import io
import json
import math
import sys
from pathlib import Path

import pytest
import torch
import yaml

from lra_ssm.cli.find_model import load_language_model
from lra_ssm.datamodules.language.tokenizer import ByteTokenizer, CharacterTokenizer
from tests.runner import fail, only_run, printed, refused, succeed
from tests.test_generate_command import checkpoint, fit_text

CHARACTERS = CharacterTokenizer("abc é")


def model(folder: Path, tokenizer=None, **data) -> str:
    """A checkpoint of bytes and the configuration of the run that it belongs to."""
    (folder / "config.yaml").write_text(yaml.safe_dump({"data": {"class_path": "any.Data", "init_args": data}}))
    return checkpoint(folder, tokenizer or ByteTokenizer())


def rows(out: str) -> dict[str, list[float]]:
    """Tokens, bytes, loss, perplexity and bits per byte of each text."""
    head, *lines = out[: out.index("loss in nats")].splitlines()
    assert head.split("  ")[-1].strip() == "bits per byte"
    cells = [line.rsplit(maxsplit=5) for line in lines]
    return {name: [float(value.replace(",", "")) for value in values] for name, *values in cells}


def losses(name: str, data: bytes) -> list[float]:
    """−log p of every byte, each after all that come before it and the token that begins a document."""
    return (-load_language_model(name).model.score(torch.tensor([[256, *data]])))[0].tolist()


# --- what is scored ---


def test_a_text_is_scored_from_its_first_token_in_three_units(tmp_path, capsys):
    name = model(tmp_path, length=1000, evaluation="windows")
    texts = {"one.txt": "Naïve things.\n", "two.md": "abc " * 20}
    for file, text in texts.items():
        (tmp_path / file).write_text(text)
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbf" + texts["one.txt"].encode())
    found = rows(printed(["score", name, *(str(tmp_path / file) for file in (*texts, "bom.txt"))], capsys))
    nll = {file: losses(name, text.encode()) for file, text in texts.items()}
    assert list(found) == [*(str(tmp_path / file) for file in (*texts, "bom.txt")), "all"]
    nll |= {"bom.txt": nll["one.txt"]}
    for (_, values), own in zip(found.items(), [*nll.values(), sum(nll.values(), [])], strict=True):
        loss, size = sum(own) / len(own), len(own)
        assert values[:2] == [size, size]  # each byte is a token
        assert values[2] == pytest.approx(loss, abs=6e-5) and values[3] == pytest.approx(math.exp(loss), abs=6e-3)
        assert values[4] == pytest.approx(sum(own) / size / math.log(2), abs=6e-5)


def windowed(name: str, data: bytes, length: int, stride: int) -> float:
    """The mean loss of windows at multiples of the stride, of which all but the first score their last ones."""
    lm, ids, found = load_language_model(name).model, [256, *data], []
    for begin in range(0, max(1, len(data) - length + stride), stride):
        own = (-lm.score(torch.tensor([ids[begin : begin + length + 1]])))[0].tolist()
        found += own[length - stride if begin else 0 :]
    assert len(found) == len(data)
    return sum(found) / len(found)


@pytest.mark.parametrize(
    ("settings", "length", "stride", "message"),
    [
        ({"length": 8, "evaluation": "windows"}, 8, 8, "windows of 8 tokens, each by itself"),
        ({"length": 8, "evaluation": "sliding", "eval_stride": 3}, 8, 3, "windows of 8 tokens, each 3 after"),
        ({"length": 8, "evaluation": "streams"}, 10_000, 10_000, "the state carried through each text"),
        ({}, 2048, 1024, "windows of 2,048 tokens, each 1,024 after the one before"),
    ],
)
def test_a_long_text_is_scored_as_its_run_is_validated(
    settings, length, stride, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("lra_ssm.cli.text._TOKENS", 24)  # several batches
    name = model(tmp_path, **settings)
    data = b"To be, or not to be, that is the question. " * (60 if length == 2048 else 2)
    (tmp_path / "a.txt").write_bytes(data)
    out = printed(["score", name, str(tmp_path / "a.txt")], capsys)
    assert message in out.splitlines()[-1]
    ((tokens, *_, loss, _, _),) = rows(out).values()
    assert tokens == len(data) and loss == pytest.approx(windowed(name, data, length, stride), abs=6e-5)


def test_standard_input_and_what_the_vocabulary_lacks(tmp_path, capsys, monkeypatch):
    name = model(tmp_path, CHARACTERS, length=8, evaluation="windows")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("abécxyzuvw".encode())))
    out = printed(["score", name, "-"], capsys)
    assert rows(out)["standard input"][:2] == [10, 11]
    assert out.splitlines()[-1] == (
        "standard input: the vocabulary has no 'x', 'y', 'z', 'u', 'v' and 1 more; what is scored there is <unk>"
    )


def test_what_is_not_a_text_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    contents = {"empty.txt": b"", "blank.txt": b" \n\t", "picture.png": b"text\n\x89PNG", "good.txt": b"good"}
    for file, content in contents.items():
        Path(file).write_bytes(content)
    for file, message in {
        "none.txt": "none.txt: cannot be read or written (No such file or directory)",
        "empty.txt": "empty.txt: is empty; give a text",
        "blank.txt": "blank.txt: holds only white space; give a text",
        "picture.png": "picture.png:2: is not UTF-8 (byte 0x89)",
    }.items():
        assert refused(["score", model(tmp_path), "good.txt", file], capsys) == message
    assert refused(["score", "a.ckpt"], capsys) == "give files with text, or - for standard input"


# --- a run whose data has no test split ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a run of two steps on the beginning of a text."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "text.txt").write_text("Something to be said, again and again.\n" * 30)
    data = ["--data.source=text.txt", "--data.splits=tail", "--data.val_fraction=0.1", "--data.tokenizer=characters"]
    fit_text(folder, *data, "--model.network.vocab_size=24")
    return folder


def test_it_is_pushed_once_it_is_validated_and_its_card_names_what_runs(folder, capsys):
    run = str(only_run(folder).relative_to(folder))
    message = fail(["push", run, "./pushed"], folder)
    assert message == (
        f"{run}: no complete validation of its best.ckpt is recorded (its data has no test split): lightning"
        f" validate --config {run}/config.yaml, or --unfinished to push it without a validation figure"
    )
    succeed(["validate", "--config", f"{run}/config.yaml"], folder)
    use = "lra-ssm validate ./pushed --data.source=PATH"
    assert succeed(["push", run, "./pushed"], folder).out == f"./pushed: use it with {use}\n"
    found = json.loads((only_run(folder) / "validate.json").read_text())["metrics"]
    card = (folder / "pushed/README.md").read_text()
    assert f"val/bits_per_byte {found['val/bits_per_byte']:.2f}, on the validation split." in card
    assert f"| validation | val/perplexity | {found['val/perplexity']:.6g} |" in card
    assert f'\n{use}\nlra-ssm generate ./pushed --prompt "The"\nlra-ssm score ./pushed FILE\n' in card
    assert "lightning fit --config config.yaml --data.source=PATH\n" in card and "lra-ssm test" not in card
    (folder / "other").mkdir()
    for split, text in {"train": "said again\n", "val": "and again and again\n"}.items():
        (folder / f"other/{split}.txt").write_text(text * 9)
    other = ["--data.source=other", "--data.splits=auto"]
    for name in ("pushed", run):  # in the tokens of the model, which text of another folder would not give
        out = succeed(["validate", name, *other], folder).out
        assert "the text of other in the model's own tokens: characters, " in out and "val/bits_per_byte" in out
    data = json.loads((only_run(folder) / "validate-others.json").read_text())["others"][0]["data"]
    assert data["tokenizer"]["specification"] == "the model's own" and data["source"]["source"] == "other"
    assert "own tokens" not in succeed(["validate", run], folder).out
    message = fail(["validate", run, *other, "--data.tokenizer=characters"], folder)  # which is made of that text
    assert "the checkpoint's tokenizer (sha256 " in message
    config = yaml.safe_load((folder / "pushed/config.yaml").read_text())
    config["data"]["init_args"]["tokenizer"] = "vocabulary.json"  # what push makes of /home/me/vocabulary.json
    (folder / "pushed/config.yaml").write_text(yaml.safe_dump(config))
    out = succeed(["validate", "pushed", "--data.source=text.txt"], folder).out
    assert "val/bits_per_byte" in out and "own tokens" not in out
    assert "there is no such path" in fail(["validate", "pushed", "--data.tokenizer=mine.json"], folder)


def test_a_score_of_the_text_that_is_validated_is_what_validate_says(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    text = Path("text.txt").read_text()
    tail = text[int(0.9 * len(text)) :]
    Path("tail.txt").write_text(tail)
    run = str(only_run(folder))
    value = rows(printed(["score", run, "tail.txt"], capsys))["tail.txt"]
    lm, tokenizer, *_ = load_language_model(run)
    ids = torch.tensor([[0, *tokenizer.encode([tail], [True]).tokens.tolist()]])
    last = (len(tail) // 16) * 16  # its window ends with the end of the text, which `score` leaves out
    end = -lm.score(ids[:, last:])[0, -1].item()
    record = json.loads((only_run(folder) / "run.json").read_text())["metrics"]
    whole = record["best val/loss"] * (len(tail) + 1)
    assert value[2] == pytest.approx((whole - end) / len(tail), abs=1e-4)
