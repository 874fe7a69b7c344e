"""Measures Mamba as a language model next to its matrix products and others' code, at two sizes.

- Training at 1,024 tokens a step: forward and backward with the loss, and the whole step with clipping and AdamW. The
  base is only the matrix products, forward and backward, as a perfect program would spend its time.
- The prompt: forward without gradients in the parallel form, the last position's logits.
- Generation, greedy, of one sequence and of eight: a token reads every weight once, and the base is matrix products
  that do so and nothing else; sums of the weights read them with less arithmetic.
- The head's loss next to the plain one, with its memory.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench import Bench, Contender, Row, options, start, words
from lra_ssm.ops import linear_cross_entropy
from measure import BOTH, Call, Prepared, free_bytes, prepare, seeded
from peers import Model, Products, Size, models
from steps import parts_of_step

EXAMPLE = "python benchmarks/language.py --sizes=small --threads=2 --budget=3 --repeats=7"
SIZES = {
    "small": Size(layers=8, D=256, V=8192, L=512, B=2),
    "130m": Size(layers=24, D=768, V=50280, L=256, B=4),  # Mamba's
}
STEP, PRODUCTS, READING = "step", "matrix products alone", "sums of the weights"
_PROMPT, _CLIP = 2048, 1.0
_TOKENS = 8  # one after another, as generation has them: each finds in the caches what the one before left there
_PATIENCE = 2  # budgets of seconds


class Comparison:
    """Everything of one size, with models that are built once."""

    def __init__(self, name: str, size: Size, bench: Bench) -> None:
        self.name, self.size, self.bench = name, size, bench
        self.models: dict[str, Model] = {}
        self.missing: dict[str, str] = {}  # why a model is not measured
        builds = models(size, bench.device, free_bytes(bench.device))
        for label, build in builds.items():
            bench.say(f"{name}: building {label}")
            try:
                self.models[label] = self._built(build)
            except ImportError as error:  # of what its package needs, or it is not there
                self.missing[label] = f"not measured: {error}"
        self.products = Products(size, bench.device)

    def _built(self, build: Callable[[], Model] | str) -> Model:
        if isinstance(build, str):
            raise ImportError(build)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = build()
        model.module.to(self.bench.device)
        return model

    def _times(self, what: str, mode: str, calls: dict[str, Call], tokens: int, **shape: int) -> list[Row]:
        """tokens: of a call."""
        gc.collect()
        comparison = f"{self.name}: {what}"
        shape = {"layers": self.size.layers, "D": self.size.D, "V": self.size.V, **shape}
        # what takes longer than the budget is called twice and not more
        effort = replace(self.bench.effort, least=1)
        rows = self.bench.times(comparison, mode, shape, calls, PRODUCTS, effort)
        for row in rows:
            if row.ms:
                row.extra["tokens/s"] = 1e3 * tokens / row.ms
        rows += [Row(comparison, label, mode, shape, note=why) for label, why in self.missing.items()]
        return self.bench.keep(rows)

    def training(self) -> dict[str, float]:
        """Rows of training; returns the parts of our step, in ms."""
        tokens = self.size.B * self.size.L
        calls = {label: self._training(model) for label, model in self.models.items()}
        missing = dict(self.missing)
        for mode in (BOTH, STEP):
            own = {PRODUCTS: partial(self.products.both, tokens)}
            own |= {label: call[mode] for label, call in calls.items() if label not in self.missing}
            for row in self._times("training", mode, own, tokens, B=self.size.B, L=self.size.L):
                if row.ms and row.ms > 1e3 * _PATIENCE * self.bench.effort.budget:
                    self.missing[row.contender] = f"not measured: {mode} took {row.ms / 1e3:.0f} s"
        self.missing = missing  # of reading and generation
        return parts_of_step(calls["ours"][STEP], self.bench.device)[0]

    def _training(self, model: Model) -> dict[str, Call]:
        ids, targets = self.size.batch(self.bench.device)
        optimizer = torch.optim.AdamW(model.groups(), lr=1e-4, fused=True)

        def both() -> None:
            optimizer.zero_grad(set_to_none=True)
            model.backward(ids, targets)

        def step() -> None:
            both()
            nn.utils.clip_grad_norm_(model.module.parameters(), _CLIP)
            optimizer.step()

        return {BOTH: both, STEP: step}

    def generation(self) -> None:
        """A prompt, then token by token."""
        self.models.pop("transformers, use_mambapy", None)  # a setting of training only
        for model in self.models.values():
            model.module.eval()
            model.module.zero_grad(set_to_none=True)
        length = 64 if self.bench.given.quick else _PROMPT
        ids = torch.randint(self.size.V, (1, length), generator=seeded()).to(self.bench.device)
        calls: dict[str, Call] = {PRODUCTS: partial(self.products.forward, length, 1)}
        calls |= {label: partial(_prompt, model, ids) for label, model in self.models.items()}
        self._times("reading a prompt", "prompt", calls, length, B=1, L=length)
        for B in (1, 8):
            calls = {PRODUCTS: partial(self.products.token, B), READING: self.products.read}
            calls |= {label: _token(model, B) for label, model in self.models.items()}
            calls = {label: partial(_repeatedly, call) for label, call in calls.items()}
            self._times("generation", f"{_TOKENS} tokens", calls, _TOKENS * B, B=B)

    def loss(self) -> None:
        """linear_cross_entropy next to F.cross_entropy of all logits."""
        shape = {"positions": self.size.B * self.size.L, "D": self.size.D, "V": self.size.V}
        run = partial(head_loss, device=self.bench.device, **shape)
        double = partial(run, False, dtype=torch.float64)
        plain = Contender("F.cross_entropy of all logits", partial(run, False), double)
        ours = Contender("linear_cross_entropy", partial(run, True), double)
        self.bench.compare(f"{self.name}: the head's loss", shape, [plain, ours], modes=(BOTH,))


@torch.inference_mode()
def _prompt(model: Model, ids: Tensor) -> Tensor:
    return model.prompt(ids)


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


def head_loss(
    ours: bool, positions: int, D: int, V: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> Prepared:
    """The summed loss of a head and its gradients: ours, or F.cross_entropy of all logits."""
    random = seeded()
    x = torch.randn(positions, D, generator=random)
    weight = torch.randn(V, D, generator=random) * D**-0.5
    targets = torch.randint(V, (positions,), generator=random).to(device)

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        if ours:
            return linear_cross_entropy(x, weight, targets, reduction="sum")
        return F.cross_entropy(F.linear(x, weight), targets, reduction="sum")

    return prepare(loss, {"x": x.to(device, dtype), "weight": weight.to(device, dtype)})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, EXAMPLE)
    parser.add_argument("--sizes", type=words, default=list(SIZES), metavar="LIST",
                        help="small (8 x 256) and 130m, comma-separated; default: both")  # fmt: skip
    given = parser.parse_args(arguments)
    unknown = set(given.sizes) - set(SIZES)
    if unknown:
        parser.error(f"--sizes: there are {', '.join(SIZES)}, not {', '.join(unknown)}")
    bench = Bench("language", given)
    sizes = {name: SIZES[name] for name in given.sizes}
    if given.quick:
        sizes = {given.sizes[0]: Size(layers=2, D=16, V=64, L=32, B=2)}
    profiles = {}
    for name, size in sizes.items():
        comparison = Comparison(name, size, bench)
        profiles[name] = comparison.training()
        comparison.generation()
        comparison.loss()
        bench.parts(f"{name}: one step, by part", profiles[name])
    bench.more["profiles, ms"] = profiles
    bench.finish()


if __name__ == "__main__":
    start(main)
