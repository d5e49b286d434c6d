"""`detlite.train` and `detlite.evaluate`."""

import json
import math
import os
import random
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import detlite
from detlite.apps.cli.main import main
from detlite.apps.doctor.machine import Resources
from detlite.checkpoint import weight_catalog
from detlite.checkpoint.files import read_checkpoint
from detlite.config import ConfigError, extensions, load_config
from detlite.config.loading import flatten
from detlite.data import DataError
from detlite.data.datasets.catalog import DATASETS
from detlite.engine.hooks import HOOKS, Hook
from detlite.engine.run_files import run_lock
from detlite.modeling.build import META_ARCHITECTURES
from tests.builders import NARROW, leave_drawings_empty

# Overrides for a small model and a short run.
SMALL = NARROW | {
    "MODEL.DEVICE": "cpu",
    "MODEL.RPN.PRE_NMS_TOP_N_TRAIN": 100,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN": 50,
    "MODEL.RPN.PRE_NMS_TOP_N_TEST": 100,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 30,
    "MODEL.ROI_MASK_HEAD.CONV_LAYERS": (16,),
    "DATALOADER.NUM_WORKERS": 0,
    "SOLVER.MAX_ITER": 2,
    "SOLVER.IMS_PER_BATCH": 2,
    "SOLVER.LOG_PERIOD": 1,
    "TEST.IMS_PER_BATCH": 1,
    "TEST.OPTIMIZE": False,
    "TEST.REPORT": False,
}
SHORT = {"SOLVER.MAX_ITER": 1, "SOLVER.IMS_PER_BATCH": 1}


@pytest.fixture(scope="module", autouse=True)
def machine():
    """Pretend that no pretrained weights are installed, draw nothing, and report nothing."""
    with pytest.MonkeyPatch.context() as patch:
        leave_drawings_empty(patch)
        patch.setattr("detlite.apps.report.run_drawings.report_page", lambda runs: "page")
        resources = Resources(2, 16_000_000_000, "", 0, "float32", pretrained=False)
        patch.setattr("detlite.apps.autoconfig.configs.resources", lambda device: resources)
        yield


@pytest.fixture
def timed(monkeypatch):
    """Record the configs whose steps are timed, and return a millisecond for each."""
    configs = []
    monkeypatch.setattr(
        "detlite.apps.autoconfig.time_budget.mean_step_seconds",
        lambda cfg, _: configs.append(cfg) or 0.001,
    )
    return configs


@pytest.fixture
def configs(monkeypatch):
    """Record the configs of runs instead of training."""
    recorded = []
    monkeypatch.setattr("detlite.apps.api.run_training", lambda cfg, *_: recorded.append(cfg))
    return recorded


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """(annotation file, folder) of training and of test images."""
    root = tmp_path_factory.mktemp("api")
    datasets = []
    make = DATASETS.get("shapes", "type")
    for split, count in (("train", 6), ("val", 3)):
        entry = {"name": split, "type": "shapes", "path": "shapes", "split": split}
        datasets.append(make({**entry, "images": count, "seed": 1}, root))
    return datasets


def photos(dataset, folder):
    """Copy images and annotations to a folder."""
    annotations, images = dataset
    shutil.copytree(images, folder / "images")
    shutil.copy(annotations, folder / "annotations.json")
    return folder


def changed(dataset, name, change):
    """Write annotations that a function changes, and return the dataset with them."""
    annotations, images = dataset
    content = json.loads(annotations.read_text())
    change(content)
    annotations.with_name(name).write_text(json.dumps(content))
    return annotations.with_name(name), images


class CountSteps(Hook):
    steps = 0

    def after_step(self, losses):
        self.steps += 1


@pytest.fixture(scope="module")
def counter():
    return CountSteps()


@pytest.fixture(scope="module")
def trained(shapes, counter, tmp_path_factory):
    """Result of a run without a config, with a report."""
    train_data, test_data = shapes
    return detlite.train(
        data=train_data, test_data=test_data, output_dir=tmp_path_factory.mktemp("trained") / "run",
        overrides=SMALL | {"TEST.REPORT": True}, hooks=[counter],
    )  # fmt: skip


