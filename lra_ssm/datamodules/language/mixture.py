"""Several corpora of text, mixed by weights.

An epoch takes so many windows of each as its weight says.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from lra_ssm.datamodules.language.module import LanguageDataModule, WindowedDataModule
from lra_ssm.datamodules.language.windows import TokenWindows
from lra_ssm.datamodules.loading.batches import BatchDataset
from lra_ssm.datamodules.loading.loader import EpochBatches
from lra_ssm.datamodules.storage.format import TokenSplit, num_examples
from lra_ssm.errors import InputError

# Settings of a corpus that the mixture's stand for.
_OVERRULED = ("length", "batch_size", "order", "isolate", "evaluation", "eval_stride", "shuffle_seed")


class CorpusFactory(Protocol):
    """A data module of text whose settings are given but for where the data lies."""

    def __call__(self, *, root: str | None) -> LanguageDataModule: ...


class MixtureBatches(EpochBatches):
    """Batches of windows of several streams, in fixed shares.

    Stream i has windows in shuffled passes, each over all of them, by (seed, i, pass); epoch e takes its next
    quotas[i]. Which stream's window comes next is shuffled by (seed, epoch).

    Args:
        counts: windows of the streams, which examples number through.
        quotas: how many of each an epoch takes.
        batch_size, seed, rank, world_size: as for `EpochBatches`.
    """

    def __init__(
        self, counts: list[int], quotas: list[int], batch_size: int, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        super().__init__(sum(quotas), batch_size, seed, rank, world_size)
        self.counts, self.quotas, self._seed = counts, quotas, seed

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "corpora": self.counts, "shares": self.quotas}

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        order = super().order(epoch)
        taken = order.copy()
        first, begin = 0, 0
        for stream, (count, quota) in enumerate(zip(self.counts, self.quotas, strict=True)):
            places = np.flatnonzero((order >= begin) & (order < begin + quota))
            taken[places] = first + self._windows(stream, count, epoch * quota, (epoch + 1) * quota)
            first, begin = first + count, begin + quota
        return taken

    def _windows(self, stream: int, count: int, begin: int, end: int) -> npt.NDArray[np.int64]:
        """The windows number begin … end − 1 that a training takes of a stream."""
        parts = []
        for number in range(begin // count, -(-end // count)):
            words = (self._seed & 0xFFFFFFFF, (self._seed >> 32) & 0xFFFFFFFF, stream, number)
            windows = np.random.RandomState(words).permutation(count)
            parts.append(windows[max(begin - number * count, 0) : end - number * count])
        return np.concatenate(parts)


@dataclass(kw_only=True, eq=False, repr=False)
class Mixture(WindowedDataModule):
    """Corpora of the same tokenizer, mixed by weights. Batches are `TokenBatch`.

    An epoch takes a fixed number of windows of each corpus, which goes on with the next ones in the next epoch: through
    all its windows before any of them comes again. Validation and test are those of the corpora, one behind the other;
    weights do not count there. Each corpus is prepared by itself.

    Takes what every `WindowedDataModule` takes, and its own:

    Args:
        corpora: data modules of text, given by class_path and init_args without `root`; in Python a class, or
            `functools.partial(Corpus, source=…)`. Their windows and batches must not be other ones than given here.
        weights: their shares of an epoch, as positive numbers, whatever their sum; None for the corpora's sizes.
        epoch_windows: windows of an epoch; None for as many as all corpora have.

    Raises:
        InputError: settings that cannot be met; corpora of different tokenizers, once they are prepared.
    """

    dataset: ClassVar[str] = "mixture"

    corpora: list[CorpusFactory] = field(kw_only=False)
    weights: list[float] | None = None
    epoch_windows: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.epoch_windows is None or self.epoch_windows >= 1, "epoch_windows", "must be at least 1")
        self.built = [self._built(corpus, number) for number, corpus in enumerate(self.corpora)]
        if not self.built:
            raise InputError("Mixture corpora: there is none; give at least one")
        if self.weights is not None:
            count, weights = len(self.built), self.weights
            self.require(len(weights) == count, "weights", f"must be one for each of {count} corpora")
            self.require(all(0 < weight < np.inf for weight in weights), "weights", "must be positive numbers")

    def _built(self, corpus: Any, number: int) -> LanguageDataModule:
        built = corpus(root=self.root) if callable(corpus) else None
        if not isinstance(built, LanguageDataModule):
            raise InputError(f"Mixture corpora.{number} must be a data module of text by its class, got {corpus!r}")
        for setting in fields(built):
            name, ours = setting.name, getattr(self, setting.name, None)
            given = getattr(built, name)
            if name in _OVERRULED and given not in (setting.default, ours):
                raise InputError(
                    f"Mixture corpora.{number}.{name} is {given!r}: the mixture's, {ours!r}, stands for it"
                )
        return built

    # -- preparation -----------------------------------------------------------------------------------------------

    def prepare_data(self) -> None:
        for corpus in self.built:
            corpus.prepare_data()

    def source_digests(self) -> dict[str, str]:
        """Of all corpora; as of any data that is prepared."""
        return {name: digest for corpus in self.built for name, digest in corpus.source_digests().items()}

    def is_prepared(self) -> bool:
        """Whether nothing is left to prepare."""
        return all(corpus.is_prepared() for corpus in self.built)

    def text_splits(self, name: str) -> list[TokenSplit]:
        splits = [split for corpus in self.built for split in corpus.text_splits(name)]
        first, *others = self.built
        for corpus in others:
            both = f"{first.prepared_folder} and {corpus.prepared_folder}"
            if corpus.tokenizer_digest != first.tokenizer_digest:
                raise InputError(f"Mixture: the tokenizers of {both} differ; prepare all corpora with one")
            ends = f"token {first.end_of_text_id} and {corpus.end_of_text_id} in {both}"
            if corpus.end_of_text_id != first.end_of_text_id:
                raise InputError(f"Mixture: documents end with {ends}; prepare all corpora with one end_of_text")
        return splits

    def open_split(self, name: str) -> TokenWindows:
        for corpus in self.built:
            corpus.check_intact(name)
        return super().open_split(name)

    @property
    def tokenizer_file(self) -> Path:
        return self.built[0].tokenizer_file

    # -- loaders ---------------------------------------------------------------------------------------------------

    def quotas(self, counts: list[int]) -> list[int]:
        """How many windows an epoch takes of corpora that have so many: what the weights say, to less than one window.

        Raises:
            InputError: a corpus would have none.
        """
        total = sum(counts) if self.epoch_windows is None else self.epoch_windows
        weights = np.array(counts if self.weights is None else self.weights, dtype=np.float64)
        shares = weights / weights.sum() * total
        quotas = np.floor(shares).astype(np.int64)
        largest = np.argsort(quotas - shares, kind="stable")  # the largest remainders get what rounding left over
        quotas[largest[: total - int(quotas.sum())]] += 1
        for corpus, quota, share in zip(self.built, quotas, shares, strict=True):
            if not quota:
                raise InputError(
                    f"Mixture: of {total} windows of an epoch {corpus.prepared_folder} would have {share:.2g}, none:"
                    " give a larger weight, more epoch_windows or a shorter length"
                )
        return quotas.tolist()

    def _training_order(self, dataset: BatchDataset, seed: int | None, rank: int, world_size: int) -> EpochBatches:
        assert isinstance(dataset, TokenWindows)
        counts = np.diff(dataset.firsts).tolist()
        # Without a seed the corpora would come one behind the other.
        seed = self._resolved_shuffle_seed() if seed is None else seed
        return MixtureBatches(counts, self.quotas(counts), self.batch_size, seed, rank, world_size)

    # -- what a result depends on ----------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """What of this data decides a run's result."""
        corpora = [{key: corpus.identity()[key] for key in ("dataset", "kind", "content")} for corpus in self.built]
        shares = {"weights": self.weights, "epoch_windows": self.epoch_windows}
        batches = {**self.batch_settings(), **self.order_settings()}
        return {"dataset": self.dataset, "corpora": corpora, **shares, "batches": batches}

    def manifest(self) -> dict[str, Any]:
        """The corpora's manifests as one: splits and files under the corpora's names."""
        splits = {}
        for corpus in self.built:
            folder = f"{corpus.dataset}/{corpus.prepared_folder.name}"
            for name, split in corpus.manifest()["splits"].items():
                shards = [
                    {key: {**array, "file": f"{folder}/{array['file']}"} for key, array in shard.items()}
                    for shard in split["shards"]
                ]
                splits[f"{folder}/{name}"] = {**split, "shards": shards}
        first = self.built[0].manifest()
        return {
            "dataset": self.dataset,
            "inputs": "tokens",
            "batches": self.batch_settings(),
            "source": {"kind": "mixture", "weights": self.weights, "epoch_windows": self.epoch_windows},
            **{key: first[key] for key in ("vocab_size", "end_of_text", "tokenizer")},
            "splits": splits,
        }

    def provenance(self) -> dict[str, Any]:
        """What a result must say about its data."""
        manifest = self.manifest()
        examples = {name: num_examples(split) for name, split in manifest["splits"].items()}
        known = {key: manifest[key] for key in ("dataset", "batches", "source", "tokenizer")}
        return {**known, "examples": examples, "corpora": [corpus.provenance() for corpus in self.built]}

    def describe(self) -> str:
        """One line on the corpora and their shares."""
        counts = np.diff(self.open_split("train").firsts).tolist()
        quotas = self.quotas(counts)
        shares = [
            f"{quota:,} of {count:,} windows ({quota / sum(quotas):.1%}) of {corpus.dataset} ({corpus.kind()})"
            for corpus, count, quota in zip(self.built, counts, quotas, strict=True)
        ]
        return f"mixture in windows of {self.length:,}; an epoch has {', '.join(shares)}"
