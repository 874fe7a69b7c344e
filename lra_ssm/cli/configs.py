"""`lra-ssm configs`: the configs that come with the package, and what their data needs."""

from pathlib import Path
from typing import Any

from lra_ssm.cli.datasets import DATASETS, SYNTHETIC
from lra_ssm.cli.output import PlainParser
from lra_ssm.cli.summary import prepared_folders
from lra_ssm.datamodules.storage import resolve_root
from lra_ssm.errors import InputError
from lra_ssm.results.published import row_of_config
from lra_ssm.runs.record import load_yaml
from lra_ssm.shipped import FOLDERS, find, names
from lra_ssm.tables import table, terminal_width

DESCRIPTION = """\
Lists the configs that come with the package: each is a name for --config. `task` is what `lra-ssm prepare` calls it,
`size` the model's layers × width, `published` the figure in a paper's table that stands beside it. Data is ready,
missing (`lra-ssm prepare --config CONFIG`), or generated as a fit goes. An addition is given behind another config.

With a name: prints that config, for one of your own."""

EXAMPLE = """\
examples:
  lra-ssm configs
  lra-ssm configs listops
  lra-ssm configs lra/listops/b2s6 > my.yaml
  lightning fit --config lra/listops/b2s6
"""


def parser() -> PlainParser:
    found = PlainParser("lra-ssm configs", DESCRIPTION, EXAMPLE)
    found.add_argument("name", nargs="?", metavar="NAME", help="a config, which is printed; or a part of names to list")
    found.add_argument("--root", metavar="FOLDER", help="data root; default: LRA_SSM_DATA, else ./data")
    return found


def main(command: str, arguments: list[str]) -> int:
    given = parser().parse_args(arguments)
    part = given.name or ""
    listed = [name for name in names("config") if part in name]
    if part in listed or not listed:
        print(find("config", part).read_text(), end="")
        return 0
    root = resolve_root(given.root)
    cells = [_cells(name, load_yaml(FOLDERS["config"] / f"{name}.yaml"), root) for name in listed]
    print(table(("config", "task", "unit", "size", "published", "data is"), cells, 3, terminal_width()))
    return 0


def _cells(name: str, config: dict[str, Any], root: Path) -> tuple[str, ...]:
    if "model" not in config:
        return name, "", "", "", "", "addition"
    network = config["model"]["init_args"]["network"]["init_args"]
    layers = network["layer"] if isinstance(network["layer"], list) else [network["layer"]]
    units = ", ".join(dict.fromkeys(_class(layer) for layer in layers))
    row = row_of_config(config)
    figure = "" if row is None or row.unmatched else row.figure
    size = f"{network['n_layers']} × {network['d_model']}"
    return name, _dataset(config["data"]), units, size, figure, readiness(config["data"], root)


def _dataset(data: dict[str, Any]) -> str:
    """What the commands call a config's data."""
    settings = data.get("init_args", {})
    for name, (cls, needed) in reversed(DATASETS.items()):
        if cls == _class(data) and needed.items() <= settings.items():
            return name
    return next(name for name, cls in SYNTHETIC.items() if cls == _class(data))


def _class(given: dict[str, Any]) -> str:
    return str(given["class_path"]).rpartition(".")[2]


def readiness(data: dict[str, Any], root: Path) -> str:
    """Whether a fit could begin: modules that are slow to load are loaded only where something is prepared."""
    if _class(data) in SYNTHETIC.values():
        return "generated"
    if not prepared_folders(root):
        return "missing"
    from lra_ssm.cli.prepared_settings import other_source  # loads torch
    from lra_ssm.layers.spec import import_object

    settings = {**data.get("init_args", {}), "root": str(root)}
    try:
        is_ready = import_object(data["class_path"])(**settings).is_prepared()
        return "ready" if is_ready or other_source(data["class_path"], settings) else "missing"
    except InputError:  # of files that are not there
        return "missing"
