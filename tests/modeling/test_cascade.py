from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from detlite.config import ConfigError
from detlite.modeling.box_coder import BoxCoder
from detlite.modeling.cascade import CascadeRoIHeads, _ScaleGradient
from detlite.modeling.rcnn import build_model
from detlite.structures import boxes as box_ops

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
    for stage in model.roi_heads.box:
        assert stage.predictor.cls_score.weight.grad.abs().sum() > 0


def test_scores_are_averaged_and_boxes_refined(tiny_config, make_batch):
    images, _ = make_batch(1)
    model = build_model(tiny_config(*OPTS, "MODEL.MASK_ON", False)).eval()
    heads = model.roi_heads
    assert isinstance(heads, CascadeRoIHeads)
    batch = model.normalizer(images)
    features = model.backbone(batch.tensor)
    proposals, _ = model.rpn(batch.sizes, features)
    with torch.no_grad():
        scores, boxes = [], proposals
        for number, stage in enumerate(heads.box):
            x = stage.feature_extractor(features, boxes)
            logits, deltas = stage.predictor(x)
            scores.append(logits.softmax(1))
            if number < 2:
                boxes = [stage.box_coder.decode(deltas[:, 4:], boxes[0])]
                boxes[0][:, 0::2] = boxes[0][:, 0::2].clamp(0, images[0].shape[2])
                boxes[0][:, 1::2] = boxes[0][:, 1::2].clamp(0, images[0].shape[1])
        (wanted,) = heads.box[2].candidates(
            sum(scores) / 3, deltas, boxes, batch.sizes, model.limits
        )
        (found,) = heads.candidates(features, proposals, batch.sizes, model.limits)
    assert len(found["boxes"]) > 3
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value)


def test_stages_weigh_as_much_as_one_head(tiny_config):
    weights = [stage.box_coder.weights for stage in build_model(tiny_config(*OPTS)).roi_heads.box]
    assert weights == [(10, 10, 5, 5), (20, 20, 10, 10), (30, 30, 15, 15)]


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (["MODEL.CLS_AGNOSTIC_BBOX_REG", False], "needs MODEL.CLS_AGNOSTIC_BBOX_REG True"),
        (["MODEL.ROI_HEADS.CASCADE_IOUS", (0.5, 0.6)], "has 2 stages"),
        (["MODEL.ROI_HEADS.FG_IOU_THRESHOLD", 0.6], "begins with 0.5, but .* is 0.6"),
    ],
)
def test_contradicting_keys(tiny_config, opts, message):
    with pytest.raises(ConfigError, match=message):
        build_model(tiny_config(*OPTS, *opts))


def test_together_the_stages_pull_at_the_backbone_as_one_head(tiny_config, make_batch, monkeypatch):
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

    found = gradients()
    monkeypatch.setattr(_ScaleGradient, "backward", lambda ctx, gradient: (gradient, None))
    unscaled = gradients()
    torch.testing.assert_close(found["heads"], unscaled["heads"])
    torch.testing.assert_close(3 * found["backbone"], unscaled["backbone"], rtol=1e-3, atol=1e-6)


def test_losses_stage_by_stage(tiny_config, make_batch, monkeypatch):
    """Each stage by itself, in plain numbers, on the boxes that the one before has moved."""
    images, targets = make_batch(3)
    height, width = images[0].shape[1:]
    model = build_model(tiny_config(*OPTS, "MODEL.MASK_ON", False))
    heads = model.roi_heads
    for stage in heads.box:  # so that boxes do move
        torch.nn.init.normal_(stage.predictor.bbox_pred.weight, std=0.05)
    truth = targets[0]["boxes"]
    start = torch.cat([truth + torch.randn(3, 4) * shift for shift in (1, 2, 3, 4, 30)])
    start = start[(start[:, 2:] > start[:, :2]).all(dim=1)]
    monkeypatch.setattr(heads, "_sample", lambda proposals, target: (start, rematch(start, 0.5)))

    def rematch(boxes, iou):
        labels, wanted, matched = [], [], []
        for box in boxes:
            overlaps = [box_ops.iou(box[None], other[None]).item() for other in truth]
            best = max(range(3), key=overlaps.__getitem__)
            positive = overlaps[best] >= iou
            labels.append(int(targets[0]["labels"][best]) if positive else 0)
            wanted.append(truth[best])
            matched.append(best)
        columns = torch.tensor(labels), torch.stack(wanted), torch.tensor(matched)
        return dict(zip(("labels", "boxes", "matched"), columns, strict=True))

    batch = model.normalizer(images)
    with torch.no_grad():
        features = model.backbone(batch.tensor)
        found = heads.losses(features, [start], targets, batch.sizes)
        boxes = start
        weights = [(10, 10, 5, 5), (20, 20, 10, 10), (30, 30, 15, 15)]
        for number, (stage, iou) in enumerate(zip(heads.box, (0.5, 0.6, 0.7), strict=True)):
            logits, deltas = stage.predictor(stage.feature_extractor(features, [boxes]))
            target = rematch(boxes, iou)
            coder, foreground = BoxCoder(weights[number]), target["labels"] > 0
            assert foreground.any()
            classifier = F.cross_entropy(logits, target["labels"])
            wanted = coder.encode(target["boxes"][foreground], boxes[foreground])
            box = F.smooth_l1_loss(deltas[foreground, 4:], wanted, reduction="sum") / len(boxes)
            torch.testing.assert_close(found[f"loss_classifier_stage{number}"], classifier)
            torch.testing.assert_close(found[f"loss_box_stage{number}"], box)
            moved = coder.decode(deltas[:, 4:], boxes)
            assert (moved - boxes).abs().mean() > 0.05
            moved[:, 0::2] = moved[:, 0::2].clamp(0, width)
            moved[:, 1::2] = moved[:, 1::2].clamp(0, height)
            boxes = moved[(moved[:, 2:] > moved[:, :2]).all(dim=1)]
