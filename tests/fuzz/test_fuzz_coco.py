"""Almost valid COCO files lead to a dataset or a DataError."""

import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from detlite.data import CocoDataset, DataError
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.data.datasets.options import DatasetOptions
from detlite.evaluation.results import Results
from tests.fuzz.inputs import check_message, mutated, mutated_bytes

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
RESULTS: list[dict[str, Any]] = [
    {"image_id": 10, "category_id": 7, "score": 0.5, "bbox": [4.0, 6.0, 10.0, 8.0],
     "segmentation": {"size": [30, 40], "counts": "`0`<`h0"}, "keypoints": [5, 7, 2, 8, 9, 1]},
    {"image_id": 11, "category_id": 3, "score": 1, "bbox": [0, 0, 20, 40],
     "segmentation": {"size": [40, 20], "counts": "`0`<P<"}, "keypoints": [5, 7, 2, 8, 9, 1]},
]  # fmt: skip


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for row in VALID["images"]:
        pixels = np.full((row["height"], row["width"], 3), 90, np.uint8)
        Image.fromarray(pixels).save(folder / row["file_name"])
    return folder


_file_numbers = itertools.count()


def check_reading(data: bytes, images: Path, train: bool, keypoints: bool, skip: bool) -> None:
    """Read everything that a run reads from a dataset."""
    # A new name each time, because the index of a file is cached.
    file = images / f"{next(_file_numbers)}.json"
    file.write_bytes(data)
    try:
        options = DatasetOptions(
            train=train, keypoints=keypoints, min_keypoints=int(keypoints), skip_bad=skip,
            masks_as_rle=skip,
        )  # fmt: skip
        dataset = CocoDataset(file, images, options)
        for index, image_id in enumerate(dataset.image_ids):
            image, target = dataset[index]
            height, width = image.shape[1:]
            assert (height, width) == target["size"] == dataset.sizes[index]
            assert target["image_id"] == image_id
            boxes = target["boxes"]
            assert boxes.isfinite().all()
            assert (boxes[:, 2:] > boxes[:, :2]).all()
            assert ((target["labels"] >= 1) & (target["labels"] <= len(dataset.categories))).all()
            if train:
                assert len(boxes)
                assert len(target["masks"].bitmaps(height, width)) == len(boxes)
        truth = build_coco_gt(dataset)
        assert set(truth.getImgIds()) == set(dataset.image_ids)
    except DataError as error:
        check_message(error)
    finally:
        with contextlib.suppress(FileNotFoundError):
            file.unlink()


_flags = st.booleans()


@pytest.mark.slow
@given(content=mutated(VALID), train=_flags, keypoints=_flags, skip=_flags)
def test_annotation_files(content, train, keypoints, skip, images, bounded):
    with bounded():
        check_reading(json.dumps(content).encode(), images, train, keypoints, skip)


@pytest.mark.parametrize("names", [7, True])
def test_invalid_keypoint_names_of_a_category(names, images):
    category = VALID["categories"][0] | {"keypoints": names}
    content = VALID | {"categories": [category, VALID["categories"][1]]}
    check_reading(json.dumps(content).encode(), images, True, True, False)


@given(data=mutated_bytes(json.dumps(VALID).encode()), train=_flags, skip=_flags)
@example(data=b"\xef\xbb\xbf" + json.dumps(VALID).encode(), train=True, skip=False)
@example(data=b"[" * 100_000, train=True, skip=False)
@example(data=json.dumps(VALID).encode("utf-16"), train=True, skip=True)
def test_bytes_of_annotation_files(data, train, skip, images, bounded):
    with bounded():
        check_reading(data, images, train, False, skip)


def test_unchanged_file_is_valid(images):
    (images / "valid.json").write_text(json.dumps(VALID))
    for train in (False, True):
        dataset = CocoDataset(
            images / "valid.json", images, DatasetOptions(train=train, keypoints=True)
        )
        assert len(dataset) == 2


_kinds = st.sets(st.sampled_from(["bbox", "segm", "keypoints"]), min_size=1).map(sorted)


@given(rows=mutated(RESULTS), kinds=_kinds)
@example(rows=[RESULTS[0] | {"keypoints": 0}], kinds=["keypoints"])
@example(rows=[RESULTS[0] | {"score": [0.5]}, RESULTS[1]], kinds=["bbox"])
@example(
    rows=[RESULTS[0] | {"segmentation": {"size": [0, 2**63], "counts": "`0`<P<"}}], kinds=["segm"]
)
@pytest.mark.slow
def test_results(rows, kinds, bounded):
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return  # the reader of the file checks this
    with bounded():
        try:
            results = Results.from_coco(rows, kinds)
            assert len(list(results.to_coco())) == len(rows)
        except DataError as error:
            check_message(error)
