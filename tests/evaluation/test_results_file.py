"""Results from files and memory, and results that do not fit their ground truth."""

import json

import numpy as np
import pytest

from detlite.data.datasets.coco import CocoDataset
from detlite.data.datasets.ground_truth import read_coco_gt
from detlite.data.datasets.options import DatasetOptions
from detlite.evaluation import evaluate_coco
from detlite.evaluation.results_file import kinds_of, read_results
from detlite.files.errors import DataError
from detlite.structures.masks.formats import encode_bitmap
from tests.builders import coco_content, coco_detection, coco_object, rectangle, write_text

BOXES = [[10.0, 10, 20, 20], [50, 40, 30, 50], [20, 60, 30, 20]]
MASK = encode_bitmap(np.pad(np.ones((20, 20), np.uint8), (10, 70)))


def content():
    objects = [
        coco_object(box, 1, n, segmentation=rectangle(*box)) for n, box in enumerate(BOXES, 1)
    ]
    return coco_content(objects, [1, 2, 3])


def exact(**fields):
    return [coco_detection(box, 0.9, 1, n, **fields) for n, box in enumerate(BOXES, 1)]


def change_all(**fields):
    return [row | {k: f(row) if callable(f) else f for k, f in fields.items()} for row in exact()]


@pytest.fixture
def write(tmp_path):
    return lambda rows: write_text(
        tmp_path / "results.json", rows if isinstance(rows, str) else json.dumps(rows)
    )


def measure(truth, results):
    return evaluate_coco(truth, results, ["bbox"])["bbox"]["AP"]


@pytest.mark.parametrize("images", [{1: "z", 2: "1", 3: "y"}, {1: 1, 2: "cat_2", 3: 3}])
def test_results_may_have_the_ids_of_the_file(images, write):
    """Texts are numbered, which results need not know."""
    truth, results = content(), exact()
    categories = {1: "b", 2: "a"}
    for row in truth["images"]:
        row["id"] = images[row["id"]]
    for row in truth["categories"]:
        row["id"] = categories[row["id"]]
    for row in (*truth["annotations"], *results):
        row |= {"image_id": images[row["image_id"]], "category_id": categories[row["category_id"]]}
    assert measure(truth, write(results)) == measure(truth, results) == pytest.approx(1)
    results[0]["image_id"] = "x"
    with pytest.raises(DataError, match="result 0: image_id is 'x', not an id of the ground truth"):
        measure(truth, results)


@pytest.mark.parametrize("ids", [(1, 2, 3), ("a", "b", "c")])
@pytest.mark.parametrize(
    "change", [{"width": -5}, {"file_name": 7}, {"id": 1}, {"same": True}, {"unlabeled": True}]
)
def test_results_of_unused_images_are_not_counted(change, ids, write, tmp_path, caplog):
    """The file has these images, so they are no reason to refuse the results."""
    truth, results = content(), exact()
    for row in truth["images"]:
        row["id"] = ids[row["id"] - 1]
    for row in (*truth["annotations"], *results):
        row["image_id"] = ids[row["image_id"] - 1]
    if "same" in change:
        truth["images"][2] |= {**truth["images"][0], "id": ids[2]}
    elif "id" in change:  # two different images
        truth["images"].append({**truth["images"][2], "file_name": "other.jpg"})
    else:
        truth["images"][2] |= change
    if {"same", "unlabeled"} & change.keys():
        truth["annotations"].pop()
    if "unlabeled" in change:
        file = write_text(tmp_path / "truth.json", json.dumps(truth))
        options = DatasetOptions(skip_unlabeled=True, check_images=False)
        truth = CocoDataset(file, tmp_path, options)
    metrics = evaluate_coco(truth, write(results), ["bbox"], skip_bad=True)["bbox"]
    assert metrics["AP"] == 1
    assert "1 results of 1 images are not counted" in caplog.text
    with pytest.raises(DataError, match=r"another dataset|not an id of the"):
        evaluate_coco(truth, [{**results[0], "image_id": 99}], ["bbox"], skip_bad=True)


def test_other_fields_are_not_read(write):
    rows = change_all(segmentation=[[1, 2]], keypoints="none", area="large")
    assert measure(content(), write(rows)) == pytest.approx(1)


