"""Imported once by the fork server of runner.py: what the commands that it starts find done.

No threads are started here: they do not live on in a forked process.
"""

import gc
import os
from pathlib import Path
from unittest import mock

import lra_ssm.datamodules.listops.module  # noqa: F401
import tests.helpers  # noqa: F401
from lra_ssm.cli.run_options import read_fit_options

with mock.patch.dict(os.environ), mock.patch("sys.argv", ["lra-ssm"]):
    read_fit_options(["--config", str(Path(__file__).parent / "tiny.yaml")])
gc.collect()
gc.freeze()  # a collection in a forked process would copy every page of memory
