"""The content of an index."""

import json
import random

import pytest

from detlite.data import CocoDataset, DataError
from detlite.data.index.annotation_index import CROWD, invalid_flags
from detlite.data.index.build import open_index


def test_entries_equal_those_of_the_file(content, write_set, cache):
    content["images"][1]["void"] = {"size": [40, 20], "counts": "ab"}
    content["annotations"][0] |= {"score": float("inf"), "bbox": [4, 6.25, 10, 8], "é": "\ud800"}
    content["info"] = {"year": 2026}
    random.Random(0).shuffle(content["annotations"])
    index = open_index(write_set(content)[0])
    assert index.content == {"info": {"year": 2026}, "categories": content["categories"]}
    assert [index.image(number) for number in range(4)] == content["images"]
    assert index.image_ids.tolist() == [10, 11, 12, 13]
    assert index.sizes.tolist() == [[30, 40], [40, 20], [16, 16], [16, 24]]
    for number, image in enumerate(content["images"]):
        rows = [row for row in content["annotations"] if row["image_id"] == image["id"]]
        assert index.annotations(number, 0) == rows
        assert index.annotations(number, CROWD) == [row for row in rows if not row.get("iscrowd")]


def test_order_of_the_lists_does_not_matter(content, write_set, cache):
    backwards = {key: content[key] for key in ("annotations", "categories", "images")}
    index = open_index(write_set(backwards)[0])
    assert [row["id"] for row in index.annotations(0, 0)] == [1, 3]


def test_the_last_of_several_lists_counts(content, write_set, cache):
    file, folder = write_set(content)
    other = json.dumps({"annotations": [], "images": [{"id": 1}], "categories": [3]})
    file.write_text(other[:-1] + ", " + file.read_text()[1:])
    assert len(CocoDataset(file, folder)) == 4
    file.write_text(file.read_text()[:-1] + ', "images": [3]}')
    with pytest.raises(DataError, match="'images' must be a list of objects"):
        CocoDataset(file, folder)


def test_duplicate_ids_depend_on_the_targets(content, write_set, cache):
    """The first valid annotation counts."""
    content["annotations"][0] |= {"id": 3, "segmentation": []}
    index = open_index(write_set(content)[0])
    for masks in (False, True):
        assert len(index.annotations(0, invalid_flags(masks, False))) == 1
    assert index.annotations(0, invalid_flags(True, False))[0]["bbox"] == [20, 10, 10, 10]
    assert index.annotations(0, invalid_flags(False, False))[0]["bbox"] == [4, 6, 10, 8]
    assert index.problems(False, 0, 5) == (["annotation 3 (image 10): the id occurs twice"], 1)
    problem = "annotation 3 (image 10): segmentation is empty: []"
    assert index.problems(True, 0, 5) == ([problem], 1)


def test_problems_are_in_file_order(content, write_set, cache):
    for annotation in content["annotations"][:3]:
        annotation["bbox"] = [0, 0, 0, 0]
    del content["annotations"][1]["id"]
    content["annotations"][0]["image_id"] = 99
    problems, count = open_index(write_set(content)[0]).problems(False, 0, 2)
    assert count == 3
    assert problems[0].startswith("annotation 1 (image 99)")
    assert problems[1].startswith("annotation at position 1 (image 11)")


@pytest.mark.parametrize(("key", "field"), [("images", "id"), ("categories", "id")])
def test_ids_beyond_64_bits(content, write_set, cache, key, field):
    file, folder = write_set(content)
    content[key][0][field] = 1 << 63
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match="9223372036854775808, not an int of 64 bits"):
        CocoDataset(file, folder)


def test_annotation_ids_beyond_64_bits(content, write_set, cache):
    content["annotations"][0]["id"] = -(1 << 64)
    with pytest.raises(DataError, match="which exceeds 64 bits"):
        CocoDataset(*write_set(content))
