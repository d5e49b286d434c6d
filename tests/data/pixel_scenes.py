"""Images of objects with known pixels, and a comparison with the masks and boxes of a target."""

import numpy as np
import torch
from torchvision.ops import masks_to_boxes

from detlite.structures.masks.formats import encode_bitmap
from detlite.structures.masks.packed import PackedMasks


def tight_boxes(bitmaps):
    """Return the boxes xyxy of bitmaps [N, H, W], none of them empty."""
    return masks_to_boxes(bitmaps) + torch.tensor([0, 0, 1, 1])


def scene(number, size, seed):
    """Return an image of noise, its target and bitmaps: rectangles as polygons and noise as RLE."""
    rng = np.random.default_rng(seed)
    height, width = size
    image = torch.from_numpy(rng.integers(0, 256, (3, *size), dtype=np.uint8))
    segmentations, bitmaps = [], []
    for index in range(8):
        x1, y1 = rng.integers(0, width - 4), rng.integers(0, height - 4)
        x2, y2 = rng.integers(x1 + 2, width + 1), rng.integers(y1 + 2, height + 1)
        bitmap = np.zeros(size, np.uint8)
        bitmap[y1:y2, x1:x2] = 1
        if index % 2:
            bitmap[y1:y2, x1:x2] = rng.random((y2 - y1, x2 - x1)) > 0.4
            bitmap[[y1, y2 - 1], [x1, x2 - 1]] = 1
            bitmap[[y2 - 1, y1], [x1, x2 - 1]] = 1
            segmentations.append(encode_bitmap(bitmap))
        else:
            corners = [x1, y1, x2, y1, x2, y2, x1, y2]
            segmentations.append([[float(value) for value in corners]])
        bitmaps.append(bitmap)
    masks = PackedMasks.from_segmentations(segmentations, height, width, False)
    bitmaps = torch.from_numpy(np.stack(bitmaps))
    boxes = tight_boxes(bitmaps)
    points = torch.from_numpy(rng.uniform(0, [width, height], (8, 5, 2))).float()
    seen = torch.from_numpy(rng.integers(0, 3, (8, 5, 1))).float()
    target = {
        "boxes": boxes, "labels": torch.arange(1, 9) + 10 * number, "masks": masks,
        "keypoints": torch.cat([points, seen], dim=-1), "image_id": number, "size": size,
    }  # fmt: skip
    return image, target, bitmaps


def box_scene(boxes, size, channels=3, **target):
    """Return a black image with bright boxes xyxy, and a target whose masks cover them."""
    boxes = torch.tensor(boxes, dtype=torch.float32)
    masks = torch.zeros(len(boxes), *size, dtype=torch.uint8)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes.int().tolist(), strict=True):
        mask[y1:y2, x1:x2] = 1
    image = masks.amax(0).mul(255).expand(channels, -1, -1).contiguous()
    labels, packed = torch.arange(1, len(boxes) + 1), PackedMasks.from_bitmaps(masks)
    return image, {"boxes": boxes, "labels": labels, "masks": packed, "size": size, **target}


def check(image, target, labels, bitmaps):
    """Compare a target with the labels and bitmaps of all objects that have a pixel."""
    seen = bitmaps.bool().flatten(1).any(1)
    assert torch.equal(target["labels"], labels[seen])
    assert torch.equal(target["masks"].bitmaps(*image.shape[1:]), bitmaps[seen])
    assert torch.equal(target["boxes"], tight_boxes(bitmaps[seen]))
