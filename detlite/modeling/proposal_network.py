"""A detector of class-agnostic proposals: backbone and RPN only."""

import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.conventions import convention_of
from detlite.structures.instances import GroundTruth, Images, PredictedBoxes, Proposals

from .backbone import Backbone, build_backbone
from .build import META_ARCHITECTURES
from .detection_model import DetectionModel
from .postprocessing import Postprocess, Suppression
from .preprocessing import Normalizer, build_normalizer
from .rpn.rpn import RPN, build_rpn


class ProposalNetwork(DetectionModel):
    """Detects the RPN's proposals, all with label 1 and the objectness as score.

    The losses are `loss_objectness` and `loss_rpn_box`.
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
        self, images: Images, truth: GroundTruth, proposals: Proposals | None = None
    ) -> dict[str, Tensor]:
        """Compute the losses of the RPN."""
        return self.rpn.losses(self.rpn(self.backbone(images.pixels)), images, truth)

    def predict_boxes(
        self, features: list[Tensor], images: Images, proposals: Proposals | None = None
    ) -> PredictedBoxes:
        """Predict proposals as boxes of class 1."""
        found = self.rpn.propose(self.rpn(features), images, self.static_shapes)
        labels = torch.ones_like(found.scores, dtype=torch.int64)
        return PredictedBoxes(found.boxes, found.scores.sigmoid(), labels, found.valid)


@META_ARCHITECTURES.register("ProposalNetwork")
def build_proposal_network(cfg: CfgNode) -> ProposalNetwork:
    """Build the proposal network of MODEL.RPN."""
    backbone = build_backbone(cfg)
    rpn = build_rpn(cfg, backbone)
    # The RPN suppresses overlaps on each level, but not those between views.
    suppression = Suppression(1.0, views_iou_thresh=rpn.nms_thresh)
    postprocess = Postprocess(convention_of(cfg), suppression, rpn.test_limits.total, rpn.min_size)
    num_classes = cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES
    return ProposalNetwork(build_normalizer(cfg), backbone, rpn, postprocess, num_classes)
