"""Own fields of objects, such as attributes: declared once, they follow their objects everywhere.

A target has them under their names, next to boxes and labels. Records of batches and detections
have them as `extra_fields`. Letters in shapes: N objects or detections of an image.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from detlite.registry import Registry

Size = tuple[int, int]  # height, width
# The rows of a matrix [2, 3] that maps a point (x, y, 1).
Affine = Sequence[Sequence[float]]

# Names of the other entries of targets, predictions, results and tables.
RESERVED = {
    "boxes", "scores", "labels", "valid", "masks", "mask_probs", "mask_boxes", "keypoints",
    "keypoint_scores", "keypoints_scores", "proposals", "ignored_boxes", "extra_fields", "size",
    "name", "names", "category", "label", "x1", "y1", "x2", "y2", "class_name", "category_ids",
    "track_ids", "id", "image_id", "category_id", "score", "bbox", "segmentation", "area",
    "rotated_box", "measures", "track_id", "iscrowd", "ignore",
}  # fmt: skip


class ObjectField:
    """Base class of the declarations of fields. Subclasses are registered in `OBJECT_FIELDS`.

    A dataset reads the fields that its catalog entry lists as `fields`.

    Attributes:
        name: the name under which the class is registered.
        dtype, shape: of the value of one object; without a shape, targets cannot have the field.
        evaluated: True if the results of a dataset contain the detected values, for evaluators and
            results_<dataset>.json, and so does CSV. Predictions always contain them.
    """

    dtype: torch.dtype = torch.float32
    shape: tuple[int, ...] | None = None
    evaluated = True

    def __init__(self, name: str) -> None:
        if name in RESERVED:
            raise ValueError(f"an object field cannot be called {name!r}: choose another name")
        self.name = name

    def read(self, annotation: Mapping[str, Any]) -> Any:
        """Return the value of an object: a number, nested lists, an array or a tensor.

        `annotation` is the object's entry in the annotation file, with all its keys. A KeyError,
        TypeError or ValueError becomes a DataError that names the annotation.
        """
        return annotation[self.name]

    def write(self, value: Tensor) -> Any:
        """Return the value of a detection in the form in which JSON files contain it."""
        return value.tolist()

    def move(self, values: Tensor, matrix: Affine) -> Tensor:
        """Return values [N, ...] after the points of the image were moved.

        Override it for coordinates in pixels, with `move_points` or otherwise. The determinant of
        the matrix is negative if the image was mirrored.
        """
        return values

    @property
    def has_coordinates(self) -> bool:
        """True if the values change when the image is flipped, resized, cropped or rotated."""
        return type(self).move is not ObjectField.move


OBJECT_FIELDS: Registry[type[ObjectField]] = Registry("object field")
"""Fields of objects. `@OBJECT_FIELDS.register("mine")` adds a subclass of `ObjectField`."""


@OBJECT_FIELDS.register("class_scores", "features")
class ExtraOutput(ObjectField):
    """An output of TEST.EXTRA_OUTPUTS. Those of a whole dataset would fill the memory."""

    evaluated = False


def object_field(name: str) -> ObjectField:
    """Return the declaration of a field; fields of detections need none."""
    return (OBJECT_FIELDS.get(name) if name in OBJECT_FIELDS else ObjectField)(name)


def own_values(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evaluated own fields of an object in COCO's results format."""
    own = {name: value for name, value in result.items() if name not in RESERVED}
    return {name: value for name, value in own.items() if object_field(name).evaluated}


def target_fields(names: Iterable[str]) -> dict[str, ObjectField]:
    """Return those of the names that are declared fields of targets, with their declarations."""
    declared = {name: object_field(name) for name in names if name in OBJECT_FIELDS}
    return {name: field for name, field in declared.items() if field.shape is not None}


def move_fields(values: Mapping[str, Tensor], matrix: Affine) -> dict[str, Tensor]:
    """Return fields, by name, after the points of their image were moved, see `ObjectField`."""
    return {name: object_field(name).move(value, matrix) for name, value in values.items()}


def move_points(points: Tensor, matrix: Affine) -> Tensor:
    """Move points [..., 2 + C] of (x, y, ...) by a matrix; what follows x and y stays."""
    # No matrix product, which autocast would compute in half precision.
    x, y = points[..., 0], points[..., 1]
    moved = [a * x + b * y + shift for a, b, shift in matrix]
    return torch.cat([torch.stack(moved, dim=-1), points[..., 2:]], dim=-1)


def resizing(from_size: Size, to_size: Size, flip_x: bool = False, flip_y: bool = False) -> Affine:
    """Return the matrix of flipping and resizing an image."""
    (height, width), (new_height, new_width) = from_size, to_size
    x, y = new_width / width, new_height / height
    return (
        (-x if flip_x else x, 0.0, new_width * float(flip_x)),
        (0.0, -y if flip_y else y, new_height * float(flip_y)),
    )
