"""Pictures of detections, and sheets of pictures."""

from __future__ import annotations

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

Colour = tuple[int, int, int]


def draw_detections(
    image: Image.Image | Tensor,
    detections: dict[str, Any],
    categories: Sequence[dict[str, Any]],
    min_score: float = 0.5,
    min_side: int = 480,
    colours: Sequence[Colour] | None = None,
) -> Image.Image:
    """The picture with a box, a label and, where there are, mask and keypoints of each object.

    Args:
        image: a PIL image, or uint8 RGB [3, H, W].
        detections: boxes [N, 4] xyxy in pixels of the image, labels [N] in 1..K, and optionally
            scores [N] in 0..1, masks ([N, H, W], non-zero inside; N COCO RLEs; or
            `PackedMasks`), keypoints [N, P, 3], drawn where the third number is not 0, and
            track_ids, N numbers or None. What `Predictor` gives, or a target of a data set.
        categories: the K categories {"id", "name"}. One category: a colour for each object;
            several: a colour for each category.
        min_score: objects with a lower score are left out.
        min_side: a picture whose longer side is shorter is enlarged by a whole factor, so that
            lines and labels do not cover what they show.
        colours: RGB of each of the N objects, in place of those.

    Returns:
        An RGB image, of the picture's size or a multiple of it.
    """
    if isinstance(image, Tensor):
        image = Image.fromarray(image.permute(1, 2, 0).cpu().numpy())
    picture = image.convert("RGB")
    size = picture.size
    factor = max(1, math.ceil(min_side / max(size)))
    if factor > 1:
        picture = picture.resize((size[0] * factor, size[1] * factor), Image.Resampling.BICUBIC)
    labels = detections["labels"].tolist()
    boxes = (detections["boxes"] * factor).tolist()
    scores = detections["scores"].tolist() if "scores" in detections else [None] * len(labels)
    tracks = detections.get("track_ids") or [None] * len(labels)
    shown = [i for i, score in enumerate(scores) if score is None or score >= min_score]
    if colours is None:
        places = [label - 1 if len(categories) > 1 else i for i, label in enumerate(labels)]
        colours = [_colour(place) for place in places]
    for i in reversed(shown):  # the best on top
        if "masks" in detections:
            _draw_mask(picture, _bitmap(detections["masks"], i, size), colours[i])
    draw = ImageDraw.Draw(picture)
    line = max(1, round(max(picture.size) / 320))
    for i in reversed(shown):
        x1, y1, x2, y2 = boxes[i]
        # The last pixel inside, and no side negative.
        corners = (x1, y1, max(x1, x2 - 1), max(y1, y2 - 1))
        draw.rectangle(corners, outline=colours[i], width=line)
        if "keypoints" in detections:
            _draw_keypoints(draw, detections["keypoints"][i] * factor, 2 * line, colours[i])
    draw.font = ImageFont.load_default(max(11, round(max(picture.size) / 48)))
    names = [category["name"] for category in categories_of(detections["labels"], categories)]
    for i in reversed(shown):
        text = _label(names[i], scores[i], len(categories))
        if tracks[i] is not None:
            text = f"#{tracks[i]} {text}"
        if text:
            _draw_label(draw, boxes[i], text, colours[i], picture.size)
    return picture


def _label(name: str, score: float | None, categories: int) -> str:
    """Name and score; of a single category only the score, for crowded pictures are the rule."""
    if score is None:
        return name
    return f"{score:.2f}" if categories == 1 else f"{name} {score:.2f}"


def _colour(index: int) -> Colour:
    """Colours that stay apart: each hue a golden section further, in three shades."""
    lightness = (0.55, 0.45, 0.65)[index // 8 % 3]
    red, green, blue = colorsys.hls_to_rgb((0.58 + index * 0.618034) % 1, lightness, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def _bitmap(masks: Any, index: int, size: tuple[int, int]) -> Image.Image:
    width, height = size
    if isinstance(masks, PackedMasks):
        inside = masks.select(torch.tensor([index])).bitmaps(height, width)[0].numpy()
    elif isinstance(masks[index], dict):
        inside = to_bitmap(masks[index], height, width)
    else:
        inside = masks[index].cpu().numpy()
    return Image.fromarray((inside != 0).astype(np.uint8) * 255)


def _draw_mask(picture: Image.Image, mask: Image.Image, colour: Colour) -> None:
    if mask.size != picture.size:  # smooth the edge of an enlarged mask
        mask = mask.resize(picture.size, Image.Resampling.BILINEAR)
        mask = mask.point(lambda value: 255 if value >= 128 else 0)
    window = mask.getbbox()
    if window is None:
        return
    mask = mask.crop(window)
    edge = ImageChops.subtract(mask, mask.filter(ImageFilter.MinFilter(3)))
    alpha = ImageChops.lighter(
        mask.point(lambda value: value * 2 // 5), edge.point(lambda value: value * 9 // 10)
    )
    picture.paste(colour, window, alpha)


def _draw_keypoints(
    draw: ImageDraw.ImageDraw, keypoints: Tensor, radius: int, colour: Colour
) -> None:
    for x, y, visibility in keypoints.tolist():
        if visibility > 0:
            corners = (x - radius, y - radius, x + radius, y + radius)
            draw.ellipse(corners, fill=colour, outline="white")


def _draw_label(
    draw: ImageDraw.ImageDraw, box: list[float], text: str, colour: Colour, size: tuple[int, int]
) -> None:
    """A filled tag above the box's top left corner, moved so that it stays in the picture."""
    left, top, right, bottom = draw.textbbox((0, 0), text)
    width, height = right - left + 4, bottom - top + 4
    x = max(0, min(box[0], size[0] - width))
    y = box[1] - height if box[1] >= height else box[1]
    draw.rectangle((x, y, x + width, y + height), fill=colour)
    dark = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] < 140
    draw.text((x + 2 - left, y + 2 - top), text, fill="white" if dark else "black")


def contact_sheet(
    images: Sequence[Image.Image], columns: int = 4, cell: int = 480, gap: int = 8
) -> Image.Image:
    """The images in rows of `columns`, each shrunk to fit a square of `cell` pixels, on white."""
    if not images:
        raise ValueError("images: a contact sheet needs at least one")
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
