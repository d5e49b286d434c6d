"""Region proposal network (Ren et al., Faster R-CNN, https://arxiv.org/abs/1506.01497).

Shapes: B images, L levels, level l with H_l x W_l cells and A_l anchors a cell; N_l = H_l W_l A_l
anchors on a level, N over all levels. G ground-truth boxes in an image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from ..ops import batched_nms
from ..registry import Registry
from ..structures import boxes as box_ops
from .anchors import AnchorGenerator, build_anchors, per_anchor
from .backbone import Backbone
from .box_coder import BoxCoder
from .box_loss import BoxLoss, build_box_loss
from .layers import init_normal
from .matching import IGNORE, match, sample
from .precision import at_least_float32

RPN_HEADS: Registry[Callable[[CfgNode, int, int], nn.Module]] = Registry("RPN head")


class SingleConvRPNHead(nn.Module):
    """A 3x3 shared by all levels, then objectness and box deltas for each anchor of a cell.

    Args:
        in_channels: C.
        anchors_per_cell: A.
        num_convs: how many 3x3s in a row.
    """

    def __init__(self, in_channels: int, anchors_per_cell: int, num_convs: int = 1) -> None:
        super().__init__()
        convs = [nn.Conv2d(in_channels, in_channels, 3, padding=1) for _ in range(num_convs)]
        self.conv = convs[0]
        self.more_convs = nn.ModuleList(convs[1:])
        self.cls_logits = nn.Conv2d(in_channels, anchors_per_cell, 1)
        self.bbox_pred = nn.Conv2d(in_channels, anchors_per_cell * 4, 1)
        for layer in (*convs, self.cls_logits, self.bbox_pred):
            init_normal(layer, std=0.01)

    def forward(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Levels [B, C, H_l, W_l] -> logits [B, A, H_l, W_l] and deltas [B, 4 A, H_l, W_l]."""
        logits, deltas = [], []
        for feature in features:
            hidden = F.relu(self.conv(feature))
            for conv in self.more_convs:
                hidden = F.relu(conv(hidden))
            logits.append(self.cls_logits(hidden))
            deltas.append(self.bbox_pred(hidden))
        return logits, deltas


@RPN_HEADS.register("SingleConvRPNHead")
def _build_conv_head(cfg: CfgNode, in_channels: int, anchors_per_cell: int) -> nn.Module:
    return SingleConvRPNHead(in_channels, anchors_per_cell, cfg.MODEL.RPN.NUM_CONVS)


@dataclass(frozen=True)
class ProposalLimits:
    """How many boxes survive each step of choosing proposals."""

    pre_nms: int  # per level, by objectness
    post_nms: int  # per level
    total: int  # over all levels
    total_per_batch: bool  # `total` counts over all images together


@dataclass(frozen=True)
class RPNTraining:
    """Which anchors are trained on."""

    foreground: float
    background: float
    straddle: float  # pixels an anchor may cross the border; negative: any
    anchors_per_image: int
    positive_fraction: float
    box_loss: BoxLoss
    by_capacity: bool  # losses are averaged over anchors_per_image, not over those drawn


