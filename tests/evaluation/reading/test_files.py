"""Ground truth and results from files and memory, and results that do not fit."""

import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from pycocotools import mask as rle_codec

from detlite.evaluation import evaluate_coco
from detlite.evaluation.reading.files import kinds_of, read_results, read_truth
from detlite.evaluation.reading.ground_truth import read_ground_truth
from detlite.evaluation.results import write_results
from detlite.files.errors import DataError
from detlite.structures.masks.formats import encode_bitmap
from tests.builders import coco_content, coco_detection, coco_object, rectangle

BOXES = [[10.0, 10, 20, 20], [50, 40, 30, 50], [20, 60, 30, 20]]
MASK = encode_bitmap(np.pad(np.ones((20, 20), np.uint8), (10, 70)))


def content():
    objects = [
        coco_object(box, 1, n, segmentation=rectangle(*box)) for n, box in enumerate(BOXES, 1)
    ]
    return coco_content(objects, [1, 2, 3])


def exact(**fields):
    return [coco_detection(box, 0.9, 1, n, **fields) for n, box in enumerate(BOXES, 1)]


@pytest.fixture
def write(tmp_path):
    def write(rows, name="results.json"):
        (tmp_path / name).write_text(rows if isinstance(rows, str) else json.dumps(rows))
        return tmp_path / name

    return write


def measure(truth, results, kind="bbox", **options):
    return evaluate_coco(truth, results, [kind], **options)[kind]["AP"]


def without(field):
    return lambda row: row.pop(field)


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row,
        lambda row: row.update(iscrowd="0"),
        lambda row: row.update(area=-5),
        lambda row: row.update(image_id=str(row["image_id"]), bbox=[str(x) for x in row["bbox"]]),
        without("id"),
        without("area"),
        without("iscrowd"),
        without("bbox"),
    ],
)
@pytest.mark.parametrize("in_memory", [False, True])
def test_annotations_that_are_not_quite_coco(change, in_memory, write):
    truth = content()
    for row in truth["annotations"]:
        change(row)
    source = truth if in_memory else write(truth, "truth.json")
    assert measure(source, write(exact())) == measure(source, exact()) == 1
    assert measure(str(source) if not in_memory else source, exact(segmentation=MASK), "segm") > 0


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize(
    "fields", [{"ignore": 1}, {"ignore": True}, {"isCrowd": 1}, {"iscrowd": 2}, {"iscrowd": -1},
               {"bbox": [0.1, 0.2, 0.5, 0.5]}, {"area": 0}, {"bbox": [25, 25, -20, -20]}],
    ids=str,
)  # fmt: skip
def test_values_that_the_kernel_would_take_as_they_are(fields, in_memory, write):
    """Reports and `evaluate_coco` read them like training and `detlite test`."""
    truth = content()
    odd = coco_object([5, 5, 20, 20], 1, 1, id=9, segmentation=rectangle(5, 5, 20, 20))
    if "isCrowd" in fields:
        del odd["iscrowd"]
    truth["annotations"].append(odd | fields)
    source = truth if in_memory else write(truth, "truth.json")
    if "iscrowd" in fields or fields.get("bbox", [1])[0] < 1:
        with pytest.raises(DataError, match=r"annotation 9 .*(iscrowd is|inside the first pixel)"):
            read_truth(source)
        return
    read = read_ground_truth(read_truth(source), "bbox")
    n = read.ids.tolist().index(9)
    assert (read.ignored[n], read.areas[n]) == (not fields.keys() & {"area", "bbox"}, 400)
    assert read.boxes[n].tolist() == [5, 5, 20, 20]


def test_rotated_boxes_of_cvat(write):
    truth = content()
    turned = {"attributes": {"rotation": 90.0}, "segmentation": []}
    truth["annotations"].append(coco_object([5, 10, 20, 10], 1, 1, id=9, **turned))
    read = read_ground_truth(read_truth(write(truth, "truth.json"), ["bbox"]), "bbox")
    assert read.boxes[read.ids.tolist().index(9)] == pytest.approx([10, 5, 10, 20])


