"""Mask head (Mask R-CNN, https://arxiv.org/abs/1703.06870).

Shapes: B images, F samples and G ground truths per image, R packed rows (see
`detlite.structures.padding`), M x M cells of a mask, K classes with background as class 0, E mask
heads.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.modeling.backbone import Backbone
from detlite.ops import crop_masks
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, Samples
from detlite.structures.padding import RowPacking

from .extractors import Extractor
from .roi_head import RoIHead, build_map_head


class MaskHead(RoIHead):
    """Predicts masks of every class; the mask of the true or the detected class is used.

    With further heads in `more`, E in all, the logits are [R, E, K, M, M] and the probabilities are
    averaged, as in mmdetection's Cascade Mask R-CNN. All heads are trained on the same samples.
    """

    target, predicted = "masks", ("mask_probs",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.more = nn.ModuleList()

    def forward(self, features: list[Tensor], rois: Tensor, shared: Tensor | None) -> Tensor:
        """Predict float32 logits [R, K, M, M], or [R, E, K, M, M] with several heads."""
        logits = super().forward(features, rois, shared)
        if not self.more:
            return logits
        return torch.stack([logits, *(head(features, rois, shared) for head in self.more)], dim=1)

    def losses(
        self, logits: Tensor, packing: RowPacking, samples: Samples, truth: GroundTruth
    ) -> dict[str, Tensor]:
        """Compute `loss_mask`: mean binary cross entropy of the masks of the true classes."""
        assert truth.masks is not None
        selected = _select_class(logits, packing.pack(samples.labels).clamp(min=0))
        instance = packing.image * truth.labels.shape[1] + packing.pack(samples.gt_index)
        region = box_ops.pooled_region(packing.pack(samples.boxes), self.convention)
        target = crop_masks(
            *truth.masks.tensors(),
            torch.where(packing.valid, instance, -1),
            region.float(),
            logits.shape[-1],
            self.convention.mask_targets == "soft",
        ).to(logits.dtype)
        target = target[:, None].expand_as(selected)
        loss = F.binary_cross_entropy_with_logits(selected, target, reduction="none")
        count = packing.valid.sum() * target.shape[1:].numel()
        loss = torch.where(packing.valid[:, None, None, None], loss, 0).sum()
        return {"loss_mask": loss / count.clamp(min=1)}

    def outputs(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the masks of labels [R] as float32 probabilities [R, M, M]."""
        probs = _select_class(logits, labels).sigmoid()
        return probs.mean(dim=1) if self.more else probs[:, 0]

    def unmirrored(self, outputs: Tensor, flip_order: Sequence[int]) -> Tensor:
        """Mirror masks."""
        return outputs.flip(-1)

    def fields(self, outputs: Tensor, boxes: Tensor) -> dict[str, Tensor]:
        """Return the probabilities [R, M, M] as "mask_probs"."""
        return {"mask_probs": outputs}


def _select_class(logits: Tensor, labels: Tensor) -> Tensor:
    """Select the maps of labels [R] from logits [R, E, K, M, M] or [R, K, M, M]: [R, E, M, M]."""
    rows = torch.arange(labels.shape[0], device=labels.device)
    return logits[rows, :, labels] if logits.dim() == 5 else logits[rows, labels][:, None]


def build_mask_head(cfg: CfgNode, backbone: Backbone, box_extractor: Extractor) -> MaskHead:
    """Build the MODEL.ROI_MASK_HEAD.NUM_HEADS mask heads; see `build_map_head`."""
    count = cfg.MODEL.ROI_MASK_HEAD.NUM_HEADS
    args = MaskHead, "ROI_MASK_HEAD", cfg, backbone, box_extractor
    head, *more = [build_map_head(*args) for _ in range(count)]
    head.more.extend(more)
    return head
