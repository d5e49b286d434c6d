"""detectron2's detector by our config: the same weights, losses and detections.

Runs where detectron2 was built from its sources and can be imported (PYTHONPATH).
"""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

from benchmarks.models.detectron2_baseline import (
    Recorded,
    detected_masks,
    detectron2_model,
    for_detectron2,
)
from benchmarks.models.images import pictures, training_batch
from benchmarks.models.inference import Inference
from benchmarks.models.phases import Stopwatch, phases_of, places_of
from benchmarks.models.torchvision_baseline import comparable_config, seeded_model
from benchmarks.models.training import Training

pytest.importorskip("detectron2", reason="detectron2 is not built here")


def test_its_weights_are_ours(config, small):
    cfg = comparable_config(config, (*small, "MODEL.DEVICE", "cpu"))
    model = seeded_model(cfg).eval()
    peer = detectron2_model(cfg, model).eval()
    image = torch.stack(pictures(1, 128, 160)).float()
    ours = model.backbone((image / 255 - 0.5) / 0.25)
    theirs = peer.backbone((image / 255 - 0.5) / 0.25)
    for level, name in zip(ours, ("p2", "p3", "p4", "p5", "p6"), strict=False):
        torch.testing.assert_close(level, theirs[name], rtol=1e-4, atol=1e-4)


def test_it_detects_alike(config, small):
    inference = Inference(config, (*small, "MODEL.DEVICE", "cpu"), size=(128, 160), detections=5)
    ours = inference.call("detlite", "float32")()[0]["masks"]
    theirs = inference.call("detectron2", "float32")()[0]
    assert len(ours) == len(theirs) == 5


def test_masks_are_pasted(config, small):
    opts = ("MODEL.DEVICE", "cpu", "MODEL.ROI_HEADS.SCORE_THRESH", 0.0)
    cfg = comparable_config(config, (*small, *opts))
    peer = detectron2_model(cfg, seeded_model(cfg)).eval()
    with torch.no_grad():
        (masks,) = detected_masks(peer, pictures(1, 128, 160))
    assert masks.dtype == torch.bool
    assert masks.shape[1:] == (128, 160)


def test_it_trains_alike(config, small):
    """What is drawn at random is not drawn here: both take the first of what there is."""
    opts = ("MODEL.DEVICE", "cpu", "MODEL.MEMORY_FORMAT", "contiguous")
    cfg = comparable_config(config, (*small, *opts))
    model = seeded_model(cfg).train()
    peer = detectron2_model(cfg, model).train()
    batch = training_batch(2, 128, 160, 3, cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES)
    with (
        patch.object(torch, "randperm", lambda n, **_: torch.arange(n)),
        patch.object(torch, "rand", lambda s, **_: torch.linspace(1, 0, s[-1]).expand(s)),
    ):
        ours = model(*batch)
        theirs = Recorded(peer)(for_detectron2(batch))
    # The RPN's box loss and the targets of masks are defined otherwise there.
    torch.testing.assert_close(ours["loss_objectness"], theirs["loss_rpn_cls"], rtol=1e-3, atol=0)
    assert all(loss.isfinite() for loss in theirs.values())


def test_a_step_has_its_phases(config, small):
    watch = Stopwatch("cpu")
    step = Training(config, (*small, "MODEL.DEVICE", "cpu"), 1, (64, 96), 3).step(
        "detectron2", "float32", watch
    )
    seen = phases_of(step, places_of("detectron2"), watch, 1)
    assert seen.keys() >= {"backbone", "RPN", "matching", "box head", "mask head", "mask targets"}
