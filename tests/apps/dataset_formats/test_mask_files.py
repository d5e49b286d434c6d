"""Test reading folders of mask files."""

import os
import re

import numpy as np
import pytest
from PIL import Image

from detlite.apps.dataset_formats.find_annotations import read_folder
from detlite.apps.dataset_formats.label_images import label_pieces
from detlite.apps.dataset_formats.labeled_dataset import Conversion, to_coco
from detlite.files.errors import DataError
from detlite.structures.masks.formats import to_bitmap
from tests.apps.dataset_formats.reading import check_refused, read_set


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def two_objects(dtype=np.uint8):
    """Return a label image of two touching objects with the values 3 and 200."""
    pixels = np.zeros((40, 60), dtype)
    pixels[5:15, 10:20] = 3
    pixels[5:15, 20:40] = 200
    return pixels


def read(folder):
    format, sets = read_folder(folder)
    assert format == "mask files"
    return sets["train"]


def assert_two_objects(rows):
    assert [row["bbox"] for row in rows] == [[10, 5, 10, 10], [20, 5, 20, 10]]
    assert [row["area"] for row in rows] == [100, 200]
    assert to_bitmap(rows[1]["segmentation"], 40, 60)[5:15, 20:40].all()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_label_images(tmp_path, image, dtype):
    image(tmp_path / "images/a.jpg")
    image(tmp_path / "images/empty.jpg")
    save(tmp_path / "masks/a.png", two_objects(dtype))
    dataset = read(tmp_path)
    content = to_coco(dataset)
    assert dataset.image_folder == tmp_path / "images"
    assert content["categories"] == [{"id": 1, "name": "object"}]
    assert [row["image_id"] for row in content["annotations"]] == [1, 1]
    assert_two_objects(content["annotations"])
    assert "images without a mask file: 1 image" in " ".join(map(str, dataset.findings))


COLORS = np.zeros((40, 60, 3), np.uint8)
COLORS[5:15, 10:20] = [0, 255, 0]
COLORS[5:15, 20:40] = [0, 255, 1]
ONE, OTHER = ((two_objects() == value).astype(np.uint8) * 255 for value in (3, 200))


@pytest.mark.parametrize(
    ("photo", "masks"),
    [
        ("images/a.jpg", {"masks/a.png": COLORS}),  # every color is an object
        ("images/a.png", {"masks/a/x1.png": ONE, "masks/a/x2.png": OTHER}),
        ("a/images/a.png", {"a/masks/x1.png": ONE, "a/masks/x2.png": OTHER}),
        ("PNGImages/a.png", {"PedMasks/a_mask.png": two_objects()}),
        ("images/train/a.png", {"masks/train/a.png": two_objects()}),
        ("train/images/a.jpg", {"train/masks/a_label.tif": two_objects()}),
        ("set/a.png", {"set/a_cp_masks.png": two_objects()}),
        ("JPEGImages/a.jpg", {"SegmentationObject/a.png": two_objects()}),
        ("imgs/a.b.jpg", {"gt/a.b.png": two_objects()}),
        ("images/a.png", {"masks/mask_a.png": two_objects()}),
        ("images/a.png", {"masks/a.tif": two_objects(np.float32)}),
        ("images/a.jpg", {"masks/a.png": two_objects(), "masks/.hidden/b.png": two_objects()}),
        ("set/a_rgb.png", {"set/a_label.png": two_objects()}),  # CVPPP
        ("01/t000.tif", {"01_GT/SEG/man_seg000.tif": two_objects(np.uint16)}),  # Cell Tracking
        ("organ/tissue images/h_0.png", {"organ/label masks/h_0.tif": two_objects()}),  # NuInsSeg
        ("train/c_01.jpg", {"train_masks/c_01_mask.gif": two_objects()}),  # Carvana
    ],
)
def test_usual_files(tmp_path, image, photo, masks):
    image(tmp_path / photo)
    for name, pixels in masks.items():
        save(tmp_path / name, pixels)
    assert_two_objects(to_coco(read(tmp_path))["annotations"])


def test_most_images_need_a_mask(tmp_path, image):
    """Other images in the folder are not images without objects."""
    image(tmp_path / "images/a.jpg")
    save(tmp_path / "masks/a.png", two_objects())
    for number in range(3):
        image(tmp_path / f"aug/{number}.jpg")
    problem = r"3 of 4 images have no mask, in .*aug \(3\)\. Name masks like their images: masks/a"
    check_refused(tmp_path, problem, tmp_path)
    assert len(read_set(tmp_path, skip_bad=True).images) == 4


