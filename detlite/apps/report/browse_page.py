"""Build an HTML page of augmented training images with their objects and matched anchors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

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
_STATES = _MATCHED, _WEAK, _UNMATCHED = "all matched", "weakly matched", "no anchor"

TemplateData = dict[str, Any]


@dataclass(frozen=True)
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

    strides: list[int]
    sides: list[list[int]]
    anchors: Tensor
    levels: Tensor
    matched: Tensor
    overlaps: Tensor
    foreground: float

    def counts(self, image: int) -> Tensor:
        """Return the number of anchors of each level assigned to each object: int64 [G, L]."""
        objects, levels = self.overlaps.shape[1], len(self.strides)
        assigned = self.matched[image] >= 0
        cells = self.matched[image][assigned] * levels + self.levels[assigned]
        return torch.bincount(cells, minlength=objects * levels).view(objects, levels)


@torch.no_grad()
def match_anchors(
    model: DetectionModel, images: Sequence[Tensor], targets: Sequence[dict[str, Any]]
) -> AnchorMatches | None:
    """Match the anchors of a batch as a training step of `model` does before it samples them.

    The model must be on the CPU; its weights do not matter. Returns None for a model without
    anchors, that is, with precomputed proposals.
    """
    head: Any = model if isinstance(model, RetinaNet) else getattr(model, "rpn", None)
    if head is None:
        return None
    generator, matcher = head.anchor_generator, head.matcher
    straddle = getattr(head, "straddle", -1)
    truth = prepare_targets(targets, images, model.num_classes)
    batch = model.normalizer(images)
    height, width = batch.pixels.shape[-2:]
    strides = list(generator.strides)
    per_level = generator([(-(-height // stride), -(-width // stride)) for stride in strides])
    anchors = torch.cat(per_level)
    levels = torch.cat([torch.full((len(level),), n) for n, level in enumerate(per_level)])
    matched = matcher(truth, anchors)
    usable = torch.ones_like(matched, dtype=torch.bool)
    if straddle >= 0:
        usable = box_ops.inside(anchors, batch.sizes, straddle, model.convention).expand_as(matched)
        matched = torch.where(usable, matched, IGNORE)
    overlaps = torch.stack([
        box_ops.iou(boxes, anchors).masked_fill(~inside, 0).amax(dim=1)
        for boxes, inside in zip(truth.boxes, usable, strict=True)
    ])  # fmt: skip
    overlaps = torch.where(truth.valid, overlaps, 0)
    sides = []
    for level in range(len(strides)):
        cell = generator.get_buffer(f"cell{level}")
        roots = (cell[:, 2:] - cell[:, :2]).prod(dim=1).sqrt()
        sides.append(sorted(set(roots.round().int().tolist())))
    return AnchorMatches(strides, sides, anchors, levels, matched, overlaps, matcher.foreground)


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
    names = [category["name"] for category in train_set.categories]
    images: list[TemplateData] = []
    objects: list[TemplateData] = []
    positives: list[Tensor] = []
    matches = None
    samples = _samples(model, build_train_loader(cfg, train_set))
    for where, image, target, matches, index in islice(samples, count):
        rows: list[TemplateData] = []
        if matches:
            rows = list(_objects(matches, index, target, names, where))
            positives.append(matches.counts(index).sum(dim=0))
        objects += rows
        images.append(_image(image, target, train_set.categories, matches, index, rows, where))
    hard = [obj for obj in objects if obj["state"] != _MATCHED]
    hard.sort(key=lambda obj: (obj["state"] == _WEAK, obj["iou"]))
    unmatched = sum(obj["state"] == _UNMATCHED for obj in objects)
    levels = []
    if matches:
        colors = map(_level_color, range(len(matches.strides)))
        counts = torch.stack(positives).sum(dim=0).tolist()
        levels = list(zip(matches.strides, matches.sides, counts, colors, strict=True))
    return render(
        "browse.html",
        name=train_set.name,
        config_node="MODEL.RETINANET" if isinstance(model, RetinaNet) else "MODEL.RPN",
        images=images,
        states=[s for s in _STATES if s in {row["state"] for row in images}],
        objects=len(objects),
        unmatched=unmatched,
        weak=len(hard) - unmatched,
        foreground=f"{100 * matches.foreground:.0f}" if matches else "",
        hard=hard[:_MAX_ROWS],
        hard_count=len(hard),
        levels=levels,
        chart=charts.sizes(
            "Sizes of objects and anchors",
            [obj["side"] for obj in objects],
            matches.sides,
        ) if matches and objects else "",
    )  # fmt: skip


def _samples(
    model: DetectionModel, batches: Any
) -> Iterator[tuple[str, Tensor, TemplateData, AnchorMatches | None, int]]:
    """Yield each image with its description, target, and the matches of its batch."""
    for iteration, batch in enumerate(batches, start=1):
        matches = match_anchors(model, *batch)
        for index, (image, target) in enumerate(zip(*batch, strict=True)):
            where = f"iteration {iteration}, image {target['image_id']}"
            yield where, image, target, matches, index


def _objects(
    matches: AnchorMatches, index: int, target: TemplateData, names: list[str], where: str
) -> Iterator[TemplateData]:
    """Describe the anchors of each object of an image."""
    counts = matches.counts(index).sum(dim=1).tolist()
    for n, (box, label) in enumerate(
        zip(target["boxes"].tolist(), target["labels"].tolist(), strict=True)
    ):
        iou = float(matches.overlaps[index, n])
        state = _MATCHED if iou >= matches.foreground else _WEAK
        width, height = box[2] - box[0], box[3] - box[1]
        yield {
            "name": names[label - 1], "where": where, "anchors": counts[n], "iou": iou,
            "percent": f"{100 * iou:.0f}", "size": f"{width:.0f} x {height:.0f}",
            "side": (width * height) ** 0.5, "state": state if counts[n] else _UNMATCHED,
        }  # fmt: skip


def _image(
    image: Tensor,
    target: TemplateData,
    categories: list[TemplateData],
    matches: AnchorMatches | None,
    index: int,
    objects: list[TemplateData],
    where: str,
) -> TemplateData:
    """Draw the objects of an image and, as a second image, the anchors that match them."""
    height, width = image.shape[-2:]
    text = f"{where}: {width} x {height} px, {len(target['labels'])} objects"
    drawn = [draw_detections(image, target, categories)]
    unmatched = [n for n, obj in enumerate(objects) if obj["state"] == _UNMATCHED]
    if matches:
        anchors = (matches.matched[index] >= 0).nonzero()[:, 0]
        text += f", {len(anchors)} anchors"
        if len(anchors) > _MAX_ANCHORS:  # select them evenly over the image and the levels
            steps = torch.linspace(0, len(anchors) - 1, _MAX_ANCHORS)
            anchors = anchors[steps.round().long()]
        boxes = torch.cat([target["boxes"][unmatched], matches.anchors[anchors]])
        colors = [_UNMATCHED_COLOR] * len(unmatched)
        colors += [_level_color(level) for level in matches.levels[anchors].tolist()]
        labels = torch.ones(len(boxes), dtype=torch.int64)
        detections = {"boxes": boxes, "labels": labels}
        drawn.append(draw_detections(image, detections, categories, colors=colors, tags=False))
    for picture in drawn:
        picture.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    states = [_MATCHED, *(obj["state"] for obj in objects)]
    return {
        "sources": [jpeg(picture) for picture in drawn],
        "text": text,
        "state": max(states, key=_STATES.index),
        "unmatched": [f"{objects[n]['name']} {objects[n]['size']} px" for n in unmatched],
    }


def _level_color(level: int) -> Color:
    return _LEVEL_COLORS[level % len(_LEVEL_COLORS)]
