"""`lra-ssm generate` continues texts with a language model; `lra-ssm score` says how well it predicts them."""

from __future__ import annotations

import io
import math
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jsonargparse.typing import PositiveInt

from lra_ssm.errors import InputError, printable, to_one_line

if TYPE_CHECKING:
    import torch

    from lra_ssm.cli.find_model import LoadedLanguageModel
    from lra_ssm.datamodules.language.tokenizer import TextTokenizer
    from lra_ssm.datamodules.language.windows import TokenWindows
    from lra_ssm.models import LanguageModel

_LENGTH = 2048  # tokens of a window for a model without a run: Mamba's public models were trained on it
_TOKENS = 8192  # scored at a time


# --- the model and the texts ---


def _device(name: str | None) -> torch.device:
    """Return the device that --device names. Raises InputError if it does not exist here."""
    import torch

    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch was built without CUDA
        raise InputError(f"--device={name}: there is no such device here: {to_one_line(str(error))}") from error
    return device


def _read_input(file: str) -> tuple[str, bytes]:
    """Return a file's name for messages and its bytes; - is standard input."""
    return ("standard input", sys.stdin.buffer.read()) if file == "-" else (file, Path(file).read_bytes())


def _unknown(texts: Iterable[str], tokenizer: TextTokenizer) -> str:
    """Return the first five words or characters that a tokenizer does not know; empty if it knows all."""
    unknown = list(dict.fromkeys(word for text in texts for word in tokenizer.unknown(text)))
    more = f" and {len(unknown) - 5:,} more" if len(unknown) > 5 else ""
    return ", ".join(map(repr, unknown[:5])) + more


# --- generate ---


def generate(
    model: str,
    *,
    prompt: list[str] = [],  # noqa: B006
    prompt_file: str | None = None,
    num_samples: PositiveInt = 1,
    max_new_tokens: PositiveInt = 100,
    temperature: float = 0.8,
    top_k: int = 50,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    stop: list[str] = [],  # noqa: B006
    batch_size: PositiveInt = 8,
    device: str | None = None,
    tokenizer: str | None = None,
    trust: list[str] = [],  # noqa: B006
    allow_pickle: bool = False,
) -> int:
    """Continue prompts with a language model, token by token, in memory that does not grow with the text.

    A text ends where the model ends it. Without a prompt it begins a document. --temperature and --top-k have litgpt's
    defaults; those of transformers are 1.0 and 50.

    Args:
        prompt: a text; may be repeated
        prompt_file: more prompts, one per line; - for standard input
        num_samples: texts for each prompt
        max_new_tokens: of each text
        temperature: divides the logits; 0 takes the most probable token
        top_k: draw from the K most probable tokens; 0 for all
        top_p: draw from the most probable tokens that sum to P; 1 for all
        repetition_penalty: above 1, tokens of the text so far become less probable
        seed: of what is drawn; default: another one each time, which is printed
        stop: end a text after this; may be repeated
        batch_size: prompts at a time

    Examples:
        lra-ssm generate runs/lm/quickstart/38722f686f --prompt "The list of"
        lra-ssm generate runs/lm/quickstart/38722f686f --prompt "One" --prompt "Two" --temperature=0 --stop "."
        lra-ssm generate state-spaces/mamba-130m-hf --prompt-file=prompts.txt --top-p=0.9 --seed=1 > texts.txt
        lra-ssm generate state-spaces/mamba-130m --allow-pickle --tokenizer=EleutherAI/gpt-neox-20b --prompt "Once"
    """
    if "" in stop:
        raise InputError("--stop is empty: every text would end at once")
    prompts = [*prompt, *(_read_prompts(prompt_file) if prompt_file else [])] or [""]
    from lra_ssm.cli.find_model import load_language_model
    from lra_ssm.models.generation import MAX_SEED, check_settings, row_seeds
    from lra_ssm.text_generation import continue_prompts

    penalty, top_p_ = repetition_penalty, None if top_p == 1 else top_p
    settings: Any = dict(temperature=temperature, top_k=top_k or None, top_p=top_p_, repetition_penalty=penalty)
    base_seed = random.SystemRandom().randint(0, MAX_SEED) if seed is None else seed
    try:
        check_settings(**settings)
        seeds = row_seeds(base_seed, len(prompts) * num_samples)  # so that a text does not depend on its batch
    except ValueError as error:
        raise InputError(f"--{str(error).replace('_', '-', 1)}") from error
    place = _device(device)
    loaded = load_language_model(model, tokenizer, allow_pickle, trust)
    for number, prompt_text in enumerate(prompts, 1):
        if unknown := _unknown([prompt_text], loaded.tokenizer):
            raise InputError(f"prompt {number}: the model's vocabulary has no {unknown}")
    texts = [text for text in prompts for _ in range(num_samples)]
    # An empty prompt begins with the end-of-text token, as in transformers.
    encoded = [[*loaded.before, *loaded.tokenizer.encode([text], [False]).tokens.tolist()] for text in texts]
    ids = [each or [loaded.tokenizer.end_of_text] for each in encoded]
    loaded.model.to(place)
    live, began, num_tokens = len(texts) == 1, time.perf_counter(), 0
    if live:
        _show(texts[0])
    for begin in range(0, len(texts), batch_size):
        batch = slice(begin, begin + batch_size)
        continued = continue_prompts(
            loaded.model, loaded.tokenizer, ids[batch], max_new_tokens, end_tokens=loaded.stop, stops=stop,
            show=_show if live else None, seed=seeds[batch], **settings,
        )  # fmt: skip
        num_tokens += sum(text.count for text in continued)
        for number, (prompt_text, text) in enumerate(zip(texts[batch], continued, strict=True), begin + 1):
            if not live:
                _show(f"{chr(10) * (number > 1)}=== {number} of {len(texts)} ===\n{prompt_text}{text.text}")
            _show("\n")
    seconds = time.perf_counter() - began
    speed = f"{num_tokens:,} tokens in {seconds:.2f} s ({num_tokens / seconds:,.0f} tokens/s)"
    print(f"{speed}; seed {base_seed}" if temperature else speed, file=sys.stderr)
    return 0


