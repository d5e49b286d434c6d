"""Give objects the same id in all frames of a video, with ByteTrack.

Y. Zhang et al., ByteTrack: Multi-Object Tracking by Associating Every Detection Box, ECCV 2022. The
implementation is that of the library trackers: pip install 'detlite[video]'.
"""

import numpy as np

from detlite.config import ConfigError
from detlite.inference.predictor import Prediction


class Tracker:
    """Assigns ids to the objects of consecutive frames.

    Objects are recognized by their boxes only. A new object needs a score of 0.7 and a second
    frame.

    Args:
        frame_rate: frames per second.

    Raises:
        ConfigError: trackers is not installed.
    """

    def __init__(self, frame_rate: float) -> None:
        try:
            from supervision import Detections
            from trackers import ByteTrackTracker
        except ImportError as error:
            raise ConfigError(
                f"--track needs trackers ({error}): pip install 'detlite[video]'"
            ) from error
        self._detections_class = Detections
        self._tracker = ByteTrackTracker(frame_rate=frame_rate)

    def __call__(self, prediction: Prediction) -> list[int | None]:
        """Return the id, from 1 on, of each of N objects; None if it is not tracked yet."""
        count = len(prediction["scores"])
        detections = self._detections_class(
            xyxy=prediction["boxes"].numpy(),
            confidence=prediction["scores"].numpy(),
            class_id=prediction["labels"].numpy(),
            data={"index": np.arange(count)},
        )
        tracked = self._tracker.update(detections)  # in another order
        ids: list[int | None] = [None] * count
        if tracked.tracker_id is not None and count:
            for index, track_id in zip(tracked.data["index"], tracked.tracker_id, strict=True):
                ids[int(index)] = None if track_id < 0 else int(track_id) + 1
        return ids
