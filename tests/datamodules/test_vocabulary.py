"""Characters and bytes to ids, as the public code has them."""

import numpy as np
import pytest

from lra_ssm.datamodules.storage.vocabulary import (
    BYTE_VOCABULARY,
    SPECIALS,
    UNK_ID,
    CharacterCounts,
    LraBytes,
    LraCharacters,
)
from lra_ssm.errors import InputError


def test_characters_are_ordered_by_frequency_then_code_point() -> None:
    counts = CharacterCounts()
    counts.add(["bbaac", "\U0001f3ac\U0001f3ac\U0001f3ac"])
    counts.add(["", "d"])
    assert counts.frequent(1) == ("\U0001f3ac", "a", "b", "c", "d")
    assert counts.frequent(2) == ("\U0001f3ac", "a", "b")
    assert CharacterCounts().frequent(1) == ()


def test_characters_are_encoded() -> None:
    tokenizer = LraCharacters("ab\U0001f3ac", 4)
    assert tokenizer.vocabulary == (*SPECIALS, "a", "b", "\U0001f3ac")
    encoded = tokenizer.encode(["", "ab", "aba", "abab", "a\U0001f3acz", "\x00"])
    assert encoded.lengths.tolist() == [1, 3, 4, 4, 4, 2] and encoded.lengths.dtype == np.int64
    assert encoded.tokens.tolist() == [2, 3, 4, 2, 3, 4, 3, 2, 3, 4, 3, 2, 3, 5, UNK_ID, 2, UNK_ID, 2]
    assert [len(part) for part in tokenizer.encode([])] == [0, 0]


def test_too_many_characters_are_refused() -> None:
    with pytest.raises(InputError, match="raise min_freq"):
        LraCharacters([chr(code) for code in range(0x20000, 0x30000)], 4)


def test_bytes_are_encoded_as_by_the_original_code() -> None:
    tokenizer = LraBytes(4)
    assert tokenizer.vocabulary == BYTE_VOCABULARY and len(BYTE_VOCABULARY) == 257
    encoded = tokenizer.encode(["", "\x00a", "abcde", "aéé", ""])
    assert encoded.lengths.tolist() == [1, 2, 4, 4, 1]
    assert encoded.tokens.tolist() == [0, 1, 98, 98, 99, 100, 101, 98, 0xC3 + 1, 0xA9 + 1, 0xC3 + 1, 0]
