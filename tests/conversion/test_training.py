"""Train converted checkpoints without a config."""

import pytest
import torch

import detlite
from detlite.config import load_config
from tests.conversion.synthetic_state_dicts import (
    caffe2_c4,
    cascade,
    detectron2,
    maskrcnn_benchmark,
    retinanet,
)

STATES = {
    "detectron2": detectron2,
    "detectron2, cascade": cascade,
    "detectron2, RetinaNet": lambda: retinanet("detectron2"),
    "maskrcnn-benchmark": maskrcnn_benchmark,
    "torchvision, RetinaNet": lambda: retinanet("torchvision"),
    "Detectron, C4": caffe2_c4,
}


FAST = ("detectron2, cascade", "torchvision, RetinaNet")


@pytest.mark.slow
@pytest.mark.usefixtures("without_drawings")
@pytest.mark.parametrize(
    "source", [*FAST, *(pytest.param(n, marks=pytest.mark.slow) for n in STATES if n not in FAST)]
)
def test_training_without_a_config(source, make_coco_dataset, tmp_path):
    torch.manual_seed(0)
    # Smaller weights keep the outputs finite.
    state = {
        name: 0.05 * value if name.endswith((".weight", "_w")) and value.dim() > 1 else value
        for name, value in STATES[source]().items()
    }
    torch.save(state if source.startswith("torchvision") else {"model": state}, tmp_path / "w.pth")
    data = make_coco_dataset(images=2, size=(64, 96))
    result = detlite.train(
        data=data,
        test_data=data,
        weights=tmp_path / "w.pth",
        output_dir=tmp_path / "run",
        overrides={
            "MODEL.DEVICE": "cpu",
            "SOLVER.MAX_ITER": 1,
            "DATALOADER.NUM_WORKERS": 0,
            "MODEL.RPN.PRE_NMS_TOP_N_TEST": 100,
            "MODEL.RPN.POST_NMS_TOP_N_TEST": 20,
            "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 20,
        },
    )
    cfg = load_config(tmp_path / "run" / "config.yaml")
    masks = "RetinaNet" not in source
    kind = "segm" if masks else "bbox"
    assert cfg.SOLVER.BEST_METRIC.split("/") == [kind, "AP"]
    assert ("segm" in result.metrics["test"]) == masks
    assert cfg.MODEL.BACKBONE.FREEZE_NORM_BELOW == 16
