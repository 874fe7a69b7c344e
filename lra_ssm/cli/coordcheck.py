"""`lra-ssm coordcheck`: a few steps at some widths say whether settings of a narrow model can hold for a wide one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_ssm.bars import Bar
from lra_ssm.cli.options import configuring, count
from lra_ssm.cli.output import PlainParser
from lra_ssm.errors import InputError
from lra_ssm.files import replacing
from lra_ssm.tables import table, terminal_width, wrapped

if TYPE_CHECKING:
    from lra_ssm.width.coordinates import Slope


DESCRIPTION = """\
Trains a config's model for a few steps at several widths and says how activations, their changes and gradients go with
the width: where they grow or shrink, settings of one width do not hold for another. Options of fit stand behind the
config, such as --model.width.parameterization. Batches are cut to a few short sequences. Writes coordcheck.png and
coordcheck.csv."""

EXAMPLE = """\
examples:
  lra-ssm coordcheck quickstart
  lra-ssm coordcheck quickstart --model.width.parameterization=mup --model.width.base_d_model=64
  lra-ssm coordcheck lm/quickstart --widths 64 128 256 512 --steps 10 --out checks --random
"""


def parser() -> PlainParser:
    made = PlainParser("lra-ssm coordcheck", DESCRIPTION, EXAMPLE)
    made.add_argument("config", metavar="CONFIG", help="a config's name or file; options of fit may stand behind it")
    made.add_argument(
        "--widths", type=count, nargs="+", default=[64, 128, 256, 512], metavar="D", help="default: 64 128 256 512"
    )
    made.add_argument("--steps", type=count, default=5, metavar="N", help="optimizer steps; default: 5")
    made.add_argument("--seeds", type=count, default=1, metavar="N", help="that are averaged; default: 1")
    made.add_argument("--examples", type=count, default=8, metavar="N", help="of a batch; default: 8")
    made.add_argument("--length", type=count, default=128, metavar="L", help="longest sequence; default: 128")
    said = "blocks of the model, its depth changes no slope; default: 2, or as many as lists of layers have"
    made.add_argument("--layers", type=count, metavar="N", help=said)
    made.add_argument("--tolerance", type=float, default=0.2, metavar="X", help="of a slope; default: 0.2")
    made.add_argument("--random", action="store_true", help="random inputs, no data")
    said = "where coordcheck.png and .csv go, made where it is missing; default: here"
    made.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help=said)
    made.add_argument("--model.NAME, --data.NAME", metavar="VALUE", help="a setting of the config, as in fit")
    return made


def main(command: str, arguments: list[str]) -> int:
    of_fit, rest = configuring(arguments, "model|data|seed_everything")
    given = parser().parse_args(rest)
    if len(widths := sorted(set(given.widths))) < 2:
        raise InputError("--widths: a slope needs two at least, such as --widths 64 256")
    if given.out.exists() and not given.out.is_dir():
        raise InputError(f"--out {given.out}: is no folder")
    from lra_ssm.cli.coordcheck_model import Check
    from lra_ssm.cli.run_options import read_fit_options

    check = Check(read_fit_options(["--config", given.config, *of_fit]), given)
    print(wrapped(check.describe(widths)), flush=True)
    rows: list[dict[str, Any]] = []
    with Bar("measuring", len(widths) * given.seeds, unit="models") as bar:
        for seed in range(given.seeds):
            for width in widths:
                rows += [{"width": width, "seed": seed, **row} for row in check.rows(width, seed)]
                bar.advance(1)
    found = check.slopes(rows)
    print(tables(found, given.tolerance))
    _write(given.out, rows, found, given.tolerance, check.title)
    return 0


def tables(found: Sequence[Slope], tolerance: float) -> str:
    """Two: of activations, at the start, after the steps, and of what they changed by; and of gradients."""
    by = {(one.what, bool(one.step), one.name): one for one in found}
    shown = [("activation", False), ("activation", True), ("update", True)]
    names = list(dict.fromkeys(one.name for one in found if one.what == "activation"))
    rows = []
    for name in names:
        slopes = [by.get((what, after, name)) for what, after in shown]
        verdicts = {verdict: None for one in slopes if one and (verdict := one.verdict(tolerance))}
        rows.append((name, *(_cell(one and one.found) for one in slopes), " ".join(verdicts)))
    first = table(("activation", "at the start", "after", "change", "verdict"), rows, width=terminal_width())
    gradients = [one for one in found if one.what == "gradient" and not one.step]
    rows = [(one.name, _cell(one.found), _cell(one.promised), one.verdict(tolerance)) for one in gradients]
    second = table(("gradient of", "at the start", "promised", "verdict"), rows, width=terminal_width())
    wrong = [verdict for one in found if (verdict := one.verdict(tolerance))]
    diverging = wrong.count("diverges")
    message = f"slopes of log RMS over log width; {len(wrong) - diverging} of {len(found)} are further than"
    message += f" {tolerance:g} from what is promised"
    if diverging:
        message += f", and {diverging} diverge: a value is NaN or infinite at some width; lower the learning rate"
    return f"{first}\n\n{second}\n\n{wrapped(message)}"


def _cell(slope: float | None) -> str:
    return "–" if slope is None or math.isnan(slope) else f"{slope:+.2f}"


def _write(folder: Path, rows: list[dict[str, Any]], found: Sequence[Slope], tolerance: float, title: str) -> None:
    import pandas as pd

    from lra_ssm.cli.coordcheck_model import picture

    folder.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(rows)
    with replacing(folder / "coordcheck.csv") as file:
        frame.to_csv(file, index=False)
    with replacing(folder / "coordcheck.png", "wb") as file:
        picture(frame, found, tolerance, title).savefig(file, format="png", dpi=130)
    print(f"{folder / 'coordcheck.png'}, coordcheck.csv")
