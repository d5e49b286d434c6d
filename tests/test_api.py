"""Training and evaluation by one call each."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import detlite
from detlite.apps import doctor as installation
from detlite.apps.cli import init
from detlite.config import ConfigError, load_config
from detlite.config.loading import flatten
from detlite.conversion.checkpoint.files import read_checkpoint
from detlite.data import DataError

# What makes the model small and the run short.
SMALL = {
    "MODEL.DEVICE": "cpu",
    "MODEL.RESNETS.STEM_OUT_CHANNELS": 8,
    "MODEL.RESNETS.RES2_OUT_CHANNELS": 8,
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": 16,
    "MODEL.GROUP_NORM.NUM_GROUPS": 4,
    "MODEL.RPN.PRE_NMS_TOP_N_TRAIN": 100,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN": 50,
    "MODEL.RPN.PRE_NMS_TOP_N_TEST": 100,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 30,
    "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM": 16,
    "MODEL.ROI_MASK_HEAD.CONV_LAYERS": (16,),
    "INPUT.MIN_SIZE_TRAIN": (64,),
    "INPUT.MIN_SIZE_TEST": 64,
    "DATALOADER.NUM_WORKERS": 0,
    "SOLVER.MAX_ITER": 2,
    "SOLVER.IMS_PER_BATCH": 2,
    "SOLVER.LOG_PERIOD": 1,
    "TEST.IMS_PER_BATCH": 1,
}


@pytest.fixture(scope="module", autouse=True)
def machine():
    """Without weights, whatever is installed."""
    with pytest.MonkeyPatch.context() as patch:
        found = installation.Resources(2, 16_000_000_000, "", 0, "float32", pretrained=False)
        patch.setattr("detlite.apps.autoconfig.configs.resources", lambda device: found)
        patch.setattr(installation, "resources", lambda: found)
        yield found


@pytest.fixture
def timed(monkeypatch):
    """The configs whose steps are timed, at a millisecond each."""
    configs = []
    monkeypatch.setattr(
        "detlite.apps.autoconfig.step_timing.mean_step_seconds",
        lambda cfg: configs.append(cfg) or 0.001,
    )
    return configs


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """(annotations, folder) of training and of test pictures."""
    root = tmp_path_factory.mktemp("api")
    found = []
    for split, count in (("train", 6), ("val", 3)):
        entry = {"name": split, "type": "shapes", "path": "shapes", "split": split}
        from detlite.data.datasets.catalog import DATASETS

        make = DATASETS.get("shapes", "type")
        found.append(make({**entry, "images": count, "seed": 1}, root))
    return found


@pytest.fixture(scope="module")
def trained(shapes, tmp_path_factory):
    """The result of a run that is given nothing but data."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train_data, test_data = shapes
    return detlite.train(data=train_data, test_data=test_data, output_dir=folder, overrides=SMALL)


def test_a_run_that_is_given_data_alone(trained, shapes):
    assert trained.output_dir.name == "run"
    assert trained.weights == trained.output_dir / "model_final.pth"
    assert trained.best_weights == trained.output_dir / "model_best.pth"
    assert trained.seconds > 0
    written = json.loads((trained.output_dir / "evaluation.json").read_text())
    assert trained.metrics == {"test": written}
    assert {"bbox", "segm"} <= written.keys()
    cfg = load_config(trained.output_dir / "config.yaml")
    categories = json.loads(shapes[0][0].read_text())["categories"]
    assert len(categories) + 1 == cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES
    assert cfg.MODEL.MASK_ON
    assert cfg.SOLVER.LR_SCHEDULE == "cosine"
    assert (trained.output_dir / "detections.png").exists()


