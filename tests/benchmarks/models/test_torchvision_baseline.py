"""torchvision's detector by our config: the same weights, losses and detections."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

from benchmarks.models.images import for_torchvision, pictures, training_batch
from benchmarks.models.inference import Inference
from benchmarks.models.torchvision_baseline import (
    comparable_config,
    seeded_model,
    spread_scores,
    torchvision_model,
)
from detlite.config import ConfigError


@pytest.mark.parametrize("norm", ["FrozenBN", "BN", "GN"])
def test_it_trains_alike(config, small, norm):
    """What is drawn at random is not drawn here: both take the first of what there is."""
    opts = ("MODEL.DEVICE", "cpu", "MODEL.RESNETS.NORM", norm, "MODEL.MEMORY_FORMAT", "contiguous")
    cfg = comparable_config(config, (*small, *opts))
    model = seeded_model(cfg).train()
    peer = torchvision_model(cfg, model).train()
    batch = training_batch(2, 128, 160, 3, cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES)
    with (
        patch.object(torch, "randperm", lambda n, **_: torch.arange(n)),
        patch.object(torch, "rand", lambda s, **_: torch.linspace(1, 0, s[-1]).expand(s)),
    ):
        ours = model(*batch)
        theirs = peer(*for_torchvision(batch, "cpu"))
    assert len(ours) == len(theirs) == 5
    torch.testing.assert_close(sum(ours.values()), sum(theirs.values()), rtol=1e-3, atol=1e-4)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained == sum(p.numel() for p in peer.parameters() if p.requires_grad)


def test_it_detects_alike(config, small):
    inference = Inference(config, (*small, "MODEL.DEVICE", "cpu"), size=(128, 160), detections=5)
    ours = inference.call("detlite", "float32")()[0]["masks"]
    theirs = inference.call("torchvision", "float32")()[0]
    assert len(ours) == len(theirs) == 5
    area = [sum(rle["size"][0] * rle["size"][1] for rle in rles) for rles in (ours, theirs)]
    assert area[0] == area[1] == 5 * 128 * 160


def test_so_many_boxes_pass_the_threshold(config, small):
    model = seeded_model(comparable_config(config, (*small, "MODEL.DEVICE", "cpu"))).eval()
    (image,) = pictures(1, 128, 160)
    spread_scores(model, image, 0.5, 20)
    seen = []
    hook = model.roi_heads.box.predictor.cls_score.register_forward_hook(
        lambda _, __, logits: seen.append(logits)
    )
    model.detect([image])
    hook.remove()
    passing = (seen[0].softmax(dim=1)[:, 1:] > 0.5).sum()
    assert 20 <= passing <= 25


@pytest.mark.parametrize(
    "opts",
    [
        ("MODEL.MASK_ON", False),
        ("MODEL.BACKBONE.CONV_BODY", "R-50-C4"),
        ("MODEL.RESNETS.NORM", "LN"),
    ],
)
def test_models_that_torchvision_lacks(config, opts):
    with pytest.raises(ConfigError, match="torchvision has no other to compare with"):
        comparable_config(config, opts)
