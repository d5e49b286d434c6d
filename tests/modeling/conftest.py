"""Images and targets for whole models."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

Batch = tuple[list[Tensor], list[dict[str, Any]]]


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    """`make_batch(2, 0, 1)`: three images of different sizes with 2, 0 and 1 bright rectangles.

    The targets have three keypoints per object, and proposals for models without an RPN.
    """

    def make(*counts: int) -> Batch:
        images, targets = [], []
        for index, count in enumerate(counts):
            height, width = 64 + 8 * index, 96 - 8 * index
            image = torch.randint(0, 60, (3, height, width), dtype=torch.uint8)
            boxes = torch.zeros(count, 4)
            masks = torch.zeros(count, height, width, dtype=torch.uint8)
            for n in range(count):
                x1, y1 = 4 + 30 * (n % 2), 6 + 28 * (n // 2)
                x2, y2 = x1 + 22 + n, y1 + 20 - n
                image[:, y1:y2, x1:x2] += torch.tensor([[[180]], [[90 * (n % 2)]], [[0]]]).byte()
                masks[n, y1:y2, x1:x2] = 1
                boxes[n] = torch.tensor([x1, y1, x2, y2])
            images.append(image)
            labels = torch.arange(count) % 3 + 1
            corners = torch.tensor([[4.0, 4], [8, 6], [12, 10]])
            points = torch.cat(
                [boxes[:, None, :2] + corners, torch.full((count, 3, 1), 2.0)], dim=2
            )
            far = torch.tensor([[30.0, 30, 55, 60], [2, 34, 20, 60]])
            targets.append({
                "boxes": boxes, "labels": labels, "masks": masks, "image_id": index,
                "keypoints": points, "proposals": torch.cat([boxes + 2, far]),
            })  # fmt: skip
        return images, targets

    return make
