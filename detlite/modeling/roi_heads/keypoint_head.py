"""Keypoint head (Mask R-CNN, section 5, https://arxiv.org/abs/1703.06870).

Shapes: B images, F samples per image, R packed rows (see `detlite.structures.padding`), K
keypoints, M x M cells of a heat map.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from detlite.ops import heatmap_peaks
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, Samples
from detlite.structures.keypoints import to_heatmap_cells
from detlite.structures.padding import RowPacking, gather

from .roi_head import RoIHead


class KeypointHead(RoIHead):
    """Predicts a heat map for each keypoint, the same for all classes."""

    target, predicted = "keypoints", ("keypoints", "keypoint_scores")

    def losses(
        self, logits: Tensor, packing: RowPacking, samples: Samples, truth: GroundTruth
    ) -> dict[str, Tensor]:
        """Compute `loss_keypoint`: mean cross entropy of the cells of labelled keypoints."""
        assert truth.keypoints is not None
        if truth.keypoints.shape[2] != logits.shape[1]:
            raise ValueError(
                f"targets have {truth.keypoints.shape[2]} keypoints, but the model "
                f"{logits.shape[1]}: set MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES"
            )
        keypoints = packing.pack(gather(truth.keypoints, samples.gt_index))  # [R, K, 3]
        region = box_ops.pooled_region(packing.pack(samples.boxes), self.convention)
        cells, labelled = to_heatmap_cells(keypoints, region, logits.shape[-1])
        labelled = labelled & packing.valid[:, None]
        target = torch.where(labelled, cells, -1).flatten()
        scores = logits.flatten(0, 1).flatten(1)
        loss = F.cross_entropy(scores, target, reduction="sum", ignore_index=-1)
        # Divided here, because torch's mean is NaN if no keypoint is labelled.
        return {"loss_keypoint": loss / labelled.sum().clamp(min=1)}

    def unmirrored(self, outputs: Tensor, flip_order: Sequence[int]) -> Tensor:
        """Mirror heat maps, and exchange left and right."""
        return outputs.flip(-1)[:, flip_order]

    def fields(self, outputs: Tensor, boxes: Tensor) -> dict[str, Tensor]:
        """Find the peaks of heat maps [R, K, M, M]: keypoints [R, K, 3] of (x, y, 1), and their
        logits [R, K]."""
        points, scores = heatmap_peaks(outputs, box_ops.pooled_region(boxes, self.convention))
        return {"keypoints": points, "keypoint_scores": scores}
