"""transformers' Mamba, trained as AnnanYu/mamba-bare trains its language models, next to ours.

    git clone https://github.com/AnnanYu/mamba-bare && git -C mamba-bare checkout 3a1526268af9
    pip install transformers einops mambapy
    python benchmarks/parity/transformers_mamba.py mamba-bare tinyshakespeare/input.txt

The model is transformers' MambaForCausalLM without mamba-ssm's kernels; its scan is mambapy's (`use_mambapy`). The
checkout's own `group_parameters_for_optimizer` says which weights decay. Rates, betas, decay, clipping, warm-up and
cosine are those of its mamba-360m.yaml, with the schedule shortened to 500 steps. The text is read by characters, in
windows that do not overlap.

Ours has that code's ways where they differ from configs/lm/wikitext103/mamba.yaml: a warm-up that starts at 1e-6, and
decay of Δ's matrices. --config compares ours with these ways and ours as the config says.
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import MambaConfig, MambaForCausalLM

from compare import RESULTS, STEPS, From, Names, TorchPeer, arrays_of, compare, load_weights, run_case, save
from lra_ssm.layers import S6, BlockSpec, LayerSpec, MambaBlock
from lra_ssm.models import LanguageModel
from lra_ssm.tasks import OptimizerSettings
from lra_ssm.tasks.optim import optimizer_and_schedule, parameter_groups, parameter_rates
from ssm_benchmark import group_of as group_of_classifier
from ssm_benchmark import mamba_names

CONFIG = Path(__file__).parents[2] / "configs" / "lm" / "wikitext103" / "mamba.yaml"
WIDTH, DEPTH, STATES, LENGTH, BATCH = 64, 2, 16, 256, 8
RANK = WIDTH // 16
CLIP = 1.0  # experiment/pile/base.yaml: gradient_clip_val
MULTIPLE = 16  # mamba-360m.yaml: pad_vocab_size_multiple


def public_model(vocabulary: int) -> MambaForCausalLM:
    """Build the model at the small size, with as many rows of the embedding as mamba-bare pads to."""
    config = MambaConfig(
        vocab_size=math.ceil(vocabulary / MULTIPLE) * MULTIPLE, hidden_size=WIDTH, num_hidden_layers=DEPTH,
        state_size=STATES, time_step_rank=RANK, rescale_prenorm_residual=True, use_mambapy=True,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return MambaForCausalLM(config).train()


def public_groups(checkout: Path, model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return mamba-bare's groups of the parameters, which its imports of hydra and CUDA extensions do not touch."""
    for name in ("hydra", "mamba_core", "mamba_core.modules", "mamba_core.modules.seq_common"):
        sys.modules[name] = ModuleType(name)
    sys.modules["mamba_core.modules.seq_common"].__dict__["PositionalEncoding"] = nn.Identity  # there is none here
    sys.path.insert(0, str(checkout))
    from train.optim.param_grouping import group_parameters_for_optimizer

    for name, p in model.named_parameters():  # its Mamba marks these, transformers' does not
        if name.endswith(("A_log", ".D")):
            p.__dict__["_no_weight_decay"] = True
    groups: list[dict[str, Any]] = group_parameters_for_optimizer(model, _Settings(weight_decay=weight_decay))
    return groups


class _Settings(dict[str, Any]):
    """As OmegaConf has it: values by key and by attribute."""

    __getattr__ = dict.__getitem__


def schedule(settings: dict[str, Any], rate: float, steps: int) -> Callable[[int], float]:
    """Return timm's cosine with warm-up as a share of the rate: a line from warmup_lr_init, half a cosine to lr_min.

    settings: `scheduler` of the YAML file, t_initial in place of which stand the steps that are left.
    """
    warmup, first, least = settings["warmup_t"], float(settings["warmup_lr_init"]), float(settings["lr_min"])

    def share(step: int) -> float:
        if step < warmup:
            return (first + step * (rate - first) / warmup) / rate
        cosine = 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
        return (least + (rate - least) * cosine) / rate

    return share


def our_network(vocabulary: int) -> LanguageModel:
    """Return the network of our config at the small size."""
    given = yaml.safe_load(CONFIG.read_text())["model"]["init_args"]["network"]["init_args"]
    layer = given.pop("layer")["init_args"] | {"d_state": STATES, "delta_rank": RANK}
    given["block"] = BlockSpec(MambaBlock, **given["block"]["init_args"])
    small = {"vocab_size": vocabulary, "d_model": WIDTH, "n_layers": DEPTH}
    return LanguageModel(LayerSpec(S6, **layer), **given | small).train()


