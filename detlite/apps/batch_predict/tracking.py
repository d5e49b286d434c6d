"""Ids that objects keep from frame to frame, by ByteTrack.

Y. Zhang et al., ByteTrack: Multi-Object Tracking by Associating Every Detection Box, ECCV 2022. By
the library trackers, where supervision's has moved: pip install 'detlite[video]'.
"""

from __future__ import annotations

import numpy as np

from detlite.config import ConfigError
from detlite.inference.predictor import Prediction


class Tracker:
    """Gives the objects of one frame after the other their ids.

    Objects are known again by their boxes alone. A new one needs a score of 0.7 and a second frame.

    Args:
        rate: frames a second.

    Raises:
        ConfigError: trackers is not installed.
    """

    def __init__(self, rate: float) -> None:
        try:
            from supervision import Detections
            from trackers import ByteTrackTracker
        except ImportError as error:
            raise ConfigError(
                f"--track needs trackers ({error}): pip install 'detlite[video]'"
            ) from error
        self._detections = Detections
        self._tracker = ByteTrackTracker(frame_rate=rate)

    def __call__(self, found: Prediction) -> list[int | None]:
        """An id, from 1 on, for each of N objects; None of one that is not followed yet."""
        count = len(found["scores"])
        given = self._detections(
            xyxy=found["boxes"].numpy(),
            confidence=found["scores"].numpy(),
            class_id=found["labels"].numpy(),
            data={"place": np.arange(count)},
        )
        followed = self._tracker.update(given)  # in an order of its own
        ids: list[int | None] = [None] * count
        if followed.tracker_id is not None and count:
            for place, track in zip(followed.data["place"], followed.tracker_id, strict=True):
                ids[int(place)] = None if track < 0 else int(track) + 1
        return ids
