"""Pictures of a detector's worst mistakes: what is labelled beside what is detected."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO

from detlite.apps.drawing.crops import draw_part, window_about
from detlite.apps.drawing.page import jpeg
from detlite.data.datasets.coco import CocoDataset
from detlite.data.errors import DataError
from detlite.evaluation.results import Results

from .analysis.detection_analysis import DetectionAnalysis
from .analysis.error_types import BACKGROUND, DUPLICATE, FALSE_POSITIVE_TYPES, DetectionErrors

_GAP = 6
_OBJECT, _MEANT = (60, 200, 90), (255, 210, 40)
_DETECTION, _MISTAKE = (90, 180, 255), (255, 70, 50)


@dataclass(frozen=True)
class Mistake:
    """A picture of a mistake and what a page can choose it by.

    Attributes:
        source: a data URI: on the left what is labelled, on the right what is detected.
        category: of the detection, or of the object that was missed.
        kind: of ERROR_TYPES.
        score: of the detection; of a missed object that of the nearest detection, or 0.
        text: what is to be seen.
    """

    source: str
    category: str
    kind: str
    score: float
    text: str


@dataclass(frozen=True, eq=False)
class Gallery:
    """Where the pictures come from: a data set, the detections on it, and what is wrong with them.

    Attributes:
        results: the detections that `analysis` is about, with boxes.
        most: how many pictures of a list.
    """

    dataset: CocoDataset
    coco_gt: COCO
    results: Results
    analysis: DetectionAnalysis
    most: int

    def counts(self) -> tuple[int, int]:
        """How many wrong detections and missed objects there are, shown or not."""
        return len(self._wrong), len(self._unseen)

    def false_positives(self) -> list[Mistake]:
        """Wrong detections, the surest of each category."""
        errors, names, wrong = self._errors, self.analysis.names, self._wrong
        scores = errors.matches.pairing.scores
        chosen = _of_each(errors.matches.detection_categories[wrong], -scores[wrong], self.most)
        found = {}
        for detection in wrong[chosen].tolist():
            kind, wanted = int(errors.types[detection]), int(errors.objects[detection])
            category = names[errors.matches.detection_categories[detection]]
            text = f"{category}: {self._explained(kind, detection, wanted)}"
            found[detection] = (
                category,
                FALSE_POSITIVE_TYPES[kind],
                scores[detection],
                text,
                wanted,
            )
        return self._drawn(found, errors.matches.images)

    def misses(self) -> list[Mistake]:
        """Objects that nothing found, the largest of each category."""
        errors, names = self._errors, self.analysis.names
        matches, unseen = errors.matches, self._unseen
        areas = matches.truth.areas
        chosen = _of_each(matches.object_categories[unseen], -areas[unseen], self.most)
        detections, objects = matches.pairing.pairs()
        found = {}
        for wanted in unseen[chosen].tolist():
            category = names[matches.object_categories[wanted]]
            own = np.flatnonzero(objects == wanted)
            own = own[matches.overlaps[own] > 0]
            score, near = 0.0, "nothing is detected there"
            if len(own):
                nearest = own[matches.overlaps[own].argmax()]
                detection = int(detections[nearest])
                score = float(matches.pairing.scores[detection])
                near = (
                    f"nearest is {names[matches.detection_categories[detection]]} {score:.2f}, "
                    f"overlap {100 * matches.overlaps[nearest]:.0f} %"
                )
            text = f"{category} of {areas[wanted]:.0f} px²: {near}"
            found[-1 - wanted] = (category, "missed", score, text, wanted)
        return self._drawn(found, matches.truth.images)

    @property
    def _wrong(self) -> np.ndarray:
        return np.flatnonzero(self._errors.types >= 0)

    @property
    def _unseen(self) -> np.ndarray:
        return np.flatnonzero((self._errors.found_by < 0) & ~self._errors.matches.truth.crowd)

    @property
    def _errors(self) -> DetectionErrors:
        assert self.analysis.errors is not None
        return self.analysis.errors

    def _explained(self, kind: int, detection: int, wanted: int) -> str:
        matches, names = self._errors.matches, self.analysis.names
        if kind == BACKGROUND:
            mask = self._mask_detected(detection)
            empty = mask is not None and not rle_codec.area(mask)
            return "its mask is empty" if empty else "meets nothing labelled"
        if wanted < 0:
            return "wrong name, and off its place"
        if kind == DUPLICATE:
            return "found already by a surer detection"
        if matches.object_categories[wanted] != matches.detection_categories[detection]:
            return f"labelled {names[matches.object_categories[wanted]]}"
        return "off its place"

    def _drawn(self, found: dict[int, Any], images: np.ndarray) -> list[Mistake]:
        """Draws mistakes by detection, or by -1 - object, picture by picture, each read once."""
        by_image = defaultdict(list)
        for key in found:
            by_image[int(images[key if key >= 0 else -1 - key])].append(key)
        numbers = {image_id: n for n, image_id in enumerate(self.dataset.image_ids)}
        drawn: dict[int, Mistake] = {}
        for image, keys in by_image.items():
            image_id = int(self._errors.matches.truth.image_ids[image])
            try:
                pixels, _ = self.dataset[numbers[image_id]]
            except DataError:  # changed since it was measured
                continue
            name = self.coco_gt.imgs[image_id]["file_name"]
            scene = self._scene(image)
            for key in keys:
                category, kind, score, text, wanted = found[key]
                drawn[key] = Mistake(
                    source=jpeg(self._panels(pixels, scene, max(key, -1), wanted)),
                    category=category, kind=kind, score=float(score), text=f"{text} ({name})",
                )  # fmt: skip
        return [drawn[key] for key in found if key in drawn]

    def _scene(self, image: int) -> tuple[np.ndarray, np.ndarray]:
        """The objects, and the detections worth showing, of an image."""
        matches, threshold = self._errors.matches, self.analysis.threshold
        objects = np.flatnonzero(matches.truth.images == image)
        shown = matches.pairing.scores >= (threshold.score if threshold else 0.5)
        return objects, np.flatnonzero((matches.images == image) & shown)

    def _panels(
        self,
        pixels: torch.Tensor,
        scene: tuple[np.ndarray, np.ndarray],
        detection: int,
        wanted: int,
    ) -> Image.Image:
        """What is labelled beside what is detected, about the detection, or else the object."""
        matches, names = self._errors.matches, self.analysis.names
        objects, detections = scene  # what it is about goes first: on top
        if wanted >= 0:
            objects = np.append(wanted, objects[objects != wanted])
        if detection >= 0:
            detections = np.append(detection, detections[detections != detection])
        assert self.results.boxes is not None
        found = self.results.boxes[matches.pairing.index[detections]].astype(np.float64)
        centre = found[0] if detection >= 0 else matches.truth.boxes[wanted]
        window = window_about(centre, pixels.shape[-2], pixels.shape[-1])
        labelled = [
            names[matches.object_categories[g]] if len(names) > 1 or g == wanted else ""
            for g in objects.tolist()
        ]
        detected = [
            f"{names[matches.detection_categories[d]]} {matches.pairing.scores[d]:.2f}"
            if d == detection
            else ""
            for d in detections.tolist()
        ]
        panels = [
            draw_part(pixels, window, matches.truth.boxes[objects], self._mask_of(wanted), labelled,
                   [_MEANT if g == wanted else _OBJECT for g in objects]),
            draw_part(pixels, window, found, self._mask_detected(detection), detected,
                   [_MISTAKE if d == detection else _DETECTION for d in detections]),
        ]  # fmt: skip
        width, height = panels[0].size
        joined = Image.new("RGB", (2 * width + _GAP, height), "white")
        for number, panel in enumerate(panels):
            joined.paste(panel, (number * (width + _GAP), 0))
        return joined

    def _mask_of(self, wanted: int) -> dict[str, Any] | None:
        masks = self._errors.matches.truth.masks
        return None if masks is None or wanted < 0 else next(masks.rles(wanted, wanted + 1))

    def _mask_detected(self, detection: int) -> dict[str, Any] | None:
        masks = self.results.masks if self.analysis.kind == "segm" else None
        if masks is None or detection < 0:
            return None
        number = int(self._errors.matches.pairing.index[detection])
        return next(masks.rles(number, number + 1))


def _of_each(categories: np.ndarray, keys: np.ndarray, most: int) -> np.ndarray:
    """The places of `most` entries [N], the lowest keys of each category in turn, by their keys."""
    order = np.lexsort((keys, categories))
    starts = np.searchsorted(categories[order], categories[order])
    turns = np.arange(len(order)) - starts
    chosen = order[np.lexsort((keys[order], turns))][:most]
    return chosen[np.argsort(keys[chosen], kind="stable")]
