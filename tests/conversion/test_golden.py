"""Recorded outputs of detectron2 and maskrcnn-benchmark, on two small pictures."""

from __future__ import annotations

import pytest

from tests.conversion.detection_differences import compare
from tests.conversion.recorded_outputs import GOLDEN, Golden


@pytest.mark.parametrize("name", GOLDEN)
def test_detections_are_the_recorded_ones(name, data_root):
    golden = Golden(data_root / "golden", name)
    found = golden.compare(golden.predictor(), "CD_raw")
    assert found.count > 50
    assert found.unmatched == 0
    assert found.box < 0.02
    assert found.score < 3e-4
    assert found.mask < 1e-3
    assert found.pixels < 1e-3
    assert found.keypoint < 0.02
    assert found.keypoint_score < 3e-4
    assert found.ties == 0


def test_a_difference_is_found(data_root):
    golden = Golden(data_root / "golden", "mrb_e2e_mask_rcnn_R_50_FPN_1x")
    theirs = golden.outputs("CD_raw", 0)
    moved = {**theirs, "boxes": theirs["boxes"] + 0.5, "scores": theirs["scores"] - 0.01}
    found = compare(moved, theirs)
    assert found.unmatched == 0
    assert found.box == pytest.approx(0.5, abs=1e-4)
    assert found.score == pytest.approx(0.01, abs=1e-4)
    relabelled = {**theirs, "labels": theirs["labels"] + 1}
    assert compare(relabelled, theirs).unmatched > len(theirs["boxes"])
