"""Images of a detector's errors: labels on the left, detections on the right."""

import math
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from PIL import Image
from pycocotools import mask as rle_codec

from detlite.apps.drawing.html_page import crop_window, draw_window, jpeg, side_by_side
from detlite.files.errors import DataError

from .analysis.error_types import BACKGROUND, DUPLICATE, FALSE_POSITIVE_TYPES, TRUE_POSITIVE
from .runs import RunAnalysis

_OBJECT_COLOR, _TARGET_COLOR = (240, 240, 240), (255, 210, 40)
_DETECTION_COLOR, _ERROR_COLOR = (70, 170, 255), (255, 70, 50)
_EXAMPLE_SIDE = 520  # square root of the area of an example in pixels
_MAX_ASPECT = 8  # above which examples have a smaller area
_CROWD = 12  # examples with more objects have tags only where there is room


@dataclass
class ErrorImage:
    """An error, with the properties that the page filters by."""

    run: str
    detection: int  # index of the detection, or -1
    obj: int  # index of the object, or -1
    image: int  # index of the image
    category: str  # of the detection or the missed object
    kind: str  # one of ERROR_TYPES
    score: float  # of the detection, or of the detection nearest to a missed object (0 if none)
    text: str
    source: str = ""  # data URI of the drawn image


@dataclass
class Example:
    """An image with the outcome of all its objects and detections."""

    file: str
    right: int
    wrong: int
    missed: int
    aspect: float  # width / height
    source: str  # data URI of the drawn image


