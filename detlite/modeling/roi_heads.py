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
from .suppression import DetectionLimits, Scored


@dataclass(frozen=True)
class ProposalSampling:
    """Which proposals the heads are trained on."""

    foreground: float
    background: float
    per_image: int
    positive_fraction: float


class RoIHeads(nn.Module):
    """A box head, and a mask head and a keypoint head or None.

    Args:
        box: the box head.
        mask, keypoint: heads on its foreground; one without an extractor of its own shares that of
            the box head.
        sampling: which proposals they are trained on.
    """

    def __init__(
        self,
        box: nn.Module,
        mask: MaskHead | None,
        keypoint: KeypointHead | None,
        *,
        sampling: ProposalSampling,
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
        for head in (self.mask, self.keypoint):
            if head is not None:
                own = head.feature_extractor
                seen = x[torch.cat(positive)] if own is None else own(features, boxes)
                losses.update(head.loss(seen, boxes, matched))
        return losses

    def candidates(
        self,
        features: list[Tensor],
        proposals: list[Tensor],
        image_sizes: list[tuple[int, int]],
        limits: DetectionLimits,
    ) -> list[Scored]:
        """Scored boxes of each image before any is suppressed, as `BoxHead.candidates`."""
        x = self.box.feature_extractor(features, proposals)
        return self.box.candidates(*self.box.predict(x), proposals, image_sizes, limits)

    def region_maps(
        self, features: list[Tensor], boxes: list[Tensor], labels: list[Tensor]
    ) -> list[dict[str, Tensor]]:
        """What the mask and keypoint heads see in given boxes, as `Detector.region_maps`."""
        maps: dict[str, Tensor] = {}
        heads = [head for head in (self.mask, self.keypoint) if head is not None]
        seen: dict[nn.Module, Tensor] = {}  # both heads may share the box head's features
        for head in heads:
            own = head.feature_extractor
            extractor = self.box.feature_extractor if own is None else own
            if extractor not in seen:
                seen[extractor] = extractor(features, boxes)
            maps.update(head.predict(seen[extractor], torch.cat(labels)))
        counts = [len(b) for b in boxes]
        split = {name: value.split(counts) for name, value in maps.items()}
        return [{name: parts[i] for name, parts in split.items()} for i in range(len(boxes))]

    def complete(self, detection: Scored, maps: dict[str, Tensor]) -> dict[str, Tensor]:
        """One image's detections with their masks and keypoints, from its `region_maps`."""
        result = {**detection, **maps}
        if self.keypoint is not None:
            logits, boxes = result.pop("keypoint_logits"), detection["boxes"]
            result["keypoints"], result["keypoints_scores"] = self.keypoint.locate(logits, boxes)
        return result

    def _box_losses(
        self,
        features: list[Tensor],
        boxes: list[Tensor],
        matched: list[dict[str, Tensor]],
        targets: list[dict[str, Any]],
        image_sizes: list[tuple[int, int]],
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The losses, and the features that other heads may share."""
        x = self.box.feature_extractor(features, boxes)
        return self.box.losses(*self.box.predictor(x), boxes, matched), x

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
