"""Box masks pasted into an image and encoded, without the image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from detlite import _C  # noqa: F401  (loads the kernels)


def paste_masks(
    probs: Tensor, boxes: Tensor, size: tuple[int, int], threshold: float = 0.5
) -> list[dict[str, Any]]:
    """Resamples masks into their boxes, thresholds them and encodes what is left.

    The masks are those of `detlite.structures.masks.paste_probabilities`, to the last pixel, but
    no image is ever held: the work and the memory follow the boxes.

    Args:
        probs: `Tensor[N, M, M]`, probabilities of any floating type, computed with in float32.
        boxes: `Tensor[N, 4]` of (x1, y1, x2, y2) in pixels of the image, anywhere; a box with a
            coordinate that is NaN or infinite leaves an empty mask.
        size: (height, width) of the image.
        threshold: above 0; pixels of at least this probability belong to the mask.

    Returns:
        For each mask its RLE in COCO's form, `{"size": [height, width], "counts": str}`, which
        pycocotools decodes and json takes.

    Raises:
        RuntimeError: an argument is wrong; the message names it.
    """
    data, ends = torch.ops.detlite.paste_masks_rle(probs.cpu(), boxes.cpu(), *size, threshold)
    text = data.numpy().tobytes().decode("ascii")
    last = ends.tolist()
    return [
        {"size": list(size), "counts": text[begin:end]}
        for begin, end in zip([0, *last], last, strict=False)
    ]


@torch.library.register_fake("detlite::paste_masks_rle")
def _(
    probs: Tensor, boxes: Tensor, height: int, width: int, threshold: float
) -> tuple[Tensor, Tensor]:
    length = torch.library.get_ctx().new_dynamic_size()
    return (
        probs.new_empty((length,), dtype=torch.uint8),
        probs.new_empty((probs.shape[0],), dtype=torch.int64),
    )
