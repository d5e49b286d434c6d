"""The two-stage detector, whole: read this file first.

images -> backbone -> RPN -> heads -> losses (training) or detections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from yacs.config import CfgNode

from ..config import ConfigError
from ..config.derive import restate_strides
from ..registry import Registry
from ..structures.image_batch import ImageBatch
from ..structures.output import OutputRules
from . import fbnet_heads  # noqa: F401 (registers them)
from .backbone import Backbone, build_backbone
from .cascade import build_roi_heads
from .detector import Detector
from .inputs import InputNormalizer, build_normalizer, memory_format
from .proposal_network import build_proposal_network
from .retinanet import build_retinanet
from .roi_heads import RoIHeads
from .rpn import RPN, build_rpn
from .suppression import DetectionLimits, Scored, build_detection_limits

META_ARCHITECTURES: Registry[Callable[[CfgNode], Detector]] = Registry("detector")


class GeneralizedRCNN(Detector):
    """A two-stage detector (Mask R-CNN, https://arxiv.org/abs/1703.06870).

    Its losses are `loss_objectness`, `loss_rpn_box`, `loss_classifier`, `loss_box` and, with such
    a head, `loss_mask`, `loss_keypoint`. Without an RPN it is a Fast R-CNN
    (https://arxiv.org/abs/1504.08083), which takes its regions with each image.
    """

    def __init__(
        self,
        normalizer: InputNormalizer,
        backbone: Backbone,
        rpn: RPN | None,
        roi_heads: RoIHeads,
        *,
        num_classes: int,
        limits: DetectionLimits,
        output: OutputRules,
    ) -> None:
        super().__init__(
            normalizer, backbone, num_classes=num_classes, limits=limits, output=output
        )
        self.rpn = rpn
        self.takes_proposals = rpn is None
        self.roi_heads = roi_heads
        heads = {"masks": roi_heads.mask, "keypoints": roi_heads.keypoint}
        self.needs = tuple(name for name, head in heads.items() if head is not None)

    def losses(self, batch: ImageBatch, targets: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Losses of the RPN and of every head."""
        features = self.backbone(batch.tensor)
        proposals, losses = self._propose(features, batch, targets)
        return losses | self.roi_heads.losses(features, proposals, targets, batch.sizes)

    def candidates(self, features: list[Tensor], batch: ImageBatch) -> list[Scored]:
        """What the box head makes of the proposals."""
        proposals, _ = self._propose(features, batch)
        return self.roi_heads.candidates(features, proposals, batch.sizes, self.limits)

    def region_maps(
        self, features: list[Tensor], boxes: list[Tensor], labels: list[Tensor]
    ) -> list[dict[str, Tensor]]:
        """What the mask and keypoint heads see."""
        return self.roi_heads.region_maps(features, boxes, labels)

    def complete(self, detection: Scored, maps: dict[str, Tensor]) -> dict[str, Tensor]:
        """Masks as they are, keypoints found in their maps."""
        return self.roi_heads.complete(detection, maps)

    def _propose(
        self,
        features: list[Tensor],
        batch: ImageBatch,
        targets: list[dict[str, Any]] | None = None,
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The RPN's proposals and losses, or those that the batch brings."""
        if self.rpn is None:
            assert batch.proposals is not None
            return batch.proposals, {}
        return self.rpn(batch.sizes, features, targets)


@META_ARCHITECTURES.register("GeneralizedRCNN")
def _build_generalized_rcnn(cfg: CfgNode) -> Detector:
    one_stage = next((k for k in ("RETINANET_ON", "RPN_ONLY") if cfg.MODEL[k]), None)
    if one_stage and cfg.MODEL.LOAD_PROPOSALS:
        raise ValueError(
            f"MODEL.{one_stage} leaves out the heads that MODEL.LOAD_PROPOSALS gives regions to: "
            "one of them must be False"
        )
    if cfg.MODEL.RETINANET_ON:
        return build_retinanet(cfg)
    if cfg.MODEL.RPN_ONLY:
        return build_proposal_network(cfg)
    backbone = build_backbone(cfg)
    # A backbone of the user's own tells its strides only now.
    restate_strides(cfg.clone(), backbone.strides)
    return GeneralizedRCNN(
        normalizer=build_normalizer(cfg),
        backbone=backbone,
        rpn=None if cfg.MODEL.LOAD_PROPOSALS else build_rpn(cfg, backbone),
        roi_heads=build_roi_heads(cfg, backbone),
        num_classes=cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES,
        limits=build_detection_limits(cfg),
        output=OutputRules(
            mask_threshold=cfg.MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS_THRESHOLD,
            whole_pixels=cfg.MODEL.ROI_MASK_HEAD.PASTE == "whole-pixels",
            inclusive=cfg.MODEL.INCLUSIVE_BOXES,
            keypoint_centre=cfg.MODEL.ROI_KEYPOINT_HEAD.PIXEL_CENTRE,
        ),
    )


def build_model(cfg: CfgNode) -> Detector:
    """The model that a config describes, with fresh weights, on MODEL.DEVICE.

    Raises:
        ConfigError: a part that is not registered, or parts that do not fit together.
    """
    build = META_ARCHITECTURES.get(cfg.MODEL.META_ARCHITECTURE, "MODEL.META_ARCHITECTURE")
    device = torch_device(cfg.MODEL.DEVICE)
    try:
        model = build(cfg)
    except ConfigError:
        raise
    except ValueError as error:  # a module that was given arguments that do not fit
        raise ConfigError(str(error)) from error
    return model.to(device).to(memory_format=memory_format(cfg))


def torch_device(name: str) -> torch.device:
    """The device called `name`; "auto" is CUDA where there is one, else the CPU.

    Raises:
        ConfigError: a name that torch does not know, or CUDA where there is none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"MODEL.DEVICE: {name!r} is not a device of torch") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"MODEL.DEVICE is {name!r}, but torch finds {torch.cuda.device_count()} CUDA "
            "devices: use auto or cpu"
        )
    return device
