"""What is trained on: anchors and proposals are matched to ground truth, then drawn at random.

Sizes are fixed, and nothing waits for the device (Faster R-CNN, section 3.1.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.ops import match_boxes
from detlite.structures.instances import GroundTruth, Proposals, Samples
from detlite.structures.padding import gather, shapes_vary

BACKGROUND = -1
IGNORE = -2


@dataclass(frozen=True)
class Matcher:
    """Thresholds on the overlap of a candidate with its best ground truth.

    Attributes:
        foreground: IoU from which a candidate is foreground.
        background: IoU below which it is background; between the two it is ignored.
        keep_best: the candidates that overlap a ground truth most are foreground too, however
            little it is. Without it small objects would get no anchor.
    """

    foreground: float
    background: float
    keep_best: bool = False

    def __call__(
        self, truth: GroundTruth, candidates: Tensor, valid: Tensor | None = None
    ) -> Tensor:
        """The ground truth of each candidate.

        Args:
            truth: of B images.
            candidates: [N, 4] for all images alike, or [B, N, 4].
            valid: bool [B, N]; None: all of them. The others are ignored.

        Returns:
            int64 [B, N], indices into the image's ground truth, BACKGROUND or IGNORE.
        """
        index, iou, best = match_boxes(truth.boxes, truth.valid, candidates)
        matched = torch.where(iou < self.foreground, IGNORE, index)
        matched = torch.where(iou < self.background, BACKGROUND, matched)
        matched = torch.where(index < 0, BACKGROUND, matched)  # no ground truth, at any threshold
        if self.keep_best:
            matched = torch.where(best, index, matched)
        return matched if valid is None else torch.where(valid, matched, IGNORE)


@dataclass(frozen=True)
class Sampler:
    """Draws candidates at random, at most a part of them foreground (Fast R-CNN, section 2.3).

    Attributes:
        count: how many of an image, S; fewer where there are not enough.
        positive_fraction: the largest part of `count` that is foreground.
    """

    count: int
    positive_fraction: float

    @property
    def most_positive(self) -> int:
        """F, the largest number of foreground candidates of an image."""
        return int(self.count * self.positive_fraction)

    def draw(self, matched: Tensor) -> tuple[Tensor, Tensor]:
        """The candidates with the highest random keys.

        Args:
            matched: int64 [B, N] as a `Matcher` gives it.

        Returns:
            int64 and bool [B, F' + S'], with F' = min(F, N) and S' = min(S, N): the first F'
            entries are foreground and the others background, where the bool is True.
        """
        keys = torch.rand(matched.shape, device=matched.device)
        most_positive = min(self.most_positive, matched.shape[1])
        most = min(self.count, matched.shape[1])
        positive_keys, positive = torch.where(matched >= 0, keys, -1.0).topk(most_positive)
        negative_keys, negative = torch.where(matched == BACKGROUND, keys, -1.0).topk(most)
        drawn = positive_keys >= 0
        left = self.count - drawn.sum(dim=1, keepdim=True)
        rank = torch.arange(most, device=matched.device)
        valid = torch.cat([drawn, (negative_keys >= 0) & (rank < left)], dim=1)
        return torch.cat([positive, negative], dim=1), valid


@dataclass(frozen=True)
class ProposalSampler(Sampler):
    """The training set of the heads: proposals and ground truth, matched and drawn.

    Ground truth joins the proposals, so that there is foreground from the first step on.
    """

    matcher: Matcher

    @torch.no_grad()
    def __call__(self, proposals: Proposals, truth: GroundTruth) -> Samples:
        """Proposals [B, P], ground truth [B, G] -> samples [B, S], foreground among the first F."""
        candidates = torch.cat([proposals.boxes, truth.boxes], dim=1)
        valid = torch.cat([proposals.valid, truth.valid], dim=1)
        matched = self.matcher(truth, candidates, valid)
        index, drawn = self.draw(matched)
        # Padding last: what was not drawn goes behind all that was.
        order = drawn.int().argsort(dim=1, descending=True, stable=True)[:, : self.count]
        if shapes_vary(drawn):
            order = order[:, : int(drawn.sum(dim=1).max())]
        index, drawn = index.gather(1, order), drawn.gather(1, order)
        return label_samples(gather(candidates, index), matched.gather(1, index), drawn, truth)


def label_samples(boxes: Tensor, matched: Tensor, valid: Tensor, truth: GroundTruth) -> Samples:
    """Boxes [B, S, 4], matched [B, S] as by a `Matcher`, with the labels of their ground truth."""
    gt_index = torch.where(valid, matched, BACKGROUND).clamp(min=0)
    labels = torch.where(matched >= 0, truth.labels.gather(1, gt_index), 0)
    return Samples(boxes, torch.where(valid, labels, -1), gt_index)


def build_proposal_sampler(cfg: CfgNode) -> ProposalSampler:
    """What MODEL.ROI_HEADS says of the heads' training set."""
    heads = cfg.MODEL.ROI_HEADS
    matcher = Matcher(heads.FG_IOU_THRESHOLD, heads.BG_IOU_THRESHOLD)
    return ProposalSampler(heads.BATCH_SIZE_PER_IMAGE, heads.POSITIVE_FRACTION, matcher)