def test_training_with_data_only(trained, counter, shapes):
    assert counter.steps == 2
    assert trained.output_dir.name == "run"
    assert trained.weights == trained.output_dir / "model_final.pth"
    assert trained.best_weights == trained.output_dir / "model_best.pth"
    assert trained.seconds > 0
    with pytest.raises(AttributeError):
        trained.seconds = 0.0
    written = json.loads((trained.output_dir / "evaluation.json").read_text())
    assert trained.metrics == {"test": written}
    assert {"bbox", "segm"} <= written.keys()
    cfg = load_config(trained.output_dir / "config.yaml")
    categories = json.loads(shapes[0][0].read_text())["categories"]
    assert len(categories) + 1 == cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES
    assert cfg.MODEL.MASK_ON
    assert cfg.SOLVER.LR_SCHEDULE == "cosine"
    for name in ("curves.png", "detections.png", "last_checkpoint", "report.html"):
        assert (trained.output_dir / name).exists()
    assert "AP50" in (trained.output_dir / "log.txt").read_text()
    losses, *_ = (trained.output_dir / "metrics.jsonl").read_text().splitlines()
    names = {"loss_objectness", "loss_rpn_box", "loss_classifier_stage1", "loss_mask"}
    assert {*names, "loss_box_stage1"} <= json.loads(losses).keys()


def test_without_a_config_detlite_init_chooses_it(shapes, tmp_path, configs, capsys):
    detlite.train(data=shapes[0], test_data=shapes[1], output_dir=tmp_path)
    file = tmp_path / "mine.yaml"
    (data, _), (test_data, _) = shapes
    capsys.readouterr()
    arguments = "--data", data, "--val", test_data, "--annotations", tmp_path
    assert main(["init", *map(str, arguments)]) == 0
    file.write_text(capsys.readouterr().out)
    expected, actual = dict(flatten(load_config(file))), dict(flatten(configs[0]))
    # `detlite init` writes no RetinaNet.
    expected["MODEL.RETINANET.NUM_CLASSES"] = expected["MODEL.ROI_BOX_HEAD.NUM_CLASSES"]
    differing = {key for key in expected if expected[key] != actual[key]}
    names = ("ROOT", "CATALOG", "TRAIN", "TEST")
    assert differing == {"OUTPUT_DIR", *(f"DATASETS.{name}" for name in names)}
    base = dict(flatten(load_config("_base_/from_scratch_fpn.yaml")))
    assert actual["MODEL.RPN.ANCHOR_SIZES"] != base["MODEL.RPN.ANCHOR_SIZES"]


