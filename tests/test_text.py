"""`lra-ssm generate` and `score`, as their users meet them; what they refuse: test_bad_input.py."""

import io
import json
import math
import sys
from pathlib import Path

import pytest
import torch
import yaml

from lra_ssm.cli import main
from lra_ssm.cli.find_model import load_language_model
from lra_ssm.datamodules.language.tokenizer import ByteTokenizer, CharacterTokenizer, train_bpe, words_of
from lra_ssm.layers import S6, LayerSpec, NetworkSpec
from lra_ssm.models import LanguageModel
from lra_ssm.text_generation import GeneratedText
from tests.models.public_mamba import hf_folder, sizes, state_spaces_folder
from tests.runner import TINY, fail, in_process, only_run, printed, refused, succeed

WORDS = words_of(["the", "cat", "sat", "on", "<unk>"])
CHARACTERS = CharacterTokenizer("abc é")
GREEDY = ["--temperature=0", "--max_new_tokens=20"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a run of two steps on the beginning of a text; its data has no test split."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "text.txt").write_text("Something to be said, again and again.\n" * 30)
    data = ["--data=Corpus", "--data.source=text.txt", "--data.splits=tail", "--data.val_fraction=0.1",
            "--data.tokenizer=characters", "--data.root=data", "--data.length=16", "--data.batch_size=4"]  # fmt: skip
    steps = ["--trainer.max_epochs=-1", "--trainer.max_steps=2", "--trainer.val_check_interval=2"]
    more = ["--model.network.vocab_size=24", "--trainer.callbacks=null"]
    succeed(["fit", "--config", str(TINY.with_name("language.yaml")), *data, *steps, *more], folder)
    return folder


def checkpoint(folder: Path, tokenizer=None, favourite=None, data=None, **network) -> str:
    """A checkpoint as a run on text writes it; favourite: tokens that it generates again and again; data: settings."""
    torch.manual_seed(0)
    size = tokenizer.vocab_size if tokenizer is not None else 9
    given = {"layer": LayerSpec(S6, d_state=4), "vocab_size": size, "d_model": 8, "n_layers": 1}
    spec = NetworkSpec(LanguageModel, **{**given, "tie_embeddings": False, **network})
    lm = spec()
    if favourite is not None:
        cycle(lm, favourite)
    weights = {f"network.{name}": value for name, value in lm.state_dict().items()}
    state = {"state_dict": weights, "hyper_parameters": {"network": spec.as_dict()}, "global_step": 1}
    if tokenizer is not None:
        made = {"file": tokenizer.file, "sha256": tokenizer.digest, "text": tokenizer.content().decode()}
        state["Corpus"] = {"tokenizer": {**made, "end_of_text": tokenizer.end_of_text}}
    if data is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump({"data": {"class_path": "any.Data", "init_args": data}}))
    torch.save(state, folder / "a.ckpt")
    return str(folder / "a.ckpt")


def cycle(lm: LanguageModel, tokens: list[int]) -> None:
    """Weights with which tokens[i] is followed by tokens[i + 1], and any other token by tokens[0]."""
    width = lm.head.weight.shape[1]
    assert len(tokens) < width
    with torch.no_grad():
        for block in lm.backbone.blocks:
            block.out_proj.weight.zero_()  # what remains is the embedding, normalized
        lm.backbone.embedding.weight.copy_(torch.eye(width)[0].expand_as(lm.backbone.embedding.weight))
        lm.head.weight.zero_()
        lm.head.weight[tokens[0], 0] = 1
        for i, (token, following) in enumerate(zip(tokens, tokens[1:], strict=False), 1):
            lm.backbone.embedding.weight[token] = torch.eye(width)[i]
            lm.head.weight[following, i] = 1


def made(arguments, capsys) -> str:
    return printed(["generate", *arguments], capsys)


