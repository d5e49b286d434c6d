"""The training loop and step: files, metrics, evaluations, signals and non-finite losses."""

import multiprocessing
import os
import signal
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from detlite.checkpoint.files import read_checkpoint
from detlite.config import ConfigError
from detlite.data import build_train_dataset
from detlite.engine.checkpointer import newest_checkpoint
from detlite.engine.hooks import Hook
from detlite.engine.run import TrainingRun
from detlite.engine.signals import StoppedError
from detlite.errors import NonFiniteLossError
from detlite.modeling.layers.norm import FrozenBatchNorm2d
from tests.engine.toy import assert_equal, call_at, new_toy, read_final, read_metrics, without_times


def iterations(cfg, key="loss"):
    return [row["iteration"] for row in read_metrics(cfg.OUTPUT_DIR, key)]


def test_a_run_writes_its_files_and_metrics(train_toy):
    cfg, metrics = train_toy("SOLVER.CHECKPOINT_PERIOD", 2, "SOLVER.TEST_PERIOD", 3)
    output = Path(cfg.OUTPUT_DIR)
    names = {file.name for file in output.iterdir()}
    assert {"model_0000002.pth", "model_final.pth", "last_checkpoint", "metrics.jsonl"} <= names
    assert {"evaluation.json", "results_val.json"} <= names
    assert "model_0000004.pth" not in names
    assert any(name.startswith("events.out.tfevents") for name in names)
    rows, evaluations = read_metrics(output), read_metrics(output, "evaluation")
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert [row["iteration"] for row in evaluations] == [3, 4]
    assert evaluations[-1]["evaluation"] == metrics
    for row in rows:
        assert row["loss"] == pytest.approx(row["loss_classifier"] + row["loss_box"])
        assert row["time"] >= row["data_time"] > 0
    assert [row["lr"] for row in rows] == pytest.approx([0.1 / 3, 0.2 / 3, 0.1, 0.01])


class WeightsInHooks(Hook):
    """Keeps the weights of the model and of its checkpoint after evaluations and at the end."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Any]] = []

    def after_evaluation(self, metrics):
        weights = deepcopy(self.trainer.model.state_dict())
        self.pairs.append((weights, read_checkpoint(self.trainer.checkpoint).model))

    def after_train(self):
        self.after_evaluation({})


def test_hooks_after_an_evaluation_see_the_evaluated_weights(train_toy, toy):
    pytest.importorskip("schedulefree")
    hook = WeightsInHooks()
    train_toy(
        "SOLVER.OPTIMIZER", "ScheduleFreeAdamW", "SOLVER.LR_SCHEDULE", "constant",
        "SOLVER.MAX_ITER", 4, "SOLVER.TEST_PERIOD", 2, model=toy, hooks=[hook],
    )  # fmt: skip
    assert len(hook.pairs) == 3
    for pair in hook.pairs:
        assert_equal(*pair)
    assert_equal(toy.state_dict(), hook.pairs[-1][1])


def test_early_stopping(train_toy, caplog):
    """The toy's detections never change, so the first evaluation stays the best."""
    caplog.set_level("INFO")
    reason = "PATIENCE: the last 2 evaluations had no better bbox/AP than "
    opts = ["SOLVER.MAX_ITER", 30, "SOLVER.TEST_PERIOD", 2, "SOLVER.BEST_METRIC", "bbox/AP"]
    opts += ["SOLVER.PATIENCE", 2]
    cfg, metrics = train_toy(*opts)
    assert iterations(cfg, "evaluation") == [2, 4, 6, 7]
    assert reason in caplog.text
    caplog.clear()
    final = Path(cfg.OUTPUT_DIR) / "model_final.pth"
    assert read_checkpoint(final).training["iteration"] == 7
    before = final.read_bytes()
    assert train_toy(*opts, resume=True)[1] == metrics  # only evaluates
    assert reason in caplog.text
    assert final.read_bytes() == before


@pytest.mark.parametrize("test_period", [2, 3])
def test_an_extended_run_repeats_its_last_evaluation(train_toy, monkeypatch, test_period):
    """The final evaluation at iteration 4 may have been interrupted."""
    values = [0.3, 0.5]
    evaluate = lambda *_: {"val": {"bbox": {"AP": values.pop(0)}}}  # noqa: E731
    monkeypatch.setattr("detlite.engine.run.evaluate", evaluate)
    opts = ["SOLVER.BEST_METRIC", "bbox/AP", "SOLVER.TEST_PERIOD", test_period]
    cfg, _ = train_toy("SOLVER.MAX_ITER", 4, *opts)
    values[:] = [0.5, 0.4, 0.4]  # at 4, at 6 and, after the last iteration, at 7
    train_toy("SOLVER.MAX_ITER", 7, *opts, resume=True)
    assert values == []
    best = read_checkpoint(Path(cfg.OUTPUT_DIR) / "model_best.pth")
    assert best.training["iteration"] == 4
    assert iterations(cfg, "evaluation") == [test_period, 4, 6, 7]


