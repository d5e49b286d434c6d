"""Results: conversion of detections, COCO entries, and results files."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from pycocotools import mask as rle_codec
from torch import Tensor

from detlite.conventions import CONVENTIONS
from detlite.data import DataError
from detlite.evaluation import Results, coco_results, to_coco_results
from detlite.evaluation import results as results_module
from detlite.evaluation.detection_results import categories_of
from detlite.evaluation.results import gather_results, write_results
from detlite.structures.instances import Detections
from detlite.structures.masks.formats import encode_bitmap, to_bitmap
from tests.builders import coco_content, make_coco

CATEGORIES = [{"id": 7, "name": "cell"}, {"id": 90, "name": "speck"}]


def detections(**fields: Tensor) -> Detections:
    return Detections(
        boxes=torch.tensor([[20.0, 10.0, 60.0, 30.0], [0.0, 0.0, 100.0, 50.0]]),
        labels=torch.tensor([2, 1]),
        scores=torch.tensor([0.75, 0.5]),
        valid=torch.tensor([True, True]),
        **fields,
    )


class TestToCocoResults:
    def test_boxes_are_rescaled(self):
        results = to_coco_results(detections(), 5, (50, 100), (200, 200), CATEGORIES)
        assert list(results.to_coco()) == [
            {"image_id": 5, "category_id": 90, "bbox": [40, 40, 80, 80], "score": 0.75},
            {"image_id": 5, "category_id": 7, "bbox": [0, 0, 200, 200], "score": 0.5},
        ]

    def test_masks_have_the_original_size(self):
        probs = torch.zeros(2, 28, 28)
        probs[0, :, 14:] = 1  # the right half of the box
        results = to_coco_results(
            detections(mask_probs=probs), 5, (50, 100), (200, 200), CATEGORIES
        )
        entries = list(results.to_coco())
        mask = to_bitmap(entries[0]["segmentation"], 200, 200)
        half = np.zeros((200, 200), np.uint8)
        half[40:120, 80:120] = 1
        assert (mask != half).sum() < 0.01 * half.sum()  # pasting rounds the corners
        assert to_bitmap(entries[1]["segmentation"], 200, 200).sum() == 0

    def test_mask_threshold(self):
        probs = torch.full((2, 28, 28), 0.6)
        areas = []
        for threshold in (0.5, 0.7):
            results = to_coco_results(
                detections(mask_probs=probs),
                5,
                (50, 100),
                (50, 100),
                CATEGORIES,
                mask_threshold=threshold,
            )
            (first, _) = results.to_coco()
            areas.append(to_bitmap(first["segmentation"], 50, 100).sum())
        assert areas == [20 * 40, 0]

    def test_background(self):
        detected = categories_of(torch.tensor([0, 1]), CATEGORIES)
        assert [category["id"] for category in detected] == [-1, 7]
        both = replace(detections(), labels=torch.tensor([0, 1]))
        results = to_coco_results(both, 5, (50, 100), (50, 100), CATEGORIES)
        assert results.category_ids.tolist() == [7]

    @pytest.mark.parametrize("label", [-1, 3])
    def test_label_without_category(self, label):
        with pytest.raises(ValueError, match=rf"label {label}, and there are 2 categories"):
            categories_of(torch.tensor([1, label]), CATEGORIES)


def test_bitmaps_are_encoded():
    masks = torch.zeros(1, 8, 6, dtype=torch.bool)
    masks[0, 2:4, 1:5] = True
    boxes, scores = torch.tensor([[1.0, 2.0, 5.0, 4.0]]), torch.tensor([1.0])
    (result,) = coco_results(1, boxes, scores, [7], masks).to_coco()
    assert result["bbox"] == [1, 2, 4, 2]
    assert (to_bitmap(result["segmentation"], 8, 6) == masks[0].numpy()).all()
    assert list(coco_results(1, boxes, scores, [7], [result["segmentation"]]).to_coco()) == [result]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype):
    boxes, scores = torch.tensor([[1.0, 2.0, 5.0, 4.0]]), torch.tensor([0.5])
    (result,) = coco_results(1, boxes.to(dtype), scores.to(dtype), [7]).to_coco()
    assert (result["bbox"], result["score"]) == ([1, 2, 4, 2], 0.5)


def test_keypoints_are_pixel_indices():
    boxes, scores = torch.tensor([[1.0, 2, 5, 9]]), torch.tensor([0.5])
    keypoints = torch.tensor([[[1.5, 2.5, 1], [4.0, 8.5, 1]]])
    (result,) = coco_results(1, boxes, scores, [7], keypoints=keypoints).to_coco()
    assert result["keypoints"] == [1, 2, 1, 3.5, 8, 1]
    assert "segmentation" not in result
    person = detections(keypoints=keypoints[:, :1].expand(2, -1, -1))
    for name, expected in (("detlite", [1, 9.5, 1]), ("torchvision", [1.5, 10, 1])):
        arguments = person, 5, (50, 100), (200, 100), CATEGORIES, CONVENTIONS[name]
        (first, _) = to_coco_results(*arguments).to_coco()
        assert first["keypoints"] == expected


ROWS = [
    {"image_id": 4, "category_id": 7, "score": 0.1, "bbox": [1.0, 2.5, 3.0, 4.0],
     "segmentation": {"size": [2, 3], "counts": "15"}, "keypoints": [1.0, 2.0, 1.0]},
    {"image_id": 2, "category_id": 9, "score": 1.0, "bbox": [0.0, 0.0, 1.0, 1.0],
     "segmentation": {"size": [4, 4], "counts": "`0"}, "keypoints": [0.5, 0.0, 1.0]},
]  # fmt: skip
ALL = ("bbox", "segm", "keypoints")


class TestCocoEntries:
    def test_round_trip(self):
        results = Results.from_coco(ROWS, ALL)
        assert list(results.to_coco()) == ROWS
        assert list(results.to_coco(1)) == ROWS[1:]
        assert list(results.to_coco(0, 1)) == ROWS[:1]

    def test_only_requested_fields(self):
        (first, _) = Results.from_coco(ROWS, ["segm"]).to_coco()
        assert first.keys() == {"image_id", "category_id", "score", "segmentation"}

    def test_counts_may_be_bytes(self):
        counts = ROWS[0]["segmentation"]["counts"].encode()
        row = {**ROWS[0], "segmentation": {"size": [2, 3], "counts": counts}}
        assert list(Results.from_coco([row], ALL).to_coco()) == ROWS[:1]

    @pytest.mark.parametrize("kind", ALL)
    def test_no_results(self, kind):
        assert len(Results.from_coco([], [kind])) == 0
        assert list(Results.from_coco([], ()).to_coco()) == []

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"image_id": "a"}, "image_id is 'a', not an id"),
            ({"image_id": 1.5}, "image_id is 1.5, not an id"),
            ({"category_id": 2**70}, "category_id is 1180591620717411303424, not an id"),
            ({"score": "high"}, r"is not in COCO's results format \(.*score"),
            ({"score": None}, r"is not in COCO's results format \(.*score"),
            ({"bbox": [1, 2, 3]}, r"is not in COCO's results format \(.*bbox"),
            ({"bbox": "1 2 3 4"}, r"is not in COCO's results format \(.*bbox"),
            ({"keypoints": [1, 2, 1] * 2}, "keypoints is .*, not 3 numbers"),
            ({"keypoints": [[1, 2, 1]]}, r"is not in COCO's results format \(.*keypoints"),
            *(
                ({"segmentation": mask}, r".*segmentation")
                for mask in (
                    None,
                    [[1, 1, 2, 2, 3, 1]],
                    {"size": [4, 4], "counts": [4, 12]},
                    {"size": [4, 4], "counts": "\u00e9"},
                    {"size": [4], "counts": "`0"},
                    {"size": [0, 2**63], "counts": "`0"},
                    {"size": [-1, 4], "counts": "`0"},
                    {"counts": "`0"},
                )
            ),
        ],
    )
    def test_invalid(self, change, message):
        """The error names the first entry that is not a COCO result."""
        with pytest.raises(DataError, match=f"result 1:? {message}"):
            Results.from_coco([ROWS[0], {**ROWS[1], **change}], ALL)

    def test_the_error_shows_a_result(self):
        with pytest.raises(DataError, match=r'A result is, for example, {"image_id": 17, '):
            Results.from_coco([{"file_name": "1.png", "label": "cat"}])

    @pytest.mark.parametrize("rows", [{"annotations": ROWS}, 5, None])
    def test_other_content_than_a_list(self, rows):
        with pytest.raises(DataError, match="a list of COCO results is needed, such as"):
            Results.from_coco(rows)

    def test_numbers_of_other_libraries(self):
        row = {"image_id": np.int64(3), "category_id": 7.0, "score": np.float32(0.5),
               "bbox": np.arange(4)}  # fmt: skip
        assert list(Results.from_coco([row]).to_coco()) == [
            {"image_id": 3, "category_id": 7, "score": 0.5, "bbox": [0, 1, 2, 3]}
        ]

    def test_missing_boxes_are_those_of_the_masks(self):
        row = {**ROWS[0], "segmentation": encode_bitmap(np.eye(4)[1:3]), "bbox": None}
        results = Results.from_coco([row], ("bbox", "segm"))
        assert results.boxes.tolist() == rle_codec.toBbox([row["segmentation"]]).tolist()

    @pytest.mark.parametrize("field", ROWS[0])
    def test_missing(self, field):
        row = {name: value for name, value in ROWS[1].items() if name != field}
        with pytest.raises(DataError, match=f"result 1 .*`{field}`"):
            Results.from_coco([ROWS[0], row], [field] if field == "bbox" else ALL)


def make_results(count: int) -> Results:
    rows = [
        {"image_id": 1, "category_id": 2, "score": n / 8, "bbox": [n, 0.5, 2.0, 3.0],
         "segmentation": encode_bitmap(np.eye(4 + n))}
        for n in range(count)
    ]  # fmt: skip
    return Results.from_coco(rows, ("bbox", "segm"))


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_results_file_is_written_in_chunks(tmp_path, monkeypatch, count):
    monkeypatch.setattr(results_module, "_ROWS_PER_WRITE", 3)
    file = tmp_path / "results.json"
    write_results(make_results(count), file)
    assert json.loads(file.read_text()) == list(make_results(count).to_coco())
    truth = make_coco(coco_content(categories=["cat", "dog"]))
    if count:
        read = truth.loadRes(str(file))
        assert [row["bbox"] for row in read.loadAnns(read.getAnnIds())] == [
            [n, 0.5, 2.0, 3.0] for n in range(count)
        ]
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def image_results(image_id: int, count: int, **options: bool) -> Results:
    """Make detections of one image, with masks and keypoints if the options are set."""
    boxes = torch.arange(4.0).repeat(count, 1) + image_id
    scores = torch.arange(count) / 8
    masks = [encode_bitmap(np.eye(3 + n)) for n in range(count)] if options.get("masks") else None
    points = torch.rand(count, 5, 3) if options.get("keypoints") else None
    return coco_results(image_id, boxes, scores, [2] * count, masks, points)


@pytest.mark.parametrize("options", [{}, {"masks": True}, {"masks": True, "keypoints": True}])
def test_images_and_processes_are_concatenated(options, monkeypatch):
    """Rank 0 gets all results by rank, also if a process has no detections or no images."""
    parts = [image_results(n, count, **options) for n, count in enumerate((2, 0, 3))]
    collected = gather_results(parts)
    assert list(collected.to_coco()) == [row for part in parts for row in part.to_coco()]
    assert collected.scores.dtype == np.float32
    assert len(gather_results([])) == len(gather_results([parts[1]])) == 0
    of_ranks = [[], [parts[1]], [gather_results([])], [parts[0]]]
    monkeypatch.setattr(results_module, "gather_objects", lambda sent: of_ranks)
    gathered = gather_results([parts[2]])
    assert list(gathered.to_coco()) == [*parts[2].to_coco(), *parts[0].to_coco()]
    monkeypatch.setattr(results_module, "is_main", lambda: False)
    sent = []
    monkeypatch.setattr(results_module, "gather_objects", sent.extend)
    assert gather_results(parts) is None
    assert list(sent[0].to_coco()) == list(collected.to_coco())
