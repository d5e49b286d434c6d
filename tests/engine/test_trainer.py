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
from detlite.conventions import convention_of
from detlite.conversion.checkpoint.files import CheckpointError, read_checkpoint
from detlite.data import DataError
from detlite.apps.dataset_formats.shard_writer import write_shards
from detlite.engine.hooks.metrics import NonFiniteLossError
from detlite.engine.replay import read_batch
from detlite.engine.rng import seed_all
from detlite.engine.run_files import newest_checkpoint
from detlite.engine.signals import StoppedError
from detlite.engine.trainer import check_output_dir, train
from detlite.modeling.layers.norm import FrozenBatchNorm2d


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


MORE = ["SOLVER.EMA_DECAY", 0.9, "SOLVER.BEST_METRIC", "bbox/AP", "SOLVER.ACCUMULATION_STEPS", 2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("workers", "more"), [(0, []), (1, []), (0, MORE)])
def test_resumed_training_equals_straight_training_bit_for_bit(
    run, toy, tmp_path, monkeypatch, dtype, workers, more
):
    opts = [*more, "DTYPE", dtype, "SOLVER.CHECKPOINT_PERIOD", 2, "SOLVER.TEST_PERIOD", 2]
    opts += ["DATALOADER.NUM_WORKERS", workers, "SOLVER.CLIP_GRAD_NORM", 1.0]
    straight_cfg, straight_metrics = run(*opts, "OUTPUT_DIR", str(tmp_path / "straight"))
    straight = read_checkpoint(tmp_path / "straight" / "model_final.pth")

    opts += ["OUTPUT_DIR", str(tmp_path / "resumed")]
    torch.manual_seed(0)
    interrupted = type(toy)()
    forward, calls = interrupted.forward, []

    def interrupt(*args):
        calls.append(args)
        if len(calls) == (8 if more else 4):  # one iteration after the checkpoint is lost
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
    for key in ("optimizer", "scheduler", "scaler", "average", "best"):
        torch.testing.assert_close(resumed.training[key], straight.training[key], rtol=0, atol=0)
    (drawn,), (wanted,) = resumed.training["rng"], straight.training["rng"]
    assert torch.equal(drawn["torch"], wanted["torch"])
    assert resumed_metrics == straight_metrics
    assert list(map(timeless, rows(resumed_cfg))) == list(map(timeless, rows(straight_cfg)))


def test_training_on_shards_resumes_bit_for_bit(run, toy, blocks, tmp_path):
    """With another number of loader processes, too."""
    write_shards(blocks / "blocks.json", blocks, tmp_path / "tars", images_per_shard=3)
    tars = {"shards": f"{tmp_path}/tars/train-{{000000..000002}}.tar", "type": "webdataset"}
    tars["categories"] = f"{tmp_path}/tars/train-categories.json"
    opts = ["DATASETS.CATALOG", [{"name": name, **tars} for name in ("train", "val")]]
    opts += ["SOLVER.MAX_ITER", 8, "SOLVER.CHECKPOINT_PERIOD", 3, "DATALOADER.SHARD_SHUFFLE", 2]
    _, metrics = run(*opts, "OUTPUT_DIR", str(tmp_path / "straight"))
    opts += ["OUTPUT_DIR", str(tmp_path / "resumed"), "DATALOADER.NUM_WORKERS", 1]
    torch.manual_seed(0)

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(*opts, model=interrupting(type(toy)(), 5, interrupt))
    _, resumed_metrics = run(*opts, model=type(toy)(), resume=True, seed=99)
    straight, resumed = (
        read_checkpoint(tmp_path / name / "model_final.pth").model
        for name in ("straight", "resumed")
    )
    for name, value in straight.items():
        torch.testing.assert_close(resumed[name], value, rtol=0, atol=0)
    assert resumed_metrics == metrics


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


@pytest.fixture
def scripted(monkeypatch):
    """`scripted(0.3, 0.5)`: the APs of the evaluations to come; the list of those that are left."""

    def prepare(*values):
        left = list(values)
        evaluated = lambda *_: {"val": {"bbox": {"AP": left.pop(0)}}}  # noqa: E731
        monkeypatch.setattr("detlite.engine.trainer.evaluate_state", evaluated)
        return left

    return prepare


