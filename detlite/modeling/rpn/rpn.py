"""Region proposal network (Ren et al., Faster R-CNN, https://arxiv.org/abs/1506.01497).

Shapes: B images, L levels; level l has H_l x W_l cells, A anchors per cell and N_l = H_l W_l A
anchors, N over all levels. P proposals and G ground truths per image, padded.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.conventions import Convention, convention_of
from detlite.modeling.backbone import Backbone
from detlite.modeling.boxes.box_coder import BoxCoder
from detlite.modeling.boxes.losses import BoxLoss, build_box_loss
from detlite.modeling.boxes.matcher import IGNORE, Matcher
from detlite.modeling.boxes.sampler import Sampler
from detlite.ops import padded_nms
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, Images, Proposals
from detlite.structures.padding import first_valid, gather

from .anchors import AnchorGenerator, build_anchors, per_anchor
from .head import RPN_HEADS


@dataclass(frozen=True)
class ProposalLimits:
    """Largest numbers of boxes before and after suppression."""

    pre_nms: int  # per level, by objectness
    post_nms: int  # per level
    total: int  # over all levels
    total_per_batch: bool  # `total` is for all images together


@dataclass(frozen=True)
class AnchorPredictions:
    """Predictions of the RPN head for each level."""

    anchors: list[Tensor]  # [N_l, 4]
    logits: list[Tensor]  # float32 [B, N_l], objectness
    deltas: list[Tensor]  # float32 [B, N_l, 4]


class RPN(nn.Module):
    """Proposes class-agnostic boxes from every level of the backbone.

    Args:
        nms_thresh: IoU above which proposals of a level are suppressed.
        min_size, score_thresh: minimum side (pixels) and objectness (0 to 1) of a proposal.
        matcher, sampler: select the anchors to train on.
        straddle: maximum number of pixels by which training anchors may cross the image border;
            negative: no limit.
    """

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
        matcher: Matcher,
        sampler: Sampler,
        straddle: float,
        box_loss: BoxLoss,
        convention: Convention,
        score_thresh: float = 0.0,
    ) -> None:
        super().__init__()
        self.score_thresh = score_thresh
        self.head = head
        self.anchor_generator = anchor_generator
        self.box_coder = box_coder
        self.train_limits = train_limits
        self.test_limits = test_limits
        self.nms_thresh = nms_thresh
        self.min_size = min_size
        self.matcher = matcher
        self.sampler = sampler
        self.straddle = straddle
        self.box_loss = box_loss
        self.convention = convention

    def forward(self, features: list[Tensor]) -> AnchorPredictions:
        """Predict objectness and deltas for levels [B, C, H_l, W_l]."""
        anchors = self.anchor_generator([(f.shape[-2], f.shape[-1]) for f in features])
        logits, deltas = self.head(features)
        objectness = [per_anchor(x, 1)[..., 0] for x in logits]
        return AnchorPredictions(anchors, objectness, [per_anchor(x, 4) for x in deltas])

    def losses(
        self, predictions: AnchorPredictions, images: Images, truth: GroundTruth
    ) -> dict[str, Tensor]:
        """Compute `loss_objectness` and `loss_rpn_box`, averaged over the sampled anchors."""
        anchors = torch.cat(predictions.anchors)
        logits, deltas = torch.cat(predictions.logits, 1), torch.cat(predictions.deltas, 1)
        with torch.no_grad():
            matched = self.matcher(truth, anchors)  # [B, N]
            if self.straddle >= 0:
                inside = box_ops.inside(anchors, images.sizes, self.straddle, self.convention)
                matched = torch.where(inside, matched, IGNORE)
            index, drawn = self.sampler.draw(matched)
            matched = matched.gather(1, index)
        labels = (matched >= 0).to(logits.dtype)
        logits = gather(logits, index)
        objectness = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        box = self.box_loss(
            self.box_coder,
            gather(deltas, index),
            gather(truth.boxes, matched.clamp(min=0)),
            anchors[index],
            drawn & (matched >= 0),
        )
        if self.convention.rpn_loss_normalizer == "capacity":
            count = drawn.new_full((), self.sampler.count * drawn.shape[0], dtype=torch.int64)
        else:
            count = drawn.sum().clamp(min=1)
        objectness = torch.where(drawn, objectness, 0).sum()
        return {"loss_objectness": objectness / count, "loss_rpn_box": box.sum() / count}

    @torch.no_grad()
    def propose(
        self, predictions: AnchorPredictions, images: Images, static_shapes: bool
    ) -> Proposals:
        """Decode the highest-scoring anchors of each level, and suppress overlaps on each level.

        The proposals [B, P] have no gradient. With static shapes P is the limit, otherwise the
        largest number of an image.
        """
        limits = self.train_limits if self.training else self.test_limits
        boxes, scores, levels = [], [], []
        each = zip(predictions.anchors, predictions.logits, predictions.deltas, strict=True)
        for level, (anchors, logits, deltas) in enumerate(each):
            top, index = logits.topk(min(limits.pre_nms, anchors.shape[0]), dim=1)
            boxes.append(self.box_coder.decode(gather(deltas, index), anchors[index]))
            scores.append(top)
            levels.append(torch.full_like(index, level))
        logits = torch.cat(scores, 1)
        clipped = box_ops.clip(torch.cat(boxes, 1), images.sizes, self.convention)
        candidates = Proposals(clipped, logits, valid=logits.abs() < torch.inf)
        proposals = self._suppress(candidates, torch.cat(levels, 1), limits)
        if limits.total_per_batch:
            proposals = replace(proposals, valid=_best_of_batch(proposals, limits.total))
        index, valid = first_valid(proposals.valid, limits.total, static_shapes)
        return replace(proposals.map(lambda field: gather(field, index)), valid=valid)

    def _suppress(self, candidates: Proposals, levels: Tensor, limits: ProposalLimits) -> Proposals:
        """Suppress overlaps on each level, and drop small boxes. `levels` are [B, N]."""
        boxes, scores = candidates.boxes, candidates.scores
        valid = box_ops.has_min_size(boxes, self.min_size) & candidates.valid
        if self.score_thresh:
            valid = valid & (scores.sigmoid() >= self.score_thresh)
        by_level = limits.post_nms < limits.total  # else the limit of a level has no effect
        count = boxes.shape[1] if by_level else min(boxes.shape[1], limits.total)
        index, kept = padded_nms(boxes, scores, levels, valid, self.nms_thresh, count)
        if by_level:
            # Boxes are sorted by score, so a running count per level ranks the boxes of each level.
            level = levels.gather(1, index)
            counts = F.one_hot(level, len(self.anchor_generator.strides)) * kept[:, :, None]
            rank = counts.cumsum(dim=1).gather(2, level[:, :, None])[:, :, 0]
            kept = kept & (rank <= limits.post_nms)
        return Proposals(gather(boxes, index), scores.gather(1, index), kept)


def _best_of_batch(proposals: Proposals, count: int) -> Tensor:
    """Return bool [B, P], True for the `count` best proposals of all images together."""
    scores = torch.where(proposals.valid, proposals.scores, -torch.inf).flatten()
    best = scores.topk(min(count, scores.shape[0])).indices
    chosen = torch.zeros_like(scores, dtype=torch.bool).index_fill(0, best, True)
    return proposals.valid & chosen.view_as(proposals.valid)


def build_rpn(cfg: CfgNode, backbone: Backbone) -> RPN:
    """Build the RPN of MODEL.RPN for the levels of `backbone`."""
    rpn, convention, fpn = cfg.MODEL.RPN, convention_of(cfg), len(backbone.strides) > 1

    def limits(keys: tuple[str, str, str], per_batch: bool) -> ProposalLimits:
        pre_nms, post_nms, fpn_total = (rpn[key] for key in keys)
        return ProposalLimits(pre_nms, post_nms, fpn_total if fpn else post_nms, per_batch)

    train = "PRE_NMS_TOP_N_TRAIN", "POST_NMS_TOP_N_TRAIN", "FPN_POST_NMS_TOP_N_TRAIN"
    test = "PRE_NMS_TOP_N_TEST", "POST_NMS_TOP_N_TEST", "FPN_POST_NMS_TOP_N_TEST"
    anchors = build_anchors(cfg, backbone.strides, "RPN")
    head = RPN_HEADS.get(rpn.RPN_HEAD, "MODEL.RPN.RPN_HEAD")
    return RPN(
        head(cfg, backbone.out_channels, anchors.per_cell[0]),
        anchors,
        BoxCoder((1.0, 1.0, 1.0, 1.0), convention.limit_shrinking),
        train_limits=limits(train, fpn and rpn.FPN_POST_NMS_PER_BATCH),
        test_limits=limits(test, False),
        nms_thresh=rpn.NMS_THRESH,
        min_size=rpn.MIN_SIZE,
        score_thresh=rpn.SCORE_THRESH,
        matcher=Matcher(rpn.FG_IOU_THRESHOLD, rpn.BG_IOU_THRESHOLD, allow_low_quality_matches=True),
        sampler=Sampler(rpn.BATCH_SIZE_PER_IMAGE, rpn.POSITIVE_FRACTION),
        straddle=rpn.STRADDLE_THRESH,
        box_loss=build_box_loss(cfg, "RPN"),
        convention=convention,
    )
