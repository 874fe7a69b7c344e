"""A user's own files as a network takes them: no labels, nothing prepared.

B batch, L length, C features per position.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lra_ssm.datamodules.loading.batches import padded
from lra_ssm.datamodules.storage.arrays import IntArray
from lra_ssm.errors import InputError

TEXTS, ARRAYS = (".txt", ".tsv"), (".npy", ".csv")
Inputs = tuple[torch.Tensor, torch.Tensor | None]  # as `Batch` has them: inputs, and lengths where they differ


class OwnExamples(NamedTuple):
    """Examples in the order of their files.

    Attributes:
        names: what each is called: its file, with the line or the row of one that holds several.
        load: inputs and lengths of the examples with these numbers (B,).
        notes: what became of them that whoever gave them should know, a line each.
    """

    names: list[str]
    load: Callable[[IntArray], Inputs]
    notes: list[str]


def own_files(paths: Sequence[Path], suffixes: Collection[str], what: str) -> tuple[list[Path], list[str]]:
    """The files that paths name: themselves, and of a folder all files of these suffixes below it, by name; and a line
    on each folder that holds others, hidden ones aside.

    what: what is expected, for messages.

    Raises:
        InputError: a path does not exist, a file is of another type, or a folder holds none.
    """
    found, notes = list[Path](), list[str]()
    for path in paths:
        if path.is_dir():
            every = sorted(file for file in path.rglob("[!.]*") if file.is_file())
            below = [file for file in every if file.suffix.lower() in suffixes]
            if not below:
                raise InputError(f"{path}: holds no {what}")
            if others := [file for file in every if file.suffix.lower() not in suffixes]:
                notes.append(f"{path}: files of other types are left out, {len(others)} such as {others[0].name}")
            found += below
        elif not path.exists():
            raise InputError(f"{path}: there is no such file or folder")
        elif path.suffix.lower() not in suffixes:
            raise InputError(f"{path}: its type is not known here; expected {what}")
        else:
            found.append(path)
    return found, notes


def read_lines(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """Every line of UTF-8 text files, as (FILE:LINE, text).

    Raises:
        InputError: a file cannot be read, is empty or no UTF-8; or a line is empty.
    """
    found = []
    for path in paths:
        try:
            data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
        if not data.strip():
            raise InputError(f"{path}: is empty; expected one sequence a line")
        for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), start=1):
            where = f"{path}:{number}"
            try:
                text = line.removesuffix(b"\r").decode()
            except UnicodeDecodeError as error:
                raise InputError(f"{where}: is not UTF-8 (byte {error.object[error.start]:#04x})") from error
            if not text.strip():
                raise InputError(f"{where}: is empty; expected one sequence a line")
            found.append((where, text))
    return found


def own_sequences(
    names: list[str], tokens: IntArray, lengths: IntArray, notes: list[str], per_example: int = 1
) -> OwnExamples:
    """Tokens (sum of lengths,) of sequences, of which an example takes one, or a pair."""
    ends = np.cumsum(lengths)
    starts = ends - lengths

    def load(examples: IntArray) -> Inputs:
        chosen = (examples[:, None] * per_example + np.arange(per_example)).ravel()
        inputs = padded(tokens, starts[chosen], ends[chosen], 0)
        of_inputs = torch.from_numpy(lengths[chosen])
        if per_example == 1:
            return inputs, of_inputs
        return inputs.unflatten(0, (-1, per_example)), of_inputs.unflatten(0, (-1, per_example))

    return OwnExamples(names, load, notes)


def own_arrays(
    paths: Sequence[Path],
    d_input: int,
    length: int | None = None,
    value_range: tuple[float, float] | None = None,
    notes: Sequence[str] = (),
) -> OwnExamples:
    """Features as the network takes them, nothing scaled: .npy (B, L) or (B, L, d_input), .csv a sequence a row.

    Args:
        paths: the files.
        d_input: features per position; .csv, and arrays (B, L), have 1.
        length: that sequences must have; None for any, the same within all files.
        value_range: the smallest and the largest value that the data module makes.
        notes: what is said of the files already.

    Raises:
        InputError: a file cannot be read, or has other shapes or values.
    """
    arrays, names = [], list[str]()
    for path in paths:
        values = _features(path, d_input, length)
        length = length or values.shape[1]
        if values.shape[1] != length:
            raise InputError(f"{path}: its sequences have length {values.shape[1]}; expected {length}")
        low, high = value_range or (-np.inf, np.inf)
        if values.min() < low - 1e-4 or values.max() > high + 1e-4:
            raise InputError(
                f"{path}: its values are from {values.min():.4g} to {values.max():.4g}; the network was trained on"
                f" {low:.4g} to {high:.4g}: scale them as the data is, or give images"
            )
        arrays.append(values.astype(np.float32))
        names += [f"{path}:{row}" for row in range(1, len(values) + 1)]
    every = np.concatenate(arrays)

    def load(examples: IntArray) -> Inputs:
        return torch.from_numpy(every[examples]), None

    return OwnExamples(names, load, [*notes])


def _features(path: Path, d_input: int, length: int | None) -> np.ndarray[Any, Any]:
    """The sequences (n, length, d_input) of a file. Raises InputError."""
    values = _numbers(path)
    if values.ndim == 2 and d_input == 1:
        values = values[..., None]
    if values.ndim != 3 or values.shape[2] != d_input or 0 in values.shape:
        wanted = f"(sequences, {length or 'length'}, {d_input})" + (" or without the last" if d_input == 1 else "")
        raise InputError(f"{path}: its shape is {values.shape}; expected {wanted}")
    if not np.isfinite(values).all():
        raise InputError(f"{path}: holds a NaN or an infinity")
    return values


def _numbers(path: Path) -> np.ndarray[Any, Any]:
    """The array of a .npy or .csv file. Raises InputError."""
    if path.suffix.lower() == ".npy":
        try:
            with open(path, "rb") as file:
                values = np.lib.format.read_array(file, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as an array of numbers ({error})") from error
        if values.dtype.kind not in "fiu":
            raise InputError(f"{path}: is an array of {values.dtype}, not of real numbers")
        return values
    rows: list[list[float]] = []
    for where, text in read_lines([path]):
        try:
            rows.append([float(cell) for cell in text.split(",")])
        except ValueError as error:
            raise InputError(f"{where}: {error}; expected numbers with commas between them, and no header") from error
        if len(rows[-1]) != len(rows[0]):
            raise InputError(f"{where}: has {len(rows[-1])} numbers, the first row {len(rows[0])}")
    return np.array(rows)
