"""`lra-ssm generate`, as its user meets it."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch

from lra_ssm.cli import main
from lra_ssm.cli.find_model import load_language_model
from lra_ssm.datamodules.language.tokenizer import ByteTokenizer, CharacterTokenizer, train_bpe, words_of
from lra_ssm.layers import S6, LayerSpec, NetworkSpec
from lra_ssm.models import LanguageModel
from lra_ssm.text_generation import GeneratedText
from tests.models.public_mamba import hf_folder, sizes, state_spaces_folder
from tests.runner import TINY, in_process, only_run, printed, refused, succeed

SIZES = {"d_model": 8, "n_layers": 1}
WORDS = words_of(["the", "cat", "sat", "on", "<unk>"])
CHARACTERS = CharacterTokenizer("abc é")


def fit_text(folder: Path, *data: str) -> Path:
    """The directory of a run of two steps on text."""
    steps = ["--trainer.max_epochs=-1", "--trainer.max_steps=2", "--trainer.val_check_interval=2"]
    short = ["--data.root=data", "--data.length=16", "--data.batch_size=4", "--trainer.callbacks=null"]
    command = ["fit", "--config", str(TINY.with_name("language.yaml")), "--data=Corpus", *data, *short, *steps]
    succeed(command, folder)
    return only_run(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "text").mkdir()
    for name in ("train", "val"):
        (folder / "text" / f"{name}.txt").write_text("Something to be said, naïvely.\n" * 30)
    return fit_text(folder, "--data.source=text", "--data.tokenizer=bytes")


def checkpoint(folder: Path, tokenizer=None, favourite=None, **network) -> str:
    """A checkpoint as a run on text writes it; favourite: tokens that it generates again and again."""
    torch.manual_seed(0)
    size = tokenizer.vocab_size if tokenizer is not None else 9
    given = {"layer": LayerSpec(S6, d_state=4), "vocab_size": size, **SIZES, "tie_embeddings": False, **network}
    spec = NetworkSpec(LanguageModel, **given)
    lm = spec()
    if favourite is not None:
        cycle(lm, favourite)
    weights = {f"network.{name}": value for name, value in lm.state_dict().items()}
    state = {"state_dict": weights, "hyper_parameters": {"network": spec.as_dict()}, "global_step": 1}
    if tokenizer is not None:
        made = {"file": tokenizer.file, "sha256": tokenizer.digest, "text": tokenizer.content().decode()}
        state["Corpus"] = {"tokenizer": {**made, "end_of_text": tokenizer.end_of_text}}
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


GREEDY = ["--temperature=0", "--max_new_tokens=20"]


# --- the model ---


def greedy(model: LanguageModel, tokenizer, ids: list[int], stop: int) -> str:
    """The text of the 20 most probable tokens after these, or of those before the stop."""
    tokens = model.generate(torch.tensor([ids]), 20)[0, len(ids) :].tolist()
    return tokenizer.decode(tokens[: tokens.index(stop)] if stop in tokens else tokens)


def test_a_run_is_continued_as_the_parallel_form_has_it(run, capsys):
    loaded = load_language_model(str(run))
    assert loaded.model.vocab_size == 257 and not loaded.model.training and loaded.before == (256,)
    expected, without = (
        f"Some{greedy(loaded.model, ByteTokenizer(), [*before, *b'Some'], 256)}\n" for before in ((256,), ())
    )
    for name in (run, run / "checkpoints/last.ckpt", run.parent):
        assert made([str(name), "--prompt=Some", *GREEDY], capsys) == expected
    assert made([str(run), "--prompt=Some", *GREEDY, "--begin_document=false"], capsys) == without


def test_a_saved_folder_with_its_tokenizer(tmp_path, capsys):
    model, *_ = load_language_model(checkpoint(tmp_path, CHARACTERS))
    saved = tmp_path / "saved"
    model.save_pretrained(saved, tokenizer=CHARACTERS)
    text = made([str(saved), "--prompt=ab", *GREEDY], capsys)
    assert text == made([str(tmp_path / "a.ckpt"), "--prompt=ab", *GREEDY], capsys)
    (saved / "vocabulary.json").unlink()
    message = refused(["generate", str(saved)], capsys)
    assert message.startswith(f"{saved}: has no tokenizer; give one, such as --tokenizer=")
    CHARACTERS.save(tmp_path)
    assert made([str(saved), "--prompt=ab", *GREEDY, f"--tokenizer={tmp_path / 'vocabulary.json'}"], capsys) == text
    message = refused(["generate", str(tmp_path / "a.ckpt"), "--tokenizer=bytes"], capsys)
    assert message.endswith("a.ckpt: was trained with the tokenizer that it comes with: leave --tokenizer out")


def test_mambas_own_layouts_begin_with_the_prompt_only(tmp_path, capsys):
    s = sizes(vocabulary=257)
    hf_folder(tmp_path / "hf", s)
    state_spaces_folder(tmp_path / "plain", s)
    bytes_ = ["--prompt=Hi", "--tokenizer=bytes", *GREEDY]
    for name, allow in (("hf", []), ("plain", ["--allow-pickle"])):
        model = LanguageModel.from_pretrained(tmp_path / name, allow_pickle=bool(allow))
        expected = f"Hi{greedy(model, ByteTokenizer(), [*b'Hi'], 256)}\n"
        assert made([str(tmp_path / name), *bytes_, *allow], capsys) == expected
        assert made([str(tmp_path / name), *bytes_, *allow, "--begin_document=true"], capsys) != expected
    assert "are a pickle" in refused(["generate", str(tmp_path / "plain"), *bytes_], capsys)
    # With an empty prompt transformers begins with the end-of-text token too.
    empty = [str(tmp_path / "hf"), "--tokenizer=bytes", *GREEDY]
    assert made(empty, capsys) == made([*empty, "--begin_document=true"], capsys)
    message = refused(["generate", str(tmp_path / "hf"), "--tokenizer=words"], capsys)
    assert "--tokenizer=words is made from a corpus" in message


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
    hf_folder(folder, sizes(vocabulary=50))
    llama_tokenizer(folder)
    loaded = load_language_model(str(folder))
    assert loaded.before == (1,) and loaded.stop == (2,)
    expected = greedy(loaded.model, loaded.tokenizer, [1, 3, 4], 2)
    prompt = ["--prompt=hello world", *GREEDY]
    assert made([str(folder), *prompt], capsys).split() == ["hello", "world", *expected.split()]
    (tmp_path / "a.txt").write_text("hello world")
    row = printed(["score", str(folder), str(tmp_path / "a.txt")], capsys).splitlines()[1].split()
    assert float(row[-3]) == pytest.approx(-loaded.model.score(torch.tensor([[1, 3, 4]])).mean().item(), abs=6e-5)
    free = loaded.model.generate(torch.tensor([[1, 3]]), 9)[0, 2:].tolist()
    stop = next(token for token in free[2:] if token not in (*free[:2], 2))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": stop}))
    expected = load_language_model(str(folder)).tokenizer.decode(free[: free.index(stop)]).split()
    assert made([str(folder), "--prompt=hello", *GREEDY], capsys).split()[1:] == expected
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, free[1]]}))
    assert load_language_model(str(folder)).stop == (2, free[1])
    assert load_language_model(str(folder), str(folder / "tokenizer.json")).stop == (2,)  # other tokens


# --- the text ---


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


@pytest.mark.parametrize("stop, shown", [("o", "yo"), ("ou", "you"), ("uyo", "youyo"), ("none", "youyouy")])
def test_a_stop_ends_a_text_wherever_tokens_end(tmp_path, capsys, stop, shown):
    name = checkpoint(tmp_path, ByteTokenizer(), favourite=[*b"you"])
    options = ["--prompt=none", "--temperature=0", "--max_new_tokens=7", f"--stop={stop}", "--stop=never"]
    code, out, errors = in_process(["generate", name, *options], capsys)
    assert out == f"none{shown}\n"
    assert errors[-1].startswith(f"{len(shown)} tokens in ") and "seed" not in errors[-1]


def test_lines_of_words_end_a_text_only_as_a_stop(tmp_path, capsys):
    name = checkpoint(tmp_path, WORDS, favourite=[*WORDS.encode(["cat sat"], [False]).tokens.tolist(), 0])
    options = ["--prompt=the", "--temperature=0", "--max_new_tokens=5", "--begin_document=false"]
    assert made([name, *options], capsys) == "the cat sat\ncat sat\n"
    assert made([name, *options, "--stop=\n"], capsys) == "the cat sat\n\n"


def test_prompts_come_from_a_file_and_standard_input(tmp_path, capsys, monkeypatch):
    name = checkpoint(tmp_path, ByteTokenizer(), favourite=[*b"!", 256])
    (tmp_path / "p.txt").write_bytes("one\r\n\n zwölf\u2028\x0c \n".encode())
    out = made([name, "--prompt=nil", f"--prompt_file={tmp_path / 'p.txt'}", "--temperature=0"], capsys)
    assert out == "=== 1 of 3 ===\nnil!\n\n=== 2 of 3 ===\none!\n\n=== 3 of 3 ===\n zwölf\u2028\x0c !\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("é\n".encode())))
    assert made([name, "--prompt_file=-", "--temperature=0"], capsys) == "é!\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_whole_characters_as_they_come_and_obeys_none(tmp_path, monkeypatch):
    name = checkpoint(tmp_path, ByteTokenizer(), favourite=[*"\x1bé\n".encode(), 256])
    shown, seen = Terminal(), []
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
    class Counting(ByteTokenizer):
        most = 0

        def decode(self, ids):
            self.most = max(self.most, len(ids))
            return super().decode(ids)

    text = GeneratedText(tokenizer := Counting(), [65])
    assert [text.add(token) for token in (0xE2, 0x82, 66, 0xFF, 67, 0xE2)] == ["", "", "\ufffdB", "", "\ufffdC", ""]
    assert text.end() == "\ufffd" and text.end() == "" and text.add(66) == ""
    text = GeneratedText(tokenizer, [65])
    for token in "some € text ".encode() * 100:
        text.add(token)
    assert tokenizer.most < 8  # a token costs the same however long the text is


# --- what is refused ---


def test_what_is_not_a_language_model_is_one_line(trained, tmp_path, capsys):
    run = only_run(trained[0])
    for name in ("one", "two"):
        (tmp_path / "runs" / name / "checkpoints").mkdir(parents=True)
    empty, without, small = (tmp_path / name for name in ("empty", "without", "small"))
    for folder in (empty, without, small):
        folder.mkdir()
    for name, message in {
        str(run): f"{run}/checkpoints/best.ckpt: is not a language model; its network is a Classifier",
        str(tmp_path / "no.ckpt"): f"checkpoint {tmp_path}/no.ckpt does not exist",
        str(empty): f"{empty} has no checkpoints/best.ckpt",
        str(tmp_path / "runs"): f"{tmp_path}/runs holds 2 runs: give one of them, such as {tmp_path}/runs/two",
        "runs/lm/quickstart/38722f686f": "runs/lm/quickstart/38722f686f: there is no such folder",
        checkpoint(without): f"{without}/a.ckpt: has no tokenizer",
        checkpoint(small, CHARACTERS, vocab_size=3): f"{small}/a.ckpt: its network has 3 tokens, the tokenizer 7",
    }.items():
        assert refused(["generate", name], capsys).startswith(message)


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "message"),
    [
        (CHARACTERS, "xyzaxuvw", "prompt 2: the model's vocabulary has no 'x', 'y', 'z', 'u', 'v' and 1 more"),
        (WORDS, "the dog <unk> the dog", "prompt 2: the model's vocabulary has no 'dog'"),
        (ByteTokenizer(), "\udcff", "the text holds U+DCFF, half of a surrogate pair"),
    ],
)
def test_a_prompt_that_the_vocabulary_lacks_is_one_line(tokenizer, prompt, message, tmp_path, capsys):
    name = checkpoint(tmp_path, tokenizer)
    assert refused(["generate", name, "--prompt=", f"--prompt={prompt}"], capsys).startswith(message)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--temperature=-1", "--temperature is -1.0; it must be at least 0"),
        ("--seed=-1", "--seed is -1; it must be 0 to 4294967295"),
        ("--max_new_tokens=0", "--max-new-tokens: "),
        ("--stop=", "--stop is empty"),
        ("--device=nonsense", "--device nonsense: there is no such device here"),
        ("--prompt_file=blank.txt", "--prompt-file blank.txt: has no prompt"),
        ("--prompt_file=latin.txt", "--prompt-file latin.txt: is not UTF-8, at byte 1"),
    ],
)
def test_invalid_options_are_one_line_before_a_model_is_read(option, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("blank.txt").write_text("\n \n")
    Path("latin.txt").write_bytes(b"a\xe9")
    assert refused(["generate", "no.ckpt", option], capsys).startswith(message)
