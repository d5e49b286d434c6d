"""Masks of an image."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from pycocotools import mask as rle_codec
from torch.nn import functional as F
from torchvision.models.detection.roi_heads import paste_masks_in_image

from .. import ops
from .case import Case, cases
from .inputs import IMAGE, boxes_between


@cases
def mask_cases(device: str) -> Iterator[Case]:
    """100 masks of 28 x 28, blobs rather than noise, into an image's run lengths."""
    boxes = boxes_between(100, 20, 400, device)
    logits = F.interpolate(torch.randn(100, 1, 5, 5, device=device), (28, 28), mode="bicubic")
    probs = (4 * logits + 1).sigmoid()

    def reference() -> list[dict[str, object]]:
        pasted = paste_masks_in_image(probs, boxes, IMAGE)[:, 0] >= 0.5
        return [rle_codec.encode(np.asfortranarray(m)) for m in pasted.byte().cpu().numpy()]

    yield Case(
        "paste_100_rle",
        "float32",
        lambda: ops.paste_masks(probs[:, 0], boxes, IMAGE),
        reference,
    )
