"""Saved models: where a name leads, the files, how they are written, and their cards."""

from lra_ssm.checkpoints.files import ModelFiles, check_shapes
from lra_ssm.checkpoints.sources import CONFIG, RUN_CONFIG
from lra_ssm.checkpoints.write import SavedTokenizer, check_finite, tokenizer_files, untied, write_model

__all__ = [
    "CONFIG",
    "RUN_CONFIG",
    "ModelFiles",
    "SavedTokenizer",
    "check_finite",
    "check_shapes",
    "tokenizer_files",
    "untied",
    "write_model",
]
