"""Data for a language model to be scored on, in the model's own tokens."""

import dataclasses
from pathlib import Path
from typing import Any

from lra_ssm.checkpoints import ModelFiles
from lra_ssm.cli.find_model import tokenizer_of
from lra_ssm.datamodules.language.tokenizer import TOKENIZER
from lra_ssm.errors import squeeze


def with_own_tokenizer(data: Any, model: ModelFiles | Path, folder: Path) -> Any:
    """Data for a model to be scored on, with the model's own tokenizer, where the data would make another of its text.

    Says so where it is another. folder: takes the tokenizer's file, which is read until the data is prepared.
    """
    from lra_ssm.datamodules.language.module import LanguageDataModule  # loads lightning

    if not isinstance(data, LanguageDataModule) or not data.spec.is_trained:
        return data
    own = tokenizer_of(model)
    if own is None or (data.is_prepared() and data.tokenizer_digest == own.digest):
        return data
    print(squeeze(f"the text of {data.source} in the model's own tokens: {data.tokenizer}, {own.vocab_size:,} tokens"))
    end = own.end_of_text_name if own.file == TOKENIZER and not own.ends_lines else None
    made = dataclasses.replace(data, tokenizer=str(own.save(folder)), end_of_text=end)
    made.spec = dataclasses.replace(made.spec, text="the model's own")  # what is recorded of it
    return made