def test_data_as_the_first_argument_and_numbered_folders(shapes, tmp_path, configs, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        detlite.train(str(shapes[0][0]), overrides=SMALL)
        assert configs[-1].DATASETS.TRAIN == ("train",)
        (tmp_path / configs[-1].OUTPUT_DIR / "metrics.jsonl").touch()
    assert [cfg.OUTPUT_DIR for cfg in configs] == ["output", "output_2"]
    with pytest.raises(ConfigError, match="already contains a run"):
        detlite.train(str(shapes[0][0]), output_dir="output", overrides=SMALL)


def test_a_second_run_in_the_folder_is_refused(trained, shapes, tmp_path):
    for call in (
        partial(detlite.train, data=shapes[0]),
        partial(detlite.evaluate, trained.weights),
    ):
        with run_lock(tmp_path), pytest.raises(ConfigError, match="another run is writing"):
            call(output_dir=tmp_path, overrides=SMALL)
    assert not list(tmp_path.iterdir())
    assert not list(trained.output_dir.glob(".*.lock"))


def test_evaluation_reproduces_the_metrics_of_training(trained, shapes, tmp_path):
    result = detlite.evaluate(trained.weights, data=shapes[1], output_dir=tmp_path)
    assert result.metrics == trained.metrics
    assert (result.weights, result.output_dir) == (trained.weights, tmp_path)
    results = [(run.output_dir / "results_test.json").read_bytes() for run in (result, trained)]
    assert results[0] == results[1]
    by_config = detlite.evaluate(
        config=trained.output_dir / "config.yaml",
        overrides={"MODEL.WEIGHT": str(trained.weights), "OUTPUT_DIR": str(tmp_path)},
    )
    assert by_config.metrics == trained.metrics


class RoundsAP(Hook):
    def __init__(self, cfg):
        pass

    def after_evaluation(self, metrics):
        assert self.trainer.model.categories
        metrics["test"]["rounded"] = {"AP": round(metrics["test"]["bbox"]["AP"], 1)}


def test_hooks_add_metrics_to_an_evaluation(trained, shapes, tmp_path, monkeypatch):
    monkeypatch.setattr(HOOKS, "_builders", {"RoundsAP": RoundsAP})
    opts = {"SOLVER.HOOKS": ("RoundsAP",)}
    detlite.evaluate(trained.weights, data=shapes[1], output_dir=tmp_path, overrides=opts)
    written = json.loads((tmp_path / "evaluation.json").read_text())
    assert written["rounded"]["AP"] == round(trained.metrics["test"]["bbox"]["AP"], 1)


def test_an_evaluation_does_not_overwrite_the_one_of_training(trained, shapes):
    before = (trained.output_dir / "evaluation.json").read_bytes()
    result = detlite.evaluate(trained.weights, data=shapes[0], overrides={"TEST.IMS_PER_BATCH": 2})
    assert result.output_dir == trained.output_dir / "evaluation"
    assert (result.output_dir / "evaluation.json").exists()
    assert (trained.output_dir / "evaluation.json").read_bytes() == before


def test_the_result_names_the_file_of_weights_in_the_catalog(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(
        weight_catalog._SCHEMES, "known", lambda name, _: trained.weights.with_name(name)
    )
    result = detlite.evaluate(
        "known://model_final.pth",
        config=trained.output_dir / "config.yaml", output_dir=tmp_path,
    )  # fmt: skip
    assert result.weights == trained.weights


def test_data_at_urls(shapes, tmp_path, configs):
    pytest.importorskip("fsspec", reason="needs detlite[remote]")
    urls = tuple(f"file://{path}" for path in shapes[0])
    detlite.train(data=urls, output_dir=tmp_path / "run", overrides=SMALL)
    (entry,) = configs[0].DATASETS.CATALOG
    assert (entry["annotations"], entry["images"]) == urls


def test_home_and_variables_are_expanded(trained, shapes, tmp_path, monkeypatch):
    annotations, folder = shapes[1]
    (tmp_path / "copy.json").write_bytes(annotations.read_bytes())
    (tmp_path / "model.pth").write_bytes(trained.weights.read_bytes())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PHOTOS", str(folder))
    result = detlite.evaluate("~/model.pth", data=("~/copy.json", "$PHOTOS"))
    assert result.weights == tmp_path / "model.pth"
    assert result.output_dir == tmp_path / "evaluation"
    assert result.metrics["test"]["bbox"]


def test_training_from_weights_with_other_classes(trained, shapes, tmp_path):
    """The model is the checkpoint's, and classes with the same name keep their weights."""
    data = changed(shapes[0], "other.json", lambda all: all["categories"][0].update(name="new"))
    names = [row["name"] for row in json.loads(data[0].read_text())["categories"]]
    no_change = {"SOLVER.BASE_LR": 1e-30, "SOLVER.MAX_ITER": 1, "SOLVER.IMS_PER_BATCH": 2}
    result = detlite.train(
        data=data, weights=trained.weights, output_dir=tmp_path / "run",
        overrides=no_change | {"DATALOADER.NUM_WORKERS": 0},
    )  # fmt: skip
    assert (result.metrics, result.best_weights) == ({}, None)
    name = "roi_heads.box.predictor.cls_score.weight"
    before, after = (read_checkpoint(run.weights) for run in (trained, result))
    assert [row["name"] for row in after.categories] == names
    torch.testing.assert_close(after.model[name][2:], before.model[name][2:])
    assert not torch.equal(after.model[name][1], before.model[name][1])
    assert "newly initialized: new" in (tmp_path / "run" / "log.txt").read_text()
    assert load_config(result.output_dir / "config.yaml").INPUT.MIN_SIZE_TEST == 64


def test_resuming_does_not_need_the_initial_weights(trained, shapes, tmp_path):
    start = tmp_path / "start.pth"
    start.write_bytes(trained.weights.read_bytes())
    call = {"data": shapes[0], "weights": start, "output_dir": tmp_path / "run"}
    overrides = {"DATALOADER.NUM_WORKERS": 0, "MODEL.DEVICE": "cpu", "SOLVER.MAX_ITER": 1}
    detlite.train(**call, overrides=overrides)
    start.unlink()
    result = detlite.train(**call, overrides=overrides | {"SOLVER.MAX_ITER": 2}, resume=True)
    assert read_checkpoint(result.weights).training["iteration"] == 2


def test_a_folder_is_split_into_training_and_test_data(shapes, tmp_path):
    folder, opts = photos(shapes[0], tmp_path / "photos"), SMALL | SHORT
    result = detlite.train(data=str(folder), output_dir=tmp_path / "run", overrides=opts)
    assert result.metrics["test"]["bbox"]
    assert "data: read as COCO json; " in (tmp_path / "run" / "log.txt").read_text()
    splits = [
        {row["id"] for row in json.loads(Path(entry["annotations"]).read_text())["images"]}
        for entry in load_config(tmp_path / "run" / "config.yaml").DATASETS.CATALOG
    ]
    assert splits[0] & splits[1] == set()
    all_ids = {row["id"] for row in json.loads(shapes[0][0].read_text())["images"]}
    assert splits[0] | splits[1] == all_ids


def test_a_single_class_and_all_images(shapes, tmp_path, caplog):
    """Both splits are trained on, without an evaluation, and categories become one."""
    result = detlite.train(
        data=photos(shapes[0], tmp_path / "photos"), output_dir=tmp_path / "run",
        overrides=SMALL | SHORT, single_class=True, all_images=True,
    )  # fmt: skip
    assert result.metrics == {}
    cfg = load_config(tmp_path / "run" / "config.yaml")
    assert (cfg.DATASETS.TRAIN, cfg.DATASETS.TEST) == (("train", "test"), ())
    assert cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES == 2
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "training on all images (train, test): no validation images remain" in log
    assert "training on train + test (5 images)" in log  # one has no objects
    (category,) = detlite.load_checkpoint(result.weights).categories
    assert category["name"] == "object"


def test_folders_of_training_and_test_data(shapes, tmp_path, configs):
    folders = [photos(one, tmp_path / str(number)) for number, one in enumerate(shapes)]
    detlite.train(
        "demo_shapes.yaml", data=folders[0], test_data=folders[1], output_dir=tmp_path / "run"
    )
    annotations = {row["name"]: row["annotations"] for row in configs[0].DATASETS.CATALOG}
    assert annotations == {
        name: str(folder / "annotations.json")
        for name, folder in zip(("train", "test"), folders, strict=True)
    }


def test_minutes_and_resuming(timed, shapes, tmp_path):
    overrides = {key: value for key, value in SMALL.items() if key != "SOLVER.MAX_ITER"}
    call = {"data": shapes[0], "minutes": 0.02, "output_dir": tmp_path / "run"}
    result = detlite.train(**call, overrides=overrides)
    training = read_checkpoint(result.weights).training
    assert training["run_length"]["seconds"] < 60 * 0.02 + 30  # the last step may be long
    cfg = load_config(tmp_path / "run" / "config.yaml")
    assert cfg.SOLVER.WARMUP_ITERS == 100  # 1200 steps fit
    assert [one.MODEL.ROI_MASK_HEAD.CONV_LAYERS for one in timed] == [(16,)]
    resumed = detlite.train(**call, overrides=overrides, resume=True)
    assert read_checkpoint(resumed.weights).training["iteration"] == training["iteration"]
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "resumed" in log
    assert "another config" not in log
    with pytest.raises(ConfigError, match="already contains a run"):
        detlite.train(**call, overrides=overrides)
    assert len(timed) == 1  # not with the config of a run, nor in a folder that is refused


def test_steps_are_timed_for_weights_and_minutes(timed, trained, shapes, tmp_path):
    result = detlite.train(
        data=shapes[0], weights=trained.weights, minutes=0.001, output_dir=tmp_path / "run",
        overrides={"MODEL.DEVICE": "cpu"},
    )  # fmt: skip
    cfg = load_config(result.output_dir / "config.yaml")
    assert {one.MODEL.WEIGHT for one in timed} == {str(trained.weights)}
    assert (cfg.SOLVER.MAX_MINUTES, cfg.SOLVER.MAX_ITER) == (0.001, None)
    assert cfg.SOLVER.WARMUP_ITERS == 6  # of 60 steps
    assert cfg.MODEL.RESNETS.RES2_OUT_CHANNELS == 8
    assert cfg.INPUT.MIN_SIZE_TRAIN == (64,)
    assert cfg.SOLVER.IMS_PER_BATCH == 1  # 5 images per step would allow 12 of 200 steps


SEVERAL = """
import sys
import detlite

detlite.train(data=({data!r}, {images!r}), output_dir={folder!r}, minutes=0.001, overrides={opts!r})
"""


@pytest.mark.slow
def test_two_processes_use_one_config(shapes, free_port, tmp_path):
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
    assert cfg.SOLVER.IMS_PER_BATCH == 4  # of five images with objects


def test_a_folder_of_an_evaluation_is_not_resumed(trained, shapes, tmp_path):
    """Evaluations write a config.yaml too."""
    detlite.evaluate(trained.weights, data=shapes[1], output_dir=tmp_path)
    small = SMALL | {"SOLVER.MAX_ITER": 1, "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM": 24}
    detlite.train(data=shapes[0], output_dir=tmp_path, overrides=small, resume=True)
    cfg = load_config(tmp_path / "config.yaml")
    assert (cfg.MODEL.WEIGHT, cfg.DATASETS.TEST) == ("", ())
    assert "chosen: MODEL.RPN.ANCHOR_SIZES" in (tmp_path / "log.txt").read_text()


TRAIN, EVALUATE = detlite.train, detlite.evaluate
DEMO = "demo_shapes.yaml"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data: TRAIN(), r"train\(\) needs a config, or data"),
        (lambda data: TRAIN(data), "must be a file; pass data as `data=`"),
        (lambda data: TRAIN(data=3), r"^data is 3: it must be"),
        (lambda data: TRAIN(data=data, single_class=True), "single_class needs data as a folder"),
        (lambda data: TRAIN(DEMO, masks="semantic", group_by="x"), "masks, group_by needs data as"),
        (lambda data: TRAIN(data=data[1], masks="color"), "masks is 'color': it must be one of in"),
        (lambda data: TRAIN(DEMO, test_data=data), "test_data needs training data"),
        (lambda data: TRAIN(DEMO, hooks=None), r"hooks is .* a list of Hook objects"),
        (lambda data: TRAIN(DEMO, hooks="MLflow"), r"hooks is .* a list of Hook objects"),
        (lambda data: TRAIN(DEMO, hooks=["MLflow"]), r"hooks is .* a list of Hook objects"),
        (lambda data: TRAIN(DEMO, hooks=[Hook]), r"hooks is .* a list of Hook objects"),
        (lambda data: TRAIN(DEMO, overrides=["SEED"]), r"pairs KEY VALUE: 'SEED' has no value"),
        (lambda data: TRAIN(DEMO, overrides={"SEEDS": 3}), "unknown config key SEEDS"),
        (lambda data: TRAIN(data=("none.json", data[1])), r"file .*none\.json does not exist"),
        (lambda data: EVALUATE(), r"evaluate\(\) needs weights"),
        (lambda data: EVALUATE("model.pth", data=3), r"^data is 3: it must be"),
    ],
)
def test_invalid_arguments_are_refused(shapes, call, message):
    with pytest.raises((ConfigError, DataError), match=message):
        call(shapes[0])


