"""RetinaNet (Lin et al., https://arxiv.org/abs/1708.02002): one stage, every anchor classified.

Shapes: B images, L levels; N_l = H_l W_l A anchors on level l, N over all levels. S scores an
anchor: one for each class without background, or one more where the head scores that too. G
ground-truth boxes in an image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from ..config.derive import restate_strides
from ..ops import sigmoid_focal_loss
from ..structures import boxes as box_ops
from ..structures.image_batch import ImageBatch
from ..structures.output import OutputRules
from .anchors import AnchorGenerator, build_anchors, per_anchor
from .backbone import Backbone, build_backbone
from .box_coder import BoxCoder
from .box_loss import BoxLoss
from .detector import Detector
from .inputs import InputNormalizer, build_normalizer
from .layers import conv_block, init_normal
from .matching import IGNORE, match
from .norm import Norm, build_norm
from .suppression import DetectionLimits, Scored, build_suppression


class RetinaNetHead(nn.Module):
    """Two towers of 3x3s, shared by all levels: one scores the anchors of a cell, one moves them.

    Args:
        in_channels: of every level, and of the towers.
        anchors_per_cell: A.
        num_scores: S.
        num_convs: in each tower.
        norm: optional norm after each of them.
        prior: the score that every anchor starts with.
    """

    def __init__(
        self,
        in_channels: int,
        anchors_per_cell: int,
        num_scores: int,
        num_convs: int,
        norm: Norm | None,
        prior: float,
    ) -> None:
        super().__init__()
        self.num_scores = num_scores

        def tower() -> nn.Sequential:
            widths = [in_channels] * num_convs
            return nn.Sequential(*(conv_block(c, c, 3, norm=norm, relu=True) for c in widths))

        self.cls_tower, self.bbox_tower = tower(), tower()
        self.cls_logits = nn.Conv2d(in_channels, anchors_per_cell * num_scores, 3, padding=1)
        self.bbox_pred = nn.Conv2d(in_channels, anchors_per_cell * 4, 3, padding=1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                init_normal(layer, std=0.01)
        assert self.cls_logits.bias is not None
        # Rare objects among many anchors: without it the background's loss drowns the first steps.
        nn.init.constant_(self.cls_logits.bias, -math.log((1 - prior) / prior))

    def forward(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Levels [B, C, H_l, W_l] -> float32 logits [B, N_l, S] and deltas [B, N_l, 4] of each."""
        logits = [self.cls_logits(self.cls_tower(feature)) for feature in features]
        deltas = [self.bbox_pred(self.bbox_tower(feature)) for feature in features]
        return [per_anchor(x, self.num_scores) for x in logits], [per_anchor(x, 4) for x in deltas]


@dataclass(frozen=True)
class RetinaNetTraining:
    """What anchors are trained to be, and how the losses are averaged.

    Attributes:
        foreground, background: overlaps as in `match`.
        alpha, gamma: of the focal loss.
        normalizer: losses are divided by the foreground anchors of the "batch", by those of each
            "image" and averaged over images, or by a "moving" average over steps.
    """

    foreground: float
    background: float
    alpha: float
    gamma: float
    normalizer: str


