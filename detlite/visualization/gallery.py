"""Pictures of a detector's worst mistakes: what is labelled beside what is detected."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from pycocotools.coco import COCO

from ..data.coco import CocoDataset
from ..data.errors import DataError
from ..evaluation.analysis import Analysis
from ..evaluation.errors import BACKGROUND, DUPLICATE, FALSE_POSITIVES, Errors
from ..evaluation.results import Results
from ..structures.masks import to_bitmap
from .detections import Colour, draw_detections
from .page import jpeg

_SIDE = 240  # pixels of a panel
_GAP = 6
_OBJECT, _MEANT = (60, 200, 90), (255, 210, 40)
_DETECTION, _MISTAKE = (90, 180, 255), (255, 70, 50)


@dataclass(frozen=True)
class Mistake:
    """A picture of a mistake and what a page can choose it by.

    Attributes:
        source: a data URI: on the left what is labelled, on the right what is detected.
        category: of the detection, or of the object that was missed.
        kind: of KINDS.
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
    analysis: Analysis
    most: int

    def false_positives(self) -> list[Mistake]:
        """Wrong detections, the surest of each category."""
        errors, names = self._errors, self.analysis.names
        wrong = np.flatnonzero(errors.kinds >= 0)
        scores = errors.across.pairing.scores
        chosen = _of_each(errors.across.detected[wrong], -scores[wrong], self.most)
        found = {}
        for detection in wrong[chosen].tolist():
            kind, wanted = int(errors.kinds[detection]), int(errors.objects[detection])
            category = names[errors.across.detected[detection]]
            text = f"{category}: {self._explained(kind, detection, wanted)}"
            found[detection] = (category, FALSE_POSITIVES[kind], scores[detection], text, wanted)
        return self._drawn(found, errors.across.images)

    def misses(self) -> list[Mistake]:
        """Objects that nothing found, the largest of each category."""
        errors, names = self._errors, self.analysis.names
        across = errors.across
        unseen = np.flatnonzero((errors.found_by < 0) & ~across.truth.crowd)
        areas = across.truth.areas
        chosen = _of_each(across.labelled[unseen], -areas[unseen], self.most)
        detections, objects = across.pairing.pairs()
        found = {}
        for wanted in unseen[chosen].tolist():
            category = names[across.labelled[wanted]]
            own = np.flatnonzero(objects == wanted)
            own = own[across.overlaps[own] > 0]
            score, near = 0.0, "nothing is detected there"
            if len(own):
                nearest = own[across.overlaps[own].argmax()]
                detection = int(detections[nearest])
                score = float(across.pairing.scores[detection])
                near = (
                    f"nearest is {names[across.detected[detection]]} {score:.2f}, overlap "
                    f"{100 * across.overlaps[nearest]:.0f} %"
                )
            text = f"{category} of {areas[wanted]:.0f} px²: {near}"
            found[-1 - wanted] = (category, "missed", score, text, wanted)
        return self._drawn(found, across.truth.images)

    @property
    def _errors(self) -> Errors:
        assert self.analysis.errors is not None
        return self.analysis.errors

    def _explained(self, kind: int, detection: int, wanted: int) -> str:
        across, names = self._errors.across, self.analysis.names
        if kind == BACKGROUND:
            return f"{'its mask' if self.analysis.kind == 'segm' else 'it'} meets nothing labelled"
        if wanted < 0:
            return "wrong name, and off its place"
        if kind == DUPLICATE:
            return "found already by a surer detection"
        if across.labelled[wanted] != across.detected[detection]:
            return f"labelled {names[across.labelled[wanted]]}"
        return "off its place"

    def _drawn(self, found: dict[int, Any], images: np.ndarray) -> list[Mistake]:
        """Draws mistakes by detection, or by -1 - object, picture by picture, each read once."""
        by_image = defaultdict(list)
        for key in found:
            by_image[int(images[key if key >= 0 else -1 - key])].append(key)
        numbers = {image_id: n for n, image_id in enumerate(self.dataset.image_ids)}
        drawn: dict[int, Mistake] = {}
        for image, keys in by_image.items():
            image_id = int(self._errors.across.truth.image_ids[image])
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
        across, threshold = self._errors.across, self.analysis.threshold
        objects = np.flatnonzero(across.truth.images == image)
        shown = across.pairing.scores >= (threshold.score if threshold else 0.5)
        return objects, np.flatnonzero((across.images == image) & shown)

    def _panels(
        self,
        pixels: torch.Tensor,
        scene: tuple[np.ndarray, np.ndarray],
        detection: int,
        wanted: int,
    ) -> Image.Image:
        """What is labelled beside what is detected, about the detection, or else the object."""
        across, names = self._errors.across, self.analysis.names
        objects, detections = scene  # what it is about goes first: on top
        if wanted >= 0:
            objects = np.append(wanted, objects[objects != wanted])
        if detection >= 0:
            detections = np.append(detection, detections[detections != detection])
        assert self.results.boxes is not None
        found = self.results.boxes[across.pairing.index[detections]].astype(np.float64)
        centre = found[0] if detection >= 0 else across.truth.boxes[wanted]
        window = _window(centre, pixels.shape[-2], pixels.shape[-1])
        several = len(names) > 1
        labelled = [
            names[across.labelled[g]] if several or g == wanted else "" for g in objects.tolist()
        ]
        detected = [
            f"{names[across.detected[d]]} {across.pairing.scores[d]:.2f}" if d == detection else ""
            for d in detections.tolist()
        ]
        panels = [
            _panel(pixels, window, across.truth.boxes[objects], self._mask_of(wanted), labelled,
                   [_MEANT if g == wanted else _OBJECT for g in objects]),
            _panel(pixels, window, found, self._mask_detected(detection), detected,
                   [_MISTAKE if d == detection else _DETECTION for d in detections]),
        ]  # fmt: skip
        width, height = panels[0].size
        joined = Image.new("RGB", (2 * width + _GAP, height), "white")
        for number, panel in enumerate(panels):
            joined.paste(panel, (number * (width + _GAP), 0))
        return joined

    def _mask_of(self, wanted: int) -> dict[str, Any] | None:
        masks = self._errors.across.truth.masks
        return None if masks is None or wanted < 0 else next(masks.rles(wanted, wanted + 1))

    def _mask_detected(self, detection: int) -> dict[str, Any] | None:
        masks = self.results.masks if self.analysis.kind == "segm" else None
        if masks is None or detection < 0:
            return None
        number = int(self._errors.across.pairing.index[detection])
        return next(masks.rles(number, number + 1))


