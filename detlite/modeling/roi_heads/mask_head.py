"""Mask head (Mask R-CNN, https://arxiv.org/abs/1703.06870): predicts a mask for each detection.

Shapes: R packed rows (see `detlite.structures.padding`), S x S pooled, M x M predicted, K classes
with background as class 0, E heads.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.conventions import Convention
from detlite.modeling.backbone import Backbone
from detlite.ops import crop_masks
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, Samples
from detlite.structures.padding import Packing

from .dense_head import DenseRoIHead, build_dense_head
from .extractors import Extractor


class MaskHead(DenseRoIHead):
    """Predicts masks of every class; the mask of the true or the detected class is used.

    `more` heads may be added, E in all. The logits then are [R, E, K, M, M] and the probabilities
    the mean over heads, like mmdetection's Cascade Mask R-CNN. All are trained on the same samples.
    """

    def __init__(
        self, extractor: Extractor | None, predictor: nn.Module, convention: Convention
    ) -> None:
        super().__init__(extractor, predictor, convention)
        self.more = nn.ModuleList()

    def forward(self, features: list[Tensor], rois: Tensor, shared: Tensor | None) -> Tensor:
        """Predict float32 logits [R, K, M, M], or [R, E, K, M, M] with several heads."""
        logits = super().forward(features, rois, shared)
        if not self.more:
            return logits
        return torch.stack([logits, *(head(features, rois, shared) for head in self.more)], dim=1)

    def losses(
        self, logits: Tensor, packing: Packing, samples: Samples, truth: GroundTruth
    ) -> dict[str, Tensor]:
        """Compute `loss_mask`: mean binary cross entropy of the masks of the true classes."""
        assert truth.masks is not None
        selected = _select_class(logits, packing.pack(samples.labels).clamp(min=0))
        instance = packing.image * truth.labels.shape[1] + packing.pack(samples.gt_index)
        covered = box_ops.pooled_region(packing.pack(samples.boxes), self.convention)
        target = crop_masks(
            *truth.masks.tensors(),
            torch.where(packing.valid, instance, -1),
            covered.float(),
            logits.shape[-1],
            self.convention.mask_targets == "soft",
        ).to(logits.dtype)
        target = target[:, None].expand_as(selected)
        loss = F.binary_cross_entropy_with_logits(selected, target, reduction="none")
        count = packing.valid.sum() * target.shape[1:].numel()
        loss = torch.where(packing.valid[:, None, None, None], loss, 0).sum()
        return {"loss_mask": loss / count.clamp(min=1)}

    def probabilities(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the masks of labels [R] as float32 probabilities [R, M, M]."""
        probs = _select_class(logits, labels).sigmoid()
        return probs.mean(dim=1) if self.more else probs[:, 0]


def _select_class(logits: Tensor, labels: Tensor) -> Tensor:
    """Select the maps of labels [R] from logits [R, E, K, M, M] or [R, K, M, M]: [R, E, M, M]."""
    rows = torch.arange(labels.shape[0], device=labels.device)
    return logits[rows, :, labels] if logits.dim() == 5 else logits[rows, labels][:, None]


def build_mask_head(cfg: CfgNode, backbone: Backbone, box_extractor: Extractor) -> MaskHead:
    """Build the mask head of MODEL.ROI_MASK_HEAD, see `build_dense_head`."""
    heads = [
        build_dense_head(MaskHead, cfg, "ROI_MASK_HEAD", backbone, box_extractor)
        for _ in range(cfg.MODEL.ROI_MASK_HEAD.NUM_HEADS)
    ]
    heads[0].more.extend(heads[1:])
    return heads[0]
