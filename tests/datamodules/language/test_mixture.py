"""Corpora mixed by weights: exact shares, every window of a corpus before any comes again, resumed anywhere."""

import json
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning import LightningDataModule
from tokenizers import Tokenizer, models, pre_tokenizers

from lra_ssm.cli.parser import RunParser
from lra_ssm.datamodules import Corpus, ListOps, Mixture
from lra_ssm.datamodules.language.mixture import MixtureBatches
from lra_ssm.errors import InputError
from lra_ssm.runs.checks import check_vocabulary
from lra_ssm.runs.record import data_digests
from tests.datamodules.language.helpers import MadeUp
from tests.datamodules.language.test_module import fit, plain, targets

SIZES = [(80, 1, 7), (3, 5, 9, 3), (200,)]  # tokens: 88, 20, 200; windows of 8: 11, 3, 25
CORPORA = [partial(MadeUp, lengths=lengths, text_seed=seed) for seed, lengths in enumerate(SIZES)]
COUNTS = [11, 3, 25]


def mixture(root: Path, stage: str | None = "fit", **settings: Any) -> Mixture:
    settings = {"weights": [1, 1, 2], "epoch_windows": 22, "batch_size": 4, "shuffle_seed": 7, **settings}
    data = Mixture(settings.pop("corpora", CORPORA), root=str(root), length=8, **settings)
    data.prepare_data()
    data.setup(stage)
    return data