def test_findings_advise_no_keys(write, caplog):
    """There is no config that could be changed."""
    truth = content()
    del truth["annotations"][0]["area"]
    truth["annotations"].append(coco_object([5, 5, 9, 9], 1, 1, id=9, iscrowd="1"))
    measure(write(truth, "truth.json"), exact())
    assert "crowds (iscrowd 1): 1 of 4" in caplog.text
    assert not re.search(r"[A-Z]+\.[A-Z]", caplog.text)


def test_bad_annotations_are_skipped_on_request(write):
    truth = content()
    truth["annotations"].append(coco_object([5, 5, 9, 9], 77, 1, id=9))
    file = write(truth, "truth.json")
    with pytest.raises(DataError, match="77"):
        measure(file, exact())
    assert measure(file, exact(), skip_bad=True) == 1


@pytest.mark.parametrize("text", ["[", "[]", "{}", '{"images": [], "annotations": []}'])
def test_invalid_annotation_files_are_named(write, text):
    with pytest.raises(DataError, match=r"truth\.json: not (valid JSON|in COCO format)"):
        read_truth(write(text, "truth.json"))


def by_name(row):
    row.update(image_id=f"folder/{row['image_id']}.png", category_id="CAT")


def by_text(row):
    row.update(image_id=str(row["image_id"]), category_id="1")


@pytest.mark.parametrize(
    "change",
    [by_name, by_text, lambda row: row.update(image_id=str(row["image_id"]) + ".png")],
)
def test_text_names_images_and_categories(change, write):
    truth, results = content(), exact()
    if change is by_name:
        for image in truth["images"]:
            image["file_name"] = f"folder/{image['file_name']}"
    for row in results:
        change(row)
    assert measure(truth, write(results)) == 1


def test_texts_that_the_ground_truth_has_as_ids(write):
    """Results need not know which numbers such texts become."""
    truth, results = content(), exact()
    image_ids, category_ids = {1: "z", 2: "1", 3: "y"}, {1: "b", 2: "a"}
    for row in truth["images"]:
        row["id"] = image_ids[row["id"]]
    for row in truth["categories"]:
        row["id"] = category_ids[row["id"]]
    for row in (*truth["annotations"], *results):
        row |= {
            "image_id": image_ids[row["image_id"]],
            "category_id": category_ids[row["category_id"]],
        }
    assert measure(truth, write(results)) == 1


def change_all(**fields):
    return [row | {k: f(row) if callable(f) else f for k, f in fields.items()} for row in exact()]


def corners(row, unit=1):
    x, y, w, h = row["bbox"]
    return [unit * side for side in (x, y, x + w, y + h)]


def centers(row):
    x, y, w, h = row["bbox"]
    return [x + w / 2, y + h / 2, w, h]


def fractions(row):
    return [x / 100 for x in row["bbox"]]


def named(row):
    row.update(file_name=f"C:\\photos\\{row.pop('image_id')}.JPG", category_name=" Cat")
    del row["category_id"]


@pytest.mark.parametrize(
    "change",
    [
        named,
        lambda row: row.update(image_id=float(row["image_id"]), category_id=1.0),
        lambda row: row.update(image_id=f"{row['image_id']:012}", score=1.00001),
        lambda row: row.update(bbox=np.array(row["bbox"]), score=np.float32(0.5)),
        lambda row: row.update(category_name="CAT", category_id=9),  # the name counts
    ],
)
def test_results_that_are_not_quite_coco(change, write):
    results = exact()
    for row in results:
        change(row)
    assert measure(content(), results) == 1
    if not isinstance(results[0]["bbox"], np.ndarray):
        assert measure(content(), write(results)) == 1


@pytest.mark.parametrize("key", ["annotations", "results", "predictions", "detections"])
def test_results_in_an_object_or_as_lines(key, write):
    own = {"images": [{"id": n + 6, "file_name": f"{n}.png"} for n in (1, 2, 3)],
           "categories": [{"id": 0, "name": "cat"}]}  # fmt: skip
    others = [row | {"image_id": row["image_id"] + 6, "category_id": 0} for row in exact()]
    lines = "\n".join(map(json.dumps, exact()))
    for rows in ({"annotations": [], key: exact()}, {key: others, **own}, lines):
        assert measure(content(), write(rows)) == 1


@pytest.mark.parametrize(
    "segmentation",
    [rectangle(10, 10, 20, 20), {"size": [100, 100], "counts": [1010, *[20, 80] * 19, 20, 7070]}],
)
def test_masks_as_polygons_and_run_lengths(segmentation, write):
    results = exact(segmentation=segmentation)
    for masks in (read(write(results), content()).masks, read(results, content()).masks):
        assert [*masks.rles()] == [MASK] * 3


