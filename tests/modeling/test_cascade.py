from __future__ import annotations

import pytest
import torch

from detlite.config import ConfigError
from detlite.modeling.cascade import CascadeRoIHeads
from detlite.modeling.rcnn import build_model
from detlite.modeling.suppression import suppress

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
            sum(scores) / 3, deltas, boxes, batch.sizes, heads.limits
        )
        wanted = suppress(wanted, heads.limits)
        (found,) = heads.detect(features, proposals, batch.sizes)
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
    ],
)
def test_contradicting_keys(tiny_config, opts, message):
    with pytest.raises(ConfigError, match=message):
        build_model(tiny_config(*OPTS, *opts))
