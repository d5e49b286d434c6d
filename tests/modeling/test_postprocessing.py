from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torchvision.ops import clip_boxes_to_image

from detlite.conventions import CONVENTIONS
from detlite.modeling.boxes.suppression import Suppression, suppress
from detlite.modeling.build import build_model
from detlite.modeling.postprocessing import Postprocess, build_postprocess
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections, PredictedBoxes

SIZES = torch.tensor([[40, 60], [30, 30]])  # height, width
DEFAULT = Postprocess(CONVENTIONS["detlite"], Suppression(0.5), 100)


def candidates(count: int = 60) -> PredictedBoxes:
    """Return boxes of two images; some cross the border or lie outside."""
    corner = torch.rand(2, count, 2) * 70 - 10
    valid = torch.rand(2, count) < torch.tensor([[0.9], [0.6]])
    return PredictedBoxes(
        torch.cat([corner, corner + 1 + torch.rand(2, count, 2) * 25], dim=2),
        torch.rand(2, count),
        torch.randint(1, 3, (2, count)),
        valid,
    )


def as_rows(result: PredictedBoxes | Detections, image: int) -> Tensor:
    own = result[image][result.valid[image]]
    return torch.cat([own.boxes, own.scores[:, None], own.labels[:, None]], dim=1)


@pytest.mark.parametrize("min_size", [0.0, 4.0, -1.0])
@pytest.mark.parametrize("clip", ["before-nms", "after-nms"])
def test_clipping_and_small_boxes(min_size, clip):
    inputs = candidates()

    def clipped(record):
        sizes = [tuple(size) for size in SIZES.tolist()]
        pairs = zip(record.boxes, sizes, strict=True)
        boxes = torch.stack([clip_boxes_to_image(own, size) for own, size in pairs])
        large = box_ops.has_min_size(boxes, min_size) if min_size >= 0 else True
        return replace(record, boxes=boxes, valid=record.valid & large)

    if clip == "before-nms":
        expected = suppress(clipped(inputs), Suppression(0.5), 100, False)
    else:
        expected = clipped(suppress(inputs, Suppression(0.5), 100, False))
    result = replace(DEFAULT, min_size=min_size, clip=clip)(inputs, SIZES, False)
    for image in range(2):
        torch.testing.assert_close(as_rows(result, image), as_rows(expected, image))
    assert (result.valid.int().diff(dim=1) <= 0).all()  # padding is last
    sides = result.boxes[result.valid][:, 2:] - result.boxes[result.valid][:, :2]
    assert (sides.min() <= 0) == (min_size < 0)


def test_the_order_of_clipping_matters():
    # Before clipping, the boxes overlap by less than half. After it, they are equal.
    boxes = torch.tensor([[[-40.0, 0, 10, 10], [0, 0, 10, 10]]])
    inputs = PredictedBoxes(
        boxes, torch.tensor([[0.9, 0.8]]), torch.tensor([[1, 1]]), torch.tensor([[True, True]])
    )
    assert DEFAULT(inputs, SIZES[:1], False).valid.sum() == 1
    assert replace(DEFAULT, clip="after-nms")(inputs, SIZES[:1], False).valid.sum() == 2


@pytest.mark.parametrize("clip", ["before-nms", "after-nms"])
def test_detections_per_image(clip):
    inputs = candidates()
    post = replace(DEFAULT, clip=clip, min_size=-1.0)
    every = post(inputs, SIZES, False)
    some = replace(post, detections_per_image=4)(inputs, SIZES, False)
    assert some.valid.shape == (2, 4)
    for image in range(2):
        assert torch.equal(as_rows(some, image), as_rows(every, image)[:4])


def test_build_postprocess(tiny_config):
    prefix = "MODEL.ROI_HEADS."
    keys = [prefix + "NMS", 0.3, prefix + "DETECTIONS_PER_IMG", 7, "TEST.NMS.METHOD", "voting",
            "MODEL.CONVENTION_OVERRIDE", ("detection_min_size=2.5",)]  # fmt: skip
    post = build_postprocess(tiny_config(*keys))
    assert post.suppression == Suppression(0.3, "voting")
    assert (post.detections_per_image, post.min_size, post.clip) == (7, 2.5, "before-nms")
    model = build_model(tiny_config(*keys))
    assert model.postprocess == post
    assert model.convention is model.postprocess.convention
