"""Writes generated Pathfinder images in the layout of LRA's archive, on several cores, resumably.

    <folder>/pathfinder<size>/<difficulty>/imgs/<block>/sample_<i>.png    8-bit grey
    <folder>/pathfinder<size>/<difficulty>/metadata/<block>.npy           plain text in spite of its name, as published
    <folder>/pathfinder<size>/<difficulty>/generator.json                 what it was generated with

A line of metadata per image, columns separated by blanks: folder, file, number in the block, label, continuity, contour
length, distractor length, paddle length, paddle thickness, margin, number of paddle contrasts.

A block counts from the moment its metadata is there, which is written last and at once, so that a killed run
is resumed where it was.
"""

import json
import os
import struct
import time
import zlib
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from lra_ssm.bars import Bar
from lra_ssm.datamodules.old_storage.disk import sync_filesystem
from lra_ssm.datamodules.pathfinder.drawing import Bytes
from lra_ssm.datamodules.pathfinder.generator import GENERATOR_VERSION, PathfinderBlock, generate_block
from lra_ssm.datamodules.pathfinder.settings import DIFFICULTIES, HARD, PathfinderSettings
from lra_ssm.datamodules.processes import ordered_map
from lra_ssm.errors import InputError
from lra_ssm.files import UNFINISHED, replacing, write_json
from lra_ssm.machine import available_cores

BLOCK_SIZE = 1000
RECORD = "generator.json"


def generator_settings(settings: PathfinderSettings, seed: int, num_images: int) -> dict[str, Any]:
    """Everything that decides what is generated, as it comes back from JSON."""
    values = {
        "version": GENERATOR_VERSION,
        "seed": seed,
        "num_images": num_images,
        "block_size": BLOCK_SIZE,
        "use_single_paddles": False,  # of the public generator's settings: a part of what names prepared folders
        **settings._asdict(),
    }
    return json.loads(json.dumps(values))


def generator_of(folder: Path) -> dict[str, Any] | None:
    """What our generator recorded of a folder's images; None if they are not its own.

    Raises:
        InputError: the record is damaged.
    """
    path = folder / RECORD
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: is no record of a generator ({error})") from error


def write_archive(
    folder: Path,
    settings: PathfinderSettings,
    seed: int,
    num_images: int,
    *,
    workers: int | None = None,
    difficulty: str = HARD,
) -> Path:
    """Generates images into a folder; blocks that are there already are kept.

    Args:
        folder: of the archive; created where missing.
        settings: what to draw from.
        seed: any integer.
        num_images: how many; another number makes another last block, so it cannot be changed later.
        workers: processes, 1 for none but this one; None for one per core. Does not change the result.
        difficulty: the folder's name, a key of DIFFICULTIES: the settings' own.

    Returns:
        The folder with `imgs` and `metadata`.

    Raises:
        InputError: a difficulty of another length, or the folder was made with other settings or by another generator.
        OSError: the folder cannot be written.
    """
    if (length := DIFFICULTIES[difficulty]) != settings.contour_length:
        raise InputError(f"Pathfinder {difficulty} has contours of {length} paddles, not {settings.contour_length}")
    target = folder / f"pathfinder{settings.image_size}" / difficulty
    _claim(target, generator_settings(settings, seed, num_images))
    (target / "metadata").mkdir(exist_ok=True)
    (target / "imgs").mkdir(exist_ok=True)
    missing = missing_blocks(folder, settings.image_size, difficulty, num_images)
    for written in (target, target / "metadata", *(_images(target, block) for block in missing)):
        for leftover in written.glob(f"{UNFINISHED}*"):
            leftover.unlink(missing_ok=True)
    write = partial(write_block, target, settings, seed)
    with closing(ordered_map(write, missing.items(), workers or available_cores())) as sizes:
        there = num_images - sum(missing.values())
        with Bar(f"drawing {num_images:,} Pathfinder images", num_images, done=there) as bar:
            if sum(missing.values()) >= BLOCK_SIZE:  # whose first one may take a minute
                bar.start(f"{there:,}/{num_images:,}")
            for size in sizes:
                bar.advance(size)
    return target


