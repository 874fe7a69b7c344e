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
    r"\balone\b": "only",
    r"\banew\b": "again",
    r"not foreseen": "unexpected",
    r'"""(?:Of|That|Those)\b': "a docstring that starts with a verb and names its object",
    r"Raises \w+: (?:it|they|there)\b": "Raises … if …",
}
ALLOWED = {  # (file, text around a hit), at most ten
    ("benchmarks/language.py", "matrix products alone"),  # named so in the results
}


@pytest.mark.parametrize("pattern", BETTER)
def test_plain_english(pattern):
    hits = []
    for file in FILES:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            name = file.relative_to(ROOT).as_posix()
            if re.search(pattern, line) and not any(name == where and text in line for where, text in ALLOWED):
                hits.append(f"{name}:{number}: {line.strip()}")
    assert not hits, f"write instead: {BETTER[pattern]}\n" + "\n".join(hits)


def test_few_exceptions():
    assert len(ALLOWED) <= 10
    assert all(text in (ROOT / where).read_text() for where, text in ALLOWED)