@pytest.mark.parametrize("test_period", [2, 3])
def test_a_finished_run_that_goes_on_knows_its_last_evaluation(run, scripted, test_period):
    """Whether or not the evaluation's period divides the iterations that were done."""
    opts = ["SOLVER.BEST_METRIC", "bbox/AP", "SOLVER.TEST_PERIOD", test_period]
    left = scripted(0.3, 0.5)
    cfg, _ = run("SOLVER.MAX_ITER", 4, *opts)
    left[:] = [0.5, 0.4, 0.4]  # at 4, at 6 and, after the last, at 7
    run("SOLVER.MAX_ITER", 7, *opts, resume=True)
    assert left == []
    best = read_checkpoint(Path(cfg.OUTPUT_DIR) / "model_best.pth")
    assert best.training["iteration"] == 4
    assert [row["iteration"] for row in rows(cfg, "evaluation")] == [test_period, 4, 6, 7]


def test_resume_with_fewer_iterations_than_are_done_ends(run):
    cfg, _ = run("SOLVER.CHECKPOINT_PERIOD", 1)
    folder = Path(cfg.OUTPUT_DIR)
    done = max(int(path.stem[6:]) for path in folder.glob("model_0*.pth"))
    (folder / "model_final.pth").unlink()
    (folder / "last_checkpoint").write_text(f"model_{done:07d}.pth")
    run("SOLVER.MAX_ITER", done - 1, "SOLVER.BEST_METRIC", "bbox/AP", resume=True)
    assert read_checkpoint(folder / "model_final.pth").training["iteration"] == done
    assert (folder / "model_best.pth").exists()


@pytest.mark.parametrize(
    ("opts", "key"),
    [
        ((), "MODEL.RESNETS.NORM BN or GN"),
        (("MODEL.BACKBONE.CONV_BODY", "timm/resnet18-FPN"), "MODEL.TIMM.FROZEN_NORM False"),
    ],
)
def test_frozen_norms_of_random_weights_are_warned_of(run, toy, caplog, tmp_path, opts, key):
    run("SOLVER.MAX_ITER", 1)
    assert "batch norm is frozen" not in caplog.text
    toy.frozen = FrozenBatchNorm2d(1)
    run("SOLVER.MAX_ITER", 1, "OUTPUT_DIR", str(tmp_path / "frozen"), *opts)
    assert f"from scratch use {key}" in caplog.text


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
    saved = sorted(file.name for file in output.glob("model_*.pth"))
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


def weights_of(cfg, name="model_final.pth"):
    return read_checkpoint(Path(cfg.OUTPUT_DIR) / name).model


