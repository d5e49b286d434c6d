"""Evaluation on whole datasets."""

import json
import math
import threading
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from detlite.config import ConfigError
from detlite.data import DataError, build_dataset
from detlite.data.datasets.catalog import DATASETS, coco_files
from detlite.engine.evaluate import (
    evaluate,
    evaluate_dataset,
    match_categories,
    validation_loss,
    write_metrics,
)
from detlite.evaluation import EVALUATORS, Evaluator
from detlite.evaluation.detection_results import to_coco_results
from detlite.modeling.build import build_model
from tests.engine.toy import assert_equal


@pytest.fixture
def evaluated(make_cfg, make_sets, toy, tmp_path):
    """Return a function that evaluates the toy detector and returns metrics by dataset."""

    def start(*opts):
        cfg = make_cfg(*opts)
        metrics = evaluate(cfg, toy, make_sets(cfg)[1], tmp_path)
        write_metrics(metrics, tmp_path)
        return metrics

    return start


def test_exact_detections_have_high_ap_in_the_original_image(evaluated, tmp_path):
    metrics = evaluated()["val"]
    # Resizing blurs the borders of the blocks by less than a pixel.
    assert metrics["bbox"]["AP"] > 0.9
    assert metrics["segm"]["AP"] > 0.9
    assert json.loads((tmp_path / "evaluation.json").read_text()) == metrics
    results = json.loads((tmp_path / "results_val.json").read_text())
    assert sorted(result["image_id"] for result in results) == list(range(100, 107))
    assert {result["category_id"] for result in results} == {7, 9}


def test_a_thread_converts_detections_while_the_next_ones_are_computed(
    evaluated, toy, tmp_path, monkeypatch
):
    metrics, file = evaluated(), tmp_path / "results_val.json"
    written, threads = file.read_bytes(), set()

    def convert(*arguments):
        threads.add(threading.current_thread())
        return to_coco_results(*arguments)

    monkeypatch.setattr("detlite.engine.evaluate._CONVERTING_MEANWHILE", ("cpu",))
    monkeypatch.setattr("detlite.engine.evaluate.to_coco_results", convert)
    assert evaluated() == metrics
    assert file.read_bytes() == written
    assert len(threads) == 1
    assert threading.main_thread() not in threads
    detect = toy._detect
    wrong = torch.tensor([5])
    monkeypatch.setattr(toy, "_detect", lambda image: replace(detect(image), labels=wrong))
    with pytest.raises(ValueError, match="label 5"):
        evaluated()


def test_tiles(make_cfg, make_sets, toy, tmp_path):
    seen = []

    def detect(images, proposals=None, min_score=0.0):
        seen.extend(images)
        visible = [int(image.max() > 127) for image in images]  # some tiles have no block
        images = [image if one else image + 255 for image, one in zip(images, visible, strict=True)]
        return [toy._detect(image)[:one] for image, one in zip(images, visible, strict=True)]

    toy.detect = detect
    toy.postprocess = SimpleNamespace(
        suppression=SimpleNamespace(iou_thresh=0.5, views_iou_thresh=None, class_agnostic=False)
    )
    cfg = make_cfg("TEST.TILE", 16, "INPUT.MIN_SIZE_TEST", 16)
    metrics = evaluate(cfg, toy, make_sets(cfg)[1], tmp_path)["val"]
    assert len(seen) > 7 * 4
    assert (metrics["bbox"]["AP50"], metrics["segm"]["AP50"]) == (1.0, 1.0)


@pytest.mark.parametrize("names", [(), ("val", "train")])
def test_several_sets_are_reported_by_name(evaluated, tmp_path, names):
    metrics = evaluated("DATASETS.TEST", names)
    assert tuple(metrics) == names
    file = tmp_path / "evaluation.json"
    assert json.loads(file.read_text()) == metrics if names else not file.exists()


@pytest.mark.parametrize("training", [False, True])
def test_the_mode_shapes_and_random_state_are_kept(evaluated, toy, monkeypatch, training):
    detect = toy._detect

    def record(image):
        assert not toy.static_shapes  # padding is not computed
        return detect(image)

    monkeypatch.setattr(toy, "_detect", record)
    toy.train(training).static_shapes = training  # optimize_for_training sets it on GPUs
    state = torch.get_rng_state()
    evaluated()
    assert toy.training is toy.static_shapes is training
    assert torch.equal(torch.get_rng_state(), state)


