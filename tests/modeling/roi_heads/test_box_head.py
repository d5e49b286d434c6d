from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detlite.config import ConfigError
from detlite.conventions import CONVENTIONS
from detlite.modeling.backbone import build_backbone
from detlite.modeling.box_coder import BoxCoder, BoxLoss
from detlite.modeling.build import build_model
from detlite.modeling.postprocessing import Postprocess, Suppression
from detlite.modeling.preprocessing import prepare_proposals
from detlite.modeling.roi_heads.box_head import BOX_EXTRACTORS, BoxHead
from detlite.ops import nms
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections, GroundTruth, Samples
from detlite.structures.padding import Rows, fixed_shapes

CLASSES = 3  # with background
CODER = BoxCoder((10.0, 10.0, 5.0, 5.0))
SMOOTH_L1 = BoxLoss()
OURS = CONVENTIONS["detlite"]
POSTPROCESS = Postprocess(OURS, Suppression(0.5), detections_per_image=100)
SIZES = torch.tensor([[60, 80], [20, 20]])  # some boxes lie outside the second image

# Rows of valid entries alone, or of padding too.
SHAPES = pytest.mark.parametrize("shapes", [nullcontext, fixed_shapes], ids=["varying", "fixed"])


class RoIs(nn.Module):
    """Features that are the RoIs themselves."""

    def forward(self, features, rois):
        return rois / 40


class LinearPredictor(nn.Module):
    """Predictions that differ from box to box."""

    def __init__(self, regressions: int) -> None:
        super().__init__()
        self.logits = nn.Linear(5, CLASSES)
        self.deltas = nn.Linear(5, 4 * regressions)
        for layer in (self.logits, self.deltas):
            nn.init.normal_(layer.weight, std=2)

    def forward(self, x):
        return self.logits(x), self.deltas(x)


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


def make_head(
    agnostic: bool = False, loss: BoxLoss = SMOOTH_L1, score_thresh: float = 0.05
) -> BoxHead:
    return BoxHead(
        RoIs(), LinearPredictor(2 if agnostic else CLASSES), CODER, box_loss=loss,
        class_agnostic=agnostic, score_thresh=score_thresh, convention=OURS,
    )  # fmt: skip


