"""Images with colors that encode the origin of each pixel, and an oracle that decodes them.

Red is the column of a pixel, green the row, blue the number of the image. The pixels of a combined
image then determine the correct masks and boxes.
"""

import numpy as np
import torch
from torchvision.ops import masks_to_boxes

from detlite.structures.masks.formats import encode_bitmap
from detlite.structures.masks.packed import PackedMasks


def tight_boxes(bitmaps):
    """Return the boxes xyxy of bitmaps [N, H, W], none of them empty."""
    return masks_to_boxes(bitmaps) + torch.tensor([0, 0, 1, 1])


def scene(number, size, seed):
    """Return an image, its target and bitmaps: rectangles as polygons and noise as RLE."""
    rng = np.random.default_rng(seed)
    height, width = size
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    image[0], image[1] = torch.arange(width), torch.arange(height)[:, None]
    image[2] = number
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


def bitmaps_by_pixel(image, scenes):
    """Decode the pixels of an image that show each object: {label: bool [H, W]}."""
    column, row, number = image.long()
    shown = {}
    for index, (_, target, bitmaps) in enumerate(scenes):
        height, width = bitmaps.shape[1:]  # other scenes may be larger
        places = row.clamp(max=height - 1), column.clamp(max=width - 1)
        for label, bitmap in zip(target["labels"].tolist(), bitmaps.bool(), strict=True):
            shown[label] = bitmap[places] & (number == index)
    return shown


def check(image, target, expected, whole=()):
    """Compare masks and boxes with the expected bitmaps; objects in `whole` may be covered."""
    bitmaps = target["masks"].bitmaps(*image.shape[1:]).bool()
    for label, box, bitmap in zip(target["labels"].tolist(), target["boxes"], bitmaps, strict=True):
        seen = expected[label]
        if label in whole:
            assert not (seen & ~bitmap).any()
            seen = bitmap
        assert torch.equal(bitmap, seen)
        tight = masks_to_boxes(seen[None].byte())[0] + torch.tensor([0, 0, 1, 1])
        assert torch.equal(box, tight)
    for label, seen in expected.items():
        assert (label in target["labels"].tolist()) == bool(seen.any())
