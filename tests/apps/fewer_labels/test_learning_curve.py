"""The learning curve: parts of the labels, the answer, and the files of the command."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from detlite.apps.cli.main import main
from detlite.apps.fewer_labels.learning_curve import _answer, _write_labels
from detlite.checkpoint.files import read_checkpoint
from detlite.config import load_config
from tests.builders import write_coco_dataset, write_shapes_config


@pytest.fixture
def curve(tmp_path):
    """Return a function that runs the command on 8 generated images with objects and 1 without."""
    config = write_shapes_config(tmp_path / "config.yaml", tmp_path)
    config.write_text(config.read_text().replace("images: 8", "images: 9"))

    def run(*words):
        output = "--output", str(tmp_path / "out")
        return main(["learning-curve", "--config", str(config), *output, *map(str, words)])

    return run


@pytest.mark.slow
def test_runs_differ_only_in_their_labels(curve, tmp_path, capsys):
    out = tmp_path / "out"
    assert curve("SOLVER.MAX_EPOCHS", "0.5") == 0
    answer = "With 8 labeled images instead of 4, the AP for masks changes by "
    assert answer in capsys.readouterr().out
    page = (out / "report.html").read_text()
    assert answer in page
    assert "labeled images</text>" in page
    logs = {name: (out / name / "log.txt").read_text() for name in ("all", "half", "quarter")}
    assert "training on shapes_train (8 images) for 2 iterations" in logs["all"]
    assert "training on shapes_train_half (4 images) for 2 iterations" in logs["half"]
    assert "training on shapes_train_quarter (2 images) for 2 iterations" in logs["quarter"]
    labels = {name: (out / name / "labels/shapes_train.json") for name in ("half", "quarter")}
    ids = {name: {row["id"] for row in json.loads(file.read_text())["images"]}
           for name, file in labels.items()}  # fmt: skip
    assert ids["quarter"] < ids["half"]
    assert curve("SOLVER.MAX_EPOCHS", "0.5") == 2
    assert "already contains a run" in capsys.readouterr().err
    labels["half"].write_text(labels["quarter"].read_text())
    for file in filter(Path.is_file, (out / "half").iterdir()):
        file.unlink()  # as if the run had not started
    assert curve("SOLVER.MAX_EPOCHS", "0.5", "--resume") == 0
    assert labels["half"].read_text() == labels["quarter"].read_text()
    assert "8 labeled images instead of 2" in capsys.readouterr().out


@pytest.mark.slow
def test_runs_of_some_minutes_have_equally_many_steps(curve, tmp_path):
    assert curve("SOLVER.MAX_MINUTES", "0.02", "SOLVER.TEST_PERIOD", "0") == 0
    runs = [tmp_path / "out" / name for name in ("all", "half", "quarter")]
    steps = {read_checkpoint(run / "model_final.pth").training["iteration"] for run in runs}
    assert len(steps) == 1
    assert load_config(runs[1] / "config.yaml").SOLVER.MAX_MINUTES is None


def test_parts_have_labeled_images_and_others_in_proportion(tmp_path):
    annotations, images = write_coco_dataset(tmp_path, "all", images=24)
    content = json.loads(annotations.read_text())
    kept = [row for row in content["annotations"] if row["image_id"] > 8]
    annotations.write_text(json.dumps(content | {"annotations": kept}))
    entry = {"name": "all", "annotations": str(annotations), "images": str(images)}
    cfg = load_config(None, ["DATASETS.CATALOG", [entry], "DATASETS.TRAIN", ("all",)])
    for part, labeled, others in ((2, 8, 4), (4, 4, 2)):
        keys = _write_labels(cfg, tmp_path / str(part), part, keep=False)
        assert keys["DATASETS.TRAIN"] == (f"all_{part}",)
        content = json.loads((tmp_path / str(part) / "labels/all.json").read_text())
        ids = {row["id"] for row in content["images"]}
        assert len({id for id in ids if id > 8}) == labeled
        assert len(ids) == labeled + others
        assert {row["image_id"] for row in content["annotations"]} == {i for i in ids if i > 8}


def analyzed(images, ap, samples):
    result = SimpleNamespace(
        metrics={"AP": ap},
        bootstrap=SimpleNamespace(metrics=lambda: {"AP": np.array(samples)}),
    )
    run = SimpleNamespace(train_images=images)
    return SimpleNamespace(run=run, dataset=range(30), analyses={"bbox": result})


@pytest.mark.parametrize(
    ("ap", "spread", "answer"),
    [
        (0.5, 0.01, "+10.0 points (95 % interval: +9.0 to +11.0): more labels will probably help"),
        (0.41, 0.2, "+1.0 points (95 % interval: -19.0 to +21.0): 30 test images are too few"),
        (0.405, 0.01, "more labels of this kind will hardly help"),
        (0.3, 0.01, "-10.0 points (95 % interval: -11.0 to -9.0): fewer labels gave a better"),
        (0.4, 0.0, "the AP for boxes changes by +0.0 points: the runs detect too little to"),
        (0.3, 0.0, "the AP for boxes changes by -10.0 points: 30 test images are too few to tell"),
        (None, 0.01, "The test set has no objects"),
    ],
)  # fmt: skip
def test_answer_follows_the_interval(ap, spread, answer):
    base = np.full(2, 0.4)
    after = base + (ap or 0) - 0.4 + [-spread, spread]
    # The interval of the 2.5 and 97.5 percentiles of two samples is 95 % of their distance.
    after = (after - after.mean()) / 0.95 + after.mean()
    assert answer in _answer([analyzed(20, ap, after), analyzed(10, 0.4, base)])


def test_labels_of_a_run_that_did_not_start_are_replaced(curve, tmp_path):
    assert curve("MODEL.WEIGHT", tmp_path / "missing.pth") == 2
    file = tmp_path / "out/half/labels/shapes_train.json"
    written = file.read_text()
    file.write_text("{}")
    assert curve("MODEL.WEIGHT", tmp_path / "missing.pth", "--resume") == 2
    assert file.read_text() == written


def test_an_existing_run_on_a_part_is_found_before_training(curve, tmp_path, capsys):
    part = tmp_path / "out/quarter"
    part.mkdir(parents=True)
    (part / "metrics.jsonl").touch()
    assert curve() == 2
    assert f"{part} already contains a run" in capsys.readouterr().err
    assert not (tmp_path / "out/all").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["DATASETS.TEST", "()"], "DATASETS.TEST is empty: the runs need images"),
        (["DATASETS.UNLABELED", "more"], "DATASETS.UNLABELED must be empty"),
        (
            ["DATASETS.TRAIN", "('shapes_val',)"],
            "5 images have labels, but a curve needs at least 8",
        ),
    ],
)
def test_errors_before_training(curve, words, message, capsys, tmp_path):
    assert curve(*words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out" / "all").exists()
