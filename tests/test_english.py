"""Words and turns of phrase that make a reader stumble stay out of code and docs (CONTRIBUTING.md, "Style")."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("lra_ssm", "experiments", "benchmarks", "examples", "docs", "configs", "slurm")
SUFFIXES = {".py", ".md", ".yaml", ".cpp", ".h", ".sbatch"}
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"] + [
    file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*")) if file.suffix in SUFFIXES
]
BETTER = {  # a pattern, and what to write
    r"(?<![Tt]here )\b(?:is|are) none\b": "not a valid …, no … found, belongs to no …",
    r"(?<![Tt]here )\b(?:is|are) no (?!longer|more|less|better|worse|gain|reason)\w": "is not a …",
    r"(?<!matrix products )\balone\b": "only",  # those are named so in the benchmarks' results
    r"\banew\b": "again",
    r"not foreseen": "unexpected",
    r'"""(?:Of|That|Those)\b': "a docstring that starts with a verb and names its object",
    r"Raises \w+: (?:it|they|there)\b": "Raises … if …",
}


@pytest.mark.parametrize("pattern", BETTER)
def test_plain_english(pattern):
    hits = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in FILES
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert not hits, f"write instead: {BETTER[pattern]}\n" + "\n".join(hits)
