"""`lra-ssm prepare DATASET`: makes a dataset ready ahead of a fit."""

import inspect
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

from lra_ssm import datamodules
from lra_ssm.cli.batch_picture import draw_batch
from lra_ssm.cli.datasets import DATASETS, LANGUAGE, SYNTHETIC
from lra_ssm.cli.output import PlainParser, add_debug, in_a_folder
from lra_ssm.cli.parser import RunParser
from lra_ssm.cli.prepared_settings import LOADING, fit_options, remember
from lra_ssm.cli.summary import open_all, summary_tables, unfinished
from lra_ssm.datamodules.base import PreparedData
from lra_ssm.datamodules.language.prepare import parse_shard
from lra_ssm.datamodules.storage import LOCK, resolve_root
from lra_ssm.errors import InputError, hint, squeeze
from lra_ssm.files import locked
from lra_ssm.tables import terminal_width, wrapped

USAGE = """\
lra-ssm prepare DATASET [options]
       lra-ssm prepare --config CONFIG [options of fit]
       lra-ssm prepare --summary [--root=FOLDER]
       lra-ssm prepare --clean [--root=FOLDER]"""

DESCRIPTION = f"""\
Makes a dataset ready below the data root: downloaded, generated, or read from files you have. Atomic and locked: any
number of processes may start it, at any moment it may be killed and started again; a download is resumed.

datasets: {", ".join(DATASETS)}

The synthetic tasks ({", ".join(SYNTHETIC)}) need no preparation: a fit makes their examples as it goes.

`lra-ssm prepare DATASET --help` lists a dataset's options: --source, where from; --limit, for trying out; of images
--picture, one training batch as a PNG file; of text for language models ({", ".join(LANGUAGE)})
--tokenizer, and how machines share the work."""

EXAMPLE = """\
examples:
  lra-ssm prepare listops
  lra-ssm prepare text
  lra-ssm prepare --config lra/image/s4d
  lra-ssm prepare corpus --source=FOLDER --tokenizer=bpe:16000
  lra-ssm prepare retrieval --source=/downloads/lra_release --limit=1000
  lra-ssm prepare --summary
"""


def main(command: str, arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_parser_of_all().format_help(), end="")
        return 0
    if arguments[0].startswith(("--config", "-c")):
        _prepare_configured(arguments)
        return 0
    # `--data.root` as in fit is `--root` here.
    arguments = ["--" + a.removeprefix("--data.") if a.startswith("--data.") else a for a in arguments]
    name, *rest = arguments
    if name.startswith("-"):
        options = _parser_of_all().parse_args(arguments)
        if not (options.clean or options.summary):
            raise InputError("prepare needs a dataset, --config CONFIG, --summary or --clean")
        (clean if options.clean else show_prepared)(resolve_root(options.root))
    elif name in SYNTHETIC:
        print(f"{name}: nothing to prepare; a fit with --data={SYNTHETIC[name]} makes its examples as it goes")
    elif name in DATASETS:
        _prepare_named(name, rest)
    else:
        raise InputError(f"unknown dataset {name!r}; {hint(name, [*DATASETS, *SYNTHETIC])}")
    return 0


def _parser_of_all() -> PlainParser:
    parser = PlainParser("lra-ssm prepare", DESCRIPTION, EXAMPLE)
    parser.usage = USAGE
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--summary", action="store_true", help="a table of what is prepared, and what is not finished")
    said = "remove what was begun and not finished; not while machines make shares"
    one.add_argument("--clean", action="store_true", help=said)
    parser.add_argument("--root", metavar="FOLDER", help="data root; default: LRA_SSM_DATA, else ./data")
    return parser


