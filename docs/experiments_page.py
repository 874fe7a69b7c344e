"""Writes docs/experiments.md from the results in docs/experiments/: `python docs/experiments_page.py`.

Results are made by `lra-ssm reproduce NAME --out docs/experiments`; what is to be said of them beside their numbers
stands in docs/experiments/remarks.yaml, by the folders' names.
"""

import json
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined

from lra_ssm.experiments.artifacts import artifacts

FOLDER = Path(__file__).with_name("experiments")
PAGE = FOLDER.with_suffix(".md")
PAPERS = {"yu2025": "B2S6", "wang2024": "StableSSM", "deep2024": "Deep linear SSMs", "everett2024": "Width"}
TEMPLATE = """\
# The papers' experiments, rerun

Each figure, table and theorem that a CPU can make, by one command; and whether its claim holds. The rule of every claim
was written down before its run, and judges the numbers in the experiment's `results.csv`. A claim that does not hold
here, or stays undecided, is a finding: the reason is given where we know it. Settings that a paper does not give are
named in the experiment's file (`lra_ssm/experiments/`).

```
lra-ssm reproduce --list               # all of them, also those that need a GPU, and what cannot be made
lra-ssm reproduce b2s6-fig5            # one; after a kill the same command goes on
lra-ssm reproduce all                  # every one but the long forms
```

## Claims

| | claim | outcome | numbers |
|---|---|---|---|
{% for run in runs %}{% for claim in run.claims -%}
| [{{ run.folder }}](#{{ run.folder }}) | {{ claim.statement|cell }} | {{ claim.outcome }} | {{ claim.numbers|cell }} |
{% endfor %}{% endfor %}
{%- for paper, title in papers.items() %}{% for run in runs if run.one.paper == paper %}{% if loop.first %}
## {{ title }}
{% endif %}
### {{ run.folder }}

{{ run.one.artifact[0]|upper }}{{ run.one.artifact[1:] }}: {{ run.one.what }}. `lra-ssm reproduce {{ run.one.name }}\
{{ " --long" if run.folder != run.one.name }}`, {{ run.core_minutes }} minutes of one core.

{% for claim in run.claims -%}
- **{{ claim.outcome }}**: {{ claim.statement }}. Rule: {{ claim.rule }}. Found: {{ claim.numbers }}.
{% endfor %}
{% if run.folder in remarks %}{{ remarks[run.folder]|trim }}

{% endif -%}
![{{ run.one.what }}](experiments/{{ run.folder }}/figure.png)
{% endfor %}{% endfor %}
## Not made here

| | shows | |
|---|---|---|
{% for one in left -%}
| {{ papers[one.paper] }}, {{ one.artifact }} | {{ one.what|cell }} | {{ one.state|cell }} |
{% endfor -%}
"""


def page() -> str:
    """The whole page."""
    runs, left = [], []
    for one in artifacts():
        forms = [one.name, f"{one.name}-long"] if one.name else []
        made: list[dict[str, Any]] = [
            {"one": one, "folder": name, **json.loads(file.read_text())}
            for name in forms
            if (file := FOLDER / name / "claims.json").exists()
        ]
        runs += made
        left += [] if made else [one]
    remarks = yaml.safe_load((FOLDER / "remarks.yaml").read_text())
    if unknown := remarks.keys() - {run["folder"] for run in runs}:
        raise SystemExit(f"remarks.yaml: no results in {', '.join(sorted(unknown))}")
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters["cell"] = lambda text: text.replace("|", "\\|")
    return environment.from_string(TEMPLATE).render(runs=runs, left=left, papers=PAPERS, remarks=remarks)


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