class ErrorGallery:
    """Draws the errors of a run on a dataset: errors of masks or, without masks, of boxes.

    Attributes:
        max_images: maximum number of drawn false positives, and of drawn missed objects.
        counts: number of all false positives, and of all missed objects.
    """

    def __init__(self, analyzed: RunAnalysis, max_images: int) -> None:
        self.analysis = analysis = analyzed.analyses.get("segm") or analyzed.analyses["bbox"]
        assert analysis.errors is not None
        self.run, self.dataset = analyzed.run.name, analyzed.dataset
        self.coco_gt, self.results = analyzed.coco_gt, analyzed.results
        self.max_images, self._errors = max_images, analysis.errors
        self._matches = matches = analysis.errors.matches
        self._indices = {number: n for n, number in enumerate(self.dataset.image_ids)}
        threshold = analysis.threshold.score if analysis.threshold else 0.5
        self._visible = matches.scores >= threshold
        self._false_positives = np.flatnonzero(self._errors.types >= 0)
        self._undetected = np.flatnonzero((self._errors.found_by < 0) & ~matches.crowd)
        self.counts = len(self._false_positives), len(self._undetected)
        names = np.array(analysis.names, dtype=object)
        self._detection_names = names[matches.categories]
        self._object_names = names[matches.object_categories]

    def false_positives(self) -> list[ErrorImage]:
        """Draw the highest-scoring false positives of each category."""
        matches, indices = self._matches, self._false_positives
        scores = matches.scores
        selected = []
        categories = matches.categories[indices]
        for n in indices[_interleave(categories, -scores[indices], self.max_images)].tolist():
            kind, obj = int(self._errors.types[n]), int(self._errors.objects[n])
            image, category = int(matches.images[n]), self._detection_names[n]
            text = f"{category}: {self._describe(kind, n, obj)}"
            result = FALSE_POSITIVE_TYPES[kind], float(scores[n]), text
            selected.append(ErrorImage(self.run, n, obj, image, category, *result))
        return self._draw(selected)

    def missed_objects(self) -> list[ErrorImage]:
        """Draw the largest objects of each category that have no detection."""
        matches, indices = self._matches, self._undetected
        areas = np.array([row["area"] for row in matches.rows])
        detections, objects = matches.detections, matches.objects
        selected = []
        categories = matches.object_categories[indices]
        for obj in indices[_interleave(categories, -areas[indices], self.max_images)].tolist():
            pairs = np.flatnonzero((objects == obj) & (matches.overlaps > 0))
            score, nearest = 0.0, "no detection there"
            if len(pairs):
                pair = pairs[matches.overlaps[pairs].argmax()]
                score = float(matches.scores[detections[pair]])
                nearest = (
                    f"nearest is {self._detection_names[detections[pair]]} {score:.2f}, "
                    f"IoU {100 * matches.overlaps[pair]:.0f} %"
                )
            category, image = self._object_names[obj], int(matches.object_images[obj])
            text = f"{category} of {areas[obj]:.0f} px²: {nearest}"
            selected.append(ErrorImage(self.run, -1, obj, image, category, "missed", score, text))
        return self._draw(selected)

    def _describe(self, kind: int, detection: int, obj: int) -> str:
        if kind == BACKGROUND:
            mask = self._mask(detection)
            empty = mask is not None and not rle_codec.area(mask)
            return "its mask is empty" if empty else "no label there"
        if obj < 0:
            return "wrong category and inaccurate"
        if kind == DUPLICATE:
            return "duplicate of a detection with a higher score"
        if self._matches.object_categories[obj] != self._matches.categories[detection]:
            return f"labeled {self._object_names[obj]}"
        return "inaccurate"

    def examples(self, count: int) -> list[Example]:
        """Draw images with objects, from the best to the worst detected one.

        Detections below the recommended threshold do not count. Without such a threshold, there are
        no correct detections.
        """
        matches, images = self._matches, len(self._matches.image_ids)
        detected = self._visible & (self._errors.types >= TRUE_POSITIVE)
        right = detected & (self._errors.types == TRUE_POSITIVE)
        missed = ~matches.crowd
        missed[self._errors.objects[right]] = False
        numbers = np.stack([
            np.bincount(image, minlength=images)
            for image in (matches.images[right], matches.images[detected & ~right],
                          matches.object_images[missed])
        ])  # fmt: skip
        labeled = np.flatnonzero(numbers[0] + numbers[2])
        f1 = 2 * numbers[0] / np.maximum(2 * numbers[0] + numbers[1] + numbers[2], 1)
        ranked = labeled[np.argsort(-f1[labeled], kind="stable")]
        chosen = np.unique(np.linspace(0, len(ranked) - 1, min(count, len(ranked))).round())
        examples = []
        for image in ranked[chosen.astype(int)].tolist():
            image_id = int(matches.image_ids[image])
            try:
                pixels, _ = self.dataset[self._indices[image_id]]
            except DataError:
                continue
            drawn = self._draw_outcomes(pixels, image, detected, right, missed)
            file = self.coco_gt.imgs[image_id]["file_name"]
            hits, errors, misses = numbers[:, image].tolist()
            aspect = drawn.width / drawn.height
            examples.append(Example(file, hits, errors, misses, aspect, jpeg(drawn)))
        return examples

    def _draw_outcomes(
        self,
        pixels: torch.Tensor,
        image: int,
        detected: np.ndarray,
        right: np.ndarray,
        missed: np.ndarray,
    ) -> Image.Image:
        """Draw the detections of an image and its missed objects, which are bool [D] and [G]."""
        matches = self._matches
        objects = np.flatnonzero(missed & (matches.object_images == image)).tolist()
        detections = np.flatnonzero(detected & (matches.images == image)).tolist()
        several = len(self.analysis.names) > 1
        texts, colors = [], []
        for obj in objects:
            texts.append(f"missed {self._object_names[obj]}" if several else "missed")
            colors.append(_TARGET_COLOR)
        for n in detections:
            score = f"{matches.scores[n]:.2f}"
            texts.append(f"{self._detection_names[n]} {score}" if several else score)
            colors.append(_DETECTION_COLOR if right[n] else _ERROR_COLOR)
        height, width = pixels.shape[-2:]
        aspect = min(max(width / height, height / width), _MAX_ASPECT)
        points = self.results.keypoints
        if points is not None:  # in pixel indices; those of missed objects are not drawn
            found = points[matches.index[detections]] + [0.5, 0.5, 0]
            points = np.concatenate([np.zeros((len(objects), *points.shape[1:])), found])
        return draw_window(
            pixels, (0, 0, width, height),
            np.concatenate([self._object_boxes(objects), self._boxes(detections)]),
            [*(self._object_mask(g) for g in objects), *map(self._mask, detections)],
            texts, colors, round(_EXAMPLE_SIDE * math.sqrt(aspect)),
            None if len(texts) > _CROWD else True, points,
        )  # fmt: skip

    def _draw(self, errors: list[ErrorImage]) -> list[ErrorImage]:
        """Draw errors, reading each image once; images that cannot be read are skipped."""
        by_image = sorted(errors, key=lambda error: error.image)
        for image, group in groupby(by_image, lambda error: error.image):
            image_id = int(self._matches.image_ids[image])
            try:
                pixels, _ = self.dataset[self._indices[image_id]]
            except DataError:
                continue
            for error in group:
                error.source = jpeg(self._panels(pixels, error))
                error.text += f" ({self.coco_gt.imgs[image_id]['file_name']})"
        return [error for error in errors if error.source]

    def _panels(self, pixels: torch.Tensor, error: ErrorImage) -> Image.Image:
        """Draw labels and detections around the detection, or the object if there is none."""
        matches = self._matches
        objects = np.flatnonzero(matches.object_images == error.image)
        detections = np.flatnonzero((matches.images == error.image) & self._visible)
        # The object and detection of the error come first, because the first is drawn on top.
        if error.obj >= 0:
            objects = np.append(error.obj, objects[objects != error.obj])
        if error.detection >= 0:
            detections = np.append(error.detection, detections[detections != error.detection])
        boxes = self._boxes(detections)
        center = boxes[0] if error.detection >= 0 else np.array(matches.rows[error.obj]["bbox"])
        window = crop_window(center, pixels.shape[-2], pixels.shape[-1])
        several = len(self.analysis.names) > 1
        left = draw_window(
            pixels, window, self._object_boxes(objects),
            [self._object_mask(error.obj) if g == error.obj else None for g in objects],
            [self._object_names[g] if several or g == error.obj else "" for g in objects],
            [_TARGET_COLOR if g == error.obj else _OBJECT_COLOR for g in objects],
        )  # fmt: skip
        named = f"{error.category} {error.score:.2f}"
        right = draw_window(
            pixels, window, boxes,
            [self._mask(error.detection) if d == error.detection else None for d in detections],
            [named if d == error.detection else "" for d in detections],
            [_ERROR_COLOR if d == error.detection else _DETECTION_COLOR for d in detections],
        )  # fmt: skip
        return side_by_side([left, right])

    def _boxes(self, detections: np.ndarray | list[int]) -> np.ndarray:
        """Return boxes [N, 4] xywh."""
        assert self.results.boxes is not None
        return self.results.boxes[self._matches.index[detections]].astype(np.float64)

    def _mask(self, detection: int) -> dict[str, Any] | None:
        masks = self.results.masks
        if self.analysis.kind != "segm" or masks is None or detection < 0:
            return None
        index = int(self._matches.index[detection])
        return next(masks.rles(index, index + 1))

    def _object_boxes(self, objects: np.ndarray | list[int]) -> np.ndarray:
        """Return boxes [N, 4] xywh."""
        rows = [self._matches.rows[g]["bbox"] for g in objects]
        return np.array(rows, np.float64).reshape(-1, 4)

    def _object_mask(self, obj: int) -> dict[str, Any] | None:
        if self.analysis.kind != "segm" or obj < 0:
            return None
        return dict(self.coco_gt.annToRLE(self._matches.rows[obj]))


def _interleave(categories: np.ndarray, keys: np.ndarray, count: int) -> np.ndarray:
    """Select `count` of N entries, one of each category in turn, in the order of increasing keys.

    Returns the indices of the selected entries, sorted by key.
    """
    order = np.lexsort((keys, categories))
    starts = np.searchsorted(categories[order], categories[order])
    rank = np.arange(len(order)) - starts
    chosen = order[np.lexsort((keys[order], rank))][:count]
    return chosen[np.argsort(keys[chosen], kind="stable")]