def test_weights_without_a_config_are_refused(shapes, tmp_path):
    torch.save({"weight": torch.zeros(1)}, tmp_path / "bare.pth")
    with pytest.raises(ConfigError, match=r"bare\.pth: does not contain the config of a detector"):
        detlite.train(data=shapes[0], weights=tmp_path / "bare.pth")


@pytest.mark.parametrize("kind", ["GeneralizedRCNN", "RetinaNet"])
def test_images_without_objects_are_used_as_background(shapes, tmp_path, kind):
    def keep_two(content):
        few = {row["id"] for row in content["images"][:2]}
        content["annotations"] = [row for row in content["annotations"] if row["image_id"] in few]

    data = changed(shapes[0], "empty.json", keep_two)
    is_rcnn = kind == "GeneralizedRCNN"
    small = {"MODEL.BACKBONE.CONV_BODY": "R-18-FPN-RETINANET", "MODEL.RETINANET.NUM_CONVS": 1}
    more = {"INPUT.COPY_PASTE_PROB": 0.5} if is_rcnn else small
    result = detlite.train(
        config=None if is_rcnn else "_base_/retinanet_fpn.yaml",
        data=data, test_data=data, output_dir=tmp_path / "run",
        overrides=SMALL | more | {
            "DATASETS.BACKGROUND_IMAGES": True, "SOLVER.IMS_PER_BATCH": 1, "SOLVER.MAX_ITER": 3,
            "SOLVER.TEST_PERIOD": 0,
            "TEST.LOSS": True, "MODEL.META_ARCHITECTURE": kind,
            "MODEL.MASK_ON": is_rcnn,
        },
    )  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    box_loss = "loss_box_stage1" if is_rcnn else "loss_box"
    assert 0 in [row.get(box_loss) for row in rows]
    assert all(math.isfinite(row["loss"]) for row in rows if "loss" in row)
    assert result.metrics["test"]["loss"]["total"] > 0


