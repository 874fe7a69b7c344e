"""Measures Mamba as a language model next to its matrix products and mamba-ssm's own model, at two sizes.

- Training at 1,024 tokens a step: forward and backward with the loss, and the whole step with clipping and AdamW. The
  base is only the matrix products, forward and backward, as a perfect program would spend its time.
- The prompt: forward without gradients in the parallel form, the last position's logits.
- Generation, greedy, of one sequence and of eight: a token reads every weight once, and the base is matrix products
  that do so and nothing else; sums of the weights read them with less arithmetic.

Shapes: ids, targets (B, L) int64.  (B batch, L length, D channels, E = 2D inner channels, R rank of Δ, V vocabulary.)
"""

import gc
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench import Bench, Row, options, start, words
from lra_ssm.layers import S6, LayerSpec
from lra_ssm.models import LanguageModel
from lra_ssm.tasks import OptimizerSettings
from lra_ssm.tasks.optim import parameter_groups, parameter_rates
from measure import BOTH, Call, seeded

EXAMPLE = "python benchmarks/language.py --sizes=small --threads=2 --budget=3 --repeats=7"
OURS, MAMBA, PRODUCTS, READING = "ours", "mamba-ssm", "matrix products alone", "sums of the weights"
STEP = "step"
N = 16  # states of a channel
_PROMPT, _CLIP = 2048, 1.0
_TOKENS = 8  # in one call, as in generation: caches hold what the token before left there


