"""Ground truth and results from files and memory, and results that do not fit."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from pycocotools import mask as rle_codec

from detlite.evaluation import evaluate_coco
from detlite.evaluation.files import kinds_of, read_results, read_truth
from detlite.evaluation.ground_truth import GroundTruthFile
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


def test_complete_files_are_read_by_the_kernel(write):
    assert isinstance(read_truth(write(content(), "truth.json")), GroundTruthFile)


def test_bad_annotations_are_skipped_on_request(write):
    truth = content()
    truth["annotations"].append(coco_object([5, 5, 9, 9], 77, 1, id=9))
    file = write(truth, "truth.json")
    with pytest.raises(DataError, match="77"):
        measure(file, exact())
    assert measure(file, exact(), skip_bad=True) == 1


@pytest.mark.parametrize("text", ["[", "[]", "{}", '{"images": [], "annotations": []}'])
def test_invalid_annotation_files_are_named(write, text):
    with pytest.raises(DataError, match=r"truth\.json: (cannot be read|not in COCO format)"):
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


def change_all(**fields):
    return [row | {k: f(row) if callable(f) else f for k, f in fields.items()} for row in exact()]


def corners(row):
    x, y, w, h = row["bbox"]
    return [x, y, x + w, y + h]


@pytest.mark.parametrize(
    ("rows", "kinds", "message"),
    [
        ("{}", (), "must be a list"),
        ("[", (), "cannot be read"),
        ("[1]", (), "must be a list"),
        ({"annotations": exact()}, (), "must be a list"),
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
        (change_all(bbox=corners), (), r"the boxes are corners .*subtract x1 and y1"),
        (change_all(bbox=lambda row: [x / 100 for x in row["bbox"]]), (), "boxes are fractions of"),
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


def read(file, truth, kinds=()):
    return read_results(file, read_truth(truth), kinds)


@pytest.mark.parametrize("kernel", [True, False])
def test_missing_boxes_are_those_of_the_masks(kernel, write):
    results = exact(segmentation=MASK)
    del results[1]["bbox"]
    results[0] |= {} if kernel else {"category_id": True}
    for kinds in ((), ["bbox"]):
        boxes = read(write(results), content(), kinds).boxes
        assert boxes.tolist() == [[10, 10, 20, 20]] * 3
    assert read(write([]), content(), ["bbox"]).boxes.shape == (0, 4)
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
