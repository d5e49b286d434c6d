import pytest
import torch
from torch.nn import functional as F

from detlite.config import ConfigError
from detlite.modeling.boxes.box_coder import BoxCoder
from detlite.modeling.build import build_model
from detlite.modeling.preprocessing import prepare_targets
from detlite.modeling.roi_heads.cascade import CascadeBoxHead, _ScaleGradient
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Samples
from detlite.structures.padding import Packing

OPTS = [
    "MODEL.ROI_HEADS.CASCADE_IOUS", (0.5, 0.6, 0.7), "MODEL.CLS_AGNOSTIC_BBOX_REG", True,
    "MODEL.ROI_HEADS.SCORE_THRESH", 0.0,
]  # fmt: skip


def test_every_stage_is_trained(tiny_config, make_batch):
    model = build_model(tiny_config(*OPTS))
    losses = model(*make_batch(2, 0, 1))
    assert {name for name in losses if "stage" in name} == {
        f"loss_{kind}_stage{stage}" for kind in ("classifier", "box") for stage in range(3)
    }
    sum(losses.values()).backward()
    for stage in model.roi_heads.box.stages:
        assert stage.predictor.cls_score.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("mean", ["probabilities", "logits"])
def test_scores_are_averaged_and_boxes_refined(mean, tiny_config, make_batch):
    images, _ = make_batch(1)
    override = ["MODEL.CONVENTION_OVERRIDE", [f"cascade_mean={mean}"]]
    model = build_model(tiny_config(*OPTS, "MODEL.MASK_ON", False, *override)).eval()
    cascade = model.roi_heads.box
    assert isinstance(cascade, CascadeBoxHead)
    batch = model.normalizer(images)
    height, width = images[0].shape[1:]
    with torch.no_grad():
        features = model.backbone(batch.pixels)
        proposals = model.rpn.propose(model.rpn(features), batch, False)
        assert proposals.valid.all()
        scores, boxes = [], proposals.boxes[0]
        for number, stage in enumerate(cascade.stages):
            rois = torch.cat([torch.zeros(len(boxes), 1), boxes], dim=1)
            logits, deltas = stage.predictor(stage.feature_extractor(features, rois))
            scores.append(logits.softmax(1) if mean == "probabilities" else logits)
            boxes = stage.box_coder.decode(deltas[:, 4:], boxes)
            if number < 2:
                boxes[:, 0::2] = boxes[:, 0::2].clamp(0, width)
                boxes[:, 1::2] = boxes[:, 1::2].clamp(0, height)
        result = model.predict_boxes(features, batch)
    assert result.valid.all()
    assert len(boxes) > 3
    expected = sum(scores) / 3 if mean == "probabilities" else (sum(scores) / 3).softmax(1)
    torch.testing.assert_close(result.scores[0], expected[:, 1:].flatten())
    torch.testing.assert_close(result.boxes[0], boxes.repeat_interleave(3, dim=0))
    assert result.labels[0].tolist() == [1, 2, 3] * len(boxes)


def test_other_heads_use_the_features_of_the_first_stage(tiny_config, make_batch):
    model = build_model(tiny_config(*OPTS))
    cascade, inputs = model.roi_heads.box, []
    images, targets = make_batch(2)
    original = model.roi_heads.dense_losses

    def dense_losses(features, foreground, truth, predictions, static_shapes):
        inputs.append((foreground, predictions))
        return original(features, foreground, truth, predictions, static_shapes)

    model.roi_heads.dense_losses = dense_losses
    model(images, targets)
    ((foreground, predictions),) = inputs
    assert cascade.feature_extractor is cascade.stages[0].feature_extractor
    packing = Packing(foreground.labels > 0, False)
    x = predictions.features_of(packing, foreground.labels.shape[1])
    features = model.backbone(model.normalizer(images).pixels)
    torch.testing.assert_close(
        x, cascade.feature_extractor(features, packing.rois(foreground.boxes))
    )


