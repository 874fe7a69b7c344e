"""Scripts import their helper by name, as they do when they are started."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