def test_category_folders(tmp_path, image):
    image(tmp_path / "images/a.jpg")
    save(tmp_path / "masks/worm/a.png", two_objects())
    save(tmp_path / "masks/egg/a/1.png", two_objects() // 200)
    content = to_coco(read(tmp_path))
    assert [row["name"] for row in content["categories"]] == ["egg", "worm"]
    assert [row["category_id"] for row in content["annotations"]] == [1, 2, 2]


DAMAGED = b"\x89PNG\r\n\x1a\n and no more"


@pytest.mark.parametrize(
    ("name", "pixels", "problem"),
    [
        ("masks/a.png", two_objects()[:, :59], "its size is 59x40 .*, but its image is 60x40"),
        ("masks/a.png", DAMAGED, "the image is damaged"),
        ("masks/b.png", two_objects(), "no image has the name"),
        ("masks/a.jpg", two_objects(), "masks need a lossless format"),
        ("masks/a.webp", two_objects(), "masks need a lossless format"),
        ("masks/a.png", np.dstack([two_objects()] * 3 + [two_objects() // 2]), "like BDD100K"),
        ("masks/a/1.png", np.zeros((40, 60), np.uint8), "the mask is empty: no pixel"),
        # Fractions are probabilities, or labels after resizing.
        ("masks/a.tif", two_objects(np.float32) / 4, r"has the value 0\.75: .* whole numbers"),
        ("masks/a.tif", two_objects(np.int32) - 1, "has the value -1: .* whole numbers from 0"),
    ],
)
def test_invalid_mask(tmp_path, image, name, pixels, problem):
    for one in ("a", "c"):
        image(tmp_path / f"images/{one}.jpg")
    save(tmp_path / "masks/c.png", two_objects())
    if isinstance(pixels, bytes):
        (tmp_path / name).write_bytes(pixels)
    else:
        save(tmp_path / name, pixels)
    check_refused(tmp_path, problem, tmp_path / name)


def test_invalid_folders(tmp_path, image):
    image(tmp_path / "images/a.jpg")
    file = save(tmp_path / "masks/b_cat.png", two_objects())
    check_refused(tmp_path, rf"{file} seems to be a mask, but no image has its name")
    file.unlink()
    save(tmp_path / "masks/a.png", np.zeros((40, 60), np.uint8))
    with pytest.raises(DataError, match="none of 1 images has a labeled object"):
        to_coco(read(tmp_path))


def semantic():
    """Return values 1 (two pieces) and 2 (one piece)."""
    pixels = np.zeros((40, 60), np.uint8)
    pixels[2:10, 2:10] = pixels[20:30, 2:10] = 1
    pixels[2:10, 30:40] = 2
    return pixels


def smoothed():
    """Return a mask of black and white with gray edges, as resizing makes them."""
    pixels = Image.fromarray((semantic() > 0).astype(np.uint8) * 255).resize((30, 20), 2)
    return np.array(pixels.resize((60, 40), 2))


def filled():
    """Return two objects on a background of 3."""
    pixels = np.full((40, 60), 3, np.uint8)
    pixels[2:10, 2:10], pixels[20:30, 2:10] = 1, 2
    return pixels


@pytest.mark.parametrize(
    ("pixels", "doubt"),
    [
        (semantic(), "1 of 1 have a value of several separate pieces .*2 pieces of the value 1 in"),
        (semantic() // 2 * 255 + (semantic() == 1) * np.uint8(255), "several separate pieces"),
        (smoothed(), "gray edges"),
        (np.repeat(smoothed()[:, :, None], 3, axis=2), "gray edges"),
        (filled(), "have a background that is not 0"),
        (filled() + 1, "have a background that is not 0"),
    ],
)
def test_several_meanings_are_asked_about(tmp_path, image, pixels, doubt):
    image(tmp_path / "images/a.jpg")
    save(tmp_path / "masks/a.png", pixels)
    check_refused(tmp_path, doubt + ".*init --masks MODE`: instances: .* connected: ")


def values(*levels):
    """Return a label image of a square for each value."""
    pixels = np.zeros((40, 60), np.uint8)
    for number, level in enumerate(levels):
        pixels[5:9, 10 * number + 1 : 10 * number + 6] = level
    return pixels


def test_values_that_recur_are_asked_about(tmp_path, image):
    for number, level in enumerate((2, 5, 2)):
        image(tmp_path / f"images/{number}.jpg")
        save(tmp_path / f"masks/{number}.png", values(level))
    check_refused(tmp_path, re.escape("recur, as classes do (such as [2, 5])"))


@pytest.mark.parametrize("counts", [(1, 3, 2), (3, 3, 3)], ids=["different", "equal"])
def test_few_values_that_count_as_objects_are_reported(tmp_path, image, counts):
    for number, count in enumerate(counts):
        image(tmp_path / f"images/{number}.jpg")
        save(tmp_path / f"masks/{number}.png", values(*range(1, count + 1)))
    dataset = read(tmp_path)
    assert sorted(len(one.objects) for one in dataset.images) == sorted(counts)
    (finding,) = dataset.findings
    assert (finding.what, finding.count) == ("values of mask images", 3)
    assert not len(read_folder(tmp_path, Conversion("instances"))[1]["train"].findings)


@pytest.mark.parametrize(
    ("masks", "pixels", "expected"),
    [
        ("instances", semantic(), ["object", "object"]),
        ("connected", semantic(), ["object"] * 3),
        ("semantic", semantic(), ["1", "2", "1"]),
        ("connected", smoothed(), ["object"] * 3),
    ],
)
def test_meaning_of_masks(tmp_path, image, masks, pixels, expected):
    image(tmp_path / "images/a.jpg")
    save(tmp_path / "masks/a.png", pixels)
    dataset = read_set(tmp_path, masks)
    assert [obj.category for obj in dataset.images[0].objects] == expected
    boxes = [obj.box for obj in dataset.images[0].objects]
    assert min(boxes)[:2] == pytest.approx((2, 2), abs=1)


def test_a_background_that_counts_as_an_object_is_reported(tmp_path, image):
    image(tmp_path / "images/a.jpg")
    save(tmp_path / "masks/a.png", filled())
    (finding,) = read_set(tmp_path, "connected").findings
    assert str(finding).startswith(
        "mask images that have a background that is not 0 and would count"
    )


@pytest.mark.parametrize(("code", "of"), [(1000, "Cityscapes, KITTI or MOTS"), (256, "Mapillary")])
def test_values_with_categories_are_asked_about(tmp_path, image, code, of):
    for name in "abc":
        image(tmp_path / f"images/{name}.png")
        pixels = np.zeros((40, 60), np.uint16)
        for number, value in enumerate((11, 12, 13, 26, 27, 28)):
            pixels[number * 6 :][:4, 5:20] = value // 10 * code + value % 10
        pixels[36:, 5:20] = 10 * code
        save(tmp_path / f"masks/{name}.png", pixels)
    problem = rf"3 of 3 have values of category \* {code} \+ number, as in {of}"
    check_refused(tmp_path, problem)
    assert len(read_set(tmp_path, "instances").images[0].objects) == 7


def test_mask_names_with_numbers(tmp_path, image):
    """A mask named like its image plus a number is one object."""
    for name in ("a", "a_1"):
        image(tmp_path / f"images/{name}.jpg")
        for number in range(2):
            save(tmp_path / f"masks/{name}_{number}.png", two_objects() == 3)
    save(tmp_path / "masks/a_mask_2.png", two_objects() == 200)
    assert [len(one.objects) for one in read_set(tmp_path).images] == [2, 3]


def test_gray_edges_of_single_objects(tmp_path, image):
    image(tmp_path / "images/a.jpg")
    save(tmp_path / "masks/a/1.png", smoothed())
    dataset = read_set(tmp_path)
    (obj,), (finding,) = dataset.images[0].objects, dataset.findings
    assert to_bitmap(obj.segmentation, 40, 60).sum() == (smoothed() > 127).sum()
    assert finding.what == "gray edges in mask images"


def test_jpeg_masks_of_black_and_white(tmp_path, image):
    image(tmp_path / "images/a.png")
    save(tmp_path / "masks/a.jpg", (semantic() > 0).astype(np.uint8) * 255)
    assert [obj.box for obj in read_set(tmp_path, "connected").images[0].objects] == [
        (2, 2, 8, 8), (30, 2, 10, 8), (2, 20, 8, 10),
    ]  # fmt: skip


def test_void_of_voc(tmp_path, image):
    image(tmp_path / "images/a.jpg")
    pixels = two_objects() // 100 + (two_objects() == 3).astype(np.uint8)
    pixels[4, 10:20] = pixels[30, 30:50] = 255
    save(tmp_path / "masks/a.png", pixels)
    dataset = read_set(tmp_path)
    assert len(dataset.images[0].objects) == 2
    finding, _ = dataset.findings
    assert finding.what == "the value 255 in mask images"


@pytest.mark.parametrize("is_photo", [False, True])
def test_alpha_channel(tmp_path, image, is_photo):
    """The colors may be a photo that an object was cut out of."""
    image(tmp_path / "images/a.jpg")
    pixels = np.full((40, 60, 4), 90, np.uint8)
    if is_photo:
        pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 4), np.uint8)
    pixels[..., 3] = (semantic() == 2) * 255
    save(tmp_path / "masks/a.png", pixels)
    assert [obj.box for obj in read_set(tmp_path).images[0].objects] == [(30, 2, 10, 8)]


def test_splits_by_folder(tmp_path, image):
    for split in ("train", "val", "test"):
        image(tmp_path / f"images/{split}/{split}.png")
        save(tmp_path / f"masks/{split}/{split}.png", (two_objects() > 0).astype(np.uint8))
    _, sets = read_folder(tmp_path)
    assert {split: [one.file.stem for one in sets[split].images] for split in sets} == {
        "train": ["train"], "val": ["val"],
    }  # fmt: skip
    (finding,) = sets["train"].findings
    assert (finding.what, finding.count) == ("images of the test set", 1)


def test_categories_of_cvat_masks(tmp_path, image, text):
    image(tmp_path / "JPEGImages/a.jpg")
    objects, classes = (np.zeros((40, 60, 3), np.uint8) for _ in range(2))
    for value, color, column in ((1, (128, 0, 0), 5), (2, (0, 128, 0), 20), (3, (128, 0, 0), 35)):
        objects[5:15, column : column + 10] = value
        classes[5:15, column : column + 10] = color
    save(tmp_path / "SegmentationObject/a.png", objects)
    save(tmp_path / "SegmentationClass/a.png", classes)
    lines = "# label:color_rgb:parts:actions\ncat:128,0,0::\ndog:0,128,0::\nowl:1e9,x,0::\n"
    text(tmp_path / "labelmap.txt", lines)
    (labeled,) = read(tmp_path).images
    assert [obj.category for obj in labeled.objects] == ["cat", "dog", "cat"]
    (tmp_path / "SegmentationObject/a.png").unlink()
    (labeled,) = read_set(tmp_path, "semantic").images
    assert [obj.category for obj in labeled.objects] == ["cat", "dog", "cat"]
    (tmp_path / "labelmap.txt").unlink()
    dataset = read_set(tmp_path, "semantic")
    assert {obj.category for obj in dataset.images[0].objects} == {"(128,0,0)", "(0,128,0)"}
    check_refused(tmp_path, re.escape("2 pieces of the value (128,0,0) in"))
    (finding,) = dataset.findings
    assert finding.count == 2
    assert "all colors in labelmap.txt" in finding.effect


def test_a_mask_that_never_ends_is_refused(tmp_path, image):
    image(tmp_path / "images/a.jpg")
    (tmp_path / "masks").mkdir()
    os.mkfifo(tmp_path / "masks/a.png")
    check_refused(tmp_path, r"a\.png: .*not a regular file")


def test_masks_are_matched_by_the_common_part_of_names(tmp_path, image):
    for number in ("001", "002"):
        image(tmp_path / f"images/{number}_image.jpg")
        save(tmp_path / f"annotations/{number}_annotation.png", two_objects())
    dataset = read_set(tmp_path)
    assert [len(one.objects) for one in dataset.images] == [2, 2]


def test_categories_of_labelme_masks(tmp_path, image, text):
    image(tmp_path / "JPEGImages/a.jpg")
    image(tmp_path / "SegmentationObjectVisualization/a.jpg")
    objects = two_objects()
    objects[30:, 50:] = 200  # a second piece
    save(tmp_path / "SegmentationObject/a.png", objects)
    save(tmp_path / "SegmentationClass/a.png", (two_objects() > 0).astype(np.uint8) * 2)
    names = text(tmp_path / "class_names.txt", "_background_\ncat\ndog\n")
    dataset = read(tmp_path)
    assert [obj.category for (one,) in [dataset.images] for obj in one.objects] == ["dog", "dog"]
    names.unlink()
    names = text(tmp_path / "_classes.csv", "Pixel Value, Class\n0, background\n2, owl\n")
    assert [obj.category for obj in read(tmp_path).images[0].objects] == ["owl", "owl"]
    names.unlink()
    (finding,) = read(tmp_path).findings
    assert (finding.what, finding.count) == ("categories without names are numbered", 1)
    (tmp_path / "SegmentationObject/a.png").unlink()
    check_refused(tmp_path, r"1 of 1 are in SegmentationClass \(.*--masks MODE.*semantic: ")


def test_pieces_agree_with_scipy():
    ndimage = pytest.importorskip("scipy.ndimage")
    generator = np.random.default_rng(0)
    for shape in ((1, 1), (7, 1), (1, 9), (30, 41)):
        values = generator.integers(0, 3, shape)
        pieces = label_pieces(values)
        assert ((pieces == 0) == (values == 0)).all()
        count = 0
        for value in (1, 2):
            expected, number = ndimage.label(values == value, np.ones((3, 3)))
            count += number
            pairs = set(zip(expected[values == value], pieces[values == value], strict=True))
            assert len(pairs) == number
        assert len(np.unique(pieces[pieces > 0])) == count
