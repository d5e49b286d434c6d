"""Runs with images without labels: the two halves, pseudo-labels, resuming, and bad input."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch

from detlite.checkpoint.files import read_checkpoint
from detlite.config import ConfigError, load_config
from detlite.engine.hooks import Hook
from detlite.errors import CheckpointError
from detlite.files.errors import DataError


class Stop(Hook):
    """Ends a run like a crash, in its `last` step, counted over both halves."""

    def __init__(self, last):
        self.last, self.steps = last, []

    def after_step(self, losses):
        self.steps.append(self.trainer.iteration)
        if len(self.steps) == self.last:
            raise ZeroDivisionError


def final_weights(folder):
    return read_checkpoint(folder / "model_final.pth").model


def assert_equal_weights(first, second):
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.slow
def test_second_half_trains_on_detections_of_the_first(train, photos, caplog):
    caplog.set_level(logging.INFO)
    result = train("out")
    folder = photos / "out" / "unlabeled"
    labels = json.loads((folder / "pseudo_labels.json").read_text())
    names = {row["file_name"] for row in labels["images"]}
    assert names == {f"copy_{number}.png" for number in (7, 8, 9, 10)}
    assert "2 of 7 images without labels are left out, because they are nearly" in caplog.text
    assert "damaged.png" in caplog.text
    rows = labels["annotations"]
    assert {row["ignore"] for row in rows} == {0, 1}
    for row in rows:
        assert row["ignore"] == (row["score"] < 0.345)
        assert row["score"] >= 0.18
    cfg = load_config(result.output_dir / "config.yaml")
    assert cfg.DATASETS.TRAIN == ("train", "pseudo_labels")
    assert cfg.DATASETS.TRAIN_SHARES == (4, 4)
    assert str(folder / "labels_only" / "model_final.pth") == cfg.MODEL.WEIGHT
    assert [read_checkpoint(path / "model_final.pth").training["iteration"]
            for path in (folder / "labels_only", photos / "out")] == [2, 2]  # fmt: skip
    assert (photos / "out" / "evaluation.json").exists()
    assert result.metrics["test"]["bbox"]


@pytest.mark.slow
@pytest.mark.parametrize("last", [1, 3])
def test_interrupted_run_resumes_bit_for_bit(train, photos, last):
    hook = Stop(0)
    train("whole", hooks=[hook])
    assert hook.steps == [1, 2, 1, 2]
    with pytest.raises(ZeroDivisionError):
        train("stopped", hooks=[Stop(last)])
    with pytest.raises(ConfigError, match="already contains a run"):
        train("stopped")
    train("stopped", resume=True)
    names = "unlabeled/labels_only", ""
    for name in names:
        assert_equal_weights(*(final_weights(photos / run / name) for run in ("whole", "stopped")))


@pytest.mark.slow
def test_resumed_run_needs_only_its_folder(train, photos):
    with pytest.raises(ZeroDivisionError):
        train("out", hooks=[Stop(1)])
    import detlite

    result = detlite.train(output_dir=photos / "out", resume=True)
    assert load_config(result.output_dir / "config.yaml").DATASETS.TRAIN[-1] == "pseudo_labels"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"SOLVER.MAX_ITER": 3}, {"MAX_ITER": 2}),
        ({"SOLVER.MAX_EPOCHS": 4.0}, {"MAX_ITER": 2, "MAX_EPOCHS": None}),
        ({"SOLVER.MAX_ITER": 4, "SOLVER.STEPS": (0.5,)}, {"STEPS": (0.5,)}),
        ({"SOLVER.MAX_ITER": 6, "SOLVER.STEPS": (2, 5)}, {"STEPS": (1, 3), "MAX_ITER": 3}),
    ],
)
@pytest.mark.slow
def test_halves_of_durations(train, photos, overrides, expected):
    train("out", overrides)
    solver = load_config(photos / "out" / "config.yaml").SOLVER
    assert {key: solver[key] for key in expected} == expected


@pytest.mark.slow
@pytest.mark.parametrize("key", ["SOLVER.MAX_ITER", "SOLVER.MAX_EPOCHS"])
def test_resumed_run_can_be_extended(train, photos, key):
    train("out", {key: 4})
    train("out", {key: 12}, resume=True)
    assert read_checkpoint(photos / "out/model_final.pth").training["iteration"] == 6
    assert load_config(photos / "out/unlabeled/config.yaml").SOLVER[key.partition(".")[2]] == 12


@pytest.mark.slow
def test_gain_is_logged(train, photos, caplog):
    caplog.set_level(logging.INFO)
    result = train("out")
    before = json.loads((photos / "out/unlabeled/labels_only/evaluation.json").read_text())
    now, then = (100 * metrics["bbox"]["AP"] for metrics in (result.metrics["test"], before))
    assert (
        f"test: the AP of bbox is {now:.1f}, after the first half it was {then:.1f}" in caplog.text
    )


@pytest.mark.slow
def test_corrected_labels_are_used(train, photos):
    """Annotation tools write another `info`, or none, and no scores."""
    with pytest.raises(ZeroDivisionError):
        train("out", hooks=[Stop(3)])
    file = photos / "out/unlabeled/pseudo_labels.json"
    labels = json.loads(file.read_text())
    rows = [{key: row[key] for key in row.keys() - {"score", "ignore"}}
            for row in labels["annotations"]]  # fmt: skip
    file.write_text(json.dumps({key: labels[key] for key in ("images", "categories")}
                               | {"annotations": rows}))  # fmt: skip
    train("out", resume=True)
    assert json.loads(file.read_text())["annotations"] == rows


@pytest.mark.slow
def test_unusable_detections_are_left_out(train, photos, caplog):
    train("out", {"SOLVER.MAX_ITER": 2})
    rows = json.loads((photos / "out/unlabeled/pseudo_labels.json").read_text())["annotations"]
    largest = max(row["area"] for row in rows if not row["ignore"])
    train("limited", {"SOLVER.MAX_ITER": 2, "INPUT.MIN_AREA": int(largest) + 1})
    assert "the rest of the run trains on the labels only" in caplog.text


@pytest.mark.slow
def test_minutes_include_the_detection(train, photos):
    train("out", {"SOLVER.MAX_MINUTES": 0.04})
    first = load_config(photos / "out/unlabeled/labels_only/config.yaml").SOLVER.MAX_MINUTES
    detection = json.loads((photos / "out/unlabeled/detection.json").read_text())
    second = load_config(photos / "out/config.yaml").SOLVER.MAX_MINUTES
    assert first == 0.02
    assert second == pytest.approx(max(0.02 - detection["seconds"] / 60, 0.01))


@pytest.mark.parametrize(
    ("images", "threshold"), [("[0-9a-z]*.png", 0.99), ("copy_[15].png", 0.345)]
)
def test_without_certain_detections_the_labels_are_used(train, photos, caplog, images, threshold):
    """Images 1 and 5 are copies of labeled ones."""
    overrides = {"SOLVER.MAX_ITER": 2, "TEST.SCORE_THRESHOLD": threshold}
    caplog.set_level(logging.INFO)
    train("out", overrides, unlabeled=photos / "more" / images)
    assert f"images without labels (score {threshold:.2f})" in caplog.text
    assert "the rest of the run trains on the labels only" in caplog.text
    assert load_config(photos / "out" / "config.yaml").DATASETS.TRAIN == ("train",)


@pytest.mark.parametrize(
    ("unlabeled", "message"),
    [
        ("images/[1-6].png", "all 6 images are in the training or test sets already"),
        ("empty", "empty: the folder contains no images"),
        ("missing/*.jpg", "no image matches this pattern"),
        ("more/damaged.png", r"none of the 1 images can be read: .*damaged.png"),
        ("https://example.com/a.jpg", "must be local files: download them"),
        ("missing", "missing does not exist: name a folder, a glob or a list"),
    ],
)
def test_unusable_images_are_refused_before_training(train, photos, unlabeled, message):
    (photos / "empty").mkdir()
    name = unlabeled if "://" in unlabeled else str(photos / unlabeled)
    with pytest.raises(DataError, match=message) as raised:
        train("out", unlabeled=name)
    assert "\n" not in str(raised.value)
    assert not (photos / "out" / "unlabeled").exists()


def test_images_with_other_channels_are_refused(train, photos):
    tifffile = pytest.importorskip("tifffile")
    shutil.rmtree(photos / "more")
    (photos / "more").mkdir()
    tifffile.imwrite(
        photos / "more" / "five.tif", torch.zeros(5, 40, 60, dtype=torch.uint8).numpy()
    )
    with pytest.raises(DataError, match=r"none of the 1 images can be read: .*five.tif.*channels"):
        train("out")


@pytest.mark.slow
def test_labeled_images_in_the_folder_are_left_out(train, photos, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("PHOTOS", str(photos))
    train("out", unlabeled="${PHOTOS}/images")
    assert "6 of 10 images are left out" in caplog.text
    labels = json.loads((photos / "out/unlabeled/pseudo_labels.json").read_text())
    assert {row["file_name"] for row in labels["images"]} <= {f"{n}.png" for n in (7, 8, 9, 10)}


def test_runs_of_another_kind_are_not_resumed(train, photos):
    first = photos / "halves/unlabeled/labels_only"
    for folder in (photos / "ordinary", first):
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match=r"its run is one without DATASETS.UNLABELED"):
        train("ordinary", resume=True)
    with pytest.raises(ConfigError, match=r"resume this run with its DATASETS.UNLABELED"):
        train("halves", resume=True, unlabeled=None)
    config = f"DATASETS: {{UNLABELED: {photos / 'other'}}}"
    (photos / "halves/unlabeled/config.yaml").write_text(config)
    (photos / "halves/unlabeled/pseudo_labels.json").touch()
    with pytest.raises(ConfigError, match="contains detections in other images"):
        train("halves", resume=True)


def test_folder_that_the_second_half_could_not_name_is_refused(train, photos, monkeypatch):
    monkeypatch.delenv("ABSENT", raising=False)
    with pytest.raises(ConfigError, match=r"needs the environment variable ABSENT"):
        train("$ABSENT")
    assert not (photos / "$ABSENT/unlabeled").exists()


def test_config_with_pseudo_labels_is_refused(train, photos):
    entry = {"name": "pseudo_labels", "annotations": "a.json", "images": "a"}
    with pytest.raises(ConfigError, match=r"Start from unlabeled/config.yaml of that run"):
        train("out", {"DATASETS.CATALOG": [entry], "DATASETS.TRAIN": (), "DATASETS.TEST": ()})


def test_failed_start_is_not_a_run(train, photos, monkeypatch):
    """The stored path does not depend on the current folder."""
    monkeypatch.chdir(photos)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"missing.pth: cannot be read"):
            train("out", unlabeled="more", weights="missing.pth")
    stored = load_config(photos / "out/unlabeled/config.yaml")
    assert Path(stored.DATASETS.UNLABELED) == photos / "more"
