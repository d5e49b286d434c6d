"""Images are checked once, and again if they may have changed."""

import io
import json
from functools import partial

import pytest
from PIL import Image
from tqdm import tqdm

from detlite.config import load_config
from detlite.data import CocoDataset, DataError
from detlite.data.annotations.store import open_table
from detlite.data.datasets.options import DatasetOptions
from detlite.data.images import checks
from detlite.data.images.pixels import ImageOptions, build_image_options


@pytest.fixture
def checked(monkeypatch):
    """Record the names of the checked images."""
    names = []
    check_image = checks.check_image

    def counting(path, *args):
        names.append(path.name)
        return check_image(path, *args)

    monkeypatch.setattr(checks, "check_image", counting)
    return names


def test_a_missing_folder_may_appear(content, write_set, cache, settled, checked):
    file, folder = write_set(content)
    for image in content["images"][2:]:
        image["file_name"] = f"more/{image['file_name']}"
    file.write_text(json.dumps(content))
    for _ in range(2):
        assert CocoDataset(file, folder, DatasetOptions(skip_bad=True)).image_ids == [10, 11]
    assert sorted(checked[4:]) == ["crowd.png", "empty.png"]
    (folder / "more").mkdir()
    for name in ("crowd.png", "empty.png"):
        (folder / name).rename(folder / "more" / name)
    assert len(CocoDataset(file, folder)) == 4


def test_the_check_shows_its_progress(content, write_set, cache, monkeypatch):
    shown = io.StringIO()
    bar = partial(tqdm, file=shown, mininterval=0)
    monkeypatch.setattr(checks, "progress_bar", bar)
    file, folder = write_set(content)
    CocoDataset(file, folder)
    assert f"checking images in {folder}: 100%" in shown.getvalue()
    assert "4/4" in shown.getvalue()


def test_bad_images_are_checked_again(content, write_set, cache, settled, checked):
    """An image can be repaired without a change of the folder."""
    file, folder = write_set(content)
    valid = (folder / "a.png").read_bytes()
    (folder / "a.png").write_bytes(valid[:-200])
    for _ in range(2):
        with pytest.raises(DataError, match=r"image 10 \(a.png\): .*truncated"):
            CocoDataset(file, folder)
    assert checked[4:] == ["a.png"]
    (folder / "a.png").write_bytes(valid)
    for _ in range(2):
        assert len(CocoDataset(file, folder)) == 4
    assert len(checked) == 6
    CocoDataset(file, folder, DatasetOptions(images=ImageOptions(100_000)))
    assert len(checked) == 10
    (folder / "b.png").unlink()
    with pytest.raises(DataError, match=r"image 11 \(b.png\): the image file does not exist"):
        CocoDataset(file, folder)
    content["images"][0]["file_name"] = f"{'x' * 300}/a.png"  # more than a file system allows
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match="image 10 "):
        CocoDataset(file, folder)


def test_images_of_a_new_folder_are_checked_each_time(content, write_set, cache, checked):
    file, folder = write_set(content)
    for _ in range(2):
        CocoDataset(file, folder)
    assert len(checked) == 8
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    with pytest.raises(DataError, match="annotation file has 40x30"):
        CocoDataset(file, folder)


@pytest.mark.parametrize(("orientation", "reported"), [(1, False), (3, True), (6, False)])
def test_orientations_that_keep_the_size(content, write_set, cache, orientation, reported):
    """Sizes show if annotations count stored pixels only where width and height are swapped."""
    file, folder = write_set(content)
    exif = Image.Exif()
    exif[0x112] = orientation
    with Image.open(folder / "a.png") as image:
        size = image.size[::-1] if orientation == 6 else image.size
        image.resize(size).save(folder / "a.png", exif=exif)
    for options in (ImageOptions(), ImageOptions(exif_orientation=False)):
        skip_bad = orientation == 6  # stored pixels have another size
        dataset = CocoDataset(file, folder, DatasetOptions(skip_bad=skip_bad, images=options))
        found = [one for one in dataset.findings if "EXIF orientation keeps" in one.what]
        assert bool(found) == (reported and options.exif_orientation)
        for finding in found:
            assert (finding.count, finding.example) == (1, "image 10 (a.png): orientation 3")
            advice = finding.effect.removesuffix(".").partition(", set ")[2].split()
            assert not build_image_options(load_config(None, advice)).exif_orientation


def test_images_that_no_annotation_file_lists(content, write_set, tmp_path):
    file, folder = write_set(content)
    table = open_table(file)
    assert [*checks.unlisted_images([(table, folder)])] == []
    (folder / "new.PNG").write_bytes(b"")
    (folder / "notes.txt").write_bytes(b"")
    (folder / "._a.png").write_bytes(b"")
    (folder / "other").mkdir()
    (folder / "other/b.png").write_bytes(b"")  # no listed image is in this folder
    (finding,) = checks.unlisted_images([(table, folder)])
    assert (finding.count, finding.example) == (1, str(folder / "new.PNG"))
    (tmp_path / "link").symlink_to(folder)
    rows = [{**content["images"][0], "file_name": "new.PNG"}]
    other = tmp_path / "other.json"
    other.write_text(json.dumps(content | {"images": rows, "annotations": []}))
    both = [(table, folder), (open_table(other), tmp_path / "link")]
    assert [*checks.unlisted_images(both)] == []
    # An image that is listed twice makes the numbers of files and entries equal.
    other.write_text(json.dumps(content | {"images": content["images"][:1], "annotations": []}))
    parts = [(open_table(one), folder) for one in (file, other)]
    assert [finding.count for finding in checks.unlisted_images(parts)] == [1]
    file.write_text(json.dumps(content | {"converted": True}))
    assert [*checks.unlisted_images([(open_table(file), folder)])] == []
