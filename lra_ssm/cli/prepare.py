"""`lra-ssm prepare DATASET`: makes a dataset ready ahead of a fit."""

import difflib
from importlib import import_module

from lightning.pytorch.cli import LightningArgumentParser

from lra_ssm.cli.parser import RunParser
from lra_ssm.errors import InputError

DATASETS = {"listops": "lra_ssm.datamodules.ListOps"}
# What decides how batches are made, not what is prepared.
LOADING = {"batch_size", "eval_batch_size", "shuffle_seed", "num_workers", "pin_memory"}

HELP = f"""usage: lra-ssm prepare DATASET [options]

Makes a dataset ready below the data root (--root, else LRA_SSM_DATA, else ./data): generated, or read from the files
of its publishers. Atomic and locked: any number of processes may start it, at any moment it may be killed.

datasets: {", ".join(DATASETS)}

examples:
  lra-ssm prepare listops
  lra-ssm prepare listops --source=/downloads/lra_release

`lra-ssm prepare DATASET --help` lists a dataset's options.
"""


def main(command: str, arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    name, *rest = arguments
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1)
        raise InputError(
            f"unknown dataset {name!r}; " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(DATASETS)}")
        )
    module, _, cls = DATASETS[name].rpartition(".")
    datamodule_class = getattr(import_module(module), cls)
    parser: LightningArgumentParser = RunParser(
        prog=f"lra-ssm prepare {name}",
        description=f"Makes {name} ready.",
        epilog=f"example: lra-ssm prepare {name} --root=data",
    )
    parser.add_class_arguments(datamodule_class, skip=LOADING)
    # `--data.root` as in fit is `--root` here.
    settings = parser.parse_args(["--" + a.removeprefix("--data.") if a.startswith("--data.") else a for a in rest])
    datamodule = datamodule_class(**settings.as_dict())
    datamodule.prepare_data()
    print(f"{datamodule.prepared_folder}: {datamodule.describe()}")
    return 0
