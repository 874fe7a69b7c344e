"""PNG and JPEG files as arrays, with errors that name the file."""

import io
import warnings
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from lra_ssm.errors import InputError

CHANNELS = {"L": 1, "RGB": 3}


class Decoded(NamedTuple):
    """Pixels (height, width, channels) uint8; whether the file's format loses some of what was put in (JPEG)."""

    pixels: npt.NDArray[np.uint8]
    lossy: bool


def image_form(data: bytes, name: str) -> tuple[str, tuple[int, int]]:
    """PIL's mode of a PNG or JPEG file, and its height and width, by its header. Raises InputError: it is neither."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))
            return image.mode, (image.height, image.width)
    except Exception as error:  # of many kinds, with PIL's versions
        raise InputError(f"{name}: {_what(data)}") from error


def decode_image(data: bytes, mode: Literal["L", "RGB"], size: tuple[int, int], name: str) -> Decoded:
    """Decodes a PNG or JPEG file.

    Args:
        data: the file.
        mode: what it is converted to if it is something else, as PIL does it: L gray, RGB colors.
        size: height and width that it must have.
        name: what errors call it.

    Raises:
        InputError: it is neither PNG nor JPEG, is damaged, or has another size.
    """
    height, width = size
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PIL's, of large or odd images: they are refused, or read all the same
            image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))  # reads the header: its size before pixels
            if image.size != (width, height):
                raise InputError(
                    f"{name}: is an image of {image.height} x {image.width} pixels instead of {height} x {width}"
                )
            pixels = (image if image.mode == mode else image.convert(mode)).tobytes()
    except InputError:
        raise
    except Exception as error:  # of many kinds, with PIL's versions
        raise InputError(f"{name}: {_what(data)}") from error
    return Decoded(np.frombuffer(pixels, np.uint8).reshape(height, width, CHANNELS[mode]), image.format == "JPEG")


def _what(data: bytes) -> str:
    return "is neither a PNG nor a JPEG image, or is damaged" if data else "is an empty file instead of an image"
