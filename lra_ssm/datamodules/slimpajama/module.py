"""SlimPajama as a LightningDataModule for language models, as the authors of B2S6 trained on it.

Sources: Soboleva et al., "SlimPajama: A 627B token cleaned and deduplicated version of RedPajama" (2023); its sample of
6 billion tokens, DKYoon/SlimPajama-6B on the Hub. Tokenizer and window are those of the authors' language code
(AnnanYu/mamba-bare); 96 windows a step are derived from their figure 7: about 28,830 steps an epoch.
"""

import logging
from collections.abc import Mapping
from typing import Any

from lra_ssm.datamodules.fetch.sources import named_source
from lra_ssm.datamodules.language.documents import CorpusReader, EmptyDocuments
from lra_ssm.datamodules.language.module import Evaluation, LanguageDataModule, Order
from lra_ssm.datamodules.slimpajama.reader import (
    HUB_NAME,
    HUB_REVISION,
    PUBLISHED_DOCUMENTS,
    fetch_huggingface,
    find_at,
    find_huggingface,
)
from lra_ssm.errors import InputError

log = logging.getLogger(__name__)


class SlimPajama(LanguageDataModule):
    """SlimPajama, 6 billion tokens of it. Batches are `batches.TokenBatch`.

    A fit never downloads: `lra-ssm prepare slimpajama6b` does (14 GB).

    Args:
        root: data root; None for LRA_SSM_DATA, else ./data.
        source: "huggingface" for the Hub's sample at a pinned revision; or a folder in SlimPajama's schema (.jsonl.zst
            or .parquet; text, meta.redpajama_set_name), split into train, validation and test by folders or names.
        tokenizer: "gpt2" as the authors have it; or bytes, characters, words, bpe:16000 (trained on the training
            documents), a tokenizer.json or a folder with one, or another name of the Hub, with @revision.
        end_of_text: of a tokenizer.json: the token that ends documents; None where it is known.
        empty_documents: a document without text is an "error", or passed over ("skip") and counted.
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

    dataset = "slimpajama"
    sources = ("huggingface",)

    def __init__(
        self,
        root: str | None = None,
        source: str = "huggingface",
        tokenizer: str = "gpt2",
        end_of_text: str | None = None,
        empty_documents: EmptyDocuments = "error",
        length: int = 2048,
        batch_size: int = 96,
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
        self.empty_documents = empty_documents

    def reader(self) -> CorpusReader:
        if self.source not in self.sources:
            return find_at(named_source("SlimPajama", self.source, "huggingface", folder=True), self.empty_documents)
        found = find_huggingface(self.root)
        if found is None:
            raise InputError(
                f"{self.root}: no copy of the Hub's {HUB_NAME} below it; `lra-ssm prepare slimpajama6b"
                f" --root={self.root}` downloads it"
            )
        return find_at(found, self.empty_documents)

    def source_settings(self) -> dict[str, Any]:
        return {"repository": HUB_NAME, "revision": HUB_REVISION, "empty_documents": self.empty_documents}

    def fetch_files(self) -> None:
        fetch_huggingface(self.root)

    def published(self, splits: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        counts = {name: entry["documents"] for name, entry in splits.items()}
        if self.source in self.sources and counts != PUBLISHED_DOCUMENTS:
            log.warning("%s: %s documents; its card counts %s", HUB_NAME, counts, PUBLISHED_DOCUMENTS)
        return {"published_counts": counts == PUBLISHED_DOCUMENTS}
