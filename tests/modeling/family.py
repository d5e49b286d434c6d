"""One small model of every kind, and records for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from yacs.config import CfgNode

from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.preprocessing import prepare_targets
from detlite.structures.instances import GroundTruth, Images, Proposals

_KEYPOINT_HEAD = {
    "MODEL.KEYPOINT_ON": True,
    "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES": 3,
    "MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR": False,
    "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION": 56,
    "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS": (8,),
    "MODEL.ROI_KEYPOINT_HEAD.POOLER_SAMPLING_RATIO": 2,
}
_RETINANET = {
    "MODEL.META_ARCHITECTURE": "RetinaNet",
    "MODEL.BACKBONE.CONV_BODY": "R-18-FPN-RETINANET",
    "MODEL.MASK_ON": False,
    "MODEL.RETINANET.NUM_CLASSES": 4,
    "MODEL.RETINANET.INFERENCE_TH": 0.001,
}
_CASCADE = {
    "MODEL.ROI_HEADS.CASCADE_IOUS": (0.5, 0.6, 0.7),
    "MODEL.CLS_AGNOSTIC_BBOX_REG": True,
}

# What distinguishes each from a Mask R-CNN with an FPN.
FAMILY: dict[str, dict[str, Any]] = {
    "mask": {},
    "c4": {"MODEL.BACKBONE.CONV_BODY": "R-18-C4"},
    "keypoint": _KEYPOINT_HEAD,
    "cascade": _CASCADE,
    "agnostic": {"MODEL.CLS_AGNOSTIC_BBOX_REG": True},
    "fast": {"MODEL.LOAD_PROPOSALS": True},
    "maskrcnn-benchmark": {"MODEL.CONVENTION": "maskrcnn-benchmark"},
    "torchvision": {"MODEL.CONVENTION": "torchvision", "DATALOADER.SIZE_DIVISIBILITY": 32},
    "voting": {"TEST.NMS.METHOD": "voting"},
    "soft": {"TEST.NMS.METHOD": "soft-linear"},
    "retinanet": _RETINANET,
    "retinanet-detectron2": {**_RETINANET, "MODEL.CONVENTION": "detectron2"},
    "retinanet-torchvision": {**_RETINANET, "MODEL.CONVENTION": "torchvision"},
    "proposals": {"MODEL.META_ARCHITECTURE": "ProposalNetwork", "MODEL.MASK_ON": False},
}


def family_config(name: str, tiny_config: Callable[..., CfgNode]) -> CfgNode:
    """The config of one of FAMILY, every proposal and anchor of which is trained on."""
    settings = {
        "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": 100,
        "MODEL.ROI_HEADS.POSITIVE_FRACTION": 1.0,
        "MODEL.RPN.BATCH_SIZE_PER_IMAGE": 5000,
        "MODEL.RPN.POSITIVE_FRACTION": 1.0,
        "MODEL.RPN.POST_NMS_TOP_N_TRAIN": 50,
        "MODEL.RPN.POST_NMS_TOP_N_TEST": 50,
        **FAMILY[name],
    }
    return tiny_config(*(item for pair in settings.items() for item in pair), c4=name == "c4")


def family_batch(model: DetectionModel) -> tuple[Images, GroundTruth, Proposals | None]:
    """Two images of different sizes with two objects and one, as records."""
    images = [torch.rand(3, 64, 96), torch.rand(3, 80, 72)]
    targets = []
    for image, count in zip(images, (2, 1), strict=True):
        corner = torch.tensor([[6.0, 8.0], [30.0, 20.0]])[:count]
        boxes = torch.cat([corner, corner + 24], dim=1)
        masks = torch.zeros(count, *image.shape[1:], dtype=torch.uint8)
        for mask, (x1, y1, x2, y2) in zip(masks, boxes.int().tolist(), strict=True):
            mask[y1:y2, x1 + 4 : x2] = 1
        points = torch.cat([corner[:, None] + torch.rand(count, 3, 2) * 20,
                            torch.full((count, 3, 1), 2.0)], dim=2)  # fmt: skip
        targets.append(
            {"boxes": boxes, "labels": torch.ones(count).long(), "masks": masks,
             "keypoints": points, "proposals": boxes + 2}
        )  # fmt: skip
    given = [target["proposals"] for target in targets] if model.takes_proposals else None
    soft = model.convention.mask_targets == "soft"
    truth = prepare_targets(targets, images, model.num_classes, model.needs, soft)
    batch, proposals = model.prepare(images, given)
    return batch, truth, proposals