def row_of(head: BoxHead, image: int, box: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [K] and deltas [Q, 4] of one box."""
    logits, deltas = head.predictor(torch.cat([torch.tensor([float(image)]), box])[None] / 40)
    return logits[0].detach(), deltas[0].detach().view(-1, 4)


def detect(
    head: BoxHead, proposals: list[torch.Tensor], rule: Postprocess = POSTPROCESS
) -> list[Detections]:
    given, sizes = prepare_proposals(proposals, len(proposals)), SIZES[: len(proposals)]
    with torch.no_grad():
        return rule(head.predict([], given, sizes), sizes).per_image()


def samples_of(boxes: list[torch.Tensor], labels: list[list[int]], gt: list[list[int]]) -> Samples:
    most = max(1, *map(len, boxes))

    def padded(rows, value):
        tensors = (torch.tensor(row, dtype=torch.int64) for row in rows)
        return torch.stack([F.pad(row, (0, most - len(row)), value=value) for row in tensors])

    return Samples(
        torch.stack([F.pad(own, (0, 0, 0, most - len(own))) for own in boxes]),
        padded(labels, -1), padded(gt, 0),
    )  # fmt: skip


# ---- losses


@SHAPES
@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize("beta", [0.0, 1 / 9, 1.0])
def test_losses_sample_by_sample(agnostic, beta, shapes):
    boxes = [random_boxes(5), random_boxes(3)]
    labels, gt_index = [[1, 2, 0, 0, 2], [0, 1, 0]], [[1, 0, 0, 0, 2], [0, 1, 0]]
    truth = GroundTruth(
        torch.stack([random_boxes(3), random_boxes(3)]), torch.tensor([[2, 1, 2], [2, 1, 0]])
    )
    head = make_head(agnostic, BoxLoss(beta=beta))
    with shapes():
        losses, predictions = head.losses([], samples_of(boxes, labels, gt_index), truth, SIZES)
    assert len(predictions.logits) == (8 if shapes is nullcontext else 10)
    classifier = box_loss = 0.0
    for image, own in enumerate(boxes):
        for box, label, gt in zip(own, labels[image], gt_index[image], strict=True):
            logits, deltas = row_of(head, image, box)
            classifier -= logits.log_softmax(0)[label].item()
            if label > 0:
                wanted = CODER.encode(truth.boxes[image, gt][None], box[None])[0]
                predicted = deltas[1 if agnostic else label]
                box_loss += F.smooth_l1_loss(predicted, wanted, beta=beta, reduction="sum").item()
    assert losses["loss_classifier"].item() == pytest.approx(classifier / 8, rel=1e-5)
    assert losses["loss_box"].item() == pytest.approx(box_loss / 8, rel=1e-5)


@SHAPES
@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize("count", [0, 4])
def test_losses_without_foreground_are_zero_and_connected(agnostic, count, shapes):
    head = make_head(agnostic)
    samples = samples_of([random_boxes(count), random_boxes(0)], [[0] * count, []],
                         [[0] * count, []])  # fmt: skip
    truth = GroundTruth(torch.zeros(2, 1, 4), torch.zeros(2, 1, dtype=torch.int64))
    with shapes():
        losses, _ = head.losses([], samples, truth, SIZES)
    assert losses["loss_box"].item() == 0
    assert (losses["loss_classifier"].item() == 0) == (count == 0)
    sum(losses.values()).backward()
    for parameter in head.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@SHAPES
def test_features_of_some_of_the_rows(shapes):
    head = make_head()
    boxes = [random_boxes(5), random_boxes(3)]
    samples = samples_of(boxes, [[1, 2, 0, 0, 0], [1, 0, 0]], [[0] * 5, [0] * 3])
    with shapes():
        predictions = head([], samples.boxes, samples.labels >= 0)
        some = Rows(samples.labels[:, :2] > 0)
        found = predictions.features_of(some, 2)[some.valid]
    wanted = torch.stack([F.pad(boxes[image][n], (1, 0), value=image)
                          for image, n in ((0, 0), (0, 1), (1, 0))]) / 40  # fmt: skip
    assert torch.equal(found, wanted)


# ---- detections


def detect_slowly(
    head: BoxHead, image: int, proposals: torch.Tensor, rule: Postprocess
) -> list[tuple[float, int, list[float]]]:
    """One image: (score, label, box) by decreasing score, class by class."""
    height, width = SIZES[image].tolist()
    found = []
    for label in range(1, CLASSES):
        boxes, scores = [], []
        for proposal in proposals:
            logits, deltas = row_of(head, image, proposal)
            score = logits.softmax(0)[label].item()
            if score <= head.score_thresh:
                continue
            delta = deltas[1 if head.class_agnostic else label]
            x1, y1, x2, y2 = head.box_coder.decode(delta[None], proposal[None])[0].tolist()
            x1, x2 = (min(max(x, 0), width) for x in (x1, x2))
            y1, y2 = (min(max(y, 0), height) for y in (y1, y2))
            if x2 > x1 and y2 > y1:
                boxes.append([x1, y1, x2, y2])
                scores.append(score)
        if boxes:
            threshold = rule.suppression.iou_thresh
            kept = nms(torch.tensor(boxes), torch.tensor(scores), threshold).tolist()
            found += [(scores[k], label, boxes[k]) for k in kept]
    return sorted(found, reverse=True)[: rule.detections_per_image]


@SHAPES
@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize(
    "limits", [{}, {"most": 4}, {"score_thresh": 0.6}, {"score_thresh": 0.0}, {"iou_thresh": 0.2}]
)
def test_detections_proposal_by_proposal(agnostic, limits, shapes):
    proposals = [random_boxes(12), random_boxes(7)]
    head = make_head(agnostic, score_thresh=limits.get("score_thresh", 0.05))
    rule = Postprocess(OURS, Suppression(limits.get("iou_thresh", 0.5)), limits.get("most", 100))
    with shapes():
        found = detect(head, proposals, rule)
    for image, (detections, own) in enumerate(zip(found, proposals, strict=True)):
        slow = detect_slowly(head, image, own, rule)
        assert slow
        assert detections.labels.tolist() == [label for _, label, _ in slow]
        torch.testing.assert_close(detections.scores, torch.tensor([score for score, _, _ in slow]))
        torch.testing.assert_close(
            detections.boxes, torch.tensor([box for _, _, box in slow]), atol=1e-4, rtol=1e-5
        )


@SHAPES
@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize("counts", [(0, 0), (5, 0)])
def test_detections_without_proposals(agnostic, counts, shapes):
    head = make_head(agnostic)
    with shapes():
        found = detect(head, [random_boxes(c) for c in counts])
    assert [len(d.boxes) > 0 for d in found] == [count > 0 for count in counts]
    assert found[1].boxes.shape == (0, 4)
    assert found[1].scores.shape == found[1].labels.shape == (0,)


@SHAPES
def test_no_score_above_the_threshold(shapes):
    with shapes():
        (found,) = detect(make_head(score_thresh=1.0), [random_boxes(5)])
    assert len(found.boxes) == 0


@pytest.mark.parametrize(
    ("threshold", "most"), [(0.0, 2), (0.05, 2), (0.4, 2), (0.5, 1), (0.6, 1), (1 / 3, 2)]
)
def test_room_for_every_class_that_can_pass(threshold, most):
    """Of three scores that add up to 1, as many as can lie above the threshold."""
    head, boxes = make_head(score_thresh=threshold), random_boxes(4)
    # Equal scores of the two classes, as high as they can be.
    head.predictor = GivenPredictor(torch.tensor([[-50.0, 0, 0]]).repeat(4, 1),
                                    torch.zeros(4, 4 * CLASSES))  # fmt: skip
    with fixed_shapes():
        candidates = head.predict([], prepare_proposals([boxes], 1), SIZES[:1])
    assert candidates.valid.shape == (1, 4 * most)
    assert candidates.valid.sum() == (8 if threshold < 0.5 else 0)


def test_predictions_that_are_not_numbers_are_dropped():
    head = make_head()
    logits, deltas = torch.randn(6, CLASSES) * 2, torch.randn(6, 4 * CLASSES)
    logits[0], deltas[1] = math.nan, math.nan
    head.predictor = GivenPredictor(logits, deltas)
    (found,) = detect(head, [random_boxes(6)])
    assert len(found.boxes) > 0
    assert found.boxes.isfinite().all()
    assert found.scores.isfinite().all()


@SHAPES
def test_refined_boxes_are_clipped(shapes):
    head = make_head(agnostic=True)
    boxes = torch.stack([random_boxes(4), random_boxes(4)])
    with shapes():
        predictions = head([], boxes, torch.tensor([[True] * 4, [True, False, True, False]]))
        found = head.refine(predictions, boxes, SIZES)
    for image, n in ((0, 0), (0, 3), (1, 0), (1, 2)):
        _, deltas = row_of(head, image, boxes[image, n])
        wanted = CODER.decode(deltas[1][None], boxes[image, n][None])
        wanted = box_ops.clip(wanted, tuple(SIZES[image].tolist()), OURS)[0]
        torch.testing.assert_close(found[image, n], wanted)


# ---- parts


def test_group_norm_replaces_the_biases(tiny_config):
    keys = ("MODEL.ROI_BOX_HEAD.NORM", "GN")
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
    x = extractor(backbone(torch.zeros(1, 3, 64, 64)), torch.tensor([[0.0, 0, 0, 40, 40]]))
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
    with pytest.raises(ConfigError, match=rf"MODEL\.ROI_BOX_HEAD\.{key}: unknown box .* 'None'"):
        build_model(tiny_config(f"MODEL.ROI_BOX_HEAD.{key}", "None"))
