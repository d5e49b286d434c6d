"""Shards written from a set in COCO's form hold all of it."""

from __future__ import annotations

import json
import tarfile

import pytest

from detlite.data import DataError
from detlite.apps.dataset_formats.shard_writer import write_shards


def members(shard):
    with tarfile.open(shard) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def test_all_is_in_the_shards(content, write_set, tmp_path):
    file, folder = write_set(content)
    shards = write_shards(file, folder, tmp_path / "shards", name="cells", images_per_shard=3)
    assert [shard.name for shard in shards] == ["cells-000000.tar", "cells-000001.tar"]
    assert [len(members(shard)) for shard in shards] == [6, 2]
    found = {name: data for shard in shards for name, data in members(shard).items()}
    for image in content["images"]:
        key = f"{image['id']:012d}"
        assert found[f"{key}.png"] == (folder / image["file_name"]).read_bytes()
        sample = json.loads(found[f"{key}.json"])
        assert {"id": sample["image_id"], **image} == image
        assert (sample["height"], sample["width"]) == (image["height"], image["width"])
        own = [row for row in content["annotations"] if row["image_id"] == image["id"]]
        assert [{"image_id": image["id"], **row} for row in sample["annotations"]] == own
    categories = json.loads((tmp_path / "shards/cells-categories.json").read_text())
    assert categories == {"categories": content["categories"]}


def test_the_same_seed_gives_the_same_bytes(content, write_set, tmp_path):
    files = write_set(content)
    written = [
        write_shards(*files, tmp_path / name, images_per_shard=4, seed=seed)[0].read_bytes()
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert written[0] == written[1] != written[2]


def test_endings_that_shards_do_not_have_are_refused_first(content, write_set, tmp_path):
    content["images"][-1]["file_name"] = "d.gif"
    file, folder = write_set(content)
    with pytest.raises(DataError, match=r"d\.gif: pictures in shards are jpg, .*: convert it"):
        write_shards(file, folder, tmp_path / "shards", images_per_shard=1)
    assert not (tmp_path / "shards").exists()


def test_what_is_bad_is_not_left_out(content, write_set, tmp_path):
    file, folder = write_set(content)
    (folder / "b.png").unlink()
    with pytest.raises(DataError, match=r"b.png: no such picture file"):
        write_shards(file, folder, tmp_path / "shards")
    assert not list((tmp_path / "shards").iterdir())
    content["annotations"][0]["bbox"][2] = -1
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"annotation 1 \(image 10\)"):
        write_shards(file, folder, tmp_path / "shards")
