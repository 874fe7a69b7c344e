"""Which checkpoint or saved model a name means, and the network in it."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from torch import nn

from lra_ssm.checkpoints import RUN_CONFIG, ModelFiles
from lra_ssm.checkpoints.files import within
from lra_ssm.checkpoints.known import headline
from lra_ssm.errors import InputError, squeeze
from lra_ssm.layers import NetworkSpec
from lra_ssm.models.pretrained import Pretrained, load_pretrained
from lra_ssm.runs.record import read_record


class Found(NamedTuple):
    """A checkpoint and the run that it belongs to."""

    file: Path
    run: Path | None
    config: dict[str, Any]


class NamedNetwork(NamedTuple):
    """A network with its weights in evaluation mode, and what its run recorded.

    Attributes:
        name: what messages call it.
        network: its module, on the CPU.
        specification: of the network, as plain values.
        config: of its run; empty where there is none.
        recorded: of the data that it was trained on.
        score: the metric that it is known by, as text.
        found: the checkpoint and its run, where it is no saved model.
        files: of a saved model.
        step: of training, of a checkpoint.
    """

    name: str
    network: nn.Module
    specification: dict[str, Any]
    config: dict[str, Any] = {}
    recorded: dict[str, Any] = {}
    score: str = ""
    found: Found | None = None
    files: ModelFiles | None = None
    step: int = 0

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.network.parameters())

    @property
    def source(self) -> ModelFiles | Path:
        """Where its weights are, and its tokenizer, if it has one: the saved model, or the checkpoint."""
        if self.files is not None:
            return self.files
        assert self.found is not None
        return self.found.file

    @property
    def data(self) -> dict[str, Any] | None:
        """The section of its configuration that names a data module; None where there is none."""
        section = self.config.get("data")
        return section if isinstance(section, dict) and isinstance(section.get("class_path"), str) else None


def is_saved(name: str) -> bool:
    """Whether a saved model is meant, not a run's directory or a checkpoint."""
    path = Path(name)
    if path.is_dir() and path.suffix != ".ckpt":
        return (path / "config.json").is_file()
    return not path.is_file() and path.suffix != ".ckpt"


def find(name: str) -> Found:
    """A checkpoint by its run's directory or its file. Raises InputError where there is none."""
    path = Path(name)
    if path.is_dir():
        path = _only_run(path)
        files = [path / "checkpoints" / f"{kind}.ckpt" for kind in ("best", "last")]
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            raise InputError(f"{name} has no checkpoints/best.ckpt or last.ckpt: give a run's directory, or a .ckpt")
        run: Path | None = path
    elif path.is_file():
        file = path
        above = path.absolute().parents[:2]
        run = next((folder for folder in above if (folder / "config.yaml").is_file()), None)
    else:
        raise InputError(f"checkpoint {name} does not exist: give a run's directory, or a .ckpt")
    config = run / "config.yaml" if run else None
    if config is None or not config.is_file():
        return Found(file, run, {})
    return Found(file, run, read_config(config, str(config)))


def read_config(file: Path, name: str) -> dict[str, Any]:
    """The configuration of a run; name: what messages call it. Raises InputError: it is none."""
    try:
        config = yaml.safe_load(file.read_bytes())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{name} is no YAML ({error})") from error
    if not isinstance(config, dict):
        raise InputError(f"{name} is no configuration of a run")
    return config


def _only_run(folder: Path) -> Path:
    """The run of an experiment's folder that holds one; else the folder itself."""
    runs = [] if (folder / "checkpoints").is_dir() else sorted(p.parent for p in folder.glob("*/checkpoints"))
    if len(runs) > 1:
        raise InputError(f"{folder} holds {len(runs)} runs: give one of them, such as {runs[-1]}")
    return runs[0] if runs else folder


def named_network(name: str, allow_pickle: bool = False, trust: Collection[str] = ()) -> NamedNetwork:
    """Raises InputError: it cannot be read. allow_pickle, trust: of a saved model, as `from_pretrained` has them."""
    return _saved(name, allow_pickle, trust) if is_saved(name) else _of_a_run(name, find(name))


def _saved(name: str, allow_pickle: bool, trust: Collection[str]) -> NamedNetwork:
    files = ModelFiles(name)
    config: dict[str, Any] = {}
    network = load_pretrained(files, nn.Module, allow_pickle=allow_pickle, trust=trust)
    if path := files.find(RUN_CONFIG):
        from lra_ssm.cli.trust import check_trusted  # loads lightning

        config = read_config(path, f"{files.name}: {RUN_CONFIG}")
        check_trusted(files.name, config.get("data"), trust)  # nothing else of it is made
    stated = files.config()
    specification = network.specification() if isinstance(network, Pretrained) else stated["network"]
    tested = within(stated, "source", "metrics", "test")
    score = headline({name: value for name, value in tested.items() if type(value) in (int, float)})
    recorded = within(stated, "source", "data")
    return NamedNetwork(files.name, network, specification, config, recorded, score, files=files)


def _of_a_run(name: str, found: Found) -> NamedNetwork:
    network, specification, step = load_network(found.file)
    record = read_record(found.run / "run.json")[0] if found.run else {}
    best = (f"{name} {value:.4g}" for name, value in record.get("metrics", {}).items() if name.startswith("best "))
    recorded = record.get("data") or {}
    return NamedNetwork(name, network, specification, found.config, recorded, next(best, ""), found, step=step)


def load_network(file: Path) -> tuple[nn.Module, dict[str, Any], int]:
    """The network of a checkpoint in evaluation mode, its specification as plain values, and its step of training.

    Raises InputError where it cannot be read, or is none of a task over a `network`.
    """
    from lra_ssm.runs.checkpoints import load_checkpoint  # loads lightning

    state = load_checkpoint(file)
    settings = state.get("hyper_parameters")
    spec = settings.get("network") if isinstance(settings, dict) else None
    if not isinstance(spec, dict) or "class_path" not in spec:
        raise InputError(f"{file} says no network: it is of a task that keeps none among its hyperparameters")
    try:
        network = NetworkSpec.of(spec)()
    except ValueError as error:
        raise InputError(f"{file}: its network cannot be built: {squeeze(str(error))}") from error
    weights = {n.removeprefix("network."): w for n, w in state["state_dict"].items() if n.startswith("network.")}
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(f"{file}: its weights are of another network: {squeeze(str(error))[:300]}") from error
    step = state.get("global_step")
    return network.eval(), spec, step if isinstance(step, int) else 0
