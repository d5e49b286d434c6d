"""Non-maximum suppression, and ground truth matched to anchors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torchvision
from torchvision.models.detection._utils import Matcher

from detlite import ops
from detlite.conventions import CONVENTIONS
from detlite.modeling.rpn.anchors import AnchorGenerator

from .case import LEVELS, Case, boxes_between, shifted


def nms_cases(device: str) -> Iterator[Case]:
    """Non-maximum suppression at the thresholds of a proposal network and of a box head."""

    def case(name: str, operator: str, *args: object) -> Case:
        ours, theirs = getattr(ops, operator), getattr(torchvision.ops, operator)
        return Case(name, partial(ours, *args), partial(theirs, *args))

    boxes = boxes_between(12_000, 12, 112, device)
    yield case("nms_12k_spread", "nms", boxes, torch.rand(12_000, device=device), 0.7)
    objects = boxes_between(30, 60, 112, device)
    boxes = shifted(objects[torch.randint(30, (12_000,), device=device)])
    yield case("nms_12k_clustered", "nms", boxes, torch.rand(12_000, device=device), 0.7)

    boxes, scores = boxes_between(4_000, 12, 112, device), torch.rand(4_000, device=device)
    classes = torch.randint(80, (4_000,), device=device)
    yield case("batched_nms_4k_80", "batched_nms", boxes, scores, classes, 0.5)

    # Two images of four pyramid levels. torchvision's result has another size for each image.
    levels = torch.arange(4, device=device).repeat_interleave(2_000).expand(2, -1)
    pyramid = torch.stack([boxes_between(8_000, 16, 400, device) for _ in levels])
    objectness = torch.randn(2, 8_000, device=device)
    valid = torch.ones_like(levels, dtype=torch.bool)
    images = list(zip(pyramid, objectness, levels, strict=True))
    yield Case(
        "padded_nms_2x4x2k",
        lambda: ops.padded_nms(pyramid, objectness, levels, valid, 0.7, 1_000),
        lambda: [torchvision.ops.batched_nms(*image, 0.7)[:1_000] for image in images],
    )


def match_cases(device: str) -> Iterator[Case]:
    """The 242,991 anchors of one image, three shapes on five levels, to its ground truth.

    torchvision's table of 500 x 242,991 overlaps has 486 MB, and 4 GB are held while it is made;
    detlite holds a few numbers for each anchor and object.
    """
    generator = AnchorGenerator(
        [[8 * stride] for stride in LEVELS], (0.5, 1, 2), [*LEVELS], CONVENTIONS["detectron2"]
    )
    anchors = torch.cat(generator([*LEVELS.values()])).to(device)
    matcher = Matcher(0.7, 0.3, allow_low_quality_matches=True)

    def case(count: int) -> Case:
        truth = boxes_between(count, 12, 400, device)
        valid = torch.ones(1, count, dtype=torch.bool, device=device)
        return Case(
            f"match_243k_{count}",
            lambda: ops.match_boxes(truth[None], valid, anchors),
            lambda: matcher(torchvision.ops.box_iou(truth, anchors)),
        )

    yield case(10)
    yield case(500)
