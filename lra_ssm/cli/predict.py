"""`predict`: of a run or a saved model, on a split of its data (LightningCLI, run.py) or on files of the user's own."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lra_ssm.cli.output import PlainParser
from lra_ssm.errors import InputError, squeeze

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lra_ssm.datamodules.loading.own_files import OwnExamples

DESCRIPTION = """\
Classifies files of your own with a run or a saved model, as its data module makes inputs of the data: PNG or JPEG
images, or folders of them, of the size and mode that the data has (nothing is resized); expressions or texts, one a
line (.txt, .tsv); pairs of texts, one a line with a tab between them; features as the network takes them (.npy, .csv).
The data need not be there. A CSV file has every class's probability.

Without FILE it predicts a split of the run's own data: `lra-ssm predict --help` has the options of that."""

EXAMPLE = """\
examples:
  lra-ssm predict ./models/lru-mnist digits/*.png
  lra-ssm predict me/s4d-scifar photos --output=photos.csv
  lra-ssm predict runs/listops/b2s6/38722f686f expressions.txt
  lra-ssm predict me/s4d-mnist --split=val
"""
_SHOWN = 20  # examples in the table


class Trained(NamedTuple):
    """A network, the data section of its configuration, and what was recorded of the data that it was trained on."""

    name: str
    network: "nn.Module"
    data: Any
    recorded: dict[str, Any]


def main(command: str, arguments: list[str]) -> int:
    if not _names_files(arguments):
        from lra_ssm.cli.run import main as predict_split

        return predict_split(command, arguments)
    if any(argument.partition("=")[0] == "--split" for argument in arguments):
        raise InputError("--split is a part of the model's own data: leave it out, or the files")
    options = parser().parse_intermixed_args(arguments)
    if options.batch_size is not None and options.batch_size < 1:
        raise InputError(f"--batch_size is {options.batch_size}; it must be at least 1")
    output = Path(options.output)
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise InputError(f"--output {output}: {'is a folder' if output.is_dir() else 'its folder does not exist'}")
    trained = load(options.model, options.allow_pickle, options.trust)
    datamodule = _data_module(trained)
    names = _class_names(trained, datamodule)
    examples = datamodule.own_examples([Path(file) for file in options.files], trained.recorded.get("vocabulary"))
    size = options.batch_size or getattr(datamodule, "evaluation_batch_size", 32)
    probabilities = classify(trained, examples, size, options.device)
    if probabilities.shape[1] != len(names):
        raise InputError(
            f"{trained.name}: its network has {probabilities.shape[1]} classes, its data names {len(names)}"
        )
    _write(output, examples.names, names, probabilities)
    _show(examples.names, names, probabilities)
    for note in examples.notes:
        print(squeeze(f"note: {note}"))
    print(squeeze(f"{len(examples.names)} predictions in {output}"))
    return 0


def parser() -> PlainParser:
    made = PlainParser("lra-ssm predict", DESCRIPTION, EXAMPLE)
    said = "a saved model's folder, a name of the Hub or of ours, a run's directory (its best.ckpt), or a .ckpt"
    made.add_argument("model", metavar="NAME_OR_RUN", help=said)
    made.add_argument("files", metavar="FILE", nargs="*", help="files, or folders of images")
    said = "CSV file, replaced where it exists; default: predictions.csv"
    made.add_argument("--output", default="predictions.csv", metavar="FILE", help=said)
    said = "examples at a time; default: the data module's eval_batch_size"
    made.add_argument("--batch_size", type=int, metavar="B", help=said)
    made.add_argument("--device", metavar="DEVICE", help="such as cpu or cuda:1; default: cuda where there is one")
    said = "read a saved model's weights from a pickle, tensors alone"
    made.add_argument("--allow-pickle", action="store_true", help=said)
    said = "a class of others that a saved model, or its data, may be made with; may be given more than once"
    made.add_argument("--trust", action="append", default=[], metavar="module.Class", help=said)
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


def load(name: str, allow_pickle: bool, trust: Sequence[str]) -> Trained:
    """A classifier by its name, in evaluation mode.

    Raises InputError: there is none, it is none, or nothing says how its inputs are made.
    """
    from lra_ssm.cli.find_checkpoint import is_saved
    from lra_ssm.models import LanguageModel, Regressor

    trained = _of_a_saved_model(name, allow_pickle, trust) if is_saved(name) else _of_a_run(name)
    network = trained.network
    if isinstance(network, LanguageModel):
        raise InputError(f"{name}: is a language model: `lra-ssm generate` continues texts, its score() rates them")
    if isinstance(network, Regressor):
        raise InputError(f"{name}: predicts values, not classes: it predicts splits of its data, with --split")
    if not isinstance(trained.data, dict) or not isinstance(trained.data.get("class_path"), str):
        raise InputError(
            f"{name}: has no config.yaml with a data module, which says how inputs are made: give a run, or a model"
            " that was pushed from one"
        )
    return trained._replace(network=network.eval())


def _of_a_saved_model(name: str, allow_pickle: bool, trust: Sequence[str]) -> Trained:
    from lra_ssm.cli.find_checkpoint import load_saved

    files, network, config = load_saved(name, allow_pickle, trust)
    source = files.config().get("source")
    recorded = source.get("data") if isinstance(source, dict) else None
    return Trained(files.name, network, config.get("data"), recorded if isinstance(recorded, dict) else {})


def _of_a_run(name: str) -> Trained:
    from lra_ssm.cli.find_checkpoint import find, load_network
    from lra_ssm.runs.record import read_record

    found = find(name)
    network, _, _ = load_network(found.file)
    record = read_record(found.run / "run.json")[0] if found.run else {}
    return Trained(name, network, found.config.get("data"), record.get("data") or {})


def _data_module(trained: Trained) -> Any:
    """The data module of the configuration; nothing of its data is looked at."""
    from lra_ssm.layers.spec import import_object

    path, arguments = trained.data["class_path"], trained.data.get("init_args") or {}
    try:
        datamodule = import_object(path)(**arguments)
    except InputError:
        raise
    except (ValueError, TypeError) as error:  # no such class, or it takes other arguments
        raise InputError(f"{trained.name}: its data module {path} cannot be made: {error}") from error
    if not hasattr(datamodule, "own_examples"):
        raise InputError(f"{trained.name}: its data module {path} has no own_examples, which reads files of your own")
    return datamodule


def _class_names(trained: Trained, datamodule: Any) -> list[str]:
    names = trained.recorded.get("class_names") or getattr(datamodule, "class_names", None)
    if not names:
        kind = type(datamodule).__name__
        raise InputError(
            f"{trained.name}: neither it nor its data module says what its classes are: {kind}.class_names"
        )
    return [str(name) for name in names]


def classify(trained: Trained, examples: "OwnExamples", batch_size: int, device: str | None = None) -> "Tensor":
    """Probabilities (examples, classes) float32, on the CPU. Raises InputError: the network, or an example, cannot."""
    import numpy as np
    import torch

    from lra_ssm.datamodules.storage.bars import with_bar

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        network = trained.network.to(chosen)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {chosen}: {squeeze(str(error))[:200]}") from error
    found = []
    starts = range(0, len(examples.names), batch_size)
    with torch.inference_mode():
        for start in with_bar(starts, "predicting", len(starts)):
            numbers = np.arange(start, min(start + batch_size, len(examples.names)))
            inputs, lengths = examples.load(numbers)
            try:
                logits = network(inputs.to(chosen), None if lengths is None else lengths.to(chosen))
            except ValueError as error:  # of layers, which say what they cannot
                raise InputError(f"{trained.name}: {error}") from error
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
