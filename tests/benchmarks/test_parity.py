"""The comparison of two implementations, on a peer written here: a linear model under other names, trained by hand."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from compare import (
    From,
    TorchPeer,
    compare,
    load_weights,
    our_peer,
    perturb,
    run_case,
    run_missing,
    save,
    translate,
)
from lra_ssm.layers import LRU
from lra_ssm.models import Classifier
from lra_ssm.tasks.optim import OptimizerSettings

NAMES = {"weight": From("W", lambda W: -W.T), "bias": From(("b", "c"), lambda b, c: b + c)}
ABOUT = {"source": "by hand", "commit": "none", "sizes": "3 × 2", "about": "two ways"}


class ByHand:
    """y = b + c - x W with gradient descent written out in numpy; it knows no PyTorch."""

    def __init__(self, rate: float = 0.1) -> None:
        random = np.random.default_rng(0)
        self.w = {"W": random.normal(size=(3, 2)).astype("f"), "b": np.zeros(2, "f"), "c": np.ones(2, "f")}
        self.rate = rate

    def step(self, batch):
        x, y = (each.numpy() for each in batch)
        error = self.w["b"] + self.w["c"] - x @ self.w["W"] - y
        slope = 2 * error / error.size
        gradient = {"W": -x.T @ slope, "b": slope.sum(0)}
        self.w["W"] = self.w["W"] - self.rate * gradient["W"]
        self.w["b"] = self.w["b"] - self.rate * gradient["b"]
        return float((error**2).mean()), {name: float(np.linalg.norm(each)) for name, each in gradient.items()}

    def weights(self):
        return translate(self.w, NAMES)


def linear(like: ByHand, rate: float, clip: float | None = None) -> TorchPeer:
    model = nn.Linear(3, 2)
    load_weights(model, like.w, NAMES)

    def squares(model, batch):
        return ((model(batch[0]) - batch[1]) ** 2).mean()

    optimizer = torch.optim.SGD(model.parameters(), rate)
    return TorchPeer(model, squares, optimizer, {"weight": "W", "bias": "b"}.__getitem__, clip=clip)


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(5, 3, generator=generator), torch.randn(5, 2, generator=generator)) for _ in range(4)]


def test_equal_programs_have_equal_losses_norms_and_weights(batches, tmp_path):
    theirs = ByHand()
    found = run_case("same", theirs, lambda: linear(theirs, 0.1), batches, 10, tmp_path, **ABOUT)
    assert found.rows["loss theirs"][10] < found.rows["loss theirs"][2] and found.rows["difference"].max() < 1e-5
    assert 1e-9 < found.rows["difference control"].max() < 1e-5
    for group in ("W", "b"):
        theirs, ours = (found.rows[f"gradient {group} {peer}"] for peer in ("theirs", "ours"))
        np.testing.assert_allclose(theirs, ours, rtol=1e-4)
    assert found.weights.keys() == {"weight", "bias"} and max(found.weights.values()) < 1e-6
    assert (tmp_path / "same.png").stat().st_size > 1000


@pytest.mark.parametrize(("rate", "clip"), [(0.11, None), (0.1, 0.5)])
def test_another_rate_or_clipping_is_seen_and_is_in_the_files(rate, clip, batches, tmp_path):
    theirs = ByHand()
    found = compare(theirs, linear(theirs, rate, clip), batches, steps=10)
    difference = found.rows["difference"]
    assert difference[1] < 1e-6 and difference.max() > 1e-3 and max(found.weights.values()) > 1e-3
    for source in ("first", "second"):
        save("other", found, tmp_path, **ABOUT | {"source": source})
    again = pd.read_csv(tmp_path / "other.csv", comment="#", index_col="step")
    pd.testing.assert_frame_equal(again, found.rows, rtol=1e-5, atol=1e-12)
    *_, line = (tmp_path / "other.csv").read_text().splitlines()
    assert line == f"# weights,bias,{found.weights['bias']:.3g}"
    (row,) = pd.read_csv(tmp_path / "summary.csv").to_dict("records")
    assert (row["case"], row["source"], row["steps"]) == ("other", "second", 10)
    assert row["largest"] == pytest.approx(difference.max(), rel=0.05)


def test_a_network_of_ours_against_itself_with_a_control():
    def peer(size: float = 0.0) -> TorchPeer:
        torch.manual_seed(0)
        network = perturb(Classifier(LRU, num_classes=3, vocab_size=5, d_model=6, n_layers=1), size)
        return our_peer(network, OptimizerSettings(lr=0.01, warmup_steps=2), 20, lambda name: "all")

    batch = torch.arange(36).view(4, 9) % 5, torch.tensor([9, 3, 4, 9]), torch.tensor([0, 1, 2, 1])
    found = compare(peer(), peer(), [batch], steps=4, control=peer(1e-4))
    assert not found.rows["difference"].any() and set(found.weights.values()) == {0.0}
    assert 1e-7 < found.rows["difference control"].max() < 1e-1


def test_the_table_of_names_is_complete_on_both_sides():
    weights = ByHand().w
    with pytest.raises(ValueError, match="does not use: b, c"):
        translate(weights, {"weight": "W"})
    with pytest.raises(ValueError, match="differ in .'bias'"):
        load_weights(nn.Linear(3, 2), weights, {"weight": NAMES["weight"]}, unused=("b", "c"))
    with pytest.raises(ValueError, match=r"weight: theirs gives \(3, 2\), ours has \(2, 3\)"):
        load_weights(nn.Linear(3, 2), weights, NAMES | {"weight": "W"})


def test_a_queue_goes_on_where_it_stopped(tmp_path):
    file, ran = tmp_path / "queue.csv", []

    def run(way: str, seed: int) -> dict[str, str]:
        ran.append((way, seed))
        if len(ran) == 2:
            raise KeyboardInterrupt
        return {"test accuracy": f"{0.5 + seed}"}

    keys = [{"way": way, "seed": seed} for seed in (0, 1) for way in ("a", "b, c")]
    with pytest.raises(KeyboardInterrupt):
        run_missing(file, keys, run)
    for _ in range(2):
        run_missing(file, keys, run)
    assert ran == [("a", 0), ("b, c", 0), ("b, c", 0), ("a", 1), ("b, c", 1)]
    assert file.read_text() == 'way,seed,test accuracy\na,0,0.5\n"b, c",0,0.5\na,1,1.5\n"b, c",1,1.5\n'