def test_kinds_of_a_file(write):
    assert kinds_of(write([])) == kinds_of(write(exact())) == {"bbox"}
    assert kinds_of(write(exact(segmentation=MASK, keypoints=[1, 1, 2]))) == {
        "bbox", "segm", "keypoints",
    }  # fmt: skip


def test_doubtful_results_are_reported(caplog):
    truth = content()
    truth["categories"].append({"id": 2, "name": "dog"})
    assert measure(truth, change_all(category_id=2)) == 0
    assert "3 of 3 boxes on objects have another category, such as 2 (dog) on" in caplog.text
    measure(truth, change_all(bbox=[70, 0, 5, 5]))
    assert "only 0 of the 3 highest-scoring boxes overlap an object" in caplog.text
    read_results(exact() * 2, read_coco_gt(truth), ["bbox"], max_dets=1)
    assert "image 1 has 2 detections of a category, of which the 1 highest" in caplog.text


def corners(row):
    x, y, w, h = row["bbox"]
    return [x, y, x + w, y + h]


def fractions(row):
    return [x / 100 for x in row["bbox"]]


NOT_COCO = "is not in COCO's results format"
UNFIT = [
    ("{}", "bbox", "a list of COCO results is needed"),
    ("[", "bbox", "cannot be read"),
    ("[1]", "bbox", f"result 0 {NOT_COCO}"),
    ({"results": exact()}, "bbox", "a list of COCO results is needed"),
    ("\n".join(map(json.dumps, exact())), "bbox", "cannot be read as JSON.*; it has several"),
    (exact(), "keypoints", f"result 0 {NOT_COCO} .*`keypoints`"),
    (exact(segmentation=MASK)[:2] + exact()[2:], "segm", f"result 2 {NOT_COCO} .*`segmentation`"),
    (change_all(segmentation=[[1, 2, 3, 4, 5, 6]]), "segm", f"result 0 {NOT_COCO}"),
    (change_all(image_id="1.png"), "bbox", r"result 0: image_id is '1\.png', not an id"),
    (change_all(image_id=77), "bbox", "result 0: image_id 77 is not in the ground truth"),
    (change_all(category_id="cat"), "bbox", "result 0: category_id is 'cat', not an id"),
    (change_all(category_id=9), "bbox", "result 0: category_id 9 is not .* whose ids are 1, 2$"),
    (change_all(bbox=[0, 0, 1e300, 3]), "bbox", r"result 0: the bbox is \[0.0, 0.0, 1e\+300"),
    (change_all(score=float("nan")), "bbox", "result 0: the score is nan"),
    (change_all(score=-3.5), "bbox", r"result 0: the score is -3\.5, but scores are from 0 to 1"),
    (change_all(score=90), "bbox", "result 0: the score is 90, but .*: divide percentages by 100"),
    (change_all(bbox=corners), "bbox", r"result 1: the bbox .* as do 2 of the 3 .* corners"),
    (change_all(bbox=fractions), "bbox", "result 0: .* first pixel, as do 3 of the 3"),
    (change_all(bbox=[90, 9, -80, 5]), "bbox", "result 0: the bbox .* has a negative size"),
    (change_all(keypoints=[0.1, 0.9, 1]), "keypoints", "the keypoints are fractions of"),
    (change_all(segmentation={**MASK, "counts": "0"}), "segm", "result 0: the run lengths of its"),
    (change_all(segmentation={**MASK, "counts": "PPPP"}), "segm", "result 0: the run lengths of"),
    (change_all(segmentation={**MASK, "size": [9, 9]}), "segm", r"result 0: the mask has the size"),
]


@pytest.mark.parametrize(("rows", "kind", "message"), UNFIT)
def test_results_that_do_not_fit(rows, kind, message, write):
    with pytest.raises(DataError, match=rf"results\.json: .*({message})"):
        read_results(write(rows), read_coco_gt(content()), [kind])
    if isinstance(rows, list):
        with pytest.raises(DataError, match=message):
            read_results(rows, read_coco_gt(content()), [kind])


def test_a_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"none\.json: cannot be read"):
        read_results(tmp_path / "none.json", read_coco_gt(content()), ["bbox"])