def test_without_a_config_the_one_that_init_writes(shapes, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("detlite.engine.run.run_training", lambda cfg, resume: made.append(cfg))
    detlite.train(data=shapes[0], test_data=shapes[1], output_dir=tmp_path)
    file = tmp_path / "mine.yaml"
    (data, _), (test_data, _) = shapes
    file.write_text(init.config(data, test_data, None, tmp_path))
    wanted, found = dict(flatten(load_config(file))), dict(flatten(made[0]))
    # init has no such model
    wanted["MODEL.RETINANET.NUM_CLASSES"] = wanted["MODEL.ROI_BOX_HEAD.NUM_CLASSES"]
    differing = {key for key in wanted if wanted[key] != found[key]}
    names = ("ROOT", "CATALOG", "TRAIN", "TEST")
    assert differing == {"OUTPUT_DIR", *(f"DATASETS.{name}" for name in names)}
    base = dict(flatten(load_config("_base_/from_scratch_fpn.yaml")))
    assert found["MODEL.RPN.ANCHOR_SIZES"] != base["MODEL.RPN.ANCHOR_SIZES"]


def test_results_do_not_change(trained):
    with pytest.raises(AttributeError):
        trained.seconds = 0.0


def test_evaluation_measures_the_same(trained, shapes, tmp_path):
    found = detlite.evaluate(trained.weights, data=shapes[1], output_dir=tmp_path)
    assert found.metrics == trained.metrics
    assert (found.weights, found.output_dir) == (trained.weights, tmp_path)
    assert (tmp_path / "results_test.json").exists()
    by_config = detlite.evaluate(
        config=trained.output_dir / "config.yaml",
        overrides={"MODEL.WEIGHT": str(trained.weights), "OUTPUT_DIR": str(tmp_path)},
    )
    assert by_config.metrics == trained.metrics


def test_an_evaluation_leaves_that_of_the_training(trained, shapes):
    before = (trained.output_dir / "evaluation.json").read_bytes()
    found = detlite.evaluate(trained.weights, data=shapes[0], overrides={"TEST.IMS_PER_BATCH": 2})
    assert found.output_dir == trained.output_dir / "evaluation"
    assert (found.output_dir / "evaluation.json").exists()
    assert (trained.output_dir / "evaluation.json").read_bytes() == before


def test_weights_by_name_are_the_file_that_they_stand_for(trained, tmp_path, monkeypatch):
    from detlite.conversion.download import weight_catalog as published

    monkeypatch.setitem(published._LOCAL, "known", lambda name: trained.weights.with_name(name))
    found = detlite.evaluate(
        "known://model_final.pth",
        config=trained.output_dir / "config.yaml", output_dir=tmp_path,
    )  # fmt: skip
    assert found.weights == trained.weights


def test_data_at_urls(shapes, tmp_path):
    pytest.importorskip("fsspec", reason="needs detlite[remote]")
    urls = tuple(f"file://{path}" for path in shapes[0])
    result = detlite.train(
        data=urls, output_dir=tmp_path / "run", overrides=SMALL | {"SOLVER.MAX_ITER": 1}
    )
    (entry,) = load_config(result.output_dir / "config.yaml").DATASETS.CATALOG
    assert (entry["annotations"], entry["images"]) == urls


def test_home_and_variables_are_expanded(trained, shapes, tmp_path, monkeypatch):
    annotations, folder = shapes[1]
    (tmp_path / "found.json").write_bytes(annotations.read_bytes())
    (tmp_path / "model.pth").write_bytes(trained.weights.read_bytes())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PHOTOS", str(folder))
    result = detlite.evaluate("~/model.pth", data=("~/found.json", "$PHOTOS"))
    assert result.weights == tmp_path / "model.pth"
    assert result.output_dir == tmp_path / "evaluation"
    assert result.metrics["test"]["bbox"]


def test_training_goes_on_from_weights_of_other_classes(trained, shapes, tmp_path):
    """The model is that of the checkpoint; classes of the same name keep their rows."""
    annotations, folder = shapes[0]
    content = json.loads(annotations.read_text())
    names = [row["name"] for row in content["categories"]]
    content["categories"][0]["name"] = "new"
    other = annotations.with_name("other.json")
    other.write_text(json.dumps(content))
    still = {"SOLVER.BASE_LR": 1e-30, "SOLVER.MAX_ITER": 1, "SOLVER.IMS_PER_BATCH": 2}
    result = detlite.train(
        data=(other, folder), weights=trained.weights, output_dir=tmp_path / "run",
        overrides=still | {"DATALOADER.NUM_WORKERS": 0},
    )  # fmt: skip
    assert (result.metrics, result.best_weights) == ({}, None)
    name = "roi_heads.box.predictor.cls_score.weight"
    before, after = (read_checkpoint(run.weights) for run in (trained, result))
    assert [row["name"] for row in after.categories] == ["new", *names[1:]]
    torch.testing.assert_close(after.model[name][2:], before.model[name][2:])
    assert not torch.equal(after.model[name][1], before.model[name][1])
    assert "newly initialized: new" in (tmp_path / "run" / "log.txt").read_text()
    assert load_config(result.output_dir / "config.yaml").INPUT.MIN_SIZE_TEST == 64


def test_a_run_goes_on_without_what_it_started_from(trained, shapes, tmp_path):
    start = tmp_path / "start.pth"
    start.write_bytes(trained.weights.read_bytes())
    call = {"data": shapes[0], "weights": start, "output_dir": tmp_path / "run"}
    overrides = {"DATALOADER.NUM_WORKERS": 0, "MODEL.DEVICE": "cpu", "SOLVER.MAX_ITER": 1}
    detlite.train(**call, overrides=overrides)
    start.unlink()
    result = detlite.train(**call, overrides=overrides | {"SOLVER.MAX_ITER": 2}, resume=True)
    assert read_checkpoint(result.weights).training["iteration"] == 2


def test_a_run_that_is_resumed_as_it_was_has_no_other_config(trained, shapes, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained.output_dir, folder)
    detlite.train(
        data=shapes[0], test_data=shapes[1], output_dir=folder, overrides=SMALL, resume=True
    )
    log = (folder / "log.txt").read_text()
    assert "resumed" in log
    assert "another config" not in log


def test_a_folder_as_init_takes_it(shapes, tmp_path):
    """A part of it is set apart, and is not trained on."""
    annotations, images = shapes[0]
    folder = tmp_path / "photos"
    shutil.copytree(images, folder / "images")
    shutil.copy(annotations, folder / "annotations.json")
    opts = SMALL | {"SOLVER.MAX_ITER": 1, "SOLVER.IMS_PER_BATCH": 1}
    result = detlite.train(data=str(folder), output_dir=tmp_path / "run", overrides=opts)
    assert result.metrics["test"]["bbox"]
    assert "data: read as COCO json; " in (tmp_path / "run" / "log.txt").read_text()
    halves = [
        {row["id"] for row in json.loads(Path(entry["annotations"]).read_text())["images"]}
        for entry in load_config(tmp_path / "run" / "config.yaml").DATASETS.CATALOG
    ]
    assert halves[0] & halves[1] == set()
    every = {row["id"] for row in json.loads(annotations.read_text())["images"]}
    assert halves[0] | halves[1] == every


def test_paths_to_train_and_to_test_on(shapes, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("detlite.engine.run.run_training", lambda cfg, resume: made.append(cfg))
    folders = []
    for (file, images), name in zip(shapes, ("photos", "others"), strict=True):
        folders.append(tmp_path / name)
        shutil.copytree(images, folders[-1] / "images")
        shutil.copy(file, folders[-1] / "annotations.json")
    detlite.train(
        "demo_shapes.yaml", data=folders[0], test_data=folders[1], output_dir=tmp_path / "run"
    )
    found = {row["name"]: row["annotations"] for row in made[0].DATASETS.CATALOG}
    assert found == {
        name: str(folder / "annotations.json")
        for name, folder in zip(("train", "test"), folders, strict=True)
    }


def test_what_is_no_data_is_told(shapes):
    with pytest.raises(ConfigError, match="must be a file; data are named as `data=`"):
        detlite.train(shapes[0])
    with pytest.raises(ConfigError, match=r"^data is 3: it must be"):
        detlite.train(data=3)
    with pytest.raises(ConfigError, match=r"^data is 3: it must be"):
        detlite.evaluate("model.pth", data=3)


def test_what_the_caller_logs_is_left_alone(trained, shapes, tmp_path):
    root = logging.getLogger()
    before = list(root.handlers), root.level, warnings.showwarning
    detlite.evaluate(trained.weights, data=shapes[1], output_dir=tmp_path)
    assert (list(root.handlers), root.level, warnings.showwarning) == before
    text = (tmp_path / "log.txt").read_text()
    logging.getLogger("mine").warning("after the call")
    assert (tmp_path / "log.txt").read_text() == text != ""


def test_minutes_and_resuming(timed, shapes, tmp_path):
    overrides = {key: value for key, value in SMALL.items() if key != "SOLVER.MAX_ITER"}
    call = {"data": shapes[0], "minutes": 0.02, "output_dir": tmp_path / "run"}
    result = detlite.train(**call, overrides=overrides)
    training = read_checkpoint(result.weights).training
    assert training["budget"]["seconds"] < 60 * 0.02 + 30  # a step may be long, but it is the last
    assert training["iteration"] == len(training["budget"]["shares"])
    cfg = load_config(tmp_path / "run" / "config.yaml")
    assert cfg.SOLVER.WARMUP_ITERS == 100  # 1200 steps fit
    assert [one.MODEL.ROI_MASK_HEAD.CONV_LAYERS for one in timed] == [(16,)]
    again = detlite.train(**call, overrides=overrides, resume=True)
    assert read_checkpoint(again.weights).training["iteration"] == training["iteration"]
    assert len(timed) == 1  # the config is that of the run
    with pytest.raises(ConfigError, match="holds a run already"):
        detlite.train(**call, overrides=overrides)


def test_minutes_for_weights_are_timed_as_well(timed, trained, shapes, tmp_path):
    result = detlite.train(
        data=shapes[0], weights=trained.weights, minutes=0.001, output_dir=tmp_path / "run",
        overrides={"MODEL.DEVICE": "cpu"},
    )  # fmt: skip
    cfg = load_config(result.output_dir / "config.yaml")
    assert [one.MODEL.WEIGHT for one in timed] == [str(trained.weights)]
    assert (cfg.SOLVER.MAX_MINUTES, cfg.SOLVER.MAX_ITER) == (0.001, None)
    assert cfg.SOLVER.WARMUP_ITERS == 6  # of 60 steps
    assert cfg.MODEL.RESNETS.RES2_OUT_CHANNELS == 8
    assert cfg.INPUT.MIN_SIZE_TRAIN == (64,)
    assert cfg.SOLVER.IMS_PER_BATCH == 5  # all that have objects, as they are small


SEVERAL = """
import sys
import detlite

detlite.train(data=({data!r}, {images!r}), output_dir={folder!r}, minutes=0.001, overrides={opts!r})
"""


def test_processes_take_one_config(shapes, free_port, tmp_path):
    data, images = map(str, shapes[0])
    skipped = "SOLVER.IMS_PER_BATCH", "SOLVER.MAX_ITER"
    opts = {key: value for key, value in SMALL.items() if key not in skipped}
    script = tmp_path / "script.py"
    script.write_text(
        SEVERAL.format(data=data, images=images, folder=str(tmp_path / "run"), opts=opts)
    )
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    env |= {"WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script)], env={**env, "RANK": rank, "LOCAL_RANK": rank}
        )
        for rank in "01"
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    cfg = load_config(tmp_path / "run" / "config.yaml")
    assert cfg.SOLVER.MAX_MINUTES == 0.001
    assert cfg.SOLVER.IMS_PER_BATCH == 4  # of five pictures with objects


def test_a_folder_without_a_training_has_nothing_to_resume(trained, shapes, tmp_path):
    """An evaluation leaves a config.yaml as well."""
    detlite.evaluate(trained.weights, data=shapes[1], output_dir=tmp_path)
    small = SMALL | {"SOLVER.MAX_ITER": 1, "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM": 24}
    detlite.train(data=shapes[0], output_dir=tmp_path, overrides=small, resume=True)
    cfg = load_config(tmp_path / "config.yaml")
    assert (cfg.MODEL.WEIGHT, cfg.DATASETS.TEST) == ("", ())
    assert "chosen: MODEL.RPN.ANCHOR_SIZES" in (tmp_path / "log.txt").read_text()


def test_a_folder_that_holds_a_run_is_told_at_once(trained, shapes, timed):
    with pytest.raises(ConfigError, match="holds a run already"):
        detlite.train(data=shapes[0], output_dir=trained.output_dir, minutes=1)
    assert not timed


def test_overrides_as_the_commands_give_them(shapes, tmp_path):
    with pytest.raises(ConfigError, match=r"pairs KEY VALUE: 'SOLVER\.MAX_ITER' has no value"):
        detlite.train("demo_shapes.yaml", overrides=["SOLVER.MAX_ITER"])
    with pytest.raises(ConfigError, match=r"unknown config key SOLVER\.MAX_ITERS"):
        detlite.train("demo_shapes.yaml", overrides={"SOLVER.MAX_ITERS": 3})


def test_what_is_missing_is_named(shapes, tmp_path):
    with pytest.raises(ConfigError, match=r"train\(\) needs a config, or data"):
        detlite.train()
    with pytest.raises(ConfigError, match="test_data needs data to train on"):
        detlite.train("demo_shapes.yaml", test_data=shapes[1])
    with pytest.raises(ConfigError, match=r"evaluate\(\) needs weights"):
        detlite.evaluate()
    with pytest.raises(DataError, match=r"annotation file .*none\.json does not exist"):
        detlite.train(data=("none.json", tmp_path))
    torch.save({"weight": torch.zeros(1)}, tmp_path / "bare.pth")
    with pytest.raises(ConfigError, match=r"bare\.pth: does not say which detector .* config"):
        detlite.train(data=shapes[0], weights=tmp_path / "bare.pth")


@pytest.mark.parametrize("kind", ["GeneralizedRCNN", "RetinaNet"])
def test_pictures_without_objects_teach_the_background(shapes, tmp_path, kind):
    """Alone in a batch, and put together with others."""
    annotations, folder = shapes[0]
    content = json.loads(annotations.read_text())
    few = {row["id"] for row in content["images"][:2]}
    content["annotations"] = [row for row in content["annotations"] if row["image_id"] in few]
    empty = annotations.with_name("empty.json")
    empty.write_text(json.dumps(content))
    more = {"INPUT.COPY_PASTE_PROB": 0.5} if kind == "GeneralizedRCNN" else {}
    result = detlite.train(
        data=(empty, folder), test_data=(empty, folder), output_dir=tmp_path / "run",
        overrides=SMALL | more | {
            "DATASETS.BACKGROUND_IMAGES": True, "SOLVER.IMS_PER_BATCH": 1, "SOLVER.MAX_ITER": 6,
            "INPUT.MOSAIC_PROB": 0.3, "TEST.LOSS": True, "MODEL.META_ARCHITECTURE": kind,
            "MODEL.MASK_ON": kind == "GeneralizedRCNN",
        },
    )  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert 0 in [row.get("loss_box") for row in rows]
    assert all(math.isfinite(row["loss"]) for row in rows if "loss" in row)
    assert result.metrics["test"]["loss"]["total"] > 0


def test_data_without_masks_trains_boxes(shapes, tmp_path):
    annotations, folder = shapes[0]
    content = json.loads(annotations.read_text())
    for row in content["annotations"]:
        row.pop("segmentation")
    boxes = annotations.with_name("boxes.json")
    boxes.write_text(json.dumps(content))
    result = detlite.train(data=(boxes, folder), output_dir=tmp_path / "run", overrides=SMALL)
    assert not any(".mask." in name for name in read_checkpoint(result.weights).model)


def test_importing_stays_light():
    """What only a run needs is imported by it."""
    heavy = ("matplotlib", "tensorboard", "detlite.engine.run", "detlite.apps.drawing", "timm")
    code = f"import sys, detlite; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
