import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detlite.modeling.boxes.box_coder import BoxCoder
from detlite.modeling.build import build_model
from detlite.modeling.preprocessing import prepare_proposals
from detlite.modeling.roi_heads.cascade import CascadeBoxHead, _ScaleGradient
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth
from tests.builders import random_boxes
from tests.modeling.roi_heads.box_heads import (
    CLASSES,
    OURS,
    SIZES,
    ConstantPredictor,
    detect,
    each_mode,
    make_head,
    make_samples,
    predictions_of,
)  # fmt: skip

OPTS = [
    "MODEL.ROI_HEADS.CASCADE_IOUS", (0.5, 0.6, 0.7), "MODEL.CLS_AGNOSTIC_BBOX_REG", True,
    "MODEL.ROI_HEADS.SCORE_THRESH", 0.0,
]  # fmt: skip


def test_stages_of_the_config(tiny_config):
    """The extractor of the first stage also serves other heads."""
    box = build_model(tiny_config(*OPTS)).roi_heads.box
    assert box.feature_extractor is box.stages[0].feature_extractor
    weights = [tuple(stage.box_coder.weights.tolist()) for stage in box.stages]
    assert weights == [(10, 10, 5, 5), (20, 20, 10, 10), (30, 30, 15, 15)]
    head = build_model(tiny_config("MODEL.ROI_BOX_HEAD.PASSES", 3)).roi_heads.box
    assert head.stages == [head, head, head]
    assert head.ious == pytest.approx([0.5, 0.6, 0.7])
    opts = ["MODEL.ROI_BOX_HEAD.PASSES", 3, "MODEL.ROI_HEADS.FG_IOU_THRESHOLD", 0.8]
    assert build_model(tiny_config(*opts)).roi_heads.box.ious == pytest.approx([0.8, 0.9, 0.9])


def test_gradients_of_the_stages_are_averaged_in_the_backbone(tiny_config, make_batch, monkeypatch):
    images, targets = make_batch(2, 1)
    model = build_model(tiny_config(*OPTS))

    def gradients():
        model.zero_grad()
        torch.manual_seed(0)
        losses = model(images, targets)
        sum(loss for name, loss in losses.items() if "stage" in name).backward()
        parts = {"backbone": model.backbone, "heads": model.roi_heads.box}
        return {
            part: torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
            for part, module in parts.items()
        }

    result = gradients()
    monkeypatch.setattr(_ScaleGradient, "backward", lambda ctx, gradient: (gradient, None))
    unscaled = gradients()
    torch.testing.assert_close(result["heads"], unscaled["heads"])
    torch.testing.assert_close(3 * result["backbone"], unscaled["backbone"], rtol=1e-3, atol=1e-6)


def make_stages(kind: str, ious: tuple[float, ...], score_thresh: float = 0.05) -> Any:
    """Make a cascade, or a head with passes that is class-agnostic or not."""
    if not kind.startswith("cascade"):
        return make_head(kind == "agnostic", score_thresh=score_thresh, ious=ious)
    heads = [make_head(True, score_thresh=score_thresh) for _ in ious]
    for k, head in enumerate(heads, 1):
        head.box_coder = BoxCoder((10.0 * k, 10.0 * k, 5.0 * k, 5.0 * k))
        if "logits" in kind:
            head.convention = OURS.override(["cascade_mean=logits"])
    return CascadeBoxHead(heads, ious)


@each_mode
@pytest.mark.parametrize("kind", ["by class", "agnostic", "cascade", "cascade, mean of logits"])
def test_predictions_are_the_mean_over_passes_that_refine_the_boxes(kind, static):
    head = make_stages(kind, (0.5, 0.6, 0.7), score_thresh=0.0)
    boxes = [random_boxes(4), random_boxes(2)]
    with torch.no_grad():
        predicted = head.predict([], prepare_proposals(boxes, 2), SIZES, static)
    for image, own in enumerate(boxes):
        current, passes = own, []
        for stage in head.stages:
            logits, deltas = predictions_of(stage, image, current)
            passes.append(logits)
            columns = range(CLASSES) if kind == "by class" else [1] * CLASSES
            start = current[:, None].expand(-1, CLASSES, -1)
            refined = stage.box_coder.decode(deltas[:, list(columns)], start)
            best = logits[:, 1:].argmax(dim=1) + 1
            size = tuple(SIZES[image].tolist())
            current = box_ops.clip(refined[range(len(own)), best], size, OURS)
        expected = torch.stack(passes).softmax(dim=2).mean(dim=0)
        if "logits" in kind:
            expected = torch.stack(passes).mean(dim=0).softmax(dim=1)
        found = slice(len(own) * (CLASSES - 1))
        assert predicted.labels[image, found].tolist() == [1, 2] * len(own)
        torch.testing.assert_close(predicted.scores[image, found], expected[:, 1:].flatten())
        torch.testing.assert_close(predicted.boxes[image, found], refined[:, 1:].flatten(0, 1))


