"""Cases of non-maximum suppression and of matching ground truth to anchors."""

from collections.abc import Iterator
from functools import partial

import torch
import torchvision
from torchvision.models.detection._utils import Matcher

from detlite import ops
from detlite.conventions import CONVENTIONS
from detlite.modeling.rpn.anchors import AnchorGenerator

from .case import LEVELS, Case, jitter_boxes, random_boxes


def nms_cases(device: str) -> Iterator[Case]:
    """Yield cases of NMS with the thresholds of an RPN and of a box head."""

    def case(name: str, operator: str, *args: object) -> Case:
        run, reference = getattr(ops, operator), getattr(torchvision.ops, operator)
        return Case(name, partial(run, *args), partial(reference, *args))

    boxes = random_boxes(12_000, 12, 112, device)
    yield case("nms_12k_spread", "nms", boxes, torch.rand(12_000, device=device), 0.7)
    objects = random_boxes(30, 60, 112, device)
    boxes = jitter_boxes(objects[torch.randint(30, (12_000,), device=device)])
    yield case("nms_12k_clustered", "nms", boxes, torch.rand(12_000, device=device), 0.7)

    boxes, scores = random_boxes(4_000, 12, 112, device), torch.rand(4_000, device=device)
    classes = torch.randint(80, (4_000,), device=device)
    yield case("batched_nms_4k_80", "batched_nms", boxes, scores, classes, 0.5)

    # Two images with four pyramid levels. torchvision processes one image at a time.
    levels = torch.arange(4, device=device).repeat_interleave(2_000).expand(2, -1)
    pyramid = torch.stack([random_boxes(8_000, 16, 400, device) for _ in levels])
    objectness = torch.randn(2, 8_000, device=device)
    valid = torch.ones_like(levels, dtype=torch.bool)
    images = list(zip(pyramid, objectness, levels, strict=True))
    yield Case(
        "padded_nms_2x4x2k",
        lambda: ops.padded_nms(pyramid, objectness, levels, valid, 0.7, 1_000),
        lambda: [torchvision.ops.batched_nms(*image, 0.7)[:1_000] for image in images],
    )


def match_cases(device: str) -> Iterator[Case]:
    """Yield cases that match 242,991 anchors (three shapes on five levels) to ground truth.

    torchvision's matrix of 500 x 242,991 IoUs has 486 MB and needs 4 GB while it is computed.
    detlite stores a few numbers per anchor and object.
    """
    generator = AnchorGenerator(
        [[8 * stride] for stride in LEVELS], (0.5, 1, 2), [*LEVELS], CONVENTIONS["detectron2"]
    )
    anchors = torch.cat(generator([*LEVELS.values()])).to(device)
    matcher = Matcher(0.7, 0.3, allow_low_quality_matches=True)

    def case(count: int) -> Case:
        gt_boxes = random_boxes(count, 12, 400, device)
        valid = torch.ones(1, count, dtype=torch.bool, device=device)
        return Case(
            f"match_243k_{count}",
            lambda: ops.match_boxes(gt_boxes[None], valid, anchors),
            lambda: matcher(torchvision.ops.box_iou(gt_boxes, anchors)),
        )

    yield case(10)
    yield case(500)