@pytest.mark.parametrize(
    ("opts", "key"),
    [
        ((), "MODEL.RESNETS.NORM BN or GN"),
        (("MODEL.BACKBONE.CONV_BODY", "timm/resnet18-FPN"), "MODEL.RESNETS.NORM BN"),
    ],
)
def test_frozen_norms_with_random_weights_cause_a_warning(train_toy, caplog, opts, key):
    toy = new_toy()
    toy.frozen = FrozenBatchNorm2d(1)
    train_toy("SOLVER.MAX_ITER", 1, *opts, model=toy)
    assert f"Set {key} to train from scratch" in caplog.text


def send_to_all(name):
    """Send a signal to all processes including loader workers, as a scheduler does."""
    for process in multiprocessing.active_children():
        os.kill(process.pid, signal.Signals[name])
    os.kill(os.getpid(), signal.Signals[name])


@pytest.mark.parametrize(
    ("name", "opts"),
    [
        ("SIGTERM", ["SOLVER.TEST_PERIOD", 3]),
        pytest.param("SIGHUP", ["DATALOADER.NUM_WORKERS", 1], marks=pytest.mark.slow),
        ("SIGINT", []),
    ],
)
def test_a_signal_lets_the_step_finish_and_saves_it(train_toy, tmp_path, name, opts):
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    _, straight_metrics = train_toy(*opts, "OUTPUT_DIR", str(straight))
    model = call_at(new_toy(), 3, lambda: send_to_all(name))
    opts = [*opts, "OUTPUT_DIR", str(stopped)]
    with pytest.raises(StoppedError, match=f"^{name}: saved after iteration 3;"):
        train_toy(*opts, model=model)
    assert newest_checkpoint(stopped).path.name == "model_0000003.pth"
    _, metrics = train_toy(*opts, model=new_toy(5), resume=True, seed=99)
    assert metrics == straight_metrics
    for key in ("loss", "evaluation"):
        rows = [list(map(without_times, read_metrics(f, key))) for f in (stopped, straight)]
        assert rows[0] == rows[1]
    ours, theirs = (read_final(f).model for f in (stopped, straight))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_an_evaluation_that_a_signal_ended_is_repeated(train_toy, toy, tmp_path, monkeypatch):
    opts = ["SOLVER.TEST_PERIOD", 2]
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    _, straight_metrics = train_toy(*opts, "OUTPUT_DIR", str(straight))
    opts += ["OUTPUT_DIR", str(stopped)]
    monkeypatch.setattr(toy, "detect", lambda *batch: send_to_all("SIGTERM"))
    with pytest.raises(StoppedError, match=r"^SIGTERM: ended, no step is lost"):
        train_toy(*opts, model=toy)
    assert newest_checkpoint(stopped).path.name == "model_0000002.pth"
    _, metrics = train_toy(*opts, model=new_toy(5), resume=True, seed=99)
    assert metrics == straight_metrics
    assert read_metrics(stopped, "evaluation") == read_metrics(straight, "evaluation")


@pytest.mark.parametrize(
    ("log_period", "noticed"), [(1, 3), (5, 5), (100, 6)], ids=["in its step", "logging", "saving"]
)
def test_a_non_finite_loss_is_reported_when_it_is_read(
    train_toy, diverging_toy, log_period, noticed
):
    model, image_ids = diverging_toy
    opts = ["SOLVER.MAX_ITER", 8, "SOLVER.LOG_PERIOD", log_period, "SOLVER.CHECKPOINT_PERIOD", 6]
    with pytest.raises(NonFiniteLossError, match=r"iteration 3: .*loss_box nan") as error:
        train_toy(*opts, model=model)
    assert str(image_ids[2]) in str(error.value)
    assert str(error.value).endswith(" start it again if it has none")
    assert len(image_ids) == noticed