def greedy(model: LanguageModel, tokenizer, ids: list[int], stop: int) -> str:
    """The text of the 20 most probable tokens after these, or of those before the stop."""
    tokens = model.generate(torch.tensor([ids]), 20)[0, len(ids) :].tolist()
    return tokenizer.decode(tokens[: tokens.index(stop)] if stop in tokens else tokens)


# --- generate: the model ---


def test_a_run_is_continued_as_the_parallel_form_has_it(folder, capsys):
    run = only_run(folder)
    model, tokenizer, before, _, (stop,) = load_language_model(str(run))
    assert model.vocab_size == tokenizer.vocab_size < 24 and not model.training and before == (stop,)
    ids = tokenizer.encode(["Some"], [False]).tokens.tolist()
    expected = f"Some{greedy(model, tokenizer, [*before, *ids], stop)}\n"
    for name in (run, run / "checkpoints/last.ckpt", run.parent):
        assert made([str(name), "--prompt=Some", *GREEDY], capsys) == expected


def test_a_saved_folder_has_its_tokenizer_or_is_given_it(tmp_path, capsys):
    name, saved = checkpoint(tmp_path, CHARACTERS), tmp_path / "saved"
    text = made([name, "--prompt=ab", *GREEDY], capsys)
    load_language_model(name).model.save_pretrained(saved, tokenizer=CHARACTERS)
    assert made([str(saved), "--prompt=ab", *GREEDY], capsys) == text
    moved = (saved / "vocabulary.json").rename(tmp_path / "vocabulary.json")
    assert made([str(saved), "--prompt=ab", *GREEDY, f"--tokenizer={moved}"], capsys) == text


def test_mambas_own_layouts_begin_with_the_prompt_only(tmp_path, capsys):
    s = sizes(vocabulary=257)
    hf_folder(tmp_path / "hf", s)
    state_spaces_folder(tmp_path / "plain", s)
    bytes_ = ["--prompt=Hi", "--tokenizer=bytes", *GREEDY]
    for name, allow in (("hf", []), ("plain", ["--allow-pickle"])):
        model = LanguageModel.from_pretrained(tmp_path / name, allow_pickle=bool(allow))
        expected = f"Hi{greedy(model, ByteTokenizer(), [*b'Hi'], 256)}\n"
        assert made([str(tmp_path / name), *bytes_, *allow], capsys) == expected
    assert "are a pickle" in refused(["generate", str(tmp_path / "plain"), *bytes_], capsys)
    # With an empty prompt transformers begins with the end-of-text token too.
    model, empty = LanguageModel.from_pretrained(tmp_path / "hf"), [str(tmp_path / "hf"), "--tokenizer=bytes", *GREEDY]
    assert made(empty, capsys) == f"{greedy(model, ByteTokenizer(), [256], 256)}\n"


