"""The loss on a test set: what it is, what it leaves alone, and what looks at it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from detlite.config import ConfigError
from detlite.conversion.checkpoint.files import read_checkpoint
from detlite.data import DataError, build_dataset
from detlite.engine.evaluate import evaluate
from detlite.engine.hooks.best_checkpoint import BestCheckpoint
from detlite.engine.rng import seed_all
from detlite.engine.trainer import train
from detlite.engine.validation_loss import validation_loss
from detlite.modeling.build import build_model


def test_it_is_the_mean_over_images(make_cfg, toy):
    cfg = make_cfg("INPUT.HORIZONTAL_FLIP_PROB_TRAIN", 1.0)
    toy.noise = 0.0
    found = validation_loss(cfg, toy, "val")
    assert list(found) == ["total", "classifier", "box"]
    assert found["total"] == pytest.approx(found["classifier"] + found["box"])
    # The toy's input is of one size anyway; boxes are those of the image that it is given.
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
        mean = sum(losses[f"loss_{name}"] for losses in alone) / len(alone)
        assert found[name] == pytest.approx(mean, rel=0.02)


def test_it_leaves_the_model_and_the_generators_alone(make_cfg, toy):
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
    assert validation_loss(cfg, toy, "val") == first  # the toy is random
    assert all(parameter.grad is None for parameter in toy.parameters())


@pytest.fixture
def run(make_cfg, make_sets, toy):
    """Trains the toy by a config with some overrides; returns the config."""

    def start(*opts):
        cfg = make_cfg(*opts)
        torch.manual_seed(0)
        model = type(toy)()
        train_set, test_sets = make_sets(cfg)
        model.categories = train_set.categories
        seed_all(0)
        train(cfg, model, train_set, test_sets)
        return cfg

    return start


def rows(cfg):
    lines = (Path(cfg.OUTPUT_DIR) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_training_goes_on_as_without_it(run, tmp_path):
    finals, losses = [], []
    for loss in (True, False):
        folder = tmp_path / str(loss)
        opts = ["TEST.LOSS", loss, "SOLVER.TEST_PERIOD", 1, "DATALOADER.NUM_WORKERS", 0]
        cfg = run(*opts, "OUTPUT_DIR", str(folder))
        finals.append(read_checkpoint(folder / "model_final.pth"))
        losses.append([row["loss"] for row in rows(cfg) if "loss" in row])
        evaluations = [row["evaluation"]["val"] for row in rows(cfg) if "evaluation" in row]
        assert len(evaluations) == 4
        assert all(("loss" in kinds) == loss for kinds in evaluations)
        assert ("loss" in json.loads((folder / "evaluation.json").read_text())) == loss
    assert losses[0] == losses[1]
    torch.testing.assert_close(finals[0].model, finals[1].model, rtol=0, atol=0)
    drawn = [final.training["rng"][0]["torch"] for final in finals]
    assert torch.equal(*drawn)


def test_the_best_loss_is_kept(run):
    opts = ["TEST.LOSS", True, "SOLVER.BEST_METRIC", "loss/total", "SOLVER.EMA_DECAY", 0.5]
    cfg = run(*opts, "SOLVER.TEST_PERIOD", 1, "SOLVER.MAX_ITER", 6)
    totals = {
        row["iteration"]: row["evaluation"]["val"]["loss"]["total"]
        for row in rows(cfg)
        if "evaluation" in row
    }
    assert len(set(totals.values())) == 6
    best = read_checkpoint(Path(cfg.OUTPUT_DIR) / "model_best.pth")
    assert best.training["iteration"] == min(totals, key=totals.__getitem__)
    averaged = [row["evaluation"]["val average"] for row in rows(cfg) if "evaluation" in row]
    assert {kinds["loss"]["total"] for kinds in averaged}.isdisjoint(totals.values())


def test_patience_waits_for_a_lower_loss(tmp_path):
    best, out = BestCheckpoint("val/loss/total", patience=2), []
    for number, value in enumerate([3.0, 2.0, None, 1.0, 1.5, 1.0]):
        (tmp_path / f"{number}").write_text(str(number))
        best.update({"val": {"loss": {"total": value}}}, tmp_path / f"{number}")
        out.append(best.is_out_of_patience)
    assert (best.value, out) == (1.0, [False] * 5 + [True])
    assert (tmp_path / "model_best.pth").read_text() == "3"


def test_a_loss_that_is_not_finite_is_none(make_cfg, toy, tmp_path):
    cfg = make_cfg("TEST.LOSS", True)
    forward = toy.forward
    toy.forward = lambda *batch: forward(*batch) | {"loss_box": torch.tensor(math.nan)}
    toy.categories = build_dataset(cfg, "val", train=False).categories
    metrics = evaluate(cfg, toy, [build_dataset(cfg, "val", train=False)], tmp_path)
    assert metrics["val"]["loss"]["box"] is metrics["val"]["loss"]["total"] is None
    assert metrics["val"]["loss"]["classifier"] > 0


def test_a_set_without_annotations_is_refused_before_training(run, blocks, make_cfg):
    content = json.loads((blocks / "blocks.json").read_text())
    (blocks / "bare.json").write_text(json.dumps(content | {"annotations": []}))
    entries = [
        {"name": "train", "annotations": "blocks.json", "images": "."},
        {"name": "val", "annotations": "bare.json", "images": "."},
    ]
    with pytest.raises(DataError, match="has no annotations of its pictures"):
        run("TEST.LOSS", True, "DATASETS.CATALOG", entries)
    assert not (Path(make_cfg().OUTPUT_DIR) / "metrics.jsonl").exists()


def test_the_metric_needs_the_key(run):
    with pytest.raises(ConfigError, match="BEST_METRIC loss/total is not among the metrics"):
        run("SOLVER.BEST_METRIC", "loss/total")


SHARED = """
import json, yaml
from detlite.config import config_from
from detlite.distributed import process_group, rank
from detlite.engine.validation_loss import validation_loss
from detlite.modeling.build import build_model
import torch

cfg = config_from(yaml.safe_load(open("config.yaml")), "config.yaml")
with process_group("cpu"):
    torch.manual_seed(0)
    model = build_model(cfg)
    torch.manual_seed(rank())
    found = validation_loss(cfg, model, "plates")
    if rank() == 0:
        print(json.dumps(found))
"""


def test_two_processes_find_what_one_finds(plates_config, in_two_processes, tmp_path):
    """A whole Mask R-CNN with keypoints, which samples its boxes at random."""
    cfg = plates_config("MODEL.KEYPOINT_ON", True, "TEST.IMS_PER_BATCH", 4, "MODEL.DEVICE", "cpu")
    torch.manual_seed(0)
    found = validation_loss(cfg, build_model(cfg), "plates")
    assert {"mask", "keypoint", "objectness", "rpn_box", "box"} < set(found)
    (tmp_path / "config.yaml").write_text(cfg.dump())
    assert json.loads(in_two_processes(SHARED)) == pytest.approx(found, rel=1e-6)