def test_no_detections_have_ap_0(evaluated, toy, tmp_path):
    detect = toy._detect
    toy._detect = lambda image: detect(image)[:0]
    metrics = evaluated("MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 250)["val"]
    assert metrics["bbox"]["AP"] == metrics["segm"]["AP"] == metrics["bbox"]["AR250"] == 0
    assert json.loads((tmp_path / "results_val.json").read_text()) == []


def test_expected_results_are_checked(evaluated, caplog):
    rows = [["bbox", "AP", [0.95, 0.02]], ["segm", "AP", [0.2, 0.02]]]
    with caplog.at_level("INFO"):
        evaluated("TEST.EXPECTED_RESULTS", rows)
    assert [line[:17] for line in caplog.messages if line[:4] in ("PASS", "FAIL")] == [
        "PASS: bbox AP is ",
        "FAIL: segm AP is ",
    ]


@pytest.mark.parametrize(
    ("kind", "kinds", "problem"),
    [
        ("voc", ["bbox", "segm", "voc"], ""),
        ("cityscapes", ["bbox", "segm", "cityscapes"], r"image 100: 'void', .* is missing"),
        ("lvis", ["bbox", "segm"], "no 'neg_category_ids'"),
    ],
)
def test_the_type_of_a_dataset_names_its_metrics(
    evaluated, blocks, monkeypatch, kind, kinds, problem
):
    DATASETS.get(kind)  # imports and registers the original
    monkeypatch.setitem(DATASETS._builders, kind, coco_files)
    entry = {"name": "val", "type": kind, "annotations": "blocks.json", "images": "."}
    catalog = ["DATASETS.CATALOG", [entry, {**entry, "name": "train"}]]
    if problem:
        with monkeypatch.context() as context:
            context.setattr("detlite.engine.evaluate.run_inference", None)  # the check comes first
            with pytest.raises(DataError, match=problem):
                evaluated(*catalog)
    content = json.loads((blocks / "blocks.json").read_text())
    for name, category in zip(("car", "person"), content["categories"], strict=True):
        category |= {"name": name, "frequency": "f"}
    for image in content["images"]:
        size = [image["height"], image["width"]]
        image["void"] = {"size": size, "counts": [size[0] * size[1]]}
        image |= {"neg_category_ids": [], "not_exhaustive_category_ids": []}
    (blocks / "blocks.json").write_text(json.dumps(content))
    metrics = evaluated(*catalog)["val"]
    assert list(metrics) == kinds
    assert metrics[kinds[-1]]["AP50"] == 1.0
    assert ("APf" in metrics["bbox"]) == (kind == "lvis")


def with_evaluators(*evaluators):
    """Return overrides that name the evaluators of the test set."""
    entry = {"annotations": "blocks.json", "images": "."}
    return (
        "DATASETS.CATALOG",
        [{"name": "train", **entry}, {"name": "val", **entry, "evaluators": [*evaluators]}],
    )


def test_a_catalog_entry_names_its_evaluators(evaluated, tmp_path):
    metrics = evaluated(*with_evaluators("coco", "proposals"))["val"]
    assert list(metrics) == ["bbox", "segm", "box_proposal"]
    assert metrics["box_proposal"]["AR@100"] > 0.9
    assert evaluated(*with_evaluators())["val"] == {}
    assert len(json.loads((tmp_path / "results_val.json").read_text())) == 7


def test_equal_kinds_are_prefixed_with_the_evaluator(evaluated, monkeypatch):
    monkeypatch.setattr(EVALUATORS, "_builders", dict(EVALUATORS._builders))

    @EVALUATORS.register("mine")
    class Mine(Evaluator):
        def evaluate(self, cfg, dataset, results):
            return {"bbox": {"AP": len(results) / 10}, "mine": {"right": None}}

    metrics = evaluated(*with_evaluators("mine", "coco"))["val"]
    assert list(metrics) == ["bbox", "mine", "coco bbox", "segm"]
    assert metrics["bbox"] == {"AP": 0.7}
    assert metrics["coco bbox"]["AP"] > 0.9


@pytest.mark.parametrize(
    ("entry", "opts", "message"),
    [
        ({"evaluators": ["cityscapes"]}, ["MODEL.MASK_ON", False], "'cityscapes' needs 'segm'"),
        ({"annotations": "bare.json"}, [], "has no annotations, so nothing can be evaluated"),
        *(({"name": name}, ["DATASETS.TEST", (name,)], r"contains a slash.*choose a name")
          for name in ("../val", "a/b", "/val", "a\\b")),
    ],
)  # fmt: skip
def test_checks_come_before_training(train_toy, make_cfg, blocks, entry, opts, message):
    content = json.loads((blocks / "blocks.json").read_text())
    (blocks / "bare.json").write_text(json.dumps(content | {"annotations": []}))
    train = {"name": "train", "annotations": "blocks.json", "images": "."}
    catalog = [train, train | {"name": "val"} | entry]
    with pytest.raises((ConfigError, DataError), match=message):
        train_toy("DATASETS.CATALOG", catalog, "TEST.LOSS", True, *opts)
    assert not (Path(make_cfg().OUTPUT_DIR) / "metrics.jsonl").exists()


def test_other_categories_are_refused(make_cfg, make_sets, toy, tmp_path):
    cfg = make_cfg()
    toy.categories = [{"id": 7, "name": "blue"}, {"id": 9, "name": "gray"}]
    with pytest.raises(DataError, match=r"blocks\.json: .*red, green; .*: blue, gray$"):
        evaluate_dataset(cfg, toy, make_sets(cfg)[1][0], tmp_path)


def test_categories_match_by_name(make_cfg, make_sets, toy, tmp_path, caplog):
    """The ids may differ, and the model and the dataset may have different categories."""
    cfg = make_cfg()
    toy.categories = [{"id": 1, "name": "RED "}, {"id": 9, "name": "blue"}]
    (dataset,) = make_sets(cfg)[1]
    metrics = evaluate_dataset(cfg, toy, dataset, tmp_path)["bbox"]["per_category"]
    assert metrics["red"] > 0.9
    assert metrics["green"] == 0
    assert "categories matched by name: RED; only in the dataset: green; only in" in caplog.text
    assert match_categories(toy, dataset) == [{"id": 7, "name": "red"}, None]
    with pytest.raises(ConfigError, match=r"TEST\.LOSS needs the categories of the model"):
        evaluate_dataset(make_cfg("TEST.LOSS", True), toy, dataset, tmp_path)


def test_the_loss_is_the_mean_over_images(make_cfg, toy):
    cfg = make_cfg("INPUT.HORIZONTAL_FLIP_PROB_TRAIN", 1.0)
    toy.noise = 0.0
    losses = validation_loss(cfg, toy, "val")
    assert list(losses) == ["total", "classifier", "box"]
    assert losses["total"] == pytest.approx(losses["classifier"] + losses["box"])
    # The toy's input has a fixed size, but its boxes are in the resized image.
    dataset = build_dataset(cfg, "val", train=True)
    alone = []
    for index in range(len(dataset)):
        image, target = dataset[index]
        scale = 40 / min(image.shape[1:])
        size = [round(scale * side) for side in image.shape[1:]]
        resized = torch.nn.functional.interpolate(image[None].float(), size)[0]
        target["boxes"] = target["boxes"] * scale
        alone.append({k: v.item() for k, v in toy([resized], [target]).items()})
    for name in ("classifier", "box"):
        mean = sum(one[f"loss_{name}"] for one in alone) / len(alone)
        assert losses[name] == pytest.approx(mean, rel=0.02)


def test_a_non_finite_loss_is_none(make_cfg, toy):
    forward = toy.forward
    toy.forward = lambda *batch: forward(*batch) | {"loss_box": torch.tensor(math.nan)}
    losses = validation_loss(make_cfg(), toy, "val")
    assert losses["box"] is losses["total"] is None
    assert losses["classifier"] > 0


@pytest.mark.parametrize("training", [False, True])
def test_the_loss_is_repeated_and_changes_nothing(make_cfg, toy, training):
    """Although the toy is random."""
    toy.train(training)
    before, state = deepcopy(toy.state_dict()), torch.get_rng_state()
    losses = [validation_loss(make_cfg(), toy, "val") for _ in range(2)]
    assert losses[0] == losses[1]
    assert toy.training == toy.norm.training == training
    assert_equal(toy.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in toy.parameters())


@pytest.mark.parametrize("loss", [False, True])
def test_the_loss_is_evaluated_on_request(evaluated, loss):
    assert ("loss" in evaluated("TEST.LOSS", loss)["val"]) == loss


SHARED = """
import json, yaml
from detlite.config import config_from
from detlite.distributed import process_group, rank
from detlite.engine.evaluate import validation_loss
from detlite.modeling.build import build_model
from tests.engine.toy import read_metrics
import torch

cfg = config_from(yaml.safe_load(open("config.yaml")), "config.yaml")
with process_group("cpu"):
    torch.manual_seed(0)
    model = build_model(cfg)
    torch.manual_seed(rank())
    losses = validation_loss(cfg, model, "plates")
    if rank() == 0:
        print(json.dumps(losses))
"""


def test_two_processes_compute_the_same_loss_as_one(plates_config, in_two_processes, tmp_path):
    """A Mask R-CNN samples boxes at random."""
    cfg = plates_config("MODEL.KEYPOINT_ON", True, "TEST.IMS_PER_BATCH", 4, "MODEL.DEVICE", "cpu")
    torch.manual_seed(0)
    losses = validation_loss(cfg, build_model(cfg), "plates")
    assert {"mask", "keypoint", "objectness", "rpn_box", "box"} < set(losses)
    (tmp_path / "config.yaml").write_text(cfg.dump())
    assert json.loads(in_two_processes(SHARED)) == pytest.approx(losses, rel=1e-6)
