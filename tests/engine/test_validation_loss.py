"""The validation loss: its value, its side effects, and its use as the best metric."""

import json
import math
from pathlib import Path

import pytest
import torch

from detlite.config import ConfigError
from detlite.conversion.checkpoint.files import read_checkpoint
from detlite.data import DataError, build_dataset
from detlite.engine.evaluate import evaluate
from detlite.engine.validation_loss import validation_loss
from detlite.modeling.build import build_model
from tests.engine.toy import read_metrics


def test_the_loss_is_the_mean_over_images(make_cfg, toy):
    cfg = make_cfg("INPUT.HORIZONTAL_FLIP_PROB_TRAIN", 1.0)
    toy.noise = 0.0
    losses = validation_loss(cfg, toy, "val")
    assert list(losses) == ["total", "classifier", "box"]
    assert losses["total"] == pytest.approx(losses["classifier"] + losses["box"])
    # The toy's input has a fixed size, but its boxes are those of the resized image.
    dataset = build_dataset(cfg, "val", train=True)
    alone = []
    for index in range(len(dataset)):
        image, target = dataset[index]
        scale = 40 / min(image.shape[1:])
        size = [round(scale * side) for side in image.shape[1:]]
        resized = torch.nn.functional.interpolate(image[None].float(), size)[0]
        target["boxes"] = target["boxes"] * scale
        alone.append({k: v.item() for k, v in toy([resized], [target]).items()})
    for name in ("classifier", "box"):
        mean = sum(one[f"loss_{name}"] for one in alone) / len(alone)
        assert losses[name] == pytest.approx(mean, rel=0.02)


def test_the_model_and_the_generators_are_unchanged(make_cfg, toy):
    cfg = make_cfg()
    before = {name: value.clone() for name, value in toy.state_dict().items()}
    generator = torch.get_rng_state()
    for training in (True, False):
        toy.train(training)
        first = validation_loss(cfg, toy, "val")
        assert toy.training == toy.norm.training == training
    assert torch.equal(torch.get_rng_state(), generator)
    torch.testing.assert_close(dict(toy.state_dict()), before, rtol=0, atol=0)
    torch.rand(5)
    assert validation_loss(cfg, toy, "val") == first  # although the toy is random
    assert all(parameter.grad is None for parameter in toy.parameters())


def test_training_is_the_same_with_and_without_it(train_toy, tmp_path):
    finals, losses = [], []
    for loss in (True, False):
        folder = tmp_path / str(loss)
        opts = ["TEST.LOSS", loss, "SOLVER.TEST_PERIOD", 1, "DATALOADER.NUM_WORKERS", 0]
        train_toy(*opts, "OUTPUT_DIR", str(folder))
        finals.append(read_checkpoint(folder / "model_final.pth"))
        losses.append([row["loss"] for row in read_metrics(folder)])
        rows = read_metrics(folder, "evaluation")
        evaluations = [row["evaluation"]["val"] for row in rows]
        assert len(evaluations) == 4
        assert all(("loss" in kinds) == loss for kinds in evaluations)
        assert ("loss" in json.loads((folder / "evaluation.json").read_text())) == loss
    assert losses[0] == losses[1]
    torch.testing.assert_close(finals[0].model, finals[1].model, rtol=0, atol=0)
    drawn = [final.training["rng"][0]["torch"] for final in finals]
    assert torch.equal(*drawn)


def test_the_checkpoint_with_the_lowest_loss_is_the_best(train_toy):
    opts = ["TEST.LOSS", True, "SOLVER.BEST_METRIC", "loss/total", "SOLVER.EMA_DECAY", 0.5]
    cfg, _ = train_toy(*opts, "SOLVER.TEST_PERIOD", 1, "SOLVER.MAX_ITER", 6)
    rows = read_metrics(cfg.OUTPUT_DIR, "evaluation")
    totals = {row["iteration"]: row["evaluation"]["val"]["loss"]["total"] for row in rows}
    assert len(set(totals.values())) == 6
    best = read_checkpoint(Path(cfg.OUTPUT_DIR) / "model_best.pth")
    assert best.training["iteration"] == min(totals, key=totals.__getitem__)
    averaged = [row["evaluation"]["val average"] for row in rows]
    assert {kinds["loss"]["total"] for kinds in averaged}.isdisjoint(totals.values())


def test_a_non_finite_loss_is_none(make_cfg, toy, tmp_path):
    cfg = make_cfg("TEST.LOSS", True)
    forward = toy.forward
    toy.forward = lambda *batch: forward(*batch) | {"loss_box": torch.tensor(math.nan)}
    toy.categories = build_dataset(cfg, "val", train=False).categories
    metrics = evaluate(cfg, toy, [build_dataset(cfg, "val", train=False)], tmp_path)
    assert metrics["val"]["loss"]["box"] is metrics["val"]["loss"]["total"] is None
    assert metrics["val"]["loss"]["classifier"] > 0


def test_a_set_without_annotations_is_refused_before_training(train_toy, blocks, make_cfg):
    content = json.loads((blocks / "blocks.json").read_text())
    (blocks / "bare.json").write_text(json.dumps(content | {"annotations": []}))
    entries = [
        {"name": "train", "annotations": "blocks.json", "images": "."},
        {"name": "val", "annotations": "bare.json", "images": "."},
    ]
    with pytest.raises(DataError, match="has no annotations, so nothing can be evaluated"):
        train_toy("TEST.LOSS", True, "DATASETS.CATALOG", entries)
    assert not (Path(make_cfg().OUTPUT_DIR) / "metrics.jsonl").exists()


def test_the_best_loss_needs_test_loss(train_toy):
    with pytest.raises(ConfigError, match="BEST_METRIC loss/total is not among the metrics"):
        train_toy("SOLVER.BEST_METRIC", "loss/total")


SHARED = """
import json, yaml
from detlite.config import config_from
from detlite.distributed import process_group, rank
from detlite.engine.validation_loss import validation_loss
from detlite.modeling.build import build_model
from tests.engine.toy import read_metrics
import torch

cfg = config_from(yaml.safe_load(open("config.yaml")), "config.yaml")
with process_group("cpu"):
    torch.manual_seed(0)
    model = build_model(cfg)
    torch.manual_seed(rank())
    losses = validation_loss(cfg, model, "plates")
    if rank() == 0:
        print(json.dumps(losses))
"""


def test_two_processes_compute_the_same_loss_as_one(plates_config, in_two_processes, tmp_path):
    """A Mask R-CNN samples boxes at random."""
    cfg = plates_config("MODEL.KEYPOINT_ON", True, "TEST.IMS_PER_BATCH", 4, "MODEL.DEVICE", "cpu")
    torch.manual_seed(0)
    losses = validation_loss(cfg, build_model(cfg), "plates")
    assert {"mask", "keypoint", "objectness", "rpn_box", "box"} < set(losses)
    (tmp_path / "config.yaml").write_text(cfg.dump())
    assert json.loads(in_two_processes(SHARED)) == pytest.approx(losses, rel=1e-6)
