from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from detlite.modeling.build import build_model
from detlite.modeling.preprocessing import prepare_proposals, prepare_targets
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections
from detlite.structures.padding import Rows, fixed_shapes

TRUTH = torch.tensor([[4.0, 6, 26, 26], [34, 6, 57, 25]])

# Rows of valid entries alone, or of padding too.
SHAPES = pytest.mark.parametrize("shapes", [nullcontext, fixed_shapes], ids=["varying", "fixed"])
C4 = pytest.mark.parametrize("c4", [False, True], ids=["separate", "shared"])
KEYPOINTS = [
    "MODEL.KEYPOINT_ON", True, "MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", False,
    "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", (8,), "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", 5,
    "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION", 56,
]  # fmt: skip


def some_proposals(count: int = 60) -> torch.Tensor:
    """Half of them near a ground truth, half anywhere."""
    near = TRUTH.repeat(count // 4, 1) + torch.randn(2 * (count // 4), 4) * 2
    corner = torch.rand(count // 2, 2) * 60
    far = torch.cat([corner, corner + 5 + torch.rand(count // 2, 2) * 20], dim=1)
    proposals = torch.cat([near, far])
    return proposals[box_ops.has_min_size(proposals, 1)]


@SHAPES
@C4
def test_mask_head_gets_the_features_and_masks_of_the_foreground(
    tiny_config, make_batch, monkeypatch, c4, shapes
):
    model = build_model(tiny_config(c4=c4)).train()
    heads, given = model.roi_heads, {}

    def losses(logits, rows, samples, truth):
        given.update(logits=logits, rows=rows, samples=samples, truth=truth)
        return {"loss_mask": logits.sum()}

    monkeypatch.setattr(heads.mask, "losses", losses)
    images, targets = make_batch(3, 1, 0)
    truth = prepare_targets(targets, images, 4, model.needs)
    proposals = prepare_proposals([some_proposals(), some_proposals(40), some_proposals(20)], 3)
    batch = model.normalizer(images)
    with torch.no_grad(), shapes():
        features = model.backbone(batch.pixels)
        samples = model.sampler(proposals, truth)
        _, predictions = heads.box.losses(features, samples, truth, batch.sizes)
        foreground = samples[:, : model.sampler.max_positives]
        found = heads.dense_losses(features, foreground, truth, predictions)
    assert found.keys() == {"loss_mask"}
    rows, samples = given["rows"], given["samples"]
    labels = rows.pack(samples.labels)[rows.valid]
    index = rows.pack(samples.gt_index)[rows.valid]
    image = rows.image[rows.valid]
    boxes = rows.pack(samples.boxes)[rows.valid]
    assert {0, 1} == set(image.tolist())
    assert len(labels) >= 4
    for n, own in enumerate(targets[:2]):
        overlap = box_ops.iou(own["boxes"], boxes[image == n])
        assert torch.equal(overlap.argmax(0), index[image == n])
        assert (overlap.max(0).values >= 0.5).all()
        assert torch.equal(labels[image == n], own["labels"][index[image == n]])
    extractor = heads.mask.feature_extractor or heads.box.feature_extractor
    with torch.no_grad():
        x = extractor(features, torch.cat([image[:, None].float(), boxes], dim=1))
        wanted = heads.mask.predictor(x)
    torch.testing.assert_close(given["logits"][rows.valid], wanted, atol=1e-5, rtol=1e-4)


@SHAPES
@C4
@torch.no_grad()
def test_maps_are_those_of_the_detections(tiny_config, make_batch, c4, shapes):
    """Each detection's mask is what the head sees in its box, of its label; padding has none."""
    model = build_model(tiny_config(c4=c4)).eval()
    heads = model.roi_heads
    images, _ = make_batch(1, 1, 1)
    features = model.backbone(model.normalizer(images).pixels)
    valid = torch.tensor([[True, True], [True, False], [False, False]])
    boxes = TRUTH.expand(3, 2, 4) + torch.rand(3, 2, 4) * 5
    labels = torch.tensor([[3, 1], [2, 0], [0, 0]])
    found = Detections(boxes, torch.rand(3, 2), labels, valid)
    with shapes():
        rows = Rows(valid)
        found = heads.with_maps(found, rows, heads.maps(features, rows, boxes, labels))
    assert found.mask_probs.shape[:2] == (3, 2)
    assert [len(own.mask_probs) for own in found.per_image()] == [2, 1, 0]
    extractor = heads.mask.feature_extractor or heads.box.feature_extractor
    for image, n in valid.nonzero().tolist():
        roi = torch.cat([torch.tensor([float(image)]), boxes[image, n]])[None]
        wanted = heads.mask.predictor(extractor(features, roi))[0, labels[image, n]].sigmoid()
        torch.testing.assert_close(found.mask_probs[image, n], wanted, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_every_head_adds_its_fields(tiny_config, make_batch):
    model = build_model(tiny_config(*KEYPOINTS)).eval()
    assert model.needs == ("masks", "keypoints")
    assert model.roi_heads.dense_heads == [model.roi_heads.mask, model.roi_heads.keypoint]
    images, _ = make_batch(1)
    features = model.backbone(model.normalizer(images).pixels)
    valid = torch.ones(1, 2, dtype=torch.bool)
    labels, scores = torch.tensor([[1, 2]]), torch.tensor([[0.9, 0.8]])
    rows, found = Rows(valid), Detections(TRUTH[None], scores, labels, valid)
    maps = model.roi_heads.maps(features, rows, found.boxes, found.labels)
    assert {name: tuple(map_.shape) for name, map_ in maps.items()} == {
        "mask_probs": (2, 28, 28), "keypoint_logits": (2, 5, 56, 56),
    }  # fmt: skip
    found = model.roi_heads.with_maps(found, rows, maps)
    assert found.mask_probs.shape == (1, 2, 28, 28)
    assert found.keypoints.shape == (1, 2, 5, 3)
    assert found.keypoint_scores.shape == (1, 2, 5)
    keypoints, scores = model.roi_heads.keypoint.locate(maps["keypoint_logits"], TRUTH)
    assert torch.equal(found.keypoints[0], keypoints)
    assert torch.equal(found.keypoint_scores[0], scores)


def test_without_map_heads_there_is_nothing_to_add(tiny_config, make_batch):
    model = build_model(tiny_config("MODEL.MASK_ON", False)).eval()
    assert model.needs == ()
    assert not model.roi_heads.shares
    valid = torch.ones(1, 2, dtype=torch.bool)
    found = Detections(TRUTH[None], torch.rand(1, 2), torch.tensor([[1, 2]]), valid)
    rows = Rows(valid)
    assert model.roi_heads.maps([], rows, found.boxes, found.labels) == {}
    assert model.roi_heads.with_maps(found, rows, {}) is found
