"""Build an HTML page of augmented training images with their objects and matched anchors."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from yacs.config import CfgNode

from detlite.apps.drawing.detections import Color, draw_detections
from detlite.apps.drawing.html_page import jpeg, render
from detlite.data import build_train_dataset, build_train_loader
from detlite.modeling import build_model
from detlite.modeling.boxes.matcher import IGNORE
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.preprocessing import prepare_targets
from detlite.modeling.retinanet import RetinaNet
from detlite.structures import boxes as box_ops

from . import charts

_SIDE = 460  # longer side of an image on the page, in pixels
_MAX_ANCHORS = 150  # drawn anchors in an image
_MAX_ROWS = 200  # rows in the table of objects without good anchors
# Colors of the levels, finest first, light enough for dark images.
_LEVEL_COLORS: tuple[Color, ...] = (
    (86, 180, 233), (240, 228, 66), (0, 200, 140), (255, 140, 40), (230, 130, 190), (150, 110, 255),
    (200, 200, 200),
)  # fmt: skip
_UNMATCHED_COLOR: Color = (255, 60, 40)

TemplateData = dict[str, Any]


class AnchorMatches:
    """Anchors and objects of a batch, in pixels of the network input.

    Shapes: B images, L levels, N anchors of all levels, G objects per image including padding.

    Attributes:
        strides, sides: for each level, the stride and the square roots of the anchor areas.
        anchors, levels: float32 [N, 4] xyxy, and int64 [N], the level of each anchor.
        matched: int64 [B, N], the object assigned to each anchor; negative: background or ignored.
        overlaps: float32 [B, G], the highest IoU of each object with an anchor that is not ignored;
            0 at padding.
        foreground: IoU threshold of foreground anchors.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: DetectionModel,
        head: Any,
        images: Sequence[Tensor],
        targets: Sequence[dict[str, Any]],
    ) -> None:
        generator, straddle = head.anchor_generator, getattr(head, "straddle", -1)
        truth = prepare_targets(targets, images, model.num_classes)
        batch = model.normalizer(images)
        height, width = batch.pixels.shape[-2:]
        self.strides = list(generator.strides)
        grids = [(-(-height // stride), -(-width // stride)) for stride in self.strides]
        per_level = generator(grids)
        self.anchors, counts = torch.cat(per_level), [len(level) for level in per_level]
        self.levels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        self.matched, self.foreground = head.matcher(truth, self.anchors), head.matcher.foreground
        usable = torch.ones_like(self.matched, dtype=torch.bool)
        if straddle >= 0:
            inside = box_ops.inside(self.anchors, batch.sizes, straddle, model.convention)
            usable = inside.expand_as(self.matched)
            self.matched = torch.where(usable, self.matched, IGNORE)
        overlaps = torch.stack([
            box_ops.iou(boxes, self.anchors).masked_fill(~seen, 0).amax(dim=1)
            for boxes, seen in zip(truth.boxes, usable, strict=True)
        ])  # fmt: skip
        self.overlaps = torch.where(truth.valid, overlaps, 0)
        self.sides = []
        for level in range(len(self.strides)):
            cell = generator.get_buffer(f"cell{level}")
            roots = (cell[:, 2:] - cell[:, :2]).prod(dim=1).sqrt()
            self.sides.append(sorted(set(roots.round().int().tolist())))

    def counts(self, image: int) -> Tensor:
        """Return the number of anchors of each level assigned to each object: int64 [G, L]."""
        objects, levels = self.overlaps.shape[1], len(self.strides)
        assigned = self.matched[image] >= 0
        cells = self.matched[image][assigned] * levels + self.levels[assigned]
        return torch.bincount(cells, minlength=objects * levels).view(objects, levels)


def match_anchors(
    model: DetectionModel, images: Sequence[Tensor], targets: Sequence[dict[str, Any]]
) -> AnchorMatches | None:
    """Match the anchors of a batch as a training step of `model` does before it samples them.

    The model must be on the CPU; its weights do not matter. Returns None for a model without
    anchors, that is, with precomputed proposals.
    """
    head = model if isinstance(model, RetinaNet) else getattr(model, "rpn", None)
    return None if head is None else AnchorMatches(model, head, images, targets)


def browse_page(cfg: CfgNode, count: int) -> str:
    """Return the page about the first `count` training images, as one HTML document.

    SEED decides the order and the augmentation of the images.

    Raises:
        ConfigError, DataError: as in training; or ConfigError if jinja2 is not installed.
    """
    cfg = cfg.clone()
    cfg.defrost()
    cfg.MODEL.DEVICE, cfg.DATALOADER.NUM_WORKERS = "cpu", 0
    train_set = build_train_dataset(cfg)
    model = build_model(cfg)
    samples = _samples(model, build_train_loader(cfg, train_set))
    images = [_image(*sample, train_set.categories) for sample in islice(samples, count)]
    objects = [obj for image in images for obj in image["objects"]]
    matches: AnchorMatches | None = images[-1]["matches"] if images else None
    hard = [obj for obj in objects if not obj["anchors"] or obj["iou"] < obj["foreground"]]
    hard.sort(key=lambda obj: (obj["anchors"] > 0, obj["iou"]))
    levels = []
    if matches:
        totals = torch.stack([image["positives"] for image in images]).sum(dim=0).tolist()
        colors = map(_level_color, range(len(totals)))
        levels = list(zip(matches.strides, matches.sides, totals, colors, strict=True))
    return render(
        "browse.html",
        name=train_set.name,
        config_node="MODEL.RETINANET" if isinstance(model, RetinaNet) else "MODEL.RPN",
        images=images,
        objects=len(objects),
        unmatched=sum(not obj["anchors"] for obj in objects),
        foreground=matches and matches.foreground,
        hard=hard,
        max_rows=_MAX_ROWS,
        levels=levels,
        chart=_size_chart(matches, objects) if matches and objects else "",
    )


def _size_chart(matches: AnchorMatches, objects: list[TemplateData]) -> str:
    """Plot a histogram of object sizes, with the sizes of the anchors of each level."""
    sides = np.array([obj["side"] for obj in objects])
    anchors = np.concatenate(matches.sides)
    shown = np.append(sides[sides > 0], anchors)
    bounds = np.geomspace(0.8 * shown.min(), 1.25 * shown.max(), 31)
    counts, _ = np.histogram(sides, bounds)
    curves = {
        "objects": (np.repeat(bounds, 2), [0, *np.repeat(counts, 2), 0]),
        "anchors": (np.repeat(anchors, 3), np.tile([0, counts.max(), np.nan], len(anchors))),
    }
    label = "square root of width x height (px)"
    return charts.chart("Sizes of objects and anchors", curves, label, "objects", xscale="log")


def _samples(
    model: DetectionModel, batches: Any
) -> Iterator[tuple[str, Tensor, TemplateData, AnchorMatches | None, int]]:
    """Yield each image with its description, target, and the matches of its batch."""
    for iteration, batch in enumerate(batches, start=1):
        matches = match_anchors(model, *batch)
        for index, (image, target) in enumerate(zip(*batch, strict=True)):
            where = f"iteration {iteration}, image {target['image_id']}"
            yield where, image, target, matches, index


def _image(
    where: str,
    image: Tensor,
    target: TemplateData,
    matches: AnchorMatches | None,
    index: int,
    categories: list[TemplateData],
) -> TemplateData:
    """Draw the objects of an image and, as a second image, the anchors that match them."""
    height, width = image.shape[-2:]
    labels = target["labels"].tolist()
    text = f"{where}: {width} x {height} px, {len(labels)} objects"
    drawn = [draw_detections(image, target, categories)]
    rows, positives = [], None
    if matches:
        counts = matches.counts(index)
        positives, by_object = counts.sum(dim=0), counts.sum(dim=1).tolist()
        for n, (x1, y1, x2, y2) in enumerate(target["boxes"].tolist()):
            rows.append({
                "name": categories[labels[n] - 1]["name"], "where": where, "anchors": by_object[n],
                "iou": float(matches.overlaps[index, n]), "foreground": matches.foreground,
                "size": f"{x2 - x1:.0f} x {y2 - y1:.0f}", "side": ((x2 - x1) * (y2 - y1)) ** 0.5,
            })  # fmt: skip
        anchors = (matches.matched[index] >= 0).nonzero()[:, 0]
        text += f", {len(anchors)} anchors"
        if len(anchors) > _MAX_ANCHORS:  # select them evenly over the image and the levels
            steps = torch.linspace(0, len(anchors) - 1, _MAX_ANCHORS)
            anchors = anchors[steps.round().long()]
        unmatched = [n for n in range(len(labels)) if not by_object[n]]
        boxes = torch.cat([target["boxes"][unmatched], matches.anchors[anchors]])
        colors = [_UNMATCHED_COLOR] * len(unmatched)
        colors += [_level_color(level) for level in matches.levels[anchors].tolist()]
        detections = {"boxes": boxes, "labels": torch.ones(len(boxes), dtype=torch.int64)}
        drawn.append(draw_detections(image, detections, categories, colors=colors, tags=False))
    for picture in drawn:
        picture.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    sources = [jpeg(picture) for picture in drawn]
    return {"sources": sources, "text": text, "objects": rows, "matches": matches,
            "positives": positives}  # fmt: skip


def _level_color(level: int) -> Color:
    return _LEVEL_COLORS[level % len(_LEVEL_COLORS)]
