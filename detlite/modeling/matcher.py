"""Assigning ground truth to anchors and proposals (Faster R-CNN, section 3.1.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..ops import match_boxes
from ..structures.instances import GroundTruth

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
