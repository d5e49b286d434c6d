"""The second stage: proposals and features in, losses or detections out.

Shapes: G ground-truth instances, P proposals and D detections in an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..structures import boxes as box_ops
from .keypoint_head import KeypointHead
from .mask_head import MaskHead
from .matching import match, sample


@dataclass(frozen=True)
class ProposalSampling:
    """Which proposals the heads are trained on."""

    foreground: float
    background: float
    per_image: int
    positive_fraction: float


class RoIHeads(nn.Module):
    """Box head, and a mask head and a keypoint head or None."""

    def __init__(
        self,
        box: nn.Module,
        mask: MaskHead | None,
        sampling: ProposalSampling,
        keypoint: KeypointHead | None = None,
    ) -> None:
        super().__init__()
        self.box: Any = box
        self.mask = mask
        self.keypoint = keypoint
        self.sampling = sampling

    def losses(
        self,
        features: list[Tensor],
        proposals: list[Tensor],
        targets: list[dict[str, Any]],
        image_sizes: list[tuple[int, int]],
    ) -> dict[str, Tensor]:
        """Losses of every head on sampled proposals.

        Args:
            features: levels [B, C, H_l, W_l].
            proposals: for each image [P, 4].
            targets: for each image `boxes` [G, 4], `labels` [G] and, with such a head, `masks`
                uint8 [G, H, W] and `keypoints` [G, P, 3].
            image_sizes: (height, width) of each image without padding.
        """
        sampled = [self._sample(*pair) for pair in zip(proposals, targets, strict=True)]
        boxes = [proposal for proposal, _ in sampled]
        matched = [target for _, target in sampled]
        losses, x = self._box_losses(features, boxes, matched, targets, image_sizes)
        positive = [target["labels"] > 0 for target in matched]
        boxes = [own[keep] for own, keep in zip(boxes, positive, strict=True)]
        matched = [
            {**truth, "labels": target["labels"][keep], "matched": target["matched"][keep]}
            for target, keep, truth in zip(matched, positive, targets, strict=True)
        ]
        if self.mask is not None:
            if self.mask.feature_extractor is None:
                x = x[torch.cat(positive)]
            else:
                x = self.mask.feature_extractor(features, boxes)
            losses.update(self.mask.loss(x, boxes, matched))
        if self.keypoint is not None:
            x = self.keypoint.feature_extractor(features, boxes)
            losses.update(self.keypoint.loss(x, boxes, matched))
        return losses

    def detect(
        self,
        features: list[Tensor],
        proposals: list[Tensor],
        image_sizes: list[tuple[int, int]],
    ) -> list[dict[str, Tensor]]:
        """Detections of each image, as in `GeneralizedRCNN.detect`."""
        detections = self._box_detections(features, proposals, image_sizes)
        boxes = [detection["boxes"] for detection in detections]
        counts = [len(own) for own in boxes]
        if self.mask is not None:
            labels = torch.cat([detection["labels"] for detection in detections])
            extractor = self.mask.feature_extractor or self.box.feature_extractor
            probs = self.mask.predict(extractor(features, boxes), labels)
            for detection, own_probs in zip(detections, probs.split(counts), strict=True):
                detection["mask_probs"] = own_probs
        if self.keypoint is not None:
            x = self.keypoint.feature_extractor(features, boxes)
            points, scores = (t.split(counts) for t in self.keypoint.predict(x, boxes))
            for detection, own, own_scores in zip(detections, points, scores, strict=True):
                detection["keypoints"], detection["keypoints_scores"] = own, own_scores
        return detections

    def _box_losses(
        self,
        features: list[Tensor],
        boxes: list[Tensor],
        matched: list[dict[str, Tensor]],
        targets: list[dict[str, Any]],
        image_sizes: list[tuple[int, int]],
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The losses, and the features that a mask head may share."""
        x = self.box.feature_extractor(features, boxes)
        return self.box.losses(x, boxes, matched), x

    def _box_detections(
        self,
        features: list[Tensor],
        proposals: list[Tensor],
        image_sizes: list[tuple[int, int]],
    ) -> list[dict[str, Tensor]]:
        x = self.box.feature_extractor(features, proposals)
        return self.box.detect(x, proposals, image_sizes)

    @torch.no_grad()
    def _sample(
        self, proposals: Tensor, target: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One image's training set: [R, 4], and its `labels`, `boxes` and `matched` [R].

        Ground truth joins the proposals, so that there is foreground from the first step on.
        """
        sampling = self.sampling
        truth = target["boxes"]
        candidates = torch.cat([proposals, truth])
        matched = match(box_ops.iou(truth, candidates), sampling.foreground, sampling.background)
        positive, negative = sample(matched, sampling.per_image, sampling.positive_fraction)
        index = torch.cat([positive, negative])
        matched = matched[index]
        labels = torch.zeros_like(matched)
        labels[: len(positive)] = target["labels"][matched[: len(positive)]]
        boxes = torch.zeros_like(candidates[index])
        boxes[: len(positive)] = truth[matched[: len(positive)]]
        return candidates[index], {"labels": labels, "boxes": boxes, "matched": matched}
