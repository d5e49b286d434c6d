"""Files in COCO's form are read by a kernel, with the same outcome as by a dataset."""

import json

import numpy as np
import pytest

from detlite.evaluation import evaluate_coco
from detlite.evaluation.reading import files
from detlite.evaluation.reading.files import read_truth
from detlite.evaluation.reading.ground_truth import read_ground_truth
from detlite.files.errors import DataError
from detlite.structures.masks.formats import encode_bitmap
from tests.builders import coco_content, coco_detection, coco_object, rectangle

SIZE = 60, 80
BOXES = [[10, 10, 20, 20], [40, 10, 20, 30], [5, 5, 30, 30]]


def rle(height=60, width=80, fill=1):
    square = np.pad(np.full((20, 20), fill, np.uint8), ((10, 30), (10, 50)))
    return encode_bitmap(square[:height, :width])


def content():
    points = {"keypoints": [11, 11, 2, 12, 12, 1], "num_keypoints": 2}
    objects = [coco_object(box, 1, 1, segmentation=rectangle(*box), **points) for box in BOXES]
    truth = coco_content(objects, [1, 2], SIZE)
    for category in truth["categories"]:
        category["keypoints"] = ["nose", "tail"]
    return truth


def outcome(source, kinds, skip_bad):
    """Return the objects, sorted by all of their values, or the error."""
    try:
        truth = read_truth(source, kinds, skip_bad)
        measured = [read_ground_truth(truth, kind) for kind in kinds]
    except DataError as error:
        return str(error)
    values = []
    for read in measured:
        masks = [mask["counts"] for mask in read.masks.rles()] if read.masks else [""] * len(read)
        points = [""] * len(read) if read.keypoints is None else read.keypoints.tolist()
        columns = (read.keys, read.crowd, read.ignored, read.areas.round(9), read.boxes.round(9))
        rows = zip(*(column.tolist() for column in columns), masks, points, strict=True)
        values.append((read.image_ids.tolist(), read.category_ids.tolist(), sorted(rows, key=str)))
    return values


ODD = [
    *({"bbox": box} for box in (
        [200, 200, 10, 10], [-15, 10, 30, 20], [-1.5, 0, 20, 20], [70, 50, 20, 20], [78, 50, 5, 5],
        [0, 0, 800, 600], [1, 1, 0.9, 0.9], [5, 5, 0, 5], [79.9999999, 5, 5, 5], [10, 10, 1e300, 9],
    )),
    *({"segmentation": mask} for mask in (
        [], [[5, 5, 9, 5, 13, 5]], [[1, 2, 3, 4]], rectangle(0.1, 0.1, 0.5, 0.5),
        rectangle(200, 200, 10, 10), rectangle(-300, 10, 350, 20), rectangle(80, 10, 20, 20),
        [*rectangle(10, 10, 20, 20), [5, 5, 5, 5, 5, 5]], rle(), rle(fill=0), rle(60, 60),
        {"size": [80, 60], "counts": rle()["counts"]}, {"size": [60, 80], "counts": "0o"},
    )),
    *({"keypoints": points} for points in (
        [], [1, 1, 2], [0.2, 0.5, 2, 1, 1, 2], [1, 1, 3, 2, 2, 2], [1, 1, 0.5, 2, 2, 2],
        [500, 500, 2, 2, 2, 2],
    )),
    {"iscrowd": 1, "region": "Asia"}, {"num_keypoints": 5}, {"id": 0}, {"id": 2}, {"id": -1},
    {"area": 1e30}, {"area": 0.1}, {"image_id": 3}, {"category_id": 3},
]  # fmt: skip
FILES = {
    "file without names": lambda truth: [row.pop("file_name") for row in truth["images"]],
    "images without a size": lambda truth: [row.pop("height") + row.pop("width")
                                            for row in truth["images"]],
    "no image size is an integer": lambda truth: truth["images"][0].update(width=80.0),
    "image too large": lambda truth: truth["images"][0].update(width=1 << 30),
    "file listed twice": lambda truth: truth["images"][0].update(file_name="x/../2.png"),
    "categories without names": lambda truth: [row.pop("name") for row in truth["categories"]],
    "name of a number": lambda truth: truth["categories"][0].update(name=5),
    "same name": lambda truth: truth["categories"][0].update(name="dog"),
    "same name, both used": lambda truth: (truth["categories"][0].update(name="dog"),
                                           truth["annotations"][0].update(category_id=2)),
    "root": lambda truth: (truth["categories"][1].update(id=0, supercategory="none"),
                           truth["categories"][0].update(supercategory="dog")),
    "keypoints without names": lambda truth: [row.pop("keypoints") for row in truth["categories"]],
    "keypoints with other names": lambda truth: truth["categories"][0].update(keypoints=["a"]),
    "no object has keypoints": lambda truth: [row.pop("keypoints") for row in truth["annotations"]],
    "no objects": lambda truth: truth["annotations"].clear(),
}  # fmt: skip


@pytest.mark.parametrize("change", [*ODD, *FILES], ids=str)
@pytest.mark.parametrize("other", ["segm", "keypoints"])
def test_the_kernel_reads_like_a_dataset(change, other, tmp_path, monkeypatch):
    truth = content()
    if isinstance(change, str):
        FILES[change](truth)
    else:
        truth["annotations"][0] |= change
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    arguments = [(["bbox"], False), (["bbox", other], False), (["bbox", other], True)]
    read = [outcome(tmp_path / "truth.json", *pair) for pair in arguments]
    monkeypatch.setattr(files, "is_standard", lambda *_: False)
    assert read == [outcome(tmp_path / "truth.json", *pair) for pair in arguments]


@pytest.mark.parametrize("area", [400, None])
def test_metrics_need_no_names_and_boxes_no_sizes(area):
    """In standard files, and with another entry that only datasets read."""
    truth = content()
    truth["annotations"][0]["area"] = area
    truth["images"] = [{"id": 1}, {"id": 2}]
    truth["categories"] = [{"id": 1}, {"id": 2, "name": None}]
    detections = [
        coco_detection(box, keypoints=row["keypoints"])
        for box, row in zip(BOXES, truth["annotations"], strict=True)
    ]
    metrics = evaluate_coco(truth, detections, ["bbox", "keypoints"])
    assert [metrics[kind]["AP"] for kind in metrics] == pytest.approx([1, 1])
    assert metrics["bbox"]["per_category"] == {"1": 1, "2": None}
    with pytest.raises(DataError, match="the ground truth: image 1 has no height and width"):
        evaluate_coco(truth, detections, ["segm"])


@pytest.mark.parametrize("points", [[5, 5], [[5]], 5])
def test_unusable_keypoints_without_names(points):
    truth = content()
    truth["categories"] = [{"id": 1}, {"id": 2}]
    truth["annotations"][0]["keypoints"] = points
    with pytest.raises(DataError, match="keypoints"):
        read_truth(truth, ["keypoints"])
