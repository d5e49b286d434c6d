"""COCO's metrics beside pycocotools', on random sets with everything that its rules know."""

from __future__ import annotations

import contextlib
import copy
import io
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from detlite.evaluation import Results, coco, evaluate_coco

HEIGHT, WIDTH = 120, 150
FIELDS = {"bbox": "bbox", "segm": "segmentation", "keypoints": "keypoints"}


def blob(rng: np.random.Generator, box: np.ndarray) -> np.ndarray:
    """A bitmap with holes and frayed edges about a box."""
    x, y, w, h = box
    ys, xs = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    inside = ((xs - x - w / 2) / w) ** 2 + ((ys - y - h / 2) / h) ** 2 < 0.25
    return np.asfortranarray((inside & (rng.random(inside.shape) < 0.95)).astype(np.uint8))


def keypoints_in(rng: np.random.Generator, box: np.ndarray) -> list[float]:
    points = np.concatenate([box[:2] + rng.random((17, 2)) * box[2:], np.ones((17, 1))], axis=1)
    return points.round(1).ravel().tolist()


def random_set(seed: int) -> tuple[COCO, list[dict[str, Any]]]:
    """Objects of all sizes, some crowds, in pictures whose ids are not in order; one picture and
    one category have none, one picture is not searched. Detections lie near and far, several with
    the same score, and some are empty."""
    rng = np.random.default_rng(seed)
    content: dict[str, Any] = {"info": {}, "images": [], "annotations": [], "categories": []}
    content["categories"] = [{"id": k, "name": str(k)} for k in (9, 2, 5, 4)]
    results = []
    for image in (30, 4, 17, 8, 5):
        content["images"].append({"id": image, "height": HEIGHT, "width": WIDTH})
        for _ in range(0 if image == 8 else 9):
            size = np.exp(rng.uniform(np.log(6), np.log(110), 2))
            box = np.concatenate([rng.random(2) * ((WIDTH, HEIGHT) - size), size]).round(1)
            crowd, category = int(rng.random() < 0.2), int(rng.choice([9, 2, 5]))
            bitmap = blob(rng, box)
            rle = rle_codec.encode(bitmap)
            shape: Any = {"size": rle["size"], "counts": rle["counts"].decode()}
            if crowd:
                flat = bitmap.ravel(order="F")
                edges = np.flatnonzero(np.diff(flat, prepend=0))
                counts = np.diff(edges, prepend=0, append=flat.size).tolist()
                shape = {"size": rle["size"], "counts": counts}
            elif rng.random() < 0.5:
                x, y, w, h = box
                shape = [[x, y, x + w, y + h / 3, x + w / 2, y + h], [x, y + h, x + 3, y, x, y]]
                shape = [[float(c) for c in ring] for ring in shape]
            points = keypoints_in(rng, box)
            visible = rng.choice([0, 1, 2], 17) * (rng.random() < 0.8)
            points[2::3] = visible.tolist()
            content["annotations"].append(
                {"id": len(content["annotations"]) + 1, "image_id": image, "iscrowd": crowd,
                 "category_id": category, "bbox": box.tolist(), "segmentation": shape,
                 "area": float(bitmap.sum()), "keypoints": points,
                 "num_keypoints": int((visible > 0).sum())}
            )  # fmt: skip
            for _ in range(0 if image == 5 else int(rng.integers(0, 7))):
                moved = box + rng.normal(size=4) * box[[2, 3, 2, 3]] * rng.uniform(0, 0.2)
                moved[2:] = np.abs(moved[2:]) + 1
                there = np.array(points).reshape(17, 3)
                there[:, :2] += rng.normal(size=(17, 2)) * box[2:] * rng.uniform(0, 0.1)
                mask = rle_codec.encode(blob(rng, moved) * np.uint8(rng.random() < 0.95))
                results.append(
                    {"image_id": image, "bbox": moved.tolist(),
                     "category_id": category if rng.random() < 0.8 else 4,
                     "score": float(rng.integers(1, 12)) / 11,
                     "segmentation": {"size": mask["size"], "counts": mask["counts"].decode()},
                     "keypoints": there.ravel().tolist()}
                )  # fmt: skip
    results.append({**results[0], "image_id": 8})
    truth = COCO()
    truth.dataset = content
    truth.createIndex()
    return truth, results


def official(truth: COCO, rows: list[dict[str, Any]], kind: str, limits: list[int]) -> COCOeval:
    fields = ("image_id", "category_id", "score", FIELDS[kind])
    own = COCO()
    own.dataset = copy.deepcopy(truth.dataset)
    with contextlib.redirect_stdout(io.StringIO()):
        own.createIndex()
        found = own.loadRes([{name: row[name] for name in fields} for row in rows])
        evaluator = COCOeval(own, found, kind)
        evaluator.params.maxDets = limits
        evaluator.evaluate()
        evaluator.accumulate()
    return evaluator


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("kind", "most", "limits"),
    [("bbox", 100, [1, 10, 100]), ("bbox", 2, [1, 2, 10]), ("segm", 100, [1, 10, 100]),
     ("segm", 3, [1, 3, 10]), ("keypoints", 100, [20])],
)  # fmt: skip
def test_is_pycocotools(monkeypatch, seed: int, kind: str, most: int, limits: list[int]) -> None:
    truth, rows = random_set(seed)
    tables = {}
    summarize = coco.summarize
    monkeypatch.setattr(coco, "summarize", lambda found, *args: tables.update(found=found) or
                        summarize(found, *args))  # fmt: skip
    metrics = evaluate_coco(truth, Results.from_coco(rows, [kind]), [kind], most)[kind]
    found, wanted = tables["found"], official(truth, rows, kind, limits)
    last = 0 if kind == "keypoints" else limits.index(most)
    np.testing.assert_allclose(found.recall, wanted.eval["recall"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        found.precision, wanted.eval["precision"][..., last], rtol=0, atol=1e-12
    )
    if most == 100:
        with contextlib.redirect_stdout(io.StringIO()):
            wanted.summarize()
        values = [value for name, value in metrics.items() if name != "per_category"]
        assert [-1 if v is None else v for v in values] == pytest.approx(wanted.stats, abs=1e-12)
        assert 0.02 < metrics["AP"] < 0.9


def test_results_of_float32_are_measured_as_their_values() -> None:
    truth, rows = random_set(7)
    results = Results.from_coco(rows)
    arrays = {
        name: array.astype(np.float32) if array.dtype == float else array
        for name, array in results.arrays().items()
    }
    narrow = Results.from_arrays(arrays)
    again = Results.from_coco(list(narrow.to_coco()))
    assert evaluate_coco(truth, narrow, ["bbox"]) == evaluate_coco(truth, again, ["bbox"])
