"""`lra-ssm generate`: texts continued by a language model, shown as they come."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lra_ssm.cli.options import A_MODEL, A_TOKENIZER, add_device, add_trust, content, count, device_of
from lra_ssm.cli.output import PlainParser
from lra_ssm.errors import InputError, printable

if TYPE_CHECKING:
    from lra_ssm.cli.language_models import Loaded
    from lra_ssm.datamodules.language.tokenizer import TextTokenizer
    from lra_ssm.models.generation import Generation


DESCRIPTION = """\
Continues prompts with a language model, token by token, in memory that does not grow with the text. Where a model ends
a text, its text ends. Without a prompt it begins a document."""

EXAMPLE = """\
examples:
  lra-ssm generate runs/lm/quickstart/38722f686f --prompt "The list of"
  lra-ssm generate runs/lm/quickstart/38722f686f --prompt "One" --prompt "Two" --temperature=0 --stop "."
  lra-ssm generate state-spaces/mamba-130m-hf --prompt_file=prompts.txt --top_p=0.9 --seed=1 > texts.txt
  lra-ssm generate state-spaces/mamba-130m --allow-pickle --tokenizer=EleutherAI/gpt-neox-20b --prompt "Once"

--temperature and --top_k have litgpt's defaults; transformers' are 1.0 and 50.
"""


def parser() -> PlainParser:
    made = PlainParser("lra-ssm generate", DESCRIPTION, EXAMPLE)
    made.add_argument("model", metavar="CHECKPOINT_OR_NAME", help=A_MODEL)
    made.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="may be repeated")
    made.add_argument("--prompt_file", metavar="FILE", help="more prompts, one a line; - for standard input")
    made.add_argument("--num_samples", type=count, default=1, metavar="N", help="texts for each prompt; default: 1")
    made.add_argument("--max_new_tokens", type=count, default=100, metavar="N", help="of each text; default: 100")
    said = "divides the logits; 0 takes the most probable token; default: 0.8"
    made.add_argument("--temperature", type=float, default=0.8, metavar="T", help=said)
    said = "draw from the K most probable tokens; 0 for all; default: 50"
    made.add_argument("--top_k", type=int, default=50, metavar="K", help=said)
    said = "draw from the most probable tokens that sum to P; default: 1, all"
    made.add_argument("--top_p", type=float, default=1.0, metavar="P", help=said)
    said = "above 1: tokens of the text so far become less probable; default: 1"
    made.add_argument("--repetition_penalty", type=float, default=1.0, metavar="X", help=said)
    said = "of what is drawn; default: another each time, which is told"
    made.add_argument("--seed", type=int, metavar="S", help=said)
    said = "end a text behind this; may be repeated"
    made.add_argument("--stop", action="append", default=[], metavar="TEXT", help=said)
    said = "put the end-of-text token before a prompt; default: where the model is ours; else what its tokenizer puts"
    made.add_argument("--begin_document", action=argparse.BooleanOptionalAction, help=said)
    made.add_argument("--batch_size", type=count, default=8, metavar="B", help="prompts at a time; default: 8")
    add_device(made)
    made.add_argument("--tokenizer", metavar="NAME", help=A_TOKENIZER)
    add_trust(made)
    return made


def main(command: str, arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if "" in options.stop:
        raise InputError("--stop is empty: every text would end at once")
    prompts = [prompt for prompt in _prompts(options) for _ in range(options.num_samples)]
    try:
        said = _generate(options, prompts)
    except KeyboardInterrupt:
        print()  # what is said of it does not stand behind the text
        raise
    except InputError:
        raise
    except ValueError as error:  # what a model cannot
        raise InputError(f"{options.model}: {error}") from error
    print(said, file=sys.stderr)
    return 0


def _prompts(options: Any) -> list[str]:
    found = list(options.prompt)
    if options.prompt_file is not None:
        where, data = content(options.prompt_file)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"--prompt_file {where}: is not UTF-8, at byte {error.start}") from error
        lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
        if not lines:
            raise InputError(f"--prompt_file {where}: holds no prompt, a line with text")
        found += lines
    return found or [""]


def _generate(options: Any, prompts: list[str]) -> str:
    """Shows the texts; returns the closing line."""
    import torch

    from lra_ssm.cli.language_models import load_language_model
    from lra_ssm.models.generation import MAX_SEED, Generation, check_settings, row_seeds

    settings: dict[str, Any] = {
        "temperature": options.temperature, "top_k": options.top_k or None,
        "top_p": None if options.top_p == 1 else options.top_p, "repetition_penalty": options.repetition_penalty,
    }  # fmt: skip
    seed = random.SystemRandom().randint(0, MAX_SEED) if options.seed is None else options.seed
    try:
        check_settings(**settings)
        seeds = row_seeds(seed, len(prompts))  # a text stays the same in whatever batch it is
    except ValueError as error:
        raise InputError(f"--{error}") from error
    device = device_of(options.device)
    loaded = load_language_model(options.model, options.tokenizer, options.allow_pickle, options.trust)
    before = loaded.before
    if options.begin_document is not None:
        before = (loaded.tokenizer.end_of_text,) if options.begin_document else ()
    texts = [_Text(prompt, loaded, before, options.stop, number) for number, prompt in enumerate(prompts, 1)]
    loaded.model.to(device)
    screen, speeds = _Screen(len(prompts)), []
    for begin in range(0, len(texts), options.batch_size):
        batch = texts[begin : begin + options.batch_size]
        prompt_ids = [torch.tensor(text.prompt_ids) for text in batch]
        ids = torch.nn.utils.rnn.pad_sequence(prompt_ids, batch_first=True)
        lengths = torch.tensor([*map(len, prompt_ids)])
        own = seeds[begin : begin + options.batch_size]
        generation = Generation(
            loaded.model,
            ids.to(device),
            options.max_new_tokens,
            lengths=lengths,
            seed=own,
            stop=loaded.stop,
            **settings,
        )
        speeds.append(_run(generation, batch, screen))
    read, reading, made, making = map(sum, zip(*speeds, strict=True))
    rate = f" ({made / making:,.0f} tokens/s)" if made else ""
    said = f"prompt: {read:,} tokens in {reading:.2f} s; then {made:,} tokens in {making:.2f} s{rate}"
    return said + (f"; seed {seed}" if options.temperature else "")


def _run(generation: Generation, texts: list[_Text], screen: _Screen) -> tuple[int, float, int, float]:
    """Shows a batch's texts. Returns tokens and seconds of the prompts with each first token, and of those behind."""
    import torch

    waiting = list(texts)
    before = int(generation.lengths.sum())
    screen.show(waiting)
    began, first = time.perf_counter(), 0.0
    for tokens in generation:
        first = first or time.perf_counter()
        for text, token in zip(texts, tokens.tolist(), strict=True):
            text.add(token)
        generation.ended |= torch.tensor([text.ended for text in texts], device=tokens.device)
        screen.show(waiting)
    made = int(generation.lengths.sum()) - before - len(texts)
    took = time.perf_counter() - first
    for text in texts:
        text.end()
    screen.show(waiting)
    return before, first - began, made, took


