"""`lra-ssm score`: how well a language model predicts texts."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from lra_ssm.bars import Bar
from lra_ssm.cli.options import A_MODEL, A_TOKENIZER, add_device, add_trust, content, device_of
from lra_ssm.cli.output import PlainParser
from lra_ssm.errors import InputError, squeeze
from lra_ssm.tables import table, terminal_width, wrapped

if TYPE_CHECKING:
    import torch

    from lra_ssm.cli.language_models import Loaded
    from lra_ssm.datamodules.language.tokenizer import TextTokenizer
    from lra_ssm.datamodules.language.windows import TokenWindows
    from lra_ssm.tasks.metrics import TokenLoss


DESCRIPTION = """\
Says how well a language model predicts texts: the loss in nats per token, the perplexity, and bits per byte of UTF-8,
which compares across tokenizers. Each file is one text. All of its tokens are scored, the first as that of a document;
an end is not.

A text longer than the model's window is scored as `lra-ssm validate` scores a split: with --data.evaluation of the
model's run, windows each by itself, windows that slide, or the state carried on. A model that came without a run slides
windows of 2,048 tokens by 1,024."""

EXAMPLE = """\
examples:
  lra-ssm score lm-imdb-b2s6 review.txt
  lra-ssm score runs/lm/quickstart/38722f686f chapters/*.txt
  git log | lra-ssm score state-spaces/mamba-130m-hf --tokenizer=EleutherAI/gpt-neox-20b -
"""
_LENGTH = 2048  # tokens of a window where nobody says: what Mamba's public models were trained on
_TOKENS = 8192  # at a time


class _Text(NamedTuple):
    """A text as tokens (n,), and how many bytes of UTF-8 it has."""

    name: str
    tokens: Any
    size: int


class _Score(NamedTuple):
    """Sums over texts; `nll` in nats."""

    nll: float
    tokens: int
    size: int

    def cells(self, name: str) -> tuple[str, ...]:
        loss = self.nll / self.tokens
        perplexity = math.exp(loss) if loss < 700 else math.inf  # beyond it the exponential overflows
        per_byte = self.nll / (self.size * math.log(2))
        return name, f"{self.tokens:,}", f"{self.size:,}", f"{loss:.4f}", f"{perplexity:,.2f}", f"{per_byte:.4f}"


def parser() -> PlainParser:
    made = PlainParser("lra-ssm score", DESCRIPTION, EXAMPLE)
    made.add_argument("model", metavar="CHECKPOINT_OR_NAME", help=A_MODEL)
    said = "texts in UTF-8, whatever their names end with; - for standard input"
    made.add_argument("files", nargs="+", metavar="FILE", help=said)
    add_device(made)
    made.add_argument("--tokenizer", metavar="NAME", help=A_TOKENIZER)
    add_trust(made)
    return made


def main(command: str, arguments: list[str]) -> int:
    options = parser().parse_intermixed_args(arguments)
    from lra_ssm.cli.language_models import load_language_model

    contents = [content(file) for file in options.files]  # before a model is loaded
    for name, data in contents:
        if not data.decode(errors="replace").strip():
            raise InputError(f"{name}: {'holds nothing but white space' if data else 'is empty'}; give a text")
    device = device_of(options.device)
    loaded = load_language_model(options.model, options.tokenizer, options.allow_pickle, options.trust)
    notes = list[str]()
    texts = [_tokenised(name, data, loaded.tokenizer, notes) for name, data in contents]
    loaded.model.to(device)
    said = ""
    scores = []
    try:
        with Bar("scoring", sum(len(text.tokens) for text in texts), unit="tokens") as bar:
            for text in texts:
                windows, carries, said = _windows(text.tokens, loaded)
                metric = _scored(loaded, windows, carries, device, bar)
                nll, tokens = (float(value) for value in metric.compute())
                scores.append(_Score(nll, int(tokens), text.size))
    except ValueError as error:  # what a model cannot
        raise InputError(f"{options.model}: {error}") from error
    _show([text.name for text in texts], scores, [f"loss in nats per token; {said}", *notes])
    return 0


# --- the texts ---


def _tokenised(name: str, data: bytes, tokenizer: TextTokenizer, notes: list[str]) -> _Text:
    """Adds to the notes what the tokenizer does not know. Raises InputError: it is not UTF-8; names the line."""
    from lra_ssm.cli.language_models import not_known
    from lra_ssm.datamodules.language.corpus import ReadOptions, read_text, segments

    found = read_text(io.BytesIO(data), name, "file", "test")
    parts = [segment.text for segment in segments(found, ReadOptions())]
    if unknown := not_known(parts, tokenizer):
        notes.append(f"{name}: the vocabulary has no {unknown}; what is scored there is <unk>")
    tokens = tokenizer.encode(parts, [False] * len(parts)).tokens
    return _Text(name, tokens, sum(len(part.encode()) for part in parts))


# --- the model ---


def _windows(tokens: Any, loaded: Loaded) -> tuple[TokenWindows, bool, str]:
    """Windows over a text as the model's run is validated, whether the state goes on from one to the next, and this in
    words."""
    import numpy as np

    from lra_ssm.datamodules.language.windows import Streams, Windows

    stream = {"tokens": tokens, "starts": np.zeros(1, np.int64)}
    first = (loaded.before or (loaded.tokenizer.end_of_text,))[-1]
    length, evaluation = loaded.data.get("length"), loaded.data.get("evaluation")
    if length is None or evaluation is None:
        length, evaluation, stride = _LENGTH, "sliding", _LENGTH // 2
    else:
        given = loaded.data.get("eval_stride")
        stride = given if given and evaluation == "sliding" else length
    if evaluation == "streams":
        return Streams(stream, first, length, 1, isolate=False), True, "the state carried through each text"
    each = "each by itself" if stride == length else f"each {stride:,} behind the one before"
    return Windows(stream, first, length, isolate=False, stride=stride), False, f"windows of {length:,} tokens, {each}"


def _scored(loaded: Loaded, windows: TokenWindows, carries: bool, device: torch.device, bar: Bar) -> TokenLoss:
    """−log p of all tokens, and their number."""
    import numpy as np
    import torch

    from lra_ssm.models.language_model import NOT_SCORED
    from lra_ssm.tasks.metrics import TokenLoss

    metric, state = TokenLoss().to(device), None
    with torch.no_grad():
        size = 1 if carries else max(1, _TOKENS // windows.length)
        for begin in range(0, len(windows), size):
            batch = windows.batch(np.arange(begin, min(begin + size, len(windows))), 0)
            inputs, targets = batch.inputs.to(device), batch.targets.to(device)
            lengths = None if batch.lengths is None else batch.lengths.to(device)
            nll, after = loaded.model.negative_log_likelihood(
                inputs, targets, lengths, initial_state=state, return_last_state=carries
            )
            state = after if carries else None
            metric.update(nll, targets != NOT_SCORED)
            bar.advance(int((batch.targets != NOT_SCORED).sum()))
    return metric


# --- what is said ---


def _show(names: list[str], scores: list[_Score], notes: list[str]) -> None:
    rows = [score.cells(name) for name, score in zip(names, scores, strict=True)]
    if len(scores) > 1:
        rows.append(_Score(*map(sum, zip(*scores, strict=True))).cells("all"))
    columns = ("text", "tokens", "bytes", "loss", "perplexity", "bits per byte")
    print(table(columns, rows, width=terminal_width()))
    for note in notes:
        print(wrapped(squeeze(note)))
