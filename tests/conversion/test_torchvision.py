"""torchvision's Faster and Mask R-CNN, live, with the same weights."""

from __future__ import annotations

import pytest
import torch
from fidelity import (
    Golden,
    compare_torchvision,
    torchvision_model,
    torchvision_state,
)

import detlite

SHORT_SIDE = 160  # of the small pictures C and D, so that training needs no resize


@pytest.fixture(scope="module", params=["faster", "mask"])
def models(request, data_root, tmp_path_factory):
    golden = Golden(data_root / "golden", "mrb_e2e_mask_rcnn_R_50_FPN_1x")
    state = torchvision_state(golden, request.param)
    path = tmp_path_factory.mktemp("weights") / "weights.pth"
    torch.save(state, path)
    predictor = detlite.load_checkpoint(path, ["MODEL.DEVICE", "cpu"])
    path.unlink()
    reference = torchvision_model(request.param, state, min_size=SHORT_SIDE)
    return golden.recipe, reference, predictor


def test_detections_from_the_picture_on(models):
    recipe, reference, predictor = models
    picture = recipe.load_picture("D")[0]
    reference.transform.min_size = (231,)  # no whole factor: the resize shows
    predictor.min_size = 231
    found = compare_torchvision(reference, predictor, picture)
    assert found.count > 20
    assert found.unmatched == 0
    assert found.box < 0.02
    assert found.score < 3e-4
    assert found.mask < 1e-3


def test_losses_of_a_step(models, monkeypatch):
    recipe, reference, predictor = models
    monkeypatch.setattr(torch, "randperm", lambda n, **options: torch.arange(n))
    reference.transform.min_size = (SHORT_SIDE,)
    images, targets = [], []
    for key in "CD":
        picture, truth = recipe.load_picture(key)[0], recipe.targets(key)
        images.append(torch.from_numpy(picture.transpose(2, 0, 1).copy()))
        targets.append(
            {
                "boxes": torch.from_numpy(truth["boxes"]),
                "labels": torch.from_numpy(truth["labels"]) + 1,
                "masks": torch.from_numpy(truth["masks"]),
            }
        )
    ours = predictor.model.train()
    losses = ours(images, targets)
    theirs = reference.train()([image.float() / 255 for image in images], targets)
    names = {"loss_rpn_box": "loss_rpn_box_reg", "loss_box": "loss_box_reg"}
    assert {names.get(name, name) for name in losses} == theirs.keys()
    for name, loss in losses.items():
        torch.testing.assert_close(loss, theirs[names.get(name, name)], rtol=1e-4, atol=1e-7)

    ours.eval()
    reference.eval()
