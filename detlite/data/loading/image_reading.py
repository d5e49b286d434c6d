"""Picture files: read as RGB, and checked without decoding them."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from detlite.data.errors import DataError, RemoteError
from detlite.data.remote.paths import StoredPicture

from .image_io import (
    BROKEN,
    LAST_BYTES,
    MAX_PIXELS,
    TRANSPOSED,
    PictureBytes,
    PictureFile,
    is_cut_jpeg,
    open_picture,
    orientation,
)

_Picture = PictureFile | bytes
_Size = tuple[int, int] | None

# What brings a picture of an orientation upright (CIPA DC-008, Exif 2.32, section 4.6.4).
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_DARK = 1 << 12  # 16-bit values


def read_image(
    path: _Picture,
    size: tuple[int, int] | None = None,
    max_pixels: int = MAX_PIXELS,
    bits: int = 16,
    exif_orientation: bool = True,
) -> Tensor:
    """Reads a picture as RGB.

    Grey and palette pictures are expanded, an alpha channel is dropped, and of 16-bit values the
    highest 8 of `bits` are kept.

    An EXIF orientation is followed: viewers and most annotation tools show the picture so.
    pycocotools reads no pictures; what frameworks do, `Convention.exif_orientation` says.

    Args:
        path: the picture file, of any format that Pillow reads; or what such a file holds, of one
            of FORMATS_OF_BYTES.
        size: (height, width) that the picture must have, as it is turned; None: any.
        max_pixels: the most that a picture may have; above Pillow's limit, that is raised to it.
        bits: how many a 16-bit picture uses, 8 to 16.
        exif_orientation: follow it, or take pixels as stored (but for TIFFs, which Pillow turns).

    Returns:
        uint8 [3, H, W].

    Raises:
        DataError: the file is missing, no regular file, damaged, of another size or of a kind
            without 8-bit form; a TooLargeError, before it is decoded, if it is that; a RemoteError,
            where that cannot be told.
    """
    if isinstance(path, bytes):
        path = PictureBytes(path)
    try:
        return _read(path, size, max_pixels, bits, exif_orientation)
    except RemoteError:
        raise
    except DataError:
        # A copy may be damaged, or the picture was mended where it comes from.
        if isinstance(path, (str, Path)) or not path.forget():
            raise
    return _read(path, size, max_pixels, bits, exif_orientation)


def _read(path: PictureFile, size: _Size, max_pixels: int, bits: int, exif: bool) -> Tensor:
    try:
        with open_picture(path, max_pixels) as file:
            file.load()  # what stands behind the pixels belongs to the header, too
            turn = _UPRIGHT.get(orientation(file)) if exif else None
            picture = file if turn is None else file.transpose(turn)
            if size is not None and picture.size != size[::-1]:
                raise DataError(f"{path}: {_size_problem(file, picture.size, size)}")
            pixels = _rgb(picture, path, bits)
            if is_cut_jpeg(file, path):
                raise DataError(f"{path}: the picture is damaged or truncated (data are missing)")
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such picture file") from error
    except BROKEN as error:
        raise DataError(f"{path}: the picture is damaged or truncated ({error})") from error
    # Pillow's buffer is read-only, so it is copied here, on the way to channels first.
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def image_problem(
    path: Path | StoredPicture,
    size: tuple[int, int],
    max_pixels: int = MAX_PIXELS,
    bits: int = 16,
    exif_orientation: bool = True,
) -> str | None:
    """What is wrong with a picture file that must have a size (height, width), or None.

    About 0.1 ms for a sound one, of which only the header and the end are read. A file without the
    usual end may still be sound (some writers append data), so it alone is decoded.

    Raises:
        RemoteError: it cannot be told, as a server does not answer.
    """
    try:
        with open_picture(path, max_pixels) as file:
            last = LAST_BYTES.get(file.format or "")
            # A PNG without EXIF before its pixels would be decoded to look behind them.
            known = exif_orientation and (file.format != "PNG" or "exif" in file.info)
            turned = known and orientation(file) in TRANSPOSED
            fits = file.size == (size if turned else size[::-1])
            if last is not None and fits and file.fp is not None:
                file.fp.seek(-len(last), 2)
                if file.fp.read() == last:
                    return None
    except RemoteError:
        raise
    except BROKEN:  # DataError is one of them
        pass  # what is wrong, the decoder says below
    try:
        read_image(path, size, max_pixels, bits, exif_orientation)
    except RemoteError:
        raise
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    return None


def picture_size(path: Path, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """The (height, width) of a picture as its EXIF orientation turns it, from its header alone.

    Raises:
        DataError: the file is missing, no regular file, no picture or too large.
    """
    try:
        with open_picture(path, max_pixels) as file:
            width, height = file.size
            return (width, height) if orientation(file) in TRANSPOSED else (height, width)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such picture file") from error
    except BROKEN as error:
        raise DataError(f"{path}: the picture is damaged or truncated ({error})") from error


def _size_problem(file: Image.Image, found: tuple[int, int], stated: tuple[int, int]) -> str:
    """What to say of a picture whose upright size (width, height) is not the stated one."""
    height, width = stated
    problem = (
        f"the picture is {found[0]}x{found[1]} (width x height), "
        f"but the annotation file states {width}x{height}"
    )
    if found != stated:
        return problem
    if file.size != found:
        return (
            f"{problem}, its size before EXIF orientation {orientation(file)} turns it: if the "
            "annotations count stored pixels, set MODEL.CONVENTION_OVERRIDE "
            "[exif_orientation=False], or save the picture without its EXIF data"
        )
    if orientation(file) in TRANSPOSED:
        return (
            f"{problem}, its size once EXIF orientation {orientation(file)} turns it: if the "
            "annotations count upright pixels, set MODEL.CONVENTION_OVERRIDE "
            "[exif_orientation=True]"
        )
    return f"{problem}: width and height have changed places in one of the two"


def _rgb(picture: Image.Image, path: PictureFile, bits: int) -> np.ndarray:
    """uint8 [H, W, 3]."""
    if picture.mode.startswith("I"):  # 16 bits, which older Pillow versions call 32
        values = np.asarray(picture).astype(np.int64)
        brightest = int(values.max())
        if values.min() < 0 or brightest > 0xFFFF:
            raise DataError(f"{path}: 32-bit pictures have no 8-bit form; convert it first")
        if brightest >= 1 << bits:
            raise DataError(
                f"{path}: has a value of {brightest}, which INPUT.PICTURE_BITS {bits} does not hold"
            )
        if bits == 16 and brightest < _DARK:
            # Once in each process, as the text is always the same.
            warnings.warn(
                f"a 16-bit picture has no value from {_DARK} on, and its high byte is nearly "
                "black: if the camera gives 12 bits, set INPUT.PICTURE_BITS 12",
                stacklevel=2,
            )
        return np.repeat((values >> (bits - 8)).astype(np.uint8)[:, :, None], 3, axis=2)
    if picture.mode == "F":
        raise DataError(f"{path}: float pictures have no 8-bit form; convert it first")
    return np.asarray(picture.convert("RGB"))
