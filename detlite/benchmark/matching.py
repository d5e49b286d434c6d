"""Ground truth matched to anchors."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torchvision
from torchvision.models.detection._utils import Matcher

from .. import ops
from .case import Case, cases
from .inputs import IMAGE, STRIDES, boxes_between


@cases
def match_cases(device: str) -> Iterator[Case]:
    """The 242,991 anchors of one image, three shapes on five levels, to its ground truth.

    torchvision's table of 500 x 242,991 overlaps has 486 MB, and 4 GB are held while it is made;
    detlite holds a few numbers for each anchor and object.
    """
    height, width = IMAGE
    levels = []
    for stride in STRIDES:
        sides = 8 * stride * torch.tensor([[1.4, 0.7], [1.0, 1.0], [0.7, 1.4]])
        y, x = torch.arange(0, height, stride), torch.arange(0, width, stride)
        centres = torch.cartesian_prod(y, x).flip(1)[:, None]
        levels.append(torch.cat([centres - sides / 2, centres + sides / 2], dim=2).reshape(-1, 4))
    anchors = torch.cat(levels).to(device)
    matcher = Matcher(0.7, 0.3, allow_low_quality_matches=True)

    def case(count: int) -> Case:
        truth = boxes_between(count, 12, 400, device)
        valid = torch.ones(1, count, dtype=torch.bool, device=device)
        return Case(
            f"match_243k_{count}",
            "float32",
            lambda: ops.match_boxes(truth[None], valid, anchors),
            lambda: matcher(torchvision.ops.box_iou(truth, anchors)),
        )

    yield case(10)
    yield case(500)
