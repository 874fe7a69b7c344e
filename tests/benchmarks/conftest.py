"""The scripts import each other by name, as Python finds them where one of them is started."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks" / folder) for folder in ("", "parity")]
