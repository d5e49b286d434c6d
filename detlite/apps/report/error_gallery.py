"""Images of a detector's errors: labels on the left, detections on the right."""

import math
from typing import Any

import numpy as np
import torch

from detlite.apps.drawing.detections import Color
from detlite.apps.drawing.html_page import Mark, crop_window, draw_window, join_images, jpeg
from detlite.files.errors import DataError

from .analysis.error_types import CLASSIFICATION, CORRECT, ERROR_TYPES
from .runs import RunAnalysis

_OBJECT_COLOR, _TARGET_COLOR = (240, 240, 240), (255, 210, 40)
_DETECTION_COLOR, _ERROR_COLOR = (70, 170, 255), (255, 70, 50)
_EXAMPLE_SIDE = 520  # square root of the area of an example in pixels
_MAX_ASPECT = 8  # above which examples have a smaller area
_CROWD = 12  # examples with more objects have tags only where there is room

TemplateData = dict[str, Any]


class ErrorGallery:
    """Draws the errors of a run on a dataset: errors of masks or, without masks, of boxes.

    Attributes:
        max_images: maximum number of drawn false positives, and of drawn missed objects.
        counts: number of all false positives, and of all missed objects.
    """

    def __init__(self, analyzed: RunAnalysis, max_images: int) -> None:
        self.analysis = analysis = analyzed.analyses.get("segm") or analyzed.analyses["bbox"]
        assert analysis.errors is not None
        self.run, self.max_images, self._errors = analyzed, max_images, analysis.errors
        self._matches = matches = analysis.errors.matches
        self._indices = {number: n for n, number in enumerate(analyzed.dataset.image_ids)}
        threshold = analysis.threshold.score if analysis.threshold else 0.5
        self._visible = matches.scores >= threshold
        self._false_positives = np.flatnonzero(self._errors.types >= 0)
        self._undetected = np.flatnonzero((self._errors.found_by < 0) & ~matches.crowd)
        self.counts = len(self._false_positives), len(self._undetected)
        names = np.array(analysis.names, dtype=object)
        self._several = len(names) > 1
        self._detection_names = names[matches.categories]
        self._object_names = names[matches.object_categories]

    def false_positives(self) -> list[TemplateData]:
        """Draw the highest-scoring false positives of each category.

        Returns:
            For each, the values by which the page filters: the name of the `run`, the `category` of
            the detection or missed object, the `kind`, one of ERROR_TYPES, and the `score`, that
            of the nearest detection for a missed object; a `text`, and the `source`, a data URI.
            Those of images that cannot be read are left out.
        """
        matches, drawn = self._matches, []
        for n in self._choose(self._false_positives, matches.categories, -matches.scores):
            kind, obj = ERROR_TYPES[self._errors.types[n]], int(self._errors.objects[n])
            category, labeled = self._detection_names[n], ""
            if kind == ERROR_TYPES[CLASSIFICATION]:
                labeled = f", labeled {self._object_names[obj]}"
            score = float(matches.scores[n])
            drawn.append(self._draw(kind, n, obj, category, score, category + labeled))
        return [error for error in drawn if error]

    def missed_objects(self) -> list[TemplateData]:
        """Draw the largest objects of each category that have no detection, as false positives."""
        matches, drawn = self._matches, []
        areas = np.array([row["area"] for row in matches.rows])
        for obj in self._choose(self._undetected, matches.object_categories, -areas):
            pairs = np.flatnonzero((matches.objects == obj) & (matches.overlaps > 0))
            score, nearest = 0.0, "no detection there"
            if len(pairs):
                pair = pairs[matches.overlaps[pairs].argmax()]
                n, overlap = matches.detections[pair], matches.overlaps[pair]
                score = float(matches.scores[n])
                name = self._detection_names[n]
                nearest = f"nearest is {name} {score:.2f}, IoU {100 * overlap:.0f} %"
            category = self._object_names[obj]
            text = f"{category} of {areas[obj]:.0f} px²: {nearest}"
            drawn.append(self._draw("missed", -1, obj, category, score, text))
        return [error for error in drawn if error]

    def _choose(self, indices: np.ndarray, categories: np.ndarray, keys: np.ndarray) -> list[int]:
        """Choose `max_images` of the indices, one of each category in turn, by increasing key."""
        order = indices[np.lexsort((keys[indices], categories[indices]))]
        ranks = np.arange(len(order)) - np.searchsorted(categories[order], categories[order])
        chosen = order[np.lexsort((keys[order], ranks))][: self.max_images]
        return list(chosen[np.argsort(keys[chosen], kind="stable")].tolist())

    def examples(self, count: int) -> list[TemplateData]:
        """Draw images with the outcome of all objects, from the best to the worst detected image.

        Detections below the recommended threshold do not count. Without such a threshold, there are
        no correct detections.

        Returns:
            For each image, the `file`, the numbers of `right` and `wrong` detections and `missed`
            objects, the `aspect` of width and height, and the `source`, a data URI.
        """
        matches, images = self._matches, len(self._matches.image_ids)
        detected = self._visible & (self._errors.types >= CORRECT)
        right = detected & (self._errors.types == CORRECT)
        missed = ~matches.crowd
        missed[self._errors.objects[right]] = False
        places = {"right": matches.images[right], "wrong": matches.images[detected & ~right],
                  "missed": matches.object_images[missed]}  # fmt: skip
        counts = {name: np.bincount(one, minlength=images) for name, one in places.items()}
        labeled = np.flatnonzero(counts["right"] + counts["missed"])
        errors = counts["wrong"] + counts["missed"]
        f1 = 2 * counts["right"] / np.maximum(2 * counts["right"] + errors, 1)
        ranked = labeled[np.argsort(-f1[labeled], kind="stable")]
        chosen = np.unique(np.linspace(0, len(ranked) - 1, min(count, len(ranked))).round())
        examples = []
        for image in ranked[chosen.astype(int)].tolist():
            file, pixels = self._read(image)
            if pixels is None:
                continue
            marks = []
            for obj in np.flatnonzero(missed & (matches.object_images == image)).tolist():
                text = f"missed {self._object_names[obj]}" if self._several else "missed"
                marks.append(self._object_mark(obj, text, _TARGET_COLOR))
            for n in np.flatnonzero(detected & (matches.images == image)).tolist():
                name = f"{self._detection_names[n]} " if self._several else ""
                color = _DETECTION_COLOR if right[n] else _ERROR_COLOR
                marks.append(self._detection_mark(n, f"{name}{matches.scores[n]:.2f}", color))
            height, width = pixels.shape[-2:]
            aspect = min(max(width / height, height / width), _MAX_ASPECT)
            side, tags = round(_EXAMPLE_SIDE * math.sqrt(aspect)), len(marks) <= _CROWD or None
            drawn = draw_window(pixels, (0, 0, width, height), marks, side, tags)
            numbers = {name: int(numbers[image]) for name, numbers in counts.items()}
            shown = {"aspect": drawn.width / drawn.height, "source": jpeg(drawn)}
            examples.append({"file": file, **numbers, **shown})
        return examples

    def _read(self, image: int) -> tuple[str, torch.Tensor | None]:
        """Return the file name of an image and its pixels; None if it cannot be read."""
        image_id = int(self._matches.image_ids[image])
        file = self.run.coco_gt.imgs[image_id]["file_name"]
        try:
            return file, self.run.dataset[self._indices[image_id]][0]
        except DataError:
            return file, None

    def _draw(
        self, kind: str, detection: int, obj: int, category: str, score: float, text: str
    ) -> TemplateData | None:
        """Draw labels and detections around a detection, or around an object if it is -1."""
        matches = self._matches
        image = matches.images[detection] if detection >= 0 else matches.object_images[obj]
        file, pixels = self._read(image)
        if pixels is None:
            return None
        objects = np.flatnonzero(matches.object_images == image)
        visible = self._visible | (np.arange(len(self._visible)) == detection)
        detections = np.flatnonzero(visible & (matches.images == image))
        # The object and detection of the error come first, because the first is drawn on top.
        left = [
            self._object_mark(
                n, self._object_names[n] if self._several else "",
                _TARGET_COLOR if n == obj else _OBJECT_COLOR, with_mask=n == obj,
            )
            for n in sorted(objects.tolist(), key=lambda n: n != obj)
        ]  # fmt: skip
        right = [
            self._detection_mark(
                n, f"{category} {score:.2f}" if n == detection else "",
                _ERROR_COLOR if n == detection else _DETECTION_COLOR, with_mask=n == detection,
            )
            for n in sorted(detections.tolist(), key=lambda n: n != detection)
        ]  # fmt: skip
        window = crop_window((right if detection >= 0 else left)[0].box, *pixels.shape[-2:])
        drawn = join_images([[draw_window(pixels, window, marks) for marks in (left, right)]])
        return {"run": self.run.run.name, "category": category, "kind": kind, "score": score,
                "text": f"{text} ({file})", "source": jpeg(drawn)}  # fmt: skip

    def _detection_mark(self, n: int, text: str, color: Color, with_mask: bool = True) -> Mark:
        index, results = int(self._matches.index[n]), self.run.results
        assert results.boxes is not None
        mask = None
        if with_mask and self.analysis.kind == "segm" and results.masks is not None:
            (mask,) = results.masks.rles(index, index + 1)
        return Mark(results.boxes[index].tolist(), text, color, mask)

    def _object_mark(self, obj: int, text: str, color: Color, with_mask: bool = True) -> Mark:
        row, mask = self._matches.rows[obj], None
        if with_mask and self.analysis.kind == "segm":
            mask = self.run.coco_gt.annToRLE(row)
        return Mark(row["bbox"], text, color, mask)
