"""`predict`: on a split of a run's data (LightningCLI, run.py) or on files of the user's own."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_ssm.bars import with_bar
from lra_ssm.cli.options import A_MODEL, add_device, add_trust, count, device_of
from lra_ssm.cli.output import PlainParser, in_a_folder
from lra_ssm.errors import InputError, squeeze
from lra_ssm.files import unused
from lra_ssm.tables import table, terminal_width

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from lra_ssm.cli.named_network import NamedNetwork
    from lra_ssm.datamodules.loading.own_files import OwnExamples


DESCRIPTION = """\
Classifies files of your own with a run or a saved model, as its data module makes inputs of the data: PNG or JPEG
images, or folders of them, of the data's mode and size (others are resized with --resize); expressions or texts, one a
line (.txt, .tsv); pairs of texts, one a line with a tab between them; features as the network takes them (.npy, .csv).
The data need not be there. A CSV file has every class's probability. A file that cannot be read is named and left out;
the exit code is 1 then.

Without FILE it predicts a split of the run's own data, into the run's directory: `lra-ssm predict --help` has the
options of that."""

EXAMPLE = """\
examples:
  lra-ssm predict ./models/lru-mnist digits/*.png
  lra-ssm predict me/s4d-scifar photos --resize --output=photos.csv
  lra-ssm predict runs/listops/b2s6/38722f686f expressions.txt
  lra-ssm predict me/s4d-mnist --split=val
"""
_SHOWN = 20  # examples in the table


def main(command: str, arguments: list[str]) -> int:
    if not _names_files(arguments):
        if {"-h", "--help"} & set(arguments):
            parser().print_help()
            print("\n\nWithout FILE, a split of the run's own data:\n")
        from lra_ssm.cli.run import main as predict_split

        return predict_split(command, arguments)
    options = parser().parse_intermixed_args(arguments)
    if options.split:
        raise InputError("--split is a part of the model's own data: leave it out, or the files")
    files = [Path(file) for file in options.files]
    output = in_a_folder(options.output) if options.output else unused(_beside(files))
    device = device_of(options.device)
    named = load(options.model, options.allow_pickle, options.trust)
    datamodule = _data_module(named)
    names = _class_names(named, datamodule)
    examples, left_out = _examples(datamodule, files, named.recorded.get("vocabulary"), options.resize)
    size = options.batch_size or getattr(datamodule, "evaluation_batch_size", 32)
    kept, probabilities = classify(named, examples, size, device, left_out)
    if probabilities.shape[1] != len(names):
        raise InputError(f"{named.name}: its network has {probabilities.shape[1]} classes, its data names {len(names)}")
    place = _write(output, kept, names, probabilities)
    _show(kept, names, probabilities)
    for note in examples.notes:
        print(squeeze(f"note: {note}"))
    print(squeeze(f"{len(kept)} predictions in {place}"), flush=True)
    for said in left_out:
        print(squeeze(f"warning: {said}: left out"), file=sys.stderr)
    return 1 if left_out else 0


def parser() -> PlainParser:
    made = PlainParser("lra-ssm predict", DESCRIPTION, EXAMPLE)
    made.add_argument("model", metavar="NAME_OR_RUN", help=A_MODEL)
    made.add_argument("files", metavar="FILE", nargs="*", help="files, or folders of images")
    said = "CSV file, replaced where it exists; default: a new one beside the files, photos.predictions.csv"
    made.add_argument("--output", metavar="FILE", help=said)
    made.add_argument("--resize", action="store_true", help="bring images of another size to the data's")
    made.add_argument(
        "--split", metavar="SPLIT", help="without FILE: train, val or test of the run's data; default: val"
    )
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


def _beside(files: list[Path]) -> Path:
    """The CSV file of these: photos.predictions.csv beside photos, or for photos/*.png; predictions.csv for several of
    the working folder."""
    of = files[0] if len(files) == 1 else Path(os.path.commonpath([file.absolute().parent for file in files]))
    if of.absolute() in (here := Path.cwd(), *here.parents):
        return of / "predictions.csv" if of.absolute() != here else Path("predictions.csv")
    place = of.with_name(f"{of.name if of.is_dir() else of.stem}.predictions.csv")
    return Path(os.path.relpath(place)) if place.is_relative_to(here) else place


def _examples(
    datamodule: Any, files: list[Path], vocabulary: Sequence[str] | None, resize: bool
) -> tuple[OwnExamples, list[str]]:
    """The files' examples, and what is wrong with the files that are left out. Raises InputError: with all of them."""
    if resize and "resize" not in inspect.signature(datamodule.own_examples).parameters:
        raise InputError(f"--resize: {type(datamodule).__name__} has no images")
    given = {"resize": True} if resize else {}
    try:
        return datamodule.own_examples(files, vocabulary, **given), []
    except InputError:
        if len(files) == 1:
            raise
    good, said = list[Path](), list[str]()
    for file in files:
        try:
            datamodule.own_examples([file], vocabulary, **given)
            good.append(file)
        except InputError as error:
            said.append(str(error))
    if not good:
        raise InputError(said[0])
    return datamodule.own_examples(good, vocabulary, **given), said


# --- the model ---


def load(name: str, allow_pickle: bool, trust: Sequence[str]) -> NamedNetwork:
    """Raises InputError: it is no classifier, or nothing says how its inputs are made."""
    from lra_ssm.cli.named_network import named_network
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


def classify(
    named: NamedNetwork, examples: OwnExamples, batch_size: int, device: torch.device, left_out: list[str]
) -> tuple[list[str], Tensor]:
    """Names of examples and their probabilities (examples, classes) float32, on the CPU.

    left_out: takes what is wrong with examples that cannot be read. Raises InputError: none can.
    """
    import numpy as np
    import torch

    network = named.network.to(device)
    kept, found = list[str](), []
    starts = range(0, len(examples.names), batch_size)
    with torch.inference_mode():
        for start in with_bar(starts, "predicting", len(starts)):
            numbers = np.arange(start, min(start + batch_size, len(examples.names)))
            try:
                inputs, lengths = examples.load(numbers)
            except InputError:
                numbers = numbers[np.array([_can_be_read(examples, int(number), left_out) for number in numbers])]
                if not len(numbers):
                    continue
                inputs, lengths = examples.load(numbers)
            try:
                logits = network(inputs.to(device), None if lengths is None else lengths.to(device))
            except ValueError as error:  # of layers, which say what they cannot
                raise InputError(f"{named.name}: {error}") from error
            kept += [examples.names[number] for number in numbers]
            found.append(logits.softmax(-1).float().cpu())
    if not found:
        raise InputError(left_out[0])
    return kept, torch.cat(found)


def _can_be_read(examples: OwnExamples, number: int, left_out: list[str]) -> bool:
    import numpy as np

    try:
        examples.load(np.array([number]))
        return True
    except InputError as error:
        left_out.append(str(error))
        return False


# --- what is said ---


def _write(file: Path, inputs: list[str], names: list[str], probabilities: Tensor) -> str:
    from lra_ssm.cli.write_predictions import shown, write_csv

    best, predicted = probabilities.max(1)
    rows = [["input", "prediction", "probability", *(f"p_{name}" for name in names)]]
    for given, number, p, row in zip(inputs, predicted.tolist(), shown(best), probabilities, strict=True):
        rows.append([given, names[number], p, *shown(row)])
    return write_csv(file, rows)


def _show(inputs: list[str], names: list[str], probabilities: Tensor) -> None:
    first = probabilities[:_SHOWN]
    values, numbers = (found.tolist() for found in first.topk(min(2, len(names)), 1))
    rows = []
    for given, p, number in zip(inputs[:_SHOWN], values, numbers, strict=True):
        second = f"{names[number[1]]} ({p[1]:.4f})" if len(p) > 1 else ""
        rows.append((given, names[number[0]], f"{p[0]:.4f}", second))
    print(table(("input", "prediction", "probability", "runner-up"), rows, left=2, width=terminal_width()))
    if len(inputs) > _SHOWN:
        print(f"… and {len(inputs) - _SHOWN} more")
