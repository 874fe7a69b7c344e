"""Pairs in the layout of LRA's AAN files that are NOT papers, for tests and trials without the data.

    python -m tests.datamodules.synthetic_pairs FOLDER [TRAIN VAL TEST]

A document is a string of synthetic words: those of its topic, and words that all topics share. A pair with label 1 has
one topic, a pair with label 0 two different ones. Each topic has its own few syllables, so that a small model that
reads characters learns to tell them apart. There are quotes of all kinds, letters beyond ASCII, and documents of a few
hundred to many thousand characters.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lra_ssm.datamodules.retrieval import NAMES

_CONSONANTS, _VOWELS = np.array(list("bcdfghjklmnpqrstvwxz")), np.array(list("aeiouy"))
_COMMON = (
    "the of and to in a is we that for with as on are this by be which (1) [2] 0.5 % = + e.g. i.e. — naïve ∑".split()
)
_ODD = ['"', '"quoted"', "'", "``", "''", "“so”", 'half"', '"half', "été", "Łódź", "中文", "\u00a0"]
_ODD_SHARE, _TOPIC_SHARE = 0.01, 0.6
_WORDS_PER_TOPIC, _SYLLABLES_PER_TOPIC = 40, 10


def write_pairs(
    folder: Path, counts: tuple[int, int, int] = (4000, 500, 500), seed: int = 0, median_length: int = 2000
) -> Path:
    """Writes new_aan_pairs.{train,eval,test}.tsv; returns the folder. median_length: of documents, in characters."""
    folder.mkdir(parents=True, exist_ok=True)
    topics = _topics(np.random.RandomState((seed, 0)), 8)
    for index, (name, split, count) in enumerate(zip(NAMES.values(), NAMES, counts, strict=True)):
        with open(folder / name, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(_lines(np.random.RandomState((seed, 1 + index)), topics, count, split, median_length))
    return folder


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
        ids = [f"made-up-{split}-{2 * number + paper}" for paper in range(2)]
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


if __name__ == "__main__":
    folder, *counts = sys.argv[1:]
    print(write_pairs(Path(folder), *([tuple(map(int, counts))] if counts else [])))