def _parser(name: str, cls: type[PreparedData]) -> RunParser:
    """Of the settings that decide what is prepared, and of how it is done."""
    parser = RunParser(
        prog=f"lra-ssm prepare {name}",
        description=f"Makes {name} ready.",
        epilog=f"example: lra-ssm prepare {name} --root=data",
    )
    parser.add_class_arguments(cls, skip=LOADING & set(inspect.signature(cls).parameters))
    if name in LANGUAGE:
        said = "i/n: make only every n-th part of the corpus, from the i-th on; on any machine"
        parser.add_argument("--shard", type=str | None, help=said)
        parser.add_argument("--merge", action="store_true", help="put all parts together")
    else:
        what = "image tasks: draw one training batch as the model sees it"
        parser.add_argument("--picture", type=str | None, help=what)
    parser.add_argument("--summary", action="store_true", help="then show a table of everything that is prepared")
    add_debug(parser)
    return parser


def _prepare_named(name: str, options: list[str]) -> None:
    """Prepares a dataset, or a share of it, as its own options say."""
    module, defaults = DATASETS[name]
    cls = getattr(datamodules, module)
    parser = _parser(name, cls)
    parser.set_defaults(defaults)
    settings = parser.parse_args(options).as_dict()
    summary = settings.pop("summary")
    picture = settings.pop("picture", None)
    shard = settings.pop("shard", None)
    merge = settings.pop("merge", None)
    if shard is not None and merge:
        raise InputError("--shard and --merge: one after the other; all parts first")
    datamodule = cls(**settings)
    if picture is not None:
        in_a_folder(picture, "--picture")
        if not hasattr(datamodule, "image_size"):
            raise InputError(f"--picture {picture}: {cls.__name__} is no dataset of images")
    if (shard is not None or merge) and not datamodule.is_prepared():
        datamodule.fetch()
        if shard is not None:
            print(squeeze(datamodule.tokenize(parse_shard(shard))))
            return
        datamodule.merge()
    _prepare(datamodule, settings)
    chosen = fit_options(datamodule, {}, settings) or []
    if name in LANGUAGE:  # the network has a row for each token
        chosen.append(f"--model.network.vocab_size={datamodule.manifest()['vocab_size']}")
    _say_fit(["--config", "CONFIG", f"--data={cls.__name__}", *chosen])
    if picture is not None:
        draw_batch(datamodule, Path(picture))
        print(squeeze(picture))
    if summary:
        show_prepared(datamodule.data_root)


def _prepare_configured(options: list[str]) -> None:
    """Prepares the data that a fit with these options needs."""
    from lra_ssm.cli.run_options import read_fit_options  # loads the Trainer

    configured = read_fit_options(options, of_prepare=True)
    if not configured.stored_data:
        print("nothing to prepare: this configuration's data is made, or loaded, as a fit goes")
        return
    _prepare(configured.data(), configured.data_settings)
    _say_fit([shlex.quote(option) for option in options])


def _prepare(datamodule: PreparedData, settings: dict[str, Any]) -> None:
    if not datamodule.is_prepared():
        datamodule.fetch()
    datamodule.prepare_data()
    remember(datamodule, settings)
    print(wrapped(squeeze(f"{datamodule.prepared_folder}: {datamodule.describe()}")))


def _say_fit(options: list[str]) -> None:
    print(squeeze(f"train on it: {' '.join(['lightning fit', *options])}"))


def show_prepared(root: Path) -> None:
    """Prints the table of everything that is prepared below a root."""
    if root.exists() and not os.access(root, os.R_OK | os.X_OK):
        raise InputError(f"data root {root}: cannot be read; change its permissions, or choose another with --root")
    opened, damaged = open_all(root)
    print("\n\n".join(summary_tables(opened, terminal_width())) or squeeze(f"nothing is prepared below {root}"))
    for what in damaged:
        print(f"damaged: {what}")
    for path in (left := unfinished(root)):
        print(f"not finished: {path}")
    if left:
        print(squeeze(f"the same command goes on there; `lra-ssm prepare --clean --root={root}` removes them"))


def clean(root: Path) -> None:
    """Removes what preparations left that did not end; waits for those that go on."""
    for path in unfinished(root):
        with locked(path.parent / LOCK, "prepares this dataset", keep=True):
            if not path.exists():
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            print(f"removed: {path}")
