"""What a user may say for a tokenizer: bytes, characters, words, bpe:N, a path, or a name of the Hugging Face Hub."""

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lra_ssm.datamodules.language import subwords
from lra_ssm.datamodules.language.saved import load_tokenizer
from lra_ssm.datamodules.language.tokenizers import ByteTokenizer, TextTokenizer, read_file
from lra_ssm.errors import InputError, hint
from lra_ssm.files import one_reason

KINDS = ("bytes", "characters", "words", "bpe:16000")
LEAST_BPE = 257  # all bytes, and the end of text
MOST_BPE = 1 << 24
_HUB = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(@[\w./-]+)?", re.ASCII)


@dataclass(frozen=True)
class TokenizerChoice:
    """A checked specification.

    Attributes:
        text: as given.
        size: tokens of a bpe.
        path: of the file, for "file".
    """

    text: str
    kind: Literal["bytes", "characters", "words", "bpe", "file", "hub"]
    size: int = 0
    path: Path = Path()

    @property
    def is_trained(self) -> bool:
        """Whether it is made of the corpus: see `vocabularies.train_tokenizer`."""
        return self.kind in ("characters", "words", "bpe")

    def identity(self) -> str:
        """What equal tokenizers have in common: of a file its sha256, and what the file beside it says
        ends texts; else the specification.

        Raises:
            InputError: the file cannot be read.
        """
        if self.kind == "file":
            end = subwords.named_end(self.path)
            return f"sha256:{hashlib.sha256(read_file(self.path)).hexdigest()}" + (f" {end}" if end else "")
        return f"bpe:{self.size}" if self.kind == "bpe" else self.text

    def open(self, end_of_text: str | None = None) -> TextTokenizer:
        """The tokenizer, where it is not made of the corpus; a hub's from the hub's cache, where `fetch` has put it.

        Args:
            end_of_text: of a tokenizer.json: the token that ends texts; None if it is known or named beside.

        Raises:
            InputError: it cannot be had, or is none.
        """
        assert not self.is_trained
        if self.kind == "bytes":
            return ByteTokenizer()
        return load_tokenizer(self.path if self.kind == "file" else _of_the_hub(self.text, True), end_of_text)

    def fetch(self) -> None:
        """Downloads a tokenizer of the hub to the hub's cache. Raises InputError: it cannot be had."""
        if self.kind == "hub":
            _of_the_hub(self.text, False)


def parse_tokenizer(text: str) -> TokenizerChoice:
    """Checks a specification: a word of KINDS, else a path that is there, else a name of the hub (not looked up).

    Raises:
        InputError: it is none of these; a folder has no tokenizer.json.
    """
    if text in ("bytes", "characters", "words"):
        return TokenizerChoice(text, text)  # type: ignore[arg-type]
    if text == "bpe" or text.startswith("bpe:"):
        number = text[4:]
        if not re.fullmatch("[0-9]{1,9}", number) or not LEAST_BPE <= int(number) <= MOST_BPE:
            raise InputError(f"tokenizer {text!r}: bpe:N has {LEAST_BPE} (all bytes, end of text) to {MOST_BPE} tokens")
        return TokenizerChoice(text, "bpe", int(number))
    path = Path(os.path.expanduser(text))
    if text and path.is_dir():
        return TokenizerChoice(text, "file", path=subwords.find_file(path).absolute())
    if text and path.is_file():
        return TokenizerChoice(text, "file", path=path.absolute())
    valid = f"{', '.join(KINDS)}, a tokenizer.json, a folder with one, or a name of the hub"
    if not _HUB.fullmatch(text) or text.endswith(".json"):
        raise InputError(f"tokenizer {text!r}: there is no such path; it must be {valid}")
    near = hint(text, KINDS)
    if near.startswith("did you mean"):
        raise InputError(f"tokenizer {text!r}: {near}")
    return TokenizerChoice(text, "hub")


def _of_the_hub(name: str, cached: bool) -> Path:
    """A repository's tokenizer.json in the hub's cache, beside its tokenizer_config.json if it has one; `cached`: as
    it is there, without a network."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError

    repository, _, revision = name.partition("@")
    unreached = "" if cached else ", and the hub cannot be reached"
    try:
        offline = cached
        try:  # asked first: without a network the download itself would try for half a minute, and say so
            if not cached:
                get_hf_file_metadata(hf_hub_url(repository, subwords.TOKENIZER, revision=revision or None))
        except (EntryNotFoundError, RepositoryNotFoundError):
            raise
        except Exception:  # connections that fail, in whichever library
            offline = True
        file = hf_hub_download(repository, subwords.TOKENIZER, revision=revision or None, local_files_only=offline)
        with suppress(EntryNotFoundError):  # which a file that the cache lacks is too
            hf_hub_download(repository, subwords.CONFIG, revision=revision or None, local_files_only=offline)
        return Path(file)
    except LocalEntryNotFoundError as error:
        raise InputError(
            f"tokenizer {name}: the hub's cache has no {subwords.TOKENIZER} of it{unreached}; `lra-ssm prepare`"
            " downloads it where there is a network, or give a path"
        ) from error
    except RepositoryNotFoundError as error:
        known = ", ".join(KINDS)
        raise InputError(
            f"tokenizer {name}: no such repository on the hub (or a private one), no path, nor {known}"
        ) from error
    except EntryNotFoundError as error:
        raise InputError(
            f"tokenizer {name}: the repository has no {subwords.TOKENIZER}, the form of tokenizer that runs no code"
        ) from error
    except Exception as error:  # whatever the libraries below raise: the hub, the disk
        raise InputError(f"tokenizer {name}: cannot be downloaded ({one_reason(error)})") from error
