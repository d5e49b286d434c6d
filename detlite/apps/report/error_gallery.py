"""Images of a detector's errors: labels on the left, detections on the right."""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO

from detlite.apps.drawing.crops import crop_window, draw_crop
from detlite.apps.drawing.html_page import jpeg
from detlite.data.datasets.coco import CocoDataset
from detlite.data.errors import DataError
from detlite.evaluation.results import Results

from .analysis.detection_analysis import DetectionAnalysis
from .analysis.error_types import BACKGROUND, DUPLICATE, FALSE_POSITIVE_TYPES, DetectionErrors

_GAP = 6  # pixels between the panels
_OBJECT_COLOR, _TARGET_COLOR = (60, 200, 90), (255, 210, 40)
_DETECTION_COLOR, _ERROR_COLOR = (90, 180, 255), (255, 70, 50)


@dataclass(frozen=True)
class ErrorImage:
    """An error, with the properties by which the page filters.

    Attributes:
        detection, obj: their indices; -1 if there is none.
        image: index of the image.
        category: of the detection or the missed object.
        kind: a type of ERROR_TYPES.
        score: of the detection, or of the detection nearest to a missed object (0 if none).
        text: description.
        source: data URI of an image with the labels on the left and the detections on the right.
    """

    detection: int
    obj: int
    image: int
    category: str
    kind: str
    score: float
    text: str
    source: str = ""


