"""Heads that predict a map for each RoI: masks and keypoints (Mask R-CNN,
https://arxiv.org/abs/1703.06870).

Shapes: B images, F samples and G ground truths per image, R packed rows (see
`detlite.structures.padding`), C channels, S x S pooled, M x M predicted, K classes with background
as class 0, or K keypoints, E mask heads.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.conventions import Convention, convention_of
from detlite.modeling.backbone import Backbone
from detlite.modeling.precision import at_least_float32
from detlite.ops import crop_masks, heatmap_peaks
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth, Samples
from detlite.structures.keypoints import to_heatmap_cells
from detlite.structures.padding import Packing, gather

from .extractors import Extractor, build_extractor
from .predictors import build_predictor

H = TypeVar("H", bound="DenseRoIHead")


class DenseRoIHead(nn.Module, ABC):
    """Extractor, or None to use the features of the box head, and predictor of maps."""

    def __init__(
        self, extractor: Extractor | None, predictor: nn.Module, convention: Convention
    ) -> None:
        super().__init__()
        self.feature_extractor = extractor
        self.predictor = predictor
        self.convention = convention

    def forward(self, features: list[Tensor], rois: Tensor, shared: Tensor | None) -> Tensor:
        """Predict float32 logits [R, ..., M, M] of RoIs [R, 5] in levels [B, C, H_l, W_l].

        A head without an extractor uses `shared`, the features by the extractor of the box head.
        """
        x = shared if self.feature_extractor is None else self.feature_extractor(features, rois)
        return at_least_float32(self.predictor(x))

    @abstractmethod
    def losses(
        self, logits: Tensor, packing: Packing, samples: Samples, truth: GroundTruth
    ) -> dict[str, Tensor]:
        """Compute the scalar losses of the logits of packed rows of samples [B, F]."""


class MaskHead(DenseRoIHead):
    """Predicts masks of every class; the mask of the true or the detected class is used.

    With further heads in `more`, E in all, the logits are [R, E, K, M, M] and the probabilities are
    averaged, as in mmdetection's Cascade Mask R-CNN. All heads are trained on the same samples.

    Attributes:
        additional_loss: function added to the cross entropy, see MODEL.ROI_MASK_HEAD.LOSS.
    """

    additional_loss: Callable[[Tensor, Tensor], Tensor] | None = None

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
        self, logits: Tensor, packing: Packing, samples: Samples, truth: GroundTruth
    ) -> dict[str, Tensor]:
        """Compute `loss_mask`: mean binary cross entropy of the masks of the true classes, plus
        the mean of their additional loss."""
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
        if self.additional_loss:
            loss = loss + self.additional_loss(selected, target)[..., None, None]
        count = packing.valid.sum() * target.shape[1:].numel()
        loss = torch.where(packing.valid[:, None, None, None], loss, 0).sum()
        return {"loss_mask": loss / count.clamp(min=1)}

    def probabilities(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the masks of labels [R] as float32 probabilities [R, M, M]."""
        probs = _select_class(logits, labels).sigmoid()
        return probs.mean(dim=1) if self.more else probs[:, 0]


def dice_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the dice loss [...], in 0..1, of logits and targets in 0..1, both [..., M, M].

    With probabilities p and targets t, it is 1 - 2 sum(p t) / (sum(p p) + sum(t t)), as in V-Net
    (https://arxiv.org/abs/1606.04797). Each mask counts the same, whatever its area.
    """
    probs, target = logits.sigmoid().flatten(-2), target.flatten(-2)
    total = (probs.square() + target.square()).sum(dim=-1)
    return 1 - 2 * (probs * target).sum(dim=-1) / total.clamp(min=1e-6)


def boundary_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean binary cross entropy [...] of the cells along the boundary of each target.

    These are the cells of targets [..., M, M] in 0..1 whose 3x3 neighborhood has both foreground
    and background. A target without a boundary has the loss 0.
    """
    maps = target.flatten(0, -3)[:, None]
    largest, smallest = F.max_pool2d(maps, 3, 1, 1), -F.max_pool2d(-maps, 3, 1, 1)
    boundary = ((largest >= 0.5) & (smallest < 0.5)).view_as(target).to(logits.dtype)
    loss = F.binary_cross_entropy_with_logits(logits, target, weight=boundary, reduction="none")
    return loss.sum(dim=(-2, -1)) / boundary.sum(dim=(-2, -1)).clamp(min=1)


# Losses added to the cross entropy, by the value of MODEL.ROI_MASK_HEAD.LOSS.
MASK_LOSSES = {"bce": None, "bce_dice": dice_loss, "bce_boundary": boundary_loss}


def _select_class(logits: Tensor, labels: Tensor) -> Tensor:
    """Select the maps of labels [R] from logits [R, E, K, M, M] or [R, K, M, M]: [R, E, M, M]."""
    rows = torch.arange(labels.shape[0], device=labels.device)
    return logits[rows, :, labels] if logits.dim() == 5 else logits[rows, labels][:, None]


class KeypointHead(DenseRoIHead):
    """Predicts a heat map for each keypoint, the same for all classes."""

    def losses(
        self, logits: Tensor, packing: Packing, samples: Samples, truth: GroundTruth
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

    def locate(self, logits: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Find the peaks of heat maps [R, K, M, M] of boxes [R, 4]: keypoints [R, K, 3] of
        (x, y, 1), and their logits [R, K]."""
        return heatmap_peaks(logits, box_ops.pooled_region(boxes, self.convention))


def build_dense_head(
    kind: type[H], section: str, cfg: CfgNode, backbone: Backbone, box_extractor: Extractor
) -> H:
    """Build a head of class `kind` from MODEL.<section>, "ROI_MASK_HEAD" or "ROI_KEYPOINT_HEAD".

    It uses `box_extractor` if SHARE_BOX_FEATURE_EXTRACTOR is True.
    """
    node, key = cfg.MODEL[section], f"MODEL.{section}"
    extractor, pooling = None, "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION"
    if not node.SHARE_BOX_FEATURE_EXTRACTOR:
        extractor, pooling = build_extractor(cfg, backbone, section), f"{key}.POOLER_RESOLUTION"
    source = extractor or box_extractor
    side = getattr(source, "out_resolution", None)
    if side is None:
        raise ValueError(
            f"{key}.SHARE_BOX_FEATURE_EXTRACTOR must be False: "
            f"{cfg.MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR} computes vectors, not maps"
        )
    predictor = build_predictor(cfg, section, source.out_channels)
    resolution = predictor(torch.zeros(1, source.out_channels, side, side)).shape[-1]
    if resolution != node.RESOLUTION:
        raise ValueError(
            f"{key}.RESOLUTION is {node.RESOLUTION}, but the head predicts {resolution} x "
            f"{resolution} from RoIs of {pooling}: set one to fit the other"
        )
    return kind(extractor, predictor, convention_of(cfg))
