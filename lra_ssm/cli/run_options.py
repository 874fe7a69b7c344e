"""The old name of `cli/config.py`, until its last user is rewritten."""

from lra_ssm.cli.config import Config as RunOptions
from lra_ssm.cli.config import read_fit_options

__all__ = ["RunOptions", "read_fit_options"]
