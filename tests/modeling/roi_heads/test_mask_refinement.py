from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO
from torch.nn import functional as F

from detlite import build_model
from detlite.conventions import CONVENTIONS
from detlite.evaluation import evaluate_coco, to_coco_results
from detlite.evaluation.results import concatenate_results
from detlite.modeling.roi_heads.mask_refinement import (
    MaskRefinement,
    mean_foreground,
    tight_boxes,
)
from detlite.structures import boxes as box_ops
from detlite.structures.instances import Detections
from detlite.structures.masks.pasting import paste_probabilities
from tests.builders import coco_content, make_coco

OURS = CONVENTIONS["detlite"]


def blobs(count: int, cells: int = 7) -> torch.Tensor:
    """Return smooth masks of different shapes and sizes."""
    coarse = torch.rand(count, 1, 4, 4) ** 2
    smooth = F.interpolate(coarse, size=(cells, cells), mode="bilinear")[:, 0]
    return smooth / smooth.amax(dim=(1, 2), keepdim=True)


def pasted_box(mask: torch.Tensor, box: torch.Tensor, threshold: float) -> list[float]:
    """Paste a mask into many pixels and find its foreground pixel by pixel."""
    pasted = paste_probabilities(mask[None], box[None], (800, 900))[0] >= threshold
    rows, columns = pasted.any(dim=1).nonzero(), pasted.any(dim=0).nonzero()
    return [float(x) for x in (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)]


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8])
def test_tight_boxes_are_those_of_pasted_masks(threshold, device):
    masks = blobs(20)
    boxes = torch.tensor([100.0, 60.0, 730.0, 690.0]).repeat(20, 1) + torch.rand(20, 4) * 50
    tight, found = tight_boxes(masks.to(device), boxes.to(device), threshold, OURS)
    assert found.all()
    for mask, box, actual in zip(masks, boxes, tight.cpu(), strict=True):
        expected = pasted_box(mask, box, threshold)
        assert actual.tolist() == pytest.approx(expected, abs=1.01)  # pixels; a cell has about 90


@pytest.mark.parametrize("name", CONVENTIONS)
def test_full_mask_has_the_box_itself(name):
    boxes = torch.tensor([[3.0, 4.0, 40.0, 30.0], [0.0, 0.0, 9.0, 70.5]])
    tight, found = tight_boxes(torch.ones(2, 28, 28), boxes, 0.5, CONVENTIONS[name])
    torch.testing.assert_close(tight, boxes, atol=1e-4, rtol=0)
    assert found.all()


def test_single_cell_and_empty_mask():
    masks = torch.zeros(2, 10, 10)
    masks[0, 9, 0] = 1  # bottom left
    tight, found = tight_boxes(masks, torch.tensor([[0.0, 0.0, 100.0, 50.0]] * 2), 0.5, OURS)
    assert found.tolist() == [True, False]
    torch.testing.assert_close(tight[0], torch.tensor([0.0, 45.0, 10.0, 50.0]))


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.9])
def test_mean_foreground_matches_a_loop(threshold):
    masks = torch.cat([blobs(6), blobs(2) * 0.2])
    for mask, actual in zip(masks, mean_foreground(masks, threshold).tolist(), strict=True):
        cells = mask.flatten().tolist()
        inside = [p for p in cells if p >= threshold] or [max(cells)]
        assert actual == pytest.approx(sum(inside) / len(inside), rel=1e-5)


def detections(count: int = 6) -> Detections:
    low = torch.rand(2, count, 2) * 30
    boxes = torch.cat([low, low + 20 + torch.rand(2, count, 2) * 30], dim=2)
    scores = torch.rand(2, count).sort(descending=True).values
    valid = torch.arange(count) < torch.tensor([[count], [count - 2]])
    masks = torch.stack([blobs(count), blobs(count)]) * 0.9
    return Detections(boxes, scores, torch.randint(1, 4, (2, count)), valid, mask_probs=masks)


SIZES = torch.tensor([[60, 64], [90, 90]])
CATEGORIES = [{"id": number, "name": str(number)} for number in (1, 2, 3)]


