from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detlite.config import ConfigError
from detlite.modeling.backbone import build_backbone
from detlite.modeling.box_coder import BoxCoder
from detlite.modeling.box_head import BOX_EXTRACTORS, BoxHead
from detlite.modeling.box_loss import BoxLoss
from detlite.modeling.rcnn import build_model
from detlite.modeling.suppression import DetectionLimits, suppress
from detlite.ops import nms

CLASSES = 3  # with background
CODER = BoxCoder((10.0, 10.0, 5.0, 5.0))
SMOOTH_L1 = BoxLoss()
LIMITS = DetectionLimits(score_thresh=0.05, nms_thresh=0.5, per_image=100)
SIZES = [(60, 80), (20, 20)]  # some boxes lie outside the second image


class GivenPredictor(nn.Module):
    """Predicts what it is given."""

    def __init__(self, logits: torch.Tensor, deltas: torch.Tensor) -> None:
        super().__init__()
        self.predictions = logits, deltas

    def forward(self, x):
        return self.predictions


def random_boxes(count: int) -> torch.Tensor:
    corner = torch.rand(count, 2) * 40
    return torch.cat([corner, corner + 5 + torch.rand(count, 2) * 30], dim=1)


def make_head(count: int, agnostic: bool = False, loss: BoxLoss = SMOOTH_L1) -> BoxHead:
    regressions = 2 if agnostic else CLASSES
    predictor = GivenPredictor(torch.randn(count, CLASSES) * 2, torch.randn(count, 4 * regressions))
    return BoxHead(nn.Identity(), predictor, CODER, box_loss=loss, class_agnostic=agnostic)


def detect(head, proposals, sizes, limits=LIMITS):
    scores, deltas = head.predict(torch.zeros(sum(map(len, proposals))))
    candidates = head.candidates(scores, deltas, proposals, sizes, limits)
    return [suppress(own, limits) for own in candidates]


# ---- losses


@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize("beta", [0.0, 1 / 9, 1.0])
def test_losses_proposal_by_proposal(agnostic, beta):
    proposals = [random_boxes(5), random_boxes(3)]
    targets = [
        {"labels": torch.tensor([1, 2, 0, 0, 2]), "boxes": random_boxes(5)},
        {"labels": torch.tensor([0, 1, 0]), "boxes": random_boxes(3)},
    ]
    head = make_head(8, agnostic, BoxLoss(beta=beta))
    losses = head.losses(*head.predictor.predictions, proposals, targets)
    logits, deltas = head.predictor.predictions
    labels = torch.cat([t["labels"] for t in targets]).tolist()
    boxes, references = torch.cat([t["boxes"] for t in targets]), torch.cat(proposals)
    classifier = box = 0.0
    for n, label in enumerate(labels):
        classifier -= logits[n].log_softmax(0)[label].item()
        if label > 0:
            column = 1 if agnostic else label
            wanted = CODER.encode(boxes[n : n + 1], references[n : n + 1])[0]
            predicted = deltas[n, 4 * column : 4 * column + 4]
            box += F.smooth_l1_loss(predicted, wanted, beta=beta, reduction="sum").item()
    assert losses["loss_classifier"].item() == pytest.approx(classifier / 8, rel=1e-5)
    assert losses["loss_box"].item() == pytest.approx(box / 8, rel=1e-5)


@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize("count", [0, 4])
def test_losses_without_foreground_are_zero_and_connected(agnostic, count):
    head = make_head(count, agnostic)
    for tensor in head.predictor.predictions:
        tensor.requires_grad_()
    targets = [{"labels": torch.zeros(count, dtype=torch.int64), "boxes": torch.zeros(count, 4)}]
    losses = head.losses(*head.predictor.predictions, [random_boxes(count)], targets)
    assert losses["loss_box"].item() == 0
    assert (losses["loss_classifier"].item() == 0) == (count == 0)
    sum(losses.values()).backward()
    for tensor in head.predictor.predictions:
        assert tensor.grad is not None


# ---- detections


def detect_slowly(
    head: BoxHead,
    start: int,
    proposals: torch.Tensor,
    size: tuple[int, int],
    limits: DetectionLimits,
):
    """One image: (score, label, box) by decreasing score, class by class."""
    logits, deltas = head.predictor.predictions
    found = []
    for label in range(1, CLASSES):
        boxes, scores = [], []
        for n, proposal in enumerate(proposals):
            score = logits[start + n].softmax(0)[label].item()
            if score <= limits.score_thresh:
                continue
            column = 1 if head.class_agnostic else label
            delta = deltas[start + n, 4 * column : 4 * column + 4]
            x1, y1, x2, y2 = head.box_coder.decode(delta[None], proposal[None])[0].tolist()
            x1, x2 = (min(max(x, 0), size[1]) for x in (x1, x2))
            y1, y2 = (min(max(y, 0), size[0]) for y in (y1, y2))
            if x2 > x1 and y2 > y1:
                boxes.append([x1, y1, x2, y2])
                scores.append(score)
        if boxes:
            kept = nms(torch.tensor(boxes), torch.tensor(scores), limits.nms_thresh).tolist()
            found += [(scores[k], label, boxes[k]) for k in kept]
    return sorted(found, reverse=True)[: limits.per_image]


