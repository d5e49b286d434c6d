"""Choice of the evaluators of a dataset, and their checks before inference."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from detlite.config import ConfigError, load_config
from detlite.data import build_dataset
from detlite.evaluation import Results
from detlite.evaluation.evaluators import (
    build_evaluators,
    max_detections,
    predicted_kinds,
)
from tests.builders import coco_content, coco_detection, coco_object


def make_dataset(kind="coco", keypoint_names=()):
    return SimpleNamespace(
        name="val", kind=kind, keypoint_names=keypoint_names, annotation_file=Path("val.json")
    )


def make_cfg(*opts, evaluators=None):
    entry = {"name": "val", "annotations": "val.json", "images": "."}
    if evaluators is not None:
        entry["evaluators"] = evaluators
    return load_config(None, ["DATASETS.CATALOG", [{"name": "train"}, entry], *opts])


PROPOSALS = ("MODEL.RPN_ONLY", True)
MASKS = ("MODEL.MASK_ON", True)


@pytest.mark.parametrize(
    ("opts", "kinds"),
    [
        ((), ("bbox",)),
        (MASKS, ("bbox", "segm")),
        ((*MASKS, "MODEL.KEYPOINT_ON", True), ("bbox", "segm", "keypoints")),
        (PROPOSALS, ("box_proposal",)),
        ((*PROPOSALS, "MODEL.RETINANET_ON", True), ("bbox",)),
    ],
)
def test_predicted_kinds(opts, kinds):
    assert predicted_kinds(make_cfg(*opts)) == kinds


@pytest.mark.parametrize(
    ("dataset_type", "boxes", "masks"),
    [
        ("coco", ["coco"], ["coco"]),
        ("shapes", ["coco"], ["coco"]),
        ("mine", ["coco"], ["coco"]),
        ("lvis", ["lvis"], ["lvis"]),
        ("voc", ["coco", "voc"], ["coco", "voc"]),
        ("cityscapes", ["coco"], ["coco", "cityscapes"]),
    ],
)
def test_default_evaluators(dataset_type, boxes, masks):
    dataset = make_dataset(dataset_type)
    assert list(build_evaluators(make_cfg(), dataset)) == boxes
    assert list(build_evaluators(make_cfg(*MASKS), dataset)) == masks
    assert list(build_evaluators(make_cfg(*PROPOSALS), dataset)) == ["proposals"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["coc"], r"DATASETS\.CATALOG, val, evaluators: unknown evaluator .* did you mean 'coco'"),
        ("coco", r"DATASETS\.CATALOG, val, evaluators is 'coco', but must be a list of names"),
        ([1], r"evaluators is \[1\], but must be a list of names"),
    ],
)
def test_invalid_evaluators(names, message):
    with pytest.raises(ConfigError, match=message):
        build_evaluators(make_cfg(evaluators=names), make_dataset())


def check(cfg, dataset):
    for evaluator in build_evaluators(cfg, dataset).values():
        evaluator.check(cfg, dataset)


@pytest.mark.parametrize(
    ("name", "opts", "kind"),
    [
        ("coco", PROPOSALS, "bbox"),
        ("lvis", PROPOSALS, "bbox"),
        ("voc", PROPOSALS, "bbox"),
        ("cityscapes", (), "segm"),
    ],
)
def test_model_must_predict_what_is_measured(name, opts, kind):
    with pytest.raises(ConfigError, match=f"the evaluator '{name}' needs '{kind}', but"):
        check(make_cfg(*opts, evaluators=[name]), make_dataset())


def test_settings_are_checked():
    opts = ("MODEL.KEYPOINT_ON", True, "TEST.KEYPOINT_OKS_SIGMAS", (0.1, 0.1))
    check(make_cfg(*opts), make_dataset(keypoint_names=("left", "right")))
    with pytest.raises(ConfigError, match=r"are 2 OKS sigmas, but val\.json has 1 keypoints"):
        check(make_cfg(*opts), make_dataset(keypoint_names=("left",)))
    with pytest.raises(ConfigError, match=r"IoU thresholds must increase .*\[0\.9, 0\.5\]"):
        check(make_cfg("TEST.IOU_THRESHOLDS", (0.9, 0.5)), make_dataset())
    check(make_cfg(evaluators=["proposals"]), make_dataset())


def test_lvis_ignores_keypoints(monkeypatch):
    monkeypatch.setattr(
        "detlite.evaluation.lvis.evaluate_lvis",
        lambda truth, results, kinds: {kind: {"AP": 1.0} for kind in kinds},
    )
    cfg, dataset = make_cfg(*MASKS, "MODEL.KEYPOINT_ON", True), make_dataset("lvis")
    monkeypatch.setattr("detlite.evaluation.lvis.build_coco_gt", lambda dataset: None)
    (evaluator,) = build_evaluators(cfg, dataset).values()
    assert list(evaluator.evaluate(cfg, dataset, Results.from_coco([], ()))) == ["bbox", "segm"]


def test_the_detections_of_all_tiles_are_evaluated(tmp_path):
    """The maximum number of detections applies to a tile, not to an image."""
    boxes = [[50 * n, 20, 10, 10] for n in range(4)]
    content = coco_content(map(coco_object, boxes), size=(100, 220))
    (tmp_path / "val.json").write_text(json.dumps(content))
    detections = list(map(coco_detection, boxes))
    limit = ("MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 1)
    keys = (*limit, "TEST.TILE", 100, "DATASETS.ROOT", str(tmp_path))
    cfg = make_cfg(*keys, "DATASETS.CHECK_IMAGES", False)
    dataset = build_dataset(cfg, "val", train=False)
    (evaluator,) = build_evaluators(cfg, dataset).values()
    metrics = evaluator.evaluate(cfg, dataset, Results.from_coco(detections, ("bbox",)))
    assert metrics["bbox"]["AP"] == 1
    assert max_detections(cfg, dataset) == 4  # three tiles and the whole image
    assert max_detections(make_cfg(*limit), dataset) == 1
    assert max_detections(make_cfg(*limit, "TEST.TILE", 220), dataset) == 1  # not cut