class RPN(nn.Module):
    """Proposes regions, class-agnostic, from every level of the backbone."""

    def __init__(
        self,
        head: nn.Module,
        anchor_generator: AnchorGenerator,
        box_coder: BoxCoder,
        *,
        train_limits: ProposalLimits,
        test_limits: ProposalLimits,
        nms_thresh: float,
        min_size: float,
        training: RPNTraining,
        inclusive: bool = False,
    ) -> None:
        super().__init__()
        self.head = head
        self.anchor_generator = anchor_generator
        self.box_coder = box_coder
        self.train_limits = train_limits
        self.test_limits = test_limits
        self.nms_thresh = nms_thresh
        self.min_size = min_size
        self.settings = training
        self.inclusive = inclusive

    def forward(
        self,
        image_sizes: list[tuple[int, int]],
        features: list[Tensor],
        targets: list[dict[str, Any]] | None = None,
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Proposals of each image, and in training the losses.

        Args:
            image_sizes: (height, width) of each image without padding.
            features: L levels [B, C, H_l, W_l].
            targets: in training, for each image a dict with `boxes` [G, 4].

        Returns:
            For each image float32 xyxy boxes [P, 4] by decreasing objectness, without gradient;
            and in training `loss_objectness` and `loss_rpn_box`.
        """
        anchors, logits, deltas = self._predict(features)
        scored = self._propose(image_sizes, anchors, logits, deltas)
        proposals = [boxes for boxes, _ in scored]
        if not self.training:
            return proposals, {}
        assert targets is not None
        losses = self.losses(
            image_sizes, torch.cat(anchors), torch.cat(logits, 1), torch.cat(deltas, 1), targets
        )
        return proposals, losses

    def scored_proposals(
        self, image_sizes: list[tuple[int, int]], features: list[Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        """For each image the proposals [P, 4] as `forward` gives them, and their logits [P]."""
        return self._propose(image_sizes, *self._predict(features))

    def _predict(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Of each level anchors [N_l, 4], logits [B, N_l] and deltas [B, N_l, 4]."""
        anchors = self.anchor_generator([(f.shape[-2], f.shape[-1]) for f in features])
        logits, deltas = self.head(features)
        # Coordinates and scores do not fit half precision.
        logits = [at_least_float32(x.permute(0, 2, 3, 1).flatten(1)) for x in logits]
        return anchors, logits, [per_anchor(x, 4) for x in deltas]

    @torch.no_grad()
    def _propose(
        self,
        image_sizes: list[tuple[int, int]],
        anchors: list[Tensor],
        logits: list[Tensor],
        deltas: list[Tensor],
    ) -> list[tuple[Tensor, Tensor]]:
        """Decodes the most likely anchors of each level and suppresses overlaps within levels."""
        limits = self.train_limits if self.training else self.test_limits
        kept = []
        for image, size in enumerate(image_sizes):
            boxes, scores, levels = [], [], []
            for level, level_anchors in enumerate(anchors):
                level_logits = logits[level][image]
                top, index = level_logits.topk(min(limits.pre_nms, len(level_logits)))
                boxes.append(
                    self.box_coder.decode(deltas[level][image, index], level_anchors[index])
                )
                scores.append(top)
                levels.append(torch.full_like(index, level))
            kept.append(
                self._suppress(torch.cat(boxes), torch.cat(scores), torch.cat(levels), size, limits)
            )
        if limits.total_per_batch:
            return _top_of_batch(kept, limits.total)
        return [(boxes[: limits.total], scores[: limits.total]) for boxes, scores in kept]

    def _suppress(
        self,
        boxes: Tensor,
        scores: Tensor,
        levels: Tensor,
        size: tuple[int, int],
        limits: ProposalLimits,
    ) -> tuple[Tensor, Tensor]:
        boxes = box_ops.clip(boxes, size, self.inclusive)
        usable = box_ops.at_least(boxes, self.min_size) & scores.isfinite()
        boxes, scores, levels = boxes[usable], scores[usable], levels[usable]
        keep = batched_nms(boxes, scores, levels, self.nms_thresh)
        # `keep` is sorted by score, so a running count per level ranks the boxes of each level.
        rank = F.one_hot(levels[keep], len(self.anchor_generator.strides)).cumsum(0)
        keep = keep[rank.gather(1, levels[keep, None])[:, 0] <= limits.post_nms]
        return boxes[keep], scores[keep]

    def losses(
        self,
        image_sizes: list[tuple[int, int]],
        anchors: Tensor,
        logits: Tensor,
        deltas: Tensor,
        targets: list[dict[str, Any]],
    ) -> dict[str, Tensor]:
        """Objectness and box losses over sampled anchors, averaged over their number.

        Args:
            anchors: [N, 4]. logits: [B, N]. deltas: [B, N, 4].
        """
        settings = self.settings
        sampled_logits, labels, predicted, boxes, references = [], [], [], [], []
        for image, (size, target) in enumerate(zip(image_sizes, targets, strict=True)):
            matched = match(
                box_ops.iou(target["boxes"], anchors),
                settings.foreground,
                settings.background,
                keep_best=True,
            )
            if settings.straddle >= 0:
                seen = box_ops.inside(anchors, size, settings.straddle, self.inclusive)
                matched[~seen] = IGNORE
            positive, negative = sample(
                matched, settings.anchors_per_image, settings.positive_fraction
            )
            index = torch.cat([positive, negative])
            sampled_logits.append(logits[image, index])
            labels.append((matched[index] >= 0).to(logits.dtype))
            predicted.append(deltas[image, positive])
            boxes.append(target["boxes"][matched[positive]])
            references.append(anchors[positive])
        all_labels = torch.cat(labels)
        count = max(len(all_labels), 1)
        if settings.by_capacity:
            count = settings.anchors_per_image * len(targets)
        objectness = F.binary_cross_entropy_with_logits(
            torch.cat(sampled_logits), all_labels, reduction="sum"
        )
        box = settings.box_loss(
            self.box_coder, torch.cat(predicted), torch.cat(boxes), torch.cat(references)
        )
        return {"loss_objectness": objectness / count, "loss_rpn_box": box / count}


def _top_of_batch(kept: list[tuple[Tensor, Tensor]], count: int) -> list[tuple[Tensor, Tensor]]:
    """The `count` best boxes of all images together, given back per image."""
    all_scores = torch.cat([scores for _, scores in kept])
    chosen = torch.zeros_like(all_scores, dtype=torch.bool)
    chosen[all_scores.topk(min(count, len(all_scores))).indices] = True
    per_image = chosen.split([len(scores) for _, scores in kept])
    return [(b[own], s[own]) for (b, s), own in zip(kept, per_image, strict=True)]


def build_rpn(cfg: CfgNode, backbone: Backbone) -> RPN:
    """The RPN that MODEL.RPN describes, for the levels of `backbone`."""
    rpn = cfg.MODEL.RPN
    fpn = len(backbone.strides) > 1
    anchors = build_anchors(cfg, backbone.strides, "MODEL.RPN")
    head = RPN_HEADS.get(rpn.RPN_HEAD, "MODEL.RPN.RPN_HEAD")
    return RPN(
        head(cfg, backbone.out_channels, anchors.per_cell[0]),
        anchors,
        BoxCoder(weights=(1.0, 1.0, 1.0, 1.0)),
        train_limits=ProposalLimits(
            rpn.PRE_NMS_TOP_N_TRAIN,
            rpn.POST_NMS_TOP_N_TRAIN,
            rpn.FPN_POST_NMS_TOP_N_TRAIN if fpn else rpn.POST_NMS_TOP_N_TRAIN,
            total_per_batch=fpn and rpn.FPN_POST_NMS_PER_BATCH,
        ),
        test_limits=ProposalLimits(
            rpn.PRE_NMS_TOP_N_TEST,
            rpn.POST_NMS_TOP_N_TEST,
            rpn.FPN_POST_NMS_TOP_N_TEST if fpn else rpn.POST_NMS_TOP_N_TEST,
            total_per_batch=False,
        ),
        nms_thresh=rpn.NMS_THRESH,
        min_size=rpn.MIN_SIZE,
        training=RPNTraining(
            foreground=rpn.FG_IOU_THRESHOLD,
            background=rpn.BG_IOU_THRESHOLD,
            straddle=rpn.STRADDLE_THRESH,
            anchors_per_image=rpn.BATCH_SIZE_PER_IMAGE,
            positive_fraction=rpn.POSITIVE_FRACTION,
            box_loss=build_box_loss(cfg, "RPN"),
            by_capacity=rpn.LOSS_NORMALIZER == "capacity",
        ),
        inclusive=cfg.MODEL.INCLUSIVE_BOXES,
    )
