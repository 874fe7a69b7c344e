"""`lra-ssm prepare` and `lra-ssm configs`: data prepared ahead of a fit, and the configs of the package."""

import shlex
import shutil
from pathlib import Path
from typing import Any

from lra_ssm.cli.datasets import DATASETS, LANGUAGE, SYNTHETIC
from lra_ssm.cli.summary import prepared_folders, show_prepared, unfinished
from lra_ssm.datamodules.storage import LOCK, resolve_root
from lra_ssm.errors import InputError, hint, to_one_line
from lra_ssm.files import locked
from lra_ssm.shipped import FOLDERS, find, names
from lra_ssm.tables import table, terminal_width, wrapped

_USAGE = """\
lra-ssm prepare DATASET [options]
       lra-ssm prepare --config CONFIG [options of fit]
       lra-ssm prepare --summary [--root=FOLDER]
       lra-ssm prepare --clean [--root=FOLDER]"""

_DESCRIPTION = f"""\
Prepares a dataset below the data root: downloaded, generated, or read from files you have. Atomic and locked: any
number of processes may start it, and one that is killed may be started again; a download is resumed.

datasets: {", ".join(DATASETS)}

The synthetic tasks ({", ".join(SYNTHETIC)}) need no preparation: a fit makes their examples as it goes.

`lra-ssm prepare DATASET --help` lists a dataset's options: --source, where from; --limit, for trying out; of images
--picture, one training batch as a PNG file; of text for language models ({", ".join(LANGUAGE)})
--tokenizer, and how machines share the work."""

_EXAMPLES = """\
examples:
  lra-ssm prepare listops
  lra-ssm prepare --config lra/image/s4d
  lra-ssm prepare corpus --source=FOLDER --tokenizer=bpe:16000
  lra-ssm prepare retrieval --source=/downloads/lra_release --limit=1000
  lra-ssm prepare --summary
"""


def main(command: str, arguments: list[str]) -> int:
    """Run `prepare`, whose options are those of the dataset, or of a fit."""
    # `--data.root` as in fit is `--root` here.
    renamed = ["--" + a.removeprefix("--data.") if a.startswith("--data.") else a for a in arguments]
    if arguments and arguments[0].startswith(("--config", "-c")):
        _prepare_configured(arguments)
    elif not arguments or arguments[0].startswith("-"):
        _prepare_nothing(renamed)
    elif arguments[0] in SYNTHETIC:
        task = arguments[0]
        print(f"{task}: nothing to prepare; a fit with --data={SYNTHETIC[task]} makes its examples as it goes")
    elif arguments[0] in DATASETS:
        _prepare_named(renamed[0], renamed[1:])
    else:
        raise InputError(f"unknown dataset {arguments[0]!r}; {hint(arguments[0], [*DATASETS, *SYNTHETIC])}")
    return 0


def _parser(prog: str, **texts: Any) -> Any:
    from jsonargparse import ArgumentParser

    from lra_ssm.cli.command import PlainHelp

    return ArgumentParser(prog=prog, exit_on_error=False, allow_abbrev=False, formatter_class=PlainHelp, **texts)


