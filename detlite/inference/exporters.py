"""Predictions as other tools read them: supervision, LabelMe and Label Studio.

COCO results, which FiftyOne and many others import, are `evaluation.results.coco_results`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from contourpy import contour_generator

from detlite.config import ConfigError
from detlite.structures.masks.formats import to_bitmap

_LABELME_VERSION = "5.5.0"  # of the file's form


def to_supervision(prediction: Mapping[str, Any]) -> Any:
    """The `supervision.Detections` of a prediction.

    `class_id` is the label less 1, the place in `predictor.categories`; `data` holds `class_name`
    and `category_id`, and `keypoints` [N, P, 3] where there are.

    Raises:
        ConfigError: supervision is not installed.
    """
    try:
        import supervision
    except ImportError as error:
        raise ConfigError(
            "to_supervision needs the package supervision: pip install 'detlite[supervision]'"
        ) from error
    data: dict[str, Any] = {
        "class_name": np.array(prediction["names"], dtype=str),
        "category_id": np.array(prediction["category_ids"], dtype=np.int64),
    }
    if "keypoints" in prediction:
        data["keypoints"] = prediction["keypoints"].numpy()
    masks = None
    if "masks" in prediction:
        masks = np.zeros((len(prediction["names"]), *prediction["size"]), dtype=bool)
        for place, mask in enumerate(_bitmaps(prediction)):
            masks[place] = mask
    return supervision.Detections(
        xyxy=prediction["boxes"].numpy(),
        mask=masks,
        confidence=prediction["scores"].numpy(),
        class_id=prediction["labels"].numpy() - 1,
        data=data,
    )


def to_labelme(
    prediction: Mapping[str, Any], file_name: str, keypoint_names: Sequence[str] = ()
) -> dict[str, Any]:
    """The content of the json file that LabelMe keeps beside a picture.

    An object is a polygon for each part of its mask, or a rectangle where there is no mask, with
    its score as the description. Holes of masks are filled, as LabelMe's polygons have none. What
    belongs to one object has its `group_id`.

    Args:
        prediction: of a `Predictor`.
        file_name: of the picture, as seen from the json file.
        keypoint_names: of the categories, see `data.datasets.coco.keypoint_names`; else they are
            numbered.
    """
    height, width = prediction["size"]
    shapes = []
    for place, (name, score, kind, points) in enumerate(_shapes(prediction)):
        parts = [(name, kind, part) for part in points]
        parts += [
            (f"{name} {_point_name(keypoint_names, number)}", "point", [point])
            for number, point in enumerate(_keypoints(prediction, place))
        ]
        for label, shape_type, corners in parts:
            shape: dict[str, Any] = {
                "label": label,
                "points": [[float(x), float(y)] for x, y in corners],
                "group_id": place if len(parts) > 1 else None,
                "description": f"{score:.4f}",
                "shape_type": shape_type,
                "flags": {},
                "mask": None,
            }
            shapes.append(shape)
    return {
        "version": _LABELME_VERSION,
        "flags": {},
        "shapes": shapes,
        "imagePath": file_name,
        "imageData": None,
        "imageHeight": height,
        "imageWidth": width,
    }


def to_label_studio(
    prediction: Mapping[str, Any],
    image: str,
    model_version: str = "detlite",
    keypoint_names: Sequence[str] = (),
) -> dict[str, Any]:
    """A task of Label Studio with the prediction as its pre-annotation; a list of them is a file.

    The project's labels are `RectangleLabels` named "boxes", with masks `PolygonLabels` named
    "masks", with keypoints `KeyPointLabels` named "keypoints", for an `Image` named "image" whose
    value is `$image`. Polygons as for LabelMe.

    Args:
        prediction: of a `Predictor`.
        image: where Label Studio finds the picture, a web address or a path that it serves.
        model_version: under which Label Studio shows it.
        keypoint_names: as for LabelMe.
    """
    height, width = prediction["size"]
    regions: list[dict[str, Any]] = []

    def add(
        control: str, kind: str, label: str, score: float, value: dict[str, Any], parent: str | None
    ) -> str:
        region = {
            "id": f"region{len(regions)}",
            "from_name": control,
            "to_name": "image",
            "type": kind,
            "original_width": width,
            "original_height": height,
            "image_rotation": 0,
            "score": score,
            "value": {**value, kind: [label]},
        }
        regions.append(region if parent is None else {**region, "parentID": parent})
        return str(region["id"])

    for place, (name, score, kind, parts) in enumerate(_shapes(prediction)):
        first = None
        for part in parts:
            x, y = np.array(part, dtype=float).T * 100 / [[width], [height]]  # percent
            if kind == "polygon":
                points = np.stack([x, y], axis=1).tolist()
                value = {"points": points, "closed": True}
                region = add("masks", "polygonlabels", name, score, value, first)
            else:
                value = {
                    "x": x[0], "y": y[0], "width": x[1] - x[0], "height": y[1] - y[0],
                    "rotation": 0,
                }  # fmt: skip
                region = add("boxes", "rectanglelabels", name, score, value, first)
            first = first or region
        for number, (x, y) in enumerate(_keypoints(prediction, place)):
            label = _point_name(keypoint_names, number)
            value = {"x": 100 * x / width, "y": 100 * y / height, "width": 0.5}
            add("keypoints", "keypointlabels", label, score, value, first)
    scores = prediction["scores"].tolist()
    return {
        "data": {"image": image},
        "predictions": [
            {
                "model_version": model_version,
                "score": float(np.mean(scores)) if scores else 0.0,
                "result": regions,
            }
        ],
    }


def outlines(mask: np.ndarray) -> list[np.ndarray]:
    """The outer borders of a mask's parts as polygons float64 [P, 2] of (x, y), without holes.

    They run half-way between the centres of pixels inside and outside: a pixel is in the mask if
    its centre is in a polygon. Parts that touch at corners are one or two.

    Args:
        mask: bool or 0/1 [H, W].
    """
    mask = np.asarray(mask, dtype=bool)
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return []
    top, left = rows[0], columns[0]
    padded = np.pad(mask[top : rows[-1] + 1, left : columns[-1] + 1].astype(float), 1)
    # Of each part the points of its borders, the outer one first, and where each border begins.
    filled: Any = contour_generator(z=padded, fill_type="OuterOffset").filled(0.5, 2.0)
    polygons = []
    for points, starts in zip(*filled, strict=True):
        ring = points[starts[0] : starts[1] - 1]  # closed by its first point, which comes again
        before, after = ring - np.roll(ring, 1, axis=0), np.roll(ring, -1, axis=0) - ring
        corner = before[:, 0] * after[:, 1] != before[:, 1] * after[:, 0]
        polygons.append(ring[corner] + [left - 0.5, top - 0.5])  # padded by 1, centres at 0.5
    return polygons


def _shapes(
    prediction: Mapping[str, Any],
) -> Iterator[tuple[str, float, str, list[Any]]]:
    """Of each object the name, score, "polygon" or "rectangle", and the points of its parts."""
    masks = _bitmaps(prediction) if "masks" in prediction else iter(())
    scores, boxes = prediction["scores"].tolist(), prediction["boxes"].tolist()
    for name, score, (x1, y1, x2, y2) in zip(prediction["names"], scores, boxes, strict=True):
        mask = next(masks, None)
        polygons = [] if mask is None else outlines(mask)
        if polygons:
            yield name, score, "polygon", polygons
        else:  # also of a mask that is empty
            yield name, score, "rectangle", [[(x1, y1), (x2, y2)]]


def _bitmaps(prediction: Mapping[str, Any]) -> Iterator[np.ndarray]:
    """Each object's mask, bool [H, W]."""
    for mask in prediction["masks"]:
        if isinstance(mask, dict):
            yield to_bitmap(mask, *prediction["size"]).astype(bool)
        else:
            yield mask.numpy()


def _keypoints(prediction: Mapping[str, Any], place: int) -> list[list[float]]:
    """(x, y) of each keypoint of an object."""
    return prediction["keypoints"][place, :, :2].tolist() if "keypoints" in prediction else []


def _point_name(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else f"keypoint {number + 1}"
