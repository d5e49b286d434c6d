"""FCOS (Tian et al., https://arxiv.org/abs/1904.01355): every cell of a pyramid is a candidate.

Shapes: B images, L levels with N cells in all, G ground truths, K - 1 classes without background.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.modeling import (
    META_ARCHITECTURES,
    Backbone,
    DetectionModel,
    Normalizer,
    Postprocess,
    build_backbone,
    build_norm,
    build_normalizer,
    build_postprocess,
    conv_block,
    gather,
    generalized_iou,
    top_scores,
)
from detlite.ops import sigmoid_focal_loss
from detlite.structures.instances import GroundTruth, Images, PredictedBoxes, Proposals

RADIUS = 1.5  # a cell is foreground within this number of strides of the center of its box
FINEST = 8.0  # level l trains on boxes whose farthest side is FINEST * stride away, or half of it
PRIOR = 0.01  # initial score of every cell
PRE_NMS = 1000


class FCOS(DetectionModel):
    """Predicts for each cell scores, the distances to the four sides, and its centerness."""

    def __init__(
        self,
        normalizer: Normalizer,
        backbone: Backbone,
        postprocess: Postprocess,
        num_classes: int,
        num_convs: int,
        norm: Callable[[int], nn.Module],
        score_thresh: float,
    ) -> None:
        super().__init__(normalizer, backbone, postprocess, num_classes)
        width = backbone.out_channels
        self.score_thresh = score_thresh

        def tower() -> nn.Sequential:
            blocks = (conv_block(width, width, 3, norm=norm, relu=True) for _ in range(num_convs))
            return nn.Sequential(*blocks)

        self.class_tower, self.box_tower = tower(), tower()
        self.class_logits = nn.Conv2d(width, num_classes - 1, 3, padding=1)
        self.distances = nn.Conv2d(width, 4, 3, padding=1)
        self.centerness = nn.Conv2d(width, 1, 3, padding=1)
        self.scales = nn.Parameter(torch.ones(len(backbone.strides)))
        for layer in (self.class_logits, self.distances, self.centerness):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
        nn.init.constant_(self.class_logits.bias, -math.log((1 - PRIOR) / PRIOR))

    def head(self, features: list[Tensor]) -> tuple[Tensor, ...]:
        """Return centers [N, 2], strides [N], logits [B, N, K - 1], distances [B, N, 4] and
        centerness logits [B, N] of levels [B, C, H_l, W_l]."""
        outputs = []
        for stride, scale, level in zip(self.backbone.strides, self.scales, features, strict=True):
            x, regressed = self.class_tower(level), self.box_tower(level)
            rows, columns = (torch.arange(n, device=x.device) for n in level.shape[2:])
            centers = (torch.cartesian_prod(rows, columns).flip(1) + 0.5) * stride  # (x, y)
            strides = torch.full_like(centers[:, 0], stride)
            logits = self.class_logits(x).float().flatten(2).mT
            distances = (scale * self.distances(regressed)).float().clamp(max=8).exp() * stride
            centerness = self.centerness(regressed).float().flatten(1)
            outputs.append((centers, strides, logits, distances.flatten(2).mT, centerness))
        axes = 0, 0, 1, 1, 1
        return tuple(
            torch.cat(x, dim=d) for x, d in zip(zip(*outputs, strict=True), axes, strict=True)
        )

    def assign(self, centers: Tensor, strides: Tensor, truth: GroundTruth) -> tuple[Tensor, Tensor]:
        """Return the smallest matching object of each cell, int64 [B, N], and if there is one."""
        low, high = truth.boxes[:, None, :, :2], truth.boxes[:, None, :, 2:]  # [B, 1, G, 2]
        points, stride = centers[:, None], strides[:, None]  # [N, 1, ...]
        sides = torch.cat([points - low, high - points], dim=-1)  # [B, N, G, 4]
        near = (points - (low + high) / 2).abs().amax(dim=-1) < RADIUS * stride
        farthest = sides.amax(dim=-1)
        finest, coarsest = min(self.backbone.strides), max(self.backbone.strides)
        fits = (farthest >= FINEST / 2 * stride) | (stride == finest)
        fits &= (farthest < FINEST * stride) | (stride == coarsest)
        matches = near & fits & (sides.amin(dim=-1) > 0) & truth.valid[:, None]
        area = (high - low).prod(dim=-1).expand_as(matches)
        smallest, index = torch.where(matches, area, torch.inf).min(dim=-1)
        return index, smallest < torch.inf

    def losses(
        self, images: Images, truth: GroundTruth, proposals: Proposals | None = None
    ) -> dict[str, Tensor]:
        """Compute `loss_classifier` of all cells; `loss_box`, `loss_centerness` of foreground."""
        centers, strides, logits, distances, centerness = self.head(self.backbone(images.pixels))
        index, foreground = self.assign(centers, strides, truth)
        labels = torch.where(foreground, truth.labels.gather(1, index), 0)
        target = F.one_hot(labels, self.num_classes)[..., 1:].to(logits.dtype)
        boxes = gather(truth.boxes, index)
        # Background cells get any valid values, because their losses are multiplied by 0.
        sides = torch.cat([centers - boxes[..., :2], boxes[..., 2:] - centers], dim=-1)
        sides = torch.where(foreground[..., None], sides, 1.0)
        low, high = torch.minimum(sides[..., :2], sides[..., 2:]), sides.unflatten(-1, (2, 2))
        quality = (low / high.amax(dim=-2)).prod(dim=-1).sqrt()  # [B, N], the paper's centerness
        weight = torch.where(foreground, quality, 0)
        iou = generalized_iou(_to_boxes(centers, distances), _to_boxes(centers, sides))
        center_loss = F.binary_cross_entropy_with_logits(centerness, quality, reduction="none")
        count = foreground.sum().clamp(min=1)
        return {
            "loss_classifier": sigmoid_focal_loss(logits, target).sum() / count,
            "loss_box": (weight * (1 - iou)).sum() / weight.sum().clamp(min=1e-6),
            "loss_centerness": torch.where(foreground, center_loss, 0).sum() / count,
        }

    def predict_boxes(
        self, features: list[Tensor], images: Images, proposals: Proposals | None = None
    ) -> PredictedBoxes:
        """Decode the cells with the highest products of score and centerness."""
        centers, _, logits, distances, centerness = self.head(features)
        scores = (logits.sigmoid() * centerness.sigmoid()[..., None]).sqrt().flatten(1)
        best, index, valid = top_scores(scores, self.score_thresh, PRE_NMS, self.static_shapes)
        cell, label = index // logits.shape[2], index % logits.shape[2] + 1
        boxes = gather(_to_boxes(centers, distances), cell)
        return PredictedBoxes(boxes, best, label, valid)


def _to_boxes(centers: Tensor, sides: Tensor) -> Tensor:
    return torch.cat([centers - sides[..., :2], centers + sides[..., 2:]], dim=-1)


@META_ARCHITECTURES.register("FCOS")
def build_fcos(cfg: CfgNode) -> FCOS:
    """Build the detector from MODEL.ROI_HEADS, and the depth of its towers from MODEL.RETINANET."""
    parts = build_normalizer(cfg), build_backbone(cfg), build_postprocess(cfg)
    num_classes, num_convs = cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES, cfg.MODEL.RETINANET.NUM_CONVS
    norm = build_norm(cfg, "GN")
    return FCOS(*parts, num_classes, num_convs, norm, cfg.MODEL.ROI_HEADS.SCORE_THRESH)
