"""Averaged weights, the best checkpoint, and early stopping."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from torch import nn

from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.files import read_checkpoint, save_checkpoint
from detlite.config import ConfigError
from detlite.engine.hooks import Hook
from detlite.engine.hooks.best_checkpoint import BestCheckpoint, store_score_threshold
from detlite.engine.hooks.ema import ModelEMA
from detlite.evaluation import MetricValue
from tests.engine.toy import assert_equal, read_metrics

LOW = partial(MetricValue, lower_is_better=True)


@pytest.mark.parametrize(
    ("metric", "values", "kept"),
    [
        ("bbox/AP", [None, 0.1, 0.3, 0.2, 0.3], 2),
        ("val/bbox/AP", [0.1, 0.0, 0.2, 0.1, 0.2], 2),
        ("val/loss/total", [*map(LOW, (3.0, 2.0)), None, *map(LOW, (1.0, 1.5, 1.0))], 3),
        ("", [0.5], None),
    ],
)
def test_the_best_value_is_kept_until_patience_ends(tmp_path, metric, values, kept):
    kind, name = (metric or "bbox/AP").split("/")[-2:]
    best, untiring, resumed = (BestCheckpoint(metric, patience) for patience in (2, 0, 2))
    schedule, finished = SimpleNamespace(is_last=False), []
    for number, value in enumerate(values):
        checkpoint = tmp_path / f"{number}"
        checkpoint.write_text(str(number))
        for hook in (untiring, best):
            hook.trainer = SimpleNamespace(
                checkpoint=checkpoint, schedule=schedule, test_sets=(),
                finish=lambda hook=hook, number=number: finished.append((hook, number)),
            )  # fmt: skip
            hook.after_evaluation({"val": {kind: {name: value}}, "other": {kind: {name: 9.0}}})
    file = tmp_path / "model_best.pth"
    assert (file.read_text() if file.exists() else None) == (str(kept) if metric else None)
    assert finished == ([(best, len(values) - 1)] if metric else [])
    resumed.load_state_dict(best.state_dict())
    resumed.trainer = best.trainer
    resumed.before_train()
    assert len(finished) == 2 * bool(metric)
    assert resumed.value == best.value == (values[kept] if metric else None)


@pytest.mark.parametrize(
    ("metric", "problem"),
    [
        ("bbox/ap", "bbox/ap is not among the metrics: val/bbox/AP, val/bbox/AP50, "),
        ("other/bbox/AP", "other/bbox/AP is not among the metrics: val/bbox/AP"),
        ("bbox/per_category", "bbox/per_category is not among the metrics: val/bbox/AP"),
        ("val average/bbox/AP", "val average/bbox/AP is not among the metrics: val/bbox/AP"),
    ],
)
def test_an_unknown_metric_is_an_error_before_training(train_toy, toy, metric, problem):
    toy.forward = None
    with pytest.raises(ConfigError, match=f"BEST_METRIC {problem}"):
        train_toy("SOLVER.BEST_METRIC", metric, model=toy)


def test_an_undefined_metric_does_not_end_a_run(train_toy, caplog):
    """There are no large objects."""
    opts = ["SOLVER.BEST_METRIC", "bbox/APl", "SOLVER.PATIENCE", 1, "SOLVER.TEST_PERIOD", 1]
    cfg, _ = train_toy(*opts)
    assert len(read_metrics(cfg.OUTPUT_DIR)) == 4
    assert "BEST_METRIC bbox/APl is undefined, because the test set has no such" in caplog.text
    early = "BEST_METRIC bbox/APl is undefined without detections. If the test set has no such"
    assert early in caplog.messages[0]


class CountsErrors(Hook):
    """Adds a metric that is better when it is lower, and grows."""

    error = 0.0

    def after_evaluation(self, metrics):
        self.error += 1
        metrics["val"]["counts"] = {"error": LOW(self.error)}


def test_metrics_of_hooks_are_written_and_can_be_the_best(train_toy):
    opts = ["SOLVER.BEST_METRIC", "counts/error", "SOLVER.TEST_PERIOD", 1]
    cfg, metrics = train_toy(*opts, hooks=[CountsErrors()])
    folder = Path(cfg.OUTPUT_DIR)
    written = json.loads((folder / "evaluation.json").read_text())
    assert written["counts"] == metrics["val"]["counts"] == {"error": 4.0}
    assert read_checkpoint(folder / "model_best.pth").training["iteration"] == 1


def test_the_best_averaged_weights_are_kept_as_weights(train_toy):
    opts = ["SOLVER.EMA_DECAY", 0.5, "SOLVER.BEST_METRIC", "val average/bbox/AP"]
    cfg, metrics = train_toy(*opts)
    assert list(metrics) == ["val", "val average"]
    folder = Path(cfg.OUTPUT_DIR)
    assert (folder / "average" / "evaluation.json").exists()
    best, final = (read_checkpoint(folder / f"model_{name}.pth") for name in ("best", "final"))
    average = read_checkpoint(folder / "model_final_average.pth").model
    assert_equal(best.model, average)
    assert_equal(final.training["hooks"]["ModelEMA"]["values"], average)
    assert not torch.equal(final.model["body.weight"], average["body.weight"])
    assert not best.training
    assert best.categories


def test_the_config_of_the_evaluated_checkpoint_has_the_threshold(tiny_config, tmp_path):
    cfg = tiny_config()
    final, average = tmp_path / "model_final.pth", tmp_path / "model_final_average.pth"
    for path in (final, average):
        weights = {"backbone.a": torch.arange(3.0)}
        saved = Checkpoint(path, weights, config=cfg.dump(), training={"iteration": 7})
        save_checkpoint(saved, last=path == final)
    run = SimpleNamespace(checkpoint=final, cfg=cfg, test_sets=[SimpleNamespace(name="val")])
    boxes, masks = ({"best_f1": {"score": score}} for score in (0.9, 0.43216))
    store_score_threshold(run, {"val": {"bbox": boxes, "segm": masks}, "val (average)": {}})
    checkpoint = read_checkpoint(final)
    assert yaml.safe_load(checkpoint.config)["TEST"]["SCORE_THRESHOLD"] == 0.4322
    assert checkpoint.training == {"iteration": 7}
    assert torch.equal(checkpoint.model["backbone.a"], torch.arange(3.0))
    stored = yaml.safe_load(read_checkpoint(average).config)["TEST"]["SCORE_THRESHOLD"]
    assert stored == cfg.TEST.SCORE_THRESHOLD == 0
    assert (tmp_path / "last_checkpoint").read_text() == "model_final.pth\n"
    store_score_threshold(run, {"val": {"bbox": {}}})  # nothing was detected
    assert yaml.safe_load(read_checkpoint(final).config)["TEST"]["SCORE_THRESHOLD"] == 0.4322


def test_updates_follow_the_formula():
    model = nn.BatchNorm1d(2)
    ema = ModelEMA(model, 0.2)
    expected = {name: value.double().clone() for name, value in model.state_dict().items()}
    for number in range(9):
        with torch.no_grad():
            for value in model.parameters():
                value.copy_(torch.randn(2))
        model(torch.randn(4, 2))
        ema.after_step({})
        decay = min(0.2, (1 + number) / (10 + number))
        for name, value in model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * value.double()
    expected["num_batches_tracked"] = model.num_batches_tracked
    for name, value in ema.values.items():
        torch.testing.assert_close(value.double(), expected[name].double(), rtol=1e-6, atol=1e-6)
    assert ema.values["num_batches_tracked"] == 9
    before, average = model.weight.detach().clone(), ema.values["weight"].clone()
    with ema.applied():
        assert torch.equal(model.weight, average)
    assert torch.equal(model.weight, before)
    assert torch.equal(ema.values["weight"], average)
    assert model.weight.requires_grad
