"""Models with static shapes: padding has no effect, and they can be exported."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detlite.modeling.build import build_model
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.optimize_for_training import use_static_shapes
from detlite.modeling.preprocessing import prepare_targets
from detlite.structures.instances import Detections, GroundTruth, Images, Proposals
from detlite.structures.masks.packed import PackedMasks
from tests.builders import tiny_config
from tests.modeling.family import (
    assert_same_detections,
    family_batch,
    family_config,
    losses_and_gradients,
)


def test_heads_train_on_little_more_than_the_foreground():
    model = build_model(family_config("keypoint", tiny_config)).train()
    use_static_shapes(model)
    seen: dict[str, int] = {}
    for name, head in model.roi_heads.heads.items():
        head.register_forward_hook(lambda _, inputs, __, name=name: seen.update({name: inputs[1]}))
    model.losses(*family_batch(model))
    for rois in seen.values():
        foreground = int((rois[:, 0] >= 0).sum())
        assert 0 < foreground <= len(rois) <= foreground + 8 < 200
    assert len(seen) == 2


def pad_further(truth: GroundTruth, count: int) -> GroundTruth:
    masks = truth.masks
    if masks is not None:
        images, length = truth.labels.shape
        places = torch.arange(images * length).view(images, length)
        masks = PackedMasks.collate([masks.select(place) for place in places], length + count)
    boxes = F.pad(truth.boxes, (0, 0, 0, count), value=7.0)
    return replace(truth, boxes=boxes, labels=F.pad(truth.labels, (0, count)), masks=masks)


@pytest.mark.parametrize(
    "name",
    ["mask", pytest.param("c4", marks=pytest.mark.slow), "cascade", "retinanet", "proposals"],
)
@pytest.mark.parametrize("counts", [(0, 2), (0, 0)])
def test_padding_of_ground_truth_has_no_effect(make_batch, name, counts):
    images, targets = make_batch(*counts)
    model = build_model(family_config(name, tiny_config))
    batch, _ = model.prepare(images)
    truth = prepare_targets(targets, images, model.num_classes, model.required_targets)
    expected = losses_and_gradients(model, batch, truth)
    for static in (False, True):
        model.static_shapes = static
        padded = losses_and_gradients(model, batch, pad_further(truth, 3))
        torch.testing.assert_close(padded[0], expected[0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(padded[1], expected[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "opts"),
    [
        ("mask", ["MODEL.ROI_MASK_HEAD.NORM", "BN"]),
        ("mask", ["MODEL.ROI_BOX_HEAD.NORM", "BN"]),
        ("cascade", ["MODEL.ROI_BOX_HEAD.NORM", "BN"]),
        ("c4", ["MODEL.RESNETS.NORM", "BN", "MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 0]),
    ],
    ids=["mask head", "box head", "cascade", "shared stage"],
)
def test_padding_is_not_part_of_batch_statistics(name, opts):
    model = build_model(family_config(name, tiny_config, *opts))
    static = deepcopy(model)
    static.static_shapes = True
    batch = family_batch(model)
    losses = model.losses(*batch)
    torch.testing.assert_close(static.losses(*batch), losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(static.state_dict(), model.state_dict(), rtol=1e-5, atol=1e-6)


# ---- export


class Inference(nn.Module):
    """`predict` as a module, for torch.export."""

    def __init__(self, model: DetectionModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Images, proposals: Proposals | None) -> Detections:
        return self.model.predict(images, proposals)


def check_export(model: DetectionModel, *sizes: list[tuple[int, int]]) -> None:
    """Compare an exported model with the model, for other batches of images."""
    model.static_shapes = True
    images, _, _ = family_batch(model.eval())
    auto = torch.export.Dim.AUTO
    shapes = ([{0: auto, 2: auto, 3: auto}, {0: auto}], None)
    with torch.no_grad():
        program = torch.export.export(Inference(model), (images, None), dynamic_shapes=shapes)
        for batch in sizes:
            others, _ = model.prepare([torch.rand(3, *size) for size in batch])
            assert_same_detections(program.module()(others, None), model.predict(others))


# Exporting takes seconds, so only models whose code differs.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["keypoint", "cascade", "soft", "retinanet-torchvision"])
def test_models_export_for_other_batches_and_sizes(name):
    model = build_model(family_config(name, tiny_config)).eval()
    with pytest.raises(RuntimeError, match=r"needs model\.static_shapes = True"):
        torch.export.export(model, ([torch.rand(3, 64, 96)],))
    check_export(model, [(96, 128), (90, 70)] * 2)
