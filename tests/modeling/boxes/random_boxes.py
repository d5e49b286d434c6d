"""Random boxes and padded ground truth for tests."""

import torch
from torch import Tensor

from detlite.structures.instances import GroundTruth


def random_boxes(count: int, extent: float = 30.0, min_side: float = 5.0) -> Tensor:
    """Return xyxy boxes [count, 4] with corners in 0..extent and sides up to extent longer."""
    corner = torch.rand(count, 2) * extent
    return torch.cat([corner, corner + min_side + torch.rand(count, 2) * extent], dim=1)


def ground_truth(*boxes: Tensor) -> GroundTruth:
    """Return the boxes of each image with label 1, padded."""
    length = max(1, *map(len, boxes))
    padded = torch.zeros(len(boxes), length, 4)
    labels = torch.zeros(len(boxes), length, dtype=torch.int64)
    for image, own in enumerate(boxes):
        padded[image, : len(own)] = own
        labels[image, : len(own)] = 1
    return GroundTruth(padded, labels)
