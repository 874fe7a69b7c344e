"""`predict`: on a split of a run's data (LightningCLI, run.py) or on files of the user's own."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_ssm.cli.named_network import NamedNetwork, named_network
from lra_ssm.cli.options import A_MODEL, add_device, add_trust, count, device_of
from lra_ssm.cli.output import PlainParser
from lra_ssm.errors import InputError, squeeze

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from lra_ssm.datamodules.loading.own_files import OwnExamples

DESCRIPTION = """\
Classifies files of your own with a run or a saved model, as its data module makes inputs of the data: PNG or JPEG
images, or folders of them, of the data's size and mode (nothing is resized); expressions or texts, one a line (.txt,
.tsv); pairs of texts, one a line with a tab between them; features as the network takes them (.npy, .csv). The data
need not be there. A CSV file has every class's probability.

Without FILE it predicts a split of the run's own data: `lra-ssm predict --help` has the options of that."""

EXAMPLE = """\
examples:
  lra-ssm predict ./models/lru-mnist digits/*.png
  lra-ssm predict me/s4d-scifar photos --output=photos.csv
  lra-ssm predict runs/listops/b2s6/38722f686f expressions.txt
  lra-ssm predict me/s4d-mnist --split=val
"""
_SHOWN = 20  # examples in the table


def main(command: str, arguments: list[str]) -> int:
    if not _names_files(arguments):
        from lra_ssm.cli.run import main as predict_split

        return predict_split(command, arguments)
    if any(argument.partition("=")[0] == "--split" for argument in arguments):
        raise InputError("--split is a part of the model's own data: leave it out, or the files")
    options = parser().parse_intermixed_args(arguments)
    output = Path(options.output)
    if output.is_dir():
        raise InputError(f"--output {output}: is a folder")
    if not output.absolute().parent.is_dir():
        raise InputError(f"--output {output}: its folder does not exist")
    device = device_of(options.device)
    named = load(options.model, options.allow_pickle, options.trust)
    datamodule = _data_module(named)
    names = _class_names(named, datamodule)
    examples = datamodule.own_examples([Path(file) for file in options.files], named.recorded.get("vocabulary"))
    size = options.batch_size or getattr(datamodule, "evaluation_batch_size", 32)
    probabilities = classify(named, examples, size, device)
    if probabilities.shape[1] != len(names):
        raise InputError(f"{named.name}: its network has {probabilities.shape[1]} classes, its data names {len(names)}")
    _write(output, examples.names, names, probabilities)
    _show(examples.names, names, probabilities)
    for note in examples.notes:
        print(squeeze(f"note: {note}"))
    print(squeeze(f"{len(examples.names)} predictions in {output}"))
    return 0


def parser() -> PlainParser:
    made = PlainParser("lra-ssm predict", DESCRIPTION, EXAMPLE)
    made.add_argument("model", metavar="NAME_OR_RUN", help=A_MODEL)
    made.add_argument("files", metavar="FILE", nargs="*", help="files, or folders of images")
    said = "CSV file, replaced where it exists; default: predictions.csv"
    made.add_argument("--output", default="predictions.csv", metavar="FILE", help=said)
    said = "examples at a time; default: the data module's eval_batch_size"
    made.add_argument("--batch_size", type=count, metavar="B", help=said)
    add_device(made)
    add_trust(made)
    return made


def _names_files(arguments: list[str]) -> bool:
    """Whether files of the user's own are to be predicted; else the arguments are LightningCLI's."""
    first_two = len(arguments) > 1 and not any(argument.startswith("-") for argument in arguments[:2])
    if first_two or {"-h", "--help"} & set(arguments):
        return first_two
    try:
        options, unknown = parser().parse_known_intermixed_args(arguments)
    except InputError:
        return False
    return bool(options.files) and not unknown


# --- the model ---


