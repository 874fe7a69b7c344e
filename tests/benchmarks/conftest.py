"""The scripts import each other by name, as Python finds them where one of them is started."""

import sys
from pathlib import Path

# Before a script imports Lightning on its own: typing gives Lightning's `Optional[Union[int, float]]` in the order in
# which an equal one was asked for before, and commands of later tests would read 1, one batch, as 1.0, all of them.
import lra_ssm.cli.run  # noqa: F401

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