@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize(
    "limits", [{}, {"per_image": 4}, {"score_thresh": 0.6}, {"nms_thresh": 0.2}]
)
def test_detections_proposal_by_proposal(agnostic, limits):
    proposals = [random_boxes(12), random_boxes(7)]
    head, limits = make_head(19, agnostic), replace(LIMITS, **limits)
    found = detect(head, proposals, SIZES, limits)
    for detections, start, own, size in zip(found, (0, 12), proposals, SIZES, strict=True):
        slow = detect_slowly(head, start, own, size, limits)
        assert slow
        assert detections["labels"].tolist() == [label for _, label, _ in slow]
        torch.testing.assert_close(
            detections["scores"], torch.tensor([score for score, _, _ in slow])
        )
        torch.testing.assert_close(detections["boxes"], torch.tensor([box for _, _, box in slow]))


@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize("counts", [(0, 0), (0, 5)])
def test_detections_without_proposals(agnostic, counts):
    head = make_head(sum(counts), agnostic)
    found = detect(head, [random_boxes(c) for c in counts], SIZES)
    assert [len(d["boxes"]) > 0 for d in found] == [count > 0 for count in counts]
    assert found[0]["boxes"].shape == (0, 4)
    assert found[0]["scores"].shape == found[0]["labels"].shape == (0,)


def test_no_score_above_the_threshold():
    limits = replace(LIMITS, score_thresh=1.0)
    (found,) = detect(make_head(5), [random_boxes(5)], SIZES[:1], limits)
    assert len(found["boxes"]) == 0


def test_predictions_that_are_not_numbers_are_dropped():
    head = make_head(6)
    logits, deltas = head.predictor.predictions
    logits[0], deltas[1] = math.nan, math.nan
    (found,) = detect(head, [random_boxes(6)], SIZES[:1])
    assert len(found["boxes"]) > 0
    assert found["boxes"].isfinite().all()
    assert found["scores"].isfinite().all()


# ---- parts


def test_group_norm_replaces_the_biases(tiny_config):
    keys = ("MODEL.ROI_BOX_HEAD.USE_GN", True)
    extractor = build_model(tiny_config(*keys)).roi_heads.box.feature_extractor
    assert extractor.fc6.bias is None
    assert extractor.fc7.bias is None
    assert sum(isinstance(m, nn.GroupNorm) for m in extractor.modules()) == 2
    plain = build_model(tiny_config()).roi_heads.box.feature_extractor
    assert plain.fc6.bias is not None
    assert not any(isinstance(m, nn.GroupNorm) for m in plain.modules())


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("resolution", [7, 14])
def test_conv5_extractor_says_what_it_gives(tiny_config, dilation, resolution):
    cfg = tiny_config(
        "MODEL.RESNETS.RES5_DILATION",
        dilation,
        "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION",
        resolution,
        c4=True,
    )
    backbone = build_backbone(cfg)
    extractor = BOX_EXTRACTORS.get("ResNetConv5ROIFeatureExtractor", "")(cfg, backbone)
    x = extractor(backbone(torch.zeros(1, 3, 64, 64)), [torch.tensor([[0.0, 0, 40, 40]])])
    side = extractor.out_resolution
    assert x.shape == (1, extractor.out_channels, side, side)
    assert extractor.out_channels == 2 * backbone.out_channels


def test_conv5_extractor_needs_a_c4_body(tiny_config):
    key = "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR"
    with pytest.raises(ConfigError, match=r"res5 to 64 channels, but R-18-FPN gives 16: use a C4"):
        build_model(tiny_config(key, "ResNetConv5ROIFeatureExtractor"))


@pytest.mark.parametrize("agnostic", [False, True])
def test_regressions_of_the_predictor(tiny_config, agnostic):
    model = build_model(tiny_config("MODEL.CLS_AGNOSTIC_BBOX_REG", agnostic))
    predictor = model.roi_heads.box.predictor
    assert predictor.cls_score.out_features == 4
    assert predictor.bbox_pred.out_features == (8 if agnostic else 16)


@pytest.mark.parametrize("key", ["FEATURE_EXTRACTOR", "PREDICTOR"])
def test_unknown_part_names_the_key(tiny_config, key):
    with pytest.raises(
        ConfigError, match=rf"MODEL\.ROI_BOX_HEAD\.{key}: no box .* is called 'None'"
    ):
        build_model(tiny_config(f"MODEL.ROI_BOX_HEAD.{key}", "None"))
