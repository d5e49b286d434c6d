"""Keypoints from heat maps."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torchvision.models.detection.roi_heads import heatmaps_to_keypoints

from .. import ops
from .case import Case, cases
from .inputs import boxes_between


@cases
def keypoint_cases(device: str) -> Iterator[Case]:
    """17 heat maps of 56 x 56 for each of 20 boxes of 20 to 400 pixels."""
    boxes = boxes_between(20, 20, 400, device)
    maps = torch.randn(20, 17, 56, 56, device=device)
    yield Case(
        "heatmap_peaks_20x17",
        "float32",
        lambda: ops.heatmap_peaks(maps, boxes),
        lambda: heatmaps_to_keypoints(maps, boxes),
    )
