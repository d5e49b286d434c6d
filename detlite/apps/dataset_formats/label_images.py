"""Read label images: each pixel is the number or the color of its object."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detlite.data.images.pillow import open_pillow
from detlite.data.images.sources import DECODE_ERRORS
from detlite.files.errors import DataError, short_repr
from detlite.files.reading import open_file

_PHOTO = 16  # pixels per color: photos have more colors
_WEBP_HEADER = 64  # bytes
VOID = 255  # PASCAL VOC's value for pixels that belong to no object


@dataclass(frozen=True)
class LabelImage:
    """A mask image."""

    values: np.ndarray  # int64 [H, W]; a color is packed into one number
    smooth: bool = False  # edges have intermediate values, as in resized or JPEG masks
    void: bool = False  # 255 was replaced by 0, as it marks VOC's void pixels
    colored: bool = False  # values are colors, not numbers

    def name(self, value: int) -> str:
        """Return a value as the person who drew it knows it: 3, or (0,128,0) for a color."""
        if not self.colored:
            return str(value)
        return f"({value & 255},{value >> 8 & 255},{value >> 16})"


def read_label_image(file: Path, size: tuple[int, int]) -> LabelImage:
    """Read a mask of an image of (height, width). Raises DataError."""
    try:
        with open_pillow(file) as image:
            if image.size != size[::-1]:  # before memory for its pixels is needed
                raise DataError(
                    f"{file}: its size is {image.width}x{image.height} (width x height), but its "
                    f"image is {size[1]}x{size[0]}"
                )
            pages = getattr(image, "n_frames", 1)
            alpha = np.asarray(image.getchannel("A")) if "A" in image.getbands() else None
            colors = image if alpha is None else image.convert(image.mode[:-1])
            numbers = np.asarray(colors)  # indices if the image has a palette
            indexed = image.mode == "P"
    except DataError:
        raise
    except DECODE_ERRORS as error:
        raise DataError(f"{file}: the mask is damaged or truncated ({error})") from error
    if pages > 1:
        raise DataError(f"{file}: has {pages} pages; save one file for each image")
    if (broken := numbers[(numbers != np.floor(numbers)) | (numbers < 0)]).size:
        problem = f"has the value {broken[0]:g}: values of masks must be whole numbers from 0"
        raise DataError(f"{file}: {problem}")
    pixels = numbers.astype(np.int64)
    if pixels.ndim == 3 and (pixels == pixels[:, :, :1]).all():
        pixels = pixels[:, :, 0]  # gray
    values = pixels @ (1, 1 << 8, 1 << 16) if pixels.ndim == 3 else pixels
    if alpha is not None and alpha.min() < alpha.max():
        # The alpha channel is the mask if the colors are uniform or a photo; otherwise, it hides
        # some of the colors.
        count = len(distinct_values(values))
        is_mask = count == 1 or count * _PHOTO > values.size
        levels = distinct_values(alpha)
        if not is_mask and (levels[-1] < 255 or len(levels) > 2) and not _is_smooth(alpha, levels):
            raise DataError(
                f"{file}: has colors and the alpha values {short_repr(levels.tolist())}, like "
                "BDD100K's bitmasks, which are not supported: convert them to COCO json"
            )
        values = alpha.astype(np.int64) if is_mask else values * (alpha > 127)
    levels = distinct_values(values[values > 0])
    used = levels[levels != VOID]
    may_be_void = pixels.ndim == 2 and len(used) < len(levels) and len(used) > 0
    void = may_be_void and bool(indexed or (used == np.arange(1, len(used) + 1)).all())
    if void:
        values, levels = np.where(values == VOID, 0, values), used
    gray = pixels.ndim == 2
    return LabelImage(values, gray and _is_smooth(values, levels), void, not gray)


def is_lossless_webp(file: Path) -> bool:
    """Return True if a WebP file has the chunk of lossless pixels, VP8L (RFC 9649)."""
    with open_file(file) as stream:
        return b"VP8L" in stream.read(_WEBP_HEADER)


def _is_smooth(values: np.ndarray, levels: np.ndarray) -> bool:
    """Return True if at least two values occur only between lower and higher ones."""
    if len(levels) < 3:
        return False
    padded = np.pad(values, 1, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))
    is_extreme = (values == windows.min((2, 3))) | (values == windows.max((2, 3)))
    return len(np.setdiff1d(levels, values[is_extreme])) >= 2


def distinct_values(values: np.ndarray) -> np.ndarray:
    """Return the sorted values of an array; faster than `np.unique` where neighbors are equal."""
    flat = values.ravel()
    starts = np.ones(len(flat), bool)
    starts[1:] = flat[1:] != flat[:-1]
    return np.unique(flat[starts])


def label_pieces(values: np.ndarray) -> np.ndarray:
    """Number the connected pieces of equal nonzero values from 1; 0 stays 0. Returns int64 [H, W].

    Pixels that touch at a corner are connected, as in `skimage.measure.label`.
    """
    height, width = values.shape
    changes = np.ones((height, width), bool)
    changes[:, 1:] = values[:, 1:] != values[:, :-1]
    starts = np.flatnonzero(changes)  # of runs of equal values in a row
    run_of = np.cumsum(changes.ravel()).reshape(height, width) - 1
    run_values = values.ravel()[starts]
    pairs = [
        np.stack([run_of[1:, max(shift, 0) : width + min(shift, 0)].ravel(),
                  run_of[:-1, max(-shift, 0) : width + min(-shift, 0)].ravel()])
        for shift in (-1, 0, 1)
    ]  # fmt: skip
    lower, upper = np.concatenate(pairs, axis=1)
    new = np.ones(len(lower), bool)  # runs touch at many pixels
    new[1:] = (lower[1:] != lower[:-1]) | (upper[1:] != upper[:-1])
    same = new & (run_values[lower] == run_values[upper])
    lower, upper = lower[same], upper[same]
    roots = np.arange(len(starts))
    while (roots[lower] != roots[upper]).any():
        first, second = roots[lower], roots[upper]
        np.minimum.at(roots, np.maximum(first, second), np.minimum(first, second))
        while (roots != roots[roots]).any():
            roots = roots[roots]
    numbers = np.zeros(len(starts), np.int64)
    used = run_values != 0
    numbers[used] = np.unique(roots[used], return_inverse=True)[1] + 1
    return numbers[run_of]
