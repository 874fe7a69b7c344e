"""S4D of state-spaces/s4 v3.0.0 and ours, each from its own initialization; and what each difference changes.

    python benchmarks/parity/s4_accuracy.py s4 --data=data          # s4: a checkout, see s4.py

The column `way`: "public" is v3.0.0's own code and settings. Ours has the same optimizer and

    config          zero-order hold, padding masked: as configs/lra/*/s4d.yaml
    as public       the bilinear rule, and batch norm that counts padding (`norm: batch_padded`)
    counted         only the latter
    seen            `padding: seen`: layers read padding too, in the reversed direction first
    bilinear        only the rule
    B of HiPPO      B starts as in state-spaces/s4's HEAD: LegS's own, clipped at 2, in place of 1

Short ListOps is the quickstart's (at most 40 tokens), MNIST has 14 × 14 pixels, Text is cut to 1,024 characters. Two
layers of width 64 with 64 states; 2,000 steps of 32 expressions or 8 images, and 600 of 16 reviews. Every finished run
is appended to s4-accuracy.csv, and not made again, so that the script can be stopped and started.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compare import RESULTS, TorchPeer, forever, our_peer, report, run_missing, smaller, train_and_test
from lra_ssm.datamodules import MNIST, ListOps, Text
from lra_ssm.layers import S4D, BlockSpec, LayerSpec, S4Block
from lra_ssm.models import Classifier
from lra_ssm.ops import hippo_legs_normal
from s4 import (
    STATES,
    WIDTH,
    Case,
    Scheduled,
    build_public,
    group,
    import_public,
    public_logits,
    public_settings,
    settings,
)

FILE = RESULTS / "s4-accuracy.csv"
KEY = ("task", "way", "seed")


@dataclass(frozen=True)
class Task:
    experiment: str  # of v3.0.0
    steps: int
    vocabulary: int | None
    classes: int
    prenorm: bool
    norm: str = "batch"
    dropout: float = 0.0


TASKS = {
    "listops": Task("lra/s4-lra-listops", 2000, 18, 10, False),
    "mnist": Task("lra/s4-lra-cifar", 2000, None, 10, False, "layer", 0.1),
    "text": Task("lra/s4-lra-imdb", 600, 135, 2, True),
}
EFFECTS = ("counted", "seen", "bilinear", "B of HiPPO")


def queue() -> Iterator[tuple[str, str, int]]:
    """What matters most comes first."""
    for seed in range(3):
        yield from (("listops", way, seed) for way in ("public", "config", "as public", *EFFECTS))
    for seed in range(3):
        yield from (("mnist", way, seed) for way in ("public", "config"))
    for seed in range(3):
        yield from (("text", way, seed) for way in ("config", *EFFECTS))


def data_of(name: str, seed: int, root: Path) -> tuple[list[Any], list[Any]]:
    """Batches (inputs, lengths, labels) of the training, and of the test split: of Text every fifth batch."""
    data: Any
    if name == "listops":
        data = ListOps(root=str(root), batch_size=32, eval_batch_size=200, length_bounds=(3, 40), max_depth=4,
                       num_train=16_000, shuffle_seed=seed)  # fmt: skip
    elif name == "mnist":
        data = MNIST(root=str(root), batch_size=8, eval_batch_size=200, shuffle_seed=seed)
    else:
        data = Text(root=str(root), batch_size=16, eval_batch_size=50, max_length=1024, shuffle_seed=seed)
    data.prepare_data()
    data.setup("fit")
    train = [as_read(batch) for batch in islice(forever(data.train_dataloader()), TASKS[name].steps)]
    data.setup("test")
    return train, [as_read(batch) for batch in islice(data.test_dataloader(), 0, None, 5 if name == "text" else 1)]


def as_read(batch: Any) -> Any:
    """Images of 28 × 28 pixels as 14 × 14 means, in rows."""
    inputs, lengths, labels = batch
    if not inputs.is_floating_point():
        return inputs.long(), lengths, labels
    return smaller(inputs, 2), None, labels


def hippo_B(N: int) -> Tensor:
    """B of HiPPO-LegS in the basis of its normal part, clipped at 2 as state-spaces/s4's HEAD does: (N,) complex."""
    _, vectors = hippo_legs_normal(N)
    B = vectors.conj().T @ (2 * torch.arange(2 * N, dtype=torch.float64) + 1).sqrt().to(vectors.dtype)
    return torch.complex(B.real.clamp(-2, 2), B.imag.clamp(-2, 2)).to(torch.complex64)


def our_network(task: Task, way: str) -> Classifier:
    rule = "bilinear" if way in ("bilinear", "as public") else "zoh"
    norm = "batch_padded" if way in ("counted", "as public") and task.norm == "batch" else task.norm
    layer = LayerSpec(S4D, d_state=STATES, bidirectional=True, discretization=rule)
    block = BlockSpec(S4Block, norm=norm, prenorm=task.prenorm, dropout=task.dropout)
    network = Classifier(
        layer, task.classes, task.vocabulary, None if task.vocabulary else 1, WIDTH, 2, block,
        padding="seen" if way == "seen" else "masked",
    )  # fmt: skip
    if way == "B of HiPPO":
        for each in network.modules():
            if isinstance(each, S4D):
                with torch.no_grad():
                    each.B.copy_(torch.view_as_real(hippo_B(STATES // 2)).expand_as(each.B))
    return network


def our_logits(network: nn.Module, batch: Any) -> Tensor:
    return network(batch[0], batch[1])


def peer_of(task: Task, way: str, checkout: Path, train: Any) -> TorchPeer:
    if way != "public":
        return our_peer(our_network(task, way), settings("v3", task.steps), task.steps, group)
    case = Case({"v3": task.experiment}, "", 0, task.prenorm, 2)
    chosen = public_settings("v3", case, task.steps)
    module = build_public(checkout, train, task.experiment, task.vocabulary or 0, task.classes, chosen)
    return Scheduled(module, {}, [])


def run(checkout: Path, train_module: Any, root: Path, task: str, way: str, seed: int) -> dict[str, str]:
    """Trains and tests once."""
    train, test = data_of(task, seed, root)
    torch.manual_seed(seed)
    peer = peer_of(TASKS[task], way, checkout, train_module)
    return train_and_test(peer, train, test, public_logits if way == "public" else our_logits)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="of state-spaces/s4 at v3.0.0")
    parser.add_argument("--data", type=Path, default=Path("data"), help="data root, with Text prepared and MNIST")
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--only", default="", help="one task")
    given = parser.parse_args(arguments)
    train = import_public(given.checkout)
    torch.set_num_threads(1)
    keys = [dict(zip(KEY, key, strict=True)) for key in queue() if given.only in ("", key[0])]
    run_missing(given.file, keys, partial(run, given.checkout, train, given.data))
    report(given.file, KEY[:-1])


if __name__ == "__main__":
    main()