def test_the_random_generators_of_the_caller_do_not_change(shapes, tmp_path):
    deterministic = torch.are_deterministic_algorithms_enabled()

    def draw():
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    def seed():
        random.seed(7)
        np.random.seed(7)
        torch.manual_seed(7)

    seed()
    expected = draw()
    seed()
    overrides = SMALL | SHORT | {"SOLVER.DETERMINISTIC": True}
    detlite.train(data=shapes[0], output_dir=tmp_path, overrides=overrides)
    assert draw() == expected
    assert torch.are_deterministic_algorithms_enabled() == deterministic


_EXTENSION = """
from detlite.config import Key, declare_keys, positive
from detlite.modeling import META_ARCHITECTURES, GeneralizedRCNN

declare_keys("MODEL.OWN", {Key("SCALE", 1.0, positive): "factor of the losses"})

class Scaled(GeneralizedRCNN):
    def losses(self, *args):
        return {name: self.scale * loss for name, loss in super().losses(*args).items()}

@META_ARCHITECTURES.register("Scaled")
def build_scaled(cfg):
    model = META_ARCHITECTURES.get("GeneralizedRCNN")(cfg)
    model.__class__, model.scale = Scaled, cfg.MODEL.OWN.SCALE
    return model
"""


@pytest.mark.slow
def test_a_run_with_an_extension_can_be_moved(shapes, tmp_path, monkeypatch, capsys):
    """Its folder contains the extension: resume, test, report and predict work from there."""
    extension = tmp_path / "project" / "scaled.py"
    extension.parent.mkdir()
    extension.write_text(_EXTENSION)
    own = {"MODEL.META_ARCHITECTURE": "Scaled", "MODEL.OWN.SCALE": 0.5, "IMPORTS": str(extension)}
    overrides = SMALL | own | {"MODEL.MASK_ON": False}
    detlite.train(data=shapes[0], test_data=shapes[1], output_dir=tmp_path / "a" / "run",
                  overrides=overrides)  # fmt: skip
    extension.unlink()
    run = (tmp_path / "a").rename(tmp_path / "b") / "run"
    monkeypatch.chdir(tmp_path)
    # As in a new process.
    for table in (extensions._DECLARED, extensions._newest, META_ARCHITECTURES._builders):
        for name in [name for name in table if "caled" in name]:
            monkeypatch.delitem(table, name)
    config, weights = run / "config.yaml", run / "model_final.pth"
    image = next(shapes[1][1].glob("*.png"))
    for call in (detlite.load_checkpoint, detlite.evaluate):
        with pytest.raises(
            ConfigError,
            match=r"unknown config key MODEL\.OWN\.SCALE.*IMPORTS of .* "
            rf"are ignored, because .* override IMPORTS \[{run}/extensions/scaled\.py\]",
        ):
            call(weights)
    imports = {"IMPORTS": [run / "extensions" / "scaled.py"]}
    assert detlite.load_checkpoint(weights, imports).model.scale == 0.5
    assert main(["predict", "--config", str(config), "--weights", str(weights), "--input",
                 str(image), "--output", str(tmp_path / "predictions")]) == 0  # fmt: skip
    result = detlite.evaluate(weights, config=config)
    assert result.output_dir == run / "evaluation"
    assert main(["report", str(run)]) == 0
    for call in (partial(detlite.train, config), partial(detlite.train, output_dir=run)):
        steps = 3 if call.args else 4
        result = call(resume=True, overrides={"SOLVER.MAX_ITER": steps, "MODEL.OWN.SCALE": 0.25})
        assert result.output_dir == run
        assert read_checkpoint(weights).training["iteration"] == steps
        assert load_config(config).MODEL.OWN.SCALE == 0.25
