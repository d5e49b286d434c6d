"""Read the ground truth of an evaluation into arrays, and check that results fit it."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO

from detlite import ops
from detlite.data.datasets.coco_masks import fill_missing, rle_problem, segmentation_problem
from detlite.data.errors import DataError, short_repr
from detlite.structures.masks.rle import EncodedMasks

from .columns import Columns, parse_columns, parse_json, read_bytes
from .results import IOU_TYPES, Results, concatenate_arrays

# Fields without which annotations are read one by one, with more checks; and the numbers.
_REQUIRED = ("image_id", "category_id", "area", "iscrowd", "bbox")
_NUMBERS = (*_REQUIRED, "id", "num_keypoints")


@dataclass(frozen=True, eq=False)
class GroundTruthArrays:
    """G objects, sorted by category and image; objects of one image keep their order."""

    image_ids: np.ndarray  # int64 [I], increasing
    category_ids: np.ndarray  # int64 [K], increasing
    images: np.ndarray  # int64 [G], indices into image_ids
    categories: np.ndarray  # int64 [G], indices into category_ids
    ids: np.ndarray  # int64 [G], annotation ids
    crowd: np.ndarray  # bool [G]
    ignored: np.ndarray  # bool [G]: may be missed, as crowds and objects without visible keypoints
    areas: np.ndarray  # float64 [G], in square pixels
    boxes: np.ndarray  # float64 [G, 4], xywh in pixels
    masks: EncodedMasks | None = None  # for the IoU type "segm"
    keypoints: np.ndarray | None = None  # float64 [G, P, 3] of (x, y, visibility), if measured

    def __len__(self) -> int:
        return len(self.images)

    @property
    def keys(self) -> np.ndarray:
        """int64 [G], increasing: a number that identifies category and image."""
        return self.categories * len(self.image_ids) + self.images

    def keys_of(self, image_ids: np.ndarray, category_ids: np.ndarray) -> np.ndarray:
        """Return the keys of image and category ids [N], which must exist."""
        categories = _index_of(self.category_ids, category_ids)
        return categories * len(self.image_ids) + _index_of(self.image_ids, image_ids)


def _index_of(known: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return the index of each of ids [N] in the sorted known ids [K]."""
    span = int(known[-1]) - int(known[0]) + 1 if len(known) else 0
    if not 0 < span <= 16 * (len(known) + len(ids)):
        return np.searchsorted(known, ids)
    table = np.zeros(span, np.int64)
    table[known - known[0]] = np.arange(len(known))
    return table[ids - known[0]]


@dataclass(frozen=True, eq=False)
class GroundTruthFile:
    """A ground truth of boxes and masks with columns in place of dicts of annotations.

    The other attributes are those of pycocotools' `COCO`, without annotations.
    """

    dataset: dict[str, Any]
    imgs: dict[int, dict[str, Any]]
    cats: dict[int, dict[str, Any]]
    columns: Columns

    @property
    def sizes(self) -> np.ndarray:
        """(height, width) of the image of each annotation, int64 [G, 2]."""
        ids, images = np.unique(self.columns.integers[:, 0], return_inverse=True)
        return _sizes([self.imgs[number] for number in ids.tolist()])[images]

    def is_valid(self) -> bool:
        """Return True if all annotations have a box and a valid mask, and none has keypoints."""
        columns, lengths = self.columns, self.columns.polygon_lengths
        image_ids, category_ids, ids = columns.integers[:, :3].T
        if not np.isin(image_ids, list(self.imgs)).all() or not all(
            {"height", "width"} <= image.keys() for image in self.imgs.values()
        ):
            return False
        other_size = columns.has("rle") & (columns.sizes != self.sizes).any(axis=1)
        return bool(
            all(columns.has(name).all() for name in _REQUIRED)
            and ids.all()  # `fill_missing` replaces id 0
            and (columns.polygons + columns.text_lengths > 0).all()
            and not ((lengths < 6) | (lengths % 2 > 0)).any()
            and not (other_size | columns.has("keypoints") | columns.has("num_keypoints")).any()
            and np.isin(category_ids, list(self.cats)).all()
        )

    def read(self, iou_type: str) -> GroundTruthArrays:
        """Return the objects. For keypoints all are ignored, because they have none."""
        columns = self.columns
        known_images, known_categories = (
            np.array(sorted(ids), np.int64) for ids in (self.imgs, self.cats)
        )
        images = np.searchsorted(known_images, columns.integers[:, 0])
        categories = np.searchsorted(known_categories, columns.integers[:, 1])
        order = np.lexsort((images, categories))
        crowd = columns.integers[order, 3] != 0
        is_keypoints = iou_type == "keypoints"
        return GroundTruthArrays(
            image_ids=known_images,
            category_ids=known_categories,
            images=images[order],
            categories=categories[order],
            ids=columns.integers[order, 2],
            crowd=crowd,
            ignored=crowd | is_keypoints,
            areas=columns.numbers[order, 1],
            boxes=columns.numbers[order, 2:6],
            masks=self._masks(order) if iou_type == "segm" else None,
            keypoints=np.zeros((len(order), 0, 3)) if is_keypoints else None,
        )

    def _masks(self, order: np.ndarray) -> EncodedMasks:
        columns, is_polygon = self.columns, self.columns.has("polygons")
        places = np.flatnonzero(is_polygon), np.flatnonzero(~is_polygon)
        corners, lengths, counts = columns.corners, columns.polygon_lengths, columns.polygons
        drawn = _draw(corners, lengths, counts[is_polygon], self.sizes[is_polygon])
        both = concatenate_arrays([drawn, columns.masks[places[1]]])
        return both[np.argsort(np.concatenate(places))[order]]


