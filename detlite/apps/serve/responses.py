"""What the service says: detections as json, and refusals with what to do about them."""

from __future__ import annotations

import json
from typing import Any

from detlite.evaluation.results import coco_results
from detlite.inference.images import LoadedImage
from detlite.inference.predictor import Prediction


class Refusal(Exception):
    """A request that gets no detections.

    Attributes:
        status: of HTTP.
        problem: what is wrong, in a sentence.
        remedy: what to do, in a sentence.
    """

    def __init__(self, status: int, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.status = status
        self.problem = problem
        self.remedy = remedy

    def content(self) -> dict[str, Any]:
        """The json of the answer."""
        return {"error": self.problem, "what_to_do": self.remedy, "status": self.status}


def detections_json(
    loaded: LoadedImage, found: Prediction, threshold: float, keypoint_center: float
) -> tuple[bytes, int]:
    """The answer to a picture, and the number of detections in it.

    Args:
        loaded: the picture.
        found: its prediction, masks as RLEs.
        threshold: the lowest score.
        keypoint_center: see `Convention`.
    """
    height, width = loaded.size
    count = int((found["scores"] >= threshold).sum())  # they come first
    rows = coco_results(
        0, found["boxes"], found["scores"], found["category_ids"], found.get("masks"),
        found.get("keypoints"), keypoint_center,
    ).to_coco(0, count)  # fmt: skip
    detections = [
        {"category": name, **{key: value for key, value in row.items() if key != "image_id"}}
        for name, row in zip(found["names"], rows, strict=False)
    ]
    content = {"width": width, "height": height, "detections": detections}
    return json.dumps(content, allow_nan=False).encode(), count
