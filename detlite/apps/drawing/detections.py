"""Draw detections on images."""

import colorsys
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageChops, ImageDraw, ImageOps
from torch import Tensor

from detlite.evaluation.detection_results import categories_of
from detlite.inference.options import UNMEASURED_THRESHOLD
from detlite.structures.masks.formats import to_bitmap
from detlite.structures.masks.packed import PackedMasks

from .fonts import Box, Line

Color = tuple[int, int, int]

_SMALL_SIDE = 32  # smaller drawn objects have only an outline (square root of the area in pixels)
_CROWD = 50  # images with more objects have only outlines, without tags
_FILL, _EDGE = 102, 229  # opacity of masks, of 255
_BORDER: Color = (16, 16, 16)
_UNTRACKED: Color = (190, 190, 190)  # detections without a track, next to tracks


def draw_detections(
    image: Image.Image | Tensor,
    detections: dict[str, Any],
    categories: Sequence[dict[str, Any]],
    min_score: float | None = None,
    min_side: int = 480,
    max_side: int | None = None,
    colors: Sequence[Color] | None = None,
    tags: bool | None = None,
) -> Image.Image:
    """Draw each object's box, tag, and mask and keypoints if present, on a copy of an image.

    Lines and tags scale with the image and the objects. Small and crowded objects have only an
    outline. Dark borders separate other lines from an image of the same color.

    Args:
        image: a PIL image, or uint8 RGB [3, H, W].
        detections: a result of `Predictor` or a target of a dataset: boxes [N, 4] xyxy in pixels,
            labels [N] in 1..K, and optionally scores [N] in 0..1, masks (bitmaps [N, H, W], N COCO
            segmentations, or `PackedMasks`), keypoints [N, P, 3], drawn if the third number is not
            0, and track_ids, N numbers or None.
        categories: the K categories {"id", "name"}.
        min_score: objects with a lower score are not drawn; None: the threshold of the prediction,
            or 0.5.
        min_side: smaller images are enlarged by an integer factor to a longer side of at least
            this, so that lines and tags do not cover the objects.
        max_side: larger images are shrunk before drawing to a longer side of this, so that lines
            and tags stay readable; None: they keep their size.
        colors: RGB colors of the N objects; None: a color for each category or track.
        tags: write name and score on each object, or on none. None: where there is room or if
            there are tracks, and no name if there is a single category.
    """
    if isinstance(image, Tensor):
        image = Image.fromarray(composite_rgb(image).permute(1, 2, 0).cpu().numpy())
    canvas = image.convert("RGB")
    size = canvas.size
    scale: float = max(1, math.ceil(min_side / max(size)))
    if max_side is not None:
        scale = min(scale, max_side / max(size))
    if scale != 1:
        width, height = (max(1, round(side * scale)) for side in size)
        canvas = canvas.resize((width, height), Image.Resampling.BICUBIC)
    if min_score is None:
        min_score = getattr(detections, "threshold", UNMEASURED_THRESHOLD)
    scores = detections["scores"].tolist() if "scores" in detections else None
    labels, boxes = detections["labels"].tolist(), (detections["boxes"] * scale).tolist()
    tracks = detections.get("track_ids") or [None] * len(labels)
    tracked = "track_ids" in detections
    names = [category["name"] for category in categories_of(detections["labels"], categories)]
    shown = [i for i in range(len(labels)) if scores is None or scores[i] >= min_score]
    crowded = len(shown) > _CROWD
    objects = []
    for i in shown:
        words = [
            "" if tracks[i] is None else f"#{tracks[i]}",
            names[i] if tags or len(categories) > 1 else "",
            f"{scores[i]:.2f}" if scores else "",
        ]
        color = category_color(tracks[i] or labels[i])
        if colors or (tracked and tracks[i] is None):
            color = colors[i] if colors else _UNTRACKED
        text = " ".join(filter(None, words))
        objects.append(_Object(boxes[i], text, color, max(canvas.size), crowded))
    last_first = [*zip(shown, objects, strict=True)][::-1]  # the highest score on top
    masked = set()
    if "masks" in detections:
        bitmaps = ((obj, _bitmap(detections["masks"], i, size)) for i, obj in last_first)
        masked = {obj for obj, bitmap in bitmaps if _draw_mask(canvas, bitmap, obj, scale)}
    draw = ImageDraw.Draw(canvas)
    for i, obj in last_first:
        if obj.filled or obj not in masked:
            x1, y1, x2, y2 = obj.box
            # x2 and y2 are one after the last pixel. PIL refuses negative sides.
            x2, y2 = max(x1, x2 - 1), max(y1, y2 - 1)
            if border := obj.border:
                outer = (x1 - border, y1 - border, x2 + border, y2 + border)
                draw.rectangle(outer, outline=_BORDER, width=border)
            draw.rectangle((x1, y1, x2, y2), outline=obj.color, width=obj.line)
        if "keypoints" in detections:
            radius = 2 * obj.line
            for x, y, visibility in (detections["keypoints"][i] * scale).tolist():
                if visibility > 0:
                    corners = (x - radius, y - radius, x + radius, y + radius)
                    draw.ellipse(corners, fill=obj.color, outline="white")
    if tags is not False:
        _draw_tags(canvas, objects, tags or (tracked and not crowded))
    return canvas


