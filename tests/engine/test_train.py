from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch

from detlite.config import ConfigError, load_config
from detlite.convention import convention_of
from detlite.data import DataError
from detlite.engine.checkpoint import CheckpointError, read_checkpoint
from detlite.engine.metrics import NonFiniteLossError
from detlite.engine.resuming import newest_checkpoint
from detlite.engine.signals import StoppedError
from detlite.engine.state import seed_all
from detlite.engine.train import check_output_dir, train


@pytest.fixture
def run(make_cfg, make_sets, toy):
    """Trains the toy detector by a config; returns the config and the metrics."""

    def start(*opts, resume=False, model=toy, seed=0):
        cfg = make_cfg(*opts)
        train_set, test_sets = make_sets(cfg)
        model.categories = train_set.categories
        model.convention = convention_of(cfg)
        seed_all(seed)
        return cfg, train(cfg, model, train_set, test_sets, resume)

    return start


def rows(cfg, kind="loss"):
    lines = (Path(cfg.OUTPUT_DIR) / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if kind in row]


def timeless(row):
    return {name: value for name, value in row.items() if not name.endswith(("time", "eta_s"))}


def test_a_run_leaves_its_files_and_metrics(run):
    cfg, metrics = run("SOLVER.CHECKPOINT_PERIOD", 2, "SOLVER.TEST_PERIOD", 3)
    output = Path(cfg.OUTPUT_DIR)
    names = {file.name for file in output.iterdir()}
    assert {"model_0000002.pth", "model_final.pth", "last_checkpoint", "metrics.jsonl"} <= names
    assert {"evaluation.json", "results_val.json"} <= names
    assert "model_0000004.pth" not in names
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert [row["iteration"] for row in rows(cfg)] == [1, 2, 3, 4]
    assert [row["iteration"] for row in rows(cfg, "evaluation")] == [3, 4]
    assert rows(cfg, "evaluation")[-1]["evaluation"] == metrics
    for row in rows(cfg):
        assert row["loss"] == pytest.approx(row["loss_classifier"] + row["loss_box"])
        assert row["time"] >= row["data_time"] > 0
    assert [row["lr"] for row in rows(cfg)] == pytest.approx([0.1 / 3, 0.2 / 3, 0.1, 0.01])


@pytest.mark.parametrize("save_period", [0, 1])
def test_reports_are_means_since_the_last_one(run, tmp_path, toy, save_period):
    """Saving in between reads the losses, and takes none away."""
    single, _ = run("OUTPUT_DIR", str(tmp_path / "single"), "SOLVER.MAX_ITER", 5)
    torch.manual_seed(0)
    cfg, _ = run(
        "SOLVER.MAX_ITER", 5, "SOLVER.LOG_PERIOD", 3, "SOLVER.CHECKPOINT_PERIOD", save_period,
        model=type(toy)(),
    )  # fmt: skip
    each = [row["loss"] for row in rows(single)]
    assert [row["iteration"] for row in rows(cfg)] == [3, 5]
    means = [sum(each[:3]) / 3, sum(each[3:]) / 2]
    assert [row["loss"] for row in rows(cfg)] == pytest.approx(means)


