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

from lra_ssm.checkpoints import ModelFiles
from lra_ssm.datamodules.language.tokenizer import TextTokenizer
from lra_ssm.datamodules.language.tokenizer_spec import load_tokenizer
from lra_ssm.errors import InputError
from lra_ssm.models.generation import Generation
from lra_ssm.models.language_model import NOT_SCORED, LanguageModel
from lra_ssm.models.pretrained import FORMAT

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
except ImportError as error:
    raise InputError(f'lm_eval cannot be imported ({error}): pip install "lra-ssm[eval]"') from error

_PART = 2048  # positions at a time; the state goes on, so that no context is ever cut
_LOGITS = 1 << 24  # at a time: 64 MB in float32
_NEW_TOKENS = 256  # where a task says nothing, as in lm_eval's own models
_TAKEN = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p", "repetition_penalty")


@register_model("lra_ssm")
class HarnessModel(TemplateLM):
    """What lm_eval asks of a model. Log-likelihoods have the whole context, however long.

    Args:
        pretrained: a model, or what `LanguageModel.from_pretrained` takes.
        tokenizer: one, or a folder or repository that has one ("EleutherAI/gpt-neox-20b" for state-spaces/mamba-*);
            None for the saved model's own.
        revision: of `pretrained`, where it is a repository.
        allow_pickle: read weights that are a pickle.
        add_bos_token: whether a token stands before every context: what the tokenizer puts before texts, else the one
            that ends texts, as before every document in training. None: what the tokenizer puts there, if any, as
            transformers does. Before empty contexts and whole documents there always is one, as lm_eval has it.
        batch_size: sequences at a time.
        max_batch_size: taken for lm_eval's sake, which gives it.
        device: "cpu", "cuda", "cuda:1"; without a CUDA device always "cpu".
        dtype: "float32" or "bfloat16".

    Raises:
        InputError: what `from_pretrained` raises, there is no tokenizer, or it has more tokens than the model.
    """

    def __init__(
        self,
        pretrained: str | Path | LanguageModel,
        tokenizer: str | Path | TextTokenizer | None = None,
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
        if isinstance(pretrained, LanguageModel):
            model = pretrained
        else:
            model = LanguageModel.from_pretrained(
                pretrained, revision=revision, allow_pickle=allow_pickle, dtype=getattr(torch, dtype)
            )
        if isinstance(tokenizer, TextTokenizer):
            self.tokens = tokenizer
        elif tokenizer is None and isinstance(pretrained, LanguageModel):
            raise InputError("a model that was built here comes without a tokenizer: give tokenizer")
        else:
            self.tokens = _tokenizer_of(ModelFiles(str(tokenizer or pretrained), None if tokenizer else revision))
        before = self.tokens.prefix or ((self.tokens.end_of_text,) if add_bos_token else ())
        self._before = [] if add_bos_token is False else list(before)
        self._ends = self.tokens.stop
        if tokenizer is None and not isinstance(pretrained, LanguageModel):
            files = ModelFiles(pretrained, revision)
            if files.config().get("format") != FORMAT:  # transformers ends a text as the model's configuration says
                self._ends = files.end_tokens() or self._ends
        if self.tokens.vocab_size > model.vocab_size:
            raise InputError(f"the tokenizer has {self.tokens.vocab_size} tokens, the model {model.vocab_size}")
        # lm_eval says "cuda:0" where nothing was said, and leaves it to its models whether there is one.
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
        """(texts, context, continuation) -> log p of the continuation, and whether it is the greedy one."""
        rows = [(self._context(context), continuation) for _, context, continuation in requests]
        scored = self._scored(rows)
        for (texts, *_), answer in zip(requests, scored, strict=True):
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, answer)
        return scored

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """log p of whole texts, of their first token too."""
        texts = [request.args[0] for request in requests]
        scored = [total for total, _ in self._scored([([self.prefix_token_id], self.tok_encode(t)) for t in texts])]
        for text, total in zip(texts, scored, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
        return scored

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Texts up to the first of the stops that a task names, or the end of a text."""
        answers = [""] * len(requests)
        order = sorted(range(len(requests)), key=lambda i: repr(requests[i].args[1]))
        for _, group in groupby(order, key=lambda i: repr(requests[i].args[1])):
            same = list(group)
            for begin in range(0, len(same), self.batch_size):
                batch = same[begin : begin + self.batch_size]
                settings = requests[batch[0]].args[1]
                found = self._generated([requests[i].args[0] for i in batch], settings)
                for i, text in zip(batch, found, strict=True):
                    answers[i] = text
                    self.cache_hook.add_partial("generate_until", requests[i].args, text)
        return answers

    def _context(self, tokens: list[int]) -> list[int]:
        begins = tokens[: len(self._before)] == self._before
        return (tokens if begins else [*self._before, *tokens]) or [self.prefix_token_id]

    @torch.inference_mode()
    def _scored(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        """Of (context, continuation), a context at least one token: log p, nats, and whether greedy."""
        found: list[tuple[float, bool]] = [(0.0, True)] * len(rows)
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i][0]) - len(rows[i][1]))
        for begin in range(0, len(order), self.batch_size):
            batch = order[begin : begin + self.batch_size]
            whole = [rows[i][0] + rows[i][1] for i in batch]
            ids = torch.zeros(len(batch), len(whole[0]), dtype=torch.int64)
            targets = torch.full_like(ids, NOT_SCORED)
            for row, tokens, i in zip(range(len(batch)), whole, batch, strict=True):
                first = len(rows[i][0])
                ids[row, : len(tokens)] = torch.tensor(tokens)
                targets[row, first - 1 : len(tokens) - 1] = torch.tensor(tokens[first:])
            totals, greedy = self._sums(ids.to(self._device), targets.to(self._device))
            for i, total, is_greedy in zip(batch, totals, greedy, strict=True):
                found[i] = total, is_greedy
        return found

    def _sums(self, ids: torch.Tensor, targets: torch.Tensor) -> tuple[list[float], list[bool]]:
        """ids, targets (B, L), NOT_SCORED where nothing is -> log p of the targets, and whether all are the greedy
        ones, per row. Padding on the right needs no care: the model is causal."""
        B, L = ids.shape
        totals = torch.zeros(B, dtype=torch.float64, device=ids.device)
        others = torch.zeros_like(totals)  # targets that are not the most probable token
        state, pieces = None, max(1, _LOGITS // len(self.model.head_weight))
        for begin in range(0, L, _PART):
            part = slice(begin, begin + _PART)
            x, state = self.model.hidden(ids[:, part], initial_state=state, return_last_state=L > begin + _PART)
            row, position = (targets[:, part] != NOT_SCORED).nonzero(as_tuple=True)
            wanted = targets[:, part][row, position]
            for r, v, t in zip(*(each.split(pieces) for each in (row, x[row, position], wanted)), strict=True):
                logits = self.model.logits(v).float()
                totals.index_add_(0, r, logits.log_softmax(-1).gather(1, t[:, None])[:, 0].double())
                others.index_add_(0, r, (logits[:, : self.model.vocab_size].argmax(-1) != t).double())
        return totals.tolist(), (others == 0).tolist()

    def _generated(self, contexts: Sequence[str], settings: dict[str, Any]) -> list[str]:
        if unknown := settings.keys() - {*_TAKEN}:
            raise InputError(f"the task generates with {min(unknown)}, which this model does not know")
        prompts = [self._context(self.tok_encode(text)) for text in contexts]
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        ids = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        sampled = settings.get("do_sample", settings.get("temperature", 0.0) > 0)
        steps = Generation(
            self.model,
            ids.to(self._device),
            int(settings.get("max_gen_toks", _NEW_TOKENS)),
            lengths=lengths.to(self._device),
            temperature=float(settings.get("temperature", 1.0)) if sampled else 0.0,
            top_k=settings.get("top_k") or None,  # 0: all, as transformers has it
            top_p=settings.get("top_p"),
            repetition_penalty=settings.get("repetition_penalty", 1.0),
            stop=self._ends,
        )
        until = settings.get("until") or []
        stops = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
        new, answers = [list[int]() for _ in prompts], [""] * len(prompts)
        for tokens in steps:
            for row, token in enumerate(tokens.tolist()):
                if token in (-1, *self._ends):  # -1: the row has ended
                    continue
                new[row].append(token)
                answers[row] = self.tokens.decode(new[row])
                for stop in stops:
                    if stop in answers[row]:
                        answers[row], steps.ended[row] = answers[row].split(stop)[0], True
        return answers


def _tokenizer_of(files: ModelFiles) -> TextTokenizer:
    path = files.tokenizer()
    if path is None:
        raise InputError(
            f"{files.name}: has no vocabulary.json or tokenizer.json: give tokenizer, such as"
            " EleutherAI/gpt-neox-20b for state-spaces/mamba-*"
        )
    return load_tokenizer(path)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except InputError as error:
        sys.exit(f"lra_ssm.evaluation: error: {error}")
