"""Whole two-stage detectors: training, evaluation and construction."""

import torch

from detlite.modeling.build import build_model
from detlite.structures import boxes as box_ops
from tests.modeling.family import ALL_SCORES, LOSSES

HEADS = ("ROI_BOX_HEAD", "ROI_MASK_HEAD")


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


# ---- building