def test_box_coder_weights_of_the_stages(tiny_config):
    model = build_model(tiny_config(*OPTS))
    weights = [tuple(stage.box_coder.weights.tolist()) for stage in model.roi_heads.box.stages]
    assert weights == [(10, 10, 5, 5), (20, 20, 10, 10), (30, 30, 15, 15)]


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (["MODEL.CLS_AGNOSTIC_BBOX_REG", False], "needs MODEL.CLS_AGNOSTIC_BBOX_REG True"),
        (
            ["MODEL.ROI_HEADS.CASCADE_IOUS", (0.5, 0.6)],
            "has 2 stages, but CASCADE_BBOX_REG_WEIGHTS has 3",
        ),
        (["MODEL.ROI_HEADS.FG_IOU_THRESHOLD", 0.6], "starts with 0.5, but .* is 0.6"),
    ],
)
def test_inconsistent_keys(tiny_config, opts, message):
    with pytest.raises(ConfigError, match=message):
        build_model(tiny_config(*OPTS, *opts))


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


def test_losses_match_a_loop_over_stages(tiny_config, make_batch):
    images, targets = make_batch(3)
    height, width = images[0].shape[1:]
    model = build_model(tiny_config(*OPTS, "MODEL.MASK_ON", False))
    cascade = model.roi_heads.box
    for stage in cascade.stages:  # to move the boxes
        torch.nn.init.normal_(stage.predictor.bbox_pred.weight, std=0.05)
    truth = targets[0]["boxes"]
    start = torch.cat([truth + torch.randn(3, 4) * shift for shift in (1, 2, 3, 4, 30)])
    start = start[(start[:, 2:] > start[:, :2]).all(dim=1)]
    # Outside the image: empty after clipping, so it is no sample of the second stage.
    start = torch.cat([start, torch.tensor([[300.0, 5, 340, 40]])])

    def rematch(boxes, iou):
        labels, matched = [], []
        for box in boxes:
            overlaps = [box_ops.iou(box[None], other[None]).item() for other in truth]
            best = max(range(3), key=overlaps.__getitem__)
            positive = overlaps[best] >= iou
            labels.append(int(targets[0]["labels"][best]) if positive else 0)
            matched.append(best)
        return torch.tensor(labels), torch.tensor(matched)

    labels, matched = rematch(start, 0.5)
    padding = torch.tensor([[0.0, 0, 9, 9]])
    samples = Samples(
        torch.cat([start, padding])[None],
        torch.cat([labels, torch.tensor([-1])])[None],
        torch.cat([matched, torch.tensor([0])])[None],
    )
    batch = model.normalizer(images)
    with torch.no_grad():
        features = model.backbone(batch.pixels)
        result, _ = cascade.losses(
            features, samples, prepare_targets(targets, images, 4), batch.sizes, False
        )
        boxes = start
        weights = [(10, 10, 5, 5), (20, 20, 10, 10), (30, 30, 15, 15)]
        for number, (stage, iou) in enumerate(zip(cascade.stages, (0.5, 0.6, 0.7), strict=True)):
            rois = torch.cat([torch.zeros(len(boxes), 1), boxes], dim=1)
            logits, deltas = stage.predictor(stage.feature_extractor(features, rois))
            labels, matched = rematch(boxes, iou)
            coder, foreground = BoxCoder(weights[number]), labels > 0
            assert foreground.any()
            classifier = F.cross_entropy(logits, labels)
            expected = coder.encode(truth[matched[foreground]], boxes[foreground])
            box = F.smooth_l1_loss(deltas[foreground, 4:], expected, reduction="sum") / len(boxes)
            torch.testing.assert_close(result[f"loss_classifier_stage{number}"], classifier)
            torch.testing.assert_close(result[f"loss_box_stage{number}"], box)
            moved = coder.decode(deltas[:, 4:], boxes)
            assert (moved - boxes).abs().mean() > 0.05
            moved[:, 0::2] = moved[:, 0::2].clamp(0, width)
            moved[:, 1::2] = moved[:, 1::2].clamp(0, height)
            boxes = moved[(moved[:, 2:] > moved[:, :2]).all(dim=1)]
            assert len(boxes) == len(start) - 1
