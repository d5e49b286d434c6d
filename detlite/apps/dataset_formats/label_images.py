"""Read label images: each pixel is the number or the color of its object."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detlite.apps.dataset_check.fingerprints import connect
from detlite.data.images.pillow import open_pillow
from detlite.data.images.reading import image_size
from detlite.data.images.sources import DECODE_ERRORS
from detlite.files.errors import DataError

_PHOTO = 16  # pixels per color: photos have more colors
VOID = 255  # PASCAL VOC's value for pixels that belong to no object


@dataclass(frozen=True)
class LabelImage:
    """A mask image."""

    values: np.ndarray  # int64 [H, W]; a color is packed into one number
    smooth: bool = False  # edges have intermediate values, as in resized or JPEG masks
    void: bool = False  # 255 was replaced by 0, as it marks VOC's void pixels
    colored: bool = False  # values are colors, not numbers


def value_name(value: int, colored: bool) -> str:
    """Return a value as the person who drew it knows it: 3, or (0,128,0) for a color."""
    return f"({value & 255},{value >> 8 & 255},{value >> 16})" if colored else str(value)


def read_label_image(file: Path, size: tuple[int, int]) -> LabelImage:
    """Read a mask of an image of (height, width). Raises DataError."""
    height, width = image_size(file, upright=False)  # before memory for its pixels is needed
    if (height, width) != size:
        raise DataError(
            f"{file}: its size is {width}x{height} (width x height), but its image is "
            f"{size[1]}x{size[0]}"
        )
    try:
        with open_pillow(file) as image:
            pages = getattr(image, "n_frames", 1)
            alpha = np.asarray(image.getchannel("A")) if "A" in image.getbands() else None
            colors = image if alpha is None else image.convert(image.mode[:-1])
            numbers = np.asarray(colors)  # indices if the image has a palette
            indexed = image.mode == "P"
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
        if not is_mask and not {*distinct_values(alpha).tolist()} <= {0, 255}:
            raise DataError(
                f"{file}: has colors and an alpha channel that is not just black and white, like "
                "BDD100K's bitmasks: convert them to COCO json, or save it without that channel"
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
    same = (run_values[lower] == run_values[upper]) & (run_values[lower] != 0)
    roots = np.arange(len(starts))
    connect(roots, lower[same], upper[same])
    numbers = np.unique(np.where(run_values == 0, -1, roots), return_inverse=True)[1]
    return numbers[run_of] + (run_values != 0).all()
