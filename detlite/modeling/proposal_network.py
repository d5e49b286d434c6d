"""A detector of regions alone: backbone and RPN."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from yacs.config import CfgNode

from ..config.derive import restate_strides
from ..structures.image_batch import ImageBatch
from ..structures.output import OutputRules
from .backbone import Backbone, build_backbone
from .detector import Detector
from .inputs import InputNormalizer, build_normalizer
from .rpn import RPN, build_rpn
from .suppression import DetectionLimits, Scored


class ProposalNetwork(Detector):
    """Its detections are the RPN's proposals, all with label 1 and the objectness as score.

    Its losses are `loss_objectness` and `loss_rpn_box`.
    """

    def __init__(
        self,
        normalizer: InputNormalizer,
        backbone: Backbone,
        rpn: RPN,
        *,
        num_classes: int,
        output: OutputRules,
    ) -> None:
        # The RPN has suppressed overlaps already, level by level.
        limits = DetectionLimits(
            score_thresh=0.0, nms_thresh=1.0, per_image=rpn.test_limits.total, min_size=rpn.min_size
        )
        super().__init__(
            normalizer, backbone, num_classes=num_classes, limits=limits, output=output
        )
        self.rpn = rpn

    def losses(self, batch: ImageBatch, targets: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Losses of the RPN."""
        _, losses = self.rpn(batch.sizes, self.backbone(batch.tensor), targets)
        return losses

    def candidates(self, features: list[Tensor], batch: ImageBatch) -> list[Scored]:
        """The RPN's proposals."""
        proposals = self.rpn.scored_proposals(batch.sizes, features)
        return [
            {"boxes": boxes, "scores": logits.sigmoid(), "labels": _ones(logits)}
            for boxes, logits in proposals
        ]


def _ones(like: Tensor) -> Tensor:
    return torch.ones_like(like, dtype=torch.int64)


def build_proposal_network(cfg: CfgNode) -> ProposalNetwork:
    """The model that MODEL.RPN describes.

    Raises:
        ValueError: heads that it does not have.
    """
    for key in ("MASK_ON", "KEYPOINT_ON"):
        if cfg.MODEL[key]:
            raise ValueError(f"MODEL.RPN_ONLY leaves out all heads: MODEL.{key} must be False")
    backbone = build_backbone(cfg)
    restate_strides(cfg.clone(), backbone.strides)
    return ProposalNetwork(
        normalizer=build_normalizer(cfg),
        backbone=backbone,
        rpn=build_rpn(cfg, backbone),
        num_classes=cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES,
        output=OutputRules(inclusive=cfg.MODEL.INCLUSIVE_BOXES),
    )
