import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detlite.config import ConfigError
from detlite.conventions import CONVENTIONS
from detlite.modeling.boxes.box_coder import BoxCoder
from detlite.modeling.boxes.losses import BoxLoss, ClassLoss
from detlite.modeling.build import build_model
from detlite.modeling.postprocessing import Postprocess, Suppression
from detlite.modeling.preprocessing import prepare_proposals
from detlite.modeling.roi_heads.box_head import BoxHead
from detlite.ops import nms
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections, GroundTruth, Samples
from detlite.structures.padding import Packing
from tests.builders import random_boxes

CLASSES = 3  # with background
CODER = BoxCoder((10.0, 10.0, 5.0, 5.0))
SMOOTH_L1 = BoxLoss()
OURS = CONVENTIONS["detlite"]
POSTPROCESS = Postprocess(OURS, Suppression(0.5), detections_per_image=100)
SIZES = torch.tensor([[60, 80], [20, 20]])  # some boxes lie outside the second image

each_mode = pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])


class RoIExtractor(nn.Module):
    """Returns the RoIs as features."""

    def forward(self, features, rois):
        return rois / 40


class LinearPredictor(nn.Module):
    """Predicts different values for each box."""

    def __init__(self, regressions: int) -> None:
        super().__init__()
        self.logits = nn.Linear(5, CLASSES)
        self.deltas = nn.Linear(5, 4 * regressions)
        for layer in (self.logits, self.deltas):
            nn.init.normal_(layer.weight, std=2)

    def forward(self, x):
        return self.logits(x), self.deltas(x)


class ConstantPredictor(nn.Module):
    """Returns constant predictions."""

    def __init__(self, logits: torch.Tensor, deltas: torch.Tensor) -> None:
        super().__init__()
        self.predictions = logits, deltas

    def forward(self, x):
        return self.predictions


def make_head(
    agnostic: bool = False,
    loss: BoxLoss = SMOOTH_L1,
    score_thresh: float = 0.05,
    ious: tuple[float, ...] = (0.5,),
) -> BoxHead:
    return BoxHead(
        RoIExtractor(), LinearPredictor(2 if agnostic else CLASSES), CODER, class_loss=ClassLoss(),
        box_loss=loss, class_agnostic=agnostic, score_thresh=score_thresh, convention=OURS,
        ious=ious,
    )  # fmt: skip