def load(name: str, allow_pickle: bool, trust: Sequence[str]) -> NamedNetwork:
    """Raises InputError: it is no classifier, or nothing says how its inputs are made."""
    from lra_ssm.models import LanguageModel, Regressor

    named = named_network(name, allow_pickle, trust)
    if isinstance(named.network, LanguageModel):
        raise InputError(f"{name}: is a language model: `lra-ssm generate` continues texts, `lra-ssm score` rates them")
    if isinstance(named.network, Regressor):
        raise InputError(f"{name}: predicts values, not classes: it predicts splits of its data, with --split")
    if named.data is None:
        raise InputError(f"{name}: has no config.yaml with a data module, which says how inputs are made: give a run")
    return named


def _data_module(named: NamedNetwork) -> Any:
    """The data module of the configuration; nothing of its data is looked at."""
    from lra_ssm.layers.spec import import_object

    assert named.data is not None
    path, arguments = named.data["class_path"], named.data.get("init_args") or {}
    try:
        datamodule = import_object(path)(**arguments)
    except InputError:
        raise
    except (ValueError, TypeError) as error:  # no such class, or it takes other arguments
        raise InputError(f"{named.name}: its data module {path} cannot be made: {error}") from error
    if not hasattr(datamodule, "own_examples"):
        raise InputError(f"{named.name}: its data module {path} has no own_examples, which reads files of your own")
    return datamodule


def _class_names(named: NamedNetwork, datamodule: Any) -> list[str]:
    names = named.recorded.get("class_names") or getattr(datamodule, "class_names", None)
    if not names:
        kind = type(datamodule).__name__
        raise InputError(f"{named.name}: neither it nor its data module says what its classes are: {kind}.class_names")
    return [str(name) for name in names]


def classify(named: NamedNetwork, examples: "OwnExamples", batch_size: int, device: "torch.device") -> "Tensor":
    """Probabilities (examples, classes) float32, on the CPU."""
    import numpy as np
    import torch

    from lra_ssm.bars import with_bar

    network = named.network.to(device)
    found = []
    starts = range(0, len(examples.names), batch_size)
    with torch.inference_mode():
        for start in with_bar(starts, "predicting", len(starts)):
            numbers = np.arange(start, min(start + batch_size, len(examples.names)))
            inputs, lengths = examples.load(numbers)
            try:
                logits = network(inputs.to(device), None if lengths is None else lengths.to(device))
            except ValueError as error:  # of layers, which say what they cannot
                raise InputError(f"{named.name}: {error}") from error
            found.append(logits.softmax(-1).float().cpu())
    return torch.cat(found)


# --- what is said ---


def _write(file: Path, inputs: list[str], names: list[str], probabilities: "Tensor") -> None:
    from lra_ssm.files import replacing

    best, predicted = (values.tolist() for values in probabilities.max(1))
    with replacing(file, newline="", encoding="utf-8", errors="backslashreplace") as out:
        writer = csv.writer(out)
        writer.writerow(["input", "prediction", "probability", *(f"p_{name}" for name in names)])
        for given, number, p, row in zip(inputs, predicted, best, probabilities.tolist(), strict=True):
            writer.writerow([given, names[number], f"{p:.6g}", *(f"{value:.6g}" for value in row)])


def _show(inputs: list[str], names: list[str], probabilities: "Tensor") -> None:
    from lra_ssm.tables import table, terminal_width

    first = probabilities[:_SHOWN]
    values, numbers = (found.tolist() for found in first.topk(min(2, len(names)), 1))
    rows = []
    for given, p, number in zip(inputs[:_SHOWN], values, numbers, strict=True):
        second = f"{names[number[1]]} ({p[1]:.4f})" if len(p) > 1 else ""
        rows.append((given, names[number[0]], f"{p[0]:.4f}", second))
    print(table(("input", "prediction", "probability", "runner-up"), rows, left=2, width=terminal_width()))
    if len(inputs) > _SHOWN:
        print(f"… and {len(inputs) - _SHOWN} more")
