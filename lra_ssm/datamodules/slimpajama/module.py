"""SlimPajama-6B as a LightningDataModule for language models.

The authors of B2S6 trained on it; tokenizer and window are those of their language code (AnnanYu/mamba-bare), and 96
windows a step are derived from their figure 7: about 28,830 steps an epoch. Sources: Soboleva et al., "SlimPajama: A
627B token cleaned and deduplicated version of RedPajama" (2023); its sample of 6 billion tokens, DKYoon/SlimPajama-6B.
"""

import logging
from collections.abc import Mapping
from typing import Any

from lra_ssm.datamodules.fetch.sources import named_source
from lra_ssm.datamodules.language.documents import CorpusReader, EmptyDocuments
from lra_ssm.datamodules.language.module import LanguageDataModule
from lra_ssm.datamodules.slimpajama.reader import HUB, PUBLISHED_DOCUMENTS, find_at
from lra_ssm.errors import InputError

log = logging.getLogger(__name__)


class SlimPajama(LanguageDataModule):
    """SlimPajama, 6 billion tokens of it. Batches are `batches.TokenBatch`.

    A fit never downloads: `lra-ssm prepare slimpajama6b` does (14 GB).

    Takes what every `LanguageDataModule` takes, and its own:

    Args:
        source: "huggingface" for the Hub's sample at a pinned revision; or a folder in SlimPajama's schema (.jsonl.zst
            or .parquet; text, meta.redpajama_set_name), split into train, validation and test by folders or names.
        empty_documents: a document without text is an "error", or passed over ("skip") and counted.

    Raises:
        InputError: settings that cannot be met.
    """

    dataset = "slimpajama"
    sources = ("huggingface",)

    source: str = "huggingface"
    tokenizer: str = "gpt2"
    length: int = 2048
    batch_size: int = 96
    empty_documents: EmptyDocuments = "error"

    def reader(self) -> CorpusReader:
        if self.source not in self.sources:
            return find_at(named_source("SlimPajama", self.source, "huggingface", folder=True), self.empty_documents)
        found = HUB.found(self.data_root)
        if found is None:
            raise InputError(
                f"{self.data_root}: no copy of the Hub's {HUB.repository} below it; `lra-ssm prepare slimpajama6b"
                f" --root={self.data_root}` downloads it"
            )
        return find_at(found, self.empty_documents)

    def source_settings(self) -> dict[str, Any]:
        return {**HUB.origin, "empty_documents": self.empty_documents}

    def fetch_files(self) -> None:
        HUB.fetch(self.data_root)

    def published(self, splits: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        counts = {name: entry["documents"] for name, entry in splits.items()}
        if self.source in self.sources and counts != PUBLISHED_DOCUMENTS:
            log.warning("%s: %s documents; its card counts %s", HUB.repository, counts, PUBLISHED_DOCUMENTS)
        return {"published_counts": counts == PUBLISHED_DOCUMENTS}