def open_ground_truth(file: Path) -> COCO | GroundTruthFile:
    """Read a COCO annotation file. DataError if it cannot be read.

    Files with keypoints, invalid annotations or missing fields become pycocotools' `COCO`.
    """
    text = read_bytes(file)
    parsed = parse_columns(text)
    content = parse_json(parsed[1] if parsed else text, file)
    try:
        images, categories = (
            {row["id"]: row for row in content[key]} for key in ("images", "categories")
        )
        for number in (*images, *categories):
            if type(number) is not int or not -(2**63) <= number < 2**63:
                raise DataError(f"{file}: id {short_repr(number)} is not an integer of 64 bits")
        if parsed:
            truth = GroundTruthFile(content, images, categories, parsed[0])
            if truth.is_valid():
                return truth
        coco = COCO()
        coco.dataset = parse_json(text, file)
        for row in coco.dataset.get("annotations", ()):
            if missing := {"id", "image_id", "category_id"} - row.keys():
                raise DataError(f"{file}: annotation {row.get('id')} has no {min(missing)}")
        with contextlib.redirect_stdout(io.StringIO()):
            coco.createIndex()
        return coco
    except (TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{file}: not in COCO form ({error!r})") from error


def read_ground_truth(coco_gt: COCO | GroundTruthFile, iou_type: str) -> GroundTruthArrays:
    """Read the objects. Their info, area and iscrowd may be missing.

    DataError if an annotation is invalid.
    """
    if isinstance(coco_gt, GroundTruthFile):
        return coco_gt.read(iou_type)
    try:
        return _read_coco(coco_gt, iou_type)
    except (TypeError, ValueError, OverflowError, KeyError) as error:
        if isinstance(error, DataError):
            raise
        for row in coco_gt.dataset["annotations"]:
            for name in _NUMBERS:
                if name in row and not _is_number(row[name], 4 if name == "bbox" else 0):
                    problem = f"annotation {row.get('id')}: {name} is {short_repr(row[name])}"
                    raise DataError(f"ground truth: {problem}") from error
        raise


def _is_number(value: Any, count: int) -> bool:
    """Return True for a number that fits into 64 bits, or a list of `count` numbers."""
    if count:
        is_list = isinstance(value, list | tuple) and len(value) == count
        return is_list and all(_is_number(one, 0) for one in value)
    return isinstance(value, int | float) and abs(value) < 2**63


def _read_coco(coco_gt: COCO, iou_type: str) -> GroundTruthArrays:
    rows = _annotations(coco_gt, iou_type)
    image_ids, category_ids = (
        np.array(sorted(known), np.int64) for known in (coco_gt.imgs, coco_gt.cats)
    )
    images, categories = (
        np.searchsorted(ids, [row[key] for row in rows])
        for key, ids in (("image_id", image_ids), ("category_id", category_ids))
    )
    order = np.lexsort((images, categories))
    rows = [rows[number] for number in order.tolist()]

    def column(name: str, dtype: type) -> np.ndarray:
        return np.array([row[name] for row in rows], dtype)

    crowd, keypoints = column("iscrowd", bool), None
    ignored = crowd
    if iou_type == "keypoints":
        keypoints = _keypoints(rows)
        visible = (keypoints[:, :, 2] > 0).sum(axis=1).tolist()
        counts = [row.get("num_keypoints") for row in rows]
        counts = [n if count is None else count for count, n in zip(counts, visible, strict=True)]
        ignored = crowd | (np.array(counts, np.int64) == 0)
    return GroundTruthArrays(
        image_ids=image_ids,
        category_ids=category_ids,
        images=images[order],
        categories=categories[order],
        ids=column("id", np.int64),
        crowd=crowd,
        ignored=ignored,
        areas=column("area", float),
        boxes=np.array([row.get("bbox", (0, 0, 0, 0)) for row in rows], float).reshape(-1, 4),
        masks=_encode(coco_gt, rows) if iou_type == "segm" else None,
        keypoints=keypoints,
    )


def _annotations(coco_gt: COCO, iou_type: str) -> list[dict[str, Any]]:
    """Return the annotations to measure, with `area` and `iscrowd`, and check their ids."""
    field = IOU_TYPES[iou_type]
    annotations = coco_gt.dataset.get("annotations", [])
    for key, known in (("image_id", coco_gt.imgs), ("category_id", coco_gt.cats)):
        for row in annotations:
            if row.get(key) not in known:
                raise DataError(
                    f"ground truth: annotation {row.get('id')}: {key} {row.get(key)!r} is unknown"
                )
    lacking = [row for row in annotations if not row.get(field)]
    if lacking and iou_type != "keypoints":
        raise DataError(
            f"ground truth: annotation {lacking[0].get('id')} has no {field!r}, which {iou_type} "
            "needs"
        )
    if all(row.get("area") is not None and "iscrowd" in row and row["id"] for row in annotations):
        return list(annotations)
    rows = [dict(row) for row in annotations]
    fill_missing({**coco_gt.dataset, "annotations": rows})
    return rows


def _keypoints(rows: Sequence[dict[str, Any]]) -> np.ndarray:
    """Return keypoints float64 [G, P, 3]; those of objects without any are not labeled."""
    values = [row.get("keypoints") for row in rows]
    length = next((len(one) for one in values if one), 0)
    for row, one in zip(rows, values, strict=True):
        if one and (len(one) != length or length % 3):
            raise DataError(
                f"ground truth: annotation {row['id']} has {len(one)} numbers as keypoints, not x, "
                "y and visibility of as many points as others"
            )
    filled = np.array([one or [0] * length for one in values], float)
    return filled.reshape(len(rows), length // 3, 3)


def _encode(coco_gt: COCO, rows: Sequence[dict[str, Any]]) -> EncodedMasks:
    sizes = _sizes([coco_gt.imgs[row["image_id"]] for row in rows])
    masks = [row["segmentation"] for row in rows]
    polygons = [n for n, mask in enumerate(masks) if isinstance(mask, list)]
    try:
        texts = _encode_polygons([masks[n] for n in polygons], sizes[polygons])
        for n, text in zip(polygons, texts, strict=True):
            masks[n] = {"size": sizes[n], "counts": text}
        for n, mask in enumerate(masks):
            if isinstance(mask["counts"], list):
                height, width = sizes[n].tolist()
                if rle_problem(mask, height, width, may_be_empty=True):
                    raise ValueError("an RLE is invalid")
                masks[n] = rle_codec.frPyObjects(mask, *mask["size"])
        encoded = EncodedMasks.from_rles(masks)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        for row, (height, width) in zip(rows, sizes.tolist(), strict=True):
            if problem := segmentation_problem(row["segmentation"], height, width):
                raise DataError(f"ground truth: annotation {row['id']}: {problem}") from error
        raise
    if (wrong := _first((encoded.sizes != sizes).any(axis=1))) is not None:
        raise DataError(
            f"ground truth: annotation {rows[wrong]['id']}: the mask has the size "
            f"{encoded.sizes[wrong].tolist()}, but its image has {sizes[wrong].tolist()} (height, "
            "width)"
        )
    return encoded


def _encode_polygons(masks: Sequence[Sequence[Sequence[float]]], sizes: np.ndarray) -> list[bytes]:
    """Return the compressed run lengths of masks of polygons. ValueError if one is invalid."""
    rings = [ring for mask in masks for ring in mask]
    lengths = np.array([len(ring) for ring in rings], np.int64)
    values = np.fromiter(chain.from_iterable(rings), np.float64, int(lengths.sum()))
    if (lengths < 6).any() or (lengths % 2).any() or not np.isfinite(values).all():
        raise ValueError("a polygon is invalid")
    counts = np.array([len(mask) for mask in masks], np.int64)
    drawn = _draw(values, lengths, counts, sizes)
    text, ends = drawn.data.tobytes(), drawn.lengths.cumsum().tolist()
    return [text[begin:end] for begin, end in pairwise([0, *ends])]


def _draw(
    values: np.ndarray, lengths: np.ndarray, counts: np.ndarray, sizes: np.ndarray
) -> EncodedMasks:
    """Draw masks of `counts` polygons each, which have `lengths` of the concatenated values."""
    arrays = values.reshape(-1, 2), lengths // 2, counts, sizes
    data, ends = ops.encode_polygons(*map(torch.from_numpy, arrays))
    return EncodedMasks(data.numpy(), np.diff(ends.numpy(), prepend=0), sizes)


def check_results(
    results: Results, coco_gt: COCO | GroundTruthFile, iou_types: Sequence[str]
) -> None:
    """Raise DataError if results lack a field or do not refer to images and categories."""
    fields = {"bbox": results.boxes, "segm": results.masks, "keypoints": results.keypoints}
    for iou_type in iou_types:
        if fields[iou_type] is None and len(results):
            raise DataError(f"the results have no {IOU_TYPES[iou_type]!r}, which {iou_type} needs")
    if (n := _first(~np.isin(results.image_ids, list(coco_gt.imgs)))) is not None:
        raise DataError(
            f"result {n}: image_id {results.image_ids[n]} is not in the ground truth; are these "
            "the results of another data set?"
        )
    if (n := _first(~np.isin(results.category_ids, list(coco_gt.cats)))) is not None:
        ids = ", ".join(map(str, sorted(coco_gt.cats)[:10]))
        more = ", ..." if len(coco_gt.cats) > 10 else ""
        raise DataError(
            f"result {n}: category_id {results.category_ids[n]} is not in the ground truth, whose "
            f"ids are {ids}{more}"
        )
    numbers = {"score": results.scores, "bbox": results.boxes, "keypoints": results.keypoints,
               "mask_score": results.mask_scores}  # fmt: skip
    for name, array in numbers.items():
        if array is not None:
            finite = np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
            if (n := _first(~finite)) is not None:
                raise DataError(f"result {n}: the {name} is {array[n].tolist()}")
    if results.masks is not None and "segm" in iou_types:
        unique, image = np.unique(results.image_ids, return_inverse=True)
        expected = _sizes([coco_gt.imgs[image_id] for image_id in unique.tolist()])[image]
        sizes = results.masks.sizes
        if (n := _first((sizes != expected).any(axis=1))) is not None:
            raise DataError(
                f"result {n}: the mask has the size {sizes[n].tolist()}, but image "
                f"{results.image_ids[n]} has {expected[n].tolist()} (height, width)"
            )


def _sizes(images: Sequence[dict[str, Any]]) -> np.ndarray:
    """Return (height, width) of images, int64 [N, 2]."""
    try:
        sizes = [(image["height"], image["width"]) for image in images]
    except KeyError as error:
        number = next(image["id"] for image in images if error.args[0] not in image)
        raise DataError(f"ground truth: image {number} has no {error}") from error
    return np.array(sizes, np.int64).reshape(-1, 2)


def _first(invalid: np.ndarray) -> int | None:
    """Return the index of the first True in bool [N], if any."""
    return int(invalid.argmax()) if invalid.any() else None
