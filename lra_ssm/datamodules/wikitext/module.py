"""WikiText-103 and WikiText-2 as a LightningDataModule for language models.

Source: Merity et al., "Pointer Sentinel Mixture Models" (2016). By words as state-spaces/s4 and transformer-xl have it:
split at white space, `<eos>` for each line, a vocabulary of the training split (267,735 of WikiText-103).
"""

from collections.abc import Mapping
from typing import Any, Literal

from lra_ssm.datamodules.fetch.sources import named_source
from lra_ssm.datamodules.language.documents import CorpusReader
from lra_ssm.datamodules.language.module import Evaluation, LanguageDataModule, Order
from lra_ssm.datamodules.wikitext.reader import (
    HUB_NAME,
    HUB_REVISION,
    Version,
    check_counts,
    fetch_huggingface,
    fetch_published,
    find_at,
    find_huggingface,
    find_published,
    names,
)
from lra_ssm.errors import InputError


class WikiText(LanguageDataModule):
    """WikiText. Batches are `batches.TokenBatch`; documents are articles.

    A fit never downloads: `lra-ssm prepare wikitext103` does.

    Args:
        root: data root; None for LRA_SSM_DATA, else ./data.
        source: "original" for the published archive or its folder below the root (there, or in wikitext or
            wikitext/download); "huggingface" for the Hub's Salesforce/wikitext at a pinned revision; or a path to such
            an archive, to a folder with its files ({train,valid,test}.txt will do), or to the Hub's parquet files.
        version: "103", or the small "2"; both have the same validation and test splits.
        level: "word", where rare words are <unk>, or "raw". A perplexity says which.
        tokenizer: "words" (an `<eos>` for each line), "bytes", "characters", "bpe:16000" (trained on the training
            split), a tokenizer.json or a folder with one, or a name of the Hub ("gpt2", "gpt2@revision").
        end_of_text: of a tokenizer.json: the token that ends documents; None where it is known.
        length: L, tokens of a window.
        batch_size: windows, or streams, per optimizer batch over all devices together.
        eval_batch_size: the same for validation, test and prediction; None for batch_size.
        order: "shuffled" for windows in an order of (shuffle_seed, epoch), each by itself; "streams" for a split cut
            into batch_size rows, whose windows follow each other from batch to batch, so that states can be carried on.
        isolate: whether a document's end drops the state: the model sees nothing of the document before.
        evaluation: "windows" for one behind the other, each by itself; "streams" for states carried on over
            eval_batch_size rows; "sliding" for windows that overlap.
        eval_stride: of "sliding": each window scores so many tokens, which have length − eval_stride before them.
        shuffle_seed: of the order of training windows; None for the run's seed (PL_GLOBAL_SEED, which seed_everything
            sets), else 0.
        num_workers: processes that load ahead. Loading costs little: 0 is enough for most models.
        pin_memory: copy batches to pinned memory; None where there is a CUDA device.

    Raises:
        InputError: settings that cannot be met.
    """

    sources = ("original", "huggingface")

    def __init__(
        self,
        root: str | None = None,
        source: str = "original",
        version: Version = "103",
        level: Literal["word", "raw"] = "word",
        tokenizer: str = "words",
        end_of_text: str | None = None,
        length: int = 1024,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        order: Order = "shuffled",
        isolate: bool = True,
        evaluation: Evaluation = "windows",
        eval_stride: int | None = None,
        shuffle_seed: int | None = None,
        num_workers: int = 0,
        pin_memory: bool | None = None,
    ) -> None:
        super().__init__(
            root, source, tokenizer, end_of_text, length, batch_size, eval_batch_size, order, isolate, evaluation,
            eval_stride, shuffle_seed, num_workers, pin_memory,
        )  # fmt: skip
        self.require(version in ("103", "2"), "version", "must be 103 or 2")
        self.require(level in ("word", "raw"), "level", "must be word or raw")
        self.dataset, self.version, self.level = f"wikitext{version}", version, level

    def reader(self) -> CorpusReader:
        raw = self.level == "raw"
        if self.source not in self.sources:
            return find_at(named_source("WikiText", self.source, "original, huggingface"), self.version, raw)
        find = find_published if self.source == "original" else find_huggingface
        found = find(self.root, self.version, raw)
        if found is None:
            options = "".join(
                f" --{name}={value}" for name, value, usual in
                (("level", self.level, "word"), ("source", self.source, "original"), ("root", self.root, None))
                if value != usual
            )  # fmt: skip
            folder, archive = names(self.version, raw)
            what = f"{folder}/ or {archive}" if self.source == "original" else f"copy of the Hub's {HUB_NAME}"
            raise InputError(f"{self.root}: no {what} below it; `lra-ssm prepare {self.dataset}{options}` downloads it")
        return found

    def source_settings(self) -> dict[str, Any]:
        hub = {"repository": HUB_NAME, "revision": HUB_REVISION} if self.source == "huggingface" else {}
        return {"version": self.version, "level": self.level, **hub}

    def content_settings(self) -> dict[str, Any]:
        return {**super().content_settings(), "level": self.level}

    def fetch_files(self) -> None:
        raw = self.level == "raw"
        if self.source == "huggingface":
            fetch_huggingface(self.root, self.version, raw)
        elif find_published(self.root, self.version, raw) is None:
            fetch_published(self.root, self.version, raw)

    def published(self, splits: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {"published_counts": check_counts(self.version, self.level == "raw", splits)}
