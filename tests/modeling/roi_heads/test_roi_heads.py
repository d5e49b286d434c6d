import pytest
import torch

from detlite.modeling.build import build_model
from detlite.modeling.preprocessing import prepare_proposals, prepare_targets
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections
from detlite.structures.padding import RowPacking

TRUTH = torch.tensor([[4.0, 6, 26, 26], [34, 6, 57, 25]])

each_mode = pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
C4 = pytest.mark.parametrize("c4", [False, True], ids=["separate", "shared"])


def make_proposals(count: int = 60) -> torch.Tensor:
    """Return boxes, half of them near a ground truth."""
    near = TRUTH.repeat(count // 4, 1) + torch.randn(2 * (count // 4), 4) * 2
    corner = torch.rand(count // 2, 2) * 60
    far = torch.cat([corner, corner + 5 + torch.rand(count // 2, 2) * 20], dim=1)
    proposals = torch.cat([near, far])
    return proposals[box_ops.has_min_size(proposals, 1)]


@each_mode
@C4
def test_mask_head_receives_the_features_and_masks_of_the_foreground(
    tiny_config, make_batch, monkeypatch, c4, static
):
    model = build_model(tiny_config(c4=c4)).train()
    heads, inputs = model.roi_heads, {}

    def losses(logits, packing, samples, truth):
        inputs.update(logits=logits, packing=packing, samples=samples, truth=truth)
        return {"loss_mask": logits.sum()}

    monkeypatch.setattr(heads.mask, "losses", losses)
    images, targets = make_batch(3, 1, 0)
    truth = prepare_targets(targets, images, 4, model.required_targets)
    proposals = prepare_proposals([make_proposals(), make_proposals(40), make_proposals(20)], 3)
    batch = model.normalizer(images)
    with torch.no_grad():
        features = model.backbone(batch.pixels)
        samples = model.sampler(proposals, truth, static)
        _, predictions = heads.box.losses(features, samples, truth, batch.sizes, static)
        foreground = samples[:, : model.sampler.max_positives]
        result = heads.head_losses(features, foreground, truth, predictions, static)
    assert result.keys() == {"loss_mask"}
    packing, samples = inputs["packing"], inputs["samples"]
    labels = packing.pack(samples.labels)[packing.valid]
    index = packing.pack(samples.gt_index)[packing.valid]
    image = packing.image[packing.valid]
    boxes = packing.pack(samples.boxes)[packing.valid]
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
        expected = heads.mask.predictor(x)
    torch.testing.assert_close(inputs["logits"][packing.valid], expected, atol=1e-5, rtol=1e-4)


@each_mode
@C4
@torch.no_grad()
def test_masks_belong_to_their_detections(tiny_config, make_batch, c4, static):
    model = build_model(tiny_config(c4=c4)).eval()
    heads = model.roi_heads
    images, _ = make_batch(1, 1, 1)
    features = model.backbone(model.normalizer(images).pixels)
    valid = torch.tensor([[True, True], [True, False], [False, False]])
    boxes = TRUTH.expand(3, 2, 4) + torch.rand(3, 2, 4) * 5
    labels = torch.tensor([[3, 1], [2, 0], [0, 0]])
    result = Detections(boxes, torch.rand(3, 2), labels, valid)
    packing = RowPacking(valid, static)
    result = heads.with_head_outputs(
        result, packing, heads.head_outputs(features, packing, boxes, labels)
    )
    assert result.mask_probs.shape[:2] == (3, 2)
    assert [len(own.mask_probs) for own in result.per_image()] == [2, 1, 0]
    extractor = heads.mask.feature_extractor or heads.box.feature_extractor
    for image, n in valid.nonzero().tolist():
        roi = torch.cat([torch.tensor([float(image)]), boxes[image, n]])[None]
        expected = heads.mask.predictor(extractor(features, roi))[0, labels[image, n]].sigmoid()
        torch.testing.assert_close(result.mask_probs[image, n], expected, atol=1e-5, rtol=1e-4)
