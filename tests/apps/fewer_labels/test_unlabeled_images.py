"""The list of images without labels."""

import logging
import shutil

import pytest

from detlite.apps.fewer_labels.unlabeled_images import drop_duplicates, images_of, list_unlabeled
from detlite.apps.shards.writer import write_shards
from detlite.config import load_config
from detlite.data import build_test_datasets
from detlite.data.images.pixels import ImageOptions


def test_images_in_shards_are_recognized(photos, tmp_path):
    write_shards(photos / "val.json", photos / "images", tmp_path / "shards")
    shards = next((tmp_path / "shards").glob("*.tar"))
    entry = {"name": "test", "type": "webdataset", "shards": str(shards),
             "categories": str(photos / "val.json")}  # fmt: skip
    keys = ["DATASETS.CATALOG", [entry], "DATASETS.TEST", ("test",)]
    known = images_of(build_test_datasets(load_config(None, keys)))
    assert len(known) == 2
    files = [photos / "more" / f"copy_{number}.png" for number in (1, 5, 7)]
    assert drop_duplicates(files, known) == [files[0], files[2]]


def test_only_known_images_count_as_known(photos, caplog):
    lines = [str(photos / "images" / f"{number}.png") for number in (1, 2, 3, 3, 2)]
    (photos / "list.txt").write_text("\n".join(lines))
    known = [photos / "images" / "1.png"]
    found = list_unlabeled([str(photos / "list.txt")], known, ImageOptions())
    assert list(map(str, found)) == lines[1:3]
    assert "1 of 3 images are left out, because they are in the training" in caplog.text


def test_files_of_the_run_are_left_out(photos):
    out = photos / "more" / "out"
    out.mkdir()
    shutil.copy(photos / "images/9.png", out / "detections.png")
    found = list_unlabeled([str(photos / "more/**/*.png")], [], ImageOptions(), exclude=out)
    assert len(found) == 7
    assert out / "detections.png" not in found


@pytest.mark.skipif("sys.platform == 'win32'", reason="a backslash separates folders")
def test_names_with_a_backslash_are_left_out(photos, caplog):
    caplog.set_level(logging.INFO)
    (photos / "more/copy_7.png").rename(photos / "more" / "a\\b.png")
    found = list_unlabeled([str(photos / "more")], [], ImageOptions())
    assert len(found) == 6
    assert "1 of 7 images are left out, because their paths contain a backslash" in caplog.text
