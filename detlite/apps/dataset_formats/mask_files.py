"""Read folders of images and mask images.

    images/a.png   masks/a.png            a label image for each image: every value (or color)
                                          except 0 is an object, as in scikit-image and Cellpose
    images/a.png   masks/a/*.png          a file for each object
    a/images/a.png a/masks/*.png          the same, in a folder for each image (Data Science Bowl)
    a.png          a_mask.png             a label image next to its image

Folders may have other usual names (`JPEGImages`, `SegmentationObject`), may contain or be in
`train` and `val`, and file names of masks may end in `_mask` or similar. The folder of masks may
have a folder for each category; otherwise the only category is "object".
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from detlite.data.errors import DataError
from detlite.data.loading.image_io import image_size
from detlite.data.loading.image_readers import DECODE_ERRORS

from .file_tree import FileTree, read_lines
from .labeled_dataset import (
    AS_BACKGROUND,
    Conversion,
    LabeledDataset,
    LabeledImage,
    LabeledObject,
)
from .shapes import object_from_bitmap

MODES = {
    "instances": "each value is an object",
    "connected": "each connected piece of a value is an object",
    "semantic": "the same, and each value is a category",
}
VOID = 255  # PASCAL VOC's value of pixels that belong to nothing
_CATEGORY = "object"
_LOSSLESS = {".png", ".tif", ".tiff", ".bmp", ".gif"}
_IMAGE_FOLDERS = {"images", "image", "imgs", "img", "jpegimages", "pngimages", "photos"}
_MASK_FOLDERS = {
    "masks", "mask", "pedmasks", "segmentationobject", "segmentationclass", "instances", "labels",
    "label", "segmentations", "gt", "groundtruth", "ground_truth", "annotations",
}  # fmt: skip
_TAIL = re.compile(r"[_-](cp[_-])?(masks?|labels?|segm?|segmentation|instances?|inst|gt)$", re.I)
_MAX_CLASSES = 20  # values that recur in several images are classes rather than objects


@dataclass(frozen=True)
class _MaskFile:
    """A mask file, its image and category, and if it has all objects of the image or only one."""

    file: Path
    image: Path
    category: str
    has_all: bool


@dataclass(frozen=True)
class Mask:
    """The values int64 [H, W] of a mask image, where a color is one number.

    Attributes:
        smooth: some values occur only between others, as in resized or JPEG-compressed masks.
        void: 255 was not counted as a value, as VOC uses it.
    """

    values: np.ndarray
    smooth: bool
    void: bool


def is_mask_folder(tree: FileTree) -> bool:
    """Return True if there are images with masks."""
    return tree.data.is_dir() and any(isinstance(one, _MaskFile) for one in _mask_files(tree))


def read_mask_folder(tree: FileTree, conversion: Conversion) -> LabeledDataset:
    """Read all images and their masks. Images may lack a mask."""
    masks: dict[Path, list[_MaskFile]] = {}
    for one in _mask_files(tree):
        if isinstance(one, _MaskFile):
            masks.setdefault(one.image, []).append(one)
        else:
            with conversion.collect():
                raise DataError(f"{one}: belongs to no image: there is none with its name")
    _check_categories([one for many in masks.values() for one in many])
    names, sets, images = _class_names(tree), [], []
    doubts: defaultdict[str, list[str]] = defaultdict(list)
    mask_paths = {one.file for many in masks.values() for one in many}
    for image in tree.images:
        if image in mask_paths or _mask_place(image, tree):
            continue
        with conversion.collect():
            size, objects = image_size(image), list[LabeledObject]()
            for one in masks.get(image, ()):
                if not one.has_all:
                    with conversion.collect(AS_BACKGROUND):
                        found = _read(one, size, conversion).values > 0
                        objects.append(object_from_bitmap(one.category, found, str(one.file)))
                    continue
                mask = _read(one, size, conversion)
                pieces = label_pieces(mask.values)
                for doubt, example in _doubts(mask, pieces):
                    doubts[doubt].append(f"{example} in {one.file}")
                sets.append(set(np.unique(mask.values[mask.values > 0]).tolist()))
                objects += _objects(one, mask.values, pieces, conversion.masks, names)
            images.append(LabeledImage(image, size, objects, tree.split_of(image)))
    union = set().union(*sets)
    gaps = sum(values != set(range(1, len(values) + 1)) for values in sets)
    if len(sets) > 2 and 1 < len(union) <= _MAX_CLASSES and gaps:
        doubts["have only a few values that recur, as classes do"] = [str(sorted(union))] * gaps
    if doubts and not conversion.masks:
        kinds = "; ".join(
            f"{len(examples)} of {len(sets)} {doubt} (such as {examples[0]})"
            for doubt, examples in doubts.items()
        )
        choices = "; ".join(f"--masks {mode}: {meaning}" for mode, meaning in MODES.items())
        raise DataError(
            f"{tree.root}: label images have several meanings: {kinds}. Choose one for "
            f"`detlite init`: {choices}"
        )
    return LabeledDataset(tree.root, images)


def _mask_place(file: Path, tree: FileTree) -> tuple[Path, tuple[str, ...]] | None:
    """Return the parent of the mask folder of a file, and its path in it without the suffix."""
    parts = file.relative_to(tree.image_root).with_suffix("").parts
    places = [k for k, part in enumerate(parts[:-1]) if part.lower() in _MASK_FOLDERS]
    if not places or any(part.lower() in _IMAGE_FOLDERS for part in parts[places[-1] : -1]):
        return None
    return tree.image_root.joinpath(*parts[: places[-1]]), parts[places[-1] + 1 :]


def _objects_of(file: Path) -> Path | None:
    """Return the mask of the objects whose classes a file in VOC's SegmentationClass has."""
    objects = file.parent.parent / "SegmentationObject" / file.name
    return objects if file.parent.name == "SegmentationClass" and objects.is_file() else None