def seconds_an_image(settings: PathfinderSettings, seed: int) -> float:
    """How long drawing one takes on one core, measured within a second."""
    for count in (1, 4, 16, 64, 256):
        start = time.perf_counter()
        generate_block(settings, seed, 0, count)
        took = time.perf_counter() - start
        if took > 0.2:
            break
    return took / count


def missing_blocks(folder: Path, image_size: int, difficulty: str, num_images: int) -> dict[int, int]:
    """Sizes of the blocks, by number, that are still to be drawn; all of them if there is no such folder."""
    target = folder / f"pathfinder{image_size}" / difficulty
    sizes = {block: min(BLOCK_SIZE, num_images - block * BLOCK_SIZE) for block in range(-(-num_images // BLOCK_SIZE))}
    return {
        block: size
        for block, size in sizes.items()
        if not (_metadata(target, block).is_file() and _images(target, block).is_dir())
    }


def write_block(target: Path, settings: PathfinderSettings, seed: int, numbered: tuple[int, int]) -> int:
    """Generates one block, of a number and a size, into the folder of a difficulty: its images, then its metadata.

    Returns:
        Its size.
    """
    block, size = numbered
    drawn = generate_block(settings, seed, block, size)
    folder = _images(target, block)
    _metadata(target, block).unlink(missing_ok=True)  # of images that somebody deleted: it says that all are there
    folder.mkdir(exist_ok=True)
    # Renamed into its place: another process may already read here.
    temporary = folder / f"{UNFINISHED}{os.getpid()}"
    try:
        for number, image in enumerate(drawn.images):
            temporary.write_bytes(encode_png(image))
            os.replace(temporary, folder / f"sample_{number}.png")
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # One flush for a thousand files, so that a crash leaves no metadata without images.
    sync_filesystem(folder)
    with replacing(_metadata(target, block)) as file:
        file.write(_metadata_text(settings, drawn, block))
    return size


def encode_png(image: Bytes) -> bytes:
    """An (h, w) uint8 image as an 8-bit greyscale PNG. Rows are unfiltered: most of a row is black.

    Not by Pillow, which takes 1.6 to 5 times as long, and a tenth more room.
    """
    height, width = image.shape
    rows = b"".join(b"\0" + row.tobytes() for row in image)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows, 6)) + chunk(b"IEND", b"")


def _metadata(target: Path, block: int) -> Path:
    return target / "metadata" / f"{block}.npy"


def _images(target: Path, block: int) -> Path:
    return target / "imgs" / str(block)


def _metadata_text(settings: PathfinderSettings, block: PathfinderBlock, number: int) -> str:
    tail = len(settings.paddle_contrasts)
    middle = (
        settings.continuity,
        settings.contour_length,
        settings.distractor_length,
        settings.paddle_length,
        settings.paddle_thickness,
    )
    lines = []
    for image, (label, margin) in enumerate(zip(block.labels, block.geometry.margins, strict=True)):
        columns = (f"imgs/{number}", f"sample_{image}.png", image, label, *middle, margin, tail)
        lines.append(" ".join(map(str, columns)) + "\n")
    return "".join(lines)


def _claim(target: Path, settings: dict[str, Any]) -> None:
    """Writes the settings into a new folder, or compares them with those that are there."""
    if (found := generator_of(target)) is None:
        others = [path for path in target.glob("*") if not path.name.startswith(UNFINISHED)]
        if others:
            raise InputError(f"{target}: holds files but no {RECORD}, so they are not this generator's")
        target.mkdir(parents=True, exist_ok=True)
        write_json(target / RECORD, settings)
    elif other := [key for key in settings | found if settings.get(key) != found.get(key)]:
        said = ", ".join(f"{key} {found.get(key)} (now {settings.get(key)})" for key in other)
        raise InputError(f"{target}: generated with {said}; name another folder, or remove this one")