def names() -> Names:
    """Return our parameters -> theirs."""
    table: dict[str, str | From] = {
        "backbone.embedding.weight": "backbone.embeddings.weight",  # and the head
        "backbone.norm.weight": "backbone.norm_f.weight",
    }
    for i in range(DEPTH):
        ours, theirs = f"backbone.blocks.{i}", f"backbone.layers.{i}"
        table |= {f"{ours}.norm.weight": f"{theirs}.norm.weight"}
        table |= mamba_names(ours, f"{theirs}.mixer", RANK, STATES)
    return table


def group_of(name: str) -> str:
    """Return the group in which the gradient of one of our parameters is counted."""
    return "embedding" if "embedding" in name else "norms" if "norm" in name else group_of_classifier(name)


def windows(file: Path) -> tuple[list[tuple[Tensor, Tensor]], int]:
    """Return batches of (inputs, targets), both (BATCH, LENGTH) ids of characters, and the number of characters."""
    text = file.read_text()
    known = {character: number for number, character in enumerate(sorted(set(text)))}
    ids = np.array([known[character] for character in text])
    count = (len(ids) - 1) // LENGTH
    pairs = np.stack([ids[: count * LENGTH], ids[1 : count * LENGTH + 1]]).reshape(2, count, LENGTH)
    pairs = torch.from_numpy(pairs[:, np.random.default_rng(0).permutation(count)])
    return list(zip(*(each.split(BATCH) for each in pairs), strict=True))[: count // BATCH], len(known)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    out = model(batch[0])
    return F.cross_entropy((out if isinstance(out, Tensor) else out.logits).flatten(0, 1), batch[1].flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--config", action="store_true", help="what our config does otherwise")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    batches, vocabulary = windows(options.text)
    experiment = options.checkout / "train" / "configs" / "experiment" / "example" / "mamba-360m.yaml"
    train = yaml.safe_load(experiment.read_text())["train"]
    rate, betas = train["optimizer"]["lr"], train["optimizer"]["betas"]
    share = schedule(train["scheduler"], rate, options.steps)
    settings = OptimizerSettings.of(yaml.safe_load(CONFIG.read_text())["model"]["init_args"]["optimizer"])

    def theirs() -> TorchPeer:
        torch.manual_seed(0)
        model = public_model(vocabulary)
        groups = public_groups(options.checkout, model, train["optimizer"]["weight_decay"])
        optimizer = AdamW(groups, lr=rate, betas=betas)
        return TorchPeer(model, loss, optimizer, group_of, LambdaLR(optimizer, share), CLIP, names())

    def ours(weights: nn.Module, as_config: bool) -> TorchPeer:
        network = our_network(vocabulary)
        load_weights(network, arrays_of(weights), names())
        if as_config:
            made = optimizer_and_schedule(network, settings, options.steps)
            return TorchPeer(network, loss, made["optimizer"], group_of, made["lr_scheduler"]["scheduler"], CLIP)
        rates = {
            name: each._replace(weight_decay=settings.weight_decay) if "delta_" in name and "bias" not in name else each
            for name, each in parameter_rates(network, settings).items()
        }
        optimizer = AdamW(parameter_groups(network, rates), betas=settings.betas)
        return TorchPeer(network, loss, optimizer, group_of, LambdaLR(optimizer, share), CLIP)

    about = {
        "source": "transformers' Mamba, AnnanYu/mamba-bare",
        "commit": "3a1526268af9",
        "sizes": f"{DEPTH} × {WIDTH}, {STATES} states, length {LENGTH}, batch {BATCH}",
    }
    public = theirs()
    if options.config:  # ours in place of the public code, whose losses it has
        peers = [ours(public.model, as_config) for as_config in (False, True)]
        comparison = compare(*peers, batches, options.steps)
        ways = "ours: the public ways (red), our config (blue)"
        save("mamba-bare-config", comparison, options.out, about=ways, **about)
    else:
        comparison = run_case(
            "mamba-bare", public, lambda: ours(public.model, False), batches, options.steps, options.out,
            about="the public ways", **about,
        )  # fmt: skip
    print("mean losses of the last 100 steps", comparison.rows.filter(like="loss").tail(100).mean().to_dict())


if __name__ == "__main__":
    main()