class _Object:
    """An object and its style, which depends on the sizes of the object and the drawn image."""

    def __init__(
        self, box: list[float], text: str, color: Color, image_side: int, crowded: bool
    ) -> None:
        x1, y1, x2, y2 = box
        side = math.sqrt(max(x2 - x1, 0) * max(y2 - y1, 0))
        self.box, self.text, self.color = (x1, y1, x2, y2), text, color
        self.line = round(max(1, image_side / 1000, min(max(image_side / 320, 2), side / 16)))
        self.filled = side >= _SMALL_SIDE and not crowded
        self.border = max(1, self.line // 3) if self.filled else 0
        self.smallest_font = max(10, round(image_side / 90))
        self.font = round(min(max(self.smallest_font, image_side / 45), side / 5))
        if self.font < self.smallest_font or crowded:
            self.font = 0  # there is no room for a tag


def category_color(label: int) -> Color:
    """Return the color of a label >= 1: hues at steps of the golden ratio, in three shades."""
    index = label - 1
    lightness = (0.55, 0.45, 0.65)[index // 8 % 3]
    red, green, blue = colorsys.hls_to_rgb((0.58 + index * 0.618034) % 1, lightness, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def _bitmap(masks: Any, index: int, size: tuple[int, int]) -> np.ndarray:
    """Return a mask bool [H, W]."""
    width, height = size
    if isinstance(masks, PackedMasks):
        masks, index = masks.select(torch.tensor([index])).bitmaps(height, width), 0
    return to_bitmap(masks[index], height, width) != 0


def _draw_mask(canvas: Image.Image, bitmap: np.ndarray, style: _Object, scale: float) -> bool:
    """Draw the edge of a mask, and fill it if it is not small; return False if it is empty."""
    mask = Image.fromarray(bitmap.astype(np.uint8) * 255)
    bounds = mask.getbbox()
    if bounds is None:
        return False
    left, top = (math.floor(side * scale) for side in bounds[:2])
    right, bottom = (math.ceil(side * scale) for side in bounds[2:])
    source = left / scale, top / scale, right / scale, bottom / scale
    source = (*source[:2], min(source[2], mask.width), min(source[3], mask.height))
    mask = mask.resize((right - left, bottom - top), Image.Resampling.BILINEAR, source)
    mask = mask.point([0] * 128 + [255] * 128)
    line, border = style.line, style.border
    padded = ImageOps.expand(mask, line + border)
    inner = _shifted(ImageChops.darker, padded, line)
    fill = Image.new("L", padded.size, _FILL if style.filled else 0)
    edge = ImageChops.darker(padded, Image.new("L", padded.size, _EDGE))
    corner = left - line - border, top - line - border
    if border:
        around = ImageChops.subtract(_shifted(ImageChops.lighter, padded, border), padded)
        canvas.paste(_BORDER, corner, around)
    canvas.paste(style.color, corner, Image.composite(fill, edge, inner))
    return mask.getbbox() is not None


def _shifted(
    combine: Callable[[Image.Image, Image.Image], Image.Image], mask: Image.Image, by: int
) -> Image.Image:
    """Combine a mask with itself shifted in four directions: to shrink or to grow it."""
    result = mask
    for shift in ((by, 0), (-by, 0), (0, by), (0, -by)):
        result = combine(result, ImageChops.offset(mask, *shift))
    return result


def _draw_tags(canvas: Image.Image, objects: Sequence[_Object], draw_all: bool) -> None:
    """Write the tags of the objects where they cover no other tag.

    With `draw_all`, tags without room are written too.
    """
    draw, size = ImageDraw.Draw(canvas), canvas.size
    taken: list[Box] = []
    for obj in objects:
        font = obj.font or (obj.smallest_font if draw_all else 0)
        if not obj.text or not font:
            continue
        line = Line(obj.text, font)
        left, top, right, bottom = line.box
        width, height = right - left + 4, bottom - top + 4
        x1, y1, x2, y2 = obj.box
        x = max(0.0, min(x1, size[0] - width))
        # Above the box, below it, inside at the top, right of it, or left of it.
        corners = [(x, y1 - height), (x, y2), (x, y1), (x2, y1), (x1 - width, y1)]
        boxes = [
            (x, y, x + width, y + height)
            for x, y in corners
            if 0 <= x <= size[0] - width and 0 <= y <= size[1] - height
        ] or [(x, y1, x + width, y1 + height)]
        free = [box for box in boxes if not any(_overlap(box, other) for other in taken)]
        if not free and not draw_all:
            continue
        box = (free or boxes)[0]
        taken.append(box)
        draw.rectangle(box, fill=obj.color)
        luma = 0.299 * obj.color[0] + 0.587 * obj.color[1] + 0.114 * obj.color[2]
        color = "white" if luma < 140 else "black"
        line.draw(canvas, box[0] + 2 - left, box[1] + 2 - top, color)


def _overlap(first: Box, second: Box) -> bool:
    return (
        first[0] < second[2] and second[0] < first[2]
        and first[1] < second[3] and second[1] < first[3]
    )  # fmt: skip


def composite_rgb(image: Tensor) -> Tensor:
    """Return an image [C, H, W] as RGB for display: gray if C is 1, red and green if C is 2, and
    otherwise the first three channels."""
    if len(image) == 1:
        return image.expand(3, -1, -1)
    return torch.cat([image, torch.zeros_like(image[:1])])[:3]
