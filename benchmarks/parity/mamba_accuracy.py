"""jsie7/ssm-benchmark's Mamba and ours, each from its own initialization: test accuracies after 2,000 steps.

    python benchmarks/parity/mamba_accuracy.py ssm-benchmark

ListOps of 20 to 50 tokens and MNIST of 14 × 14 pixels, with the settings of the public listops-mamba.yaml and
cifar-10-mamba.yaml, but 2 layers of width 64, 16 states, batches of 16 and 8, and a rate of 0.001 (with the published
0.0001 and 0.0002 so few steps teach next to nothing). The public model's scan is replaced by ours, which
ssm_benchmark.py shows to be equal: with its own scan a run would take a day. The column `way` says which of the
public ways ours takes: all of them, all but one, or none ("config").

Every finished run is appended to mamba-accuracy.csv, and not made again.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import yaml

from compare import RESULTS, forever, report, run_missing, train_and_test
from lra_ssm.datamodules import MNIST, ListOps
from lra_ssm.layers import S6, BlockSpec, HeadSpec, LayerSpec
from lra_ssm.models import Classifier
from lra_ssm.ops import selective_scan
from ssm_benchmark import (
    DEPTH,
    WIDTH,
    PublicBlock,
    Row,
    SoftmaxHead,
    Ways,
    import_public,
    our_network,
    our_peer,
    pixels,
    public_logits,
    public_peer,
)

STEPS, EPOCH = 2000, 100
FILE = RESULTS / "mamba-accuracy.csv"
ROWS = {
    "listops": Row("listops", "listops-mamba.yaml", 10, d_state=16, rate=1e-3),
    "mnist": Row("image", "cifar-10-mamba.yaml", 10, d_state=16, rate=1e-3),
}
WAYS = {
    "all": Ways(),
    "config": Ways(softmax=False, block=False, padding=False, schedule=False),
    "all but the softmax": Ways(softmax=False),
    "all but padding in the mean": Ways(padding=False),
    "all but the schedule": Ways(schedule=False),
    "all but the residual's scale": Ways(block=False),
}
BY_FREQUENCY = "all, ids by frequency"  # as torchtext numbers tokens: in ListOps these are the inputs
EMBEDDED = "all but numbers for tokens"
KEY = ("task", "code", "way", "seed")


def queue() -> Iterator[tuple[str, str, str, int]]:
    """What matters most comes first."""
    for seed in range(3):
        for task in ROWS:
            yield task, "public", "all", seed
            yield task, "lra_ssm", "all", seed
    for way in list(WAYS)[1:]:
        for task in ROWS:
            if task == "listops" or way in ("config", "all but the softmax"):
                yield from ((task, "lra_ssm", way, seed) for seed in range(3))
    for way in (BY_FREQUENCY, EMBEDDED):
        yield from (("listops", "lra_ssm", way, seed) for seed in range(3))


def data_of(task: str, seed: int, root: Path) -> tuple[list[Any], list[Any]]:
    """Batches (inputs, lengths, labels) of the training, and of the whole test split."""
    data: Any
    if task == "listops":
        data = ListOps(root=str(root), batch_size=16, eval_batch_size=200, max_length=50, length_bounds=(20, 50),
                       num_train=32_000, shuffle_seed=seed)  # fmt: skip
    else:
        data = MNIST(root=str(root), batch_size=8, eval_batch_size=200, shuffle_seed=seed)
    data.prepare_data()
    data.setup("fit")
    train = [_as_read(batch) for batch in islice(forever(data.train_dataloader()), STEPS)]
    data.setup("test")
    return train, [_as_read(batch) for batch in data.test_dataloader()]


def _as_read(batch: Any) -> Any:
    inputs, lengths, labels = batch
    return (pixels(inputs, 2) if inputs.is_floating_point() else inputs.long()), lengths, labels


def numbered_by_frequency(*splits: list[Any]) -> list[list[Any]]:
    """The same batches with ids as torchtext gives them: after <pad>, <unk> and <eos> the most frequent token first."""
    V, special = ListOps.vocab_size, 3
    counts = sum(torch.bincount(inputs.flatten(), minlength=V) for inputs, _, _ in splits[0])
    ids = torch.arange(V)
    ids[special + counts[special:].argsort(descending=True)] = torch.arange(special, V)
    return [[(ids[inputs], lengths, labels) for inputs, lengths, labels in split] for split in splits]


def network_with_embedding(row: Row) -> Classifier:
    """Ours with the public code's ways, but an embedding of tokens in place of numbers."""
    given = row.ours["network"]["init_args"]
    layer = given["layer"]["init_args"] | {"d_state": row.d_state, "delta_rank": -(-WIDTH // 16)}
    block = {name: given["block"]["init_args"][name] for name in ("expand", "norm", "prenorm", "glu")}
    block["scaled"] = True
    return Classifier(
        LayerSpec(S6, **layer), row.num_classes, vocab_size=ListOps.vocab_size, d_model=WIDTH, n_layers=DEPTH,
        block=BlockSpec(PublicBlock, **block), head=HeadSpec(SoftmaxHead),
    )  # fmt: skip


def run(
    public: ModuleType, checkout: Path, root: Path, task: str, code: str, way: str, seed: int
) -> dict[str, str]:  # fmt: skip
    """Trains and tests once."""
    row, ways = ROWS[task], WAYS.get(way, Ways())
    train, test = data_of(task, seed, root)
    if way == BY_FREQUENCY:
        train, test = numbered_by_frequency(train, test)
    torch.manual_seed(seed)
    if code == "public":
        settings = yaml.safe_load((checkout / "configs" / row.public_config).read_text())
        peer, logits = public_peer(public, row, settings, STEPS, EPOCH), public_logits
    else:
        network = network_with_embedding(row) if way == EMBEDDED else our_network(row, ways)
        peer, logits = our_peer(row, ways, network, STEPS, EPOCH), ways.logits
    return train_and_test(peer, train, test, logits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--file", type=Path, default=FILE)
    options = parser.parse_args()
    public = import_public(options.checkout, selective_scan)
    torch.set_num_threads(1)
    keys = [dict(zip(KEY, key, strict=True)) for key in queue()]
    run_missing(options.file, keys, partial(run, public, options.checkout, options.data))
    report(options.file, KEY[:-1])


if __name__ == "__main__":
    main()
