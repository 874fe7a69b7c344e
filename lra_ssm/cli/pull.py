"""`lra-ssm pull`: a saved model fetched, verified, and where it lies; or the names we know."""

import shlex
import shutil
from pathlib import Path
from typing import Any

from lra_ssm.cli.options import add_trust
from lra_ssm.cli.output import PlainParser
from lra_ssm.errors import InputError, squeeze

DESCRIPTION = """\
Fetches a saved model and verifies it: its digests, and that its network can be built and has just these weights.

NAME is a model that comes with lra_ssm, a repository of the Hub (owner/name, or owner/name@revision with a branch, tag
or commit; endpoint, token and cache are huggingface_hub's: HF_ENDPOINT, HF_TOKEN, HF_HOME), an artifact
(wandb:entity/project/name:version), or a folder. Every command that takes a model takes these names, too."""

EXAMPLE = """\
examples:
  lra-ssm pull --list
  lra-ssm pull state-spaces/mamba-130m-hf
  lra-ssm pull me/s4d-mnist@v1 --to ./models/s4d
  lra-ssm pull wandb:me/lra/s4d-mnist:v0
"""


def parser() -> PlainParser:
    made = PlainParser("lra-ssm pull", DESCRIPTION, EXAMPLE)
    made.add_argument("name", metavar="NAME", nargs="?", help="of the model; with --list none")
    made.add_argument("--to", metavar="FOLDER", help="write it there, too, whole or not at all")
    made.add_argument("--force", action="store_true", help="replace a model that is in that folder")
    add_trust(made)
    made.add_argument("--list", action="store_true", help="show the names we know; needs no network")
    return made


def main(command: str, arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if options.list:
        if options.name is not None:
            raise InputError("--list takes no name")
        print(_table())
        return 0
    if options.name is None:
        raise InputError("which model? lra-ssm pull --list shows the names we know")
    from rich.filesize import decimal

    from lra_ssm.checkpoints import ModelFiles, placing
    from lra_ssm.cli.export import check_destination
    from lra_ssm.models.pretrained import check_pretrained

    if options.to is not None:
        check_destination(Path(options.to), options.force)
    files = ModelFiles(options.name)
    found = files.fetch(options.allow_pickle)
    cls = check_pretrained(files, options.allow_pickle, options.trust)
    place = options.to or found["config.json"].parent
    if options.to is not None:
        with placing(options.to) as folder:
            for name, path in found.items():
                shutil.copyfile(path, folder / name)
    size = sum(path.stat().st_size for path in found.values())
    print(squeeze(f"{files.name}: {cls.__name__}, {len(found)} files, {decimal(size)}"))
    print(squeeze(str(place)))
    print(squeeze(_use(options, cls.__name__, "config.yaml" in found)))
    return 0


def _use(options: Any, cls: str, of_a_run: bool) -> str:
    """The command that uses it."""
    name = options.to or options.name
    given = [shlex.quote(name)]
    given += ["--allow-pickle"] if options.allow_pickle else []
    given += [f"--trust {one}" for one in options.trust]
    if cls == "LanguageModel":
        return f'use it: lra-ssm generate {" ".join(given)} --prompt "The"'
    if of_a_run:
        return f"use it: lra-ssm test {' '.join(given)}"
    return f'use it: {cls}.from_pretrained("{name}")'


def _table() -> str:
    from rich.filesize import decimal

    from lra_ssm.checkpoints.known import known_models
    from lra_ssm.tables import table, terminal_width

    rows = []
    for one in known_models():
        parameters = f"{one.parameters:,}" if one.parameters else ""
        rows.append((one.name, one.task, one.metric, one.note, parameters, decimal(one.size)))
    return table(("name", "task", "stated", "", "parameters", "size"), rows, left=4, width=terminal_width())
