"""Selection and results of checkpoints."""

import json
import os

import numpy as np
from pycocotools import mask as rle_codec

from benchmarks.learning_curve.checkpoints import coco_result, select_checkpoints, write_results


def test_selected_checkpoints_are_evenly_spaced(tmp_path):
    files = [tmp_path / f"model_{number}.pth" for number in range(7)]
    for number, file in enumerate(files):
        file.touch()
        os.utime(file, (1000 + number, 1000 + number))
    selected = select_checkpoints(reversed(files), 990.0, 3)
    assert selected == [(11.0, files[1]), (13.0, files[3]), (16.0, files[6])]
    assert len(select_checkpoints(files, 990.0, 20)) == 7


def test_results_of_checkpoints_are_written(tmp_path):
    mask = np.zeros((6, 8), bool)
    mask[1:4, 2:5] = True
    checkpoints = [(60.0, tmp_path / "a.pth"), (120.0, tmp_path / "b.pth")]
    write_results(tmp_path, checkpoints, lambda file: [coco_result(3, 7, 0.5, [2, 1, 5, 4], mask)])
    rows = json.loads((tmp_path / "checkpoints.json").read_text())
    assert [row["seconds"] for row in rows] == [60.0, 120.0]
    (result,) = json.loads((tmp_path / rows[1]["results"]).read_text())
    assert (result["image_id"], result["category_id"], result["score"]) == (3, 7, 0.5)
    assert result["bbox"] == [2.0, 1.0, 3.0, 3.0]
    assert (rle_codec.decode(result["segmentation"]) == mask).all()