@pytest.mark.parametrize("period", ["CHECKPOINT_PERIOD", "TEST_PERIOD"])
def test_nothing_is_saved_or_evaluated_after_a_non_finite_loss(
    train_toy, make_cfg, diverging_toy, period
):
    model, image_ids = diverging_toy
    opts = ["SOLVER.MAX_ITER", 8, "SOLVER.LOG_PERIOD", 100, f"SOLVER.{period}", 2]
    start = r"iteration 3: .* Then resume the run from its last checkpoint"
    with pytest.raises(NonFiniteLossError, match=start):
        train_toy(*opts, model=model)
    assert len(image_ids) == 4
    assert any(value.isnan().any() for value in model.state_dict().values())
    cfg = make_cfg()
    if period == "TEST_PERIOD":
        assert iterations(cfg, "evaluation") == [2]
    saved = sorted(file.name for file in Path(cfg.OUTPUT_DIR).glob("model_*.pth"))
    assert saved == ["model_0000002.pth"]
    last = newest_checkpoint(Path(cfg.OUTPUT_DIR))
    assert all(value.isfinite().all() for value in last.model.values())


def test_gradients_are_clipped(train_toy, toy):
    before = {name: value.clone() for name, value in toy.named_parameters()}
    no_decay = ["SOLVER.WEIGHT_DECAY", 0.0, "SOLVER.WEIGHT_DECAY_NORM", 0.0]
    train_toy("SOLVER.CLIP_GRAD_NORM", 1e-6, *no_decay, model=toy)
    for name, value in toy.named_parameters():
        torch.testing.assert_close(value, before[name], rtol=0, atol=1e-6)


def test_accumulated_gradients_equal_those_of_the_whole_batch(train_toy, tmp_path):
    weights = []
    for parts in (1, 2, 4):
        opts = ["SOLVER.ACCUMULATION_STEPS", parts, "SOLVER.IMS_PER_BATCH", 4]
        model = new_toy(noise=0.0)  # random numbers and batch statistics would differ
        cfg, _ = train_toy(*opts, "OUTPUT_DIR", str(tmp_path / str(parts)), model=model)
        weights.append(read_final(cfg.OUTPUT_DIR).model)
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights[2], weights[0], rtol=1e-5, atol=1e-6)


def test_batches_that_cannot_be_divided_are_refused(train_toy):
    with pytest.raises(ConfigError, match=r"ACCUMULATION_STEPS 3 in 1 processes: .* multiple of 3"):
        train_toy("SOLVER.ACCUMULATION_STEPS", 3)


REFERENCE_CYCLE = """
from pathlib import Path
import torch
from detlite.distributed import data_parallel, process_group

def step():
    model = torch.nn.Linear(3, 3)
    model.parallel = [data_parallel(model)]
    model.parallel[0](torch.ones(2, 3)).sum().backward()

with process_group("cpu"):
    step()
print(sorted(file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="lists the threads that Linux names")
def test_process_group_leaves_no_thread_of_gloo(in_two_processes):
    """A thread that releases tensors while the interpreter exits would abort the process."""
    assert "gloo" not in in_two_processes(REFERENCE_CYCLE)


SHARED_BATCHES = """
import yaml
from detlite.config import config_from
from detlite.data import build_train_dataset
from detlite.distributed import process_group
from detlite.engine.run import TrainingRun
from tests.engine.toy import new_toy

cfg = config_from(yaml.safe_load(open("config.yaml")), "config.yaml")
model = new_toy(noise=0.0)
with process_group("cpu"):
    TrainingRun(cfg, model, build_train_dataset(cfg), []).train()
"""
COMPILED = """
from detlite.modeling.compilation import compile_losses

compile_losses(model, "aot_eager")
with"""


@pytest.mark.parametrize("script", [SHARED_BATCHES, SHARED_BATCHES.replace("with", COMPILED)],
                         ids=["eager", "compiled"])  # fmt: skip
@pytest.mark.parametrize("parts", [1, 2])
def test_a_shared_batch_trains_like_a_whole_one(
    make_cfg, in_two_processes, tmp_path, script, parts
):
    """The losses are means over images, without random numbers and batch statistics."""
    opts = ["SOLVER.IMS_PER_BATCH", 4, "SOLVER.MAX_ITER", 10, "DATASETS.TEST", (),
            "SOLVER.ACCUMULATION_STEPS", parts]  # fmt: skip
    cfg = make_cfg(*opts, "OUTPUT_DIR", str(tmp_path / "alone"))
    TrainingRun(cfg, new_toy(noise=0.0), build_train_dataset(cfg), []).train()
    (tmp_path / "config.yaml").write_text(
        make_cfg(*opts, "OUTPUT_DIR", str(tmp_path / "shared")).dump()
    )
    in_two_processes(script)
    alone, shared = (tmp_path / name for name in ("alone", "shared"))
    ours, theirs = (read_final(f).model for f in (alone, shared))
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-6)
    losses = [[row["loss"] for row in read_metrics(folder)] for folder in (alone, shared)]
    assert len(losses[0]) == 10
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
