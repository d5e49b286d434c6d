"""Parts of pictures about a box, with what is found there drawn into them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from detlite.structures.masks.formats import to_bitmap

from .detections import Colour, draw_detections

_SIDE = 240  # pixels


def window_about(box: np.ndarray, height: int, width: int) -> tuple[int, int, int, int]:
    """What of a picture is shown about a box xywh: (left, top, right, bottom)."""
    x, y, w, h = box.tolist()
    side = min(max(2.2 * max(w, h), 64), max(height, width))
    left = min(max(x + w / 2 - side / 2, 0), max(width - side, 0))
    top = min(max(y + h / 2 - side / 2, 0), max(height - side, 0))
    right, bottom = min(left + side, width), min(top + side, height)
    return int(left), int(top), max(int(right), int(left) + 1), max(int(bottom), int(top) + 1)


def draw_part(
    pixels: torch.Tensor,
    window: tuple[int, int, int, int],
    boxes: np.ndarray,
    mask: dict[str, Any] | None,
    texts: list[str],
    colours: list[Colour],
) -> Image.Image:
    """A part of a picture with boxes drawn into it, as large as a page shows it.

    Args:
        pixels: uint8 RGB [3, H, W], the picture.
        window: of it, see `window_about`.
        boxes: float [N, 4] xywh in pixels of the picture.
        mask: COCO RLE of the first box, of the whole picture; masks of all would hide what there
            is.
        texts, colours: of each box; an empty text is left out.
    """
    left, top, right, bottom = window
    part = Image.fromarray(pixels[:, top:bottom, left:right].permute(1, 2, 0).numpy())
    factor = _SIDE / max(part.size)
    part = part.resize((max(1, round(part.width * factor)), max(1, round(part.height * factor))),
                       Image.Resampling.BICUBIC)  # fmt: skip
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    corners = (corners - [left, top, left, top]) * factor
    seen = ((corners[:, 2:] > 0) & (corners[:, :2] < part.size)).all(axis=1)
    kept = np.flatnonzero(seen).tolist()
    drawn: dict[str, Any] = {
        "boxes": torch.tensor(corners[kept], dtype=torch.float32).reshape(-1, 4),
        "labels": torch.arange(1, len(kept) + 1),
    }
    if mask is not None and 0 in kept:
        inside = to_bitmap(mask, *pixels.shape[-2:])[top:bottom, left:right] * np.uint8(255)
        resized = Image.fromarray(inside).resize(part.size, Image.Resampling.BILINEAR)
        bitmap = torch.from_numpy(np.asarray(resized) >= 128)
        drawn["masks"] = [bitmap if n == 0 else torch.zeros_like(bitmap) for n in kept]
    categories = [{"id": n, "name": texts[n]} for n in kept]
    return draw_detections(part, drawn, categories, min_side=1, colours=[colours[n] for n in kept])
