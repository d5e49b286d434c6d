"""Attributes of objects: a field that is trained, predicted and measured.

The attributes of generated shapes follow from their annotations. For your own data, change NAMES
and `Attributes.read`. Letters in shapes: N detections, R rows, A attributes, C channels.
"""

import numpy as np
import torch
from pycocotools import mask
from torch import nn
from torch.nn import functional as F

from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.evaluation import EVALUATORS, Evaluator
from detlite.modeling import META_ARCHITECTURES, RoIHead, gather
from detlite.structures.object_fields import OBJECT_FIELDS, ObjectField

NAMES = ("large", "wide", "tall", "thin")


@OBJECT_FIELDS.register("attributes")
class Attributes(ObjectField):
    """1 for each attribute of an object, else 0; of a detection the probabilities."""

    shape = (len(NAMES),)

    def read(self, annotation):
        width, height = annotation["bbox"][2:]
        is_thin = annotation["area"] < 0.3 * width * height
        return [annotation["area"] > 900, width > 1.2 * height, height > 1.2 * width, is_thin]

    def write(self, value):
        return {name: round(p, 4) for name, p in zip(NAMES, value.tolist(), strict=True)}


class AttributeHead(RoIHead):
    """Predicts the attributes of a box from the features of the box head."""

    target, predicted = "attributes", ("attributes",)

    def __init__(self, channels):
        layers = nn.Linear(channels, 128), nn.ReLU(), nn.Linear(128, len(NAMES))
        super().__init__(None, nn.Sequential(*layers))

    def losses(self, logits, packing, samples, truth):
        target = gather(truth.extra_fields["attributes"], samples.gt_index)
        loss = F.binary_cross_entropy_with_logits(logits, packing.pack(target), reduction="none")
        loss = torch.where(packing.valid, loss.mean(dim=1), 0).sum()
        return {"loss_attributes": loss / packing.valid.sum().clamp(min=1)}

    def fields(self, outputs, boxes):
        return {"attributes": outputs.sigmoid()}


@META_ARCHITECTURES.register("AttributeRCNN")
def build_attribute_rcnn(cfg):
    model = META_ARCHITECTURES.get("GeneralizedRCNN")(cfg)
    channels = model.roi_heads.box.feature_extractor.out_channels
    model.roi_heads.add_module("attributes", AttributeHead(channels))
    return model


@EVALUATORS.register("attributes")
class AttributeEvaluator(Evaluator):
    """Fraction of the objects for which each attribute of the detection with the highest IoU, at
    least 0.5, is right."""

    def evaluate(self, cfg, dataset, results):
        truth, field, right = build_coco_gt(dataset), Attributes("attributes"), []
        for image_id, objects in truth.imgToAnns.items():
            found = results[np.flatnonzero(results.image_ids == image_id)]
            objects = [row for row in objects if not row["iscrowd"]]
            if not objects or not len(found):
                continue
            ious = mask.iou(found.boxes.astype(float), np.array([row["bbox"] for row in objects]),
                            [0] * len(objects))  # fmt: skip
            for row, best, iou in zip(objects, ious.argmax(0), ious.max(0), strict=True):
                if iou >= 0.5:
                    right.append((found.fields["attributes"][best] >= 0.5) == field.read(row))
        means = np.mean(right, axis=0).tolist() if right else [None] * len(NAMES)
        return {"attributes": dict(zip(NAMES, means, strict=True))}
