"""Tokenizers made of a corpus: words and characters counted, a byte-level BPE trained (Sennrich et al. 2016; the bytes
as GPT-2 has them, Radford et al. 2019). No network, the same file for the same texts however they are cut or computed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from lra_ssm.datamodules.language.specifications import TokenizerChoice
from lra_ssm.datamodules.language.subwords import SubwordTokenizer
from lra_ssm.datamodules.language.tokenizers import EOS, UNK, CharacterTokenizer, TextTokenizer, WordTokenizer
from lra_ssm.datamodules.storage.vocabulary import CharacterCounts

BPE_BYTES = 1_000_000_000  # of text that a BPE is trained on at most
END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(choice: TokenizerChoice, texts: Iterable[str], size: int = 0) -> TextTokenizer:
    """A tokenizer made of the training documents.

    Memory is bounded by the distinct words (characters), not by the texts.

    Args:
        choice: words, characters or bpe.
        texts: the documents, or their segments, in order; read once.
        size: their bytes, about; where a BPE would read more than BPE_BYTES, it takes about so many, evenly from
            beginning to end. 0: all.

    Returns:
        A BPE of a small corpus may have fewer tokens than asked for: all that occur as pairs.
    """
    if choice.kind == "words":
        words = Counter[str]()
        for text in texts:
            words.update(text.split())
        words.pop(EOS, None)
        ranked = [word for word, _ in words.most_common()]
        return WordTokenizer(ranked if UNK in words else [*ranked, UNK])
    if choice.kind == "characters":
        counts = CharacterCounts()
        for text in texts:
            counts.add([text])
        return CharacterTokenizer(counts.frequent(1))
    assert choice.kind == "bpe"
    return _bpe(choice.size, evenly(texts, size, BPE_BYTES))


def evenly(texts: Iterable[str], size: int, most: int) -> Iterator[str]:
    """About `most` bytes of texts of `size` bytes together, from their whole length; all of them if they are fewer."""
    seen = taken = 0
    for text in texts:
        if size <= most or taken * size <= seen * most:
            taken += len(text.encode())
            yield text
        seen += len(text.encode())


def _bpe(vocab_size: int, texts: Iterator[str]) -> SubwordTokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[END_OF_TEXT],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return SubwordTokenizer(tokenizer.to_str().encode(), END_OF_TEXT, f"bpe:{vocab_size}")
