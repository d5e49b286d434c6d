"""Pictures are checked once, and again when there is a reason."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from detlite.data import CocoDataset, DataError
from detlite.data.index import image_checks as index_pictures


@pytest.fixture
def looked_at(monkeypatch):
    """The pictures whose header was read."""
    names = []
    image_problem = index_pictures.image_problem

    def counting(path, *args):
        names.append(path.name)
        return image_problem(path, *args)

    monkeypatch.setattr(index_pictures, "image_problem", counting)
    return names


def test_pictures_are_checked_once(content, write_set, cache, settled, looked_at):
    file, folder = write_set(content)
    CocoDataset(file, folder)
    assert sorted(looked_at) == ["a.png", "b.png", "crowd.png", "empty.png"]
    CocoDataset(file, folder, train=True)
    assert len(looked_at) == 4
    CocoDataset(file, folder, max_pixels=100_000)
    assert len(looked_at) == 8


def test_pictures_are_checked_again_when_their_folder_changes(
    content, write_set, cache, settled, looked_at
):
    file, folder = write_set(content)
    (folder / "b").mkdir()
    (folder / "b.png").rename(folder / "b/b.png")
    content["images"][1]["file_name"] = "b/b.png"
    file.write_text(json.dumps(content))
    CocoDataset(file, folder)
    (folder / "b/b.png").unlink()
    with pytest.raises(DataError, match=r"image 11 \(b/b.png\): no such picture"):
        CocoDataset(file, folder)


def test_a_folder_that_is_not_there_may_appear(content, write_set, cache, settled, looked_at):
    file, folder = write_set(content)
    for image in content["images"][2:]:
        image["file_name"] = f"more/{image['file_name']}"
    file.write_text(json.dumps(content))
    for _ in range(2):
        assert CocoDataset(file, folder, skip_bad=True).image_ids == [10, 11]
    assert sorted(looked_at[4:]) == ["crowd.png", "empty.png"]
    (folder / "more").mkdir()
    for name in ("crowd.png", "empty.png"):
        (folder / name).rename(folder / "more" / name)
    assert len(CocoDataset(file, folder)) == 4


def test_unsound_pictures_are_looked_at_again(content, write_set, cache, settled, looked_at):
    """They may have been mended, without a change of the folder."""
    file, folder = write_set(content)
    sound = (folder / "a.png").read_bytes()
    (folder / "a.png").write_bytes(sound[:-200])
    for _ in range(2):
        with pytest.raises(DataError, match=r"image 10 \(a.png\): .*truncated"):
            CocoDataset(file, folder)
    assert looked_at[4:] == ["a.png"]
    (folder / "a.png").write_bytes(sound)
    assert len(CocoDataset(file, folder)) == 4
    CocoDataset(file, folder)
    assert len(looked_at) == 6


def test_pictures_of_a_new_folder_are_checked_each_time(content, write_set, cache, looked_at):
    file, folder = write_set(content)
    for _ in range(2):
        CocoDataset(file, folder)
    assert len(looked_at) == 8
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    with pytest.raises(DataError, match="states 40x30"):
        CocoDataset(file, folder)
