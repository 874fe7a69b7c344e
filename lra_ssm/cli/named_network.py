"""A network by whatever names it: a run's directory, a .ckpt, a saved model's folder or name."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from lra_ssm.cli.find_checkpoint import Found, find, is_saved, load_network, load_saved

if TYPE_CHECKING:
    from torch import nn

    from lra_ssm.checkpoints import ModelFiles


class NamedNetwork(NamedTuple):
    """A network with its weights, and what its run recorded.

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
    network: "nn.Module"
    specification: dict[str, Any]
    config: dict[str, Any] = {}
    recorded: dict[str, Any] = {}
    score: str = ""
    found: Found | None = None
    files: "ModelFiles | None" = None
    step: int = 0

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.network.parameters())

    @property
    def data(self) -> dict[str, Any] | None:
        """The section of its configuration that names a data module; None where there is none."""
        section = self.config.get("data")
        return section if isinstance(section, dict) and isinstance(section.get("class_path"), str) else None


def named_network(name: str, allow_pickle: bool = False, trust: Collection[str] = ()) -> NamedNetwork:
    """Raises InputError: there is no such thing, or it cannot be read. allow_pickle, trust: of a saved model, as
    `from_pretrained` has them."""
    return _saved(name, allow_pickle, trust) if is_saved(name) else _of_a_run(name, find(name))


def _saved(name: str, allow_pickle: bool, trust: Collection[str]) -> NamedNetwork:
    from lra_ssm.checkpoints.known import headline
    from lra_ssm.models.pretrained import Pretrained

    files, network, config = load_saved(name, allow_pickle, trust)
    stated = files.config()
    specification = network.specification() if isinstance(network, Pretrained) else stated["network"]
    tested = _within(stated, "source", "metrics", "test")
    score = headline({name: value for name, value in tested.items() if type(value) in (int, float)})
    recorded = _within(stated, "source", "data")
    return NamedNetwork(files.name, network, specification, config, recorded, score, files=files)


def _of_a_run(name: str, found: Found) -> NamedNetwork:
    from lra_ssm.runs.record import read_record

    network, specification, step = load_network(found.file)
    record = read_record(found.run / "run.json")[0] if found.run else {}
    best = (f"{name} {value:.4g}" for name, value in record.get("metrics", {}).items() if name.startswith("best "))
    recorded = record.get("data") or {}
    return NamedNetwork(name, network, specification, found.config, recorded, next(best, ""), found, step=step)


def _within(stated: Any, *keys: str) -> dict[str, Any]:
    """A part of what somebody wrote; empty where it is not there."""
    for key in keys:
        stated = stated.get(key) if isinstance(stated, dict) else None
    return stated if isinstance(stated, dict) else {}