def _prepare_nothing(arguments: list[str]) -> None:
    """--summary, --clean, or help."""
    from lra_ssm.cli.command import parse

    parser = _parser("lra-ssm prepare", usage=_USAGE, description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("--summary", action="store_true", help="a table of what is prepared, and what is not finished")
    about = "remove what was begun and not finished; not while other machines prepare shares"
    parser.add_argument("--clean", action="store_true", help=about)
    parser.add_argument("--root", metavar="FOLDER", help="data root; default: LRA_SSM_DATA, else ./data")
    if not arguments:
        parser.print_help()
        return
    given = parse(parser, arguments)
    if not (given.clean or given.summary):
        raise InputError("prepare needs a dataset, --config CONFIG, --summary or --clean")
    (clean if given.clean else show_prepared)(resolve_root(given.root))


def _prepare_named(name: str, options: list[str]) -> None:
    """Prepare a dataset, or a share of it, as its own options say."""
    from lra_ssm import datamodules
    from lra_ssm.cli.batch_picture import draw_batch
    from lra_ssm.cli.command import parse
    from lra_ssm.cli.write_predictions import check_output_path
    from lra_ssm.datamodules.language.prepare import parse_shard

    class_name, defaults = DATASETS[name]
    cls = getattr(datamodules, class_name)
    parser = _parser(f"lra-ssm prepare {name}", description=f"Prepares {name}.",
                     epilog=f"example: lra-ssm prepare {name} --root=data")  # fmt: skip
    is_image = issubclass(cls, datamodules.ImageData)
    kept = ("data", "batches") if is_image else ("data",)  # --picture shows an image as the model sees it
    not_prepared = {each for each, affects in cls.affects.items() if affects not in kept and each != "root"}
    parser.add_class_arguments(cls, skip=not_prepared)
    if name in LANGUAGE:
        about = "i/n: make only every n-th part of the corpus, from the i-th on; on any machine"
        parser.add_argument("--shard", type=str | None, help=about)
        parser.add_argument("--merge", action="store_true", help="put all parts together")
    elif is_image:
        parser.add_argument("--picture", type=str | None, help="draw one training batch as the model sees it")
    parser.add_argument("--summary", action="store_true", help="then show a table of everything that is prepared")
    parser.set_defaults(defaults)
    settings = parse(parser, options).as_dict()
    summary, picture, shard, merge = (settings.pop(each, None) for each in ("summary", "picture", "shard", "merge"))
    if shard is not None and merge:
        raise InputError("--shard and --merge: one after the other; all parts first")
    if picture is not None:
        check_output_path(picture, "--picture")
    datamodule = cls(**settings)
    if (shard is not None or merge) and not datamodule.is_prepared():
        datamodule.fetch()
        if shard is not None:
            print(to_one_line(datamodule.tokenize(parse_shard(shard))))
            return
        datamodule.merge()
    _prepare(datamodule)
    own = ("summary", "picture", "shard", "merge")
    taken = [f"--data.{each[2:]}" for each in _joined(options) if each[2:].partition("=")[0] not in own]
    taken = [*(f"--data.{each}={value}" for each, value in defaults.items()), *taken]
    if name in LANGUAGE:  # the network has a row for each token
        taken.append(f"--model.network.vocab_size={datamodule.manifest()['vocab_size']}")
    _print_fit(["--config", "CONFIG", f"--data={class_name}", *taken])
    if picture is not None:
        draw_batch(datamodule, Path(picture))
        print(to_one_line(picture))
    if summary:
        show_prepared(datamodule.data_root)


def _joined(options: list[str]) -> list[str]:
    """Options as --name=value, one text each."""
    found, given = list[str](), iter(options)
    for option in given:
        flag = "=" in option or option in ("--summary", "--merge")
        found.append(option if flag else f"{option}={next(given, '')}")
    return found


def _prepare_configured(options: list[str]) -> None:
    """Prepare the data that a fit with these options needs."""
    from lra_ssm.cli.config import read_fit_options

    config = read_fit_options(options)
    if not config.stored_data:
        print("nothing to prepare: this configuration's data is made, or loaded, as a fit goes")
        return
    _prepare(config.data())
    _print_fit(options)


def _prepare(datamodule: Any) -> None:
    if not datamodule.is_prepared():
        datamodule.fetch()
    datamodule.prepare_data()
    print(wrapped(to_one_line(f"{datamodule.prepared_folder}: {datamodule.describe()}")))


def _print_fit(options: list[str]) -> None:
    print(to_one_line(f"train on it: {shlex.join(['lightning', 'fit', *options])}"))


def clean(root: Path) -> None:
    """Remove what unfinished preparations left; wait for those that still run."""
    for path in unfinished(root):
        with locked(path.parent / LOCK, "prepares this dataset", keep=True):
            if not path.exists():
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            print(f"removed: {path}")


# -- configs -------------------------------------------------------------------------------------------------------


def configs(name: str | None = None, *, root: str | None = None, resolved: bool = False) -> None:
    """List the configs that ship with the package, each a name for --config; with a name, print that config.

    `task` is what `lra-ssm prepare` calls the data, `size` the model's layers × width, `published` the figure in a
    paper's table that it is compared with. Data is prepared (some of this dataset is), missing (`lra-ssm prepare
    --config CONFIG`), or generated as a fit goes. An addition is given after another config.

    Args:
        name: a config to print, or a part of names to list.
        root: data root; default: LRA_SSM_DATA, else ./data.
        resolved: print every setting, those with their defaults, too.

    Examples:
        lra-ssm configs
        lra-ssm configs listops
        lra-ssm configs lra/listops/b2s6 > my.yaml
        lra-ssm configs lra/listops/b2s6 --resolved
    """
    part = name or ""
    listed = [each for each in names("config") if part in each]
    if resolved:
        import yaml

        from lra_ssm.cli.config import read_fit_options

        if not part:
            raise InputError("--resolved prints one config: give its name")
        config = read_fit_options(["--config", part])
        print(yaml.safe_dump(config.resolved, sort_keys=False, allow_unicode=True), end="")
    elif part in listed or not listed:
        print(find("config", part).read_text(), end="")
    else:
        folder = resolve_root(root)
        cells = [_row(each, folder) for each in listed]
        print(table(("config", "task", "unit", "size", "published", "data is"), cells, 3, terminal_width()))


def _row(name: str, root: Path) -> tuple[str, ...]:
    """A config's cells, read from its YAML only."""
    from lra_ssm.results.published import row_of_config
    from lra_ssm.runs.record import load_yaml

    config = load_yaml(FOLDERS["config"] / f"{name}.yaml")
    if "model" not in config:
        return name, "", "", "", "", "addition"
    network = config["model"]["init_args"]["network"]["init_args"]
    layers = network["layer"] if isinstance(network["layer"], list) else [network["layer"]]
    units = ", ".join(dict.fromkeys(_class_name(layer) for layer in layers))
    row = row_of_config(config)
    figure = "" if row is None or row.unmatched else row.figure
    size = f"{network.get('n_layers', 8)} × {network.get('d_model', 128)}"
    dataset = _dataset(config["data"])
    return name, dataset, units, size, figure, readiness(dataset, root)


def _dataset(data: Any) -> str:
    """What the commands call a config's data."""
    settings = data.get("init_args") or {} if isinstance(data, dict) else {}
    for name, (cls, needed) in reversed(DATASETS.items()):
        if cls == _class_name(data) and needed.items() <= settings.items():
            return name
    return next(name for name, cls in SYNTHETIC.items() if cls == _class_name(data))


def _class_name(given: Any) -> str:
    return str(given["class_path"] if isinstance(given, dict) else given).rpartition(".")[2]


# Where a dataset's folder below the root is not called as the dataset.
_FOLDERS = {"image": "cifar10", "scifar": "cifar10", "pathx": "pathfinder", "slimpajama6b": "slimpajama"}


def readiness(dataset: str, root: Path) -> str:
    """Whether some of a dataset is prepared below the root; which settings it was prepared with is not looked at."""
    if dataset in SYNTHETIC:
        return "generated"
    folder = _FOLDERS.get(dataset, dataset)
    return "prepared" if any(path.parent.name == folder for path in prepared_folders(root)) else "missing"
