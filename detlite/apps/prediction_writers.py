"""Convert predictions for pandas, supervision, LabelMe and Label Studio.

See `evaluation.coco_results` for COCO results, which FiftyOne and many other tools import.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from contourpy import contour_generator

from detlite.apps.optional_packages import import_optional
from detlite.inference.prediction import PREDICTION_WRITERS, Prediction
from detlite.structures.masks.formats import to_bitmap
from detlite.structures.masks.rle import tight_bounds
from detlite.structures.masks.rotated_box import area
from detlite.structures.object_fields import object_field

_LABELME_VERSION = "5.5.0"  # version of the file format


@PREDICTION_WRITERS.register("pandas")
def to_pandas(prediction: Prediction) -> Any:
    """Convert a prediction to a `pandas.DataFrame` with a row for each object.

    The columns are name, category_id, score, x1, y1, x2, y2, and, if predicted, area (of the mask,
    in pixels), and own fields as they are in results.json.
    """
    pandas = import_optional("pandas", "pandas")
    columns: dict[str, Any] = {
        "name": prediction["names"],
        "category_id": prediction["category_ids"],
        "score": prediction["scores"].numpy(),
    }
    columns |= dict(zip(("x1", "y1", "x2", "y2"), prediction["boxes"].numpy().T, strict=True))
    if "masks" in prediction:
        columns["area"] = [area(mask) for mask in prediction["masks"]]
    for name, values in prediction.extra_fields.items():
        columns[name] = [*map(object_field(name).write, values)]
    return pandas.DataFrame(columns)


@PREDICTION_WRITERS.register("supervision")
def to_supervision(prediction: Prediction) -> Any:
    """Convert a prediction to `supervision.Detections`.

    `class_id` is the label minus 1, an index into `predictor.categories`. `data` contains
    `class_name`, `category_id` and, if predicted, `keypoints` [N, P, 3], `class_scores`,
    `features` and own fields.
    """
    supervision = import_optional("supervision", "detlite[supervision]")
    data: dict[str, Any] = {
        "class_name": np.array(prediction["names"], dtype=str),
        "category_id": np.array(prediction["category_ids"], dtype=np.int64),
    }
    if "keypoints" in prediction:
        data["keypoints"] = prediction["keypoints"].numpy()
    data |= {name: values.numpy() for name, values in prediction.extra_fields.items()}
    masks = None
    if "masks" in prediction:
        bitmap = np.dtype((bool, prediction["size"]))
        masks = np.fromiter(_bitmaps(prediction), bitmap, len(prediction["masks"]))
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
    """Convert a prediction to the content of the JSON file that LabelMe stores next to an image.

    An object becomes a polygon for each connected part of its mask, or a rectangle without a mask.
    The description is the score. Parts with holes are cut into parts without holes, as LabelMe's
    polygons cannot have holes. The shapes of one object share a `group_id`.

    Args:
        prediction: result of a `Predictor`.
        file_name: path of the image relative to the JSON file.
        keypoint_names: names of the keypoints, see `data.datasets.coco.keypoint_names`; without
            them, keypoints are numbered.
    """
    height, width = prediction["size"]
    shapes: list[dict[str, Any]] = []
    for index, (name, score, kind, points) in enumerate(_shapes(prediction)):
        parts = [(name, kind, part) for part in points]
        keypoints = _keypoints(prediction, index, keypoint_names)
        parts += [(f"{name} {point_name}", "point", [point]) for point_name, point in keypoints]
        shapes += [
            {
                "label": label,
                "points": [[float(x), float(y)] for x, y in corners],
                "group_id": index if len(parts) > 1 else None,
                "description": f"{score:.4f}",
                "shape_type": shape_type,
                "flags": {},
                "mask": None,
            }
            for label, shape_type, corners in parts
        ]
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
    """Convert a prediction to a Label Studio task with pre-annotations; a file is a list of tasks.

    The labeling configuration of the project needs an `Image` named "image" with the value
    `$image`, `RectangleLabels` named "boxes", for masks `PolygonLabels` named "masks", and for
    keypoints `KeyPointLabels` named "keypoints". Polygons are as in `to_labelme`.

    Args:
        prediction, keypoint_names: see `to_labelme`.
        image: URL of the image, or a path that Label Studio serves.
        model_version: name that Label Studio shows for the prediction.
    """
    height, width = prediction["size"]
    regions: list[dict[str, Any]] = []
    for index, (name, score, kind, parts) in enumerate(_shapes(prediction)):
        values: list[tuple[str, str, str, dict[str, Any]]] = []
        for part in parts:
            x, y = np.array(part, dtype=float).T * 100 / [[width], [height]]  # percent
            if kind == "polygon":
                value = {"points": np.stack([x, y], axis=1).tolist(), "closed": True}
                values.append(("masks", "polygonlabels", name, value))
            else:
                sides = {"width": x[1] - x[0], "height": y[1] - y[0]}
                value = {"x": x[0], "y": y[0], **sides, "rotation": 0}
                values.append(("boxes", "rectanglelabels", name, value))
        for label, (x, y) in _keypoints(prediction, index, keypoint_names):
            value = {"x": 100 * x / width, "y": 100 * y / height, "width": 0.5}
            values.append(("keypoints", "keypointlabels", label, value))
        parent: dict[str, str] = {}
        for control, result_type, label, value in values:
            region = {
                "id": f"region{len(regions)}",
                "from_name": control,
                "to_name": "image",
                "type": result_type,
                "original_width": width,
                "original_height": height,
                "image_rotation": 0,
                "score": score,
                "value": {**value, result_type: [label]},
            }
            regions.append(region | parent)
            parent = parent or {"parentID": region["id"]}
    scores = prediction["scores"].tolist()
    mean = float(np.mean(scores)) if scores else 0.0
    result = {"model_version": model_version, "score": mean, "result": regions}
    return {"data": {"image": image}, "predictions": [result]}


def outlines(mask: np.ndarray) -> list[np.ndarray]:
    """Return the contours of the parts of a mask as polygons float64 [P, 2] of (x, y).

    A part with holes is cut into several parts without holes. Contours are halfway between the
    centers of pixels inside and outside, so a pixel belongs to the mask if its center is in a
    polygon. Parts that touch only at corners may be one polygon or two.

    Args:
        mask: bool or 0/1 [H, W].
    """
    mask = np.asarray(mask, dtype=bool)
    left, top, right, bottom = tight_bounds(mask)
    if not right:
        return []
    padded = np.pad(mask[top:bottom, left:right].astype(float), 1)
    # For each part, the points of its contours, the outer one first, and the start of each contour.
    filled: Any = contour_generator(z=padded, fill_type="OuterOffset").filled(0.5, 2.0)
    polygons = []
    for points, starts in zip(*filled, strict=True):
        if len(starts) > 2:
            parts = _cut(padded.shape, points, starts)
            polygons += [part + np.array((left - 1, top - 1)) for part in parts]
            continue
        ring = points[starts[0] : starts[1] - 1]  # without the last point, a copy of the first
        before, after = ring - np.roll(ring, 1, axis=0), np.roll(ring, -1, axis=0) - ring
        corner = before[:, 0] * after[:, 1] != before[:, 1] * after[:, 0]
        polygons.append(ring[corner] + [left - 0.5, top - 0.5])  # padded by 1, centers at 0.5
    return polygons


def _cut(shape: tuple[int, ...], points: np.ndarray, starts: np.ndarray) -> list[np.ndarray]:
    """Return the polygons of a part, cut at the middle of its first hole."""
    rings = [points[a : b - 1] for a, b in pairwise(starts)]
    crossings = np.concatenate([ring[ring[:, 1] % 1 == 0] for ring in rings])  # of rows
    part = np.zeros(shape, np.int64)
    np.add.at(part, (crossings[:, 1].astype(int), np.ceil(crossings[:, 0]).astype(int)), 1)
    part = part.cumsum(axis=1) % 2
    middle = int(np.ceil(rings[1][:, 0].mean()))
    columns = np.arange(shape[1])
    return [*outlines(part * (columns < middle)), *outlines(part * (columns >= middle))]


def _shapes(prediction: Mapping[str, Any]) -> Iterator[tuple[str, float, str, list[Any]]]:
    """Yield each object's name, score, shape type, and the points of its parts."""
    masks = _bitmaps(prediction)
    scores, boxes = prediction["scores"].tolist(), prediction["boxes"].tolist()
    for name, score, (x1, y1, x2, y2) in zip(prediction["names"], scores, boxes, strict=True):
        mask = next(masks, None)
        polygons = [] if mask is None else outlines(mask)
        if polygons:
            yield name, score, "polygon", polygons
        else:  # also for an empty mask
            yield name, score, "rectangle", [[(x1, y1), (x2, y2)]]


def _bitmaps(prediction: Mapping[str, Any]) -> Iterator[np.ndarray]:
    """Yield the mask of each object, bool [H, W]."""
    for mask in prediction.get("masks", ()):
        if isinstance(mask, dict):
            yield to_bitmap(mask, *prediction["size"]).astype(bool)
        else:
            yield mask.numpy()


def _keypoints(
    prediction: Mapping[str, Any], index: int, names: Sequence[str]
) -> Iterator[tuple[str, list[float]]]:
    """Yield the name and (x, y) of each keypoint of an object."""
    points = prediction["keypoints"][index, :, :2].tolist() if "keypoints" in prediction else []
    for number, point in enumerate(points):
        yield names[number] if number < len(names) else f"keypoint {number + 1}", point
