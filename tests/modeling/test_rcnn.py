"""Whole two-stage detectors: training, evaluation and construction."""

import pytest
import torch

from detlite.modeling.build import build_model
from detlite.structures import boxes as box_ops
from detlite.structures.masks.packed import PackedMasks
from tests.modeling.family import ALL_SCORES, LOSSES, check_losses

HEADS = ("ROI_BOX_HEAD", "ROI_MASK_HEAD")


def test_frozen_parts_have_no_gradient(tiny_config, make_batch):
    model = build_model(tiny_config("MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 2)).train()
    check_losses(model, model(*make_batch(2)))
    frozen = [*model.backbone.body.stem.parameters(), *model.backbone.body.res2.parameters()]
    assert frozen
    assert all(p.grad is None for p in frozen)


def test_model_overfits_one_image(tiny_config, make_batch):
    model = build_model(tiny_config("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 64)).train()
    images, targets = make_batch(2)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    history = []
    for _ in range(60):
        losses = model(images, targets)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        history.append(torch.stack([losses[name].detach() for name in sorted(LOSSES)]))
    first, last = (torch.stack(part).mean(0) for part in (history[:5], history[-5:]))
    assert last.sum() < 0.5 * first.sum()
    for name in ("loss_objectness", "loss_classifier", "loss_mask"):
        assert last[sorted(LOSSES).index(name)] < 0.5 * first[sorted(LOSSES).index(name)], name
    (result,) = model.eval()(images)
    for box, label, mask in zip(
        *(targets[0][name] for name in ("boxes", "labels", "masks")), strict=True
    ):
        best = torch.where(result["labels"] == label)[0][0]
        assert box_ops.iou(box[None], result["boxes"][best][None]).item() > 0.5
        pixels = result["masks"][best, 0] > 0.5
        assert (pixels & (mask > 0)).sum() > 0.5 * (pixels | (mask > 0)).sum()


# ---- evaluation


def test_memory_format_has_no_effect_on_detections(tiny_config, make_batch):
    formats = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
    images, _ = make_batch(2)
    results = []
    for name, memory_format in formats.items():
        torch.manual_seed(0)
        model = build_model(tiny_config(*ALL_SCORES, "MODEL.MEMORY_FORMAT", name)).eval()
        model.use_memory_format()
        batch = model.normalizer(images).pixels
        tensors = [batch, model.backbone(batch)[0]]
        assert all(x.is_contiguous(memory_format=memory_format) for x in tensors)
        results += model(images)
    last, first = results
    torch.testing.assert_close(last["boxes"], first["boxes"], atol=1e-2, rtol=1e-3)
    torch.testing.assert_close(last["scores"], first["scores"], atol=1e-4, rtol=1e-3)


# ---- padding

CASCADE = ("MODEL.ROI_HEADS.CASCADE_IOUS", (0.5, 0.6, 0.7), "MODEL.CLS_AGNOSTIC_BBOX_REG", True)
KINDS = pytest.mark.parametrize(
    ("opts", "c4"), [((), False), ((), True), (CASCADE, False)], ids=["FPN", "C4", "cascade"]
)


@pytest.mark.parametrize("kept", [7, 0])
@KINDS
@torch.no_grad()
def test_static_shapes_with_few_detections(tiny_config, make_batch, opts, c4, kept):
    model = build_model(tiny_config(*ALL_SCORES, *opts, c4=c4)).eval()
    images, _ = make_batch(2, 1)
    batch = model.normalizer(images)
    model.roi_heads.box.score_thresh = model.predict(batch).scores[0, kept].item()
    dynamic = model.predict(batch).per_image()
    assert len(dynamic[0].boxes) == kept
    model.static_shapes = True
    padded = model.predict(batch)
    assert padded.boxes.shape == (2, 20, 4)
    assert padded.mask_probs.shape[:2] == (2, 20)
    for result, expected in zip(padded.per_image(), dynamic, strict=True):
        for name in ("boxes", "scores", "labels", "mask_probs"):
            torch.testing.assert_close(getattr(result, name), getattr(expected, name))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_training_on_empty_masks(tiny_config, make_batch, dtype):
    model = build_model(tiny_config()).train()
    images, targets = make_batch(2)
    targets[0]["masks"] = torch.zeros_like(targets[0]["masks"], dtype=dtype)
    losses = model(images, targets)
    check_losses(model, losses)
    assert losses["loss_mask"] > 0


def test_mask_formats_lead_to_the_same_losses(tiny_config, make_batch):
    model = build_model(tiny_config()).train()
    images, targets = make_batch(3)
    masks, losses = targets[0]["masks"], []
    for inputs in (masks, masks.bool(), 255 * masks, PackedMasks.from_bitmaps(masks)):
        torch.manual_seed(0)
        losses.append(model(images, [{**targets[0], "masks": inputs}]))
    for other in losses[1:]:
        assert all(torch.equal(losses[0][name], other[name]) for name in losses[0])


# ---- building


def test_size_divisibility(tiny_config):
    model = build_model(tiny_config("DATALOADER.SIZE_DIVISIBILITY", 32))
    assert model.normalizer([torch.zeros(3, 33, 64)]).pixels.shape[-2:] == (64, 64)
