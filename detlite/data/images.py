"""Picture files: read as RGB, and checked without decoding them."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from .errors import DataError

# What Pillow raises on files that are cut off or damaged, depending on format and place.
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error)
_ORIENTATION = 0x0112  # EXIF tag
_TRANSPOSED = (5, 6, 7, 8)  # orientations that swap width and height
_LAST_BYTES = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}


def read_image(path: str | Path, size: tuple[int, int] | None = None) -> Tensor:
    """Reads a picture as RGB.

    Grey and palette pictures are expanded, an alpha channel is dropped, and of 16-bit values the
    high byte is kept. Pixels are taken as stored, as COCO's annotations count them: an EXIF
    orientation is followed only where `size` is that of the turned picture, not of the stored one.

    Args:
        path: the picture file, of any format that Pillow reads.
        size: (height, width) that the picture must have; None: any.

    Returns:
        uint8 [3, H, W].

    Raises:
        DataError: the file is missing, damaged, of another size or of a kind without 8-bit form.
    """
    try:
        with Image.open(path) as file:
            picture = ImageOps.exif_transpose(file) if _must_turn(file, size) else file
            if size is not None and picture.size != size[::-1]:
                raise DataError(
                    f"{path}: the picture is {picture.width}x{picture.height} (width x height), "
                    f"but the annotation file states {size[1]}x{size[0]}"
                )
            pixels = _rgb(picture, path)
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such picture file") from error
    except _BROKEN as error:
        raise DataError(f"{path}: the picture is damaged or truncated ({error})") from error
    # Pillow's buffer is read-only, so it is copied here, on the way to channels first.
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def image_problem(path: Path, size: tuple[int, int]) -> str | None:
    """What is wrong with a picture file that must have a size (height, width), or None.

    About 0.1 ms for a sound one, of which only the header and the end are read. A file without the
    usual end may still be sound (some writers append data), so it alone is decoded.
    """
    # What is wrong, the decoder says below.
    with contextlib.suppress(*_BROKEN), path.open("rb") as stream, Image.open(stream) as file:
        last = _LAST_BYTES.get(file.format or "")
        if last is not None and (file.size == size[::-1] or _must_turn(file, size)):
            stream.seek(-len(last), 2)
            if stream.read() == last:
                return None
    try:
        read_image(path, size)
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    return None


def _must_turn(file: Image.Image, size: tuple[int, int] | None) -> bool:
    """Whether the picture has that size (height, width) only as its EXIF orientation turns it."""
    turned = file.size == size and size != size[::-1]
    return turned and file.getexif().get(_ORIENTATION) in _TRANSPOSED


def _rgb(picture: Image.Image, path: str | Path) -> np.ndarray:
    """uint8 [H, W, 3]."""
    if picture.mode.startswith("I"):  # 16 bits, which older Pillow versions call 32
        values = np.asarray(picture).astype(np.int64)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise DataError(f"{path}: 32-bit pictures have no 8-bit form; convert it first")
        return np.repeat((values >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    if picture.mode == "F":
        raise DataError(f"{path}: float pictures have no 8-bit form; convert it first")
    return np.asarray(picture.convert("RGB"))
