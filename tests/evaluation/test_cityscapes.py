"""Cityscapes average precision of cases that are computed by hand."""

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from detlite.data.datasets.cityscapes import CATEGORIES, EVALUATED, VOID, read_cityscapes
from detlite.evaluation import Results
from detlite.evaluation.cityscapes import area_under_curve, check_void, evaluate_cityscapes
from detlite.files.errors import DataError
from detlite.structures.masks.formats import encode_bitmap

ROAD, PERSON, CAR, CARAVAN = 7, 24, 26, 29
IDS = {number: place for place, number in enumerate(EVALUATED, start=1)}  # the category ids


@pytest.fixture
def ground_truth(tmp_path):
    """Return a function that makes ground truth from images of instance ids."""

    def make(*images: np.ndarray, **options) -> COCO:
        folders = tmp_path / "leftImg8bit/ulm", tmp_path / "gtFine/ulm"
        for folder in folders:
            folder.mkdir(parents=True)
        for number, pixels in enumerate(images):
            stem = f"ulm_000000_{number:06d}"
            Image.new("RGB", pixels.shape[::-1]).save(folders[0] / f"{stem}_leftImg8bit.png")
            Image.fromarray(pixels).save(folders[1] / f"{stem}_gtFine_instanceIds.png")
        coco = COCO()
        coco.dataset = read_cityscapes(*(folder.parent for folder in folders), **options)
        coco.createIndex()
        return coco

    return make


def make_image(*rectangles) -> np.ndarray:
    """Make a road of 40 x 40 with rectangles (instance id, x, y, w, h)."""
    pixels = np.full((40, 40), ROAD, np.uint16)
    for number, x, y, w, h in rectangles:
        pixels[y : y + h, x : x + w] = number
    return pixels


def detection(score, x, y, w, h, label=CAR, image=1):
    bitmap = make_image((1, x, y, w, h)) == 1
    segmentation = encode_bitmap(bitmap)
    return {"image_id": image, "category_id": IDS[label], "score": score,
            "segmentation": segmentation}  # fmt: skip


def measure(truth: COCO, rows: list[dict]) -> dict:
    return evaluate_cityscapes(truth, Results.from_coco(rows, ["segm"]))


ONE = (26000, 0, 0, 20, 10)
OTHER = (26001, 0, 20, 20, 10)


def test_perfect_detections(ground_truth):
    truth = ground_truth(make_image(ONE), make_image((24000, 5, 5, 10, 10)))
    predictions = [detection(0.9, *ONE[1:]), detection(0.2, 5, 5, 10, 10, PERSON, image=2)]
    absent = {CATEGORIES[number]: None for number in EVALUATED if number not in (PERSON, CAR)}
    ones = {"person": 1.0, "car": 1.0} | absent
    assert measure(truth, predictions) == {
        "AP": 1.0, "AP50": 1.0, "per_category": ones, "per_category_AP50": ones,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("width", "ap50", "ap"), [(10, 0, 0), (11, 1, 0.1), (16, 1, 0.6), (20, 1, 1), (40, 0, 0)]
)
def test_iou_must_exceed_the_threshold(ground_truth, width, ap50, ap):
    metrics = measure(ground_truth(make_image(ONE)), [detection(0.9, 0, 0, width, 10)])
    assert (metrics["AP50"], metrics["AP"]) == (ap50, pytest.approx(ap))


@pytest.mark.parametrize("number", VOID)
def test_predictions_mostly_on_void_are_ignored(ground_truth, number):
    truth = ground_truth(make_image(ONE, (number, 20, 20, 20, 10)))
    right, half, more = (
        detection(0.8, *ONE[1:]), detection(0.9, 10, 20, 20, 10), detection(0.9, 12, 20, 20, 10)
    )  # fmt: skip
    assert measure(truth, [right, half])["AP50"] == 0.25
    metrics = measure(truth, [right, more])
    assert metrics["AP50"] == 1.0
    assert metrics["AP"] == pytest.approx((2 * 1 + 8 * 0.25) / 10)  # 0.6 exceeds 0.5 and 0.55


@pytest.mark.parametrize("number", [ROAD, 17, PERSON, 1000 * PERSON, 1000 * CARAVAN])
def test_other_labels_groups_and_caravans_are_not_void(ground_truth, number):
    truth = ground_truth(make_image(ONE, (number, 20, 20, 20, 10)))
    predictions = [detection(0.8, *ONE[1:]), detection(0.9, 20, 20, 20, 10)]
    assert measure(truth, predictions)["per_category"]["car"] == 0.25


def test_no_detections_and_no_instances(ground_truth):
    truth = ground_truth(make_image(ONE, (0, 20, 20, 20, 10), (PERSON, 0, 20, 20, 10)))
    ignored = detection(0.9, 20, 20, 20, 10)
    empty = detection(0.9, 0, 0, 0, 0)
    for predictions in ([], [ignored], [empty]):
        metrics = measure(truth, predictions)
        assert (metrics["AP"], metrics["AP50"]) == (0.0, 0.0)
        assert metrics["per_category"]["person"] is None
    with pytest.raises(DataError, match="result 0: image_id 5 is not in the ground truth"):
        measure(truth, [ignored | {"image_id": 5}])


