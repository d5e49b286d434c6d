"""Train converted checkpoints without a config."""

import pytest
import torch

import detlite
from detlite.config import load_config
from tests.conversion.recorded_state_dicts import state_dict

MODELS = (
    "detectron2, FPN", "detectron2, cascade", "detectron2, RetinaNet", "maskrcnn-benchmark, FPN",
    "torchvision, RetinaNet", "caffe2, C4",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("without_drawings")
@pytest.mark.parametrize("name", MODELS)
def test_training_without_a_config(name, make_coco_dataset, tmp_path):
    torch.manual_seed(0)
    state = state_dict(name)
    torch.save(state if name.startswith("torchvision") else {"model": state}, tmp_path / "w.pth")
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
    masks = "RetinaNet" not in name
    kind = "segm" if masks else "bbox"
    assert cfg.SOLVER.BEST_METRIC.split("/") == [kind, "AP"]
    assert ("segm" in result.metrics["test"]) == masks
    assert cfg.MODEL.BACKBONE.FREEZE_NORM_BELOW == 16