def predict_one(head: BoxHead, image: int, box: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits [K] and deltas [Q, 4] of a box."""
    logits, deltas = head.predictor(torch.cat([torch.tensor([float(image)]), box])[None] / 40)
    return logits[0].detach(), deltas[0].detach().view(-1, 4)


def detect(
    head: BoxHead,
    proposals: list[torch.Tensor],
    static: bool = False,
    postprocess: Postprocess = POSTPROCESS,
) -> list[Detections]:
    inputs, sizes = prepare_proposals(proposals, len(proposals)), SIZES[: len(proposals)]
    with torch.no_grad():
        predicted = head.predict([], inputs, sizes, static)
        return postprocess(predicted, sizes, static).per_image()


def make_samples(
    boxes: list[torch.Tensor], labels: list[list[int]], gt: list[list[int]]
) -> Samples:
    limit = max(1, *map(len, boxes))

    def pad(lists, value):
        tensors = (torch.tensor(own, dtype=torch.int64) for own in lists)
        return torch.stack([F.pad(own, (0, limit - len(own)), value=value) for own in tensors])

    return Samples(
        torch.stack([F.pad(own, (0, 0, 0, limit - len(own))) for own in boxes]),
        pad(labels, -1), pad(gt, 0),
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
@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize("count", [0, 4])
def test_box_loss_without_foreground_is_zero_and_connected(agnostic, count, static):
    head = make_head(agnostic)
    samples = make_samples([random_boxes(count), random_boxes(0)], [[0] * count, []],
                         [[0] * count, []])  # fmt: skip
    truth = GroundTruth(torch.zeros(2, 1, 4), torch.zeros(2, 1, dtype=torch.int64))
    losses, _ = head.losses([], samples, truth, SIZES, static)
    assert losses["loss_box"].item() == 0
    assert (losses["loss_classifier"].item() == 0) == (count == 0)
    sum(losses.values()).backward()
    for parameter in head.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@each_mode
def test_features_of_other_rows(static):
    head = make_head()
    boxes = [random_boxes(5), random_boxes(3)]
    samples = make_samples(boxes, [[1, 2, 0, 0, 0], [1, 0, 0]], [[0] * 5, [0] * 3])
    predictions = head([], samples.boxes, samples.labels >= 0, static)
    some = Packing(samples.labels[:, :2] > 0, static)
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


@each_mode
@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize("counts", [(0, 0), (5, 0)])
def test_detections_without_proposals(agnostic, counts, static):
    head = make_head(agnostic)
    result = detect(head, [random_boxes(c) for c in counts], static)
    assert [len(d.boxes) > 0 for d in result] == [count > 0 for count in counts]
    assert result[1].boxes.shape == (0, 4)
    assert result[1].scores.shape == result[1].labels.shape == (0,)


@each_mode
def test_no_score_exceeds_the_threshold(static):
    (result,) = detect(make_head(score_thresh=1.0), [random_boxes(5)], static)
    assert len(result.boxes) == 0


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
def test_padding_is_not_predicted(static):
    head = make_head()
    few, many = random_boxes(3), random_boxes(40)
    proposals = [prepare_proposals([few, other], 2) for other in (few, many)]
    alone, padded = (head.predict([], own, SIZES, static).valid[0].sum() for own in proposals)
    assert padded == alone > 0


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


@each_mode
@pytest.mark.parametrize("agnostic", [False, True])
def test_passes_match_a_loop_over_boxes(agnostic, static):
    head = make_head(agnostic, score_thresh=0.0, ious=(0.5, 0.6, 0.7))
    boxes = [random_boxes(4), random_boxes(2)]
    with torch.no_grad():
        predicted = head.predict([], prepare_proposals(boxes, 2), SIZES, static)
    for image, own in enumerate(boxes):
        size = tuple(SIZES[image].tolist())
        for place, box in enumerate(own):
            current, scores = box, []
            for number in range(3):
                logits, deltas = predict_one(head, image, current)
                scores.append(logits.softmax(0))
                columns = [1] * CLASSES if agnostic else range(CLASSES)
                refined = CODER.decode(deltas[list(columns)], current.expand(CLASSES, 4))
                if number < 2:
                    best = int(logits[1:].argmax()) + 1
                    current = box_ops.clip(refined[best][None], size, OURS)[0]
            expected = sum(scores) / 3
            for label in range(1, CLASSES):
                entry = place * (CLASSES - 1) + label - 1
                assert predicted.labels[image, entry] == label
                torch.testing.assert_close(predicted.scores[image, entry], expected[label])
                torch.testing.assert_close(predicted.boxes[image, entry], refined[label])


@each_mode
def test_later_passes_skip_background(static):
    head = make_head(score_thresh=0.1, ious=(0.5, 0.6))
    boxes = [random_boxes(40), random_boxes(30)]
    foreground = [
        torch.stack([1 - predict_one(head, image, box)[0].softmax(0)[0] for box in own])
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


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (
            ["MODEL.ROI_HEADS.CASCADE_IOUS", (0.5, 0.6, 0.7), "MODEL.CLS_AGNOSTIC_BBOX_REG", True],
            r"PASSES is for a single box head: set it to 1, or .*CASCADE_IOUS \(\)",
        ),
        (
            ["MODEL.META_ARCHITECTURE", "RetinaNet", "MODEL.MASK_ON", False,
             "MODEL.BACKBONE.CONV_BODY", "R-18-FPN-RETINANET"],
            r"MODEL\.ROI_BOX_HEAD\.PASSES above 1 need RoI heads, which a RetinaNet does not have",
        ),
    ],
    ids=["cascade", "RetinaNet"],
)  # fmt: skip
def test_passes_need_a_single_box_head(tiny_config, opts, message):
    with pytest.raises(ConfigError, match=message):
        build_model(tiny_config("MODEL.ROI_BOX_HEAD.PASSES", 2, *opts))
    with pytest.raises(ConfigError, match=r"MODEL\.ROI_BOX_HEAD\.PASSES is 0, .*from 1 to 5"):
        tiny_config("MODEL.ROI_BOX_HEAD.PASSES", 0)


def test_passes_scale_the_gradients_of_the_box_head_only(tiny_config, make_batch):
    images, targets = make_batch(2)

    def gradients_of_masks(passes):
        torch.manual_seed(0)
        model = build_model(tiny_config("MODEL.ROI_BOX_HEAD.PASSES", passes))
        model(images, targets)["loss_mask"].backward()
        return [p.grad for p in model.backbone.parameters() if p.grad is not None]

    for one, two in zip(gradients_of_masks(1), gradients_of_masks(2), strict=True):
        torch.testing.assert_close(two, one)
    message = r"PASSES above 1 needs MODEL\.ROI_MASK_HEAD\.SHARE_BOX_FEATURE_EXTRACTOR False"
    with pytest.raises(ConfigError, match=message):
        build_model(tiny_config("MODEL.ROI_BOX_HEAD.PASSES", 2, c4=True))


def test_ious_of_passes(tiny_config):
    head = build_model(tiny_config("MODEL.ROI_BOX_HEAD.PASSES", 3)).roi_heads.box
    assert head.stages == [head, head, head]
    assert [matcher.foreground for matcher in head.matchers] == pytest.approx([0.5, 0.6, 0.7])
    opts = ["MODEL.ROI_BOX_HEAD.PASSES", 3, "MODEL.ROI_HEADS.FG_IOU_THRESHOLD", 0.8]
    head = build_model(tiny_config(*opts)).roi_heads.box
    assert [matcher.background for matcher in head.matchers] == pytest.approx([0.8, 0.9, 0.9])


@each_mode
@pytest.mark.parametrize("agnostic", [False, True])
def test_losses_of_passes_match_a_loop_over_boxes(agnostic, static):
    head = make_head(agnostic, ious=(0.5, 0.6))
    nn.init.normal_(head.predictor.deltas.weight, std=0.3)
    truth = GroundTruth(
        torch.tensor([[[5.0, 5, 25, 25], [30, 10, 70, 50]], [[2.0, 2, 18, 14], [0, 0, 0, 0]]]),
        torch.tensor([[1, 2], [2, 0]]),
    )
    # Image 1 is 20 x 20: its last box is empty after clipping, and no sample of the second pass.
    own = [truth.boxes[0].repeat(3, 1), truth.boxes[1, :1].repeat(3, 1)]
    own = [boxes + 2 * torch.randn_like(boxes) for boxes in own]
    own[1] = torch.cat([own[1], torch.tensor([[30.0, 2, 50, 14]])])

    def match(image, box, iou):
        overlaps = box_ops.iou(box[None], truth.boxes[image, : 2 - image])
        best = int(overlaps.argmax())
        return (int(truth.labels[image, best]) if overlaps.max() >= iou else 0), best

    matched = [[match(image, box, 0.5) for box in boxes] for image, boxes in enumerate(own)]
    samples = make_samples(
        own, *([[pair[k] for pair in image] for image in matched] for k in (0, 1))
    )
    losses, predictions = head.losses([], samples, truth, SIZES, static)
    assert len(predictions.logits) == (12 if static else 10)
    current = [(image, box) for image, boxes in enumerate(own) for box in boxes]
    for number, iou in enumerate((0.5, 0.6)):
        classifier = box_loss = 0.0
        labels, refined = [], []
        for image, box in current:
            logits, deltas = predict_one(head, image, box)
            label, gt = match(image, box, iou)
            labels.append(label)
            classifier -= logits.log_softmax(0)[label]
            if label:
                target = CODER.encode(truth.boxes[image, gt][None], box[None])[0]
                column = deltas[1 if agnostic else label]
                box_loss += F.smooth_l1_loss(column, target, reduction="sum")
            column = deltas[1 if agnostic else int(logits[1:].argmax()) + 1]
            moved = CODER.decode(column[None], box[None])
            moved = box_ops.clip(moved, tuple(SIZES[image].tolist()), OURS)[0]
            if (moved[2:] > moved[:2]).all():
                refined.append((image, moved))
        torch.testing.assert_close(
            losses[f"loss_classifier_stage{number}"], classifier / len(current)
        )
        torch.testing.assert_close(losses[f"loss_box_stage{number}"], box_loss / len(current))
        current = refined
    assert len(current) == len(labels) == 9
    assert 0 < sum(label > 0 for label in labels) < 9


# ---- parts
