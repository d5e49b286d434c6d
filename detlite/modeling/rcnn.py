"""The two-stage detectors: Mask R-CNN, Faster R-CNN, Fast R-CNN and Cascade R-CNN.

Read this file first: it shows the whole pipeline.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.structures.instances import (
    Detections,
    GroundTruth,
    Images,
    PredictedBoxes,
    Proposals,
    Samples,
)
from detlite.structures.padding import read_count

from .backbone import Backbone, build_backbone
from .boxes.sampler import ProposalSampler, build_proposal_sampler
from .build import META_ARCHITECTURES
from .detection_model import DetectionModel
from .postprocessing import Postprocess, build_postprocess
from .preprocessing import Normalizer, build_normalizer
from .roi_heads.roi_heads import RoIHeads, build_roi_heads
from .rpn.rpn import RPN, build_rpn


class GeneralizedRCNN(DetectionModel):
    """A two-stage detector (Mask R-CNN, https://arxiv.org/abs/1703.06870).

    The losses are `loss_objectness`, `loss_rpn_box`, `loss_classifier`, `loss_box` and, with such a
    head, `loss_mask` and `loss_keypoint`. Without an RPN it is a Fast R-CNN
    (https://arxiv.org/abs/1504.08083), which needs proposals for each image.
    """

    supported_outputs = ("class_scores", "features")

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

    @property  # own heads may be added later
    def required_targets(self) -> tuple[str, ...]:  # type: ignore[override]
        """The fields that train the mask, keypoint and own heads."""
        return tuple(dict.fromkeys(head.target for head in self.roi_heads.heads.values()))

    def losses(
        self, images: Images, truth: GroundTruth, proposals: Proposals | None = None
    ) -> dict[str, Tensor]:
        """Compute the losses of the RPN and of all heads; see `DetectionModel.losses`."""
        losses, features, samples = self.sampling_losses(images, truth, proposals)
        foreground, static = samples[:, : self.sampler.max_positives], self.static_shapes
        count = None
        if static and self.reads_foreground and self.roi_heads.heads:
            count = read_count(foreground.labels > 0)
        box, predictions = self.roi_heads.box.losses(features, samples, truth, images.sizes, static)
        rows = count.rows() if count else None  # arrives while the device runs the box head
        more = self.roi_heads.head_losses(features, foreground, truth, predictions, static, rows)
        return losses | box | more

    def sampling_losses(
        self, images: Images, truth: GroundTruth, proposals: Proposals | None
    ) -> tuple[dict[str, Tensor], list[Tensor], Samples]:
        """Compute the losses of the RPN, the feature maps, and the samples of the heads."""
        features, losses = self.backbone(images.pixels), {}
        if self.rpn is not None:
            anchors = self.rpn(features)
            losses = self.rpn.losses(anchors, images, truth)
            proposals = self.rpn.propose(anchors, images, self.static_shapes)
        assert proposals is not None
        return losses, features, self.sampler(proposals, truth, self.static_shapes)

    def training_parts(self) -> Sequence[tuple[nn.Module, str]]:
        heads = self.roi_heads
        parts = [(self, "sampling_losses"), (heads.box, "losses"), (heads, "head_losses")]
        return parts if heads.heads else parts[:2]

    def predict(
        self, images: Images, proposals: Proposals | None = None, min_score: float = 0.0
    ) -> Detections:
        """Predict boxes, and then masks, keypoints and own fields of the detected ones; see
        `DetectionModel.predict`."""
        features = self.backbone(images.pixels)
        predicted = self.predict_boxes(features, images, proposals)
        detections = self.postprocess(predicted, images.sizes, self.static_shapes, min_score)
        return self.roi_heads.add_fields(features, detections, self.static_shapes)

    def predict_boxes(
        self, features: list[Tensor], images: Images, proposals: Proposals | None = None
    ) -> PredictedBoxes:
        """Refine the proposals by the box head; see `DetectionModel.predict_boxes`."""
        if self.rpn is not None:
            proposals = self.rpn.propose(self.rpn(features), images, self.static_shapes)
        assert proposals is not None
        return self.roi_heads.box.predict(features, proposals, images.sizes, self.static_shapes)


@META_ARCHITECTURES.register("GeneralizedRCNN")
def build_generalized_rcnn(
    cfg: CfgNode, kind: Callable[..., GeneralizedRCNN] = GeneralizedRCNN
) -> GeneralizedRCNN:
    """Build the two-stage detector of the config by its class, or a subclass `kind`."""
    backbone = build_backbone(cfg)
    rpn = None if cfg.MODEL.LOAD_PROPOSALS else build_rpn(cfg, backbone)
    return kind(
        build_normalizer(cfg),
        backbone,
        rpn,
        build_proposal_sampler(cfg),
        build_roi_heads(cfg, backbone),
        build_postprocess(cfg),
        num_classes=cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES,
        mask_threshold=cfg.MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS_THRESHOLD,
    )
