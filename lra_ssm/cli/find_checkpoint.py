"""Which checkpoint or saved model a name means, and the network in it."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lra_ssm.errors import InputError, squeeze

if TYPE_CHECKING:
    from torch import nn

    from lra_ssm.checkpoints import ModelFiles


class Found(NamedTuple):
    """A checkpoint and the run that it belongs to."""

    file: Path
    run: Path | None
    config: dict[str, Any]


def is_saved(name: str) -> bool:
    """Whether a saved model is meant, not a run's directory or a checkpoint."""
    path = Path(name)
    return not path.is_file() and path.suffix != ".ckpt" and (not path.is_dir() or (path / "config.json").is_file())


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
        file, run = path, next((p for p in path.absolute().parents[:2] if (p / "config.yaml").is_file()), None)
    else:
        raise InputError(f"checkpoint {name} does not exist: give a run's directory, or a .ckpt")
    config: Any = None
    if run is not None and (run / "config.yaml").is_file():
        import yaml

        try:
            config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InputError(f"{run / 'config.yaml'} cannot be read: {squeeze(str(error))}") from error
    return Found(file, run, config if isinstance(config, dict) else {})


def options_of_named(name: str, rest: list[str]) -> list[str]:
    """The options of a run by its directory or checkpoint, or of a saved model. Raises InputError: there is none."""
    from lra_ssm.cli.starting_weights import options_of

    if is_saved(name):
        return options_of(name, rest)
    found = find(name)
    if not found.config:
        raise InputError(f"{name} has no run's config.yaml: give --config, and --ckpt_path={found.file}")
    return [f"--config={found.run}/config.yaml", f"--ckpt_path={found.file}", *rest]


def _only_run(folder: Path) -> Path:
    """The run of an experiment's folder that holds one; else the folder itself. Raises InputError: it holds several."""
    runs = [] if (folder / "checkpoints").is_dir() else sorted(p.parent for p in folder.glob("*/checkpoints"))
    if len(runs) > 1:
        raise InputError(f"{folder} holds {len(runs)} runs: give one of them, such as {runs[-1]}")
    return runs[0] if runs else folder


def load_network(file: Path) -> tuple["nn.Module", dict[str, Any], int]:
    """The network of a checkpoint with its weights, its specification as plain values, and its step of training.

    Raises InputError where it cannot be read, or is none of a task over a `network`.
    """
    from lra_ssm.layers import NetworkSpec
    from lra_ssm.runs.checkpoints import load_checkpoint

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
    return network, spec, step if isinstance(step, int) else 0


def load_saved(
    name: str, allow_pickle: bool = False, trust: Collection[str] = ()
) -> tuple["ModelFiles", "nn.Module", dict[str, Any]]:
    """A saved model's files, its network, and its run's configuration, empty where it brings none along.

    Raises InputError: as `load_pretrained`, or the configuration's data module is of nobody who is trusted.
    """
    from torch import nn

    from lra_ssm.checkpoints import ModelFiles
    from lra_ssm.cli.starting_weights import check_trusted, run_config
    from lra_ssm.models.pretrained import load_pretrained

    files = ModelFiles(name)
    network = load_pretrained(files, nn.Module, allow_pickle=allow_pickle, trust=trust)
    config = run_config(files)
    config = config if isinstance(config, dict) else {}
    check_trusted(files.name, config.get("data"), trust)  # nothing else of it is made
    return files, network, config
