"""Converted models have the recorded outputs of detectron2 and maskrcnn-benchmark."""

import pytest

from tests.conversion.detection_differences import compare
from tests.conversion.recorded_outputs import GOLDEN, Golden


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_detections_equal_the_recorded_outputs(name, data_root):
    golden = Golden(data_root / "golden", name)
    difference = golden.compare(golden.predictor(), "CD_raw")
    difference.check(
        51, box=0.02, score=3e-4, mask=1e-3, pixels=1e-3, keypoint=0.02, keypoint_score=3e-4, ties=1
    )


def test_comparison_finds_differences(data_root):
    golden = Golden(data_root / "golden", "mrb_e2e_mask_rcnn_R_50_FPN_1x")
    expected = golden.outputs("CD_raw", 0)
    moved = {**expected, "boxes": expected["boxes"] + 0.5, "scores": expected["scores"] - 0.01}
    difference = compare(moved, expected)
    assert difference.unmatched == 0
    assert difference.box == pytest.approx(0.5, abs=1e-4)
    assert difference.score == pytest.approx(0.01, abs=1e-4)
    relabelled = {**expected, "labels": expected["labels"] + 1}
    assert compare(relabelled, expected).unmatched > len(expected["boxes"])
