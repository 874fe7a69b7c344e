"""Finds and fetches SlimPajama: DKYoon's sample of 6 billion tokens on the Hub, or files in its schema.

    data/{train,validation,test}-*.parquet                     as the Hub has it, columns text, meta.redpajama_set_name
    {train,validation,test}/…/*.jsonl.zst                      as Cerebras publishes the whole
    {train,validation,test}{/…,-*}.{jsonl,jsonl.gz,jsonl.zst,parquet}    or any of these

Documents keep the names of their sources, RedPajamaCommonCrawl, RedPajamaC4, … (seven). Source: Soboleva et al.,
"SlimPajama: A 627B token cleaned and deduplicated version of RedPajama" (2023).
"""

from pathlib import Path

from lra_ssm.datamodules.fetch.hub import HubDataset
from lra_ssm.datamodules.language.documents import EmptyDocuments, Reading
from lra_ssm.datamodules.language.files import FORMS, FileCorpus, find_files, split_name
from lra_ssm.errors import InputError

HUB = HubDataset(
    "DKYoon/SlimPajama-6B",
    "b5f90f419b7489cdba26fdbc8c022fcb5562f968",  # as public repositories pin it
    ("data/train-*.parquet", "data/validation-*.parquet", "data/test-*.parquet"),
    "slimpajama/download",
)
# As the dataset's card counts them; other counts are worth a warning.
PUBLISHED_DOCUMENTS = {"train": 5_489_000, "val": 9_347, "test": 9_346}
SOURCE_FIELD = "meta.redpajama_set_name"


def find_at(path: Path, empty_documents: EmptyDocuments = "error") -> FileCorpus:
    """SlimPajama's files in a folder.

    Args:
        path: an existing folder.
        empty_documents: as for `Reading`.

    Raises:
        InputError: no files, or a split is missing.
    """
    forms = tuple(form for form in FORMS if form != ".txt")
    files = [(name, split_name(name, path)) for name in find_files(path, forms)]
    stray, there = [name for name, split in files if split is None], {split for _, split in files}
    missing = [name for name, split in (("train", "train"), ("validation", "val")) if split not in there]
    if stray or missing:
        what = f"{stray[0].relative_to(path)} is of no split" if stray else f"no files of {' and '.join(missing)}"
        raise InputError(
            f"{path}: {what}; expected SlimPajama's train, validation and test as folders or as file names begin; a"
            " part of it without them is a Corpus"
        )
    reading = Reading(source_field=SOURCE_FIELD, empty_documents=empty_documents)
    return FileCorpus(str(path), tuple((str(name), split) for name, split in files), reading)
