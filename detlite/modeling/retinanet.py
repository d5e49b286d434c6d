"""RetinaNet (Lin et al., https://arxiv.org/abs/1708.02002), a one-stage detector.

Shapes: B images, L levels; level l has H_l x W_l cells and N_l = H_l W_l A anchors, N over all
levels. S scores per anchor: one per class without background, or one more if the head scores
background too. G ground truths per image, padded.
"""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from yacs.config import CfgNode

from detlite.conventions import convention_of
from detlite.ops import sigmoid_focal_loss
from detlite.structures.instances import GroundTruth, Images, PredictedBoxes, Proposals
from detlite.structures.padding import RowPacking, gather, top_scores

from .backbone import Backbone, build_backbone
from .boxes.box_coder import BoxCoder
from .boxes.losses import BoxLoss, build_box_loss
from .boxes.matcher import IGNORE, Matcher
from .build import META_ARCHITECTURES
from .detection_model import DetectionModel
from .layers.conv_block import conv_block, init_normal
from .layers.norm import LevelBatchNorm, Norm, build_optional_norm
from .postprocessing import Postprocess, build_suppression
from .preprocessing import Normalizer, build_normalizer
from .rpn.anchors import AnchorGenerator, build_anchors, per_anchor


class RetinaNetHead(nn.Module):
    """Two towers of 3x3 convolutions, shared by all levels: class scores and box deltas of anchors.

    `prior` is the initial score of every anchor. `norm` and `bias` are arguments of `conv_block`.
    """

    def __init__(
        self,
        in_channels: int,
        anchors_per_cell: int,
        num_scores: int,
        num_convs: int,
        norm: Norm | None,
        prior: float,
        bias: bool | None = None,
    ) -> None:
        super().__init__()
        self.num_scores = num_scores

        def tower() -> nn.Sequential:
            widths = [in_channels] * num_convs
            blocks = (conv_block(c, c, 3, norm=norm, relu=True, bias=bias) for c in widths)
            return nn.Sequential(*blocks)

        self.cls_tower, self.bbox_tower = tower(), tower()
        self.cls_logits = nn.Conv2d(in_channels, anchors_per_cell * num_scores, 3, padding=1)
        self.bbox_pred = nn.Conv2d(in_channels, anchors_per_cell * 4, 3, padding=1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                init_normal(layer, std=0.01)
        assert self.cls_logits.bias is not None
        # Otherwise the loss of the many background anchors dominates the first iterations.
        nn.init.constant_(self.cls_logits.bias, -math.log((1 - prior) / prior))

    def forward(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Predict float32 logits [B, N_l, S] and deltas [B, N_l, 4] of levels [B, C, H_l, W_l]."""
        logits, deltas = [], []
        for level, feature in enumerate(features):
            logits.append(self.cls_logits(_apply_tower(self.cls_tower, feature, level)))
            deltas.append(self.bbox_pred(_apply_tower(self.bbox_tower, feature, level)))
        return [per_anchor(x, self.num_scores) for x in logits], [per_anchor(x, 4) for x in deltas]


def _apply_tower(tower: nn.Sequential, x: Tensor, level: int) -> Tensor:
    for block in tower.children():
        for layer in block.children():
            x = layer(x, level) if isinstance(layer, LevelBatchNorm) else layer(x)
    return x


class RetinaNet(DetectionModel):
    """A one-stage detector of boxes. Its losses are `loss_classifier` and `loss_box`.

    Args:
        alpha, gamma: of the focal loss.
        score_thresh: predicted boxes need a higher score.
        pre_nms: the largest number of boxes of a level before suppression.
    """

    supported_outputs = ("class_scores",)
    # Moving average of the number of foreground anchors in a batch: first value and momentum.
    START, MOMENTUM = 100.0, 0.9
    moving_foreground: Tensor

    def __init__(
        self,
        normalizer: Normalizer,
        backbone: Backbone,
        head: RetinaNetHead,
        anchor_generator: AnchorGenerator,
        box_coder: BoxCoder,
        postprocess: Postprocess,
        *,
        num_classes: int,
        matcher: Matcher,
        alpha: float,
        gamma: float,
        box_loss: BoxLoss,
        score_thresh: float,
        pre_nms: int,
    ) -> None:
        super().__init__(normalizer, backbone, postprocess, num_classes)
        self.head = head
        self.anchor_generator = anchor_generator
        self.box_coder = box_coder
        self.matcher = matcher
        self.alpha, self.gamma = alpha, gamma
        self.box_loss = box_loss
        self.score_thresh = score_thresh
        self.pre_nms = pre_nms
        self.first_label = 0 if self.convention.retinanet_scores_background else 1
        if self.convention.retinanet_loss_normalizer == "moving":
            self.register_buffer("moving_foreground", torch.tensor(self.START))

    def losses(
        self, images: Images, truth: GroundTruth, proposals: Proposals | None = None
    ) -> dict[str, Tensor]:
        """Compute the focal loss of all anchors that are not ignored, and the box loss of the
        foreground."""
        anchors, level_logits, level_deltas = self._predict(self.backbone(images.pixels))
        references = torch.cat(anchors)
        logits, deltas = torch.cat(level_logits, 1), torch.cat(level_deltas, 1)
        matched = self.matcher(truth, references)  # [B, N]
        foreground, gt_index = matched >= 0, matched.clamp(min=0)
        labels = truth.labels.gather(1, gt_index) - self.first_label
        # Anchors that are not foreground write a 0.
        column, value = labels.clamp(min=0)[:, :, None], foreground[:, :, None].to(logits.dtype)
        target = torch.zeros_like(logits).scatter_(2, column, value)
        classifier = sigmoid_focal_loss(logits, target, self.alpha, self.gamma)
        classifier = torch.where(matched[:, :, None] == IGNORE, 0, classifier).sum(dim=(1, 2))
        packing = RowPacking(foreground, self.static_shapes)
        box = self.box_loss(
            self.box_coder,
            packing.pack(deltas),
            packing.pack(gather(truth.boxes, gt_index)),
            references[packing.index % references.shape[0]],
            packing.valid,
        )
        count, batch = foreground.sum(dim=1).to(classifier.dtype), foreground.shape[0]  # [B]
        if self.convention.retinanet_loss_normalizer == "image":
            box = box.new_zeros(batch).index_add(0, packing.image, box)  # [B]
            count = count.clamp(min=1) * batch
            return {"loss_classifier": (classifier / count).sum(), "loss_box": (box / count).sum()}
        classifier_divisor, box_divisor = count.sum() + batch, count.sum().clamp(min=1)
        if self.convention.retinanet_loss_normalizer == "moving":
            if torch.is_grad_enabled():  # not for the loss on a test set
                self.moving_foreground.lerp_(box_divisor, 1 - self.MOMENTUM)
            classifier_divisor = box_divisor = self.moving_foreground.clone()
        return {
            "loss_classifier": classifier.sum() / classifier_divisor,
            "loss_box": box.sum() / box_divisor,
        }

    def predict_boxes(
        self, features: list[Tensor], images: Images, proposals: Proposals | None = None
    ) -> PredictedBoxes:
        """Decode the highest-scoring anchors of each level."""
        levels = [self._decode(*level) for level in zip(*self._predict(features), strict=True)]
        return tree_map(lambda *fields: torch.cat(fields, dim=1), *levels)

    def _predict(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return for each level anchors [N_l, 4], logits [B, N_l, S] and deltas [B, N_l, 4]."""
        anchors = self.anchor_generator([(f.shape[-2], f.shape[-1]) for f in features])
        return anchors, *self.head(features)

    def _decode(self, anchors: Tensor, logits: Tensor, deltas: Tensor) -> PredictedBoxes:
        scores = logits.sigmoid()
        limits = self.score_thresh, self.pre_nms, self.static_shapes
        best, index, valid = top_scores(scores.flatten(1), *limits)
        anchor, label = index // logits.shape[2], index % logits.shape[2] + self.first_label
        boxes = self.box_coder.decode(gather(deltas, anchor), anchors[anchor])
        more = {}
        if "class_scores" in self.extra_outputs:  # without the background
            more["class_scores"] = gather(scores[..., 1 - self.first_label :], anchor)
        return PredictedBoxes(boxes, best, label, valid, more)


@META_ARCHITECTURES.register("RetinaNet")
def build_retinanet(cfg: CfgNode) -> RetinaNet:
    """Build the RetinaNet of MODEL.RETINANET."""
    node, convention = cfg.MODEL.RETINANET, convention_of(cfg)
    backbone = build_backbone(cfg)
    octaves = [node.OCTAVE ** (k / node.SCALES_PER_OCTAVE) for k in range(node.SCALES_PER_OCTAVE)]
    anchors = build_anchors(cfg, backbone.strides, "RETINANET", octaves)
    return RetinaNet(
        build_normalizer(cfg),
        backbone,
        RetinaNetHead(
            backbone.out_channels,
            anchors.per_cell[0],
            node.NUM_CLASSES - (not convention.retinanet_scores_background),
            node.NUM_CONVS,
            _build_tower_norm(cfg, len(backbone.strides)),
            node.PRIOR_PROB,
            bias=convention.retinanet_normed_bias or None,
        ),
        anchors,
        BoxCoder(node.BBOX_REG_WEIGHTS, convention.limit_shrinking),
        Postprocess(
            convention,
            build_suppression(cfg, node.NMS_TH),
            cfg.MODEL.ROI_HEADS.DETECTIONS_PER_IMG,
            convention.retinanet_min_size,
            convention.retinanet_clip,
        ),
        num_classes=node.NUM_CLASSES,
        matcher=Matcher(
            node.FG_IOU_THRESHOLD, node.BG_IOU_THRESHOLD, allow_low_quality_matches=True
        ),
        alpha=node.LOSS_ALPHA,
        gamma=node.LOSS_GAMMA,
        box_loss=build_box_loss(cfg, "RETINANET"),
        score_thresh=node.INFERENCE_TH,
        pre_nms=node.PRE_NMS_TOP_N,
    )


def _build_tower_norm(cfg: CfgNode, levels: int) -> Norm | None:
    norm = build_optional_norm(cfg, "RETINANET")
    if norm in (nn.BatchNorm2d, nn.SyncBatchNorm):
        return partial(LevelBatchNorm, levels=levels, kind=norm)
    return norm
