"""Timing of training steps."""

import itertools

from detlite.apps.autoconfig.step_timing import step_seconds


def test_steps_are_timed_and_no_file_is_written(tiny_config, make_coco_dataset, tmp_path):
    annotations, images = make_coco_dataset()
    entry = {"name": "mine", "annotations": str(annotations), "images": str(images)}
    cfg = tiny_config(
        "DATASETS.CATALOG", [entry], "DATASETS.TRAIN", ["mine"], "SOLVER.IMS_PER_BATCH", 2,
        "DATALOADER.NUM_WORKERS", 0, "OUTPUT_DIR", str(tmp_path / "run"),
        "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3, "INPUT.MIN_SIZE_TRAIN", (64,),
    )  # fmt: skip
    ticks = (number**2 for number in itertools.count())
    # The clock is read before and after each step: 0, 1, 4, 9, 16, 25, ...
    assert step_seconds(cfg, steps=2, warm_up=1, clock=lambda: next(ticks)) == [5, 9]
    assert not (tmp_path / "run").exists()
