"""The page of what a model is trained on: pictures after augmentation, objects, and anchors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from yacs.config import CfgNode

from detlite.apps.drawing.detections import Colour, draw_detections
from detlite.apps.drawing.page import jpeg, render
from detlite.data import build_train_dataset, build_train_loader
from detlite.modeling import build_model
from detlite.modeling.retinanet import RetinaNet

from . import charts
from .analysis.anchor_assignment import AnchorMatches, match_anchors

_SIDE = 460  # pixels of a picture on the page
_MOST_ANCHORS = 150  # drawn in a picture
_MOST_ROWS = 200  # of objects that are hard to find
# Of the levels, finest first; light enough to be seen on a dark picture.
_LEVELS: tuple[Colour, ...] = (
    (86, 180, 233), (240, 228, 66), (0, 200, 140), (255, 140, 40), (230, 130, 190), (150, 110, 255),
    (200, 200, 200),
)  # fmt: skip
_LOST: Colour = (255, 60, 40)  # an object without an anchor
_FOUND, _WEAK, _NONE = "all matched", "weakly matched", "no anchor"

Part = dict[str, Any]


def browse_page(cfg: CfgNode, count: int) -> str:
    """The HTML of a page about the first images that training gets; pictures are in it.

    Args:
        cfg: of a training. Its SEED says which images are first, and how they are augmented.
        count: how many images.

    Raises:
        ConfigError, DataError: as from training; or jinja2 is not installed.
    """
    cfg = cfg.clone()
    cfg.defrost()
    cfg.MODEL.DEVICE, cfg.DATALOADER.NUM_WORKERS = "cpu", 0
    train_set = build_train_dataset(cfg)
    batches = build_train_loader(cfg, train_set)
    model = build_model(cfg)
    names = [category["name"] for category in train_set.categories]
    shown: list[Part] = []
    objects: list[Part] = []
    positives = torch.zeros(0)
    strides: list[int] = []
    foreground = 0.0
    for iteration, (images, targets) in enumerate(batches, start=1):
        matches = match_anchors(model, images, targets)
        for number, (image, target) in enumerate(zip(images, targets, strict=True)):
            if len(shown) == count:
                break
            where = f"iteration {iteration}, image {target['image_id']}"
            own: list[Part] = []
            if matches:
                own = list(_objects(matches, number, target, names, where))
                counts = matches.counts(number).sum(dim=0)
                positives = counts if not len(positives) else positives + counts
                strides, foreground = matches.strides, matches.foreground
            objects += own
            shown.append(_picture(image, target, train_set.categories, matches, number, own, where))
        if len(shown) == count:
            break
    hard = [one for one in objects if one["state"] != _FOUND]
    sizes = [len([one for one in objects if one["state"] == state]) for state in (_NONE, _WEAK)]
    generator = getattr(getattr(model, "rpn", model), "anchor_generator", None)
    return render(
        "browse.html",
        name=train_set.name,
        part="MODEL.RETINANET" if isinstance(model, RetinaNet) else "MODEL.RPN",
        pictures=shown,
        states=[s for s in (_FOUND, _WEAK, _NONE) if any(one["state"] == s for one in shown)],
        objects=len(objects) if strides else sum(one["objects"] for one in shown),
        without=sizes[0],
        weak=sizes[1],
        foreground=f"{100 * foreground:.0f}",
        hard=sorted(hard, key=lambda one: (one["state"] != _NONE, one["overlap"]))[:_MOST_ROWS],
        hard_count=len(hard),
        levels=_levels(strides, positives, generator) if strides else [],
        chart=charts.sizes(
            "Objects and anchors by size",
            [one["side"] for one in objects],
            _sides(generator),
        ) if objects else "",
    )  # fmt: skip


def _objects(
    matches: AnchorMatches, number: int, target: Part, names: list[str], where: str
) -> Iterator[Part]:
    """What anchors the objects of an image have."""
    counts = matches.counts(number).sum(dim=1).tolist()
    for n, (box, label) in enumerate(
        zip(target["boxes"].tolist(), target["labels"].tolist(), strict=True)
    ):
        overlap = float(matches.overlaps[number, n])
        state = _FOUND if overlap >= matches.foreground else _WEAK
        width, height = box[2] - box[0], box[3] - box[1]
        yield {
            "name": names[label - 1], "where": where, "anchors": counts[n], "overlap": overlap,
            "percent": f"{100 * overlap:.0f}", "size": f"{width:.0f} x {height:.0f}",
            "side": (width * height) ** 0.5, "state": state if counts[n] else _NONE,
        }  # fmt: skip


def _picture(
    image: Tensor,
    target: Part,
    categories: list[Part],
    matches: AnchorMatches | None,
    number: int,
    objects: list[Part],
    where: str,
) -> Part:
    """An image with its objects, beside the anchors that are to find them."""
    height, width = image.shape[-2:]
    # Names of a single category would only hide what there is.
    named = categories if len(categories) > 1 else [{"id": 0, "name": ""}]
    sides = [_shrunk(draw_detections(image, target, named))]
    if matches:
        index = (matches.matched[number] >= 0).nonzero()[:, 0]
        total = len(index)
        if total > _MOST_ANCHORS:  # from all over the image and all levels
            index = index[torch.linspace(0, total - 1, _MOST_ANCHORS).round().long()]
        lost = [n for n, one in enumerate(objects) if one["state"] == _NONE]
        boxes = torch.cat([target["boxes"][lost], matches.anchors[index]])
        levels = matches.levels[index].tolist()
        colours = [_LOST] * len(lost) + [_LEVELS[level % len(_LEVELS)] for level in levels]
        drawn = {"boxes": boxes, "labels": torch.ones(len(boxes), dtype=torch.int64)}
        nameless = [{"id": 0, "name": ""}]
        sides.append(_shrunk(draw_detections(image, drawn, nameless, colours=colours)))
    states = {one["state"] for one in objects}
    state = next((s for s in (_NONE, _WEAK) if s in states), _FOUND)
    few = [f"{one['name']} {one['size']} px" for one in objects if one["state"] == _NONE]
    text = f"{where}: {width} x {height} px, {len(target['labels'])} objects"
    if matches:
        text += f", {total} anchors"
    return {
        "sources": [jpeg(side) for side in sides], "text": text, "state": state,
        "none": few, "objects": len(target["labels"]),
    }  # fmt: skip


def _shrunk(picture: Image.Image) -> Image.Image:
    picture.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    return picture


def _levels(strides: list[int], positives: Tensor, generator: Any) -> list[Part]:
    """What anchors each level has, and how many of them find something."""
    total = max(int(positives.sum()), 1)
    return [
        {
            "stride": stride, "sides": ", ".join(f"{side:.0f}" for side in sides),
            "anchors": int(count), "percent": f"{100 * count / total:.0f}",
            "colour": "rgb({}, {}, {})".format(*_LEVELS[level % len(_LEVELS)]),
        }
        for level, (stride, count, sides) in enumerate(
            zip(strides, positives.tolist(), _sides(generator), strict=True)
        )
    ]  # fmt: skip


def _sides(generator: Any) -> list[list[float]]:
    """The sides of each level's anchors, as those of squares of the same area."""
    if generator is None:
        return []
    cells = [generator.get_buffer(f"cell{level}") for level in range(len(generator.strides))]
    return [
        sorted({round(float(side)) for side in (cell[:, 2:] - cell[:, :2]).prod(dim=1).sqrt()})
        for cell in cells
    ]