@lru_cache(maxsize=1)
def _mask_files(tree: FileTree) -> list[_MaskFile | Path]:
    """Return the masks of images, and as paths those that belong to none."""
    images: dict[tuple[Path, tuple[str, ...]], Path] = {}
    places = {}
    for file in tree.images:
        if place := _mask_place(file, tree):
            if _objects_of(file) is None:
                places[file] = place
            continue
        parts = file.relative_to(tree.image_root).with_suffix("").parts
        at = [k for k, part in enumerate(parts[:-1]) if part.lower() in _IMAGE_FOLDERS]
        start = at[-1] if at else len(parts) - 1
        key = tree.image_root.joinpath(*parts[:start]), parts[start + bool(at) :]
        if key in images and images[key].suffix != file.suffix:
            raise DataError(f"{file.parent}: {images[key].name} and {file.name} have the same name")
        images[key] = file
    for (folder, parts), file in list(images.items()):  # a_mask.png next to a.png
        stem = _TAIL.sub("", parts[-1])
        if stem != parts[-1] and (folder, (*parts[:-1], stem)) in images:
            places[file] = folder, parts
            del images[folder, parts]
    result: list[_MaskFile | Path] = []
    counts = Counter(folder for folder, _ in images)
    alone = {
        folder: file
        for (folder, _), file in images.items()
        if counts[folder] == 1 and folder != tree.image_root
    }
    for file, (folder, parts) in places.items():
        result.append(_match(file, folder, parts, images) or file)
        if result[-1] == file and len(parts) == 1 and folder in alone:
            result[-1] = _MaskFile(file, alone[folder], _CATEGORY, has_all=False)
    return result


def _match(
    file: Path,
    folder: Path,
    parts: tuple[str, ...],
    images: Mapping[tuple[Path, tuple[str, ...]], Path],
) -> _MaskFile | None:
    """Find the image of a mask by its path, maybe without a folder, which is then the category."""
    for skipped in (None, *range(len(parts) - 1)):
        path = tuple(part for k, part in enumerate(parts) if k != skipped)
        category = _CATEGORY if skipped is None else parts[skipped]
        for stem in dict.fromkeys((path[-1], _TAIL.sub("", path[-1]))):
            if image := images.get((folder, (*path[:-1], stem))):
                return _MaskFile(file, image, category, has_all=True)
        if image := images.get((folder, path[:-1])):
            return _MaskFile(file, image, category, has_all=False)
    return None


def _check_categories(files: Sequence[_MaskFile]) -> None:
    """Raise a DataError if some masks are in folders of categories and others next to them."""
    categories = {one.category for one in files} - {_CATEGORY}
    for one in files if categories else ():
        if one.category == _CATEGORY:
            raise DataError(
                f"{one.file}: is next to folders of categories ({', '.join(sorted(categories))}): "
                "move it into the folder of its category, or remove the folders if they are not "
                "categories"
            )


def _read(one: _MaskFile, size: tuple[int, int], conversion: Conversion) -> Mask:
    """Read a mask file; one of smooth edges is divided at half of its maximum where possible."""
    if one.file.suffix.lower() not in _LOSSLESS and conversion.masks != "connected":
        raise DataError(
            f"{one.file}: masks need a lossless format ({', '.join(sorted(_LOSSLESS))}): JPEG "
            "changes the values at edges. If it has only black and white, choose --masks connected"
        )
    mask = read_mask(one.file, size)
    if mask.void:
        text = "Its pixels belong to no object, as in PASCAL VOC."
        conversion.findings.add("the value 255 in mask images", text, str(one.file), "mask image")
    if mask.smooth and (conversion.masks == "connected" or not one.has_all):
        text = "Values above half of the maximum belong to objects."
        conversion.findings.add("gray edges in mask images", text, str(one.file), "mask image")
        return Mask((mask.values * 2 > mask.values.max()).astype(np.int64), False, mask.void)
    if mask.smooth and conversion.masks:
        raise DataError(
            f"{one.file}: has gray edges, whose values are neither objects nor categories. Save it "
            "without smoothing, or choose --masks connected if it has only black and white"
        )
    return mask