@dataclass(frozen=True, eq=False)
class ErrorGallery:
    """Draws errors of detections on a dataset.

    Attributes:
        results: the analyzed detections, with boxes.
        max_images: maximum number of false positives and of missed objects.
    """

    dataset: CocoDataset
    coco_gt: COCO
    results: Results
    analysis: DetectionAnalysis
    max_images: int

    def counts(self) -> tuple[int, int]:
        """Return the number of all false positives and missed objects."""
        return len(self._false_positives), len(self._undetected)

    def false_positives(self) -> list[ErrorImage]:
        """Draw the false positives with the highest scores of each category."""
        errors, names, indices = self._errors, self.analysis.names, self._false_positives
        matches, scores = errors.matches, errors.matches.pairing.scores
        chosen = _interleave(
            matches.detection_categories[indices], -scores[indices], self.max_images
        )
        selected = []
        for detection in indices[chosen].tolist():
            kind, obj = int(errors.types[detection]), int(errors.objects[detection])
            category = names[matches.detection_categories[detection]]
            selected.append(
                ErrorImage(
                    detection, obj, int(matches.images[detection]), category,
                    FALSE_POSITIVE_TYPES[kind], float(scores[detection]),
                    f"{category}: {self._describe(kind, detection, obj)}",
                )
            )  # fmt: skip
        return self._draw(selected)

    def missed_objects(self) -> list[ErrorImage]:
        """Draw the largest objects of each category that have no detection."""
        names, matches, indices = self.analysis.names, self._errors.matches, self._undetected
        areas, scores = matches.truth.areas, matches.pairing.scores
        chosen = _interleave(matches.object_categories[indices], -areas[indices], self.max_images)
        detections, objects = matches.pairing.pairs()
        selected = []
        for obj in indices[chosen].tolist():
            category = names[matches.object_categories[obj]]
            pairs = np.flatnonzero((objects == obj) & (matches.overlaps > 0))
            score, nearest = 0.0, "no detection there"
            if len(pairs):
                pair = pairs[matches.overlaps[pairs].argmax()]
                detection = int(detections[pair])
                score = float(scores[detection])
                nearest = (
                    f"nearest is {names[matches.detection_categories[detection]]} {score:.2f}, "
                    f"IoU {100 * matches.overlaps[pair]:.0f} %"
                )
            text = f"{category} of {areas[obj]:.0f} px²: {nearest}"
            image = int(matches.truth.images[obj])
            selected.append(ErrorImage(-1, obj, image, category, "missed", score, text))
        return self._draw(selected)

    @property
    def _false_positives(self) -> np.ndarray:
        return np.flatnonzero(self._errors.types >= 0)

    @property
    def _undetected(self) -> np.ndarray:
        return np.flatnonzero((self._errors.found_by < 0) & ~self._errors.matches.truth.crowd)

    @property
    def _errors(self) -> DetectionErrors:
        assert self.analysis.errors is not None
        return self.analysis.errors

    def _describe(self, kind: int, detection: int, obj: int) -> str:
        matches, names = self._errors.matches, self.analysis.names
        if kind == BACKGROUND:
            mask = self._detected_mask(detection)
            empty = mask is not None and not rle_codec.area(mask)
            return "its mask is empty" if empty else "no label there"
        if obj < 0:
            return "wrong category and inaccurate"
        if kind == DUPLICATE:
            return "duplicate of a detection with a higher score"
        if matches.object_categories[obj] != matches.detection_categories[detection]:
            return f"labeled {names[matches.object_categories[obj]]}"
        return "inaccurate"

    def _draw(self, selected: list[ErrorImage]) -> list[ErrorImage]:
        """Draw errors, reading each image once; images that cannot be read are left out."""
        by_image = defaultdict(list)
        for error in selected:
            by_image[error.image].append(error)
        positions = {image_id: n for n, image_id in enumerate(self.dataset.image_ids)}
        drawn = {}
        for image, errors in by_image.items():
            image_id = int(self._errors.matches.truth.image_ids[image])
            try:
                pixels, _ = self.dataset[positions[image_id]]
            except DataError:
                continue
            name = self.coco_gt.imgs[image_id]["file_name"]
            for error in errors:
                source, text = jpeg(self._panels(pixels, error)), f"{error.text} ({name})"
                drawn[error] = replace(error, source=source, text=text)
        return [drawn[error] for error in selected if error in drawn]

    def _panels(self, pixels: torch.Tensor, error: ErrorImage) -> Image.Image:
        """Draw labels and detections around the detection, or the object if there is none."""
        matches, names = self._errors.matches, self.analysis.names
        threshold = self.analysis.threshold
        scores = matches.pairing.scores
        objects = np.flatnonzero(matches.truth.images == error.image)
        visible = scores >= (threshold.score if threshold else 0.5)
        detections = np.flatnonzero((matches.images == error.image) & visible)
        # The subject of the error comes first, because the first is drawn on top.
        if error.obj >= 0:
            objects = np.append(error.obj, objects[objects != error.obj])
        if error.detection >= 0:
            detections = np.append(error.detection, detections[detections != error.detection])
        assert self.results.boxes is not None
        boxes = self.results.boxes[matches.pairing.index[detections]].astype(np.float64)
        center = boxes[0] if error.detection >= 0 else matches.truth.boxes[error.obj]
        window = crop_window(center, pixels.shape[-2], pixels.shape[-1])
        object_names = [
            names[matches.object_categories[g]] if len(names) > 1 or g == error.obj else ""
            for g in objects.tolist()
        ]
        named = f"{error.category} {error.score:.2f}"
        detection_names = [named if d == error.detection else "" for d in detections.tolist()]
        left = draw_crop(
            pixels, window, matches.truth.boxes[objects], self._object_mask(error.obj),
            object_names, [_TARGET_COLOR if g == error.obj else _OBJECT_COLOR for g in objects],
        )  # fmt: skip
        right = draw_crop(
            pixels, window, boxes, self._detected_mask(error.detection), detection_names,
            [_ERROR_COLOR if d == error.detection else _DETECTION_COLOR for d in detections],
        )  # fmt: skip
        joined = Image.new("RGB", (2 * left.width + _GAP, left.height), "white")
        joined.paste(left, (0, 0))
        joined.paste(right, (left.width + _GAP, 0))
        return joined

    def _object_mask(self, obj: int) -> dict[str, Any] | None:
        masks = self._errors.matches.truth.masks
        return None if masks is None or obj < 0 else next(masks.rles(obj, obj + 1))

    def _detected_mask(self, detection: int) -> dict[str, Any] | None:
        masks = self.results.masks if self.analysis.kind == "segm" else None
        if masks is None or detection < 0:
            return None
        index = int(self._errors.matches.pairing.index[detection])
        return next(masks.rles(index, index + 1))


def _interleave(categories: np.ndarray, keys: np.ndarray, count: int) -> np.ndarray:
    """Select `count` of N entries by ascending key, taking one of each category in turn.

    Returns the indices of the entries in the order of their keys.
    """
    order = np.lexsort((keys, categories))
    starts = np.searchsorted(categories[order], categories[order])
    rank = np.arange(len(order)) - starts
    chosen = order[np.lexsort((keys[order], rank))][:count]
    return chosen[np.argsort(keys[chosen], kind="stable")]
