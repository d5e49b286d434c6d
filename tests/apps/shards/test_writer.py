"""Test writing shards of a COCO dataset."""

import json
import tarfile

import pytest

from detlite.apps.shards.writer import write_shards
from detlite.data import DataError


def members(shard):
    with tarfile.open(shard) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def test_shards_contain_the_whole_dataset(make_coco_dataset, tmp_path):
    file, folder = make_coco_dataset(images=4)
    content = json.loads(file.read_text())
    shards = write_shards(file, folder, tmp_path / "shards", name="cells", images_per_shard=3)
    assert [shard.name for shard in shards] == ["cells-000000.tar", "cells-000001.tar"]
    assert [len(members(shard)) for shard in shards] == [6, 2]
    contents = {name: data for shard in shards for name, data in members(shard).items()}
    for image in content["images"]:
        key = f"{image['id']:012d}"
        assert contents[f"{key}.png"] == (folder / image["file_name"]).read_bytes()
        sample = json.loads(contents[f"{key}.json"])
        assert {"id": sample["image_id"], **image} == image
        assert (sample["height"], sample["width"]) == (image["height"], image["width"])
        rows = [row for row in content["annotations"] if row["image_id"] == image["id"]]
        assert [{"image_id": image["id"], **row} for row in sample["annotations"]] == rows
    categories = json.loads((tmp_path / "shards/cells-categories.json").read_text())
    assert categories == {"categories": content["categories"]}


def test_the_same_seed_produces_the_same_bytes(make_coco_dataset, tmp_path):
    files = make_coco_dataset()
    written = [
        write_shards(*files, tmp_path / name, images_per_shard=6, seed=seed)[0].read_bytes()
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert written[0] == written[1] != written[2]


def test_unsupported_suffixes_are_refused_first(make_coco_dataset, tmp_path):
    file, folder = make_coco_dataset()
    content = json.loads(file.read_text())
    content["images"][-1]["file_name"] = "d.gif"
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"d\.gif: images in shards must be jpg, .*\. Convert it"):
        write_shards(file, folder, tmp_path / "shards", images_per_shard=1)
    assert not (tmp_path / "shards").exists()


def test_invalid_entries_are_errors(make_coco_dataset, tmp_path):
    file, folder = make_coco_dataset()
    (folder / "2.png").unlink()
    with pytest.raises(DataError, match=r"2.png: the image file does not exist"):
        write_shards(file, folder, tmp_path / "shards")
    assert not list((tmp_path / "shards").iterdir())
    content = json.loads(file.read_text())
    content["annotations"][0]["category_id"] = 99
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"annotation 1 \(image 1\)"):
        write_shards(file, folder, tmp_path / "shards")
