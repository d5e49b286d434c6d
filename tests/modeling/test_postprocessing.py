"""What becomes of candidates: clipped, without small ones, suppressed, in one place."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor
from torchvision.ops import clip_boxes_to_image

from detlite.conventions import CONVENTIONS
from detlite.modeling.build import build_model
from detlite.modeling.postprocessing import Postprocess, Suppression, build_postprocess, suppress
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections, PredictedBoxes
from detlite.structures.padding import fixed_shapes, varying_shapes

SIZES = torch.tensor([[40, 60], [30, 30]])  # height, width
PLAIN = Postprocess(CONVENTIONS["detlite"], Suppression(0.5), 100)


def candidates(count: int = 60) -> PredictedBoxes:
    """Of two images, boxes that reach beyond them and some that lie outside."""
    corner = torch.rand(2, count, 2) * 70 - 10
    valid = torch.rand(2, count) < torch.tensor([[0.9], [0.6]])
    return PredictedBoxes(
        torch.cat([corner, corner + 1 + torch.rand(2, count, 2) * 25], dim=2),
        torch.rand(2, count),
        torch.randint(1, 3, (2, count)),
        valid,
    )


def as_rows(found: PredictedBoxes | Detections, image: int) -> Tensor:
    own = found[image][found.valid[image]]
    return torch.cat([own.boxes, own.scores[:, None], own.labels[:, None]], dim=1)


def clipped(boxes: Tensor) -> Tensor:
    return torch.stack(
        [clip_boxes_to_image(own, tuple(SIZES[i].tolist())) for i, own in enumerate(boxes)]
    )


@pytest.mark.parametrize("min_size", [0.0, 4.0, -1.0])
def test_clipping_first(min_size):
    given = candidates()
    boxes = clipped(given.boxes)
    large = box_ops.has_min_size(boxes, min_size) if min_size >= 0 else torch.ones_like(given.valid)
    wanted = suppress(replace(given, boxes=boxes, valid=given.valid & large), Suppression(0.5), 100)
    post = replace(PLAIN, min_size=min_size)
    found = post(given, SIZES)
    for image in range(2):
        assert torch.equal(as_rows(found, image), as_rows(wanted, image))
    sides = found.boxes[found.valid][:, 2:] - found.boxes[found.valid][:, :2]
    assert (sides.min() <= 0) == (min_size < 0)
    assert torch.equal(post.finish(found, SIZES).boxes, found.boxes)


@pytest.mark.parametrize("min_size", [0.0, 4.0, -1.0])
def test_clipping_last(min_size):
    given = candidates()
    kept = suppress(given, Suppression(0.5), 100)
    boxes = clipped(kept.boxes)
    large = box_ops.has_min_size(boxes, min_size) if min_size >= 0 else torch.ones_like(kept.valid)
    wanted = replace(kept, boxes=boxes, valid=kept.valid & large)
    post = replace(PLAIN, min_size=min_size, clip="after-nms")
    assert post.usable(given, SIZES) is given
    found = post(given, SIZES)
    for image in range(2):
        assert torch.equal(as_rows(found, image), as_rows(wanted, image))
    assert (found.valid.int().diff(dim=1) <= 0).all()  # padding last again
    assert (wanted.valid.int().diff(dim=1) > 0).any() == (min_size >= 0)


def test_the_order_of_clipping_matters():
    # As they are, the boxes overlap by less than half; what lies in the image is the same.
    boxes = torch.tensor([[[-40.0, 0, 10, 10], [0, 0, 10, 10]]])
    given = PredictedBoxes(
        boxes, torch.tensor([[0.9, 0.8]]), torch.tensor([[1, 1]]), torch.tensor([[True, True]])
    )
    assert PLAIN(given, SIZES[:1]).valid.sum() == 1
    assert replace(PLAIN, clip="after-nms")(given, SIZES[:1]).valid.sum() == 2


@pytest.mark.parametrize("clip", ["before-nms", "after-nms"])
def test_the_best_of_an_image_are_kept(clip):
    given = candidates()
    post = replace(PLAIN, clip=clip, min_size=-1.0)
    every, some = post(given, SIZES), replace(post, detections_per_image=4)(given, SIZES)
    assert some.valid.shape == (2, 4)
    for image in range(2):
        assert torch.equal(as_rows(some, image), as_rows(every, image)[:4])


@pytest.mark.parametrize("clip", ["before-nms", "after-nms"])
def test_fixed_and_varying_shapes_agree(clip):
    given, post = candidates(), replace(PLAIN, clip=clip, min_size=3.0)
    with fixed_shapes():
        fixed = post(given, SIZES)
    with varying_shapes():
        varying = post(given, SIZES)
    assert fixed.valid.shape == (2, 60)
    assert varying.valid.shape == (2, int(fixed.valid.sum(dim=1).max()))
    for image in range(2):
        assert torch.equal(as_rows(fixed, image), as_rows(varying, image))


@pytest.mark.parametrize("clip", ["before-nms", "after-nms"])
def test_a_bigger_image_beside_it_changes_nothing(clip):
    given, post = candidates(), replace(PLAIN, clip=clip)
    together = post(given, SIZES)
    for image in range(2):
        own = given[image][given.valid[image]].map(lambda field: field[None])
        alone = post(own, SIZES[image : image + 1])
        assert torch.equal(as_rows(together, image), as_rows(alone, 0))


@pytest.mark.parametrize("clip", ["before-nms", "after-nms"])
@pytest.mark.parametrize("shapes", [fixed_shapes, varying_shapes])
def test_images_without_candidates(clip, shapes):
    post = replace(PLAIN, clip=clip)
    nobody = replace(candidates(), valid=torch.zeros(2, 60, dtype=torch.bool))
    outside = replace(candidates(), boxes=candidates().boxes - 200)
    with shapes():
        for given in (nobody, outside, candidates()[:, :0]):
            assert not post(given, SIZES).valid.any()


@pytest.mark.parametrize("clip", ["before-nms", "after-nms"])
@pytest.mark.parametrize("method", ["nms", "soft-gaussian", "voting", "fusion"])
def test_boxes_that_are_not_finite_spoil_no_others(clip, method):
    given = candidates()
    post = replace(PLAIN, clip=clip, suppression=Suppression(0.5, method))
    broken = replace(given, boxes=given.boxes.clone(), valid=given.valid.clone())
    broken.boxes[0, :3, 0] = float("nan")
    broken.valid[0, :3] = True
    without = replace(given, valid=given.valid.clone())
    without.valid[0, :3] = False
    found, wanted = post(broken, SIZES), post(without, SIZES)
    for image in range(2):
        assert torch.equal(as_rows(found, image), as_rows(wanted, image))


def test_candidates_are_left_alone():
    given = candidates()
    before = given.map(torch.Tensor.clone)
    PLAIN(given, SIZES)
    for field in fields(before):
        assert torch.equal(getattr(given, field.name), getattr(before, field.name))


def test_by_config(tiny_config):
    prefix = "MODEL.ROI_HEADS."
    keys = [prefix + "NMS", 0.3, prefix + "DETECTIONS_PER_IMG", 7, "TEST.NMS.METHOD", "voting",
            "MODEL.CONVENTION_OVERRIDE", ("detection_min_size=2.5",)]  # fmt: skip
    post = build_postprocess(tiny_config(*keys))
    assert post.suppression == Suppression(0.3, "voting")
    assert (post.detections_per_image, post.min_size, post.clip) == (7, 2.5, "before-nms")
    model = build_model(tiny_config(*keys))
    assert model.postprocess == post
    assert model.convention is model.postprocess.convention
