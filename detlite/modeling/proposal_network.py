"""A detector of proposals alone: backbone and RPN."""

from __future__ import annotations

import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.conventions import convention_of
from detlite.structures.instances import GroundTruth, Images, PredictedBoxes, Proposals

from .backbone import Backbone, build_backbone
from .build import META_ARCHITECTURES
from .detector import Detector
from .postprocessing import Postprocess, Suppression
from .preprocessing import Normalizer, build_normalizer
from .rpn.rpn import RPN, build_rpn


class ProposalNetwork(Detector):
    """Its detections are the RPN's proposals, all with label 1 and the objectness as score.

    Its losses are `loss_objectness` and `loss_rpn_box`.
    """

    def __init__(
        self,
        normalizer: Normalizer,
        backbone: Backbone,
        rpn: RPN,
        postprocess: Postprocess,
        num_classes: int,
    ) -> None:
        super().__init__(normalizer, backbone, postprocess, num_classes)
        self.rpn = rpn

    def losses(
        self, images: Images, truth: GroundTruth, given: Proposals | None = None
    ) -> dict[str, Tensor]:
        predictions = self.rpn(self.backbone(images.pixels))
        return self.rpn.losses(predictions, images, truth)

    def predict_boxes(
        self, features: list[Tensor], images: Images, given: Proposals | None = None
    ) -> PredictedBoxes:
        """The proposals; see `Detector.predict_boxes`."""
        proposals = self.rpn.propose(self.rpn(features), images)
        labels = torch.ones_like(proposals.scores, dtype=torch.int64)
        scores = proposals.scores.sigmoid()
        return PredictedBoxes(proposals.boxes, scores, labels, proposals.valid)


@META_ARCHITECTURES.register("ProposalNetwork")
def build_proposal_network(cfg: CfgNode) -> ProposalNetwork:
    """The model that MODEL.RPN describes."""
    for key in ("MASK_ON", "KEYPOINT_ON", "LOAD_PROPOSALS"):
        if cfg.MODEL[key]:
            raise ValueError(f"a ProposalNetwork has no heads: MODEL.{key} must be False")
    backbone = build_backbone(cfg)
    rpn = build_rpn(cfg, backbone)
    # The RPN has suppressed the overlaps of a level already, but not those between views.
    suppression = Suppression(1.0, views_iou_thresh=rpn.nms_thresh)
    postprocess = Postprocess(convention_of(cfg), suppression, rpn.test_limits.total, rpn.min_size)
    num_classes = cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES
    return ProposalNetwork(build_normalizer(cfg), backbone, rpn, postprocess, num_classes)