class _Text:
    """A prompt and what is made of it.

    Attributes:
        prompt_ids: the prompt's tokens.
        coming: new text that has not been shown.
        ended: it has its end-of-text token, a stop, or as many tokens as it may have.
    """

    def __init__(self, prompt: str, loaded: Loaded, before: tuple[int, ...], stops: list[str], number: int) -> None:
        from lra_ssm.cli.language_models import not_known

        tokenizer = loaded.tokenizer
        if unknown := not_known([prompt], tokenizer):
            raise InputError(f"prompt {number}: the model's vocabulary has no {unknown}")
        ids = tokenizer.encode([prompt], [False]).tokens.tolist()
        # Where a prompt is empty, transformers begins with the end-of-text token, too.
        self.prompt_ids = [*before, *ids] or [tokenizer.end_of_text]
        self.prompt, self.coming = prompt, ""
        self.begun = self.ended = False
        self._ends = loaded.stop
        self._stream = TextStream(tokenizer, self.prompt_ids)
        self._stops, self._tail = stops, ""

    def add(self, token: int) -> None:
        if self.ended:
            return
        if token in self._ends:
            self.end()
        else:
            self._take(self._stream.add(token))

    def end(self) -> None:
        """No further token comes."""
        if not self.ended:
            self._take(self._stream.rest())
            self.ended = True

    def _take(self, new: str) -> None:
        text = self._tail + new  # a stop may lie across tokens
        ends = [text.find(stop) + len(stop) for stop in self._stops if stop in text]
        if ends:
            new, self.ended = text[len(self._tail) : min(ends)], True
        self.coming += new
        longest = max(map(len, self._stops), default=0)
        self._tail = text[max(0, len(text) - longest + 1) :]


class _Screen:
    """Standard output: a heading over each of several texts; in a terminal prompts are bold."""

    def __init__(self, count: int) -> None:
        from rich.console import Console

        console = Console()
        self._terminal = sys.stdout.isatty()
        self._bold = console.is_terminal and not console.no_color
        self._count, self._number = count, 0

    def show(self, texts: list[_Text]) -> None:
        """Shows what is new of the first text; of one that has ended, then of the next."""
        while texts:
            text = texts[0]
            if not text.begun:
                self._begin(text)
            self._write(text.coming)
            text.coming = ""
            if not text.ended:
                break
            self._write("\n")
            del texts[0]
        sys.stdout.flush()

    def _begin(self, text: _Text) -> None:
        text.begun = True
        self._number += 1
        if self._count > 1:
            above = "\n" if self._number > 1 else ""
            self._write(f"{above}=== {self._number} of {self._count} ===\n")
        if text.prompt:
            sys.stdout.write("\033[1m" if self._bold else "")
            self._write(text.prompt)
            sys.stdout.write("\033[0m" if self._bold else "")

    def _write(self, text: str) -> None:
        if self._terminal:
            text = "".join(c if c in "\n\t" else printable(c) for c in text)
        sys.stdout.write(text)


class TextStream:
    """The text of tokens that come one by one.

    A character whose bytes are divided between tokens (decoded as U+FFFD) is held back until it is whole. What a token
    costs does not grow with the text.

    Args:
        before: tokens that the text goes on from; their text is not repeated.
    """

    def __init__(self, tokenizer: TextTokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        # A token may read otherwise at the beginning of a text (without its space): the ones before are decoded again.
        self._before, self._held = list(before), list[int]()

    def add(self, token: int) -> str:
        """Return the text that is certain with this token; empty where the next one decides."""
        self._held.append(token)
        text = self._text()
        return "" if text.endswith("\ufffd") else self._release(text)

    def rest(self) -> str:
        """Return what was held back, where no further token comes."""
        return self._release(self._text()) if self._held else ""

    def _text(self) -> str:
        return self._tokenizer.decode(self._before + self._held)[len(self._tokenizer.decode(self._before)) :]

    def _release(self, text: str) -> str:
        self._before, self._held = self._held, []
        return text
