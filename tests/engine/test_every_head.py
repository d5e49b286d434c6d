"""Models learn on generated images."""

from pathlib import Path
from typing import Any

import pytest
import torch
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.data import build_dataset, build_train_dataset
from detlite.engine.evaluate import evaluate_dataset
from detlite.engine.run import TrainingRun
from detlite.inference.predictor import Predictor
from detlite.modeling.build import build_model
from tests.engine.toy import read_metrics


def run(cfg: CfgNode) -> tuple[list[dict[str, float]], dict[str, Any], Predictor]:
    """Train and evaluate; return the losses of each iteration, the metrics, and a predictor."""
    torch.manual_seed(1)
    model = build_model(cfg)
    train_set = build_train_dataset(cfg)
    model.categories = train_set.categories
    test_sets = [build_dataset(cfg, "plates", train=False)]
    metrics = TrainingRun(cfg, model, train_set, test_sets).train()["plates"]
    return read_metrics(cfg.OUTPUT_DIR), metrics, Predictor(model, cfg.INPUT.MIN_SIZE_TEST)


VIEWS = [
    "TEST.BBOX_AUG.ENABLED", True, "TEST.BBOX_AUG.H_FLIP", True, "TEST.BBOX_AUG.SCALES", (80,),
    "TEST.BBOX_AUG.SCALE_H_FLIP", True, "TEST.NMS.METHOD", "voting",
]  # fmt: skip


@pytest.mark.slow
def test_a_fast_rcnn_learns_from_the_proposals_of_a_proposal_network(plates_config, tmp_path):
    network = ["MODEL.META_ARCHITECTURE", "ProposalNetwork", "MODEL.MASK_ON", False]
    proposing = plates_config(*network, "SOLVER.MAX_ITER", 24)
    history, metrics, _ = run(proposing)
    assert history[-1]["loss"] < 0.8 * history[0]["loss"]
    assert list(metrics) == ["box_proposal"]
    assert metrics["box_proposal"]["ARl@1000"] is None
    files = (str(tmp_path / "results_plates.json"),)
    cfg = plates_config(
        "MODEL.LOAD_PROPOSALS", True, "DATASETS.PROPOSAL_FILES_TRAIN", files,
        "DATASETS.PROPOSAL_FILES_TEST", files, "SOLVER.MAX_ITER", 60, "SOLVER.IMS_PER_BATCH", 3,
        "OUTPUT_DIR", str(tmp_path / "fast"),
    )  # fmt: skip
    (tmp_path / "fast").mkdir()
    history, metrics, predictor = run(cfg)
    assert not {"loss_objectness", "loss_rpn_box"} & history[-1].keys()
    for name in ("loss_classifier", "loss_box", "loss_mask"):
        values = [row[name] for row in history]
        assert sum(values[-10:]) < 0.7 * sum(values[:10]), name
    assert metrics["bbox"]["AP50"] > 0.5
    assert metrics["segm"]["AP50"] > 0.5
    dataset = build_dataset(cfg, "plates", train=False)
    cfg = cfg.clone()
    cfg.defrost()
    cfg.TEST.BBOX_AUG.update(ENABLED=True, H_FLIP=True, SCALES=(80,), SCALE_H_FLIP=True)
    augmented = evaluate_dataset(cfg, predictor.model, dataset, Path(cfg.OUTPUT_DIR))
    assert augmented["bbox"]["AP50"] > 0.5
    image, target = dataset[0]
    [prediction] = predictor([image], [target["proposals"]])
    assert len(prediction["boxes"]) == len(predictor(image, target["proposals"])["boxes"]) > 0
    with pytest.raises(ValueError, match="has no RPN and needs proposals"):
        predictor(image)


@pytest.mark.slow
def test_keypoints_and_masks_are_learned(plates_config):
    cfg = plates_config(
        "MODEL.KEYPOINT_ON", True, "SOLVER.MAX_ITER", 150, "SOLVER.IMS_PER_BATCH", 3
    )
    history, metrics, predictor = run(cfg)
    for name in ("loss_keypoint", "loss_mask", "loss_classifier"):
        values = [row[name] for row in history]
        assert sum(values[-10:]) < 0.5 * sum(values[:10]), name
    cfg = plates_config("MODEL.KEYPOINT_ON", True, *VIEWS)
    dataset = build_dataset(cfg, "plates", train=False)
    augmented = evaluate_dataset(cfg, predictor.model, dataset, Path(cfg.OUTPUT_DIR))
    for kind in ("bbox", "segm", "keypoints"):
        assert metrics[kind]["AP50"] > 0.5, (kind, metrics[kind])
        assert augmented[kind]["AP50"] > 0.5, (kind, augmented[kind])


def test_the_keypoint_head_must_match_the_dataset(plates_config):
    cfg = plates_config("MODEL.KEYPOINT_ON", True, "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", 4)
    with pytest.raises(ConfigError, match=r"NUM_CLASSES is 4, but .* plates has 5 keypoints"):
        build_train_dataset(cfg)