@pytest.mark.parametrize(("image", "labels"), [((), EVALUATED), ((ONE,), (CARAVAN,))])
def test_no_instances_of_evaluated_categories(ground_truth, image, labels):
    metrics = measure(ground_truth(make_image(*image), labels=labels), [])
    assert (metrics["AP"], metrics["AP50"]) == (None, None)


def test_caravans_and_trailers_are_not_evaluated(ground_truth):
    pixels = make_image(ONE, (29000, 0, 20, 20, 10), (30000, 20, 20, 20, 10))
    truth = ground_truth(pixels, labels=tuple(CATEGORIES))
    ids = {row["name"]: row["id"] for row in truth.dataset["categories"]}
    predictions = [detection(0.9, *ONE[1:]) | {"category_id": ids["car"]}]
    predictions.append(detection(0.9, 0, 0, 40, 40) | {"category_id": ids["trailer"]})
    metrics = measure(truth, predictions)
    assert metrics["AP"] == 1.0
    assert list(metrics["per_category"]) == [CATEGORIES[number] for number in EVALUATED]


def test_area_under_curve():
    right, wrong = np.array([0.9, 0.5, 0.5]), np.array([0.7, 0.5])
    # (recall, precision): (0, 1), (1/4, 1), (1/4, 1/2), (3/4, 3/5)
    assert area_under_curve(right, wrong, 4) == pytest.approx(0.25 + 0.5 * (0.5 + 0.6) / 2)
    assert area_under_curve(right, np.array([0.9]), 3) == pytest.approx(
        (1 + 1 / 2) / 2 / 3 + (1 / 2 + 3 / 4) / 2 * 2 / 3
    )
    assert area_under_curve(right[:0], wrong, 4) == 0.0
    assert area_under_curve(right[:0], wrong[:0], 4) == 0.0


@pytest.mark.parametrize(
    ("void", "message"),
    [
        (None, "image 1: 'void', .* is missing; delete the dataset's file"),
        ({"size": [40, 41], "counts": [1640]}, r"image 1: .* has another size"),
        ({"size": [40, 40], "counts": [1599]}, "image 1: .* has RLE counts over another number"),
        ({"size": [40, 40], "counts": "\u00ff"}, "image 1: .* counts that are not run lengths"),
    ],
)
def test_ground_truth_without_valid_void(ground_truth, void, message):
    truth = ground_truth(make_image(ONE))
    check_void(truth)
    truth.dataset["images"][0]["void"] = void
    with pytest.raises(DataError, match=message):
        measure(truth, [])


# Regions, detections (score, x, y, w, h, label, image), and the AP of cars at an IoU of 0.5. A
# second image has no objects.
CURVES = {
    # (recall, precision): (1/2, 1), (1/2, 1/2), (1, 2/3)
    "a second match of an instance": (
        [ONE, OTHER],
        [(0.8, *ONE[1:]), (0.7, *OTHER[1:]), (0.9, *ONE[1:])],
        0.5 + 0.5 * (1 / 2 + 2 / 3) / 2,
    ),
    "an empty mask": ([ONE], [(0.9, 0, 0, 0, 0), (0.8, *ONE[1:])], 1.0),
    "another label": ([ONE, (24000, 0, 20, 20, 10)], [(0.9, *ONE[1:], PERSON)], 0.0),
    "another image": ([ONE], [(0.9, *ONE[1:], CAR, 2), (0.8, *ONE[1:])], 0.25),
    "on a group": ([ONE, (CAR, 20, 20, 20, 10)], [(0.9, 20, 20, 20, 10), (0.8, *ONE[1:])], 1.0),
    "an instance of 100 pixels counts": ([ONE, (26001, 20, 20, 10, 10)], [(0.8, *ONE[1:])], 0.5),
    # Groups of less than 100 pixels count twice.
    "on a small group": (
        [ONE, (CAR, 20, 20, 10, 9)], [(0.8, *ONE[1:]), (0.9, 27, 20, 10, 9)], 1.0,
    ),
    "on a group of 100 pixels": (
        [ONE, (CAR, 20, 20, 10, 10)], [(0.8, *ONE[1:]), (0.9, 27, 20, 10, 10)], 0.25,
    ),
    "on a small instance": (
        [ONE, (26001, 20, 20, 9, 9)], [(0.9, 20, 20, 9, 9), (0.8, *ONE[1:])], 1.0,
    ),
    "half on a small instance": (
        [ONE, (26001, 20, 20, 9, 9)], [(0.9, 20, 20, 9, 18), (0.8, *ONE[1:])], 0.25,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CURVES)
def test_precision_and_recall(ground_truth, case):
    rectangles, rows, expected = CURVES[case]
    truth = ground_truth(make_image(*rectangles), make_image())
    metrics = measure(truth, [detection(*row) for row in rows])
    assert metrics["per_category_AP50"]["car"] == pytest.approx(expected)
