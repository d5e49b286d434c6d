"""Read folders of PASCAL VOC's XML files, which LabelImg, CVAT, Roboflow and others write too.

Masks in `SegmentationObject` are matched to boxes by IoU.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
from pycocotools import mask as rle_codec

from detlite.data.datasets.voc import VocObject, read_voc_file
from detlite.data.errors import DataError
from detlite.data.images.reading import image_size

from .file_tree import FileTree
from .label_images import VOID, distinct_values, read_label_image
from .labeled_dataset import Conversion
from .shapes import ImageLabels, Shape, object_from_bitmap

_MIN_IOU = 0.5  # of a box and the bounding box of its mask


def voc_labels(file: Path, tree: FileTree, conversion: Conversion) -> Iterator[ImageLabels]:
    """Yield the image of a file.

    Difficult objects become crowds. Coordinates with decimals are continuous. Integer coordinates
    are pixel numbers: the first pixel is 1, as in VOC, or 0 if a value in the dataset is below 1.
    """
    content = read_voc_file(file)
    first = 0.0 if content.continuous else _first_pixel(tree)
    labels = ImageLabels(f"{content.folder}/{content.file_name}".strip("/"), size=content.size)
    for obj in content.objects:
        labels.shapes.append(_shape(obj, first))
        if obj.difficult:
            text = "They become crowds (iscrowd 1), which VOC does not measure either."
            conversion.findings.add("difficult objects", text, f"{file} ({obj.name})", "object")
    for folder in (file.parent.parent, file.parent):
        masks = folder / "SegmentationObject" / f"{file.stem}.png"
        if masks.is_file():
            image = tree.image(labels.name, file, one_each=True)
            _add_masks(labels.shapes, masks, image_size(image, conversion.upright), conversion)
            break
    yield labels


def _shape(obj: VocObject, first: float) -> Shape:
    if not obj.corners:
        return Shape(obj.name, problem=obj.problem)
    _, _, w, h = box = obj.box(first)
    shape = Shape.box(obj.name, box)
    if obj.polygon:
        shape = Shape(obj.name, [value - first for value in obj.polygon])
    elif not (w > 0 and h > 0):
        shape.problem = f"width {w:g} and height {h:g} must be positive"
    shape.crowd, shape.problem = obj.difficult, obj.problem or shape.problem
    return shape


@lru_cache(maxsize=1)
def _first_pixel(tree: FileTree) -> float:
    """Return the number of the first pixel in files without decimals."""
    for file in tree.with_suffix(".xml"):
        with suppress(DataError):  # reported when its labels are read
            content = read_voc_file(file)
            values = [value for obj in content.objects for value in obj.corners]
            if not content.continuous and min(values, default=1) < 1:
                return 0.0
    return 1.0


def _add_masks(
    shapes: Sequence[Shape], file: Path, size: tuple[int, int], conversion: Conversion
) -> None:
    """Assign each mask of a file to the box with the highest IoU."""
    values = read_label_image(file, size).values
    for value in distinct_values(values[(values > 0) & (values != VOID)]):
        mask_box = object_from_bitmap("", values == value, str(file)).box
        free = [box for box in shapes if box.mask is None and box.corners and not box.polygon]
        corners = np.array([shape.corners for shape in free]).reshape(-1, 4)
        boxes = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
        overlaps = rle_codec.iou(boxes, np.array([mask_box]), [False])
        if np.max(overlaps, initial=0) < _MIN_IOU:
            text = "They are not used. Compare them with the boxes of the XML file."
            example = f"value {value} of {file}"
            conversion.findings.add("masks that fit no box", text, example, "mask")
        else:
            free[int(np.argmax(overlaps))].mask = values == value
