"""Read image files of any origin as RGB, within limits."""

import io
import stat
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image, ImageFile, UnidentifiedImageError
from torch import Tensor
from yacs.config import CfgNode

from detlite.conventions import convention_of
from detlite.data.errors import DataError, RemoteError, TooLargeError

# Formats accepted from bytes, which may come from anybody: none of them contains a program.
SAFE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
# Pillow's errors for truncated or damaged files; NotImplementedError: DDS and BLP files of types
# that it does not read.
DECODE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, NotImplementedError)
END_MARKERS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}
TRANSPOSED = (5, 6, 7, 8)  # EXIF orientations that swap width and height
_ORIENTATION = 0x0112  # EXIF tag
# The transposition that turns each orientation upright (CIPA DC-008, Exif 2.32, section 4.6.4).
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_GRAY = 128  # libjpeg's value for missing data
# Bytes that are no marker and that change the pixels which libjpeg would fill in.
_MORE_DATA = bytes(range(1, 255)) * 4
_DARK = 1 << 12  # 16-bit value


@dataclass(frozen=True)
class ImageOptions:
    """Options for reading image files.

    Attributes:
        max_pixels: limit of the number of pixels; may exceed Pillow's limit, the default.
        bits: the number of bits that a 16-bit image uses. The highest 8 of them are kept.
        exif_orientation: apply it, as viewers and most annotation tools do, or return the pixels as
            stored (Pillow always applies it to TIFF).
    """

    max_pixels: int = 178_956_970
    bits: int = 16
    exif_orientation: bool = True


def build_image_options(cfg: CfgNode) -> ImageOptions:
    upright = convention_of(cfg).exif_orientation
    return ImageOptions(cfg.DATASETS.MAX_PIXELS, cfg.INPUT.IMAGE_BITS, upright)


class StoredImage(Protocol):
    """An image that is not a local file; messages name it by its `str`."""

    def read_bytes(self) -> bytes:
        """Return the content of the image file. Raises FileNotFoundError, or DataError."""

    def forget(self) -> bool:
        """Delete a cached copy, so that it is fetched again. Returns True if there was one."""


@dataclass(frozen=True)
class ImageBytes:
    """The content of an image file, as a StoredImage."""

    data: bytes

    def __str__(self) -> str:
        return "bytes"

    def read_bytes(self) -> bytes:
        return self.data

    def forget(self) -> bool:
        return False


ImageSource = str | Path | StoredImage
DEFAULT_OPTIONS = ImageOptions()


def read_image(
    source: ImageSource | bytes,
    size: tuple[int, int] | None = None,
    options: ImageOptions = DEFAULT_OPTIONS,
) -> Tensor:
    """Read an image as RGB uint8 [3, H, W]; gray images are expanded, alpha channels dropped.

    Args:
        source: a file of any format that Pillow reads, or the content of one of SAFE_FORMATS.
        size: the required upright (height, width); None: any.
        options: limits and interpretation of the file.

    Raises:
        DataError: the file is missing, damaged, of another size or has no 8-bit form.
        TooLargeError: it has too many pixels; raised before decoding.
        RemoteError: it cannot be fetched.
    """
    if isinstance(source, bytes):
        source = ImageBytes(source)
    try:
        return _read(source, size, options)
    except RemoteError:
        raise
    except DataError:
        # A cached copy may be damaged, or outdated because the original was repaired.
        if isinstance(source, (str, Path)) or not source.forget():
            raise
    return _read(source, size, options)


def image_size(path: Path) -> tuple[int, int]:
    """Return the upright (height, width) of an image from its header. Raises DataError."""
    try:
        with open_image(path, DEFAULT_OPTIONS.max_pixels) as file:
            width, height = file.size
            return (width, height) if read_orientation(file) in TRANSPOSED else (height, width)
    except FileNotFoundError as error:
        raise DataError(f"{path}: the image file does not exist") from error
    except DECODE_ERRORS as error:
        raise DataError(f"{path}: the image is damaged or truncated ({error})") from error


def image_suffixes() -> set[str]:
    """Return the suffixes of image files: `.jpg`, `.png`, ..."""
    formats = Image.registered_extensions()
    return {suffix for suffix, kind in formats.items() if kind in Image.OPEN}


def open_image(source: ImageSource, max_pixels: int) -> ImageFile.ImageFile:
    """Open an image and read only its header. Raises DataError if not regular or too large."""
    local = isinstance(source, (str, Path))
    if local and not stat.S_ISREG(Path(source).stat().st_mode):  # type: ignore[arg-type]
        raise DataError(f"{source}: not a regular file")
    file = source if isinstance(source, (str, Path)) else io.BytesIO(source.read_bytes())
    # Pillow raises an error above twice its limit. The limit holds for the whole process, so it is
    # only ever raised.
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > 2 * Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels
    formats = SAFE_FORMATS if isinstance(source, ImageBytes) else None
    try:
        image = Image.open(file, formats=formats)
    except UnidentifiedImageError as error:
        if formats is None:
            raise
        raise DataError(f"{source}: none of {', '.join(formats)}, or damaged") from error
    except Image.DecompressionBombError as error:
        raise _too_large(source, max_pixels, str(error)) from error
    if image.width * image.height > max_pixels:
        image.close()
        raise _too_large(source, max_pixels, f"{image.width}x{image.height}")
    return image


