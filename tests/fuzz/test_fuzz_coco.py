"""Almost valid COCO files lead to a dataset or a DataError."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from detlite.data import CocoDataset
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.data.datasets.options import DatasetOptions
from detlite.evaluation.results import Results
from tests.fuzz.inputs import mutated, mutated_bytes

VALID: dict[str, Any] = {
    "categories": [
        {"id": 7, "name": "cat", "keypoints": ["nose", "tail"]},
        {"id": 3, "name": "dog"},
    ],
    "images": [
        {"id": 10, "file_name": "a.png", "height": 30, "width": 40},
        {"id": 11, "file_name": "b.png", "height": 40, "width": 20},
    ],
    "annotations": [
        {"id": 1, "image_id": 10, "category_id": 7, "bbox": [4, 6, 10, 8], "iscrowd": 0,
         "area": 80, "segmentation": [[4, 6, 14, 6, 14, 14, 4, 14]],
         "keypoints": [5, 7, 2, 8, 9, 1], "num_keypoints": 2},
        {"id": 2, "image_id": 11, "category_id": 3, "bbox": [0, 0, 20, 40],
         "segmentation": {"size": [40, 20], "counts": [0, 400, 400]},
         "keypoints": [5, 7, 2, 8, 9, 0]},
        {"id": 3, "image_id": 11, "category_id": 3, "bbox": [0, 0, 9, 9], "iscrowd": 1,
         "segmentation": {"size": [40, 20], "counts": "`0`<P<"},
         "keypoints": [0, 0, 0, 0, 0, 0]},
    ],
}  # fmt: skip
BYTES = json.dumps(VALID).encode()
RESULTS: list[dict[str, Any]] = [
    {"image_id": 10, "category_id": 7, "score": 0.5, "bbox": [4.0, 6.0, 10.0, 8.0],
     "segmentation": {"size": [30, 40], "counts": "`0`<`h0"}, "keypoints": [5, 7, 2, 8, 9, 1]},
    {"image_id": 11, "category_id": 3, "score": 1, "bbox": [0, 0, 20, 40],
     "segmentation": {"size": [40, 20], "counts": "`0`<P<"}, "keypoints": [5, 7, 2, 8, 9, 1]},
]  # fmt: skip
HUGE = {"size": [0, 2**63], "counts": "`0`<P<"}
OPTIONS = st.builds(
    lambda train, keypoints, skip: DatasetOptions(
        train=train, keypoints=keypoints, min_keypoints=int(keypoints), skip_bad=skip,
        masks_as_rle=skip,
    ),
    *[st.booleans()] * 3,
)  # fmt: skip


def reader(folder: Path, options: DatasetOptions) -> Callable[[Path], CocoDataset]:
    """Return a function that reads all that a run reads from a dataset, and checks it."""
    for row in VALID["images"]:
        pixels = np.full((row["height"], row["width"], 3), 90, np.uint8)
        Image.fromarray(pixels).save(folder / row["file_name"])

    def read(file: Path) -> CocoDataset:
        dataset = CocoDataset(file, folder, options)
        for index, image_id in enumerate(dataset.image_ids):
            image, target = dataset[index]
            height, width = image.shape[1:]
            assert (height, width) == target["size"] == dataset.sizes[index]
            assert target["image_id"] == image_id
            boxes = target["boxes"]
            assert boxes.isfinite().all()
            assert (boxes[:, 2:] > boxes[:, :2]).all()
            assert ((target["labels"] >= 1) & (target["labels"] <= len(dataset.categories))).all()
            if options.train:
                assert len(target["masks"].bitmaps(height, width)) == len(boxes) > 0
        assert set(build_coco_gt(dataset).getImgIds()) == set(dataset.image_ids)
        return dataset

    return read


@pytest.mark.slow
@given(content=mutated(VALID), options=OPTIONS)
def test_annotation_files(content, options, tmp_path, check):
    check(reader(tmp_path, options), json.dumps(content).encode())


@given(data=mutated_bytes(BYTES), options=OPTIONS)
@example(data=b"\xef\xbb\xbf" + BYTES, options=DatasetOptions(train=True))
@example(data=b"[" * 100_000, options=DatasetOptions(train=True))
@example(data=json.dumps(VALID).encode("utf-16"), options=DatasetOptions(train=True))
@example(data=BYTES.replace(b'["nose", "tail"]', b"7"), options=DatasetOptions(keypoints=True))
@example(data=BYTES.replace(b'["nose", "tail"]', b"true"), options=DatasetOptions(keypoints=True))
def test_bytes_of_annotation_files(data, options, tmp_path, check):
    check(reader(tmp_path, options), data)


@pytest.mark.parametrize("train", [False, True])
def test_unchanged_file_is_valid(tmp_path, train):
    (tmp_path / "valid.json").write_bytes(BYTES)
    read = reader(tmp_path, DatasetOptions(train=train, keypoints=True))
    assert len(read(tmp_path / "valid.json")) == 2


@given(
    rows=mutated(RESULTS),
    kinds=st.sets(st.sampled_from(["bbox", "segm", "keypoints"]), min_size=1).map(sorted),
)
@example(rows=[RESULTS[0] | {"keypoints": 0}], kinds=["keypoints"])
@example(rows=[RESULTS[0] | {"score": [0.5]}, RESULTS[1]], kinds=["bbox"])
@example(rows=[RESULTS[0] | {"segmentation": HUGE}], kinds=["segm"])
@pytest.mark.slow
def test_results(rows, kinds, bounded):
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return  # the reader of the file checks this
    with bounded():
        assert len(list(Results.from_coco(rows, kinds).to_coco())) == len(rows)
