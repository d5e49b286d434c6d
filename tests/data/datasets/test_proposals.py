"""Proposal files in both formats, and invalid ones."""

import json
import os
import pickle

import numpy as np
import pytest
import torch

from detlite.config import ConfigError
from detlite.data import DataError, build_dataset, build_train_loader
from detlite.data.datasets.proposals import load_proposals

# In the first two images of the small dataset, of 40 x 30 and 20 x 40 pixels.
BOXES = {10: [[0, 0, 10, 10], [5, 5, 50, 50], [2, 3, 2, 9]], 11: [[1, 2, 11, 32]]}
SCORES = {10: [0.25, 0.75, 0.9], 11: [-3.5]}
EXPECTED = [torch.tensor([[5.0, 5, 40, 30], [0, 0, 10, 10]]), torch.tensor([[1.0, 2, 11, 32]])]
SIZES = [(30, 40), (40, 20)]


def pickled(path, **changes):
    content = {
        "ids": list(BOXES),
        "boxes": [np.array(boxes, np.float32) for boxes in BOXES.values()],
        "objectness_logits": [np.array(scores, np.float32) for scores in SCORES.values()],
        "bbox_mode": 0,
    }
    content |= changes
    content = {name: value for name, value in content.items() if value is not None}
    path.write_bytes(pickle.dumps(content))
    return path


def results():
    return [
        {"image_id": image_id, "category_id": 7, "bbox": [x1, y1, x2 - x1, y2 - y1], "score": s}
        for image_id, boxes in BOXES.items()
        for (x1, y1, x2, y2), s in zip(boxes, SCORES[image_id], strict=True)
    ]


def load(path, limit=100):
    return load_proposals(path, [10, 11], SIZES, limit)


def assert_expected(proposals):
    assert [boxes.dtype for boxes in proposals] == [torch.float32] * 2
    for boxes, expected in zip(proposals, EXPECTED, strict=True):
        assert torch.equal(boxes, expected)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bbox_mode": None},
        {"ids": ["10", "11"]},
        {"ids": None, "indexes": np.array([10, 11])},
        {
            "objectness_logits": None,
            "scores": [np.array(s, np.float64)[:, None] for s in SCORES.values()],
        },
        {
            "bbox_mode": 1,
            "boxes": [np.array(b) - np.pad(np.array(b)[:, :2], [(0, 0), (2, 0)])
                      for b in BOXES.values()],
        },
    ],
    ids=["as detectron2", "no mode", "ids as text", "older ids", "older scores", "xywh"],
)  # fmt: skip
def test_pickles(tmp_path, changes):
    assert_expected(load(pickled(tmp_path / "p.pkl", **changes)))


def test_coco_results_and_limits(tmp_path, caplog):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results()[::-1]))
    assert_expected(load(path))
    assert torch.equal(load(path, limit=1)[0], EXPECTED[0][:1])
    with caplog.at_level("INFO"):  # other images are ignored
        (boxes,) = load_proposals(path, [11], SIZES[1:], 100)
    assert torch.equal(boxes, EXPECTED[1])
    assert "results.json: kept the best 1 of 1 proposals of 1 images" in caplog.text
    empty = [np.zeros((0, 4), np.float32), np.array([[50.0, 60, 70, 80]])]
    scores = [np.zeros(0, np.float32), np.ones(1)]
    path = pickled(tmp_path / "p.pkl", boxes=empty, objectness_logits=scores)
    assert [boxes.shape for boxes in load(path)] == [(0, 4), (0, 4)]
    for name in ("none.pkl", "none.json"):
        with pytest.raises(DataError, match=rf"{name}: (proposals )?cannot be read"):
            load(tmp_path / name)


NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": [10, 12]}, r"proposals are missing for 1 of 2 images, the first of them image 11"),
        ({"ids": [10, 10]}, "image 10 occurs twice"),
        ({"ids": [10]}, "not a proposal file, .* with one of each per image"),
        ({"ids": None}, r"not a proposal file, which is a dict of ids \(or indexes\)"),
        ({"boxes": None}, "not a proposal file"),
        ({"boxes": 3}, "not a proposal file"),
        ({"bbox_mode": 4}, r"bbox_mode is 4, but must be 0 \(xyxy\) or 1 \(xywh\)"),
        ({"boxes": [[[0, 0, NAN, 1]] * 3, [[0, 0, 1, 1]]]}, "image 10: box .*nan.* is not finite"),
        ({"scores": None, "objectness_logits": [[0, 1, float("inf")], [0]]},
         "image 10: box .* score inf is not finite"),
        ({"objectness_logits": [[0, 1], [0]]}, r"image 10: has boxes .* and 2 scores"),
        ({"boxes": [np.zeros((3, 5)), np.zeros((1, 4))]}, r"image 10: has boxes of shape \[3, 5\]"),
        ({"boxes": [[[0, 0, 1, 1], [0]], [[0, 0, 1, 1]]]}, "image 10: boxes or scores are not num"),
        ({"boxes": [["a"], [[0, 0, 1, 1]]]}, "image 10: boxes or scores are not numbers"),
    ],
)  # fmt: skip
def test_bad_pickles_name_file_and_image(tmp_path, changes, message):
    with pytest.raises(DataError, match=rf"p\.pkl: {message}"):
        load(pickled(tmp_path / "p.pkl", **changes))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("{}", "not a COCO results file"),
        ("[3]", "result 0 is not an object with image_id, bbox and score"),
        ('[{"image_id": 10, "bbox": [0, 0, 1, 1]}]', "result 0 is not an object with image_id"),
        ('[{"image_id": 10, "bbox": [0, 0, 1, 1], "score": 1}]', "proposals are missing for 1"),
        ('[{"image_id": 10, "bbox": [0, 0, NaN, 1], "score": 1},'
         ' {"image_id": 11, "bbox": [0, 0, 1, 1], "score": 1}]', "image 10: box .* is not finite"),
        ('[{"image_id": 10, "bbox": [0, 0, 1], "score": 1},'
         ' {"image_id": 11, "bbox": [0, 0, 1, 1], "score": 1}]', "image 10: has boxes of shape"),
    ],
)  # fmt: skip
def test_bad_results_name_file_and_image(tmp_path, text, message):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(DataError, match=rf"r\.json: {message}"):
        load(path)