def test_doubtful_results_are_reported(write, caplog):
    truth = content()
    truth["categories"].append({"id": 2, "name": "dog"})
    measure(truth, exact() * 2)
    assert "1 of the 3 highest-scoring detections have the image" not in caplog.text
    measure(truth, [row for row in exact() for _ in range(2)])
    assert "1 of the 3 highest-scoring detections have the image" in caplog.text
    assert measure(truth, change_all(category_id=2)) == 0
    assert "detections of category 2 (dog) are on objects of 1 (cat)" in caplog.text
    measure(truth, change_all(bbox=[70, 0, 5, 5]))
    assert "only 0 of the 3 highest-scoring boxes overlap an object" in caplog.text
    measure(truth, write(change_all(file_name="photo.png")))
    assert "the file_name of 3 of 3 results is not in the ground truth" in caplog.text
    measure(truth, change_all(category_name="cat", category_id=2))
    assert "3 of 3 results have the name of another category than their id" in caplog.text
    read(exact()[:2] + exact(segmentation=MASK)[2:], truth)
    assert "only 1 of 3 detections have 'segmentation', which is not measured" in caplog.text


@pytest.mark.parametrize(("swapped", "refused"), [(2, False), (3, False), (6, True)])
def test_boxes_that_match_in_another_notation_by_chance(swapped, refused, caplog):
    truth, boxes = content(), [[7 * k, 90 - 7 * k, 4, 9] for k in range(12)]
    truth["annotations"] = [coco_object(box, 1, 1, id=k) for k, box in enumerate(boxes, start=1)]
    found = [[y, x, h, w] for x, y, w, h in boxes[:swapped]] + [[60, 60, 3, 3]] * (12 - swapped)
    results = [{"image_id": 1, "category_id": 1, "bbox": box, "score": 0.5} for box in found]
    if refused:
        with pytest.raises(DataError, match="6 of the 12 highest-scoring boxes"):
            measure(truth, results)
    else:
        measure(truth, results)
        assert ("3 of the 12 highest-scoring boxes are on" in caplog.text) == (swapped == 3)


@pytest.mark.parametrize(
    ("rows", "kinds", "message"),
    [
        ("{}", (), "must be a list"),
        ("[", (), "cannot be read"),
        ("[1]", (), "must be a list"),
        ({"1": exact()}, (), "must be a list"),
        ({"results": exact(), "images": {"1": "1.png"}}, (), "'images' must be a list"),
        ({"results": exact(), "categories": ["cat"]}, (), "'categories' must be a list"),
        (exact(), ["keypoints"], "result 0 has no 'keypoints'"),
        (change_all(image_id="photo"), (), "result 0: image_id is 'photo', which is neither an id"),
        (change_all(image_id=77), (), "result 0: image_id 77 is not in the ground truth"),
        (change_all(category_id="bird"), (), "category_id is 'bird', .* nor a category of the"),
        (
            change_all(file_name="3.png"),
            (),
            r"image_id is 1, but its file_name '3\.png' is",
        ),
        (change_all(score=-3.5), (), r"result 0: the score is -3\.5, but scores are from 0 to 1"),
        (change_all(score=101), (), "the score is 101, but"),
        (change_all(score=1.8), (), "the score is 1.8, but"),
        (change_all(bbox=corners), (), r"3 of the 3 .* read as corners \[x1, y1, x2, y2\]"),
        (change_all(bbox=fractions), (), r"read as fractions of the image size, \[x, y, w"),
        (change_all(bbox=lambda row: corners(row, 10)), (), "read as thousandths .* corners"),
        (change_all(bbox=centers), (), r"read as \[center x, center y, width, height\]"),
        (change_all(bbox=[90, 9, -80, 5]), (), r"result 0: the bbox .* has a negative size"),
        (change_all(file_name="x.png", image_id=None), (), "file_name is 'x.png', which is neith"),
        (change_all(category_name="bird"), ["segm"], "result 0 has no 'segmentation'"),
        (change_all(category_name="bird", category_id=9), (), "category_name is 'bird', which"),
        (change_all(keypoints=[0.1, 0.9, 1]), ["keypoints"], "the keypoints are fractions of"),
        (change_all(segmentation={**MASK, "counts": "0"}), (), "RLE counts over 0 of 10000|cover"),
        (
            change_all(segmentation=[[1, 2]]),
            (),
            "result 0: segmentation has a polygon of 2 numbers",
        ),
    ],
)
def test_results_that_do_not_fit(rows, kinds, message, write):
    with pytest.raises(DataError, match=rf"results\.json: .*({message})"):
        read_results(write(rows), read_truth(content()), kinds)
    if isinstance(rows, list):
        with pytest.raises(DataError, match=message):
            read_results(rows, read_truth(content()), kinds)