def test_training_learns(run):
    cfg, _ = run("SOLVER.MAX_ITER", 60, "SOLVER.STEPS", (50,), "SOLVER.IMS_PER_BATCH", 4)
    losses = [row["loss"] for row in rows(cfg)]
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("workers", [0, 1])
def test_resumed_training_equals_straight_training_bit_for_bit(
    run, toy, tmp_path, monkeypatch, dtype, workers
):
    opts = ["DTYPE", dtype, "SOLVER.CHECKPOINT_PERIOD", 2, "SOLVER.TEST_PERIOD", 2]
    opts += ["DATALOADER.NUM_WORKERS", workers, "SOLVER.CLIP_GRAD_NORM", 1.0]
    straight_cfg, straight_metrics = run(*opts, "OUTPUT_DIR", str(tmp_path / "straight"))
    straight = read_checkpoint(tmp_path / "straight" / "model_final.pth")

    opts += ["OUTPUT_DIR", str(tmp_path / "resumed")]
    torch.manual_seed(0)
    interrupted = type(toy)()
    forward, calls = interrupted.forward, []

    def interrupt(*args):
        calls.append(args)
        if len(calls) == 4:  # one iteration after the checkpoint is lost
            raise KeyboardInterrupt
        return forward(*args)

    monkeypatch.setattr(interrupted, "forward", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(*opts, model=interrupted)
    # Whatever the new process starts from must not matter.
    torch.manual_seed(5)
    resumed_cfg, resumed_metrics = run(*opts, model=type(toy)(), resume=True, seed=99)
    resumed = read_checkpoint(tmp_path / "resumed" / "model_final.pth")

    assert resumed.training["iteration"] == straight.training["iteration"] == 4
    for name, value in straight.model.items():
        torch.testing.assert_close(resumed.model[name], value, rtol=0, atol=0)
    for key in ("optimizer", "scheduler", "scaler"):
        torch.testing.assert_close(resumed.training[key], straight.training[key], rtol=0, atol=0)
    (drawn,), (wanted,) = resumed.training["rng"], straight.training["rng"]
    assert torch.equal(drawn["torch"], wanted["torch"])
    assert resumed_metrics == straight_metrics
    assert list(map(timeless, rows(resumed_cfg))) == list(map(timeless, rows(straight_cfg)))


def interrupting(model, call, how):
    """The model, which does something in a call of its forward pass."""
    forward, calls = model.forward, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == call:
            how()
        return forward(*args)

    model.forward = interrupted
    return model


def send_to_all(name):
    """As a scheduler does: to the loader processes too."""
    for process in multiprocessing.active_children():
        os.kill(process.pid, signal.Signals[name])
    os.kill(os.getpid(), signal.Signals[name])


@pytest.mark.parametrize("opts", [[], ["SOLVER.TEST_PERIOD", 3], ["DATALOADER.NUM_WORKERS", 1]])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_lets_the_step_end_and_saves_it(run, toy, tmp_path, opts, name):
    straight_cfg, metrics = run(*opts, "OUTPUT_DIR", str(tmp_path / "straight"))
    torch.manual_seed(0)
    model = interrupting(type(toy)(), 3, lambda: send_to_all(name))
    opts = [*opts, "OUTPUT_DIR", str(tmp_path / "stopped")]
    with pytest.raises(StoppedError, match=f"^{name}: saved after iteration 3;"):
        run(*opts, model=model)
    assert newest_checkpoint(tmp_path / "stopped").path.name == "model_0000003.pth"
    torch.manual_seed(5)
    resumed_cfg, resumed_metrics = run(*opts, model=type(toy)(), resume=True, seed=99)
    assert resumed_metrics == metrics
    assert list(map(timeless, rows(resumed_cfg))) == list(map(timeless, rows(straight_cfg)))
    evaluations = [rows(cfg, "evaluation") for cfg in (resumed_cfg, straight_cfg)]
    assert evaluations[0] == evaluations[1]
    ours, theirs = (
        read_checkpoint(tmp_path / folder / "model_final.pth") for folder in ("straight", "stopped")
    )
    torch.testing.assert_close(ours.model, theirs.model, rtol=0, atol=0)


def test_a_signal_ends_an_evaluation_that_is_done_again(run, toy, tmp_path, monkeypatch):
    opts = ["SOLVER.TEST_PERIOD", 2]
    straight_cfg, metrics = run(*opts, "OUTPUT_DIR", str(tmp_path / "straight"))
    torch.manual_seed(0)
    model, opts = type(toy)(), [*opts, "OUTPUT_DIR", str(tmp_path / "stopped")]
    monkeypatch.setattr(model, "detect", lambda *batch: send_to_all("SIGTERM"))
    with pytest.raises(StoppedError, match=r"^SIGTERM: ended, and nothing is lost"):
        run(*opts, model=model)
    assert newest_checkpoint(tmp_path / "stopped").path.name == "model_0000002.pth"
    torch.manual_seed(5)
    resumed_cfg, resumed_metrics = run(*opts, model=type(toy)(), resume=True, seed=99)
    assert resumed_metrics == metrics
    assert rows(resumed_cfg, "evaluation") == rows(straight_cfg, "evaluation")


def test_resuming_a_finished_run_evaluates_it_again_and_changes_nothing(run, toy):
    cfg, metrics = run()
    final = Path(cfg.OUTPUT_DIR) / "model_final.pth"
    before = final.read_bytes()
    assert run(resume=True)[1] == metrics
    assert final.read_bytes() == before
    assert [row["iteration"] for row in rows(cfg)] == [1, 2, 3, 4]


def test_resume_with_more_iterations_goes_on(run):
    run()
    cfg, _ = run("SOLVER.MAX_ITER", 6, resume=True)
    assert [row["iteration"] for row in rows(cfg)] == [1, 2, 3, 4, 5, 6]


def test_resume_without_a_checkpoint_starts(run):
    cfg, _ = run(resume=True)
    assert len(rows(cfg)) == 4


def test_resume_from_weights_alone(run, toy, tmp_path):
    (tmp_path / "run").mkdir()
    torch.save(toy.state_dict(), tmp_path / "run" / "w.pth")
    (tmp_path / "run" / "last_checkpoint").write_text("w.pth\n")
    with pytest.raises(CheckpointError, match=r"has no 'optimizer'.*MODEL\.WEIGHT"):
        run(resume=True)


def test_resume_with_another_optimizer_layout(run):
    run()
    with pytest.raises(CheckpointError, match="optimizer state does not fit"):
        run("SOLVER.BIAS_LR_FACTOR", 1.0, "SOLVER.WEIGHT_DECAY_BIAS", 0.0005, resume=True)


def test_resume_with_another_seed_warns(run, caplog):
    run()
    run("SEED", 5, resume=True)
    assert "the order of the images changes" in caplog.text


def test_resume_with_another_optimizer(run):
    run()
    with pytest.raises(CheckpointError, match=r"was trained by SOLVER.OPTIMIZER SGD, now .* AdamW"):
        run("SOLVER.OPTIMIZER", "AdamW", "SOLVER.MAX_ITER", 6, resume=True)


def test_resume_under_another_convention(run):
    run()
    with pytest.raises(ConfigError, match=r"CONVENTION is torchvision, but .* that of detlite"):
        run("MODEL.CONVENTION", "torchvision", resume=True)
    run("MODEL.CONVENTION", "detlite", resume=True)  # what it was


def test_resume_tells_which_keys_changed(run, caplog):
    run()
    run("SOLVER.BASE_LR", 7.0, resume=True)
    assert "another config: SOLVER.BASE_LR 0.1, now 7.0. Learning rate" in caplog.text


def test_test_set_of_other_categories_is_refused_before_training(make_cfg, make_sets, toy):
    cfg = make_cfg()
    train_set, test_sets = make_sets(cfg)
    toy.categories = [{"id": 1, "name": "red"}, {"id": 2, "name": "blue"}]
    with pytest.raises(DataError, match="are not those that the model was trained on"):
        train(cfg, toy, train_set, test_sets)
    assert not (Path(cfg.OUTPUT_DIR) / "metrics.jsonl").exists()


def test_resume_from_a_truncated_checkpoint(run):
    cfg, _ = run()
    final = Path(cfg.OUTPUT_DIR) / "model_final.pth"
    final.write_bytes(final.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"model_final\.pth: .*truncated"):
        run(resume=True)


def test_checkpoint_holds_config_and_categories(run):
    cfg, _ = run()
    checkpoint = read_checkpoint(Path(cfg.OUTPUT_DIR) / "model_final.pth")
    file = Path(cfg.OUTPUT_DIR) / "again.yaml"
    file.write_text(checkpoint.config)
    assert load_config(file) == cfg
    assert checkpoint.convention == "detlite"
    assert checkpoint.categories == [{"id": 7, "name": "red"}, {"id": 9, "name": "green"}]


@pytest.fixture
def diverging(toy):
    """The toy detector, whose third step has a NaN; and the ids of the images of each step."""
    forward, calls = toy.forward, []

    def diverge(images, targets):
        losses = forward(images, targets)
        calls.append([target["image_id"] for target in targets])
        if len(calls) == 3:
            losses["loss_box"] = losses["loss_box"] * math.nan
        return losses

    toy.forward = diverge
    return calls


@pytest.mark.parametrize(
    ("log_period", "noticed"), [(1, 3), (5, 5), (100, 6)], ids=["in its step", "logging", "saving"]
)
def test_a_non_finite_loss_is_reported_when_it_is_read(run, diverging, log_period, noticed):
    keys = ["SOLVER.MAX_ITER", 8, "SOLVER.LOG_PERIOD", log_period, "SOLVER.CHECKPOINT_PERIOD", 6]
    with pytest.raises(NonFiniteLossError, match=r"iteration 3: .*loss_box nan") as error:
        run(*keys)
    assert str(diverging[2]) in str(error.value)
    assert len(diverging) == noticed


@pytest.mark.parametrize("period", ["CHECKPOINT_PERIOD", "TEST_PERIOD"])
def test_after_a_non_finite_loss_nothing_is_saved_or_measured(
    run, make_cfg, toy, diverging, period
):
    """Not even what is due long before the losses are reported."""
    with pytest.raises(NonFiniteLossError, match="iteration 3"):
        run("SOLVER.MAX_ITER", 8, "SOLVER.LOG_PERIOD", 100, f"SOLVER.{period}", 2)
    assert len(diverging) == 4
    assert any(value.isnan().any() for value in toy.state_dict().values())
    output = Path(make_cfg().OUTPUT_DIR)
    saved = sorted(file.name for file in output.glob("*.pth"))
    if period == "TEST_PERIOD":
        assert [row["iteration"] for row in rows(make_cfg(), "evaluation")] == [2]
    assert saved == ["model_0000002.pth"]
    last = newest_checkpoint(output)
    assert last is not None
    assert all(value.isfinite().all() for value in last.model.values())


def test_gradients_are_clipped(run, toy):
    frozen = {name: value.clone() for name, value in toy.named_parameters()}
    no_decay = ["SOLVER.WEIGHT_DECAY", 0.0, "SOLVER.WEIGHT_DECAY_NORM", 0.0]
    run("SOLVER.CLIP_GRAD_NORM", 1e-6, *no_decay)
    for name, value in toy.named_parameters():
        torch.testing.assert_close(value, frozen[name], rtol=0, atol=1e-6)


def test_a_used_folder_is_not_mixed_with_a_new_run(run):
    cfg, _ = run()
    output = Path(cfg.OUTPUT_DIR)
    with pytest.raises(
        ConfigError, match=r"OUTPUT_DIR .*metrics\.jsonl, model_final\.pth.*--resume"
    ):
        check_output_dir(output, resume=False)
    check_output_dir(output, resume=True)
    (output / "metrics.jsonl").unlink()
    (output / "model_final.pth").rename(output / "model_0000004.pth")
    with pytest.raises(ConfigError, match=r"model_0000004\.pth"):
        check_output_dir(output, resume=False)
    check_output_dir(output / "new", resume=False)
