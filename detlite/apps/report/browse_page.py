"""Build an HTML page of augmented training images with their objects."""

from itertools import chain, islice
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from yacs.config import CfgNode

from detlite.apps.autoconfig.anchors import MIN_IOU
from detlite.apps.drawing.detections import draw_detections
from detlite.apps.drawing.html_page import jpeg, render
from detlite.config import changed
from detlite.data import build_train_dataset, build_train_loader
from detlite.modeling import build_model
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.retinanet import RetinaNet
from detlite.structures import boxes as box_ops

_SIDE = 460  # longer side of an image on the page, in pixels
_MAX_ROWS = 200  # rows in the table of objects without good anchors

TemplateData = dict[str, Any]


def anchor_head(model: DetectionModel) -> Any:
    """Return the RPN or RetinaNet of a model; None for a model with precomputed proposals."""
    return model if isinstance(model, RetinaNet) else getattr(model, "rpn", None)


@torch.no_grad()
def best_overlaps(model: DetectionModel, image: Tensor, boxes: Tensor) -> Tensor:
    """Return the IoU [G] of boxes [G, 4] in a network input with their best anchors.

    It is 1 for a model without anchors.
    """
    if (head := anchor_head(model)) is None:
        return torch.ones(len(boxes))
    generator = head.anchor_generator
    height, width = model.normalizer([image]).pixels.shape[-2:]
    sizes = [(-(-height // stride), -(-width // stride)) for stride in generator.strides]
    return box_ops.iou(boxes, torch.cat(generator(sizes))).amax(dim=1)


def browse_page(cfg: CfgNode, count: int) -> str:
    """Return the page about the first `count` training images, as one HTML document.

    SEED decides the order and the augmentation of the images.

    Raises:
        ConfigError, DataError: as in training; or ConfigError if jinja2 is not installed.
    """
    cfg = changed(cfg, {"MODEL.DEVICE": "cpu", "DATALOADER.NUM_WORKERS": 0})
    train_set, model = build_train_dataset(cfg), build_model(cfg)
    loader = enumerate(build_train_loader(cfg, train_set), start=1)
    samples = chain.from_iterable(
        ((iteration, *sample) for sample in zip(*batch, strict=True)) for iteration, batch in loader
    )
    images = [_image(model, train_set.categories, *sample) for sample in islice(samples, count)]
    objects = [obj for image in images for obj in image["objects"]]
    return render(
        "browse.html",
        name=train_set.name,
        config_node="MODEL.RETINANET" if isinstance(model, RetinaNet) else "MODEL.RPN",
        images=images,
        objects=len(objects),
        has_anchors=anchor_head(model) is not None,
        min_iou=MIN_IOU,
        weak=sorted((x for x in objects if x["iou"] < MIN_IOU), key=lambda x: x["iou"]),
        max_rows=_MAX_ROWS,
    )


def _image(
    model: DetectionModel,
    categories: list[TemplateData],
    iteration: int,
    image: Tensor,
    target: TemplateData,
) -> TemplateData:
    """Draw the objects of an image, and compare them with the anchors."""
    (height, width), labels, boxes = image.shape[-2:], target["labels"].tolist(), target["boxes"]
    where = f"iteration {iteration}, image {target['image_id']}"
    overlaps = best_overlaps(model, image, boxes).tolist()
    objects = []
    for label, iou, (x1, y1, x2, y2) in zip(labels, overlaps, boxes.tolist(), strict=True):
        name, size = categories[label - 1]["name"], f"{x2 - x1:.0f} x {y2 - y1:.0f}"
        objects.append({"name": name, "where": where, "iou": iou, "size": size})
    drawn = draw_detections(image, target, categories)
    drawn.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    text = f"{where}: {width} x {height} px, {len(labels)} objects"
    return {"source": jpeg(drawn), "text": text, "objects": objects}
