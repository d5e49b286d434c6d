"""Non-maximum suppression."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torchvision
from torch import Tensor

from .. import ops
from .case import Case, cases
from .inputs import boxes_between


@cases
def nms_cases(device: str) -> Iterator[Case]:
    """Non-maximum suppression at the thresholds of a proposal network and of a box head."""

    def case(name: str, boxes: Tensor) -> Case:
        scores = torch.rand(len(boxes), device=device)
        return Case(
            name,
            "float32",
            lambda: ops.nms(boxes, scores, 0.7),
            lambda: torchvision.ops.nms(boxes, scores, 0.7),
        )

    yield case("nms_12k_spread", boxes_between(12_000, 12, 112, device))
    # As proposals lie around objects: off by a tenth of their sides.
    objects = boxes_between(30, 60, 112, device)[torch.randint(30, (12_000,), device=device)]
    sides = (objects[:, 2:] - objects[:, :2]).repeat(1, 2)
    noise = torch.randn(12_000, 4, device=device) / 10
    yield case("nms_12k_clustered", objects + noise * sides)

    boxes, scores = boxes_between(4_000, 12, 112, device), torch.rand(4_000, device=device)
    classes = torch.randint(80, (4_000,), device=device)
    yield Case(
        "batched_nms_4k_80",
        "float32",
        lambda: ops.batched_nms(boxes, scores, classes, 0.5),
        lambda: torchvision.ops.batched_nms(boxes, scores, classes, 0.5),
    )

    # Two images of four pyramid levels. torchvision's result has another size for each image.
    levels = torch.arange(4, device=device).repeat_interleave(2_000).expand(2, -1)
    pyramid = torch.stack([boxes_between(8_000, 16, 400, device) for _ in levels])
    objectness = torch.randn(2, 8_000, device=device)
    valid = torch.ones_like(levels, dtype=torch.bool)
    images = list(zip(pyramid, objectness, levels, strict=True))
    yield Case(
        "padded_nms_2x4x2k",
        "float32",
        lambda: ops.padded_nms(pyramid, objectness, levels, valid, 0.7, 1_000),
        lambda: [torchvision.ops.batched_nms(*image, 0.7)[:1_000] for image in images],
    )