class RetinaNet(Detector):
    """A one-stage detector of boxes. Its losses are `loss_classifier` and `loss_box`.

    Args:
        pre_nms: how many of a level's scores are considered.
        clip_first: boxes are clipped before overlaps are suppressed, not after.
        scores_background: the first score is the background's.
        inclusive: x2 and y2 of a box count the last pixel inside.
    """

    # Foreground anchors of a batch: the average starts high, and moves by a tenth a step.
    START, MOMENTUM = 100.0, 0.9
    moving_foreground: Tensor

    def __init__(
        self,
        normalizer: InputNormalizer,
        backbone: Backbone,
        head: RetinaNetHead,
        anchor_generator: AnchorGenerator,
        box_coder: BoxCoder,
        box_loss: BoxLoss,
        *,
        num_classes: int,
        output: OutputRules,
        training: RetinaNetTraining,
        limits: DetectionLimits,
        pre_nms: int,
        clip_first: bool = True,
        scores_background: bool = False,
        inclusive: bool = False,
    ) -> None:
        super().__init__(
            normalizer, backbone, num_classes=num_classes, limits=limits, output=output
        )
        self.head = head
        self.anchor_generator = anchor_generator
        self.box_coder = box_coder
        self.box_loss = box_loss
        self.settings = training
        self.pre_nms = pre_nms
        self.clip_first = clip_first
        self.first_label = 0 if scores_background else 1
        self.inclusive = inclusive
        if training.normalizer == "moving":
            self.register_buffer("moving_foreground", torch.tensor(self.START))

    def losses(self, batch: ImageBatch, targets: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Focal loss over the anchors that are not ignored, box loss over the foreground."""
        anchors, logits, deltas = self._predict(self.backbone(batch.tensor))
        images = zip(torch.cat(logits, 1), torch.cat(deltas, 1), targets, strict=True)
        sums = [self._sums(torch.cat(anchors), *image) for image in images]
        classifier, box, foreground = (torch.stack(column) for column in zip(*sums, strict=True))
        if self.settings.normalizer == "image":
            count = foreground.clamp(min=1) * len(sums)
            return {
                "loss_classifier": (classifier / count).sum(),
                "loss_box": (box / count).sum(),
            }
        total = foreground.sum()
        if self.settings.normalizer == "moving":
            self.moving_foreground.lerp_(total.clamp(min=1), 1 - self.MOMENTUM)
            of_scores = of_boxes = self.moving_foreground.clone()
        else:
            of_scores, of_boxes = total + len(sums), total.clamp(min=1)
        return {"loss_classifier": classifier.sum() / of_scores, "loss_box": box.sum() / of_boxes}

    def candidates(self, features: list[Tensor], batch: ImageBatch) -> list[Scored]:
        """The best scores of each level, and the boxes that their anchors are moved to."""
        anchors, logits, deltas = self._predict(features)
        found = []
        for image, size in enumerate(batch.sizes):
            own = self._decode(anchors, [x[image] for x in logits], [x[image] for x in deltas])
            found.append(self._clip(own, size) if self.clip_first else own)
        return found

    @torch.no_grad()
    def detect(
        self, images: Sequence[Tensor], proposals: Sequence[Tensor | None] | None = None
    ) -> list[dict[str, Tensor]]:
        """As every detector's, of boxes alone."""
        found = super().detect(images, proposals)
        if self.clip_first:
            return found
        sizes = [(image.shape[-2], image.shape[-1]) for image in images]
        return [self._clip(*pair) for pair in zip(found, sizes, strict=True)]

    def _predict(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Of each level anchors [N_l, 4], logits [B, N_l, S] and deltas [B, N_l, 4]."""
        anchors = self.anchor_generator([(f.shape[-2], f.shape[-1]) for f in features])
        return anchors, *self.head(features)

    def _sums(
        self,
        anchors: Tensor,
        logits: Tensor,
        deltas: Tensor,
        target: dict[str, Any],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One image's losses, summed over its anchors [N, 4], and its count of foreground."""
        settings = self.settings
        overlap = box_ops.iou(target["boxes"], anchors)
        matched = match(overlap, settings.foreground, settings.background, keep_best=True)
        foreground, used = torch.where(matched >= 0)[0], matched != IGNORE
        truth = matched[foreground]
        wanted = torch.zeros_like(logits)
        wanted[foreground, target["labels"][truth] - self.first_label] = 1
        classifier = sigmoid_focal_loss(
            logits[used], wanted[used], settings.alpha, settings.gamma, reduction="sum"
        )
        box = self.box_loss(
            self.box_coder, deltas[foreground], target["boxes"][truth], anchors[foreground]
        )
        return classifier, box, (matched >= 0).sum().to(classifier.dtype)

    def _decode(
        self, anchors: Sequence[Tensor], logits: Sequence[Tensor], deltas: Sequence[Tensor]
    ) -> Scored:
        """One image: for each level anchors [N_l, 4], logits [N_l, S] and deltas [N_l, 4]."""
        levels = []
        for own_anchors, own_logits, own_deltas in zip(anchors, logits, deltas, strict=True):
            scores = own_logits.sigmoid()
            index, column = torch.where(scores > self.limits.score_thresh)
            scores, best = scores[index, column].topk(min(self.pre_nms, len(index)))
            index, column = index[best], column[best]
            boxes = self.box_coder.decode(own_deltas[index], own_anchors[index])
            levels.append((boxes, scores, column + self.first_label))
        columns = (torch.cat(column) for column in zip(*levels, strict=True))
        return dict(zip(("boxes", "scores", "labels"), columns, strict=True))

    def _clip(self, found: Scored, size: tuple[int, int]) -> Scored:
        """Cuts boxes to an image, and drops those that are too small then."""
        boxes = box_ops.clip(found["boxes"], size, self.inclusive)
        if self.limits.min_size < 0:
            return {**found, "boxes": boxes}
        usable = box_ops.at_least(boxes, self.limits.min_size)
        return {name: value[usable] for name, value in {**found, "boxes": boxes}.items()}


def build_retinanet(cfg: CfgNode) -> RetinaNet:
    """The detector that MODEL.RETINANET describes.

    Raises:
        ValueError: levels with different numbers of anchors, or sizes for other levels.
    """
    node, heads = cfg.MODEL.RETINANET, cfg.MODEL.ROI_HEADS
    backbone = build_backbone(cfg)
    restate_strides(cfg.clone(), backbone.strides)
    octaves = [node.OCTAVE ** (k / node.SCALES_PER_OCTAVE) for k in range(node.SCALES_PER_OCTAVE)]
    anchors = build_anchors(cfg, backbone.strides, "MODEL.RETINANET", octaves)
    scores_background = node.SCORES_BACKGROUND
    return RetinaNet(
        normalizer=build_normalizer(cfg),
        backbone=backbone,
        head=RetinaNetHead(
            backbone.out_channels,
            anchors.per_cell[0],
            node.NUM_CLASSES - (not scores_background),
            node.NUM_CONVS,
            build_norm(cfg, node.NORM) if node.NORM else None,
            node.PRIOR_PROB,
        ),
        anchor_generator=anchors,
        box_coder=BoxCoder(node.BBOX_REG_WEIGHTS),
        box_loss=BoxLoss(node.BOX_LOSS, node.BBOX_REG_BETA, 1 / node.BBOX_REG_WEIGHT),
        num_classes=node.NUM_CLASSES,
        output=OutputRules(inclusive=cfg.MODEL.INCLUSIVE_BOXES),
        training=RetinaNetTraining(
            foreground=node.FG_IOU_THRESHOLD,
            background=node.BG_IOU_THRESHOLD,
            alpha=node.LOSS_ALPHA,
            gamma=node.LOSS_GAMMA,
            normalizer=node.LOSS_NORMALIZER,
        ),
        limits=DetectionLimits(
            node.INFERENCE_TH,
            node.NMS_TH,
            heads.DETECTIONS_PER_IMG,
            node.MIN_SIZE,
            build_suppression(cfg),
        ),
        pre_nms=node.PRE_NMS_TOP_N,
        clip_first=node.CLIP == "before-nms",
        scores_background=scores_background,
        inclusive=cfg.MODEL.INCLUSIVE_BOXES,
    )
