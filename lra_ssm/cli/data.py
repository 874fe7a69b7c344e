"""`lra-ssm prepare` prepares data ahead of a fit; `lra-ssm configs` lists the configs of the package."""

import shlex
from pathlib import Path
from typing import Any

from lra_ssm.cli.datasets import DATASETS, SYNTHETIC
from lra_ssm.cli.summary import prepared_folders, show_prepared
from lra_ssm.datamodules.storage import resolve_root
from lra_ssm.errors import InputError, hint, to_one_line
from lra_ssm.shipped import FOLDERS, find, names
from lra_ssm.tables import table, terminal_width, wrapped


def prepare(
    dataset: str | None = None,
    *options: str,
    root: str | None = None,
    summary: bool = False,
    shard: str | None = None,
    merge: bool = False,
    picture: str | None = None,
) -> None:
    """Prepare a dataset below the data root: download it, generate it, or read it from your files.

    Datasets: listops, text, retrieval, image, pathfinder, pathx, scifar, mnist; wikitext103, wikitext2, slimpajama6b,
    corpus (text for language models). `lra-ssm prepare DATASET --help` lists the options of a dataset: --source, where
    it comes from; --limit, for trying out; … In place of a dataset, --config CONFIG and other options of fit prepare
    what that fit needs. Any number of processes may start it, and one that is killed may be started again. The
    synthetic tasks need no preparation.

    Args:
        dataset: the dataset's name
        root: data root; default: LRA_SSM_DATA, else ./data
        summary: show a table of prepared data, and unfinished preparations
        shard: i/n makes only every n-th part of a corpus, from the i-th on; on any machine
        merge: put all parts of a corpus together
        picture: a PNG file of one training batch of images as the model sees it

    Examples:
        lra-ssm prepare listops
        lra-ssm prepare --config lra/image/s4d
        lra-ssm prepare corpus --source=FOLDER --tokenizer=bpe:16000
        lra-ssm prepare retrieval --source=/downloads/lra_release --limit=1000
        lra-ssm prepare --summary
    """
    arguments = [*options, *([f"--data.root={root}"] if root else [])]
    configured = any(each.startswith(("--config=", "-c=")) for each in arguments)
    if dataset is None and not configured:
        if options or not summary:
            raise InputError("prepare needs a dataset, --config CONFIG, or --summary")
        _show(resolve_root(root))
        return
    if dataset in SYNTHETIC:
        print(f"{dataset}: nothing to prepare; a fit with --data={SYNTHETIC[dataset]} makes its examples as it goes")
        return
    from lra_ssm.cli.config import build_data, read_fit_options
    from lra_ssm.cli.write_predictions import check_output_path
    from lra_ssm.datamodules import ImageData
    from lra_ssm.datamodules.base import PreparedData
    from lra_ssm.datamodules.language.module import LanguageDataModule

    if dataset is None:
        data = read_fit_options(arguments).data()
    else:
        if dataset not in DATASETS:
            raise InputError(f"unknown dataset {dataset!r}; {hint(dataset, [*DATASETS, *SYNTHETIC])}")
        name, defaults = DATASETS[dataset]
        arguments = [f"--data.{each.removeprefix('--').removeprefix('data.')}" for each in arguments]
        data = build_data({"class_path": name, "init_args": defaults}, arguments)
        default_options = [f"--data.{key}={value}" for key, value in defaults.items()]
        arguments = ["--config", "CONFIG", f"--data={name}", *default_options, *arguments]
    if not isinstance(data, PreparedData):
        print("nothing to prepare: this configuration's data is made, or loaded, as a fit goes")
        return
    if picture is not None:
        if not isinstance(data, ImageData):
            raise InputError(f"--picture: {type(data).__name__} has no images")
        check_output_path(picture, "--picture")
    if (shard or merge) and not isinstance(data, LanguageDataModule):
        raise InputError(f"--shard, --merge: {type(data).__name__} is prepared as a whole; a corpus has parts")
    if not data.is_prepared():
        data.fetch()
        if isinstance(data, LanguageDataModule) and shard:
            from lra_ssm.datamodules.language.prepare import parse_shard

            print(to_one_line(data.tokenize(parse_shard(shard))))
            return
        if isinstance(data, LanguageDataModule) and merge:
            data.merge()
    data.prepare_data()
    print(wrapped(to_one_line(f"{data.prepared_folder}: {data.describe()}")))
    if dataset and isinstance(data, LanguageDataModule):  # the embedding has a row for each token
        arguments.append(f"--model.network.vocab_size={data.manifest()['vocab_size']}")
    print(to_one_line(f"train on it: {shlex.join(['lightning', 'fit', *arguments])}"))
    if picture is not None:
        from lra_ssm.cli.batch_picture import draw_batch

        draw_batch(data, Path(picture))
        print(to_one_line(picture))
    if summary:
        _show(data.data_root)


def _show(root: Path) -> None:
    for line in show_prepared(root):
        print(line)


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
        config = read_fit_options([f"--config={part}"])
        print(yaml.safe_dump(config.resolved, sort_keys=False, allow_unicode=True), end="")
    elif part in listed or not listed:
        print(find("config", part).read_text(), end="")
    else:
        folder = resolve_root(root)
        cells = [_row(each, folder) for each in listed]
        print(table(("config", "task", "unit", "size", "published", "data is"), cells, 3, terminal_width()))


def _row(name: str, root: Path) -> tuple[str, ...]:
    """Return a config's cells, read only from its YAML file."""
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
    """Return the name that the commands use for a config's data."""
    settings = data.get("init_args") or {} if isinstance(data, dict) else {}
    for name, (cls, defaults) in reversed(DATASETS.items()):
        if cls == _class_name(data) and defaults.items() <= settings.items():
            return name
    return next(name for name, cls in SYNTHETIC.items() if cls == _class_name(data))


def _class_name(value: Any) -> str:
    return str(value["class_path"] if isinstance(value, dict) else value).rpartition(".")[2]


# Datasets whose folder below the root has another name.
_FOLDERS = {"image": "cifar10", "scifar": "cifar10", "pathx": "pathfinder", "slimpajama6b": "slimpajama"}


def readiness(dataset: str, root: Path) -> str:
    """Return whether some of a dataset is prepared below the root, whatever its settings, or is generated."""
    if dataset in SYNTHETIC:
        return "generated"
    folder = _FOLDERS.get(dataset, dataset)
    return "prepared" if any(path.parent.name == folder for path in prepared_folders(root)) else "missing"