def test_a_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"none\.json: cannot be read"):
        read_results(tmp_path / "none.json", read_truth(content()))


def test_percent_and_many_detections_are_reported(write, caplog):
    truth = read_truth(content())
    percent = read_results(write(change_all(score=90)), truth, max_dets=1)
    assert percent.scores.tolist() == [0.9] * 3
    assert "the scores are up to 90 and are read as percent" in caplog.text
    read_results(exact() * 2, truth, max_dets=1)
    assert "image 1 has 2 detections of a category, of which the 1 highest" in caplog.text


@pytest.mark.parametrize("kernel", [True, False])
def test_only_some_entries_have_a_mask(kernel, write, caplog):
    """The others have an empty mask, which counts as wrong."""
    results = exact(segmentation=MASK)
    del results[1]["segmentation"]
    results[0] |= {} if kernel else {"file_name": "1.png"}
    file = write(results)
    assert kinds_of(file) == {"bbox", "segm"}
    areas = [int(mask.sum()) for mask in map(rle_codec.decode, read(file, content()).masks.rles())]
    assert areas == [400, 0, 400]
    assert "1 of 3 detections have no mask" in caplog.text
    del results[0]["segmentation"]
    assert kinds_of(write(results)) == {"bbox"}


@pytest.mark.parametrize("keypoints", [None, []])
def test_only_some_entries_have_keypoints(keypoints, write, caplog):
    results = exact(keypoints=[12, 12, 1])
    results[1]["keypoints"] = keypoints
    read_points = [read(source, content()).keypoints for source in (write(results), results)]
    for points in read_points:
        assert points[:, 0, 0].tolist() == [12, -1e6, 12]
    assert caplog.text.count("1 of 3 detections have no keypoints. They count as wrong") == 2


def read(file, truth, kinds=()):
    return read_results(file, read_truth(truth), kinds)


@pytest.mark.parametrize("kernel", [True, False])
def test_missing_boxes_are_those_of_the_masks(kernel, write):
    results = exact(segmentation=MASK)
    del results[1]["bbox"]
    results[0] |= {} if kernel else {"category_id": True}
    for kinds in ((), ["bbox"]):
        boxes = read(write(results), content(), kinds).boxes
        assert boxes.tolist() == [BOXES[0], [10, 10, 20, 20], BOXES[2]]
    assert read(write([]), content(), ["bbox"]).boxes.shape == (0, 4)
    del results[2]["bbox"]
    for counts in ("0o", "00?", "o"):
        results[2]["segmentation"] = {**MASK, "counts": counts}
        with pytest.raises(DataError, match="result 2: has RLE counts"):
            read(write(results), content(), ["bbox"])


@pytest.mark.parametrize("kernel", [True, False])
def test_mask_scores_of_files(kernel, tmp_path, write):
    results = read(exact(segmentation=MASK), content())
    results = replace(results, mask_scores=np.array([0.5, 0.0, 0.25]))
    write_results(results, tmp_path / "both.json")
    if not kernel:  # an entry that is not in COCO's format
        rows = json.loads((tmp_path / "both.json").read_text())
        write([{**rows[0], "area": "1"}, *rows[1:]], "both.json")
    again = partial(read, tmp_path / "both.json", content())
    for kinds in ((), ("bbox", "segm")):
        assert list(again(kinds).to_coco()) == list(results.to_coco())
    write_results(again(["segm"]), tmp_path / "masks.json")
    masks = read(tmp_path / "masks.json", content(), ["segm"])
    assert (masks.scores.tolist(), masks.mask_scores) == ([0.5, 0.0, 0.25], None)
