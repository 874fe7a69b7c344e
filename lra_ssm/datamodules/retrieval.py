"""LRA's Retrieval: pairs of papers, character by character; class 1 if a citation links them.

Three files new_aan_pairs.{train,eval,test}.tsv without a header. A line has five columns, separated by tabs: label
(`0.0` or `1.0`), both papers' ids, both papers' texts. Quotes mean nothing: LRA's reader has use_quote_delim=False
(lra_benchmarks/matching/input_pipeline.py); readers that take the files for csv with quotes merge lines.

Sources: Radev et al., "The ACL Anthology Network corpus" (2013); Tay et al., "Long Range Arena" (2021); the default
inputs are those of the S4 code (state-spaces/s4, src/dataloaders/lra.py).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lra_ssm.datamodules.characters import CharacterData
from lra_ssm.datamodules.download import LRA_DOWNLOAD, LRAFolder
from lra_ssm.datamodules.storage import read_lines
from lra_ssm.errors import InputError

NAMES = {"train": "new_aan_pairs.train.tsv", "val": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}
PUBLISHED = LRAFolder("tsv_data", tuple(NAMES.values()), ("aan", "retrieval"))
LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}


class Retrieval(CharacterData):
    """AAN pairs. Batches are `Batch`: inputs (B, 2, L), lengths (B, 2) and labels (B,), all int64.

    Pairs keep the order of their files. With bucket_batches a pair is as long as its longer document.

    Args:
        source: "lra" for LRA's files below the root, or a folder with them.
        inputs: "characters" and `<eos>`, as in the S4 code; "bytes", as in the original LRA code: another task, whose
            numbers do not belong in the same table.
        max_length: a longer document is cut to it, `<eos>` included. 4000 in both codes.
        min_freq: characters that occur less often in the training documents, each cut to max_length − 1, are `<unk>`
            (only for "characters").
    """

    dataset = "retrieval"
    sources = ("lra",)
    per_example = 2
    num_classes = 2
    class_names = ("not linked", "linked")

    source: str = "lra"
    batch_size: int = 64
    max_length: int = 4000
    min_freq: int = 1

    def examples(self) -> Iterator[tuple[str, Any, int]]:
        files = dict(zip(NAMES, self.files(), strict=True))
        texts = (text for _, *pair in read_pairs(files["train"]) for text in pair)
        encoder = self.encoder(texts)
        for split, path in files.items():
            for label, first, second in read_pairs(path):
                yield split, (encoder.encode(first), encoder.encode(second)), label

    def files(self) -> list[Path]:
        root = self.source_path() if self.kind == "files" else self.data_root
        if (folder := PUBLISHED.find(root)) is None:
            raise self.missing(f"files of Retrieval ({', '.join(NAMES.values())})", how=LRA_DOWNLOAD)
        return [folder / name for name in NAMES.values()]

    def fetch(self) -> None:
        if self.source == "lra":
            PUBLISHED.fetch(self.data_root)


def read_pairs(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield label and both texts of each line of a file.

    Raises:
        InputError: `FILE:LINE: what is wrong`, at the first line that is not as published.
    """
    for where, line in read_lines(path):
        columns = line.split(b"\t")
        if len(columns) != 5:
            raise InputError(
                f"{where}: {len(columns)} columns instead of 5 (label, id1, id2, text1, text2, separated by tabs)"
            )
        if columns[0] not in LABELS:
            label = columns[0][:60].decode(errors="replace")
            raise InputError(f"{where}: the label is {label!r} instead of 0 or 1 (the files have no header)")
        try:
            yield LABELS[columns[0]], columns[3].decode(), columns[4].decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{where}: is not UTF-8 (byte {error.object[error.start]:#04x})") from None
