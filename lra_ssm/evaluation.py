"""A `LanguageModel` for EleutherAI's lm-evaluation-harness, which brings the tasks, the prompts and the scores.

    import lm_eval
    from lra_ssm.evaluation import HarnessModel
    print(lm_eval.simple_evaluate(model=HarnessModel("saved/folder"), tasks=["lambada_openai"])["results"])

or with all of its options: `python -m lra_ssm.evaluation --model lra_ssm --model_args pretrained=saved/folder --tasks
lambada_openai`. Needs the extra: `pip install "lra-ssm[eval]"`.

Shapes: B batch, L length, D channels, V vocabulary.
"""

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from lra_ssm.checkpoints import ModelFiles
from lra_ssm.datamodules.language.tokenizer_spec import load_tokenizer
from lra_ssm.errors import InputError
from lra_ssm.models.language_model import NOT_SCORED, LanguageModel
from lra_ssm.models.pretrained import FORMAT, load_pretrained
from lra_ssm.text_generation import continue_prompts

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
except ImportError as error:
    raise InputError(f'lm_eval cannot be imported ({error}): pip install "lra-ssm[eval]"') from error

_PART = 512  # positions at a time; the state goes on, so that no context is ever cut
_NEW_TOKENS = 256  # unless the task says otherwise; the same default as in lm_eval's models
_TAKEN = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p", "repetition_penalty")