class Size(NamedTuple):
    layers: int
    D: int
    V: int
    L: int
    B: int

    def matrices(self) -> list[tuple[int, int]]:
        """Return (rows, columns) of every weight matrix of a Mamba of this size; the tied head is the last one."""
        D, E, R = self.D, 2 * self.D, math.ceil(self.D / 16)
        return [(2 * E, D), (R + 2 * N, E), (E, R), (D, E)] * self.layers + [(self.V, D)]

    def batch(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return inputs and targets."""
        tokens = torch.randint(self.V, (self.B, self.L + 1), generator=seeded()).to(device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


SIZES = {
    "small": Size(layers=8, D=256, V=8192, L=512, B=2),
    "130m": Size(layers=24, D=768, V=50280, L=256, B=4),  # Mamba's
}


# -- the models ----------------------------------------------------------------------------------------------------


class Ours:
    """Our language model of S6 in Mamba's block."""

    def __init__(self, size: Size) -> None:
        layer = LayerSpec(S6, d_state=N)
        self.module = LanguageModel(layer, vocab_size=size.V, d_model=size.D, n_layers=size.layers)

    def backward(self, ids: Tensor, targets: Tensor) -> None:
        """Add the gradients of the mean loss."""
        total, _ = self.module.negative_log_likelihood(ids, targets, reduction="sum")
        (total / targets.numel()).backward()

    def prompt(self, ids: Tensor) -> Tensor:
        """Return the logits (B, V) of the next token, by the parallel form."""
        x, _ = self.module.hidden(ids, return_last_state=True)
        return self.module.logits(x[:, -1])

    def start(self, batch: int) -> Any:
        """Return the state before the first token."""
        return self.module.initial_state(batch)

    def step(self, ids_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read one more token (B,); return the logits (B, V) and the state."""
        return self.module.step(ids_t, state)

    def groups(self) -> list[dict[str, Any]]:
        """Return the optimizer's parameter groups."""
        return parameter_groups(self.module, parameter_rates(self.module, OptimizerSettings()))


class MambaSsm:
    """mamba-ssm's MambaLMHeadModel with fused block, CUDA scan and Triton steps. It has the methods of `Ours`."""

    def __init__(self, size: Size) -> None:
        from mamba_ssm.models.config_mamba import MambaConfig
        from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel

        config = MambaConfig(
            d_model=size.D, n_layer=size.layers, vocab_size=size.V,
            ssm_cfg={"layer": "Mamba1", "d_state": N}, pad_vocab_size_multiple=1,
        )  # fmt: skip
        self.module = MambaLMHeadModel(config)

    def backward(self, ids: Tensor, targets: Tensor) -> None:
        F.cross_entropy(self.module(ids).logits.flatten(0, 1), targets.flatten()).backward()

    def prompt(self, ids: Tensor) -> Tensor:
        return self.module(ids, num_last_tokens=1).logits[:, -1]

    def start(self, batch: int) -> Any:
        from mamba_ssm.utils.generation import InferenceParams

        state = InferenceParams(max_seqlen=1, max_batch_size=batch)
        first = torch.zeros(batch, dtype=torch.int64, device=next(self.module.parameters()).device)
        return self.step(first, state)[1]

    def step(self, ids_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits = self.module(ids_t[:, None], inference_params=state, num_last_tokens=1).logits[:, -1]
        state.seqlen_offset += 1  # its second call and all later ones are single steps
        return logits, state

    def groups(self) -> list[dict[str, Any]]:
        return [{"params": list(self.module.parameters())}]


class Products:
    """Only the matrix products of a model, as an upper bound of speed. Results go into preallocated memory."""

    def __init__(self, size: Size, device: torch.device) -> None:
        self.weights = [torch.randn(shape, device=device) for shape in size.matrices()]
        self.gradients = [torch.empty_like(w) for w in self.weights]
        self.memory: dict[tuple[int, int], Tensor] = {}

    def _rows(self, count: int, width: int) -> Tensor:
        if (count, width) not in self.memory:
            self.memory[count, width] = torch.randn(count, width, device=self.weights[0].device)
        return self.memory[count, width]

    @torch.no_grad()
    def forward(self, positions: int, head_positions: int | None = None) -> None:
        counts = [positions] * (len(self.weights) - 1) + [head_positions or positions]
        for weight, count in zip(self.weights, counts, strict=True):
            rows, columns = weight.shape
            torch.mm(self._rows(count, columns), weight.t(), out=self._rows(count, rows))

    @torch.no_grad()
    def both(self, positions: int) -> None:
        self.forward(positions)
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            slope, x = self._rows(positions, weight.shape[0]), self._rows(positions, weight.shape[1])
            torch.mm(slope, weight, out=self._rows(positions, weight.shape[1]))
            torch.mm(slope.t(), x, out=gradient)

    @torch.no_grad()
    def read(self) -> None:
        """Read every weight once, with next to no arithmetic."""
        for weight in self.weights:
            weight.sum()

    @torch.no_grad()
    def token(self, batch: int) -> None:
        """Compute one token: every weight is read once."""
        if batch > 1:
            return self.forward(batch)
        for weight in self.weights:
            torch.mv(weight, self._rows(1, weight.shape[1])[0])


# -- the comparison ------------------------------------------------------------------------------------------------


class Comparison:
    """Everything measured at one size, with models that are built once."""

    def __init__(self, name: str, size: Size, bench: Bench) -> None:
        self.name, self.size, self.bench = name, size, bench
        self.models = {OURS: self._built(Ours)}
        self.missing: str | None = None  # why mamba-ssm's model is not measured
        try:
            if not bench.is_gpu:
                raise ImportError("it needs an NVIDIA GPU")
            self.models[MAMBA] = self._built(MambaSsm)
        except ImportError as error:
            self.missing = f"not measured: {error}"
        self.products = Products(size, bench.device)

    def _built(self, kind: type) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = kind(self.size)
        model.module.to(self.bench.device)
        return model

    def _times(self, what: str, mode: str, calls: dict[str, Call], tokens: int, **shape: int) -> None:
        """Measure the calls. tokens: the number of tokens that each call computes."""
        gc.collect()
        comparison = f"{self.name}: {what}"
        shape = {"layers": self.size.layers, "D": self.size.D, "V": self.size.V, **shape}
        rows = self.bench.times(comparison, mode, shape, calls, PRODUCTS)
        for row in rows:
            if row.ms:
                row.extra["tokens/s"] = 1e3 * tokens / row.ms
        if self.missing:
            rows.append(Row(comparison, MAMBA, mode, shape, note=self.missing))
        self.bench.keep(rows)

    def training(self) -> None:
        tokens = self.size.B * self.size.L
        calls = {label: self._training(model) for label, model in self.models.items()}
        for mode in (BOTH, STEP):
            contenders: dict[str, Call] = {PRODUCTS: partial(self.products.both, tokens)}
            contenders |= {label: call[mode] for label, call in calls.items()}
            self._times("training", mode, contenders, tokens, B=self.size.B, L=self.size.L)

    def _training(self, model: Any) -> dict[str, Call]:
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
        """Measure reading a prompt, then generating token by token."""
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


@torch.inference_mode()
def _prompt(model: Any, ids: Tensor) -> Tensor:
    return model.prompt(ids)


def _token(model: Any, batch: int) -> Callable[[], None]:
    """Return a call that reads the most probable token of the call before."""
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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, EXAMPLE)
    parser.add_argument("--sizes", type=words, default=list(SIZES), metavar="LIST",
                        help="small (8 x 256) and 130m, comma-separated; default: both")  # fmt: skip
    given = parser.parse_args(arguments)
    unknown = set(given.sizes) - set(SIZES)
    if unknown:
        parser.error(f"--sizes: choose from {', '.join(SIZES)}, not {', '.join(unknown)}")
    bench = Bench("language", given)
    sizes = {name: SIZES[name] for name in given.sizes}
    if given.quick:
        sizes = {given.sizes[0]: Size(layers=2, D=16, V=64, L=32, B=2)}
    for name, size in sizes.items():
        comparison = Comparison(name, size, bench)
        comparison.training()
        comparison.generation()
    bench.finish()


if __name__ == "__main__":
    start(main)
