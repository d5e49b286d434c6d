"""Read folders of images and mask files, in the three layouts that are unambiguous:

    images/a.png   masks/a.png            one label image for each image: every value (or color)
                                          except 0 is an object, as in scikit-image and Cellpose
    images/a.png   masks/a/*.png          one file for each object, which is where it is not 0
    a/images/a.png a/masks/*.png          the same, in a folder for each image (Data Science Bowl)

The first two may have a folder for each category, `masks/<category>/`; otherwise the only category
is "object". Label images of classes are not supported, because they do not separate touching
objects.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
from PIL import Image

from detlite.data.errors import DataError
from detlite.data.loading.image_io import image_size

from .labeled_dataset import (
    LabeledDataset,
    LabeledImage,
    LabeledObject,
    images_under,
    object_from_bitmap,
)

_CATEGORY = "object"
_LOSSLESS = {".png", ".tif", ".tiff", ".bmp", ".gif"}


def is_mask_folder(folder: Path) -> bool:
    """Return True if a folder contains images and masks, or folders that do."""
    return _has_masks(folder) or any(map(_has_masks, _subfolders(folder)[:20]))


def read_mask_folder(folder: Path) -> dict[str, LabeledDataset]:
    """Read all images of a folder and their masks as "train". Images may lack a mask.

    Raises:
        DataError: a file is invalid, or does not belong to an image.
    """
    if _has_masks(folder):
        images = _read_pair(folder / "images", folder / "masks")
    else:
        images = [_read_own_folder(one) for one in _subfolders(folder) if _has_masks(one)]
    return {"train": LabeledDataset(folder, images)}


def _has_masks(folder: Path) -> bool:
    return (folder / "images").is_dir() and (folder / "masks").is_dir()


def _subfolders(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.is_dir() and one.name[0] != ".")


def _read_own_folder(folder: Path) -> LabeledImage:
    """Read the image in `folder/images` and the masks of its objects."""
    images = images_under(folder / "images")
    if len(images) != 1:
        raise DataError(
            f"{folder / 'images'}: contains {len(images)} images: in this layout, each image has a "
            "folder of its own with masks"
        )
    size = image_size(images[0])
    objects = [_read_object(file, size, _CATEGORY) for file in _mask_files(folder / "masks")]
    return LabeledImage(images[0], size, objects)


def _read_pair(image_folder: Path, mask_folder: Path) -> list[LabeledImage]:
    """Read the images of one folder and their masks of another."""
    # Images in subfolders have masks in the same subfolders.
    images: dict[str, Path] = {}
    for file in images_under(image_folder):
        name = file.relative_to(image_folder).with_suffix("").as_posix()
        if name in images:
            raise DataError(
                f"{image_folder}: {images[name].name} and {file.name} have the same name"
            )
        images[name] = file
    masks: defaultdict[str, list[tuple[str, Path, bool]]] = defaultdict(list)
    for category, root in _category_folders(mask_folder, images).items():
        for file in _mask_files(root):
            name = file.relative_to(root).with_suffix("").as_posix()
            parent = file.relative_to(root).parent.as_posix()
            if name not in images and parent not in images:
                raise DataError(
                    f"{file}: belongs to no image: {image_folder} contains neither {name} nor "
                    f"{parent}"
                )
            is_label_image = name in images
            masks[name if is_label_image else parent].append((category, file, is_label_image))
    labeled = []
    for name, image in images.items():
        size = image_size(image)
        objects: list[LabeledObject] = []
        for category, file, is_label_image in masks[name]:
            if is_label_image:
                values = _read_values(file, size)
                for value in np.unique(values[values > 0]):
                    objects.append(object_from_bitmap(category, values == value, str(file)))
            else:
                objects.append(_read_object(file, size, category))
        labeled.append(LabeledImage(image, size, objects))
    return labeled


def _category_folders(mask_folder: Path, images: dict[str, Path]) -> dict[str, Path]:
    """Return the folder of each category: subfolders that are not named like images, if any."""
    folders = _subfolders(mask_folder)
    image_names = {Path(name).parts[0] for name in images}
    if not folders or any(one.name in image_names for one in folders):
        return {_CATEGORY: mask_folder}
    for file in _mask_files(mask_folder):
        if file.parent == mask_folder:
            raise DataError(
                f"{file}: is next to folders of categories "
                f"({', '.join(one.name for one in folders)}): move it into the folder of its "
                "category, or remove the folders if they are not categories"
            )
    return {one.name: one for one in folders}


def _mask_files(folder: Path) -> list[Path]:
    files = images_under(folder)
    for file in files:
        if file.suffix.lower() not in _LOSSLESS:
            raise DataError(
                f"{file}: masks need a lossless format ({', '.join(sorted(_LOSSLESS))}): JPEG "
                "changes the values at edges"
            )
    return files


def _read_object(file: Path, size: tuple[int, int], category: str) -> LabeledObject:
    return object_from_bitmap(category, _read_values(file, size) > 0, str(file))


def _read_values(file: Path, size: tuple[int, int]) -> np.ndarray:
    """Return the pixel values int64 [H, W] of a mask; a color becomes one number."""
    try:
        with Image.open(file) as image:
            # The values are the indices of a palette. Alpha is not part of them.
            has_alpha = image.mode in ("RGBA", "LA", "PA")
            opaque = image.convert(image.mode[:-1]) if has_alpha else image
            pixels = np.asarray(opaque).astype(np.int64)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{file}: the mask is damaged or truncated ({error})") from error
    if pixels.ndim == 3:
        pixels = (pixels * (1, 1 << 8, 1 << 16)).sum(axis=2)
    if pixels.shape != size:
        raise DataError(
            f"{file}: its size is {pixels.shape[1]}x{pixels.shape[0]} (width x height), but its "
            f"image is {size[1]}x{size[0]}"
        )
    return pixels
