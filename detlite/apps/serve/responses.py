"""JSON responses of the service: detections, and errors with advice."""

import json
from typing import Any

from detlite.evaluation.results import coco_results
from detlite.inference.images import LoadedImage
from detlite.inference.predictor import Prediction

# What the client can do, by HTTP status.
_REMEDIES = {
    404: "POST an image to /predict, or GET /, /model, /health or /metrics",
    408: "send a smaller image, or use a faster connection",
    413: "send a smaller image, or raise --max-bytes or --max-pixels of the server",
    500: "see the log of the server, and send the image again",
    503: "send it again after the number of seconds in the header Retry-After",
    504: "send it again when fewer requests wait (see /metrics), or raise --timeout of the server",
}


class Refusal(Exception):
    """A request that cannot be answered with detections.

    Attributes:
        status: the HTTP status code.
        problem: what is wrong.
        remedy: what the client can do.
    """

    def __init__(self, status: int, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.status = status
        self.problem = problem
        self.remedy = remedy or _REMEDIES.get(status, _REMEDIES[404])

    def content(self) -> dict[str, Any]:
        """Return the JSON content of the response."""
        return {"error": self.problem, "what_to_do": self.remedy, "status": self.status}


def detections_json(
    loaded: LoadedImage, prediction: Prediction, threshold: float, keypoint_center: float
) -> tuple[bytes, int]:
    """Return the JSON response to an image and the number of detections in it.

    Args:
        loaded: the image.
        prediction: of the image, with masks as RLEs.
        threshold: minimum score.
        keypoint_center: see `Convention`.
    """
    height, width = loaded.size
    count = int((prediction["scores"] >= threshold).sum())  # scores are in decreasing order
    rows = coco_results(
        0, prediction["boxes"], prediction["scores"], prediction["category_ids"],
        prediction.get("masks"), prediction.get("keypoints"), keypoint_center,
    ).to_coco(0, count)  # fmt: skip
    detections = [
        {"category": name, **{key: value for key, value in row.items() if key != "image_id"}}
        for name, row in zip(prediction["names"], rows, strict=False)
    ]
    for detection, extra in zip(detections, prediction.extra_rows(), strict=False):
        detection.update(extra)
    content = {"width": width, "height": height, "detections": detections}
    return json.dumps(content, allow_nan=False).encode(), count
