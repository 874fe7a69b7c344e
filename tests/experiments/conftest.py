"""The scripts import their helper by name, as Python finds it where one of them is started."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
