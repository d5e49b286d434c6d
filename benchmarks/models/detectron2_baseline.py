"""Build detectron2's Mask R-CNN from a config and the weights of detlite's model.

detectron2 must be built from its sources. It is measured if it can be imported.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.conversion.detectron2.source import DETECTRON2
from detlite.modeling.detection_model import DetectionModel

from .images import Batch

AVAILABLE = find_spec("detectron2") is not None


def detectron2_model(cfg: CfgNode, model: DetectionModel) -> nn.Module:
    """Build detectron2's detector with a copy of the weights of `model`.

    It has the fastest options for a CPU: channels-last weights, and torchvision's two samples per
    RoIAlign bin and axis instead of one per pixel.

    Args:
        cfg: config of `comparable_config`.
        model: detlite's model of this config.
    """
    from detectron2.modeling import build_model

    baseline: nn.Module = build_model(_config(cfg))
    _copy_weights(model, baseline)
    return baseline.to(memory_format=torch.channels_last)


class WithEventStorage(nn.Module):
    """detectron2's detector with the event storage for metrics that its training needs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Return the losses by name; the examples are from `to_detectron2_batch`."""
        from detectron2.utils.events import EventStorage

        with EventStorage():
            losses: dict[str, Tensor] = self.model(examples)
        return losses


def to_detectron2_batch(batch: Batch) -> list[dict[str, Any]]:
    """Convert a batch to detectron2's format: classes start at 0, and each object has a bitmap."""
    from detectron2.structures import BitMasks, Boxes, Instances

    examples = []
    for image, target in zip(*batch, strict=True):
        height, width = image.shape[1:]
        objects = Instances((height, width))
        objects.gt_boxes = Boxes(target["boxes"])
        objects.gt_classes = target["labels"].long() - 1
        objects.gt_masks = BitMasks(target["masks"].bitmaps(height, width).bool())
        examples.append({"image": image, "instances": objects})
    return examples


def detect_masks(model: nn.Module, images: list[Tensor]) -> list[Tensor]:
    """Return the pasted masks of each image, bool [N, H, W], without resizing the images."""
    outputs = model([{"image": i, "height": i.shape[1], "width": i.shape[2]} for i in images])
    return [output["instances"].pred_masks for output in outputs]


def _config(cfg: CfgNode) -> Any:
    from detectron2.config import get_cfg

    node, heads = cfg.MODEL, cfg.MODEL.ROI_HEADS
    depth = int(node.BACKBONE.CONV_BODY.split("-")[1])
    box, mask, rpn = node.ROI_BOX_HEAD, node.ROI_MASK_HEAD, node.RPN
    sizes = [list(s) if isinstance(s, tuple) else [s] for s in rpn.ANCHOR_SIZES]
    opts: dict[str, Any] = {
        "MODEL.DEVICE": node.DEVICE,
        "MODEL.WEIGHTS": "",
        "MODEL.MASK_ON": True,
        "MODEL.PIXEL_MEAN": [255 * value for value in cfg.INPUT.PIXEL_MEAN],
        "MODEL.PIXEL_STD": [255 * value for value in cfg.INPUT.PIXEL_STD],
        "MODEL.BACKBONE.NAME": "build_resnet_fpn_backbone",
        "MODEL.BACKBONE.FREEZE_AT": node.BACKBONE.FREEZE_CONV_BODY_AT,
        "MODEL.RESNETS.DEPTH": depth,
        "MODEL.RESNETS.RES2_OUT_CHANNELS": 64 if depth < 50 else 256,
        "MODEL.RESNETS.OUT_FEATURES": ["res2", "res3", "res4", "res5"],
        "MODEL.RESNETS.STRIDE_IN_1X1": False,
        "MODEL.RESNETS.NORM": node.RESNETS.NORM,
        "MODEL.FPN.IN_FEATURES": ["res2", "res3", "res4", "res5"],
        "MODEL.FPN.OUT_CHANNELS": node.RESNETS.BACKBONE_OUT_CHANNELS or 256,
        "MODEL.ANCHOR_GENERATOR.SIZES": sizes,
        "MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS": [list(rpn.ASPECT_RATIOS)],
        "MODEL.RPN.IN_FEATURES": ["p2", "p3", "p4", "p5", "p6"],
        "MODEL.RPN.PRE_NMS_TOPK_TRAIN": rpn.PRE_NMS_TOP_N_TRAIN,
        "MODEL.RPN.PRE_NMS_TOPK_TEST": rpn.PRE_NMS_TOP_N_TEST,
        "MODEL.RPN.POST_NMS_TOPK_TRAIN": rpn.FPN_POST_NMS_TOP_N_TRAIN,
        "MODEL.RPN.POST_NMS_TOPK_TEST": rpn.FPN_POST_NMS_TOP_N_TEST,
        "MODEL.RPN.BATCH_SIZE_PER_IMAGE": rpn.BATCH_SIZE_PER_IMAGE,
        "MODEL.ROI_HEADS.NAME": "StandardROIHeads",
        "MODEL.ROI_HEADS.IN_FEATURES": ["p2", "p3", "p4", "p5"],
        "MODEL.ROI_HEADS.NUM_CLASSES": box.NUM_CLASSES - 1,
        "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": heads.BATCH_SIZE_PER_IMAGE,
        "MODEL.ROI_HEADS.SCORE_THRESH_TEST": heads.SCORE_THRESH,
        "MODEL.ROI_HEADS.NMS_THRESH_TEST": heads.NMS,
        "MODEL.ROI_BOX_HEAD.NAME": "FastRCNNConvFCHead",
        "MODEL.ROI_BOX_HEAD.NUM_FC": 2,
        "MODEL.ROI_BOX_HEAD.FC_DIM": box.MLP_HEAD_DIM,
        "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": box.POOLER_RESOLUTION,
        "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": box.POOLER_SAMPLING_RATIO,
        "MODEL.ROI_MASK_HEAD.NAME": "MaskRCNNConvUpsampleHead",
        "MODEL.ROI_MASK_HEAD.NUM_CONV": len(mask.CONV_LAYERS),
        "MODEL.ROI_MASK_HEAD.CONV_DIM": mask.CONV_LAYERS[-1],
        "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": mask.POOLER_RESOLUTION,
        "MODEL.ROI_MASK_HEAD.POOLER_SAMPLING_RATIO": mask.POOLER_SAMPLING_RATIO,
        "TEST.DETECTIONS_PER_IMAGE": heads.DETECTIONS_PER_IMG,
    }
    config = get_cfg()
    config.merge_from_list([item for pair in opts.items() for item in pair])
    return config


@torch.no_grad()
def _copy_weights(model: DetectionModel, baseline: nn.Module) -> None:
    """Copy detlite's weights to detectron2's model.

    detlite only converts from detectron2. Converting a state dict with the index of each number
    instead of its value shows which number of detectron2's model each of detlite's numbers is.
    """
    entries = baseline.state_dict()
    indices, count = {}, 1  # index 0 is for the background class, which detectron2 does not have
    for name, value in entries.items():
        numbers = torch.arange(count, count + value.numel(), dtype=torch.float64)
        indices[name] = numbers.view(value.shape)
        count += value.numel()
    flat = torch.zeros(count)
    state = model.state_dict()
    for name, index in DETECTRON2.adapt(DETECTRON2.rename(indices), entries).items():
        flat[index.long()] = state[name].float()
    for name, value in entries.items():
        if not name.startswith("pixel_"):
            value.copy_(flat[indices[name].long()])
