"""Configs of one small model of every kind, and records to call the models with."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.preprocessing import prepare_targets
from detlite.modeling.retinanet import RetinaNet
from detlite.structures.instances import Detections, GroundTruth, Images, Proposals

LOSSES = {"loss_objectness", "loss_rpn_box", "loss_classifier", "loss_box", "loss_mask"}
ALL_SCORES = ("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)
CASCADE = {"MODEL.ROI_HEADS.CASCADE_IOUS": (0.5, 0.6, 0.7), "MODEL.CLS_AGNOSTIC_BBOX_REG": True}
RETINANET = {
    "MODEL.META_ARCHITECTURE": "RetinaNet",
    "MODEL.BACKBONE.CONV_BODY": "R-18-FPN-RETINANET",
    "MODEL.MASK_ON": False,
    "MODEL.RETINANET.NUM_CLASSES": 4,
    "MODEL.RETINANET.INFERENCE_TH": 0.001,
}
_KEYPOINT_HEAD = {
    "MODEL.KEYPOINT_ON": True,
    "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES": 3,
    "MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR": False,
    "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION": 56,
    "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS": (8,),
    "MODEL.ROI_KEYPOINT_HEAD.POOLER_SAMPLING_RATIO": 2,
}

# The keys that differ from a Mask R-CNN with an FPN.
FAMILY: dict[str, dict[str, Any]] = {
    "mask": {},
    "c4": {"MODEL.BACKBONE.CONV_BODY": "R-18-C4"},
    "keypoint": _KEYPOINT_HEAD,
    "cascade": CASCADE,
    "agnostic": {"MODEL.CLS_AGNOSTIC_BBOX_REG": True},
    "passes": {"MODEL.ROI_BOX_HEAD.PASSES": 2},
    "fast": {"MODEL.LOAD_PROPOSALS": True},
    "maskrcnn-benchmark": {
        "MODEL.CONVENTION": "maskrcnn-benchmark",
        "MODEL.RPN.FPN_POST_NMS_PER_BATCH": True,
        "MODEL.RPN.POST_NMS_TOP_N_TRAIN": 20,
    },
    "torchvision": {"MODEL.CONVENTION": "torchvision", "DATALOADER.SIZE_DIVISIBILITY": 32},
    "voting": {"TEST.NMS.METHOD": "voting"},
    "soft": {"TEST.NMS.METHOD": "soft-linear"},
    "extra": {"TEST.EXTRA_OUTPUTS": ("class_scores", "features"), "TEST.NMS.CLASS_AGNOSTIC": True},
    "retinanet": RETINANET,
    "retinanet-detectron2": {
        **RETINANET,
        "MODEL.CONVENTION": "detectron2",
        "TEST.EXTRA_OUTPUTS": ("class_scores",),
    },
    "retinanet-torchvision": {**RETINANET, "MODEL.CONVENTION": "torchvision"},
    "proposals": {"MODEL.META_ARCHITECTURE": "ProposalNetwork", "MODEL.MASK_ON": False},
}


_CONV_HEAD = {
    "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR": "FPNXconv1fcFeatureExtractor",
    "MODEL.ROI_BOX_HEAD.CONV_HEAD_DIM": 16,
}
_HEADS = ("ROI_BOX_HEAD", "ROI_MASK_HEAD")


def _normed(norm: str) -> dict[str, Any]:
    return {f"MODEL.{part}.NORM": norm for part in ("RESNETS", "FPN", *_HEADS)}


# More backbones, necks, norms and heads. Those of FAMILY differ in the code of whole models.
VARIANTS: dict[str, dict[str, Any]] = {
    "32 groups": {
        "MODEL.BACKBONE.CONV_BODY": "R-50-FPN",
        "MODEL.RESNETS.STRIDE_IN_1X1": False,
        "MODEL.RESNETS.WIDTH_PER_GROUP": 1,
        "MODEL.RESNETS.NUM_GROUPS": 32,
    },
    "deformable": {
        "MODEL.BACKBONE.CONV_BODY": "R-50-FPN",
        "MODEL.RESNETS.STAGE_WITH_DCN": (False, True, True, False),
        "MODEL.RESNETS.WITH_MODULATED_DCN": True,
        "MODEL.RESNETS.DEFORMABLE_GROUPS": 2,
    },
    "dilated": {
        "MODEL.BACKBONE.CONV_BODY": "R-18-C5",
        "MODEL.RESNETS.RES5_DILATION": 2,
        "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": 128,
    },
    "frozen batch norm": {"MODEL.RESNETS.NORM": "FrozenBN"},
    "batch norm": {"MODEL.RESNETS.NORM": "BN", "MODEL.FPN.NORM": "BN"},
    "group norm": _normed("GN"),
    "layer norm": _normed("LN"),
    **{f"{norm}, convolutions": {**_normed(norm), **_CONV_HEAD} for norm in ("BN", "SyncBN", "GN")},
    "batch norm of vectors": {"MODEL.ROI_BOX_HEAD.NORM": "BN"},
    "batch norm of each level": {
        **RETINANET,
        "MODEL.RETINANET.NORM": "BN",
        "MODEL.RETINANET.NUM_CONVS": 2,
        "MODEL.RETINANET.BOX_LOSS": "giou",
    },
    "contiguous": {"MODEL.MEMORY_FORMAT": "contiguous"},
    "relu in the neck": {"MODEL.FPN.USE_RELU": True},
    "two convolutions of the RPN": {"MODEL.RPN.NUM_CONVS": 2},
    "convolutions in the box head": {**_CONV_HEAD, "MODEL.ROI_BOX_HEAD.NORM": "BN"},
    "separable convolutions in the heads": {
        "MODEL.RPN.RPN_HEAD": "SeparableRPNHead",
        "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR": "SeparableXconv1fcFeatureExtractor",
        "MODEL.ROI_BOX_HEAD.CONV_HEAD_DIM": 16,
        "MODEL.ROI_MASK_HEAD.FEATURE_EXTRACTOR": "SeparableConvFeatureExtractor",
        "MODEL.ROI_MASK_HEAD.NORM": "BN",
    },
    **{
        kind: {f"MODEL.{head}.POOLER_TYPE": kind for head in _HEADS}
        for kind in ("ROIAlign", "ROIPool")
    },
    "boxes only": {"MODEL.MASK_ON": False},
    "three mask heads": {"MODEL.ROI_MASK_HEAD.NUM_HEADS": 3},
}
# Of C4 models, whose RoI heads share the last stage of the backbone.
C4_VARIANTS: dict[str, dict[str, Any]] = {
    "c4, ROIPool": {f"MODEL.{head}.POOLER_TYPE": "ROIPool" for head in _HEADS},
    "c4, batch norm": {"MODEL.RESNETS.NORM": "BN"},
    "c4, batch norm, own stage of the mask head": {
        "MODEL.RESNETS.NORM": "BN",
        "MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR": False,
    },
    "c4, keypoints": _KEYPOINT_HEAD,
    "c4, shared keypoints": {
        "MODEL.KEYPOINT_ON": True,
        "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES": 3,
        "MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR": True,
        "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION": 28,
    },
    "c4, proposals from outside": {"MODEL.LOAD_PROPOSALS": True},
}
_FBNET = {
    "MODEL.BACKBONE.CONV_BODY": "FBNet",
    "MODEL.FBNET.WIDTH_DIVISOR": 4,
    "MODEL.RPN.RPN_HEAD": "FBNet.rpn_head",
    "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR": "FBNet.roi_head",
    "MODEL.ROI_BOX_HEAD.PREDICTOR": "FastRCNNPredictor",
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 6,
}
FBNET_VARIANTS: dict[str, dict[str, Any]] = {
    "fbnet": {**_FBNET, "MODEL.MASK_ON": False, "MODEL.FBNET.BN_TYPE": "bn"},
    "fbnet, masks": {
        **_FBNET,
        "MODEL.FBNET.BN_TYPE": "gn",
        "MODEL.ROI_MASK_HEAD.FEATURE_EXTRACTOR": "FBNet.roi_head_mask",
        "MODEL.ROI_MASK_HEAD.PREDICTOR": "MaskRCNNConv1x1Predictor",
        "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": 6,
        "MODEL.ROI_MASK_HEAD.RESOLUTION": 12,
        "MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR": False,
    },
}
# Small backbones from timm's own tests.
_TIMM = "timm/test_convnext"
TIMM_VARIANTS: dict[str, dict[str, Any]] = {
    "timm": {"MODEL.BACKBONE.CONV_BODY": f"{_TIMM}-FPN"},
    "timm, one map, frozen stem": {
        "MODEL.BACKBONE.FREEZE_CONV_BODY_AT": 2,
        "MODEL.BACKBONE.CONV_BODY": f"{_TIMM}-C4",
        "MODEL.RPN.ANCHOR_SIZES": (16, 32),
        "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": None,
    },
    "timm, retinanet": {**RETINANET, "MODEL.BACKBONE.CONV_BODY": f"{_TIMM}-FPN-RETINANET"},
    "timm, vit": {
        "MODEL.BACKBONE.CONV_BODY": "timm/test_vit-SFP",
        "MODEL.VIT.WINDOW": 3,
        "MODEL.VIT.DROP_PATH": 0.2,
    },
}
NO_PROPOSALS = {
    f"{name}, no proposals": {**settings, "MODEL.RPN.MIN_SIZE": 10**6}
    for name, settings in {"mask": {}, **VARIANTS, "c4": FAMILY["c4"], **C4_VARIANTS}.items()
    if name in ("mask", "c4", "c4, batch norm", "BN, convolutions")
}
ALL = {**NO_PROPOSALS, **FAMILY, **VARIANTS, **C4_VARIANTS, **FBNET_VARIANTS, **TIMM_VARIANTS}


def family_config(name: str, tiny_config: Callable[..., CfgNode], *opts: Any) -> CfgNode:
    """Return the config of one of ALL that samples every proposal and anchor in training."""
    settings: dict[str, Any] = {
        "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": 100,
        "MODEL.ROI_HEADS.POSITIVE_FRACTION": 1.0,
        "MODEL.RPN.BATCH_SIZE_PER_IMAGE": 5000,
        "MODEL.RPN.POSITIVE_FRACTION": 1.0,
        "MODEL.RPN.POST_NMS_TOP_N_TRAIN": 50,
        "MODEL.RPN.POST_NMS_TOP_N_TEST": 50,
        **ALL[name],
    }
    options = [item for pair in settings.items() for item in pair]
    return tiny_config(*options, *opts, c4=name.startswith("c4"))


def make_batch(*counts: int) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """Return images of different sizes with these numbers of bright rectangles, and targets.

    The targets have three keypoints per object, and proposals for models without an RPN.
    """
    images, targets = [], []
    for index, count in enumerate(counts):
        height, width = 64 + 8 * index, 96 - 8 * index
        image = torch.randint(0, 60, (3, height, width), dtype=torch.uint8)
        boxes = torch.zeros(count, 4)
        masks = torch.zeros(count, height, width, dtype=torch.uint8)
        for n in range(count):
            x1, y1 = 4 + 30 * (n % 2), 6 + 28 * (n // 2)
            x2, y2 = x1 + 22 + n, y1 + 20 - n
            image[:, y1:y2, x1:x2] += torch.tensor([[[180]], [[90 * (n % 2)]], [[0]]]).byte()
            masks[n, y1:y2, x1:x2] = 1
            boxes[n] = torch.tensor([x1, y1, x2, y2])
        images.append(image)
        labels = torch.arange(count) % 3 + 1
        corners = torch.tensor([[4.0, 4], [8, 6], [12, 10]])
        points = torch.cat([boxes[:, None, :2] + corners, torch.full((count, 3, 1), 2.0)], dim=2)
        far = torch.tensor([[30.0, 30, 55, 60], [2, 34, 20, 60]])
        targets.append({
            "boxes": boxes, "labels": labels, "masks": masks, "image_id": index,
            "keypoints": points, "proposals": torch.cat([boxes + 2, far]),
        })  # fmt: skip
    return images, targets


def family_batch(model: DetectionModel) -> tuple[Images, GroundTruth, Proposals | None]:
    """Return records of two images of different sizes with two objects and one."""
    images, targets = make_batch(2, 1)
    proposals = [target["proposals"] for target in targets] if model.takes_proposals else None
    soft = model.convention.mask_targets == "soft"
    truth = prepare_targets(targets, images, model.num_classes, model.required_targets, soft)
    batch, padded_proposals = model.prepare(images, proposals)
    return batch, truth, padded_proposals


def spread_scores(model: RetinaNet, images: Images) -> None:
    """Give the logits of a RetinaNet, which are almost equal at first, a deviation of 1."""
    with torch.no_grad():
        logits, _ = model.head(model.backbone(images.pixels))
        model.head.cls_logits.weight /= torch.cat(logits, dim=1).std()


def losses_and_gradients(
    model: DetectionModel, *batch: Any
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the losses of a training step with fixed samples, and the parameters' gradients."""
    model.train().zero_grad()
    torch.manual_seed(0)
    losses = model.losses(*batch)
    torch.stack(list(losses.values())).sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return losses, gradients