class _RunsCode:
    def __reduce__(self):
        return os.getcwd, ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps({"ids": _RunsCode()}), r"contains a pickled \w+\.getcwd; only arrays"),
        (b"no pickle", "not a pickle, or truncated or damaged"),
        (pickle.dumps([1, 2]), "not a proposal file"),
    ],
)
def test_pickles_of_other_content(tmp_path, data, message):
    (tmp_path / "p.pkl").write_bytes(data)
    with pytest.raises(DataError, match=rf"p\.pkl: {message}"):
        load(tmp_path / "p.pkl")


LOAD = ["MODEL.LOAD_PROPOSALS", True, "DATASETS.PROPOSAL_FILES_TRAIN", ("p.pkl",)]


def test_proposals_are_transformed_like_boxes(content, write_set, small_cfg, tmp_path):
    write_set(content)
    objects = {10: [[4, 6, 14, 14], [20, 10, 30, 20]], 11: [[0, 0, 20, 40]]}
    pickled(
        tmp_path / "p.pkl",
        ids=list(objects),
        boxes=[np.array(boxes, np.float32) for boxes in objects.values()],
        objectness_logits=[np.arange(len(boxes))[::-1] for boxes in objects.values()],
    )
    cfg = small_cfg(*LOAD, "INPUT.HORIZONTAL_FLIP_PROB_TRAIN", 1.0)
    assert "proposals" not in build_dataset(small_cfg(*LOAD[2:]), "small", train=True)[0][1]
    dataset = build_dataset(cfg, "small", train=True)
    assert torch.equal(dataset[0][1]["proposals"], dataset[0][1]["boxes"])
    seen = 0
    for images, targets in build_train_loader(cfg, dataset):
        for image, target in zip(images, targets, strict=True):
            boxes = torch.tensor(objects[target["image_id"]]).float()
            height, width = target["size"]
            scale = torch.tensor([image.shape[2] / width, image.shape[1] / height]).repeat(2)
            mirrored = torch.stack(
                [width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], 1
            )
            torch.testing.assert_close(target["proposals"], mirrored * scale)
            torch.testing.assert_close(target["proposals"], target["boxes"])
            seen += 1
        if seen >= 4:
            break


@pytest.mark.parametrize("form", ["pkl", "json"])
def test_proposals_at_a_url(content, write_set, small_cfg, tmp_path, form):
    content["images"] = [row for row in content["images"] if row["id"] in BOXES]
    content["annotations"] = [row for row in content["annotations"] if row["image_id"] in BOXES]
    write_set(content)
    file = tmp_path / f"proposals.{form}"
    if form == "pkl":
        pickled(file)
    else:
        file.write_text(json.dumps(results()))
    options = [*LOAD[:2], "DATASETS.PROPOSAL_FILES_TEST", (f"file://{file}",)]
    options += ["DATASETS.TEST", ("small",)]
    dataset = build_dataset(small_cfg(*options), "small", train=False)
    assert_expected([dataset[number][1]["proposals"] for number in range(2)])
    options += ["DATASETS.PRECOMPUTED_PROPOSAL_TOPK_TEST", 1]
    dataset = build_dataset(small_cfg(*options), "small", train=False)
    assert len(dataset[0][1]["proposals"]) == 1


@pytest.mark.parametrize("files", [(), ("p.pkl", "p.pkl")])
def test_one_file_per_dataset(content, write_set, small_cfg, files):
    write_set(content)
    cfg = small_cfg(*LOAD, "DATASETS.PROPOSAL_FILES_TRAIN", files)
    with pytest.raises(ConfigError, match=r"PROPOSAL_FILES_TRAIN is .* needs one file per"):
        build_dataset(cfg, "small", train=True)
    with pytest.raises(ConfigError, match=r"PROPOSAL_FILES_TEST is .* including one for small"):
        build_dataset(cfg, "small", train=False)
