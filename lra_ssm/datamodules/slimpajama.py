"""SlimPajama: web text of seven sources, for language models.

    data/{train,validation,test}-*.parquet      the Hub's sample of 6 billion tokens, DKYoon/SlimPajama-6B
    {train,validation,test}/…/*.jsonl.zst       Cerebras' layout of the whole; or these splits in any supported form

The authors of B2S6 trained on it; tokenizer and window are those of their language code (AnnanYu/mamba-bare), and 96
windows a step are derived from their figure 7: about 28,830 steps an epoch. Source: Soboleva et al., "SlimPajama: A
627B token cleaned and deduplicated version of RedPajama" (2023).
"""

from lra_ssm.datamodules.download import Hub
from lra_ssm.datamodules.language.corpus import EmptyDocuments, Input, ReadOptions
from lra_ssm.datamodules.language.files import FORMS, file_inputs, find_files, split_of
from lra_ssm.datamodules.language.module import LanguageDataModule
from lra_ssm.errors import InputError

HUB = Hub(
    "DKYoon/SlimPajama-6B",
    "b5f90f419b7489cdba26fdbc8c022fcb5562f968",  # as public repositories pin it
    ("data/train-*.parquet", "data/validation-*.parquet", "data/test-*.parquet"),
    "slimpajama/download",
)


class SlimPajama(LanguageDataModule):
    """SlimPajama, 6 billion tokens of it. Batches are `batches.TokenBatch`.

    A fit never downloads: `lra-ssm prepare slimpajama6b` does (14 GB). Documents keep the names of their sources.

    Args:
        source: "huggingface" for the Hub's sample at a pinned revision; or a folder in SlimPajama's schema (.jsonl.zst
            or .parquet; text, meta.redpajama_set_name), split into train, validation and test by folders or names.
        empty_documents: a document without text is an "error", or is passed over ("skip").
    """

    sources = ("huggingface",)

    source: str = "huggingface"
    tokenizer: str = "gpt2"
    length: int = 2048
    batch_size: int = 96
    empty_documents: EmptyDocuments = "error"

    def corpus(self) -> list[Input]:
        path = self.source_path() if self.kind == "files" else HUB.path(self.data_root)
        if self.kind != "files" and not HUB.is_complete(self.data_root):
            raise self.missing(f"copy of the Hub's {HUB.repository}", "slimpajama6b")
        files = [(file, split_of(file, path)) for file in find_files(path, FORMS[1:])]
        stray = [file for file, split in files if split is None]
        if stray or not {"train", "val"} <= {split for _, split in files}:
            what = f"{stray[0].relative_to(path)} is of no split" if stray else "no files of train and of validation"
            raise InputError(
                f"{path}: {what}; expected SlimPajama's train, validation and test as folders or in file names; a part"
                " of it without them is a Corpus"
            )
        fields = {"source_field": "meta.redpajama_set_name", "empty_documents": self.empty_documents}
        return file_inputs(files, ReadOptions(**fields))  # type: ignore[arg-type]

    def fetch_files(self) -> None:
        HUB.fetch(self.data_root)