def assert_same_detections(left: Detections, right: Detections) -> None:
    """Compare the detections of each image, without padding and in any order.

    Scores that are equal up to rounding may be in another order on another processor.
    """
    for one, other in zip(left.per_image(), right.per_image(), strict=True):
        assert_same_objects(one, other)


def assert_same_objects(
    one: Detections, other: Detections, rtol: float = 1e-4, atol: float = 1e-4
) -> None:
    """Compare the detections of an image in any order; `other` is the expected ones.

    Masks may differ by ten times as much.
    """
    assert len(one.boxes) == len(other.boxes)
    rows = [torch.cat([d.boxes, 1000 * d.labels[:, None], 100 * d.scores[:, None]], dim=1)
            for d in (one, other)]  # fmt: skip
    nearest = torch.cdist(*rows, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=1)
    assert len(nearest.unique()) == len(nearest)
    expected = other.named_fields()
    assert one.named_fields().keys() == expected.keys()
    for name, values in one.named_fields().items():
        scale = 10 if name == "mask_probs" else 1
        torch.testing.assert_close(
            values, expected[name][nearest], rtol=scale * rtol, atol=scale * atol
        )


def check_losses(model: nn.Module, losses: dict[str, Tensor], names: set[str] = LOSSES) -> None:
    """Check that losses are scalar, finite, and connected to every trainable parameter."""
    assert losses.keys() == names
    for value in losses.values():
        assert value.shape == ()
        assert value.dtype == torch.float32
        assert value.isfinite()
    sum(losses.values()).backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
    assert all(buffer.isfinite().all() for buffer in model.buffers())