def _of_each(categories: np.ndarray, keys: np.ndarray, most: int) -> np.ndarray:
    """The places of `most` entries [N], the lowest keys of each category in turn, by their keys."""
    order = np.lexsort((keys, categories))
    starts = np.searchsorted(categories[order], categories[order])
    turns = np.arange(len(order)) - starts
    chosen = order[np.lexsort((keys[order], turns))][:most]
    return chosen[np.argsort(keys[chosen], kind="stable")]


def _window(box: np.ndarray, height: int, width: int) -> tuple[int, int, int, int]:
    """What of a picture is shown about a box xywh: (left, top, right, bottom)."""
    x, y, w, h = box.tolist()
    side = min(max(2.2 * max(w, h), 64), max(height, width))
    left = min(max(x + w / 2 - side / 2, 0), max(width - side, 0))
    top = min(max(y + h / 2 - side / 2, 0), max(height - side, 0))
    right, bottom = min(left + side, width), min(top + side, height)
    return int(left), int(top), max(int(right), int(left) + 1), max(int(bottom), int(top) + 1)


def _panel(
    pixels: torch.Tensor,
    window: tuple[int, int, int, int],
    boxes: np.ndarray,
    mask: dict[str, Any] | None,
    texts: list[str],
    colours: list[Colour],
) -> Image.Image:
    """A part of a picture with boxes xywh [N, 4] drawn into it, and the mask of the first, of the
    whole picture: masks of all would hide what there is."""
    left, top, right, bottom = window
    part = Image.fromarray(pixels[:, top:bottom, left:right].permute(1, 2, 0).numpy())
    factor = _SIDE / max(part.size)
    part = part.resize((max(1, round(part.width * factor)), max(1, round(part.height * factor))),
                       Image.Resampling.BICUBIC)  # fmt: skip
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    corners = (corners - [left, top, left, top]) * factor
    seen = ((corners[:, 2:] > 0) & (corners[:, :2] < part.size)).all(axis=1)
    kept = np.flatnonzero(seen).tolist()
    drawn: dict[str, Any] = {
        "boxes": torch.tensor(corners[kept], dtype=torch.float32).reshape(-1, 4),
        "labels": torch.arange(1, len(kept) + 1),
    }
    if mask is not None and 0 in kept:
        inside = to_bitmap(mask, *pixels.shape[-2:])[top:bottom, left:right] * np.uint8(255)
        resized = Image.fromarray(inside).resize(part.size, Image.Resampling.BILINEAR)
        bitmap = torch.from_numpy(np.asarray(resized) >= 128)
        drawn["masks"] = [bitmap if n == 0 else torch.zeros_like(bitmap) for n in kept]
    categories = [{"id": n, "name": texts[n]} for n in kept]
    return draw_detections(part, drawn, categories, min_side=1, colours=[colours[n] for n in kept])
