"""Read folders of images and mask images.

    images/a.png   masks/a.png            a label image for each image: every value (or color)
                                          except 0 is an object, as in scikit-image and Cellpose
    images/a.png   masks/a/*.png          a file for each object
    a/images/a.png a/masks/*.png          the same, in a folder for each image (Data Science Bowl)
    a.png          a_mask.png             a label image next to its image
    01/t000.tif    01_GT/SEG/man_seg000.tif  label images of the Cell Tracking Challenge

Other usual folder names work too, such as `train_masks`. Folders may contain `train` and `val` or
be inside them, and names of masks may end in `_mask` or similar. A folder of masks may have a
folder for each category; otherwise, the category is "object".
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from detlite.data.findings import Findings
from detlite.data.images.reading import image_size
from detlite.files.errors import DataError

from .file_tree import SPLITS, FileTree, read_lines
from .label_images import LabelImage, distinct_values, label_pieces, read_label_image, value_name
from .labeled_dataset import (
    AS_BACKGROUND,
    WITH_IMAGE,
    Conversion,
    LabeledDataset,
    LabeledImage,
    LabeledObject,
)
from .shapes import Shape, to_objects

MODES = {
    "instances": "each value is an object",
    "connected": "each connected piece of a value is an object",
    "semantic": "each connected piece of a value is an object, and each value is a category",
}
_CATEGORY = "object"
_LOSSLESS = {".png", ".tif", ".tiff", ".bmp", ".gif"}
# Last words of the names of folders.
_IMAGE_FOLDERS = {"images", "image", "imgs", "img", "jpegimages", "pngimages", "photos"}
_MASK_FOLDERS = {
    "masks", "mask", "pedmasks", "segmentationobject", "segmentationclass", "instances", "labels",
    "label", "segmentations", "gt", "groundtruth", "truth", "annotations", "seg",
}  # fmt: skip
_MASK = r"(masks?|labels?|segm?|segmentation|instances?|inst|gt|annotations?)"
_MASK_NAME = re.compile(rf"[_-](cp[_-])?{_MASK}$|^{_MASK}[_-]|^man_seg(?=\d)", re.I)
_IMAGE_NAME = re.compile(
    r"[_-](image|img|photo|rgb)$|^(image|img|photo|rgb)[_-]|^t(?=\d{3,}$)", re.I
)
_NUMBER = re.compile(rf"[_-]({_MASK}[_-]?)?\d+$", re.I)  # after names of masks of one object
_CODES = {1000: "Cityscapes, KITTI or MOTS", 256: "Mapillary Vistas"}
_MIN_CODED = 4  # values of category * code + number that are needed to recognize the code
_COLOR_LINE = re.compile(r"([^#:][^:]*):\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*(?::|$)")
_MAX_CLASSES = 20  # values that recur in several images are classes rather than objects
# For messages.
_NAME_ALL = (
    "Name all values in class_names.txt, one per line from 0, or all colors in labelmap.txt, one "
    "per line: NAME:RED,GREEN,BLUE::"
)
NAMES = (
    "Name masks like their images: masks/a.png for images/a.jpg, a_mask.png next to a.jpg, or "
    "masks/a/1.png, masks/a/2.png for one object each (docs/formats.md)"
)

# Folders and stem of an image and its masks: equal for both, without `images` and `masks`.
_Key = tuple[str, ...]


@dataclass(frozen=True)
class _MaskFile:
    """A mask file, its image and category; `has_all`: it has all objects of the image, not one."""

    file: Path
    image: Path
    category: str
    has_all: bool


def is_mask_folder(tree: FileTree) -> bool:
    """Return True if there are images with masks."""
    return tree.data.is_dir() and any(find_masks(tree)[0].values())


def read_mask_folder(tree: FileTree, conversion: Conversion) -> LabeledDataset:
    """Read all images and their masks. Most images need a mask."""
    masks, unmatched = find_masks(tree)
    problems = [f"{file}: no image has the name of this mask" for file in unmatched]
    for problem in (*tree.lists[1], *problems):
        conversion.add_bad(problem, WITH_IMAGE)
    without = [image for image, files in masks.items() if not files]
    if 2 * len(without) > len(masks):
        folders = Counter(str(image.parent) for image in without)
        listed = ", ".join(f"{folder} ({count})" for folder, count in folders.items())
        problem = f"{tree.root}: {len(without)} of {len(masks)} images have no mask, in {listed}"
        conversion.add_bad(f"{problem}. {NAMES}", "They count as images without objects.")
    elif without:
        what, text = "images without a mask file", "They count as images without objects."
        conversion.findings.add(what, text, str(without[0]), "image", images=without)
    reader, images = _MaskReader(conversion, _class_names(tree)), []
    conversion.findings.assign(None)
    for image, files in masks.items():
        with conversion.collect():
            size = image_size(image, conversion.upright)
            objects: list[LabeledObject] = []
            for mask in files:
                shapes = reader.read(mask, size)
                objects += to_objects(shapes, size, str(mask.file), conversion)
            images.append(LabeledImage(image, size, objects, tree.split_of(image)))
            conversion.findings.assign(image)
    reader.report(tree.root)
    return LabeledDataset(tree.root, images)


@dataclass
class _MaskReader:
    """Reads the objects of mask files, and collects what could have another meaning.

    Attributes:
        names: category of each value or color.
        unnamed: the first use of each value without a name.
        sets: the values of each label image that may have several meanings.
        colored: True if these values are colors.
        doubts: kinds of label images whose values may not be objects.
    """

    conversion: Conversion
    names: Mapping[int, str]
    unnamed: dict[int, str] = field(default_factory=dict)
    sets: list[set[int]] = field(default_factory=list)
    colored: bool = False
    doubts: Findings = field(default_factory=Findings)

    def read(self, mask: _MaskFile, size: tuple[int, int]) -> Iterator[Shape]:
        """Yield the objects of a mask file. Raises DataError."""
        conversion, file = self.conversion, str(mask.file)
        if not mask.has_all:
            with conversion.collect(AS_BACKGROUND):
                yield Shape(mask.category, mask=_read(mask, size, conversion).values > 0)
            return
        image = _read(mask, size, conversion)
        pieces = label_pieces(image.values)
        folder = mask.file.parent.name.lower()
        if folder == "segmentationclass":
            self.doubts.add("are in SegmentationClass", "", file)
        if folder != "segmentationobject" or image.smooth:
            for doubt, value in _doubts(image, pieces):
                self.doubts.add(doubt, "", example := f"{value} in {file}")
                if conversion.masks and "background" in doubt:
                    what = f"mask images that {doubt}"
                    conversion.findings.add(what, "Each is an object.", example, "mask image")
            self.sets.append({*distinct_values(image.values[image.values > 0]).tolist()})
            self.colored |= image.colored
        class_file = mask.file.parent.parent / "SegmentationClass" / mask.file.name
        classes = image if conversion.masks == "semantic" else None
        if mask.file.parent.name == "SegmentationObject" and class_file.is_file():
            classes = read_label_image(class_file, size)
        parts = image.values if conversion.masks in (None, "instances") else pieces
        for number in distinct_values(parts[parts > 0]):
            bitmap, category = parts == number, mask.category
            if classes is not None:
                value = Counter(classes.values[bitmap].tolist()).most_common(1)[0][0]
                category = self.names.get(value, value_name(value, classes.colored))
                if value not in self.names:
                    self.unnamed.setdefault(value, f"{category} in {file}")
            yield Shape(category, mask=bitmap)

    def report(self, root: Path) -> None:
        """Report values without names, and raise DataError if masks can have several meanings."""
        conversion, what = self.conversion, "categories without names are numbered"
        for example in self.unnamed.values():
            conversion.findings.add(what, _NAME_ALL, example, "category")
        union, doubts, count = set[int]().union(*self.sets), self.doubts, len(self.sets)
        for code, dataset in _CODES.items():
            if (coded := _coded(union, code)) and not self.colored:
                text = f"have values of category * {code} + number, as in {dataset}, which is not "
                text += "supported: to keep the categories, convert them to COCO json"
                doubts.add(text, "", str(coded[:2]), count=count)
        if 1 < len(union) <= _MAX_CLASSES:
            shown = [value_name(value, self.colored) for value in sorted(union)]
            gaps = sum(values != set(range(1, len(values) + 1)) for values in self.sets)
            if count > 2 and gaps:
                text = "have only a few values that recur, as classes do"
                doubts.add(text, "", f"[{', '.join(shown)}]", count=gaps)
            elif not conversion.masks:
                text = "Each is an object. If they are categories, use "
                text += "`detlite init --masks semantic`."
                conversion.findings.add(
                    "values of mask images", text, shown[0], "value", len(shown)
                )
        if len(doubts) and not conversion.masks:
            kinds = "; ".join(
                f"{doubt.count} of {count} {doubt.what} (such as {doubt.example})"
                for doubt in doubts
            )
            choices = "; ".join(f"{mode}: {meaning}" for mode, meaning in MODES.items())
            raise DataError(
                f"{root}: label images can have several meanings: {kinds}. Choose one by "
                f"`detlite init --masks MODE`: {choices}"
            )


@lru_cache(maxsize=1)
def find_masks(tree: FileTree) -> tuple[dict[Path, list[_MaskFile]], list[Path]]:
    """Return the masks of each image, and the masks without an image. Raises DataError."""
    images: dict[_Key, Path] = {}
    mask_keys: dict[Path, _Key] = {}
    for file in tree.images:
        key, is_mask = _key(file, tree)
        objects = file.parent.parent / "SegmentationObject" / file.name
        if is_mask and file.parent.name == "SegmentationClass" and objects.is_file():
            continue  # the classes of the objects in SegmentationObject
        if is_mask:
            mask_keys[file] = key
        elif key in images and images[key].suffix != file.suffix:
            raise DataError(
                f"{file.parent}: {images[key].name} and {file.name} have the same name. Remove "
                "one, or move masks into a folder `masks`"
            )
        else:
            images[key] = file
    stems = {key: (*key[:-1], _IMAGE_NAME.sub("", key[-1])) for key in images}
    known = {*images, *stems.values()}
    for key, file in list(images.items()):  # a_mask.png next to a.png or a_rgb.png
        stem = _MASK_NAME.sub("", key[-1])
        if stem != key[-1] and (*key[:-1], stem) in known:
            mask_keys[file] = key
            del images[key]
    counts = Counter(key[:-1] for key in images)
    alone = {key[:-1]: file for key, file in images.items() if key[:-1] and counts[key[:-1]] == 1}
    masks: dict[Path, list[_MaskFile]] = {image: [] for image in images.values()}
    unmatched = []
    for key, file in list(images.items()):  # 1_image.png for 1_mask.png
        images.setdefault(stems[key], file)
    for file, key in mask_keys.items():
        found = _match(file, key, images)
        if not found and key[:-1] in alone:
            found = _MaskFile(file, alone[key[:-1]], _CATEGORY, has_all=False)
        if found:
            masks[found.image].append(found)
        else:
            unmatched.append(file)
    return masks, unmatched


def _key(file: Path, tree: FileTree) -> tuple[_Key, bool]:
    """Return the key of a file, and True if it is in a folder of masks.

    The last words of folders tell images from masks, such as in "train_masks" or "tissue images".
    The words before name a folder of the key only if they are a split or a number.
    """
    key, is_mask = list[str](), False
    for part in file.relative_to(tree.image_root).parts[:-1]:
        *first, word = re.split(r"[\s_-]+", part.lower())
        if word not in _IMAGE_FOLDERS | _MASK_FOLDERS:
            key.append(part)
            continue
        is_mask = word in _MASK_FOLDERS
        rest = "_".join(first)
        if rest in SPLITS or rest.isdecimal():
            key.append(part[: len(rest)])
    return (*key, file.stem), is_mask


def _match(file: Path, key: _Key, images: Mapping[_Key, Path]) -> _MaskFile | None:
    """Find the image of a mask by its key. If the key matches only without one of its folders,
    that folder is the category."""
    for skipped in (None, *range(len(key) - 1)):
        path = tuple(part for k, part in enumerate(key) if k != skipped)
        category = _CATEGORY if skipped is None else key[skipped]
        for suffix in (re.compile("$"), _MASK_NAME, _NUMBER):
            if image := images.get((*path[:-1], suffix.sub("", path[-1]))):
                return _MaskFile(file, image, category, has_all=suffix is not _NUMBER)
        if image := images.get(path[:-1]):
            return _MaskFile(file, image, category, has_all=False)
    return None


def _read(mask: _MaskFile, size: tuple[int, int], conversion: Conversion) -> LabelImage:
    """Read a mask file. A binary mask with gray edges is thresholded at half of its maximum."""
    if mask.file.suffix.lower() not in _LOSSLESS and conversion.masks != "connected":
        raise DataError(
            f"{mask.file}: masks need a lossless format ({', '.join(sorted(_LOSSLESS))}): JPEG "
            "changes the values at edges. If it has only black and white, choose `detlite init "
            "--masks connected`"
        )
    image = read_label_image(mask.file, size)
    if image.void:
        text = "Its pixels belong to no object, as in PASCAL VOC."
        conversion.findings.add("the value 255 in mask images", text, str(mask.file), "mask image")
    if image.smooth and (conversion.masks == "connected" or not mask.has_all):
        text = "Values above half of the maximum belong to objects."
        conversion.findings.add("gray edges in mask images", text, str(mask.file), "mask image")
        return LabelImage((image.values * 2 > image.values.max()).astype(np.int64))
    if image.smooth and conversion.masks:
        raise DataError(
            f"{mask.file}: has gray edges: their values are neither objects nor categories. Save "
            "it without smoothing, or choose `detlite init --masks connected` if it has only black "
            "and white"
        )
    return image


def _coded(values: set[int], code: int) -> list[int]:
    """Return the values of category * code + number, if they are few compared with their range."""
    coded = sorted(value for value in values if value >= code)
    if len(coded) < _MIN_CODED or max(value % code for value in coded) > code // 4:
        return []
    return coded if len(coded) < (coded[-1] - coded[0]) / 4 else []


def _doubts(mask: LabelImage, pieces: np.ndarray) -> Iterator[tuple[str, str]]:
    """Yield the reasons why the meaning of a label image is ambiguous, each with an example."""
    values = mask.values
    if mask.smooth:
        yield "have gray edges, as resized or compressed masks do", "the values"
        return
    owners = np.zeros(pieces.max() + 1, values.dtype)
    owners[pieces] = values
    counts = Counter(owners[1:].tolist())
    if several := [value for value, count in counts.items() if count > 1]:
        example = f"{counts[several[0]]} pieces of the value {value_name(several[0], mask.colored)}"
        yield "have a value of several separate pieces", example
    corners = {*values[[0, 0, -1, -1], [0, -1, 0, -1]].tolist()}
    value = min(corners)
    if values.min() > 0 or (value and len(corners) == 1 and (values == value).mean() > 0.5):
        text = "have a background that is not 0 and would count as an object"
        yield text, f"the value {value_name(value, mask.colored)} at a corner"


def _class_names(tree: FileTree) -> dict[int, str]:
    """Return the category of each value or color.

    CVAT's labelmap.txt has lines `label:r,g,b:parts:actions`, Roboflow's _classes.csv lines
    `value, name`, and LabelMe's class_names.txt one name per value.
    """
    names = {}
    for file in tree.files:
        if file.name not in ("labelmap.txt", "_classes.csv", "class_names.txt"):
            continue
        for number, line in enumerate(read_lines(file)):
            if match := _COLOR_LINE.match(line):
                label, *color = match.groups()
                names[sum(int(part) << 8 * k for k, part in enumerate(color))] = label
            elif file.name == "class_names.txt":
                names[number] = line.strip()
            elif match := re.match(r"\s*(\d+)\s*,\s*(.*\S)", line):
                names[int(match[1])] = match[2]
    return names