def _read_prompts(file: str) -> list[str]:
    """Return the lines with text of a file in UTF-8."""
    text = _read_input(file)[1].decode("utf-8-sig")
    return [line.removesuffix("\r") for line in text.split("\n") if line.strip()]


def _show(text: str) -> None:
    """Write a text to the standard output; control characters are escaped for a terminal."""
    if sys.stdout.isatty():
        text = "".join(c if c in "\n\t" else printable(c) for c in text)
    print(text, end="", flush=True)


# --- score ---


def score(
    model: str,
    *files: str,
    device: str | None = None,
    tokenizer: str | None = None,
    trust: list[str] = [],  # noqa: B006
    allow_pickle: bool = False,
) -> int:
    """Say how well a language model predicts texts.

    Prints the loss in nats per token, the perplexity, and bits per byte of UTF-8, which compares across tokenizers.
    Each file is one text. Every token is scored, the first one as the start of a document; an end-of-text token is not.

    A text longer than the model's window is scored as `lra-ssm validate` scores a split: with --data.evaluation of the
    model's run, windows each by itself, windows that slide, or the state carried on. A model without a run slides
    windows of 2,048 tokens by 1,024.

    Args:
        files: texts in UTF-8, whatever their names; - for standard input

    Examples:
        lra-ssm score lm-imdb-b2s6 review.txt
        lra-ssm score runs/lm/quickstart/38722f686f chapters/*.txt
        git log | lra-ssm score state-spaces/mamba-130m-hf --tokenizer=EleutherAI/gpt-neox-20b -
    """
    from lra_ssm.bars import Bar
    from lra_ssm.cli.find_model import load_language_model
    from lra_ssm.tables import table, terminal_width, wrapped

    if not files:
        raise InputError("give files with text, or - for standard input")
    contents = [_read_input(file) for file in files]  # before a model is loaded
    for name, data in contents:
        if not data.decode(errors="replace").strip():
            raise InputError(f"{name}: {'holds only white space' if data else 'is empty'}; give a text")
    place = _device(device)
    loaded = load_language_model(model, tokenizer, allow_pickle, trust)
    texts = [_tokenized(name, data, loaded.tokenizer) for name, data in contents]
    loaded.model.to(place)
    sums, evaluation = list[tuple[float, int, int]](), ""
    with Bar("scoring", sum(len(text.tokens) for text in texts), unit="tokens") as bar:
        for text in texts:
            windows, carries, evaluation = _windows(text.tokens, loaded)
            sums.append((_loss(loaded.model, windows, carries, place, bar), len(text.tokens), text.size))
    rows = [_cells(text.name, *row) for text, row in zip(texts, sums, strict=True)]
    if len(rows) > 1:
        rows.append(_cells("all", *(sum(column) for column in zip(*sums, strict=True))))
    columns = ("text", "tokens", "bytes", "loss", "perplexity", "bits per byte")
    print(table(columns, rows, width=terminal_width()))
    print(wrapped(f"loss in nats per token; {evaluation}"))
    for text in texts:
        if text.unknown:
            note = f"{text.name}: the vocabulary has no {text.unknown}; what is scored there is <unk>"
            print(wrapped(to_one_line(note)))
    return 0