@each_mode
def test_later_passes_skip_background(static):
    head = make_head(score_thresh=0.1, ious=(0.5, 0.6))
    boxes = [random_boxes(40), random_boxes(30)]
    foreground = [
        1 - predictions_of(head, image, own)[0].softmax(dim=1)[:, 0]
        for image, own in enumerate(boxes)
    ]
    head.skip_below = 0.0
    likely = [own[p >= 0.5] for own, p in zip(boxes, foreground, strict=True)]
    assert all(0 < len(few) < len(own) for few, own in zip(likely, boxes, strict=True))
    expected = detect(head, likely, static)

    def count():
        return int(head.predict([], prepare_proposals(boxes, 2), SIZES, static).valid.sum())

    without_skipping = count()
    head.skip_below = 5  # times the threshold: a probability of 0.5
    rows = []
    head.predictor.register_forward_hook(lambda *args: rows.append(len(args[2][0])))
    result = detect(head, boxes, static)
    assert rows == ([80, 80] if static else [70, sum(map(len, likely))])
    for own, other in zip(result, expected, strict=True):
        torch.testing.assert_close(own.boxes, other.boxes)
        torch.testing.assert_close(own.scores, other.scores)
    assert count() < without_skipping


@each_mode
@pytest.mark.parametrize("kind", ["by class", "agnostic", "cascade"])
def test_each_pass_is_trained_on_the_boxes_of_the_one_before(kind, static):
    head = make_stages(kind, (0.5, 0.6))
    for stage in head.stages:
        nn.init.normal_(stage.predictor.deltas.weight, std=0.3)
    truth = GroundTruth(
        torch.tensor([[[5.0, 5, 25, 25], [30, 10, 70, 50]], [[2.0, 2, 18, 14], [0, 0, 0, 0]]]),
        torch.tensor([[1, 2], [2, 0]]),
    )
    # Image 1 is 20 x 20: its last box is empty after clipping, and no sample of the second pass.
    own = [truth.boxes[0].repeat(3, 1), truth.boxes[1, :1].repeat(3, 1)]
    own = [boxes + 2 * torch.randn_like(boxes) for boxes in own]
    own[0] = torch.cat([own[0], torch.tensor([[50.0, 2, 75, 8]])])  # background
    own[1] = torch.cat([own[1], torch.tensor([[30.0, 2, 50, 14]])])

    def match(image, boxes, iou):
        overlap, best = box_ops.iou(boxes, truth.boxes[image, : 2 - image]).max(dim=1)
        return truth.labels[image, best] * (overlap >= iou), best

    matched = [match(image, boxes, 0.5) for image, boxes in enumerate(own)]
    samples = make_samples(own, *([image[k].tolist() for image in matched] for k in (0, 1)))
    losses, predictions = head.losses([], samples, truth, SIZES, static)
    assert len(predictions.logits) == (14 if static else 11)
    for number, (stage, iou) in enumerate(zip(head.stages, (0.5, 0.6), strict=True)):
        classifier, box_loss = torch.zeros(()), torch.zeros(())
        counted, foreground = sum(map(len, own)), 0
        for image, boxes in enumerate(own):
            logits, deltas = predictions_of(stage, image, boxes)
            labels, places = match(image, boxes, iou)
            classifier += F.cross_entropy(logits, labels, reduction="sum")
            objects, rows = labels > 0, range(len(boxes))
            target = stage.box_coder.encode(truth.boxes[image, places], boxes)
            columns = labels if kind == "by class" else torch.ones_like(labels)
            difference = F.smooth_l1_loss(deltas[rows, columns], target, reduction="none")
            box_loss += difference[objects].sum()
            columns = logits[:, 1:].argmax(dim=1) + 1 if kind == "by class" else columns
            moved = stage.box_coder.decode(deltas[rows, columns], boxes)
            moved = box_ops.clip(moved, tuple(SIZES[image].tolist()), OURS)
            own[image] = moved[(moved[:, 2:] > moved[:, :2]).all(dim=1)]
            foreground += int(objects.sum())
        torch.testing.assert_close(losses[f"loss_classifier_stage{number}"], classifier / counted)
        torch.testing.assert_close(losses[f"loss_box_stage{number}"], box_loss / counted)
    assert 0 < foreground < counted == 10


@pytest.mark.parametrize(
    ("threshold", "limit"), [(0.0, 2), (0.05, 2), (0.4, 2), (0.5, 1), (0.6, 1), (1 / 3, 2)]
)
def test_static_shape_has_room_for_the_classes_that_can_exceed_the_threshold(threshold, limit):
    head, boxes = make_head(score_thresh=threshold), random_boxes(4)
    # Both classes have the highest score that both can have.
    head.predictor = ConstantPredictor(torch.tensor([[-50.0, 0, 0]]).repeat(4, 1),
                                    torch.zeros(4, 4 * CLASSES))  # fmt: skip
    candidates = head.predict([], prepare_proposals([boxes], 1), SIZES[:1], True)
    assert candidates.valid.shape == (1, 4 * limit)
    assert candidates.valid.sum() == (8 if threshold < 0.5 else 0)


def test_nan_predictions_are_dropped():
    head = make_head()
    logits, deltas = torch.randn(6, CLASSES) * 2, torch.randn(6, 4 * CLASSES)
    logits[0], deltas[1] = math.nan, math.nan
    head.predictor = ConstantPredictor(logits, deltas)
    (result,) = detect(head, [random_boxes(6)])
    assert len(result.boxes) > 0
    assert result.boxes.isfinite().all()
    assert result.scores.isfinite().all()
