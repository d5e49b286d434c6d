"""Sample matched anchors and proposals at random for training.

Shapes: B images; N candidates, P proposals, G ground truths and S samples per image. The first F
samples may be foreground. Nothing here waits for the device, unless shapes are dynamic.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.registry import Registry
from detlite.structures.instances import GroundTruth, Proposals, Samples
from detlite.structures.padding import gather, padded_length

from .matcher import BACKGROUND, IGNORE, Matcher

SAMPLERS: Registry[Callable[[CfgNode], "ProposalSampler"]] = Registry("sampler")


@dataclass(frozen=True)
class Sampler:
    """Draws candidates at random, with a limit of foreground (Fast R-CNN, section 2.3)."""

    count: int  # S, the number of samples per image; fewer if there are not enough candidates
    positive_fraction: float  # the largest fraction of `count` that is foreground

    @property
    def max_positives(self) -> int:
        """F, the largest number of foreground samples per image."""
        return int(self.count * self.positive_fraction)

    def draw(self, matched: Tensor) -> tuple[Tensor, Tensor]:
        """Draw candidates that a `Matcher` has matched, int64 [B, N], by random keys.

        Returns:
            Candidates int64 [B, F' + S'] and bool of the same shape, True if drawn, where
            F' = min(F, N) and S' = min(S, N). The first F' are foreground, the others background.
        """
        keys = torch.rand(matched.shape, device=matched.device)
        max_positives = min(self.max_positives, matched.shape[1])
        max_negatives = min(self.count, matched.shape[1])
        positive_keys, positives = torch.where(matched >= 0, keys, -1.0).topk(max_positives)
        keys = torch.where(matched == BACKGROUND, keys, -1.0)
        negative_keys, negatives = keys.topk(max_negatives)
        drawn = positive_keys >= 0
        num_negatives = self.count - drawn.sum(dim=1, keepdim=True)
        rank = torch.arange(max_negatives, device=matched.device)
        drawn = torch.cat([drawn, (negative_keys >= 0) & (rank < num_negatives)], dim=1)
        return torch.cat([positives, negatives], dim=1), drawn


@dataclass(frozen=True)
class ProposalSampler(Sampler):
    """Draws the training samples of the RoI heads from proposals and ground truth.

    Ground truth boxes are added to the proposals, so that the first iteration has foreground.
    """

    matcher: Matcher

    @torch.no_grad()
    def __call__(self, proposals: Proposals, truth: GroundTruth, static_shapes: bool) -> Samples:
        """Draw samples [B, S], foreground first, from proposals [B, P] and ground truth [B, G]."""
        candidates = torch.cat([proposals.boxes, truth.boxes], dim=1)
        valid = torch.cat([proposals.valid, truth.valid], dim=1)
        matched = self.matcher(truth, candidates, valid)
        index, drawn = self.draw(matched)
        # Move padding to the end.
        order = drawn.int().argsort(dim=1, descending=True, stable=True)[:, : self.count]
        order = order[:, : padded_length(drawn, static_shapes)]
        index, drawn = index.gather(1, order), drawn.gather(1, order)
        return label_samples(gather(candidates, index), matched.gather(1, index), drawn, truth)


def label_samples(boxes: Tensor, matched: Tensor, valid: Tensor, truth: GroundTruth) -> Samples:
    """Label boxes [B, S, 4] by the ground truth they are matched to, int64 [B, S]."""
    valid = valid & (matched != IGNORE)
    gt_index = torch.where(valid, matched, BACKGROUND).clamp(min=0)
    labels = torch.where(matched >= 0, truth.labels.gather(1, gt_index), 0)
    return Samples(boxes, torch.where(valid, labels, -1), gt_index)


def build_proposal_sampler(cfg: CfgNode) -> ProposalSampler:
    """Build the sampler of MODEL.ROI_HEADS.SAMPLER."""
    return SAMPLERS.get(cfg.MODEL.ROI_HEADS.SAMPLER, "MODEL.ROI_HEADS.SAMPLER")(cfg)


@SAMPLERS.register("random")
def _build_random(cfg: CfgNode) -> ProposalSampler:
    heads = cfg.MODEL.ROI_HEADS
    matcher = Matcher(heads.FG_IOU_THRESHOLD, heads.BG_IOU_THRESHOLD)
    return ProposalSampler(heads.BATCH_SIZE_PER_IMAGE, heads.POSITIVE_FRACTION, matcher)