class _Tokens(NamedTuple):
    """A text as tokens (n,), its size in bytes of UTF-8, and the words that the tokenizer does not know."""

    name: str
    tokens: Any
    size: int
    unknown: str


def _tokenized(name: str, data: bytes, tokenizer: TextTokenizer) -> _Tokens:
    """Tokenize a text. Raises InputError with the line if it is not UTF-8."""
    from lra_ssm.datamodules.language.corpus import ReadOptions, read_text, segments

    documents = read_text(io.BytesIO(data), name, "file", "test")
    parts = [segment.text for segment in segments(documents, ReadOptions())]
    tokens = tokenizer.encode(parts, [False] * len(parts)).tokens
    return _Tokens(name, tokens, sum(len(part.encode()) for part in parts), _unknown(parts, tokenizer))


def _windows(tokens: Any, loaded: LoadedLanguageModel) -> tuple[TokenWindows, bool, str]:
    """Return windows over a text as in the validation of the model's run, whether the state is carried from one to the
    next, and a text that describes the windows."""
    import numpy as np

    from lra_ssm.datamodules.language.windows import Streams, Windows

    stream = {"tokens": tokens, "starts": np.zeros(1, np.int64)}
    first = (loaded.before or (loaded.tokenizer.end_of_text,))[-1]
    length, evaluation = loaded.data.get("length"), loaded.data.get("evaluation")
    stride = loaded.data.get("eval_stride") if evaluation == "sliding" else None
    if length is None or evaluation is None:
        length, stride = _LENGTH, _LENGTH // 2
    stride = stride or length
    if evaluation == "streams":
        return Streams(stream, first, length, 1, isolate=False), True, "the state carried through each text"
    each = "each by itself" if stride == length else f"each {stride:,} after the one before"
    return Windows(stream, first, length, isolate=False, stride=stride), False, f"windows of {length:,} tokens, {each}"


def _loss(model: LanguageModel, windows: TokenWindows, carries: bool, device: torch.device, bar: Any) -> float:
    """Return −log p of all tokens, in nats."""
    import numpy as np
    import torch

    from lra_ssm.models.language_model import NOT_SCORED

    total, state = 0.0, None
    size = 1 if carries else max(1, _TOKENS // windows.length)
    with torch.inference_mode():
        for begin in range(0, len(windows), size):
            batch = windows.batch(np.arange(begin, min(begin + size, len(windows))), 0)
            inputs, targets = batch.inputs.to(device), batch.targets.to(device)
            lengths = None if batch.lengths is None else batch.lengths.to(device)
            nll, after = model.negative_log_likelihood(
                inputs, targets, lengths, initial_state=state, return_last_state=carries
            )
            state = after if carries else None
            total += float(nll.sum(dtype=torch.float64))
            bar.advance(int((batch.targets != NOT_SCORED).sum()))
    return total


def _cells(name: str, nll: float, tokens: int, size: int) -> tuple[str, ...]:
    """Return a row of the table. nll: −log p of all tokens in nats."""
    loss = nll / tokens
    perplexity = math.exp(loss) if loss < 700 else math.inf  # beyond it the exponential overflows
    per_byte = nll / (size * math.log(2))
    return name, f"{tokens:,}", f"{size:,}", f"{loss:.4f}", f"{perplexity:,.2f}", f"{per_byte:.4f}"