def test_accumulated_gradients_are_those_of_the_whole_batch(run, toy, tmp_path):
    """But for batch statistics, which are off, and the toy's random numbers."""
    toy.norm.eval()
    toy.norm.train = lambda mode: toy.norm
    state = {name: value.clone() for name, value in toy.state_dict().items()}
    finals = []
    for parts in (1, 2, 4):
        toy.load_state_dict(state)
        opts = ["SOLVER.ACCUMULATION_STEPS", parts, "SOLVER.IMS_PER_BATCH", 4]
        cfg, _ = run(*opts, "OUTPUT_DIR", str(tmp_path / str(parts)))
        finals.append(weights_of(cfg))
    for name, value in finals[0].items():
        torch.testing.assert_close(finals[1][name], value, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(finals[2][name], value, rtol=1e-5, atol=1e-6)


def test_a_batch_that_cannot_be_parted(run):
    with pytest.raises(ConfigError, match=r"ACCUMULATION_STEPS 3 in 1 processes .* multiple of 3"):
        run("SOLVER.ACCUMULATION_STEPS", 3)


def test_the_average_is_evaluated_and_saved_beside_the_weights(run):
    cfg, metrics = run("SOLVER.EMA_DECAY", 0.5)
    assert list(metrics) == ["val", "val average"]
    output = Path(cfg.OUTPUT_DIR)
    assert (output / "average" / "evaluation.json").exists()
    final = newest_checkpoint(output)
    average = weights_of(cfg, "model_final_average.pth")
    assert final.path.name == "model_final.pth"
    assert torch.equal(average["body.weight"], final.training["average"]["values"]["body.weight"])
    assert not torch.equal(average["body.weight"], final.model["body.weight"])


def test_the_best_average_is_kept_as_weights(run):
    cfg, _ = run("SOLVER.EMA_DECAY", 0.5, "SOLVER.BEST_METRIC", "val average/bbox/AP")
    best = read_checkpoint(Path(cfg.OUTPUT_DIR) / "model_best.pth")
    average = weights_of(cfg, "model_final_average.pth")
    assert best.model.keys() == average.keys()
    assert all(torch.equal(best.model[name], average[name]) for name in average)
    assert not best.training
    assert best.categories


def test_the_last_checkpoints_are_kept_and_the_best(run):
    opts = ["SOLVER.CHECKPOINT_PERIOD", 1, "SOLVER.CHECKPOINTS_KEPT", 2, "SOLVER.MAX_ITER", 6]
    cfg, _ = run(*opts, "SOLVER.TEST_PERIOD", 2, "SOLVER.BEST_METRIC", "bbox/AP")
    output = Path(cfg.OUTPUT_DIR)
    saved = sorted(file.name for file in output.glob("*.pth"))
    assert saved == ["model_0000004.pth", "model_0000005.pth", "model_best.pth", "model_final.pth"]
    # The toy finds the same in every evaluation, so the first is the best.
    assert read_checkpoint(output / "model_best.pth").training["iteration"] == 2


def test_a_run_that_gets_no_better_ends(run, toy, tmp_path):
    opts = ["SOLVER.MAX_ITER", 30, "SOLVER.TEST_PERIOD", 2, "SOLVER.BEST_METRIC", "bbox/AP"]
    opts += ["SOLVER.PATIENCE", 2]
    cfg, metrics = run(*opts)
    assert [row["iteration"] for row in rows(cfg, "evaluation")] == [2, 4, 6, 7]
    final = Path(cfg.OUTPUT_DIR) / "model_final.pth"
    assert read_checkpoint(final).training["iteration"] == 7
    before = final.read_bytes()
    assert run(*opts, resume=True)[1] == metrics  # it only evaluates
    assert final.read_bytes() == before


def test_the_rate_follows_the_batch_where_that_is_wanted(run, caplog):
    caplog.set_level("INFO")
    cfg, _ = run("SOLVER.AUTO_SCALE_LR", True, "SOLVER.REFERENCE_IMS_PER_BATCH", 8)
    assert [row["lr"] for row in rows(cfg)][2] == pytest.approx(0.1 / 4)
    assert "BASE_LR 0.1 for a reference batch of 8, times 0.25 for one of 2: 0.025" in caplog.text


def test_a_step_that_is_not_finite_may_be_skipped(run, toy, diverging, caplog):
    opts = ["SOLVER.MAX_ITER", 5, "SOLVER.MAX_SKIPPED_STEPS", 1]
    cfg, _ = run(*opts)
    assert "skipped a step, number 1 of at most 1" in caplog.text
    assert str(diverging[2]) in caplog.text
    assert [row["iteration"] for row in rows(cfg)] == [1, 2, 4, 5]
    final = read_checkpoint(Path(cfg.OUTPUT_DIR) / "model_final.pth")
    assert final.training["skipped"] == 1
    assert all(value.isfinite().all() for value in final.model.values())


def test_skipping_changes_nothing(run, toy, monkeypatch):
    """Batch statistics neither, although the batch went through the model."""
    forward, seen = toy.forward, []

    def look(images, targets):
        losses = forward(images, targets)
        seen.append({name: value.clone() for name, value in toy.state_dict().items()})
        losses["loss_box"] = losses["loss_box"] * math.nan
        return losses

    before = {name: value.clone() for name, value in toy.state_dict().items()}
    toy.forward = look
    with pytest.raises(NonFiniteLossError, match=r"SOLVER\.MAX_SKIPPED_STEPS 3 steps were skipped"):
        run("SOLVER.MAX_ITER", 9, "SOLVER.MAX_SKIPPED_STEPS", 3)
    assert len(seen) == 4
    assert not torch.equal(seen[0]["norm.running_mean"], before["norm.running_mean"])
    torch.testing.assert_close(dict(toy.state_dict()), before, rtol=0, atol=0)


def test_the_batch_of_a_non_finite_loss_is_kept(run, make_cfg, diverging):
    with pytest.raises(NonFiniteLossError, match=r"kept in .*batch_0000003_rank0\.pth"):
        run("SOLVER.MAX_ITER", 8, "SOLVER.LOG_PERIOD", 5)
    iteration, (images, targets) = read_batch(
        Path(make_cfg().OUTPUT_DIR) / "batch_0000003_rank0.pth"
    )
    assert iteration == 3
    assert [target["image_id"] for target in targets] == diverging[2]
    assert targets[0]["masks"].bitmaps(*images[0].shape[1:]).any()
