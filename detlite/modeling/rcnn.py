"""The two-stage detector, whole: read this file first."""

from __future__ import annotations

from torch import Tensor
from yacs.config import CfgNode

from detlite.structures.instances import Detections, GroundTruth, Images, PredictedBoxes, Proposals
from detlite.structures.padding import Rows

from .backbone import Backbone, build_backbone
from .build import META_ARCHITECTURES
from .detector import Detector
from .postprocessing import Postprocess, build_postprocess
from .preprocessing import Normalizer, build_normalizer
from .roi_heads.roi_heads import RoIHeads, build_roi_heads
from .rpn.rpn import RPN, build_rpn
from .sampler import ProposalSampler, build_proposal_sampler


class GeneralizedRCNN(Detector):
    """A two-stage detector (Mask R-CNN, https://arxiv.org/abs/1703.06870).

    Its losses are `loss_objectness`, `loss_rpn_box`, `loss_classifier`, `loss_box` and, with such
    a head, `loss_mask`, `loss_keypoint`. Without an RPN it is a Fast R-CNN
    (https://arxiv.org/abs/1504.08083), which takes its proposals with each image.
    """

    def __init__(
        self,
        normalizer: Normalizer,
        backbone: Backbone,
        rpn: RPN | None,
        sampler: ProposalSampler,
        roi_heads: RoIHeads,
        postprocess: Postprocess,
        num_classes: int,
        mask_threshold: float,
    ) -> None:
        super().__init__(normalizer, backbone, postprocess, num_classes, mask_threshold)
        self.rpn = rpn
        self.takes_proposals = rpn is None
        self.sampler = sampler
        self.roi_heads = roi_heads
        heads = {"masks": roi_heads.mask, "keypoints": roi_heads.keypoint}
        self.needs = tuple(name for name, head in heads.items() if head is not None)

    def losses(
        self, images: Images, truth: GroundTruth, given: Proposals | None = None
    ) -> dict[str, Tensor]:
        """Losses of the RPN and of every head; see `Detector.losses`."""
        features = self.backbone(images.pixels)
        proposals, losses = self.propose(features, images, given, truth)
        samples = self.sampler(proposals, truth)
        box_losses, predictions = self.roi_heads.box.losses(features, samples, truth, images.sizes)
        foreground = samples[:, : self.sampler.most_positive]
        map_losses = self.roi_heads.map_losses(features, foreground, truth, predictions)
        return losses | box_losses | map_losses

    def predict(
        self, images: Images, given: Proposals | None = None, min_score: float = 0.0
    ) -> Detections:
        """Boxes, and masks and keypoints in them; see `Detector.predict`."""
        features = self.backbone(images.pixels)
        predicted = self.predict_boxes(features, images, given)
        detections = self.postprocess(predicted, images.sizes, min_score)
        rows = Rows(detections.valid)
        maps = self.roi_heads.maps(features, rows, detections.boxes, detections.labels)
        return self.roi_heads.with_maps(detections, rows, maps)

    def predict_boxes(
        self, features: list[Tensor], images: Images, given: Proposals | None = None
    ) -> PredictedBoxes:
        """What the box head makes of the proposals; see `Detector.predict_boxes`."""
        proposals, _ = self.propose(features, images, given)
        return self.roi_heads.box.predict(features, proposals, images.sizes)

    def propose(
        self,
        features: list[Tensor],
        images: Images,
        given: Proposals | None,
        truth: GroundTruth | None = None,
    ) -> tuple[Proposals, dict[str, Tensor]]:
        """The RPN's proposals and, with ground truth, its losses; or the proposals given."""
        if self.rpn is None:
            assert given is not None
            return given, {}
        predictions = self.rpn(features)
        losses = {} if truth is None else self.rpn.losses(predictions, images, truth)
        return self.rpn.propose(predictions, images), losses


@META_ARCHITECTURES.register("GeneralizedRCNN")
def build_generalized_rcnn(cfg: CfgNode) -> GeneralizedRCNN:
    """The two-stage detector that the config describes."""
    backbone = build_backbone(cfg)
    return GeneralizedRCNN(
        build_normalizer(cfg),
        backbone,
        None if cfg.MODEL.LOAD_PROPOSALS else build_rpn(cfg, backbone),
        build_proposal_sampler(cfg),
        build_roi_heads(cfg, backbone),
        build_postprocess(cfg),
        num_classes=cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES,
        mask_threshold=cfg.MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS_THRESHOLD,
    )