@register_model("lra_ssm")
class HarnessModel(TemplateLM):
    """A model with the methods that lm_eval calls. Log-likelihoods use the whole context, however long.

    Args:
        pretrained: what `LanguageModel.from_pretrained` takes.
        tokenizer: a folder or repository with a tokenizer ("EleutherAI/gpt-neox-20b" for state-spaces/mamba-*); None
            for the one in the saved model.
        revision: of `pretrained`, if it is a repository.
        allow_pickle: read weights that are a pickle.
        add_bos_token: whether a token stands before every context: what the tokenizer puts before texts, else the one
            that ends texts, as before every document in training. None: what the tokenizer puts there, if any, as
            transformers does. As in lm_eval, empty contexts and whole documents always have one.
        batch_size: sequences at a time.
        max_batch_size: unused; lm_eval passes it.
        device: "cpu", "cuda", "cuda:1"; without a CUDA device always "cpu".
        dtype: "float32" or "bfloat16".

    Raises:
        InputError: the model cannot be loaded, there is no tokenizer, or the tokenizer has more tokens than the model.
    """

    def __init__(
        self,
        pretrained: str | Path,
        tokenizer: str | Path | None = None,
        revision: str | None = None,
        allow_pickle: bool = False,
        add_bos_token: bool | None = None,
        batch_size: int | str = 8,
        max_batch_size: int | None = None,
        device: str | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        if not str(batch_size).isdecimal() or int(batch_size) < 1:
            raise InputError(f"batch_size is {batch_size!r}; it must be a number of at least 1")
        if dtype not in ("float32", "bfloat16"):
            raise InputError(f"dtype is {dtype!r}; it must be float32 or bfloat16")
        self.batch_size = int(batch_size)
        files = ModelFiles(pretrained, revision)
        model = load_pretrained(files, LanguageModel, allow_pickle=allow_pickle, dtype=getattr(torch, dtype))
        with_tokenizer = ModelFiles(tokenizer) if tokenizer else files
        path = with_tokenizer.tokenizer()
        if path is None:
            raise InputError(
                f"{with_tokenizer.name}: has no vocabulary.json or tokenizer.json: give tokenizer, such as"
                " EleutherAI/gpt-neox-20b for state-spaces/mamba-*"
            )
        self.tokens = load_tokenizer(path)
        if self.tokens.vocab_size > model.vocab_size:
            raise InputError(f"the tokenizer has {self.tokens.vocab_size} tokens, the model {model.vocab_size}")
        before = self.tokens.prefix or ((self.tokens.end_of_text,) if add_bos_token else ())
        self._before = [] if add_bos_token is False else list(before)
        self._ends = self.tokens.stop
        if tokenizer is None and files.config().get("format") != FORMAT:
            self._ends = files.end_tokens() or self._ends  # as transformers ends a text
        # lm_eval passes "cuda:0" if the user named no device, and leaves it to the model to check that it exists.
        other = device is not None and not device.startswith("cuda")
        self._device = torch.device(device or "cuda") if other or torch.cuda.is_available() else torch.device("cpu")
        self.model = model.to(self._device).eval()

    @property
    def eot_token_id(self) -> int:
        return self.tokens.end_of_text

    @property
    def prefix_token_id(self) -> int:
        return (self.tokens.prefix or (self.eot_token_id,))[-1]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None) -> list[int]:
        return self.tokens.encode([string], [False]).tokens.tolist()

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return log p of each continuation, and whether it is the greedy one, for (texts, context, continuation)."""
        return self._scored([(self._context(context), continuation) for _, context, continuation in requests])

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return log p of whole texts, including their first token."""
        rows = [([self.prefix_token_id], self.tok_encode(request.args[0])) for request in requests]
        return [total for total, _ in self._scored(rows)]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return texts up to the first of the stops that a task names, or the end of a text."""
        answers = list[str]()
        for settings, group in groupby(requests, key=lambda request: request.args[1]):
            contexts = [request.args[0] for request in group]
            for begin in range(0, len(contexts), self.batch_size):
                answers += self._generated(contexts[begin : begin + self.batch_size], settings)
        return answers

    def _context(self, tokens: list[int]) -> list[int]:
        begins = tokens[: len(self._before)] == self._before
        return (tokens if begins else [*self._before, *tokens]) or [self.prefix_token_id]

    @torch.inference_mode()
    def _scored(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        """Return log p in nats, and whether it is greedy, for (context, continuation); no context is empty."""
        answers: list[tuple[float, bool]] = [(0.0, True)] * len(rows)
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i][0]) - len(rows[i][1]))
        for begin in range(0, len(order), self.batch_size):
            batch = order[begin : begin + self.batch_size]
            ids = pad_sequence([torch.tensor(rows[i][0] + rows[i][1]) for i in batch], batch_first=True)
            targets = torch.full_like(ids, NOT_SCORED)
            for row, i in enumerate(batch):
                context, continuation = rows[i]
                first = len(context) - 1
                targets[row, first : first + len(continuation)] = torch.tensor(continuation)
            totals, greedy = self._sums(ids.to(self._device), targets.to(self._device))
            for i, total, is_greedy in zip(batch, totals, greedy, strict=True):
                answers[i] = total, is_greedy
        return answers

    def _sums(self, ids: torch.Tensor, targets: torch.Tensor) -> tuple[list[float], list[bool]]:
        """Return log p of the targets, and whether all of them are greedy, for each row of ids and targets (B, L).

        Targets are NOT_SCORED where no token is scored. The model is causal, so padding on the right has no effect.
        """
        B, L = ids.shape
        totals = torch.zeros(B, dtype=torch.float64, device=ids.device)
        others = torch.zeros_like(totals)  # targets that are not the most probable token
        state = None
        for begin in range(0, L, _PART):
            part = slice(begin, begin + _PART)
            x, state = self.model.hidden(ids[:, part], initial_state=state, return_last_state=L > begin + _PART)
            for row in range(B):  # the logits of a single sequence at a time
                scored = targets[row, part] != NOT_SCORED
                logits, wanted = self.model.logits(x[row, scored]).float(), targets[row, part][scored]
                totals[row] += logits.log_softmax(-1).gather(1, wanted[:, None]).double().sum()
                others[row] += (logits[:, : self.model.vocab_size].argmax(-1) != wanted).sum()
        return totals.tolist(), (others == 0).tolist()

    def _generated(self, contexts: Sequence[str], settings: dict[str, Any]) -> list[str]:
        if unknown := settings.keys() - {*_TAKEN}:
            raise InputError(f"the task generates with {min(unknown)}, which this model does not know")
        sampled = settings.get("do_sample", settings.get("temperature", 0.0) > 0)
        until = settings.get("until") or []
        stops = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
        texts = continue_prompts(
            self.model,
            self.tokens,
            [self._context(self.tok_encode(text)) for text in contexts],
            int(settings.get("max_gen_toks", _NEW_TOKENS)),
            end_tokens=self._ends,
            stops=stops,
            temperature=float(settings.get("temperature", 1.0)) if sampled else 0.0,
            top_k=settings.get("top_k") or None,  # 0 means all, as in transformers
            top_p=settings.get("top_p"),
            repetition_penalty=settings.get("repetition_penalty", 1.0),
        )
        answers = [text.text for text in texts]
        for stop in stops:
            answers = [answer.split(stop)[0] for answer in answers]
        return answers


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except InputError as error:
        sys.exit(f"lra_ssm.evaluation: error: {error}")
