"""The language models that are compared: ours, others' of the same sizes, and only the matrix products.

Shapes: ids, targets (B, L) int64.  (B batch, L length, D channels, E = 2D inner channels, R rank of Δ, V vocabulary.)
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_ssm.layers import S6, LayerSpec
from lra_ssm.models import LanguageModel
from lra_ssm.tasks import OptimizerSettings
from lra_ssm.tasks.optim import parameter_groups, parameter_rates
from measure import seeded

N = 16  # states of a channel


class Size(NamedTuple):
    layers: int
    D: int
    V: int
    L: int
    B: int

    def matrices(self) -> list[tuple[int, int]]:
        """(rows, columns) of every weight matrix of a Mamba of this size, the tied head's last."""
        D, E, R = self.D, 2 * self.D, math.ceil(self.D / 16)
        return [(2 * E, D), (R + 2 * N, E), (E, R), (D, E)] * self.layers + [(self.V, D)]

    def batch(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        tokens = torch.randint(self.V, (self.B, self.L + 1), generator=seeded()).to(device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class Model(ABC):
    """A language model as it is compared."""

    module: Any  # nn.Module

    @abstractmethod
    def backward(self, ids: Tensor, targets: Tensor) -> None:
        """Adds the gradients of the mean loss."""

    @abstractmethod
    def prompt(self, ids: Tensor) -> Tensor:
        """Logits (B, V) of what follows, in the parallel form."""

    @abstractmethod
    def start(self, batch: int) -> Any:
        """The state before the first token."""

    @abstractmethod
    def step(self, ids_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """(logits (B, V), state) after one token more (B,)."""

    def groups(self) -> list[dict[str, Any]]:
        """Return the parameter groups of the optimizer."""
        return [{"params": list(self.module.parameters())}]


class Ours(Model):
    def __init__(self, size: Size) -> None:
        layer = LayerSpec(S6, d_state=N)
        self.module = LanguageModel(layer, vocab_size=size.V, d_model=size.D, n_layers=size.layers)

    def backward(self, ids: Tensor, targets: Tensor) -> None:
        total, _ = self.module.negative_log_likelihood(ids, targets, reduction="sum")
        (total / targets.numel()).backward()

    def prompt(self, ids: Tensor) -> Tensor:
        x, _ = self.module.hidden(ids, return_last_state=True)
        return self.module.logits(x[:, -1])

    def start(self, batch: int) -> Any:
        return self.module.initial_state(batch)

    def step(self, ids_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.module.step(ids_t, state)

    def groups(self) -> list[dict[str, Any]]:
        return parameter_groups(self.module, parameter_rates(self.module, OptimizerSettings()))


class _Other(Model):
    """Gives all logits: the loss is torch's. `at_once`: sequences that go through together; gradients add up."""

    at_once: int

    def fits(self, size: Size, free_bytes: float) -> int:
        """One at a time where a batch's (B, L, E, N) tensors, which the scan keeps in every layer, would not fit."""
        kept = 8 * 4 * size.B * size.L * 2 * size.D * N * size.layers
        return size.B if kept < free_bytes / 4 else 1

    @abstractmethod
    def logits(self, ids: Tensor) -> Tensor:
        """Return logits (B, L, V) of ids (B, L)."""

    def backward(self, ids: Tensor, targets: Tensor) -> None:
        for part, wanted in zip(ids.split(self.at_once), targets.split(self.at_once), strict=True):
            loss = F.cross_entropy(self.logits(part).flatten(0, 1), wanted.flatten(), reduction="sum")
            (loss / targets.numel()).backward()


class MambaPy(_Other):
    """mamba.py (alxndrTL), a Mamba in PyTorch with a parallel scan, between an embedding and a head tied to it.

    (Its own language model has them too, untied, in a module that needs einops for another model.)
    """

    def __init__(self, size: Size, free_bytes: float) -> None:
        from mambapy.mamba import Mamba, MambaConfig, RMSNorm

        self.at_once = self.fits(size, free_bytes)
        self.config = MambaConfig(d_model=size.D, n_layers=size.layers, d_state=N)
        self.module = nn.Module()
        self.module.embedding = nn.Embedding(size.V, size.D)
        nn.init.normal_(self.module.embedding.weight, std=0.02)
        self.module.mamba, self.module.norm = Mamba(self.config), RMSNorm(size.D)

    def _head(self, x: Tensor) -> Tensor:
        return F.linear(self.module.norm(x), self.module.embedding.weight)

    def logits(self, ids: Tensor) -> Tensor:
        return self._head(self.module.mamba(self.module.embedding(ids)))

    def prompt(self, ids: Tensor) -> Tensor:
        return self._head(self.module.mamba(self.module.embedding(ids))[:, -1])

    def start(self, batch: int) -> Any:
        inputs = self.module.embedding.weight.new_zeros(batch, self.config.d_inner, self.config.d_conv - 1)
        return [(None, inputs.clone()) for _ in range(self.config.n_layers)]

    def step(self, ids_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        x, state = self.module.mamba.step(self.module.embedding(ids_t), state)
        return self._head(x), state


class Transformers(_Other):
    """transformers' MambaForCausalLM: a loop over time, or with mamba.py's scan in training."""

    def __init__(self, size: Size, free_bytes: float, with_mambapy: bool = False) -> None:
        from transformers import MambaConfig, MambaForCausalLM
        from transformers.utils import logging

        self.at_once = self.fits(size, free_bytes)
        logging.set_verbosity_error()  # that its kernels for GPUs are not there
        config = MambaConfig(
            vocab_size=size.V, hidden_size=size.D, state_size=N, num_hidden_layers=size.layers,
            use_mambapy=with_mambapy,
        )  # fmt: skip
        self.module = MambaForCausalLM(config)

    def logits(self, ids: Tensor) -> Tensor:
        return self.module(input_ids=ids, use_cache=False).logits

    def prompt(self, ids: Tensor) -> Tensor:
        return self.module(input_ids=ids, use_cache=True, logits_to_keep=1).logits[:, -1]

    def start(self, batch: int) -> Any:
        first = torch.zeros(batch, 1, dtype=torch.int64, device=self.module.device)
        return self.module(input_ids=first, use_cache=True).cache_params

    def step(self, ids_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        out = self.module(input_ids=ids_t[:, None], cache_params=state, use_cache=True)
        return out.logits[:, -1], out.cache_params


class MambaSsm(_Other):
    """mamba-ssm's own MambaLMHeadModel: its fused block, its CUDA scan, its Triton steps."""

    def __init__(self, size: Size) -> None:
        from mamba_ssm.models.config_mamba import MambaConfig
        from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel

        self.at_once = size.B  # its scan keeps no (B, L, E, N) tensor
        config = MambaConfig(
            d_model=size.D, n_layer=size.layers, vocab_size=size.V,
            ssm_cfg={"layer": "Mamba1", "d_state": N}, pad_vocab_size_multiple=1,
        )  # fmt: skip
        self.module = MambaLMHeadModel(config)

    def logits(self, ids: Tensor) -> Tensor:
        return self.module(ids).logits

    def prompt(self, ids: Tensor) -> Tensor:
        return self.module(ids, num_last_tokens=1).logits[:, -1]

    def start(self, batch: int) -> Any:
        from mamba_ssm.utils.generation import InferenceParams

        state = InferenceParams(max_seqlen=1, max_batch_size=batch)
        first = torch.zeros(batch, dtype=torch.int64, device=next(self.module.parameters()).device)
        return self.step(first, state)[1]

    def step(self, ids_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits = self.module(ids_t[:, None], inference_params=state, num_last_tokens=1).logits[:, -1]
        state.seqlen_offset += 1  # from the second on it is its step
        return logits, state


def models(size: Size, device: torch.device, free_bytes: float) -> dict[str, Callable[[], Model] | str]:
    """Name -> how it is built, or why it cannot be."""
    found: dict[str, tuple[str, Callable[[], Model]]] = {
        "ours": ("torch", lambda: Ours(size)),
        "mamba.py": ("mambapy", lambda: MambaPy(size, free_bytes)),
        "mamba-ssm": ("mamba_ssm", lambda: MambaSsm(size)),
        "transformers": ("transformers", lambda: Transformers(size, free_bytes)),
        "transformers, use_mambapy": ("transformers mambapy", lambda: Transformers(size, free_bytes, True)),
    }
    result: dict[str, Callable[[], Model] | str] = {}
    for name, (packages, build) in found.items():
        missing = [each for each in packages.split() if find_spec(each) is None]
        no_gpu = name == "mamba-ssm" and device.type != "cuda"
        result[name] = "needs an NVIDIA GPU" if no_gpu else build
        if missing:
            result[name] = f"not installed: {', '.join(missing)}"
    return result


class Products:
    """The matrix products of a model and nothing else: the ceiling. Results go into memory that is there already."""

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
        """Every weight once, with next to no arithmetic."""
        for weight in self.weights:
            weight.sum()

    @torch.no_grad()
    def token(self, batch: int) -> None:
        """One token: every weight is read once."""
        if batch > 1:
            return self.forward(batch)
        for weight in self.weights:
            torch.mv(weight, self._rows(1, weight.shape[1])[0])
