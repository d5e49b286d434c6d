"""Folders of mask files. Three layouts, those that are told apart without doubt:

    images/a.png   masks/a.png            one label image a picture: each value (or colour) but 0
                                          is an object, as scikit-image, Cellpose and ImageJ count
    images/a.png   masks/a/*.png          a file an object: what is not 0
    a/images/a.png a/masks/*.png          the same, a folder a picture (Data Science Bowl 2018)

With `masks/<category>/` before any of the first two there are several categories; else there is
one, "object". A label image of classes, where two touching objects share a value, is not taken for
objects: nothing in it says where one ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from detlite.data.errors import DataError
from detlite.data.loading.image_io import image_size
from detlite.structures.masks.formats import encode_bitmap

from .labeled_dataset import LabelledObject, LabelledPicture, LabelledSet, pictures_under

_CATEGORY = "object"
_LOSSLESS = {".png", ".tif", ".tiff", ".bmp", ".gif"}


def is_mask_folder(folder: Path) -> bool:
    """Whether a folder holds images and masks, or folders that do."""
    return _has_both(folder) or any(_has_both(one) for one in _folders(folder)[:20])


def read_mask_folder(folder: Path) -> dict[str, LabelledSet]:
    """All pictures of a folder with their masks, as "train". One without a mask has no objects.

    Raises:
        DataError: naming the file.
    """
    if _has_both(folder):
        pictures = _from_pair(folder / "images", folder / "masks")
    else:
        pictures = [_from_own_folder(one) for one in _folders(folder) if _has_both(one)]
    return {"train": LabelledSet(folder, pictures)}


def _has_both(folder: Path) -> bool:
    return (folder / "images").is_dir() and (folder / "masks").is_dir()


def _folders(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.is_dir() and one.name[0] != ".")


def _from_own_folder(folder: Path) -> LabelledPicture:
    pictures = pictures_under(folder / "images")
    if len(pictures) != 1:
        raise DataError(
            f"{folder / 'images'}: holds {len(pictures)} pictures; where each has a folder of its "
            "own with masks, there is one"
        )
    size = image_size(pictures[0])
    objects = _file_objects(_mask_files(folder / "masks"), size, _CATEGORY)
    return LabelledPicture(pictures[0], size, objects)


def _from_pair(images: Path, masks: Path) -> list[LabelledPicture]:
    files = pictures_under(images)
    # Where pictures of one name lie in several folders, so must their masks.
    by_name: dict[str, Path] = {}
    for file in files:
        name = file.relative_to(images).with_suffix("").as_posix()
        if name in by_name:
            raise DataError(f"{images}: {by_name[name].name} and {file.name} have one name")
        by_name[name] = file
    roots = {_CATEGORY: masks}
    folders = _folders(masks)
    tops = {Path(name).parts[0] for name in by_name}
    if folders and not any(one.name in tops for one in folders):
        roots = {one.name: one for one in folders}
        beside = next((one for one in _mask_files(masks) if one.parent == masks), None)
        if beside is not None:
            raise DataError(
                f"{beside}: lies beside folders of categories ({', '.join(roots)}): put it into "
                "the folder of its own, or remove the folders that are none"
            )
    parts: defaultdict[str, list[tuple[str, Path, bool]]] = defaultdict(list)
    for category, root in roots.items():
        for file in _mask_files(root):
            name = file.relative_to(root).with_suffix("").as_posix()
            parent = file.relative_to(root).parent.as_posix()
            if name not in by_name and parent not in by_name:
                raise DataError(
                    f"{file}: is the mask of no picture: there is neither {name} nor {parent} in "
                    f"{images}"
                )
            whole = name in by_name
            parts[name if whole else parent].append((category, file, whole))
    pictures = []
    for name, picture in by_name.items():
        size = image_size(picture)
        objects: list[LabelledObject] = []
        for category, file, whole in parts[name]:
            found = _label_objects if whole else _file_objects
            objects += found([file], size, category)
        pictures.append(LabelledPicture(picture, size, objects))
    return pictures


def _mask_files(folder: Path) -> list[Path]:
    found = pictures_under(folder)
    lossy = next((file for file in found if file.suffix.lower() not in _LOSSLESS), None)
    if lossy is not None:
        raise DataError(
            f"{lossy}: masks are stored without loss ({', '.join(sorted(_LOSSLESS))}): a JPEG "
            "changes values at edges, which would be objects"
        )
    return found


def _file_objects(
    files: Sequence[Path], size: tuple[int, int], category: str
) -> list[LabelledObject]:
    """One object for each file."""
    objects = []
    for file in files:
        bitmap = _values(file, size) > 0
        if not bitmap.any():
            raise DataError(f"{file}: is empty: no pixel of the object is set; remove the file")
        objects.append(_object(bitmap, category))
    return objects


def _label_objects(
    files: Sequence[Path], size: tuple[int, int], category: str
) -> list[LabelledObject]:
    """One object for each value of each file, in the order of values."""
    objects = []
    for file in files:
        values = _values(file, size)
        objects += [_object(values == value, category) for value in np.unique(values[values > 0])]
    return objects


def _object(bitmap: np.ndarray, category: str) -> LabelledObject:
    rows, columns = np.flatnonzero(bitmap.any(axis=1)), np.flatnonzero(bitmap.any(axis=0))
    x, y = float(columns[0]), float(rows[0])
    box = (x, y, float(columns[-1] + 1) - x, float(rows[-1] + 1) - y)
    return LabelledObject(category, box, encode_bitmap(bitmap))


def _values(file: Path, size: tuple[int, int]) -> np.ndarray:
    """int64 [H, W]: the value of each pixel, of a colour one number."""
    try:
        with Image.open(file) as picture:
            # A palette's indices are the values; alpha says nothing about objects.
            alpha = picture.mode in ("RGBA", "LA", "PA")
            opaque = picture.convert(picture.mode[:-1]) if alpha else picture
            pixels = np.asarray(opaque).astype(np.int64)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{file}: the mask is damaged or truncated ({error})") from error
    if pixels.ndim == 3:
        pixels = (pixels * (1, 1 << 8, 1 << 16)).sum(axis=2)
    if pixels.shape != size:
        raise DataError(
            f"{file}: is {pixels.shape[1]}x{pixels.shape[0]} (width x height), but its picture is "
            f"{size[1]}x{size[0]}"
        )
    return pixels
