"""Short runs of the included configs on real data."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from yacs.config import CfgNode

from detlite.config import expand_path, load_config
from detlite.data import build_dataset, build_train_dataset
from detlite.engine.run import TrainingRun
from detlite.modeling.build import build_model

CONFIGS = Path(__file__).parents[1] / "configs"


@pytest.fixture
def load_real(data_root, tmp_path, monkeypatch):
    """Return a function that loads a config and keeps the first images of its test set."""
    monkeypatch.setenv("DETLITE_TEST_DATA", str(data_root))

    def load(name: str, *opts: Any, test_images: int) -> CfgNode:
        cfg = load_config(CONFIGS / name)
        root = expand_path(cfg.DATASETS.ROOT)
        entry = next(e for e in cfg.DATASETS.CATALOG if e["name"] == cfg.DATASETS.TEST[0])
        content = json.loads((root / entry["annotations"]).read_text())
        content["images"] = content["images"][:test_images]
        ids = {row["id"] for row in content["images"]}
        content["annotations"] = [a for a in content["annotations"] if a["image_id"] in ids]
        subset = tmp_path / "few.json"
        subset.write_text(json.dumps(content))
        catalog = [e for e in cfg.DATASETS.CATALOG if e is not entry]
        catalog.append({**entry, "annotations": str(subset)})
        run = ("OUTPUT_DIR", str(tmp_path), "DATASETS.CATALOG", catalog)
        batches = ("DATALOADER.NUM_WORKERS", 0, "TEST.IMS_PER_BATCH", 1)
        return load_config(CONFIGS / name, [*run, *batches, *opts])

    return load


def train_and_evaluate(cfg: CfgNode) -> dict[str, Any]:
    train_set = build_train_dataset(cfg)
    test_set = build_dataset(cfg, cfg.DATASETS.TEST[0], train=False)
    model = build_model(cfg)
    model.categories = train_set.categories
    return TrainingRun(cfg, model, train_set, [test_set]).train()[test_set.name]


@pytest.mark.slow
def test_coco_at_full_size(load_real, tmp_path):
    """80 categories with sparse ids, crowds, R-50-FPN, 800 pixels: one step and an evaluation."""
    cfg = load_real(
        "coco_open_mask_rcnn_R_50_FPN.yaml",
        *("SOLVER.MAX_ITER", 1, "SOLVER.IMS_PER_BATCH", 1, "MODEL.ROI_HEADS.SCORE_THRESH", 0.0),
        test_images=2,
    )
    metrics = train_and_evaluate(cfg)
    assert set(metrics) == {"bbox", "segm"}
    checkpoint = torch.load(tmp_path / "model_final.pth", weights_only=True)
    assert len(checkpoint["categories"]) == 80
    results = json.loads((tmp_path / "results_coco_open_val.json").read_text())
    ids = {category["id"] for category in checkpoint["categories"]}
    assert results
    assert {row["category_id"] for row in results} <= ids


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["nuclei_mask_rcnn_R_18_FPN.yaml", "bccd_faster_rcnn_R_18_FPN.yaml"]
)
def test_the_loss_decreases_within_a_few_steps(load_real, tmp_path, name):
    cfg = load_real(
        name,
        *("DTYPE", "float32", "INPUT.MIN_SIZE_TRAIN", (128,), "INPUT.MIN_SIZE_TEST", 128),
        *("SOLVER.MAX_ITER", 6, "SOLVER.LOG_PERIOD", 1, "SOLVER.IMS_PER_BATCH", 2),
        test_images=2,
    )
    train_and_evaluate(cfg)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]
