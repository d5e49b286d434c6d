"""An interrupted run continues as if it had not been interrupted."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.files import read_checkpoint, save_checkpoint
from detlite.config import load_config
from detlite.engine.checkpointer import newest_checkpoint
from detlite.errors import CheckpointError
from tests.engine.toy import (
    assert_equal,
    call_at,
    interrupt,
    new_toy,
    read_final,
    read_metrics,
    without_times,
)

FREE = ["SOLVER.OPTIMIZER", "ScheduleFreeAdamW", "SOLVER.LR_SCHEDULE", "constant"]
MORE = ["SOLVER.EMA_DECAY", 0.9, "SOLVER.BEST_METRIC", "bbox/AP", "SOLVER.ACCUMULATION_STEPS", 2]


@pytest.mark.parametrize(
    ("dtype", "workers", "more"),
    [
        ("float32", 0, []),
        pytest.param("bfloat16", 1, [], marks=pytest.mark.slow),
        ("float16", 0, MORE),
        ("float32", 0, FREE),
    ],
)
def test_resumed_training_equals_uninterrupted_training(train_toy, tmp_path, dtype, workers, more):
    if more is FREE:
        pytest.importorskip("schedulefree")
    opts = [*more, "DTYPE", dtype, "SOLVER.CHECKPOINT_PERIOD", 2, "SOLVER.TEST_PERIOD", 2]
    opts += ["DATALOADER.NUM_WORKERS", workers, "SOLVER.CLIP_GRAD_NORM", 1.0]
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    _, straight_metrics = train_toy(*opts, "OUTPUT_DIR", str(straight))
    opts += ["OUTPUT_DIR", str(resumed)]
    # One iteration after the checkpoint is lost.
    model = call_at(new_toy(), 8 if more is MORE else 4, interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_toy(*opts, model=model)
    # Neither the weights nor the seed of the new process matter.
    _, metrics = train_toy(*opts, model=new_toy(5), resume=True, seed=99)

    torch.testing.assert_close(
        read_final(resumed).model, read_final(straight).model, rtol=0, atol=0
    )
    ours, theirs = (read_final(folder).training for folder in (resumed, straight))
    assert ours["iteration"] == theirs["iteration"] == 4
    for key in ("optimizer", "scaler", "hooks"):
        assert_equal(ours[key], theirs[key])
    assert torch.equal(ours["rng"][0]["torch"], theirs["rng"][0]["torch"])
    assert metrics == straight_metrics
    rows = [list(map(without_times, read_metrics(folder))) for folder in (resumed, straight)]
    assert rows[0] == rows[1]


def test_resume_with_fewer_iterations_than_done_ends_the_run(train_toy):
    cfg, _ = train_toy("SOLVER.CHECKPOINT_PERIOD", 1)
    folder = Path(cfg.OUTPUT_DIR)
    (folder / "model_final.pth").unlink()
    (folder / "last_checkpoint").write_text("model_0000003.pth")
    train_toy("SOLVER.MAX_ITER", 2, "SOLVER.BEST_METRIC", "bbox/AP", resume=True)
    assert read_final(folder).training["iteration"] == 3
    assert (folder / "model_best.pth").exists()


def test_weights_without_training_state_cannot_be_resumed(train_toy, toy, tmp_path):
    (tmp_path / "run").mkdir()
    torch.save(toy.state_dict(), tmp_path / "run" / "w.pth")
    (tmp_path / "run" / "last_checkpoint").write_text("w.pth\n")
    with pytest.raises(CheckpointError, match=r"it has no 'optimizer'.*MODEL\.WEIGHT"):
        train_toy(resume=True)


def test_a_run_is_not_resumed_with_other_categories(train_toy):
    cfg, _ = train_toy("SOLVER.MAX_ITER", 1)
    checkpoint = read_final(cfg.OUTPUT_DIR)
    save_checkpoint(replace(checkpoint, categories=checkpoint.categories[::-1]))
    with pytest.raises(CheckpointError, match=r"other categories, .* by name: red, green.*WEIGHT"):
        train_toy("SOLVER.MAX_ITER", 2, resume=True)


def test_changed_keys_on_resume(train_toy, caplog):
    train_toy()
    frozen = new_toy()
    frozen.norm.requires_grad_(False)
    with pytest.raises(
        CheckpointError, match=r"does not fit the config \(other .* norm\.bias, norm\.weight\)"
    ):
        train_toy(model=frozen, resume=True)
    with pytest.raises(CheckpointError, match=r"does not fit .*SOLVER\.OPTIMIZER SGD, now AdamW"):
        train_toy("SOLVER.OPTIMIZER", "AdamW", resume=True)
    train_toy("SOLVER.BASE_LR", 7.0, "SEED", 5, resume=True)
    assert "another config: SEED 0, now 5; SOLVER.BASE_LR 0.1, now 7.0" in caplog.text
    assert "The new values apply from iteration 5 on" in caplog.text


def test_another_momentum_would_change_schedule_free_averages(train_toy):
    pytest.importorskip("schedulefree")
    train_toy(*FREE)
    with pytest.raises(CheckpointError, match=r"does not fit .*SOLVER\.MOMENTUM 0\.9, now 0\.8"):
        train_toy(*FREE, "SOLVER.MOMENTUM", 0.8, resume=True)


RATES = {
    "multistep": ["SOLVER.LR_SCHEDULE", "multistep", "SOLVER.STEPS", (3,)],
    "cosine": ["SOLVER.LR_SCHEDULE", "cosine"],
}


@pytest.mark.parametrize(
    ("before", "now", "factors"),
    [
        (RATES["multistep"], ["SOLVER.STEPS", (5,), "SOLVER.GAMMA", 0.5], [1, 0.5, 0.5, 0.5]),
        (RATES["cosine"], [], [(1 + math.cos(math.pi * k / 8)) / 2 for k in (4, 5, 6, 7)]),
        (RATES["cosine"], RATES["multistep"], [0.1, 0.1, 0.1, 0.1]),
        (RATES["multistep"], ["SOLVER.WARMUP_ITERS", 8, "SOLVER.WARMUP_FACTOR", 0.0],
         [0.1 * k / 8 for k in (4, 5, 6, 7)]),
    ],
)  # fmt: skip
def test_the_learning_rates_of_a_resumed_run_are_those_of_its_own_config(
    train_toy, before, now, factors
):
    opts = ["SOLVER.WARMUP_ITERS", 0, *before]
    train_toy(*opts)
    cfg, _ = train_toy(*opts, "SOLVER.MAX_ITER", 8, *now, resume=True)
    rows = read_metrics(cfg.OUTPUT_DIR)
    # A row contains the learning rate of its step.
    assert [row["lr"] for row in rows[4:]] == pytest.approx([0.1 * factor for factor in factors])


def test_momentum_follows_its_parameter_into_another_group(train_toy):
    """Weight decay of biases groups them differently; no step is made."""
    cfg, _ = train_toy()
    saved = read_final(cfg.OUTPUT_DIR).training["optimizer"]
    keys = ["SOLVER.BIAS_LR_FACTOR", 1.0, "SOLVER.WEIGHT_DECAY_BIAS", cfg.SOLVER.WEIGHT_DECAY]
    train_toy(*keys, "SOLVER.MAX_ITER", 5, resume=True)
    resumed = read_final(cfg.OUTPUT_DIR).training["optimizer"]
    assert len(resumed["param_groups"]) < len(saved["param_groups"])
    shapes = [
        {
            name: one["state"][number]["momentum_buffer"].shape
            for group in one["param_groups"]
            for name, number in zip(group["param_names"], group["params"], strict=True)
        }
        for one in (saved, resumed)
    ]
    assert shapes[0] == shapes[1]


def test_checkpoints_contain_config_and_categories(train_toy, caplog):
    cfg, _ = train_toy(resume=True)
    assert "contains no checkpoint to resume: starting from scratch" in caplog.text
    checkpoint = read_final(cfg.OUTPUT_DIR)
    file = Path(cfg.OUTPUT_DIR) / "again.yaml"
    file.write_text(checkpoint.config)
    stored = load_config(file)
    assert 0 < stored.TEST.SCORE_THRESHOLD < 1  # measured by the evaluation
    assert load_config(file, ["TEST.SCORE_THRESHOLD", 0.0]) == cfg
    assert checkpoint.convention == "detlite"
    assert checkpoint.categories == [{"id": 7, "name": "red"}, {"id": 9, "name": "green"}]


def test_ema_that_is_enabled_on_resume_starts_from_the_weights(train_toy):
    cfg, _ = train_toy()
    train_toy("SOLVER.EMA_DECAY", 0.5, resume=True)
    final = read_final(cfg.OUTPUT_DIR)
    _, metrics = train_toy("SOLVER.EMA_DECAY", 0.5, "SOLVER.MAX_ITER", 6, resume=True)
    assert final.training["hooks"].keys() == {"BestCheckpoint"}
    assert list(metrics) == ["val", "val average"]
    final = read_final(cfg.OUTPUT_DIR)
    assert final.training["hooks"]["ModelEMA"]["updates"] == 2


def test_old_numbered_checkpoints_are_deleted(train_toy):
    opts = ["SOLVER.CHECKPOINT_PERIOD", 1, "SOLVER.CHECKPOINTS_KEPT", 2, "SOLVER.MAX_ITER", 6]
    cfg, _ = train_toy(*opts, "SOLVER.TEST_PERIOD", 2, "SOLVER.BEST_METRIC", "bbox/AP")
    output = Path(cfg.OUTPUT_DIR)
    saved = sorted(file.name for file in output.glob("*.pth"))
    assert saved == ["model_0000004.pth", "model_0000005.pth", "model_best.pth", "model_final.pth"]
    # The toy's detections never change, so the first evaluation stays the best.
    assert read_checkpoint(output / "model_best.pth").training["iteration"] == 2


@pytest.fixture
def folder(tmp_path):
    """Folder of a run with checkpoints of iterations 2, 4 and 6, the last one being final."""
    run = tmp_path / "run"
    run.mkdir()
    for iteration, name in ((2, "0000002"), (4, "0000004"), (6, "final")):
        weights = {"weight": torch.full((1000,), float(iteration))}
        checkpoint = Checkpoint(run / f"model_{name}.pth", weights)
        checkpoint.training["iteration"] = iteration
        save_checkpoint(checkpoint)
    return run


def resumed(folder):
    checkpoint = newest_checkpoint(folder)
    assert checkpoint is not None
    return checkpoint.training["iteration"]


def test_the_last_checkpoint_is_resumed_without_warnings(folder, tmp_path, caplog):
    assert resumed(folder) == 6
    assert resumed(folder.rename(tmp_path / "moved")) == 6
    (tmp_path / "moved" / "last_checkpoint").write_text("model_0000002.pth\n")  # edited by the user
    assert resumed(tmp_path / "moved") == 2
    assert caplog.text == ""


def test_a_folder_without_a_run(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    assert newest_checkpoint(tmp_path / "none") is None


@pytest.mark.parametrize(
    "content", [None, b"", b"gone.pth\n", bytes(range(100, 200)), b"\0" * 50, b"x" * 5000, b"..\n"]
)
def test_without_a_valid_pointer_file_the_newest_checkpoint_is_resumed(folder, caplog, content):
    (folder / "last_checkpoint").unlink()
    if content is not None:
        (folder / "last_checkpoint").write_bytes(content)
    assert resumed(folder) == 6
    assert "Resuming from the newest undamaged checkpoint" in caplog.text
    extended = Checkpoint(folder / "model_0000009.pth", {"weight": torch.ones(1)})
    extended.training["iteration"] = 9
    save_checkpoint(extended, last=False)
    assert resumed(folder) == 9


@pytest.mark.parametrize("damage", ["empty", "truncated", "zeroed"])
def test_the_newest_undamaged_checkpoint_is_resumed(folder, caplog, damage):
    def break_file(name):
        data = bytearray((folder / name).read_bytes())
        data[2000:2100] = bytes(100)
        kept = {"empty": 0, "truncated": 2000, "zeroed": len(data)}[damage]
        (folder / name).write_bytes(data[:kept])

    break_file("model_final.pth")
    assert resumed(folder) == 4
    assert "model_final.pth: is" in caplog.text
    break_file("model_0000004.pth")
    caplog.clear()
    assert resumed(folder) == 2
    assert "model_final.pth: is" in caplog.text
    assert "model_0000004.pth: is" in caplog.text
    break_file("model_0000002.pth")
    with pytest.raises(CheckpointError, match=r"no undamaged checkpoint.*final.*4\.pth.*2\.pth"):
        newest_checkpoint(folder)


@pytest.mark.parametrize(("pointer", "file"), [("", "other.txt"), ("gone.pth\n", "model_best.pth")])
def test_a_pointer_to_no_checkpoint_is_an_error(tmp_path, pointer, file):
    """The best checkpoint is not resumed."""
    (tmp_path / "last_checkpoint").write_text(pointer)
    save_checkpoint(Checkpoint(tmp_path / file, {"weight": torch.ones(1)}), last=False)
    message = f"last_checkpoint names '{pointer.strip()}', which does not exist"
    with pytest.raises(CheckpointError, match=message):
        newest_checkpoint(tmp_path)
