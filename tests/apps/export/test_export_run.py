"""Test the comparison of two sets of detections."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from detlite import build_model
from detlite.apps.export.export_run import Difference, compare
from detlite.apps.export.export_run import test_images as images_to_compare
from detlite.structures.instances import Detections


@pytest.fixture
def detections() -> Detections:
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 10], [5, 5, 20, 30]])
    return Detections(
        boxes,
        torch.tensor([0.9, 0.9, 0.5]),
        torch.tensor([1, 2, 1]),
        torch.ones(3, dtype=torch.bool),
        {"class_scores": torch.rand(3, 2), "features": torch.rand(3, 6) * 50},
        mask_probs=torch.rand(3, 4, 4),
    )


def test_order_does_not_matter(detections):
    assert compare(detections, detections[torch.tensor([2, 1, 0])]) == Difference(objects=3)


def test_difference_of_each_field(detections):
    third, masks = torch.tensor([[0.0], [0.0], [1.0]]), detections.mask_probs.clone()
    masks[1, 2, 3] += 0.5
    fields = detections.extra_fields
    for kind, change in (
        ("boxes", {"boxes": detections.boxes + 0.25 * third}),
        ("scores", {"scores": detections.scores + 0.25 * third[:, 0]}),
        ("scores", {"extra_fields": fields | {"class_scores": fields["class_scores"] + 0.25}}),
        ("masks", {"mask_probs": masks}),
    ):
        difference = compare(detections, replace(detections, **change))
        assert getattr(difference, kind) == pytest.approx(0.5 if kind == "masks" else 0.25)


def test_unmatched_objects(detections):
    assert compare(detections, detections[:2]) == Difference(objects=2, unmatched=1)
    assert compare(detections[:0], detections[:2]) == Difference(unmatched=2)
    relabelled = replace(detections, labels=torch.tensor([3, 2, 1]))
    assert compare(detections, relabelled) == Difference(objects=2, unmatched=2)
    far = replace(detections, boxes=detections.boxes + torch.tensor([[2.0], [0.0], [0.0]]))
    assert compare(detections, far) == Difference(objects=2, unmatched=2)


def test_objects_with_the_lowest_scores_do_not_count(detections):
    fewer = detections[:2]  # without the object of score 0.5
    assert compare(detections, fewer, 0.4) == Difference(objects=2, unmatched=1)
    for one, other in ((detections, fewer), (fewer, detections)):
        assert compare(one, other, 0.495) == Difference(objects=2, borderline=1)
    assert compare(fewer, detections[1:], 0.0, 2) == Difference(1, 1, 1)  # 0.9 is far above 0.5
    assert compare(fewer, detections[1:], 0.0, 3) == Difference(1, 2)


def test_union_and_limits():
    both = Difference(2, 0, 1, boxes=0.1) | Difference(3, 0, 4, scores=0.2, keypoints=0.3)
    assert both == Difference(5, 0, 5, boxes=0.1, scores=0.2, keypoints=0.3)
    assert both.within(boxes=0.3, scores=0.2, masks=0)
    assert not both.within(boxes=0.2, scores=0.2, masks=0)
    assert not both.within(boxes=0.3, scores=0.1, masks=0)
    assert not Difference(masks=0.5).within(1, 1, masks=0.4)
    assert not Difference(unmatched=1).within(1, 1, 1)


@pytest.mark.parametrize(
    ("channels", "images", "limit", "count"),
    [(5, 0, 9, 4), (3, 1, 9, 1), (3, 5, 2, 2), (3, 5, 3, 3), (3, 5, 4, 3), (3, 5, 9, 5)],
)
def test_compared_images(tiny_config, tmp_path, channels, images, limit, count):
    """Programs pad small images to `min_image_side`, which changes their detections."""
    for number in range(images):
        Image.new("L", (400, 20)).save(tmp_path / f"{number}.png")
    cfg = tiny_config(
        "INPUT.MIN_SIZE_TEST", 64, "INPUT.MAX_SIZE_TEST", 100,
        "INPUT.PIXEL_MEAN", [0.5] * channels, "INPUT.PIXEL_STD", [0.2] * channels,
    )  # fmt: skip
    model = build_model(cfg)
    compared = images_to_compare(cfg, model, tmp_path if images else None, limit)
    assert len(compared) == count + 3  # a blank one, and two other sizes
    assert {len(image) for image in compared} == {channels}
    assert all(min(x.shape[1:]) >= model.backbone.min_image_side for x in compared)
