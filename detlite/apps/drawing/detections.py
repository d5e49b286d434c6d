"""Draw detections on images, and join images to contact sheets."""

import colorsys
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont
from torch import Tensor

from detlite.evaluation.results import categories_of
from detlite.structures.masks.formats import to_bitmap
from detlite.structures.masks.packed import PackedMasks

Color = tuple[int, int, int]


def draw_detections(
    image: Image.Image | Tensor,
    detections: dict[str, Any],
    categories: Sequence[dict[str, Any]],
    min_score: float = 0.5,
    min_side: int = 480,
    colors: Sequence[Color] | None = None,
) -> Image.Image:
    """Draw box, label, and if present mask and keypoints of each object on a copy of an image.

    Args:
        image: a PIL image, or uint8 RGB [3, H, W].
        detections: a result of `Predictor` or a target of a dataset: boxes [N, 4] xyxy in pixels,
            labels [N] in 1..K, and optionally scores [N] in 0..1, masks (bitmaps [N, H, W], N COCO
            RLEs, or `PackedMasks`), keypoints [N, P, 3], drawn if the third number is not 0, and
            track_ids, N numbers or None.
        categories: the K categories {"id", "name"}. A single category gives each object its own
            color; several categories have one color each.
        min_score: objects with a lower score are not drawn.
        min_side: images whose longer side is shorter are enlarged by an integer factor, so that
            lines and labels do not cover the objects.
        colors: RGB colors of the N objects, in place of those above.

    Returns:
        An RGB image of the size of the image or a multiple of it.
    """
    if isinstance(image, Tensor):
        image = Image.fromarray(image.permute(1, 2, 0).cpu().numpy())
    canvas = image.convert("RGB")
    size = canvas.size
    factor = max(1, math.ceil(min_side / max(size)))
    if factor > 1:
        canvas = canvas.resize((size[0] * factor, size[1] * factor), Image.Resampling.BICUBIC)
    labels = detections["labels"].tolist()
    boxes = (detections["boxes"] * factor).tolist()
    scores = detections["scores"].tolist() if "scores" in detections else [None] * len(labels)
    tracks = detections.get("track_ids") or [None] * len(labels)
    shown = [i for i, score in enumerate(scores) if score is None or score >= min_score]
    if colors is None:
        several = len(categories) > 1
        colors = [_color(label - 1 if several else i) for i, label in enumerate(labels)]
    for i in reversed(shown):  # the highest score on top
        if "masks" in detections:
            _draw_mask(canvas, _bitmap(detections["masks"], i, size), colors[i])
    draw = ImageDraw.Draw(canvas)
    line = max(1, round(max(canvas.size) / 320))
    for i in reversed(shown):
        x1, y1, x2, y2 = boxes[i]
        # x2 and y2 lie behind the last pixel. PIL refuses negative sides.
        corners = (x1, y1, max(x1, x2 - 1), max(y1, y2 - 1))
        draw.rectangle(corners, outline=colors[i], width=line)
        if "keypoints" in detections:
            _draw_keypoints(draw, detections["keypoints"][i] * factor, 2 * line, colors[i])
    draw.font = ImageFont.load_default(max(11, round(max(canvas.size) / 48)))
    names = [category["name"] for category in categories_of(detections["labels"], categories)]
    for i in reversed(shown):
        text = _label(names[i], scores[i], len(categories))
        if tracks[i] is not None:
            text = f"#{tracks[i]} {text}"
        if text:
            _draw_label(draw, boxes[i], text, colors[i], canvas.size)
    return canvas


def _label(name: str, score: float | None, categories: int) -> str:
    """Return name and score, or only the score if there is a single category."""
    if score is None:
        return name
    return f"{score:.2f}" if categories == 1 else f"{name} {score:.2f}"


def _color(index: int) -> Color:
    """Return distinct colors: hues apart by the golden ratio, in three shades."""
    lightness = (0.55, 0.45, 0.65)[index // 8 % 3]
    red, green, blue = colorsys.hls_to_rgb((0.58 + index * 0.618034) % 1, lightness, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def _bitmap(masks: Any, index: int, size: tuple[int, int]) -> Image.Image:
    width, height = size
    if isinstance(masks, PackedMasks):
        bitmap = masks.select(torch.tensor([index])).bitmaps(height, width)[0].numpy()
    elif isinstance(masks[index], dict):
        bitmap = to_bitmap(masks[index], height, width)
    else:
        bitmap = masks[index].cpu().numpy()
    return Image.fromarray((bitmap != 0).astype(np.uint8) * 255)


def _draw_mask(canvas: Image.Image, mask: Image.Image, color: Color) -> None:
    if mask.size != canvas.size:  # smooth the edge of an enlarged mask
        mask = mask.resize(canvas.size, Image.Resampling.BILINEAR)
        mask = mask.point(lambda value: 255 if value >= 128 else 0)
    window = mask.getbbox()
    if window is None:
        return
    mask = mask.crop(window)
    edge = ImageChops.subtract(mask, mask.filter(ImageFilter.MinFilter(3)))
    alpha = ImageChops.lighter(
        mask.point(lambda value: value * 2 // 5), edge.point(lambda value: value * 9 // 10)
    )
    canvas.paste(color, window, alpha)


def _draw_keypoints(
    draw: ImageDraw.ImageDraw, keypoints: Tensor, radius: int, color: Color
) -> None:
    for x, y, visibility in keypoints.tolist():
        if visibility > 0:
            corners = (x - radius, y - radius, x + radius, y + radius)
            draw.ellipse(corners, fill=color, outline="white")


def _draw_label(
    draw: ImageDraw.ImageDraw, box: list[float], text: str, color: Color, size: tuple[int, int]
) -> None:
    """Draw a filled label above the top left corner of a box, moved to stay inside the image."""
    left, top, right, bottom = draw.textbbox((0, 0), text)
    width, height = right - left + 4, bottom - top + 4
    x = max(0, min(box[0], size[0] - width))
    y = box[1] - height if box[1] >= height else box[1]
    draw.rectangle((x, y, x + width, y + height), fill=color)
    dark = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2] < 140
    draw.text((x + 2 - left, y + 2 - top), text, fill="white" if dark else "black")


def contact_sheet(
    images: Sequence[Image.Image], columns: int = 4, cell: int = 480, gap: int = 8
) -> Image.Image:
    """Arrange images in rows on white, each shrunk to fit a square of `cell` pixels."""
    if not images:
        raise ValueError("a contact sheet needs at least one image")
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    thumbnails = [image.copy() for image in images]
    for thumbnail in thumbnails:
        thumbnail.thumbnail((cell, cell), Image.Resampling.LANCZOS)
    columns = min(columns, len(images))
    rows = math.ceil(len(images) / columns)
    width = max(thumbnail.width for thumbnail in thumbnails)
    height = max(thumbnail.height for thumbnail in thumbnails)
    sheet = Image.new("RGB", (columns * (width + gap) + gap, rows * (height + gap) + gap), "white")
    for number, thumbnail in enumerate(thumbnails):
        row, column = divmod(number, columns)
        x = gap + column * (width + gap) + (width - thumbnail.width) // 2
        y = gap + row * (height + gap) + (height - thumbnail.height) // 2
        sheet.paste(thumbnail, (x, y))
    return sheet
