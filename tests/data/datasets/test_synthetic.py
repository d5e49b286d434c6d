"""The synthetic dataset: deterministic, complete, valid, and not solvable with filled boxes."""

import hashlib
import json

import numpy as np
import pytest

from detlite.data.datasets import synthetic as shapes
from detlite.data.datasets.coco import CocoDataset
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.files.errors import DataError
from detlite.structures.masks.formats import to_bitmap


def digests(folder):
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return [(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return shapes.generate_shapes(tmp_path_factory.mktemp("shapes"), "train", 40, seed=1)


@pytest.fixture(scope="module")
def ground_truth(folder):
    return build_coco_gt(CocoDataset(folder / "annotations.json", folder / "images"))


def test_same_arguments_produce_the_same_bytes(tmp_path):
    one, same = (shapes.generate_shapes(tmp_path / name, "train", 3, 1) for name in "ab")
    assert digests(one) == digests(same)
    for split, seed in (("test", 1), ("train", 2)):
        other = shapes.generate_shapes(tmp_path, split, 3, seed)
        assert all(a[1] != b[1] for a, b in zip(digests(one), digests(other), strict=True))


def test_interrupted_dataset_is_written_again(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shapes.json, "dumps", interrupt)
        with pytest.raises(KeyboardInterrupt):
            shapes.generate_shapes(tmp_path, "train", 2, seed=1)
    assert list(tmp_path.iterdir()) == []
    folder = shapes.generate_shapes(tmp_path, "train", 2, seed=1)
    assert len(CocoDataset(folder / "annotations.json", folder / "images")) == 2


def test_two_concurrent_processes(tmp_path, monkeypatch):
    write = shapes._write

    def write_while_another_finishes(*arguments):
        write(*arguments)
        monkeypatch.setattr(shapes, "_write", write)
        shapes.generate_shapes(tmp_path, "train", 2, seed=1)

    monkeypatch.setattr(shapes, "_write", write_while_another_finishes)
    folder = shapes.generate_shapes(tmp_path, "train", 2, seed=1)
    assert list(tmp_path.iterdir()) == [folder]
    monkeypatch.setattr(shapes, "_write", None)
    assert shapes.generate_shapes(tmp_path, "train", 2, seed=1) == folder
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file: the synthetic dataset cannot be written"):
        shapes.generate_shapes(tmp_path / "file", "train", 2, seed=1)


def test_all_categories_and_segmentation_formats_occur(folder):
    rows = json.loads((folder / "annotations.json").read_text())["annotations"]
    assert {row["category_id"] for row in rows} == set(shapes.CATEGORIES) == {2, 3, 5, 7, 11}
    assert {type(row["segmentation"]) for row in rows} == {list, dict}
    sides = [max(row["bbox"][2:]) for row in rows]
    assert min(sides) < 32 < 60 < max(sides)


def test_segmentations_fit_boxes_and_do_not_overlap(ground_truth):
    for image in ground_truth.dataset["images"]:
        rows = ground_truth.imgToAnns[image["id"]]
        bitmaps = [to_bitmap(row["segmentation"], image["height"], image["width"]) for row in rows]
        for row, bitmap in zip(rows, bitmaps, strict=True):
            assert abs(int(bitmap.sum()) - row["area"]) <= 0.1 * row["area"]
            ys, xs = np.nonzero(bitmap)
            x, y, w, h = row["bbox"]
            tight = np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
            assert np.abs(tight - [x, y, x + w, y + h]).max() <= 1.5
        # Polygons and pixels are rounded differently along common edges.
        total = sum(bitmaps, np.zeros(()))
        assert (total > 1).sum() <= 0.02 * max((total > 0).sum(), 1)