def ground_truth(rows: list[dict[str, Any]]) -> COCO:
    """Return images of 90 x 90 pixels whose objects are detections."""
    return make_coco(coco_content(rows, range(30), (90, 90), ("1", "2", "3")))


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_boxes_move_to_their_masks(weight):
    before = detections()
    before.mask_probs[0, 1] = 0.1  # empty
    after = MaskRefinement(weight, 0.0, 0.5, OURS)(before, SIZES)
    assert torch.equal(after.mask_boxes, before.boxes)
    assert torch.equal(after.pasting_boxes, before.boxes)
    assert torch.equal(after.boxes[0, 1], before.boxes[0, 1])
    for image in range(2):
        tight, found = tight_boxes(before.mask_probs[image], before.boxes[image], 0.5, OURS)
        expected = before.boxes[image] * (1 - weight) + tight * weight
        expected = box_ops.clip(expected, tuple(SIZES[image].tolist()), OURS)
        torch.testing.assert_close(after.boxes[image][found], expected[found])
    assert torch.equal(after.scores, before.scores)


@pytest.mark.parametrize("exponent", [0.5, 2.0])
def test_uncertain_masks_have_lower_scores(exponent):
    before = detections()
    after = MaskRefinement(0.0, exponent, 0.5, OURS)(before, SIZES)
    assert after.mask_scores.dtype == torch.float32
    for image in range(2):
        confidence = mean_foreground(before.mask_probs[image], 0.5)
        expected = before.scores[image] * confidence**exponent
        torch.testing.assert_close(after.mask_scores[image], expected)
    # Other fields do not change.
    assert all(
        value is before_value
        for field in fields(Detections)
        if field.name != "mask_scores"
        for value, before_value in [(getattr(after, field.name), getattr(before, field.name))]
    )


def test_masks_are_ranked_by_the_mask_score_alone():
    """Mask AP equals the AP of detections with the mask score as their only score."""
    results, single = [], []
    for image in range(30):
        plain = detections(20)
        scored = MaskRefinement(0.0, 1.0, 0.5, OURS)(plain, SIZES)
        one = scored[0]
        order = one.mask_scores.argsort(descending=True, stable=True)
        args = (90, 90), (90, 90), CATEGORIES
        results.append(to_coco_results(one, image, *args))
        ordered = replace(one, scores=one.mask_scores, mask_scores=None)[order]
        single.append(to_coco_results(ordered, image, *args))
    both, one_score = concatenate_results(results), concatenate_results(single)
    confidence = both.mask_scores / both.scores
    kept = confidence > np.median(confidence)
    truth = ground_truth([row for row, keep in zip(both.to_coco(), kept, strict=True) if keep])
    actual = evaluate_coco(truth, both)
    without = evaluate_coco(truth, replace(both, mask_scores=None))
    expected = evaluate_coco(truth, one_score)["segm"]
    assert actual["bbox"] == without["bbox"]
    assert 0.1 < actual["segm"]["AP"] < 0.9
    assert actual["segm"]["AP"] > without["segm"]["AP"] + 0.01
    assert actual["segm"].pop("best_f1") != expected.pop(
        "best_f1"
    )  # of the score, not of the mask score
    assert actual["segm"] == expected


def test_masks_in_the_image_do_not_move(tiny_config):
    settings = ["MODEL.ROI_HEADS.SCORE_THRESH", 0.0]
    torch.manual_seed(0)
    plain = build_model(tiny_config(*settings)).eval()
    refined = build_model(tiny_config(*settings, "TEST.BOX_FROM_MASK", 0.5)).eval()
    refined.load_state_dict(plain.state_dict())
    images = [torch.rand(3, 64, 96), torch.rand(3, 80, 72)]
    with torch.no_grad():
        for one, other in zip(plain(images), refined(images), strict=True):
            assert torch.equal(one["masks"], other["masks"])
            assert not torch.equal(one["boxes"], other["boxes"])
            assert torch.equal(one["scores"], other["scores"])


def test_rescaling_moves_both_boxes():
    both = detections()[0]
    both = replace(both, mask_boxes=both.boxes / 2)
    larger = both.rescale((60, 64), (120, 128), OURS)
    torch.testing.assert_close(larger.mask_boxes, both.mask_boxes * 2)


def test_a_model_without_masks_has_no_refinement(tiny_config):
    without = build_model(tiny_config("MODEL.MASK_ON", False, "TEST.MASK_CONFIDENCE", 1.0))
    assert without.mask_refinement is None  # like the keys of the mask head
