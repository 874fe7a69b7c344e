"""The suite of language models: Mamba at two sizes against its matrix products and others' code, in one run.

- Training at 1,024 tokens a step: forward and backward with the loss, and the whole step with clipping and AdamW. The
  base is the matrix products alone, forward and backward, as a perfect program would spend its time.
- The prompt: forward without gradients in the parallel form, the last position's logits.
- Generation, greedy, of one sequence and of eight: a token reads every weight once, and the base is matrix products
  that do so and nothing else; sums of the weights read them with less arithmetic.
- The head's loss beside the plain one, with its memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.bench.compare import Bar, Contender, Row, Settings, compare
from lra_ssm.bench.language_models import Model, Products, Size, models
from lra_ssm.bench.measure import interleave, ratio, timer_for
from lra_ssm.bench.memory import available_bytes
from lra_ssm.bench.profile import profile_step
from lra_ssm.bench.work import BOTH, STEP, Prepared, generator, prepare, random_like
from lra_ssm.ops import linear_cross_entropy

SIZES = {
    "small": Size(n_layers=8, d_model=256, vocab_size=8192, length=512, batch=2),
    "130m": Size(n_layers=24, d_model=768, vocab_size=50280, length=256, batch=4),  # Mamba's
}
PRODUCTS, READING, PROMPT = "matrix products alone", "sums of the weights", "prompt"
_PROMPT_LENGTH, _CLIP = 2048, 1.0
_TOKENS = 8  # one after another, as generation has them: each finds in the caches what the one before left there
_PATIENCE = 2  # budgets of seconds


def run(settings: Settings) -> dict[str, Any]:
    rows: list[Row] = []
    profiles = {}
    for name in settings.sizes or (list(SIZES)[:1] if settings.quick else SIZES):
        size = _adjusted(SIZES[name], settings)
        rows += _of_size(name, size, settings)
        settings.announce(f"{name}: profile of a step")
        profiles[f"{name}, step"], _ = profile_step(_training(_built("ours", size, settings), size, settings)[STEP],
                                                 settings.device)  # fmt: skip
        rows += _loss(name, size, settings)
    bars = [Bar(f"{row.comparison}, {row.mode}", row.contender, row.extra["tokens/s"]) for row in rows
            if row.timing and "tokens/s" in row.extra]  # fmt: skip
    return {"rows": rows, "profiles": profiles, "bars": bars, "unit": "tokens/s"}


def _adjusted(size: Size, settings: Settings) -> Size:
    if settings.quick:
        size = Size(n_layers=2, d_model=16, vocab_size=64, length=32, batch=2)
    length = (settings.lengths or [size.length])[0]
    return replace(size, length=length, batch=settings.batch or max(1, size.batch * size.length // length))


def _built(name: str, size: Size, settings: Settings) -> Model:
    build = dict(models(size, settings.device, available_bytes(settings.device)))[name]
    assert not isinstance(build, str), build
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build()
    model.module.to(settings.device)
    return model


def _of_size(name: str, size: Size, settings: Settings) -> list[Row]:
    """All that has the same contenders: they are built once."""
    products, built, missing = Products(size, settings.device), {}, {}
    for label, build in models(size, settings.device, available_bytes(settings.device)):
        settings.announce(f"{name}: building {label}")
        if isinstance(build, str):
            missing[label] = build
        else:
            try:
                built[label] = _built(label, size, settings)
            except ImportError as error:  # what its package needs, or was not built for this torch
                missing[label] = f"not measured: {error}"
    tokens, training = size.batch * size.length, {label: _training(m, size, settings) for label, m in built.items()}
    rows: list[Row] = []
    slow: dict[str, str] = {}
    for mode in (BOTH, STEP):
        calls: dict[str, Callable[[], Any]] = {PRODUCTS: partial(products.both, tokens)}
        calls |= {label: training[label][mode] for label in training if label not in slow}
        shape = {**size.shape, "batch": size.batch, "length": size.length}
        rows += _compare(f"{name}: training", mode, shape, calls, {**missing, **slow}, tokens, settings)
        slow = {
            row.contender: f"not measured: forward and backward alone took {row.timing.median:.0f} s"
            for row in rows
            if row.timing and row.timing.median > _PATIENCE * settings.effort.budget
        }
    built.pop("transformers, use_mambapy", None)  # a setting of training alone
    for model in built.values():
        model.module.eval()
        model.module.zero_grad(set_to_none=True)
    ids = torch.randint(size.vocab_size, (1, 64 if settings.quick else _PROMPT_LENGTH), generator=generator())
    ids = ids.to(settings.device)
    calls = {PRODUCTS: partial(products.forward, ids.shape[1], 1)}
    calls |= {label: _prompt(m, ids) for label, m in built.items()}
    shape = {**size.shape, "batch": 1, "length": ids.shape[1]}
    rows += _compare(f"{name}: reading a prompt", PROMPT, shape, calls, missing, ids.shape[1], settings)
    for batch in (1, 8):
        calls = {PRODUCTS: partial(products.token, batch), READING: products.read}
        calls |= {label: _token(m, batch) for label, m in built.items()}
        calls = {label: partial(_repeatedly, call) for label, call in calls.items()}
        shape = {**size.shape, "batch": batch}
        mode = f"{_TOKENS} tokens, batch {batch}"
        rows += _compare(f"{name}: generation", mode, shape, calls, missing, _TOKENS * batch, settings)
    return rows


def _training(model: Model, size: Size, settings: Settings) -> dict[str, Callable[[], None]]:
    ids, targets = size.batch_of_tokens(settings.device)
    optimizer = torch.optim.AdamW(model.groups(), lr=1e-4, fused=True)

    def both() -> None:
        optimizer.zero_grad(set_to_none=True)
        model.backward(ids, targets)

    def step() -> None:
        both()
        nn.utils.clip_grad_norm_(model.module.parameters(), _CLIP)
        optimizer.step()

    return {BOTH: both, STEP: step}


def _prompt(model: Model, ids: Tensor) -> Callable[[], Tensor]:
    @torch.inference_mode()
    def call() -> Tensor:
        return model.prompt(ids)

    return call


def _token(model: Model, batch: int) -> Callable[[], None]:
    """Each call is one token more, of the most probable one before."""
    with torch.inference_mode():
        state = model.start(batch)
    ids = torch.zeros(batch, dtype=torch.int64, device=next(model.module.parameters()).device)

    @torch.inference_mode()
    def call() -> None:
        nonlocal state, ids
        logits, state = model.step(ids, state)
        ids = logits.argmax(-1)

    return call


def _repeatedly(call: Callable[[], Any]) -> None:
    for _ in range(_TOKENS):
        call()


def _compare(
    name: str, mode: str, shape: dict[str, Any], calls: dict[str, Callable[[], Any]], missing: dict[str, str],
    tokens: int, settings: Settings,
) -> list[Row]:  # fmt: skip
    settings.announce(f"{name}: {mode}")
    gc.collect()
    # what takes longer than the budget is called twice and not more
    timings = interleave(calls, timer_for(settings.device), replace(settings.effort, least=1), settings.tick)
    rows = [
        Row(name, label, mode, shape, timing, PRODUCTS, ratio(timing, timings[PRODUCTS]),
            extra={"tokens/s": tokens / timing.median})
        for label, timing in timings.items()
    ]  # fmt: skip
    rows += [Row(name, label, mode, shape, note=why) for label, why in missing.items()]
    settings.done(rows)
    return rows


# -- the head's loss -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LossWork:
    """The summed loss of a head and its gradients: ours, or F.cross_entropy of all logits."""

    ours: bool
    positions: int
    channels: int
    vocabulary: int
    device: torch.device
    dtype: torch.dtype = torch.float32

    def build(self) -> Prepared:
        random = generator()
        x = torch.randn(self.positions, self.channels, generator=random)
        weight = torch.randn(self.vocabulary, self.channels, generator=random) * self.channels**-0.5
        targets = torch.randint(self.vocabulary, (self.positions,), generator=random).to(self.device)

        def loss(x: Tensor, weight: Tensor) -> Tensor:
            if self.ours:
                return linear_cross_entropy(x, weight, targets, reduction="sum")
            return F.cross_entropy(F.linear(x, weight), targets, reduction="sum")

        return prepare(loss, {n: t.to(self.device, self.dtype) for n, t in (("x", x), ("weight", weight))}, random_like)

    def smaller(self) -> LossWork:
        return replace(self, positions=8, vocabulary=32)

    def bytes_needed(self) -> float:
        return self.dtype.itemsize * self.vocabulary * (6 * self.positions + 4 * self.channels)


@dataclass(frozen=True)
class LossTruth:
    work: LossWork
    label: str = "float64 run of the plain loss"

    def results(self) -> dict[str, Tensor]:
        return replace(self.work, ours=False, dtype=torch.float64).build().results()


def _loss(name: str, size: Size, settings: Settings) -> list[Row]:
    works = {
        label: LossWork(ours, size.batch * size.length, size.d_model, size.vocab_size, settings.device)
        for label, ours in (("F.cross_entropy of all logits", False), ("linear_cross_entropy", True))
    }
    contenders = [Contender(n, w, LossTruth(replace(w, ours=True))) for n, w in works.items()]
    shape = {"positions": size.batch * size.length, "channels": size.d_model, "vocabulary": size.vocab_size}
    return compare(f"{name}: the head's loss", shape, contenders, settings, modes=(BOTH,))
