"""Ground truth from files and from memory is read like the annotations of a dataset."""

import json
import re

import numpy as np
import pytest
from pycocotools import mask as rle_codec

from detlite.data import CocoDataset
from detlite.data.datasets.ground_truth import read_coco_gt
from detlite.data.datasets.options import DatasetOptions
from detlite.evaluation import evaluate_coco
from detlite.evaluation.truth import Objects, most_overlapped
from detlite.files.errors import DataError
from tests.builders import coco_object, make_coco, rectangle, write_text
from tests.evaluation.test_results_file import content, exact


@pytest.fixture
def write(tmp_path):
    return lambda truth: write_text(
        tmp_path / "truth.json", truth if isinstance(truth, str) else json.dumps(truth)
    )


def sources(truth, write):
    return truth, write(truth), str(write(truth)), make_coco(truth)


def box_ap(source, **options):
    return evaluate_coco(source, exact(), ["bbox"], **options)["bbox"]["AP"]


@pytest.mark.parametrize(
    "fields", [{"ignore": 1}, {"ignore": True}, {"isCrowd": 1}, {"iscrowd": 2}, {"iscrowd": -1},
               {"bbox": [0.1, 0.2, 0.5, 0.5]}, {"area": 0}, {"bbox": [25, 25, -20, -20]}],
    ids=str,
)  # fmt: skip
def test_values_that_pycocotools_takes_as_they_are(fields, write):
    truth = content()
    odd = coco_object([5, 5, 20, 20], 1, 1, id=9, segmentation=rectangle(5, 5, 20, 20))
    if "isCrowd" in fields:
        del odd["iscrowd"]
    truth["annotations"].append(odd | fields)
    for source in sources(truth, write)[:2]:
        if "iscrowd" in fields or fields.get("bbox", [1])[0] < 1:
            with pytest.raises(
                DataError, match=r"annotation 9 .*(iscrowd .* is not|inside the first)"
            ):
                read_coco_gt(source)
            continue
        (row,) = (row for row in read_coco_gt(source).dataset["annotations"] if row["id"] == 9)
        assert row["iscrowd"] == (not fields.keys() & {"area", "bbox"})
        assert (row["bbox"], row["area"]) == ([5, 5, 20, 20], 400)


def test_all_sources_and_skipped_annotations(write):
    truth = content()
    for row in truth["annotations"]:
        row |= {"image_id": str(row["image_id"]), "iscrowd": "0", "area": -5}
    options = DatasetOptions(masks=True, check_images=False)
    dataset = CocoDataset(write(truth), write(truth).parent, options)
    for source in (*sources(truth, write), dataset):
        assert box_ap(source) == pytest.approx(1)
    truth["annotations"].append(coco_object([5, 5, 9, 9], 77, 1, id=9))
    with pytest.raises(DataError, match="77"):
        box_ap(write(truth))
    assert box_ap(write(truth), skip_bad=True) == pytest.approx(1)
    with pytest.raises(DataError, match=r"truth\.json: not valid JSON"):
        read_coco_gt(write("["))


def test_findings_advise_no_keys(write, caplog):
    """There is no config that could be changed."""
    truth = content()
    del truth["annotations"][0]["area"]
    truth["annotations"].append(coco_object([5, 5, 9, 9], 1, 1, id=9, iscrowd="1"))
    box_ap(write(truth))
    assert "crowds (iscrowd 1): 1 of 4" in caplog.text
    assert not re.search(r"[A-Z]+\.[A-Z]", caplog.text)


def test_most_overlapped_is_the_first_of_the_largest_overlaps() -> None:
    rng = np.random.default_rng(0)
    boxes = np.concatenate([rng.integers(0, 9, (60, 2)), rng.integers(-2, 9, (60, 2))], 1) * 1.0
    keys, own = rng.integers(0, 5, 60), rng.integers(0, 4, 40)
    known = np.concatenate([rng.integers(0, 9, (40, 2)), rng.integers(0, 9, (40, 2))], 1) * 1.0
    crowds = rng.random(40) < 0.2
    index, ious = most_overlapped(boxes, keys, Objects(own, own, known, own, crowds), own)
    for n, box in enumerate(boxes):
        near = np.flatnonzero(own == keys[n])
        if not len(near):
            assert (index[n], ious[n]) == (-1, 0)
            continue
        clipped = np.maximum(box, [-np.inf, -np.inf, 0, 0])[None]
        expected = rle_codec.iou(clipped, known[near], crowds[near].astype(int).tolist())[0]
        assert (index[n], ious[n]) == (near[expected.argmax()], expected.max())