def read_mask(file: Path, size: tuple[int, int]) -> Mask:
    """Read a mask of an image of (height, width). Raises DataError."""
    try:
        with Image.open(file) as image:
            if (pages := getattr(image, "n_frames", 1)) > 1:
                raise DataError(f"{file}: has {pages} pages; save one file for each image")
            alpha = np.asarray(image.getchannel("A")) if "A" in image.getbands() else None
            colors = image if alpha is None else image.convert(image.mode[:-1])
            pixels = np.asarray(colors).astype(np.int64)  # of a palette its indices
            indexed = image.mode == "P"
    except DECODE_ERRORS as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file}: the mask is damaged or truncated ({error})") from error
    if pixels.ndim == 3 and (pixels == pixels[:, :, :1]).all():
        pixels = pixels[:, :, 0]  # gray
    values = pixels @ (1, 1 << 8, 1 << 16) if pixels.ndim == 3 else pixels
    if values.shape != size:
        raise DataError(
            f"{file}: its size is {values.shape[1]}x{values.shape[0]} (width x height), but its "
            f"image is {size[1]}x{size[0]}"
        )
    if alpha is not None and alpha.min() < alpha.max():
        # The mask is in the alpha channel if there are no colors; otherwise it hides some of them.
        values = alpha.astype(np.int64) if values.min() == values.max() else values * (alpha > 127)
    levels = np.unique(values[values > 0])
    others = levels[levels != VOID]
    is_byte = pixels.ndim == 2 and len(others) < len(levels) and len(others) > 0
    void = is_byte and bool(indexed or (others == np.arange(1, len(others) + 1)).all())
    if void:
        values, levels = np.where(values == VOID, 0, values), others
    return Mask(values, pixels.ndim == 2 and _is_smooth(values, levels), void)


def _is_smooth(values: np.ndarray, levels: np.ndarray) -> bool:
    """Return True if at least two values occur only between lower and higher ones."""
    if len(levels) < 3:
        return False
    padded = np.pad(values, 1, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))
    inside = (values == windows.min((2, 3))) | (values == windows.max((2, 3)))
    return len(np.setdiff1d(levels, values[inside])) >= 2


def label_pieces(values: np.ndarray) -> np.ndarray:
    """Number the connected pieces of equal values except 0 from 1, int64 [H, W].

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
    same = run_values[lower] == run_values[upper]
    lower, upper = np.unique(np.stack([lower[same], upper[same]]), axis=1)
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


def _doubts(mask: Mask, pieces: np.ndarray) -> Iterator[tuple[str, str]]:
    """Yield why a label image has several meanings, and an example."""
    values = mask.values
    if mask.smooth:
        yield "have gray edges, as resized or compressed masks do", "the values"
        return
    numbers, first = np.unique(pieces.ravel(), return_index=True)
    owners = Counter(values.ravel()[first[numbers > 0]].tolist())
    for value, count in owners.items():
        if count > 1:
            yield "have a value of several separate pieces", f"{count} pieces of the value {value}"
            break
    corners = {int(values[y, x]) for y in (0, -1) for x in (0, -1)}
    if len(corners) == 1 and (value := corners.pop()) and (values == value).mean() > 0.5:
        yield "have a background that is not 0", f"the value {value} at all corners"
    elif values.size and values.min() > 0:
        yield "have no background", "no value 0"


def _objects(
    one: _MaskFile,
    values: np.ndarray,
    pieces: np.ndarray,
    mode: str | None,
    names: Mapping[int, str],
) -> Iterator[LabeledObject]:
    """Yield the objects of a label image."""
    classes = one.file.parent.parent / "SegmentationClass" / one.file.name
    kinds = values
    has_classes = one.file.parent.name == "SegmentationObject" and classes.is_file()
    if has_classes:
        kinds = read_mask(classes, (len(values), values.shape[1])).values
    parts = values if mode in (None, "instances") else pieces
    for number in np.unique(parts[parts > 0]):
        bitmap = parts == number
        category = one.category
        if has_classes or mode == "semantic":
            value = Counter(kinds[bitmap].tolist()).most_common(1)[0][0]
            category = names.get(value, str(value))
        yield object_from_bitmap(category, bitmap, str(one.file))


def _class_names(tree: FileTree) -> dict[int, str]:
    """Return the category of each color in CVAT's labelmap.txt: `label:r,g,b:parts:actions`."""
    names = {}
    for file in tree.files:
        for line in read_lines(file) if file.name == "labelmap.txt" else ():
            label, _, rest = line.partition(":")
            color = rest.partition(":")[0].split(",")
            if len(color) == 3 and not line.startswith("#"):
                names[sum(int(part) << 8 * k for k, part in enumerate(color))] = label
    return names
