"""Saved models: their files, the places where a name is looked up, their cards, and the names we know."""

from lra_ssm.checkpoints.files import ModelFiles, check_shapes
from lra_ssm.checkpoints.layout import CONFIG, RUN_CONFIG
from lra_ssm.checkpoints.writing import SavedTokenizer, check_finite, placing, tokenizer_files, untied, write_model

__all__ = [
    "CONFIG",
    "RUN_CONFIG",
    "ModelFiles",
    "SavedTokenizer",
    "check_finite",
    "check_shapes",
    "placing",
    "tokenizer_files",
    "untied",
    "write_model",
]
