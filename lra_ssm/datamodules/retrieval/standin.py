"""Makes stand-ins for AAN: files of pairs in LRA's layout that are NOT papers, for tests and trials without the data.

A document is a string of made-up words: its topic's, and words that all topics share. A pair with label 1 has one
topic, a pair with label 0 two different ones. Topics are spelt differently (each has its own few syllables), so that a
small model that reads characters learns to tell them. There are quotes of all kinds, as lone ones and as the first of a
text, letters beyond ASCII, documents of a few hundred characters and of many thousand. The ids begin with `standin-`.

Needs numpy alone.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lra_ssm.datamodules.retrieval.reader import FILES
from lra_ssm.errors import InputError
from lra_ssm.files import replacing

MARKER = "THIS-IS-A-STAND-IN.txt"
# Raise when the same settings would give other data than before.
STANDIN_VERSION = 1

_NOTE = "The pairs in this folder are made up by lra_ssm.datamodules.retrieval.standin; they are not AAN.\n"
_CONSONANTS, _VOWELS = np.array(list("bcdfghjklmnpqrstvwxz")), np.array(list("aeiouy"))
_COMMON = (
    "the of and to in a is we that for with as on are this by be which (1) [2] 0.5 % = + e.g. i.e. — naïve ∑".split()
)
_ODD = ['"', '"quoted"', "'", "``", "''", "“so”", 'half"', '"half', "été", "Łódź", "中文", "\u00a0"]
_ODD_SHARE, _TOPIC_SHARE = 0.01, 0.6
_WORDS_PER_TOPIC, _SYLLABLES_PER_TOPIC = 40, 10


def write_standin(
    folder: Path,
    num_train: int,
    num_eval: int,
    num_test: int,
    seed: int = 0,
    num_topics: int = 8,
    median_length: int = 2000,
) -> dict[str, Path]:
    """Writes new_aan_pairs.{train,eval,test}.tsv and a file that says what they are into a folder.

    Args:
        folder: where to; created if only it is missing.
        num_train, num_eval, num_test: pairs; as many with label 1 as with label 0, but for an odd one.
        seed: of everything.
        num_topics: at least 2.
        median_length: of the documents in characters. Lengths are log-normal, one in six twice as long as the median
            or longer, none shorter than a tenth of it or longer than five times it.

    Returns:
        The files by split (train, val, test).

    Raises:
        InputError: settings that cannot be met, or the folder holds such files that are no stand-ins.
    """
    if min(num_train, num_eval, num_test) < 1 or num_topics < 2 or median_length < 10 or not 0 <= seed < 1 << 32:
        raise InputError(
            f"stand-in of {num_train}, {num_eval} and {num_test} pairs, {num_topics} topics, median length"
            f" {median_length}, seed {seed}: at least 1 pair each, 2 topics, 10 characters, a seed below 2^32"
        )
    folder.mkdir(exist_ok=True)
    files = {split: folder / name for split, name in FILES.items()}
    if any(path.exists() for path in files.values()) and not is_standin(folder):
        raise InputError(f"{folder}: holds pairs that are no stand-in; nothing is overwritten")
    (folder / MARKER).write_text(_NOTE, encoding="utf-8")
    topics = _topics(np.random.RandomState((seed, 0)), num_topics)
    for index, (split, count) in enumerate(zip(files, (num_train, num_eval, num_test), strict=True)):
        with replacing(files[split], encoding="utf-8", newline="\n") as file:
            file.writelines(_lines(np.random.RandomState((seed, 1 + index)), topics, count, split, median_length))
    return files


def is_standin(folder: Path) -> bool:
    """Whether the pairs in a folder are made up."""
    return (folder / MARKER).is_file()


def _topics(random: np.random.RandomState, count: int) -> list[list[str]]:
    """The words of each topic."""
    topics = []
    for _ in range(count):
        consonants, vowels = random.choice(_CONSONANTS, 4, replace=False), random.choice(_VOWELS, 2, replace=False)
        syllables = [
            f"{random.choice(consonants)}{random.choice(vowels)}{random.choice(['', *consonants])}"
            for _ in range(_SYLLABLES_PER_TOPIC)
        ]
        topics.append(["".join(random.choice(syllables, random.randint(2, 5))) for _ in range(_WORDS_PER_TOPIC)])
    return topics


def _lines(
    random: np.random.RandomState, topics: list[list[str]], count: int, split: str, median_length: int
) -> Iterator[str]:
    vocabularies = [np.array([*words, *_COMMON, *_ODD], dtype=object) for words in topics]
    labels = random.permutation(count) % 2
    for number, label in enumerate(labels):
        first = random.randint(len(topics))
        second = first if label else (first + random.randint(1, len(topics))) % len(topics)
        texts = [_document(random, vocabularies[topic], median_length) for topic in (first, second)]
        ids = [f"standin-{split}-{2 * number + paper}" for paper in range(2)]
        yield "\t".join([f"{label}.0", *ids, *texts]) + "\n"


def _document(random: np.random.RandomState, words: np.ndarray, median_length: int) -> str:
    length = int(np.clip(np.exp(0.7 * random.standard_normal()), 0.1, 5) * median_length)
    num_words = length // 3 + 1  # enough: words are longer than two characters on average, with their blank
    kinds = random.random_sample(num_words)
    ends = np.cumsum([_WORDS_PER_TOPIC, len(_COMMON), len(_ODD)])
    kind = (kinds >= _TOPIC_SHARE).astype(np.int64) + (kinds >= 1 - _ODD_SHARE)
    starts = np.array([0, *ends[:-1]])[kind]
    chosen = starts + (random.random_sample(num_words) * (ends[kind] - starts)).astype(np.int64)
    return " ".join(words[chosen])[:length]
