"""RetinaNet (Lin et al., https://arxiv.org/abs/1708.02002): one stage, every anchor classified.

Shapes: B images, L levels; N_l = H_l W_l A anchors on level l, N over all levels. S scores an
anchor: one for each class without background, or one more where the head scores that too. G
ground-truth boxes in an image, padded.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.conventions import convention_of
from detlite.ops import sigmoid_focal_loss
from detlite.structures.instances import GroundTruth, Images, PredictedBoxes, Proposals
from detlite.structures.padding import Rows, gather, highest

from .backbone import Backbone, build_backbone
from .box_coder import BoxCoder, BoxLoss
from .build import META_ARCHITECTURES
from .detector import Detector
from .layers.basic import conv_block, init_normal
from .layers.norm import LevelBatchNorm, Norm, optional_norm
from .postprocessing import Postprocess, build_suppression
from .preprocessing import Normalizer, build_normalizer
from .rpn.anchors import AnchorGenerator, build_anchors, per_anchor
from .sampler import IGNORE, Matcher


class RetinaNetHead(nn.Module):
    """Two towers of 3x3s, shared by all levels: one scores the anchors of a cell, one moves them.

    Args:
        norm: behind each 3x3; a `LevelBatchNorm` is told the level.
        bias: whether the 3x3s have one; None: where no norm follows.
        prior: the score that every anchor starts with.
    """

    def __init__(
        self,
        in_channels: int,
        anchors_per_cell: int,
        num_scores: int,
        num_convs: int,
        norm: Norm | None,
        prior: float,
        bias: bool | None = None,
    ) -> None:
        super().__init__()
        self.num_scores = num_scores

        def tower() -> nn.Sequential:
            widths = [in_channels] * num_convs
            blocks = (conv_block(c, c, 3, norm=norm, relu=True, bias=bias) for c in widths)
            return nn.Sequential(*blocks)

        self.cls_tower, self.bbox_tower = tower(), tower()
        self.cls_logits = nn.Conv2d(in_channels, anchors_per_cell * num_scores, 3, padding=1)
        self.bbox_pred = nn.Conv2d(in_channels, anchors_per_cell * 4, 3, padding=1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                init_normal(layer, std=0.01)
        assert self.cls_logits.bias is not None
        # Rare objects among many anchors: without it the background's loss drowns the first steps.
        nn.init.constant_(self.cls_logits.bias, -math.log((1 - prior) / prior))

    def forward(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Levels [B, C, H_l, W_l] -> float32 logits [B, N_l, S] and deltas [B, N_l, 4] of each."""
        logits, deltas = [], []
        for level, feature in enumerate(features):
            logits.append(self.cls_logits(_towered(self.cls_tower, feature, level)))
            deltas.append(self.bbox_pred(_towered(self.bbox_tower, feature, level)))
        return [per_anchor(x, self.num_scores) for x in logits], [per_anchor(x, 4) for x in deltas]


def _towered(tower: nn.Sequential, x: Tensor, level: int) -> Tensor:
    for block in tower.children():
        for layer in block.children():
            x = layer(x, level) if isinstance(layer, LevelBatchNorm) else layer(x)
    return x


