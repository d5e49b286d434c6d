"""The content of a table."""

import random

import pytest

from detlite.data.annotations.selection import Selection
from detlite.data.annotations.store import open_table


def test_entries_equal_those_of_the_file(content, write_set, cache):
    content["images"][1]["void"] = {"size": [40, 20], "counts": "ab"}
    content["annotations"][0] |= {"score": float("inf"), "bbox": [4, 6.25, 10, 8], "é": "\ud800"}
    content["info"] = {"year": 2026}
    for row, area in zip(content["annotations"], (80, 400, 100, 384), strict=True):
        row["area"] = area  # which would be computed
    random.Random(0).shuffle(content["annotations"])
    table = open_table(write_set(content)[0])
    assert table.content == {"info": {"year": 2026}, "categories": content["categories"]}
    assert [table.image(number) for number in range(4)] == content["images"]
    assert table.image_ids.tolist() == [10, 11, 12, 13]
    assert table.sizes.tolist() == [[30, 40], [40, 20], [16, 16], [16, 24]]
    for number, image in enumerate(content["images"]):
        rows = [row for row in content["annotations"] if row["image_id"] == image["id"]]
        assert table.rows(table.selected(number)) == rows
        objects = table.rows(table.selected(number, Selection().objects))
        assert objects == [row for row in rows if not row.get("iscrowd")]


@pytest.mark.parametrize("ids", [[3, 3, 3, 4], [None, 2, 3, 4], ["a", 2, 3, 4], [1.5, 2, 3, 4]])
def test_ids_that_are_not_different_integers_are_replaced(content, write_set, cache, ids):
    for row, value in zip(content["annotations"], ids, strict=True):
        row["id"] = value
    table = open_table(write_set(content)[0])
    numbers = [[row["id"] for row in table.rows(table.selected(n))] for n in range(4)]
    assert numbers == [[1, 3], [2], [], [4]]
    assert table.problems(Selection(masks=True)) == ([], 0)
    (finding,) = table.notes
    assert "numbered from 1 in the order of the file" in str(finding)


def test_problems_are_in_file_order(content, write_set, cache):
    for annotation in content["annotations"][:3]:
        annotation["bbox"] = [0, 0, 0, 0]
    del content["annotations"][1]["id"]
    content["annotations"][0]["image_id"] = 99
    for annotation in content["annotations"][:3]:
        annotation["segmentation"] = []
    problems, count = open_table(write_set(content)[0]).problems(Selection(), 2)
    assert count == 3
    assert problems[0].startswith("annotation 1 (image 99)")
    assert problems[1].startswith("annotation at position 1 (image 11)")