def llama_tokenizer(folder: Path) -> None:
    """A tokenizer.json of words that puts <s> before every text, as Llama's does."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<unk>", "<s>", "</s>", "hello", "world", *(f"w{i}" for i in range(45))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(words[:3])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))


def test_other_tokenizers_begin_a_text_and_configurations_end_it_as_in_transformers(tmp_path, capsys):
    folder = tmp_path / "theirs"
    hf_folder(folder, sizes(vocabulary=50, tied=False))  # whose greedy tokens differ
    llama_tokenizer(folder)
    loaded = load_language_model(str(folder))
    assert loaded.before == (1,) and loaded.stop == (2,)
    expected = greedy(loaded.model, loaded.tokenizer, [1, 3, 4], 2)
    assert made([str(folder), "--prompt=hello world", *GREEDY], capsys).split() == ["hello", "world", *expected.split()]
    (tmp_path / "a.txt").write_text("hello world")
    row = printed(["score", str(folder), str(tmp_path / "a.txt")], capsys).splitlines()[1].split()
    assert float(row[-3]) == pytest.approx(-loaded.model.score(torch.tensor([[1, 3, 4]])).mean().item(), abs=6e-5)
    free = loaded.model.generate(torch.tensor([[1, 3]]), 9)[0, 2:].tolist()
    stop = next(token for token in free[2:] if token not in (*free[:2], 2))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": stop}))
    expected = loaded.tokenizer.decode(free[: free.index(stop)]).split()
    assert made([str(folder), "--prompt=hello", *GREEDY], capsys).split()[1:] == expected
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, free[1]]}))
    assert load_language_model(str(folder)).stop == (2, free[1])
    assert load_language_model(str(folder), str(folder / "tokenizer.json")).stop == (2,)  # other tokens


# --- generate: the text ---


def test_prompts_and_samples_are_shown_in_order_and_the_same_in_any_batch(tmp_path, capsys):
    name = checkpoint(tmp_path, CHARACTERS)
    code, first, errors = in_process(["generate", name, "--prompt=ab", "--temperature=3"], capsys)
    assert code == 0 and " tokens in " in errors[-1]
    seed = errors[-1].rpartition("; seed ")[2]  # which makes the same again
    assert made([name, "--prompt=ab", "--temperature=3", f"--seed={seed}"], capsys) == first
    prompts = ["--prompt=ab", "--prompt=c", "--prompt= a", "--num_samples=2", "--temperature=3"]
    out = made([name, *prompts, "--seed=1"], capsys)
    for batch_size in (1, 4):
        assert made([name, *prompts, "--seed=1", f"--batch_size={batch_size}"], capsys) == out
    assert made([name, *prompts, "--seed=2"], capsys) != out
    assert out.startswith("=== 1 of 6 ===\nab") and "\n\n=== 6 of 6 ===\n a" in out
    texts = [part.partition(" ===\n")[2] for part in out.split("\n=== ")]
    for whole, prompt in zip(texts, ("ab", "ab", "c", "c", " a", " a"), strict=True):
        assert whole.startswith(prompt)
    assert texts[0].strip() != texts[1].strip()  # samples of one prompt


CAT = WORDS.encode(["cat sat"], [False]).tokens.tolist()


@pytest.mark.parametrize(
    ("tokenizer", "favourite", "stop", "prompt", "shown", "count"),
    [
        (ByteTokenizer(), [*b"you"], "o", "none", "yo", 2),
        (ByteTokenizer(), [*b"you"], "uyo", "none", "youyo", 5),
        (ByteTokenizer(), [*b"you"], "none", "none", "youyouy", 7),
        (WORDS, [*CAT, 0], "none", "the", " cat sat\ncat sat\ncat", 7),  # a line of words ends a text only as a stop
        (WORDS, [*CAT, 0], "\n", "the", " cat sat\n", 3),
    ],
)
def test_a_stop_ends_a_text_wherever_tokens_end(tmp_path, capsys, tokenizer, favourite, stop, prompt, shown, count):
    name = checkpoint(tmp_path, tokenizer, favourite)
    options = [f"--prompt={prompt}", "--temperature=0", "--max_new_tokens=7", f"--stop={stop}", "--stop=never"]
    code, out, errors = in_process(["generate", name, *options], capsys)
    assert code == 0 and out == f"{prompt}{shown}\n"
    assert errors[-1].startswith(f"{count} tokens in ") and "seed" not in errors[-1]


def test_prompts_come_from_a_file_and_standard_input(tmp_path, capsys, monkeypatch):
    name = checkpoint(tmp_path, ByteTokenizer(), favourite=[*b"!", 256])
    (tmp_path / "p.txt").write_bytes("one\r\n\n zwölf\u2028\x0c \n".encode())
    out = made([name, "--prompt=nil", f"--prompt_file={tmp_path / 'p.txt'}", "--temperature=0"], capsys)
    assert out == "=== 1 of 3 ===\nnil!\n\n=== 2 of 3 ===\none!\n\n=== 3 of 3 ===\n zwölf\u2028\x0c !\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("é\n".encode())))
    assert made([name, "--prompt_file=-", "--temperature=0"], capsys) == "é!\n"


def test_a_terminal_shows_whole_characters_as_they_come_and_obeys_none(tmp_path, monkeypatch):
    name = checkpoint(tmp_path, ByteTokenizer(), favourite=[*"\x1bé\n".encode(), 256])
    shown, seen = io.StringIO(), []
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(shown, "flush", lambda: seen.append(shown.getvalue()))
    monkeypatch.setattr(sys, "stdout", shown)
    assert main(["generate", name, "--prompt=Hi", "--temperature=0"]) == 0
    assert list(dict.fromkeys(seen)) == ["Hi", "Hi\\x1b", "Hi\\x1bé", "Hi\\x1bé\n", "Hi\\x1bé\n\n"]


STREAM_TEXT = "Naïve  words,\n\nand “more” 🙂 of\tthem: 東京 🏳️‍🌈!"
STREAMED = {
    "bytes": ByteTokenizer(),
    "characters": CharacterTokenizer(sorted({*STREAM_TEXT})),
    "words": words_of([*dict.fromkeys(STREAM_TEXT.split()), "<unk>"]),
    "bpe": train_bpe([STREAM_TEXT], 270),
}


@pytest.mark.parametrize("kind", STREAMED)
@pytest.mark.parametrize("cut", [0, 1, 5])
def test_parts_are_whole_characters_and_make_the_text(kind, cut):
    tokenizer = STREAMED[kind]
    ids = tokenizer.encode([STREAM_TEXT], [False]).tokens.tolist()
    text = GeneratedText(tokenizer, ids[:cut])
    parts = [text.add(token) for token in ids[cut:]]
    assert text.end() == "" and text.text == "".join(parts) and text.count == len(parts)
    assert tokenizer.decode(ids[:cut]) + text.text == tokenizer.decode(ids)
    assert not any("\ufffd" in part for part in parts)


def test_bytes_that_are_no_character_are_shown_once_that_is_certain():
    text = GeneratedText(ByteTokenizer(), [65])
    assert [text.add(token) for token in (0xE2, 0x82, 66, 0xFF, 67, 0xE2)] == ["", "", "\ufffdB", "", "\ufffdC", ""]
    assert text.end() == "\ufffd" and text.end() == "" and text.add(66) == ""


# --- score ---


def rows(out: str) -> dict[str, list[float]]:
    """Tokens, bytes, loss, perplexity and bits per byte of each text."""
    head, *lines = out[: out.index("loss in nats")].splitlines()
    assert head.split("  ")[-1].strip() == "bits per byte"
    cells = [line.rsplit(maxsplit=5) for line in lines]
    return {name: [float(value.replace(",", "")) for value in values] for name, *values in cells}


def losses(name: str, data: bytes, length: int = 10_000, stride: int = 10_000) -> list[float]:
    """−log p of every byte in windows at multiples of the stride, of which all but the first score their last ones.

    The token that begins a document stands before the first byte.
    """
    lm, ids, found = load_language_model(name).model, [256, *data], []
    for begin in range(0, max(1, len(data) - length + stride), stride):
        own = (-lm.score(torch.tensor([ids[begin : begin + length + 1]])))[0].tolist()
        found += own[length - stride if begin else 0 :]
    assert len(found) == len(data)
    return found


def test_a_text_is_scored_from_its_first_token_in_three_units(tmp_path, capsys):
    name = checkpoint(tmp_path, ByteTokenizer(), data={"length": 1000, "evaluation": "windows"})
    texts = {"one.txt": "Naïve things.\n".encode(), "two.md": b"abc " * 20}
    for file, text in {**texts, "bom.txt": b"\xef\xbb\xbf" + texts["one.txt"]}.items():
        (tmp_path / file).write_bytes(text)
    files = [str(tmp_path / file) for file in (*texts, "bom.txt")]
    found = rows(printed(["score", name, *files], capsys))
    one, two = (losses(name, text) for text in texts.values())
    assert list(found) == [*files, "all"]
    for values, own in zip(found.values(), [one, two, one, one + two + one], strict=True):
        loss, size = sum(own) / len(own), len(own)
        assert values[:2] == [size, size]  # each byte is a token
        assert values[2] == pytest.approx(loss, abs=6e-5) and values[3] == pytest.approx(math.exp(loss), abs=6e-3)
        assert values[4] == pytest.approx(loss / math.log(2), abs=6e-5)


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
    name = checkpoint(tmp_path, ByteTokenizer(), data=settings)
    data = b"To be, or not to be, that is the question. " * (60 if length == 2048 else 2)
    (tmp_path / "a.txt").write_bytes(data)
    out = printed(["score", name, str(tmp_path / "a.txt")], capsys)
    assert message in out.splitlines()[-1]
    ((tokens, *_, loss, _, _),) = rows(out).values()
    assert tokens == len(data) and loss == pytest.approx(sum(losses(name, data, length, stride)) / tokens, abs=6e-5)


def test_standard_input_and_what_the_vocabulary_lacks(tmp_path, capsys, monkeypatch):
    name = checkpoint(tmp_path, CHARACTERS, data={"length": 8, "evaluation": "windows"})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("abécxyzuvw".encode())))
    out = printed(["score", name, "-"], capsys)
    assert rows(out)["standard input"][:2] == [10, 11]
    assert out.splitlines()[-1] == (
        "standard input: the vocabulary has no 'x', 'y', 'z', 'u', 'v' and 1 more; what is scored there is <unk>"
    )


def test_a_run_without_a_test_split_is_pushed_once_it_is_validated_and_its_card_names_what_runs(folder):
    run = str(only_run(folder).relative_to(folder))
    message = fail(["push", run, "./pushed"], folder)
    assert message == (
        f"{run}: validate has no complete score of its best.ckpt: lightning validate --config {run}/config.yaml, or"
        " --unfinished to push it without one"
    )
    assert "Corpus has no test split; there is nothing to score" in succeed(["test", run], folder).out
    assert "has no split test" in fail(["predict", run, "--split=test"], folder)
    succeed(["validate", "--config", f"{run}/config.yaml"], folder)
    assert "best val/loss" in succeed(["results", run], folder).out
    use = "lra-ssm validate ./pushed --data.source=PATH"
    assert succeed(["push", run, "./pushed"], folder).out == f"./pushed: use it with {use}\n"
    found = json.loads((only_run(folder) / "validate.json").read_text())["metrics"]
    card = (folder / "pushed/README.md").read_text()
    assert f"val/bits_per_byte {found['val/bits_per_byte']:.2f}, on the validation split." in card
    assert f"| validation | val/perplexity | {found['val/perplexity']:.6g} |" in card
    assert f'\n{use}\nlra-ssm generate ./pushed --prompt "The"\nlra-ssm score ./pushed FILE\n' in card
    assert "lightning fit --config config.yaml --data.source=PATH\n" in card and "lra-ssm test" not in card


def test_other_text_is_validated_in_a_saved_models_own_tokens(folder):
    """In the tokens of the model, which text of another folder would not give."""
    run = only_run(folder)
    succeed(["push", str(run), "./own", "--unfinished"], folder)
    (folder / "other").mkdir()
    for split, text in {"train": "said again\n", "val": "and again and again\n"}.items():
        (folder / f"other/{split}.txt").write_text(text * 9)
    other = ["--data.source=other", "--data.splits=auto"]
    assert "val/bits_per_byte" in succeed(["validate", "own", *other], folder).out
    assert "the checkpoint's tokenizer (sha256 " in fail(["validate", str(run), *other], folder)
    config = yaml.safe_load((folder / "own/config.yaml").read_text())
    config["data"]["init_args"]["tokenizer"] = "vocabulary.json"  # what push makes of /home/me/vocabulary.json
    (folder / "own/config.yaml").write_text(yaml.safe_dump(config))
    assert "val/bits_per_byte" in succeed(["validate", "own"], folder).out
    assert "there is no such path" in fail(["validate", "own", "--data.tokenizer=mine.json"], folder)
