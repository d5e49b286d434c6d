"""Render HTML pages as single files that contain their images, and draw parts of images."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from detlite.apps.optional_packages import import_optional
from detlite.structures.masks.formats import to_bitmap

from .detections import Color, composite_rgb, draw_detections

Window = tuple[int, int, int, int]  # left, top, right, bottom


def render(template: str, **values: Any) -> str:
    """Render a template of `templates/` to HTML, with escaped texts; ConfigError without jinja2."""
    jinja2 = import_optional("jinja2", "detlite[report]")
    environment = jinja2.Environment(
        autoescape=True,
        loader=jinja2.PackageLoader("detlite.apps.drawing"),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    return str(environment.get_template(template).render(**values))


def percent(value: float | None, digits: int = 1, sign: str = "") -> str:
    """Format a fraction in percent; "n/a" for None."""
    return "n/a" if value is None else f"{100 * value:{sign}.{digits}f}"


def jpeg(image: Image.Image, quality: int = 80) -> str:
    """Encode an image as a data URI for the `src` attribute of an `img` element."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def side_by_side(images: Sequence[Image.Image], gap: int = 6) -> Image.Image:
    """Join images of any size in a row on white."""
    width = sum(image.width + gap for image in images) - gap
    joined = Image.new("RGB", (width, max(image.height for image in images)), "white")
    x = 0
    for image in images:
        joined.paste(image, (x, (joined.height - image.height) // 2))
        x += image.width + gap
    return joined


def crop_window(box: np.ndarray, height: int, width: int) -> Window:
    """Return a square window around a box xywh, cut off at the borders of the image."""
    x, y, w, h = box.tolist()
    side = min(max(2.2 * max(w, h), 64), max(height, width))
    left = min(max(x + w / 2 - side / 2, 0), max(width - side, 0))
    top = min(max(y + h / 2 - side / 2, 0), max(height - side, 0))
    right, bottom = min(left + side, width), min(top + side, height)
    return int(left), int(top), max(int(right), int(left) + 1), max(int(bottom), int(top) + 1)


def draw_window(
    pixels: torch.Tensor,
    window: Window,
    boxes: np.ndarray,
    masks: Sequence[dict[str, Any] | None],
    texts: Sequence[str],
    colors: Sequence[Color],
    side: int = 240,
    tags: bool | None = True,
    keypoints: np.ndarray | None = None,
) -> Image.Image:
    """Draw objects into a window of an image, at the size shown in a page.

    Args:
        pixels: the image, uint8 [C, H, W], drawn as by `composite_rgb`.
        window: see `crop_window`.
        boxes: float [N, 4] xywh in pixels of the image.
        masks: COCO RLE of each mask in the whole image; None: only the box is drawn.
        texts: label of each object; an empty label is not drawn.
        colors: RGB color of each object.
        side: longer side of the drawn window, in pixels.
        tags: as for `draw_detections`.
        keypoints: float [N, P, 3] in pixels of the image, drawn if the third number is not 0.
    """
    left, top, right, bottom = window
    part = composite_rgb(pixels[:, top:bottom, left:right])
    crop = Image.fromarray(part.permute(1, 2, 0).numpy())
    factor = side / max(crop.size)
    size = max(1, round(crop.width * factor)), max(1, round(crop.height * factor))
    crop = crop.resize(size, Image.Resampling.BICUBIC)
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    corners = (corners - [left, top, left, top]) * factor
    visible = ((corners[:, 2:] > 0) & (corners[:, :2] < crop.size)).all(axis=1)
    kept = np.flatnonzero(visible).tolist()
    target: dict[str, Any] = {
        "boxes": torch.tensor(corners[kept], dtype=torch.float32).reshape(-1, 4),
        "labels": torch.arange(1, len(kept) + 1),
        "masks": [],
    }
    if keypoints is not None:
        moved = (keypoints[kept] - [left, top, 0]) * [factor, factor, 1]
        target["keypoints"] = torch.tensor(moved, dtype=torch.float32)
    for n in kept:
        bitmap = np.zeros((crop.height, crop.width), bool)
        if (mask := masks[n]) is not None:
            cut = to_bitmap(mask, *pixels.shape[-2:])[top:bottom, left:right] * np.uint8(255)
            bitmap = np.asarray(Image.fromarray(cut).resize(size, Image.Resampling.BILINEAR)) > 127
        target["masks"].append(torch.from_numpy(bitmap))
    categories = [{"id": n, "name": texts[n]} for n in kept]
    colors = [colors[n] for n in kept]
    return draw_detections(crop, target, categories, min_side=1, colors=colors, tags=tags)