class RetinaNet(Detector):
    """A one-stage detector of boxes. Its losses are `loss_classifier` and `loss_box`.

    Args:
        matcher: which anchors are foreground.
        alpha, gamma: of the focal loss.
        box_loss: of the foreground.
        score_thresh: predicted boxes need a higher score.
        pre_nms: how many of a level's scores are considered, the best.
    """

    # Foreground anchors of a batch: the average starts high, and moves by a tenth a step.
    START, MOMENTUM = 100.0, 0.9
    moving_foreground: Tensor

    def __init__(
        self,
        normalizer: Normalizer,
        backbone: Backbone,
        head: RetinaNetHead,
        anchor_generator: AnchorGenerator,
        box_coder: BoxCoder,
        postprocess: Postprocess,
        *,
        num_classes: int,
        matcher: Matcher,
        alpha: float,
        gamma: float,
        box_loss: BoxLoss,
        score_thresh: float,
        pre_nms: int,
    ) -> None:
        super().__init__(normalizer, backbone, postprocess, num_classes)
        self.head = head
        self.anchor_generator = anchor_generator
        self.box_coder = box_coder
        self.matcher = matcher
        self.alpha, self.gamma = alpha, gamma
        self.box_loss = box_loss
        self.score_thresh = score_thresh
        self.pre_nms = pre_nms
        self.first_label = 0 if self.convention.retinanet_scores_background else 1
        if self.convention.retinanet_loss_normalizer == "moving":
            self.register_buffer("moving_foreground", torch.tensor(self.START))

    def losses(
        self, images: Images, truth: GroundTruth, given: Proposals | None = None
    ) -> dict[str, Tensor]:
        """Focal loss over the anchors that are not ignored, box loss over the foreground."""
        anchors, all_logits, all_deltas = self._predict(self.backbone(images.pixels))
        references = torch.cat(anchors)
        logits, deltas = torch.cat(all_logits, 1), torch.cat(all_deltas, 1)
        matched = self.matcher(truth, references)  # (B, N)
        foreground, gt_index = matched >= 0, matched.clamp(min=0)
        labels = truth.labels.gather(1, gt_index) - self.first_label
        # An anchor that is not foreground writes a 0.
        wanted = torch.zeros_like(logits).scatter_(
            2, labels.clamp(min=0)[:, :, None], foreground[:, :, None].to(logits.dtype)
        )
        classifier = sigmoid_focal_loss(logits, wanted, self.alpha, self.gamma)
        classifier = torch.where(matched[:, :, None] == IGNORE, 0, classifier).sum(dim=(1, 2))
        rows = Rows(foreground)
        box = self.box_loss(
            self.box_coder,
            rows.pack(deltas),
            rows.pack(gather(truth.boxes, gt_index)),
            references[rows.index % references.shape[0]],
            rows.valid,
        )
        count = foreground.sum(dim=1).to(classifier.dtype)  # (B,)
        if self.convention.retinanet_loss_normalizer == "image":
            per_image = box.new_zeros(count.shape[0]).index_add(0, rows.image, box)
            count = count.clamp(min=1) * count.shape[0]
            return {
                "loss_classifier": (classifier / count).sum(),
                "loss_box": (per_image / count).sum(),
            }
        of_scores, of_boxes = self._normalizers(count)
        return {"loss_classifier": classifier.sum() / of_scores, "loss_box": box.sum() / of_boxes}

    def predict_boxes(
        self, features: list[Tensor], images: Images, given: Proposals | None = None
    ) -> PredictedBoxes:
        """The best scores of each level, and the boxes that their anchors are moved to."""
        levels = [self._decode(*level) for level in zip(*self._predict(features), strict=True)]
        return PredictedBoxes(*(torch.cat(field, dim=1) for field in zip(*levels, strict=True)))

    def _predict(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Of each level anchors [N_l, 4], logits [B, N_l, S] and deltas [B, N_l, 4]."""
        anchors = self.anchor_generator([(f.shape[-2], f.shape[-1]) for f in features])
        return anchors, *self.head(features)

    def _normalizers(self, count: Tensor) -> tuple[Tensor, Tensor]:
        """What scores' and boxes' losses are divided by, from each image's foreground anchors."""
        total = count.sum()
        if self.convention.retinanet_loss_normalizer == "moving":
            self.moving_foreground.lerp_(total.clamp(min=1), 1 - self.MOMENTUM)
            return self.moving_foreground.clone(), self.moving_foreground.clone()
        return total + count.shape[0], total.clamp(min=1)

    def _decode(
        self, anchors: Tensor, logits: Tensor, deltas: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One level: boxes [B, N, 4], scores [B, N], labels [B, N] and which are valid [B, N]."""
        scores = logits.flatten(1).sigmoid()
        best, index, valid = highest(scores, self.score_thresh, self.pre_nms)
        anchor, label = index // logits.shape[2], index % logits.shape[2] + self.first_label
        boxes = self.box_coder.decode(gather(deltas, anchor), anchors[anchor])
        return boxes, best, label, valid


@META_ARCHITECTURES.register("RetinaNet")
def build_retinanet(cfg: CfgNode) -> RetinaNet:
    """The detector that MODEL.RETINANET describes."""
    for key in ("MASK_ON", "KEYPOINT_ON", "LOAD_PROPOSALS"):
        if cfg.MODEL[key]:
            raise ValueError(f"a RetinaNet has no heads of that kind: MODEL.{key} must be False")
    node, convention = cfg.MODEL.RETINANET, convention_of(cfg)
    backbone = build_backbone(cfg)
    octaves = [node.OCTAVE ** (k / node.SCALES_PER_OCTAVE) for k in range(node.SCALES_PER_OCTAVE)]
    anchors = build_anchors(cfg, backbone.strides, "RETINANET", octaves)
    return RetinaNet(
        build_normalizer(cfg),
        backbone,
        RetinaNetHead(
            backbone.out_channels,
            anchors.per_cell[0],
            node.NUM_CLASSES - (not convention.retinanet_scores_background),
            node.NUM_CONVS,
            _tower_norm(cfg, len(backbone.strides)),
            node.PRIOR_PROB,
            bias=convention.retinanet_normed_bias or None,
        ),
        anchors,
        BoxCoder(node.BBOX_REG_WEIGHTS, convention.limit_shrinking),
        Postprocess(
            convention,
            build_suppression(cfg, node.NMS_TH),
            cfg.MODEL.ROI_HEADS.DETECTIONS_PER_IMG,
            convention.retinanet_min_size,
            convention.retinanet_clip,
        ),
        num_classes=node.NUM_CLASSES,
        matcher=Matcher(node.FG_IOU_THRESHOLD, node.BG_IOU_THRESHOLD, keep_best=True),
        alpha=node.LOSS_ALPHA,
        gamma=node.LOSS_GAMMA,
        box_loss=BoxLoss(node.BOX_LOSS, node.BBOX_REG_BETA, 1 / node.BBOX_REG_WEIGHT),
        score_thresh=node.INFERENCE_TH,
        pre_nms=node.PRE_NMS_TOP_N,
    )


def _tower_norm(cfg: CfgNode, levels: int) -> Norm | None:
    kind = optional_norm(cfg, "RETINANET")
    if kind in (nn.BatchNorm2d, nn.SyncBatchNorm):
        return partial(LevelBatchNorm, levels=levels, kind=kind)
    return kind