def naive(counts: list[int], quotas: list[int], epochs: int) -> list[list[int]]:
    """For each stream how often each of its windows was taken, if passes are whole."""
    return [
        sorted(epochs * quota // count + (i < epochs * quota % count) for i in range(count))
        for count, quota in zip(counts, quotas, strict=True)
    ]


def test_shares_are_exact_and_no_window_comes_again_before_its_pass_is_over() -> None:
    quotas = [6, 5, 11]
    batches = MixtureBatches(COUNTS, quotas, 4, 7)
    firsts = np.cumsum([0, *COUNTS])
    taken: list[list[int]] = [[], [], []]
    for epoch in range(12):
        order = sum(batches.batches(epoch), [])
        streams = firsts.searchsorted(order, side="right") - 1
        assert Counter(streams.tolist()) == dict(enumerate(quotas)) and len(order) == 22
        assert len(set(streams[:8].tolist())) > 1  # mixed, not one behind the other
        for window, stream in zip(order, streams.tolist(), strict=True):
            taken[stream].append(window - firsts[stream])
        counted = [sorted(Counter(t).get(w, 0) for w in range(c)) for t, c in zip(taken, COUNTS, strict=True)]
        assert counted == naive(COUNTS, quotas, epoch + 1)
    for windows, count in zip(taken, COUNTS, strict=True):
        passes = [windows[i : i + count] for i in range(0, len(windows) - count + 1, count)]
        assert all(sorted(p) == list(range(count)) for p in passes)
        assert count == 3 or len({str(p) for p in passes}) == len(passes) > 1  # each in an order of its own


def test_the_order_is_one_of_the_seed() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return sum(MixtureBatches(COUNTS, [6, 5, 11], 4, seed).batches(epoch), [])

    assert order(7, 3) == order(7, 3)
    assert len({str(order(seed, epoch)) for seed in (0, 1, 2**32, -1) for epoch in range(3)}) == 12


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_the_batches(world_size: int) -> None:
    whole = list(MixtureBatches(COUNTS, [6, 5, 13], 4, 7))
    ranks = [list(MixtureBatches(COUNTS, [6, 5, 13], 4, 7, rank, world_size)) for rank in range(world_size)]
    for number, batch in enumerate(whole):
        assert [rank[number] for rank in ranks] == [batch[rank::world_size] for rank in range(world_size)]


@pytest.mark.parametrize(
    ("weights", "epoch_windows", "quotas"),
    [
        ([1, 1, 2], 22, [6, 5, 11]), ([1, 1, 1], 10, [4, 3, 3]), ([0.5, 0.25, 0.25], 39, [19, 10, 10]),
        (None, None, COUNTS), (None, 78, [22, 6, 50]), ([5, 5, 90], 100, [5, 5, 90]), ([1, 1, 1], None, [13, 13, 13]),
    ],
)  # fmt: skip
def test_shares_by_weight(tmp_path: Path, weights: Any, epoch_windows: Any, quotas: list[int]) -> None:
    data = mixture(tmp_path, weights=weights, epoch_windows=epoch_windows)
    assert data.quotas(COUNTS) == quotas
    loader = data.train_dataloader()
    assert loader.state_dict()["shares"] == quotas and loader.state_dict()["corpora"] == COUNTS
    assert sum(len(batch.inputs) for batch in loader) == sum(quotas)
    assert data.train_batches() == len(loader)
    order = data._training_order(data._datasets["train"], None, 0, 1)  # overfitting mixes too
    assert list(order) == list(data._training_order(data._datasets["train"], 7, 0, 1))


def test_a_share_as_large_as_the_corpora_takes_every_token_once(tmp_path: Path) -> None:
    data = mixture(tmp_path, None, weights=None, epoch_windows=None)
    for loader, name in (
        (data.train_dataloader(), "train"), (data.val_dataloader(), "val"), (data.test_dataloader(), "test")
    ):  # fmt: skip
        tokens = [t for split in data.text_splits(name) for t in split.tokens(0, split.num_tokens).tolist()]
        assert targets(loader) == sorted(tokens) and data.text_counts(name).tokens == len(tokens)


@pytest.mark.parametrize("evaluation", [{"evaluation": "streams"}, {"evaluation": "sliding", "eval_stride": 3}])
def test_evaluation_takes_the_corpora_one_behind_the_other(tmp_path: Path, evaluation: dict[str, Any]) -> None:
    data = mixture(tmp_path, None, **evaluation)
    tokens = [t for split in data.text_splits("val") for t in split.tokens(0, split.num_tokens).tolist()]
    batches = list(data.val_dataloader())
    assert targets(data.val_dataloader()) == sorted(tokens)
    assert data.eval_carries_state == (evaluation["evaluation"] == "streams") and not data.carries_state
    if data.eval_carries_state:
        own = [batch for corpus in CORPORA for batch in alone(corpus, tmp_path).val_dataloader()]
        assert [plain(a) for a in batches] == [plain(b) for b in own]


def alone(corpus: Any, root: Path) -> MadeUp:
    data = corpus(root=str(root), evaluation="streams")
    data.prepare_data()
    data.setup("validate")
    return data


def test_resuming_at_any_batch_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    loader = mixture(tmp_path).train_dataloader()
    whole, steps = [plain(batch) for _ in range(4) for batch in loader], len(loader)
    for trained in range(3 * steps):
        loader.trained = lambda trained=trained: trained
        assert [plain(batch) for batch in loader] == whole[trained : trained + steps]
    helped = mixture(tmp_path, num_workers=2)
    again = helped.train_dataloader()
    assert [plain(batch) for _ in range(2) for batch in again] == whole[: 2 * steps]
    helped.teardown()


@pytest.mark.filterwarnings("ignore")
def test_a_fit_goes_on_with_the_same_shares_alone(tmp_path: Path) -> None:
    trainer, _ = fit(mixture(tmp_path), 7, tmp_path)
    trainer.save_checkpoint(tmp_path / "middle.ckpt")
    with pytest.raises(InputError, match=r"written with shares \[6, 5, 11\], this run has \[11, 6, 5\]"):
        fit(mixture(tmp_path, weights=[2, 1, 1]), 11, tmp_path, tmp_path / "middle.ckpt")


def test_what_decides_a_result_is_said(tmp_path: Path) -> None:
    def identity(**settings: Any) -> str:
        return json.dumps(mixture(tmp_path, None, **settings).identity(), sort_keys=True)

    settings: list[dict[str, Any]] = [
        {}, {"weights": [1, 2, 1]}, {"corpora": CORPORA[::-1]}, {"epoch_windows": 23}, {"isolate": False},
        {"batch_size": 2}, {"shuffle_seed": 8}, {"evaluation": "streams"},
    ]  # fmt: skip
    assert len({identity(**s) for s in settings}) == len(settings) and identity(num_workers=1) == identity()
    data = mixture(tmp_path)
    assert len(data_digests(data.manifest())) == 1 + sum(
        len(data_digests(corpus.manifest())) - 1 for corpus in data.built
    )
    json.dumps(data.provenance())
    assert data.describe().startswith(
        "mixture in windows of 8; an epoch has 6 of 11 windows (27.3%) of made-up (made-up)"
    )

    class Task:
        hparams = {"network": {"init_args": {"vocab_size": 299}}}

    with pytest.raises(InputError, match=r"vocab_size is 299, but Mixture's .* has 300 tokens; set it to 300"):
        check_vocabulary(Task(), data)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"corpora": []}, "Mixture corpora: there is none"),
        ({"weights": [1, 2]}, "Mixture weights [1, 2]: must be one for each of 3 corpora"),
        ({"weights": [1, 0, 1]}, "Mixture weights [1, 0, 1]: must be positive numbers"),
        ({"weights": [1, float("nan"), 1]}, "must be positive numbers"),
        ({"epoch_windows": 0}, "Mixture epoch_windows 0: must be at least 1"),
        ({"corpora": [ListOps]}, "Mixture corpora.0 must be a data module of text by its class, got <class"),
        ({"corpora": [MadeUp()]}, "Mixture corpora.0 must be a data module of text by its class, got <tests."),
        (
            {"corpora": [*CORPORA[:2], partial(MadeUp, length=16)]},
            "Mixture corpora.2.length is 16: the mixture's, 8, st",
        ),
        ({"weights": [1, 1000, 1000]}, "would have 0.011, none: give a larger weight, more epoch_windows or a shorter"),
        ({"corpora": [MadeUp, partial(MadeUp, tokenizer_text="[]")], "weights": None}, "the tokenizers of"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        mixture(tmp_path, **settings).train_batches()


# -- in a configuration --------------------------------------------------------------------------------------------

MADE_UP = "tests.datamodules.language.helpers.MadeUp"


def parsed(*arguments: str) -> Any:
    parser = RunParser()
    parser.add_subclass_arguments(LightningDataModule, "data")
    return parser.instantiate_classes(parser.parse_args(list(arguments))).data


def given(corpora: Any, **settings: Any) -> str:
    init_args = {"corpora": corpora, "length": 8, **settings}
    return "--data=" + json.dumps({"class_path": "lra_ssm.datamodules.Mixture", "init_args": init_args})


@pytest.mark.filterwarnings("ignore")
def test_a_configuration_gives_corpora_by_class_path_and_init_args(tmp_path: Path) -> None:
    corpora = [{"class_path": MADE_UP, "init_args": {"text_seed": 3}}, MADE_UP]
    data = parsed(given(corpora, weights=[3, 1], root=str(tmp_path)))
    assert [corpus.text_seed for corpus in data.built] == [3, 0] and data.weights == [3, 1]
    assert all(corpus.data_root == tmp_path for corpus in data.built)
    added = parsed(given([MADE_UP]), f"--data.corpora+={MADE_UP}", "--data.corpora.text_seed=4")
    assert [corpus.text_seed for corpus in added.built] == [0, 4]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("argument", "said"),
    [
        (
            given([{"class_path": MADE_UP, "init_args": {"text_sed": 3}}]),
            "takes no key 'text_sed'; did you mean 'text_seed'?",
        ),
        (
            given([{"class_path": MADE_UP, "init_args": {"root": "x"}}]),
            "takes no key 'root'; it takes batch_size",
        ),
        (
            given(["lra_ssm.datamodules.ListOps"]),
            "data.corpora: Expected 'lra_ssm.datamodules.ListOps' to be a subclass of",
        ),
    ],
)
def test_a_wrong_key_is_one_line_with_the_nearest(argument: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        parsed(argument)


def test_corpora_whose_documents_end_with_other_tokens_are_refused(tmp_path: Path) -> None:
    """Of one tokenizer.json; so is the checkpoint of a model that was trained on the other."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for split in ("train", "val"):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{split}.txt").write_text("A first line.\nA second line.\n")
    given = {"source": str(tmp_path / "texts"), "tokenizer": str(tmp_path / "tokenizer.json"), "documents": "line"}
    ends = [partial(Corpus, **given), partial(Corpus, **given, end_of_text="<|im_end|>")]
    mixture = Mixture(ends, root=str(tmp_path / "data"), length=8, batch_size=2)
    mixture.prepare_data()
    with pytest.raises(InputError, match=r"documents end with token 256 and 257 in .* and .* one end_of_text$"):
        mixture.setup("fit")
    one, other = mixture.built
    other.load_state_dict(other.state_dict())
    with pytest.raises(InputError, match="the checkpoint's documents end with token 256, the data's with 257"):
        other.load_state_dict(one.state_dict())
