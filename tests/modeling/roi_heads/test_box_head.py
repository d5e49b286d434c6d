import math

import pytest
import torch
from torch.nn import functional as F

from detlite.modeling.boxes.losses import BoxLoss
from detlite.modeling.postprocessing import Postprocess, Suppression
from detlite.modeling.preprocessing import prepare_proposals
from detlite.modeling.roi_heads.box_head import BoxHead
from detlite.ops import nms
from detlite.structures import boxes as box_ops
from detlite.structures.instances import GroundTruth
from detlite.structures.padding import RowPacking
from tests.builders import random_boxes
from tests.modeling.roi_heads.box_heads import (
    CLASSES,
    CODER,
    OURS,
    SIZES,
    ConstantPredictor,
    detect,
    each_mode,
    make_head,
    make_samples,
    predict_one,
)  # fmt: skip

# ---- losses


@each_mode
@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize("beta", [0.0, 1 / 9, 1.0])
def test_losses_match_a_loop_over_samples(agnostic, beta, static):
    boxes = [random_boxes(5), random_boxes(3)]
    labels, gt_index = [[1, 2, 0, 0, 2], [0, 1, 0]], [[1, 0, 0, 0, 2], [0, 1, 0]]
    truth = GroundTruth(
        torch.stack([random_boxes(3), random_boxes(3)]), torch.tensor([[2, 1, 2], [2, 1, 0]])
    )
    head = make_head(agnostic, BoxLoss(beta=beta))
    losses, predictions = head.losses(
        [], make_samples(boxes, labels, gt_index), truth, SIZES, static
    )
    assert len(predictions.logits) == (10 if static else 8)
    classifier = box_loss = 0.0
    for image, own in enumerate(boxes):
        for box, label, gt in zip(own, labels[image], gt_index[image], strict=True):
            logits, deltas = predict_one(head, image, box)
            classifier -= logits.log_softmax(0)[label].item()
            if label > 0:
                expected = CODER.encode(truth.boxes[image, gt][None], box[None])[0]
                predicted = deltas[1 if agnostic else label]
                box_loss += F.smooth_l1_loss(predicted, expected, beta=beta, reduction="sum").item()
    assert losses["loss_classifier"].item() == pytest.approx(classifier / 8, rel=1e-5)
    assert losses["loss_box"].item() == pytest.approx(box_loss / 8, rel=1e-5)


@each_mode
def test_features_of_other_rows(static):
    head = make_head()
    boxes = [random_boxes(5), random_boxes(3)]
    samples = make_samples(boxes, [[1, 2, 0, 0, 0], [1, 0, 0]], [[0] * 5, [0] * 3])
    predictions = head([], samples.boxes, samples.labels >= 0, static)
    some = RowPacking(samples.labels[:, :2] > 0, static)
    result = predictions.features_of(some, 2)[some.valid]
    expected = torch.stack([F.pad(boxes[image][n], (1, 0), value=image)
                          for image, n in ((0, 0), (0, 1), (1, 0))]) / 40  # fmt: skip
    assert torch.equal(result, expected)


# ---- detections


def reference_detections(
    head: BoxHead, image: int, proposals: torch.Tensor, postprocess: Postprocess
) -> list[tuple[float, int, list[float]]]:
    """Return (score, label, box) of an image in decreasing order, computed class by class."""
    height, width = SIZES[image].tolist()
    result = []
    for label in range(1, CLASSES):
        boxes, scores = [], []
        for proposal in proposals:
            logits, deltas = predict_one(head, image, proposal)
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
            threshold = postprocess.suppression.iou_thresh
            kept = nms(torch.tensor(boxes), torch.tensor(scores), threshold).tolist()
            result += [(scores[k], label, boxes[k]) for k in kept]
    return sorted(result, reverse=True)[: postprocess.detections_per_image]


@each_mode
@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize(
    "limits", [{}, {"limit": 4}, {"score_thresh": 0.6}, {"score_thresh": 0.0}, {"iou_thresh": 0.2}]
)
def test_detections_match_a_loop_over_proposals(agnostic, limits, static):
    proposals = [random_boxes(12), random_boxes(7)]
    head = make_head(agnostic, score_thresh=limits.get("score_thresh", 0.05))
    postprocess = Postprocess(
        OURS, Suppression(limits.get("iou_thresh", 0.5)), limits.get("limit", 100)
    )
    result = detect(head, proposals, static, postprocess)
    for image, (detections, own) in enumerate(zip(result, proposals, strict=True)):
        expected = reference_detections(head, image, own, postprocess)
        assert expected
        assert detections.labels.tolist() == [label for _, label, _ in expected]
        torch.testing.assert_close(
            detections.scores, torch.tensor([score for score, _, _ in expected])
        )
        torch.testing.assert_close(
            detections.boxes, torch.tensor([box for _, _, box in expected]), atol=1e-4, rtol=1e-5
        )


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


@each_mode
def test_refined_boxes_are_clipped(static):
    head = make_head(agnostic=True)
    boxes = torch.stack([random_boxes(4), random_boxes(4)])
    valid = torch.tensor([[True] * 4, [True, False, True, False]])
    predictions = head([], boxes, valid, static)
    result = head.refine(predictions, boxes, SIZES)
    for image, n in ((0, 0), (0, 3), (1, 0), (1, 2)):
        _, deltas = predict_one(head, image, boxes[image, n])
        expected = CODER.decode(deltas[1][None], boxes[image, n][None])
        expected = box_ops.clip(expected, tuple(SIZES[image].tolist()), OURS)[0]
        torch.testing.assert_close(result[image, n], expected)
