"""The conventions of the frameworks, and what follows from them for boxes and keypoints."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from detlite.config import ConfigError, load_config
from detlite.conventions import CONVENTIONS, Convention, convention_of
from detlite.ops import paste_masks
from detlite.structures.masks.formats import paste_probabilities, whole_pixel_boxes

OURS = CONVENTIONS["detlite"]
INCLUSIVE = CONVENTIONS["maskrcnn-benchmark"]
BOTH = pytest.mark.parametrize("convention", [OURS, INCLUSIVE], ids=lambda c: c.name)
SIZES = [(24, 40), (48, 33), (31, 64)]


def batch_of_boxes() -> torch.Tensor:
    """[3, 50, 4], many of them beyond the images of SIZES."""
    generator = torch.Generator().manual_seed(0)
    low = torch.rand(3, 50, 2, generator=generator) * 70 - 10
    return torch.cat([low, low + torch.rand(3, 50, 2, generator=generator) * 10], dim=-1)


def test_there_are_five():
    frameworks = ["torchvision", "detectron2", "maskrcnn-benchmark", "mmdetection"]
    assert list(CONVENTIONS) == ["detlite", *frameworks]
    assert all(convention.name == name for name, convention in CONVENTIONS.items())
    assert len(set(CONVENTIONS.values())) == 5


def test_every_field_is_used_by_some_framework():
    for field in dataclasses.fields(Convention):
        assert len({getattr(convention, field.name) for convention in CONVENTIONS.values()}) > 1


def test_clip():
    boxes = torch.tensor([[-9.0, -9, -3, -4], [30, 2, 40, 5], [-2, 3, 25, 30]])
    assert OURS.clip(boxes, (10, 20)).tolist() == [[0, 0, 0, 0], [20, 2, 20, 5], [0, 3, 20, 10]]


def test_inclusive_clip_keeps_a_pixel():
    boxes = torch.tensor([[-9.0, -9, -3, -4], [30, 2, 40, 5], [-2, 3, 25, 30]])
    kept = [[0, 0, 1, 1], [19, 2, 20, 5], [0, 3, 20, 10]]
    assert INCLUSIVE.clip(boxes, (10, 20)).tolist() == kept


def test_inside():
    boxes = torch.tensor([[0.0, 0, 20, 20], [2, 2, 20.5, 9], [2, 2, 21, 9], [-0.5, 2, 9, 9]])
    assert OURS.inside(boxes, (20, 20), 0).tolist() == [True, False, False, False]
    assert OURS.inside(boxes, (20, 20), 0.5).tolist() == [True, True, False, True]
    # over 20 pixels: the last pixel of the second begins inside, that of the third at the border
    assert INCLUSIVE.inside(boxes, (20, 20), 0).tolist() == [True, True, False, False]


def test_boxes_may_touch_all_four_borders_alike():
    boxes = torch.tensor(
        [[0.0, 0, 48, 32], [-2, 5, 9, 9], [5, -2, 9, 9], [5, 5, 50, 9], [5, 5, 9, 34]]
    )
    assert OURS.inside(boxes, (32, 48), 0).tolist() == [True, False, False, False, False]
    assert OURS.inside(boxes, (32, 48), 1.9).tolist() == [True, False, False, False, False]
    assert OURS.inside(boxes, (32, 48), 2).all()


def test_pooled_boxes_are_never_reversed():
    boxes = torch.tensor([[1.0, 1, 5, 6], [2, 2, 2.5, 9]])
    assert OURS.pooled(boxes) is boxes
    assert INCLUSIVE.pooled(boxes).tolist() == [[1, 1, 4, 5], [2, 2, 2, 8]]


@BOTH
def test_batches_are_treated_image_by_image(convention):
    boxes, sizes = batch_of_boxes(), torch.tensor(SIZES)
    to = sizes * 3 // 2
    keypoints = torch.rand(3, 5, 7, 3) * 30
    clipped, inside = convention.clip(boxes, sizes), convention.inside(boxes, sizes, 2.5)
    moved = convention.rescale_boxes(boxes, sizes, to)
    points = convention.rescale_keypoints(keypoints, sizes, to)
    for image, size in enumerate(SIZES):
        own = (int(to[image, 0]), int(to[image, 1]))
        assert torch.equal(clipped[image], convention.clip(boxes[image], size))
        assert torch.equal(inside[image], convention.inside(boxes[image], size, 2.5))
        assert 0 < inside[image].sum() < 50
        assert torch.equal(moved[image], convention.rescale_boxes(boxes[image], size, own))
        wanted = convention.rescale_keypoints(keypoints[image], size, own)
        assert torch.equal(points[image], wanted)


@BOTH
def test_nothing_waits_for_a_device(convention):
    """Tensors of `meta` have no values: whatever asks for one fails."""
    boxes, sizes = torch.rand(2, 5, 4, device="meta"), torch.ones(2, 2, device="meta").long()
    for size in (sizes, (30, 40)):
        assert convention.clip(boxes, size).shape == (2, 5, 4)
        assert convention.inside(boxes, size, 1).shape == (2, 5)
        assert convention.rescale_boxes(boxes, size, (60, 70)).shape == (2, 5, 4)
        keypoints = torch.rand(2, 5, 17, 3, device="meta")
        assert convention.rescale_keypoints(keypoints, size, size).shape == (2, 5, 17, 3)


def test_boxes_are_scaled_and_clipped():
    boxes = torch.tensor([[10.0, 20, 30, 60]])
    assert OURS.rescale_boxes(boxes, (100, 100), (100, 200)).tolist() == [[20, 20, 60, 60]]
    assert OURS.rescale_boxes(boxes, (50, 100), (50, 100)).tolist() == [[10, 20, 30, 50]]


def test_inclusive_boxes_are_scaled_by_their_last_pixel():
    boxes = torch.tensor([[10.0, 20, 31, 41]])  # pixels 10 to 30 and 20 to 40
    assert INCLUSIVE.rescale_boxes(boxes, (100, 100), (200, 200)).tolist() == [[20, 40, 61, 81]]
    assert torch.equal(INCLUSIVE.rescale_boxes(boxes, (100, 100), (100, 100)), boxes)


def test_inclusive_boxes_at_the_border_are_not_cut():
    # the last pixel of 1066 at 0.6 of its size, and one pixel of the picture on top
    boxes = INCLUSIVE.rescale_boxes(torch.tensor([[0.0, 0, 1066, 800]]), (800, 1066), (480, 640))
    wanted = torch.tensor([[0, 0, 1065 * 640 / 1066 + 1, 799 * 480 / 800 + 1]])
    torch.testing.assert_close(boxes, wanted)


def test_keypoints_are_scaled_side_by_side():
    points = torch.tensor([[[10.0, 20, 1]]])
    assert OURS.rescale_keypoints(points, (50, 100), (100, 100)).tolist() == [[[10, 40, 1]]]


@pytest.mark.parametrize("convention", CONVENTIONS.values(), ids=lambda c: c.name)
def test_masks_are_pasted(convention):
    boxes = torch.tensor([[3.2, 4.7, 20.1, 30.9], [5, 2, 31, 40]])
    probs, size = torch.rand(2, 28, 28), (50, 40)
    frames = boxes - torch.tensor([0, 0, 1, 1]) if convention.inclusive_boxes else boxes
    if convention.mask_paste == "whole-pixels":
        frames = whole_pixel_boxes(frames, 28)
    wanted = paste_probabilities(probs, frames, size)
    assert torch.equal(convention.paste_probs(probs, boxes, size), wanted)
    assert convention.paste_rle(probs, boxes, size, 0.3) == paste_masks(probs, frames, size, 0.3)


def test_config_names_a_convention():
    assert convention_of(load_config()) == OURS
    for name, convention in CONVENTIONS.items():
        assert convention_of(load_config(None, ["MODEL.CONVENTION", name])) == convention
    with pytest.raises(ConfigError, match="'detectron', but must be one of '', 'detlite'"):
        load_config(None, ["MODEL.CONVENTION", "detectron"])


def test_single_fields_are_overridden(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(
        "MODEL: {CONVENTION: torchvision, CONVENTION_OVERRIDE: [resize=floor, anchor_offset=1]}"
    )
    wanted = dataclasses.replace(CONVENTIONS["torchvision"], resize="floor", anchor_offset=1.0)
    assert convention_of(load_config(file)) == wanted
    one = load_config(None, ["MODEL.CONVENTION_OVERRIDE", "inclusive_boxes=True"])
    assert convention_of(one) == dataclasses.replace(OURS, inclusive_boxes=True)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("resiz=floor", "no field 'resiz'; did you mean resize"),
        ("qwx=1", "no field 'qwx'; there are inclusive_boxes, "),
        ("name=mine", "no field 'name'"),
        ("resize=down", "resize is 'down', but must be one of round, floor, interpolate"),
        ("resize", "resize is '', but must be one of"),
        ("inclusive_boxes=1", "inclusive_boxes is '1', but must be bool"),
        ("anchor_offset=True", "anchor_offset is 'True', but must be float"),
        ("anchor_offset=half", "anchor_offset is 'half', but must be float"),
    ],
)
def test_wrong_overrides_are_refused(assignment, message):
    with pytest.raises(ConfigError, match=rf"MODEL.CONVENTION_OVERRIDE.*{message}"):
        load_config(None, ["MODEL.CONVENTION_OVERRIDE", [assignment]])


def test_documentation_lists_every_field(repo_root):
    page = (repo_root / "docs" / "migrating.md").read_text()
    for field in dataclasses.fields(Convention)[1:]:
        values = [str(getattr(convention, field.name)) for convention in CONVENTIONS.values()]
        assert f"| `{field.name}` | {' | '.join(values)} |\n" in page
