"""`lra-ssm export`: a checkpoint's network as a saved model; or the average of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_ssm.cli.output import PlainParser
from lra_ssm.errors import InputError, squeeze

if TYPE_CHECKING:
    from torch import Tensor

    from lra_ssm.cli.named_network import NamedNetwork


DESCRIPTION = """\
Writes the network of a Lightning checkpoint as a saved model: a folder with config.json, model.safetensors and the
tokenizer, where there is one. from_pretrained and the commands that take a model read it. With --average the mean of
several checkpoints of one network. `lra-ssm push` adds the run's config, its figures and a card."""

EXAMPLE = """\
examples:
  lra-ssm export runs/mnist/s4d/38722f686f --to saved/s4d
  lra-ssm export runs/lm/quickstart/38722f686f/checkpoints/last.ckpt --to saved/lm --format=hf
  lra-ssm export --average a/best.ckpt b/best.ckpt c/best.ckpt --to saved/mean
"""


def parser() -> PlainParser:
    made = PlainParser("lra-ssm export", DESCRIPTION, EXAMPLE)
    said = "a run's directory (its best.ckpt, else its last.ckpt), or a .ckpt; several with --average"
    made.add_argument("checkpoints", metavar="CHECKPOINT", nargs="+", help=said)
    made.add_argument("--to", metavar="FOLDER", help="where the saved model goes")
    made.add_argument("--average", action="store_true", help="write the mean of several checkpoints")
    said = "lra_ssm; or hf, what transformers' MambaForCausalLM or Mamba2ForCausalLM loads; default: lra_ssm"
    made.add_argument("--format", choices=("lra_ssm", "hf"), default="lra_ssm", help=said)
    made.add_argument("--force", action="store_true", help="replace a saved model that is there")
    return made


def main(command: str, arguments: list[str]) -> int:
    options = parser().parse_intermixed_args(arguments)
    if options.to is None:
        raise InputError("--to is missing: the folder where the saved model goes")
    several = len(options.checkpoints) > 1
    if several and not options.average:
        raise InputError("several checkpoints need --average")
    if options.average and not several:
        raise InputError("--average needs several checkpoints")
    from lra_ssm.checkpoints import check_finite
    from lra_ssm.cli.language_models import tokenizer_of
    from lra_ssm.cli.named_network import find, named_network
    from lra_ssm.models import save_network

    check_destination(Path(options.to), options.force)
    files = [find(name).file for name in options.checkpoints]
    model = named_network(str(files[-1]))
    if several:
        print(average(model, files))
        what = "their mean"
        source: dict[str, Any] = {"averaged": [str(file) for file in files]}
    else:
        what = files[0].name
        source = {"checkpoint": str(files[0]), "step": model.step}
    state = model.network.state_dict()
    check_finite(state, what)
    save_network(options.to, model.specification, state, tokenizer_of(model.source), source, options.format)
    print(squeeze(f"{options.to}: {type(model.network).__name__}, {model.parameters:,} parameters"))
    return 0


def check_destination(folder: Path, force: bool) -> None:
    """Nothing is there, or it may be replaced. Raises InputError."""
    if (folder / "config.json").is_file() and not force:
        raise InputError(f"{folder} holds a model already: --force replaces it")


def average(model: NamedNetwork, files: Sequence[Path]) -> str:
    """Gives the network of the last file the mean of all, summed in float64; returns what was done, in one line.

    Whole numbers (counts of batches) are the last file's. Raises InputError: they are of different networks.
    """
    import torch

    from lra_ssm.cli.named_network import load_network

    def wide(x: Tensor) -> Tensor:
        return x.to(torch.complex128 if x.is_complex() else torch.float64)

    last = model.network.state_dict()
    averaged = {name: x for name, x in last.items() if x.is_floating_point() or x.is_complex()}
    means = {name: wide(x) / len(files) for name, x in averaged.items()}
    for file in files[:-1]:
        network, specification, _ = load_network(file)
        if specification != model.specification:
            raise InputError(f"{file} is of another network than {files[-1]}: their settings differ")
        state = network.state_dict()
        for name in means:
            means[name] += wide(state[name]) / len(files)
    model.network.load_state_dict(last | means)
    statistics = [name for name in means if name.endswith(("running_mean", "running_var"))]
    kept = len(last) - len(means)
    said = f"mean of {len(files)} checkpoints: {len(means)} tensors"
    if statistics:
        said += f", among them {len(statistics)} running statistics of batch norm"
        said += ": the mean of the checkpoints' own, not what the averaged network would measure"
    if kept:
        said += f"; of whole numbers ({kept}) those of {files[-1]}"
    return said
