"""Render HTML pages as single files that contain their images, and draw parts of images."""

import base64
import io
from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from detlite.apps.optional_packages import import_optional
from detlite.structures.masks.formats import encode_bitmap, to_bitmap

from .detections import Color, draw_detections

Window = tuple[int, int, int, int]  # left, top, right, bottom


class Mark(NamedTuple):
    """An object to draw: its box xywh in pixels, tag ("": none), and COCO RLE, if it is drawn."""

    box: Sequence[float]
    text: str
    color: Color
    mask: dict[str, Any] | None = None


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


def join_images(rows: Sequence[Sequence[Image.Image]], gap: int = 6) -> Image.Image:
    """Join rows of images of any size on white."""
    widths = [sum(image.width + gap for image in row) - gap for row in rows]
    heights = [max(image.height for image in row) + gap for row in rows]
    joined = Image.new("RGB", (max(widths), sum(heights) - gap), "white")
    y = 0
    for row, height in zip(rows, heights, strict=True):
        x = 0
        for image in row:
            joined.paste(image, (x, y))
            x += image.width + gap
        y += height
    return joined


def crop_window(box: Sequence[float], height: int, width: int) -> Window:
    """Return a square window around a box xywh, cut off at the borders of the image."""
    x, y, w, h = box
    side = min(max(2.2 * max(w, h), 64), max(height, width))
    left = min(max(x + w / 2 - side / 2, 0), max(width - side, 0))
    top = min(max(y + h / 2 - side / 2, 0), max(height - side, 0))
    right, bottom = min(left + side, width), min(top + side, height)
    return int(left), int(top), max(int(right), int(left) + 1), max(int(bottom), int(top) + 1)


def draw_window(
    pixels: torch.Tensor,
    window: Window,
    marks: Sequence[Mark],
    side: int = 240,
    tags: bool | None = True,
) -> Image.Image:
    """Draw objects into a window of an image, at the size shown in a page.

    Args:
        pixels: the image, uint8 [C, H, W].
        window: see `crop_window`.
        marks: the objects.
        side: longer side of the drawn window, in pixels.
        tags: as for `draw_detections`.
    """
    left, top, right, bottom = window
    boxes = torch.tensor([mark.box for mark in marks], dtype=torch.float32).reshape(-1, 4)
    boxes[:, :2] -= torch.tensor([left, top])
    boxes[:, 2:] += boxes[:, :2]
    size = torch.tensor([right - left, bottom - top])
    visible = ((boxes[:, 2:] > 0) & (boxes[:, :2] < size)).all(dim=1)
    shown = list(compress(marks, visible))
    target: dict[str, Any] = {
        "boxes": boxes[visible], "labels": torch.arange(1, len(shown) + 1), "masks": [],
    }  # fmt: skip
    for mark in shown:
        bitmap = np.zeros((bottom - top, right - left), np.uint8)
        if mark.mask is not None:
            bitmap = to_bitmap(mark.mask, *pixels.shape[-2:])[top:bottom, left:right]
        target["masks"].append(encode_bitmap(bitmap))  # takes less memory
    return draw_detections(
        pixels[:, top:bottom, left:right], target, [{"name": mark.text} for mark in shown],
        min_side=side, max_side=side, colors=[mark.color for mark in shown], tags=tags,
    )  # fmt: skip