def read_orientation(file: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; 1 (upright) if missing or unreadable."""
    if file.format == "TIFF":  # Pillow applies it
        return 1
    try:
        return int(file.getexif().get(_ORIENTATION, 1))
    except (*DECODE_ERRORS, TypeError, KeyError):  # the pixels may still be valid
        return 1


def _read(source: ImageSource, size: tuple[int, int] | None, options: ImageOptions) -> Tensor:
    try:
        with open_image(source, options.max_pixels) as file:
            file.load()  # the header may continue behind the pixels
            turn = _UPRIGHT.get(read_orientation(file)) if options.exif_orientation else None
            image = file if turn is None else file.transpose(turn)
            if size is not None and image.size != size[::-1]:
                raise DataError(f"{source}: {_size_problem(file, image.size, size)}")
            pixels = _rgb(image, source, options.bits)
            if _is_truncated_jpeg(file, source):
                raise DataError(f"{source}: the image is damaged or truncated (data are missing)")
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{source}: the image file does not exist") from error
    except DECODE_ERRORS as error:
        raise DataError(f"{source}: the image is damaged or truncated ({error})") from error
    # Pillow's buffer is read-only, so the pixels are copied while channels move to the front.
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _rgb(image: Image.Image, source: ImageSource, bits: int) -> np.ndarray:
    if image.mode.startswith("I"):  # 16 bits; older Pillow versions report 32
        values = np.asarray(image).astype(np.int64)
        maximum = int(values.max())
        if values.min() < 0 or maximum > 0xFFFF:
            raise DataError(f"{source}: a 32-bit image has no 8-bit form; convert it first")
        if maximum >= 1 << bits:
            raise DataError(
                f"{source}: the value {maximum} exceeds the {bits} bits of INPUT.IMAGE_BITS"
            )
        if bits == 16 and maximum < _DARK:
            # The constant text makes `warnings` show it once per process.
            warnings.warn(
                f"a 16-bit image has no value above {_DARK - 1}, so its high byte is nearly "
                "black. If the camera records 12 bits, set INPUT.IMAGE_BITS 12",
                stacklevel=2,
            )
        return np.repeat((values >> (bits - 8)).astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode == "F":
        raise DataError(f"{source}: a float image has no 8-bit form; convert it first")
    return np.asarray(image.convert("RGB"))


def _is_truncated_jpeg(file: Image.Image, source: ImageSource) -> bool:
    """True if a decoded JPEG lacks data although it ends with the end marker.

    libjpeg reports nothing and fills the rest with gray. If an image ends in this gray, decoding it
    with more data before the end marker changes the pixels only if data are missing. The rest of a
    progressive JPEG is blurred instead of gray, which this does not detect.
    """
    if file.format != "JPEG" or file.getpixel((file.width - 1, file.height - 1)) not in (
        _GRAY,
        (_GRAY,) * 3,
    ):
        return False
    data = Path(source).read_bytes() if isinstance(source, str) else source.read_bytes()
    end = data.rfind(END_MARKERS["JPEG"])
    with Image.open(io.BytesIO(data[:end] + _MORE_DATA + data[end:])) as longer:
        return longer.tobytes() != file.tobytes()


def _too_large(source: ImageSource, max_pixels: int, size: str) -> TooLargeError:
    return TooLargeError(
        f"{source}: the image has more than {max_pixels} pixels ({size}). Raise "
        "DATASETS.MAX_PIXELS if this is intended"
    )


def _size_problem(file: Image.Image, actual: tuple[int, int], expected: tuple[int, int]) -> str:
    """Describe an image whose upright size (width, height) differs from the annotation file's."""
    height, width = expected
    problem = (
        f"the image is {actual[0]}x{actual[1]} (width x height), "
        f"but the annotation file has {width}x{height}"
    )
    if actual != expected:
        return problem
    orientation = read_orientation(file)
    if file.size != actual:
        return (
            f"{problem}, its size before EXIF orientation {orientation} is applied. If the "
            "annotations refer to stored pixels, set MODEL.CONVENTION_OVERRIDE "
            "[exif_orientation=False], or save the image without EXIF data"
        )
    if orientation in TRANSPOSED:
        return (
            f"{problem}, its size after EXIF orientation {orientation} is applied. If the "
            "annotations refer to upright pixels, set MODEL.CONVENTION_OVERRIDE "
            "[exif_orientation=True]"
        )
    return f"{problem}: width and height are swapped in one of the two"
