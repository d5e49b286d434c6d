"""Confusion matrix."""

import numpy as np
import pytest
from pycocotools import mask as rle_codec

from detlite.apps.report.analysis.cross_category import CrossCategoryMatches, confusion_matrix
from detlite.evaluation import Results
from tests.evaluation.synthetic_detections import CATEGORIES, synthetic_dataset


def slow_matrix(coco, rows, min_score):
    """Match pairs one by one, by decreasing IoU."""
    places = {category: k for k, category in enumerate(CATEGORIES)}
    matrix = np.zeros((4, 4), np.int64)
    for image_id in coco.imgs:
        labelled = [a for a in coco.dataset["annotations"] if a["image_id"] == image_id]
        expected = [a for a in labelled if not a["iscrowd"]]
        crowd = [a for a in labelled if a["iscrowd"]]
        own = [r for r in rows if r["image_id"] == image_id and r["score"] >= min_score]

        def overlaps(objects, is_crowd, own=own):
            if not own or not objects:
                return np.zeros((len(own), len(objects)))
            boxes = [o["bbox"] for o in objects]
            return rle_codec.iou([r["bbox"] for r in own], boxes, [is_crowd] * len(objects))

        table, in_crowd = overlaps(expected, 0), overlaps(crowd, 1)
        pairs = sorted((-table[d, g], d, g) for d in range(len(own)) for g in range(len(expected)))
        used, seen = set(), set()
        for overlap, d, g in pairs:
            if overlap <= -0.5 and d not in used and g not in seen:
                used.add(d)
                seen.add(g)
                matrix[places[expected[g]["category_id"]], places[own[d]["category_id"]]] += 1
        for g, annotation in enumerate(expected):
            matrix[places[annotation["category_id"]], 3] += g not in seen
        for d, row in enumerate(own):
            if d not in used and not (in_crowd[d] >= 0.5).any():
                matrix[3, places[row["category_id"]]] += 1
    return matrix


@pytest.mark.parametrize("min_score", [0.0, 0.4, 0.99])
@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_the_slow_implementation(seed, min_score):
    coco, rows = synthetic_dataset(seed)
    matches = CrossCategoryMatches(coco, Results.from_coco(rows), "bbox", 100)
    result = confusion_matrix(matches, min_score)
    assert (result == slow_matrix(coco, rows, min_score)).all()
    expected = [not a["iscrowd"] for a in coco.dataset["annotations"]]
    assert result[:3].sum() == sum(expected)
