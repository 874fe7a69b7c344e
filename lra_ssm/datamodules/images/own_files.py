"""A user's own images as a network takes them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL.Image import Resampling

from lra_ssm.datamodules.fetch.sources import content
from lra_ssm.datamodules.images.files import Pixels, opened_image
from lra_ssm.datamodules.images.transforms import PixelSequence
from lra_ssm.datamodules.loading.own_files import ARRAYS, Inputs, OwnExamples, own_arrays, own_files
from lra_ssm.datamodules.storage.arrays import IntArray
from lra_ssm.errors import InputError

IMAGES = (".png", ".jpg", ".jpeg")
_MODES = {"L": "gray (L)", "RGB": "RGB"}


class Form(NamedTuple):
    """Of an image: PIL's mode; height and width."""

    mode: str
    size: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.size[0]} x {self.size[1]} pixels, {_MODES.get(self.mode, f'mode {self.mode}')}"


def own_pixels(
    paths: Sequence[Path],
    forms: Mapping[Form, Callable[[Pixels], Pixels]],
    transform: PixelSequence,
    length: int,
    resize: bool = False,
) -> OwnExamples:
    """PNG and JPEG files, or arrays of what they become.

    Args:
        paths: files, and folders of images.
        forms: what images may be, with what makes stored ones of them (n, H, W, C) uint8; nothing else is converted.
        transform: makes inputs of stored images.
        length: of a sequence.
        resize: makes images of another size ones of the first form of their mode (bilinear, antialiased).

    Raises:
        InputError: a file is missing, of another type or form, or damaged; of images when they are loaded.
    """
    floats = transform.tables is not None
    what = f"{', '.join(IMAGES)}{', .npy, .csv' if floats else ''}"
    files, notes = own_files(paths, (*IMAGES, *(ARRAYS if floats else ())), what)
    arrays = [file for file in files if file.suffix.lower() in ARRAYS]
    if arrays and len(arrays) < len(files):
        if named := [array for array in arrays if array in paths]:
            raise InputError(f"{named[0]}: is an array beside images; give one kind at a time")
        notes.append(f"arrays in folders of images are left out, {len(arrays)} such as {arrays[0]}")
        files, arrays = [file for file in files if file not in arrays], []
    if arrays:
        assert transform.tables is not None
        return own_arrays(arrays, len(transform.tables), length, transform.value_range(), notes)

    def load(examples: IntArray) -> Inputs:
        images = np.concatenate([_read(files[number], forms, resize) for number in examples])
        return torch.from_numpy(transform(images, examples, 0)), None

    jpeg = sum(file.suffix.lower() != ".png" for file in files)
    notes += ["images of another size are resized, whatever their shape"] if resize else []
    notes += [f"{jpeg} of {len(files)} images are JPEG, which keeps pixels approximately"] if jpeg else []
    return OwnExamples([str(file) for file in files], load, notes)


def _read(file: Path, forms: Mapping[Form, Callable[[Pixels], Pixels]], resize: bool) -> Pixels:
    """A stored image (1, H, W, C)."""
    with opened_image(content(file), str(file)) as image:
        form = Form(image.mode, (image.height, image.width))
        of_its_mode = [wanted for wanted in forms if wanted.mode == form.mode]
        if form not in forms and not (resize and of_its_mode):
            more = " (--resize makes it so)" if of_its_mode else ""
            raise InputError(f"{file}: is an image of {form}; expected {', or '.join(map(str, forms))}{more}")
        if form not in forms:
            form = of_its_mode[0]
            image = image.resize(form.size[::-1], Resampling.BILINEAR)
        pixels = np.array(image)
    return forms[form](pixels.reshape(1, *form.size, -1))
