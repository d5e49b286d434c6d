"""Test reading folders of mask files."""

import os

import numpy as np
import pytest
from PIL import Image

from detlite.apps.dataset_formats.find_annotations import read_folder
from detlite.apps.dataset_formats.label_images import label_pieces
from detlite.apps.dataset_formats.labeled_dataset import Conversion, to_coco
from detlite.structures.masks.formats import to_bitmap
from tests.apps.dataset_formats.reading import check_refused, read_as, read_set

PHOTO, MASK = "images/a.jpg", "masks/a.png"


def squares(*boxes, dtype=np.uint8, background=0):
    """Return a label image of boxes (x1, y1, x2, y2, value)."""
    pixels = np.full((40, 60), background, dtype)
    for x1, y1, x2, y2, value in boxes:
        pixels[y1:y2, x1:x2] = value
    return pixels


# Two touching objects with the values 3 and 200.
TWO = squares((10, 5, 20, 15, 3), (20, 5, 40, 15, 200))
ONE, OTHER = ((value == TWO).astype(np.uint8) * 255 for value in (3, 200))
COLORS = np.dstack([0 * TWO, (TWO > 0) * np.uint8(255), (TWO == 200) * np.uint8(1)])
# Values 1 (two pieces) and 2 (one piece).
SEMANTIC = squares((2, 2, 10, 10, 1), (2, 20, 10, 30, 1), (30, 2, 40, 10, 2))
BINARY = (SEMANTIC > 0).astype(np.uint8) * 255
# Black and white with gray edges, as resizing makes them.
SMOOTH = np.array(Image.fromarray(BINARY).resize((30, 20), 2).resize((60, 40), 2))
FILLED = squares((2, 2, 10, 10, 1), (2, 20, 10, 30, 2), background=3)
BOXES = [(2, 2, 8, 8), (30, 2, 10, 8), (2, 20, 8, 10)]


def read(folder):
    return read_as("mask files", folder)["train"]


def categories(folder, *masks):
    return [obj.category for one in read_set(folder, *masks).images for obj in one.objects]


def assert_two_objects(rows):
    assert [row["bbox"] for row in rows] == [[10, 5, 10, 10], [20, 5, 20, 10]]
    assert [row["area"] for row in rows] == [100, 200]
    assert to_bitmap(rows[1]["segmentation"], 40, 60)[5:15, 20:40].all()


def test_label_images(folder):
    dataset = read(folder({PHOTO: None, "images/empty.jpg": None, MASK: TWO}))
    content = to_coco(dataset)
    assert dataset.image_folder.name == "images"
    assert content["categories"] == [{"id": 1, "name": "object"}]
    assert [row["image_id"] for row in content["annotations"]] == [1, 1]
    assert "images without a mask file: 1 image" in " ".join(map(str, dataset.findings))


@pytest.mark.parametrize(
    ("photo", "masks"),
    [
        (PHOTO, {MASK: TWO.astype(np.uint16)}),
        (PHOTO, {MASK: COLORS}),  # every color is an object
        ("images/a.png", {"masks/a/x1.png": ONE, "masks/a/x2.png": OTHER}),
        ("a/images/a.png", {"a/masks/x1.png": ONE, "a/masks/x2.png": OTHER}),
        ("PNGImages/a.png", {"PedMasks/a_mask.png": TWO}),
        ("images/train/a.png", {"masks/train/a.png": TWO}),
        ("train/images/a.jpg", {"train/masks/a_label.tif": TWO}),
        ("set/a.png", {"set/a_cp_masks.png": TWO}),
        ("JPEGImages/a.jpg", {"SegmentationObject/a.png": TWO}),
        ("imgs/a.b.jpg", {"gt/a.b.png": TWO}),
        ("images/a.png", {"masks/mask_a.png": TWO}),
        ("images/a.png", {"masks/a.tif": TWO.astype(np.float32)}),
        ("images/1_image.jpg", {"annotations/1_annotation.png": TWO}),
        (PHOTO, {MASK: TWO, "masks/.hidden/b.png": TWO}),
        ("set/a_rgb.png", {"set/a_label.png": TWO}),  # CVPPP
        ("01/t000.tif", {"01_GT/SEG/man_seg000.tif": TWO.astype(np.uint16)}),  # Cell Tracking
        ("organ/tissue images/h_0.png", {"organ/label masks/h_0.tif": TWO}),  # NuInsSeg
        ("train/c_01.jpg", {"train_masks/c_01_mask.gif": TWO}),  # Carvana
    ],
)
def test_usual_files(folder, photo, masks):
    assert_two_objects(to_coco(read(folder({photo: None, **masks})))["annotations"])


def test_most_images_need_a_mask(folder, tmp_path):
    """Other images in the folder are not images without objects."""
    folder({PHOTO: None, MASK: TWO, **{f"aug/{number}.jpg": None for number in range(3)}})
    problem = r"3 of 4 images have no mask, in .*aug \(3\)\. Name masks like their images: masks/a"
    check_refused(tmp_path, problem, tmp_path)
    assert len(read_set(tmp_path, skip_bad=True).images) == 4


def test_category_folders(folder):
    folders = {"masks/worm/a.png": TWO, "masks/egg/a/1.png": TWO // 200}
    assert categories(folder({PHOTO: None, **folders})) == ["egg", "worm", "worm"]


@pytest.mark.parametrize(
    ("name", "pixels", "problem"),
    [
        (MASK, TWO[:, :59], "its size is 59x40 .*, but its image is 60x40"),
        (MASK, "\x89PNG\r\n\x1a\n and no more", "the image is damaged"),
        ("masks/b.png", TWO, "no image has the name"),
        ("masks/a.jpg", TWO, "masks need a lossless format"),
        ("masks/a.webp", TWO, "masks need a lossless format"),
        (MASK, np.dstack([TWO] * 3 + [TWO // 2]), "like BDD100K"),
        ("masks/a/1.png", 0 * TWO, "the mask is empty: no pixel"),
        # Fractions are probabilities, or labels after resizing.
        ("masks/a.tif", TWO.astype(np.float32) / 4, r"has the value 0\.75: .* whole numbers"),
        ("masks/a.tif", TWO.astype(np.int32) - 1, "has the value -1: .* whole numbers from 0"),
    ],
)
def test_invalid_mask(folder, tmp_path, name, pixels, problem):
    folder({PHOTO: None, "images/c.jpg": None, "masks/c.png": TWO, name: pixels})
    check_refused(tmp_path, problem, tmp_path / name)


def test_invalid_folders(folder, tmp_path):
    folder({PHOTO: None, "masks/b_cat.png": TWO})
    check_refused(tmp_path, r"b_cat\.png seems to be a mask, but no image has its name")
    (tmp_path / "masks/b_cat.png").unlink()
    os.mkfifo(tmp_path / MASK)  # a file that never ends
    check_refused(tmp_path, r"a\.png: .*not a regular file")


@pytest.mark.parametrize(
    ("masks", "doubt"),
    [
        ([SEMANTIC], "1 of 1 have a value of several separate pieces .*2 pieces of the value 1 in"),
        ([SEMANTIC // 2 * 255 + (SEMANTIC == 1) * np.uint8(255)], "several separate pieces"),
        ([np.dstack([BINARY, 0 * BINARY, BINARY])], r"3 pieces of the value \(255,0,255\) in"),
        ([SMOOTH], "gray edges"),
        ([np.dstack([SMOOTH] * 3)], "gray edges"),
        ([FILLED], "have a background that is not 0"),
        ([FILLED + 1], "have a background that is not 0"),
        ([squares((1, 5, 6, 9, n)) for n in (2, 5, 2)], r"as classes do \(such as \[2, 5\]\)"),
    ],
)
def test_several_meanings_are_asked_about(folder, tmp_path, masks, doubt):
    for number, pixels in enumerate(masks):
        folder({f"images/{number}.jpg": None, f"masks/{number}.png": pixels})
    check_refused(tmp_path, doubt + ".*init --masks MODE`: instances: .* connected: ")


@pytest.mark.parametrize("counts", [(1, 3, 2), (3, 3, 3)], ids=["different", "equal"])
def test_few_values_that_count_as_objects_are_reported(folder, tmp_path, counts):
    for number, count in enumerate(counts):
        boxes = [(10 * n + 1, 5, 10 * n + 6, 9, n + 1) for n in range(count)]
        folder({f"images/{number}.jpg": None, f"masks/{number}.png": squares(*boxes)})
    dataset = read(tmp_path)
    assert sorted(len(one.objects) for one in dataset.images) == sorted(counts)
    (finding,) = dataset.findings
    assert (finding.what, finding.count) == ("values of mask images", 3)
    assert not len(read_folder(tmp_path, Conversion("instances"))[1]["train"].findings)


@pytest.mark.parametrize(
    ("mode", "name", "pixels", "expected"),
    [
        ("instances", MASK, SEMANTIC, ["object", "object"]),
        ("connected", MASK, SEMANTIC, ["object"] * 3),
        ("semantic", MASK, SEMANTIC, ["1", "2", "1"]),
        ("connected", MASK, SMOOTH, ["object"] * 3),
        ("connected", "masks/a.jpg", BINARY, ["object"] * 3),
    ],
)
def test_meaning_of_masks(folder, mode, name, pixels, expected):
    (labeled,) = read_set(folder({PHOTO: None, name: pixels}), mode).images
    assert [obj.category for obj in labeled.objects] == expected
    if len(expected) == 3:
        boxes = [obj.box for obj in labeled.objects]
        assert np.array(boxes) == pytest.approx(np.array(BOXES), abs=1)


VOID = squares((10, 5, 20, 15, 1), (20, 5, 40, 15, 2), (10, 4, 20, 5, 255))


@pytest.mark.parametrize(
    ("name", "pixels", "mode", "what", "areas"),
    [
        (MASK, FILLED, ["connected"], "mask images that have a background that is not 0 and would",
         [64, 80, 2256]),
        ("masks/a/1.png", SMOOTH, [], "gray edges in mask images", [(SMOOTH > 127).sum()]),
        (MASK, VOID, [], "the value 255 in mask images", [100, 200]),
    ],
)  # fmt: skip
def test_reinterpreted_values_are_reported(folder, name, pixels, mode, what, areas):
    dataset = read_set(folder({PHOTO: None, name: pixels}), *mode)
    masks = [to_bitmap(obj.segmentation, 40, 60) for obj in dataset.images[0].objects]
    assert sorted(mask.sum() for mask in masks) == areas
    assert next(iter(dataset.findings)).what.startswith(what)


@pytest.mark.parametrize(("code", "of"), [(1000, "Cityscapes, KITTI or MOTS"), (256, "Mapillary")])
def test_values_with_categories_are_asked_about(folder, tmp_path, code, of):
    values = [value // 10 * code + value % 10 for value in (11, 12, 13, 26, 27, 28)]
    boxes = [(5, 6 * n, 20, 6 * n + 4, value) for n, value in enumerate([*values, 10 * code])]
    folder({PHOTO: None, MASK: squares(*boxes, dtype=np.uint16)})
    check_refused(tmp_path, rf"1 of 1 have values of category \* {code} \+ number, as in {of}")
    assert len(read_set(tmp_path, "instances").images[0].objects) == 7


def test_mask_names_with_numbers(folder):
    """A mask named like its image plus a number is one object."""
    names = [*(f"{name}_{number}" for name in ("a", "a_1") for number in range(2)), "a_mask_2"]
    folder({f"masks/{name}.png": ONE for name in names})
    images = read_set(folder({PHOTO: None, "images/a_1.jpg": None})).images
    assert [len(one.objects) for one in images] == [2, 3]


@pytest.mark.parametrize("is_photo", [False, True])
def test_alpha_channel(folder, is_photo):
    """The colors may be a photo that an object was cut out of."""
    pixels = np.full((40, 60, 4), 90, np.uint8)
    if is_photo:
        pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 4), np.uint8)
    pixels[..., 3] = (SEMANTIC == 2) * 255
    (labeled,) = read_set(folder({PHOTO: None, MASK: pixels})).images
    assert [obj.box for obj in labeled.objects] == [(30, 2, 10, 8)]


def test_categories_of_colors(folder, tmp_path):
    """CVAT names them in labelmap.txt."""
    places = [(1, (128, 0, 0), 5), (2, (0, 128, 0), 20), (3, (128, 0, 0), 35)]
    classes = np.zeros((40, 60, 3), np.uint8)
    for _, color, column in places:
        classes[5:15, column : column + 10] = color
    objects = squares(*((column, 5, column + 10, 15, value) for value, _, column in places))
    lines = "# label:color_rgb:parts:actions\ncat:128,0,0::\ndog:0,128,0::\nowl:1e9,x,0::\n"
    folder({"JPEGImages/a.jpg": None, "SegmentationObject/a.png": objects,
            "SegmentationClass/a.png": classes, "labelmap.txt": lines})  # fmt: skip
    assert categories(tmp_path) == ["cat", "dog", "cat"]
    (tmp_path / "SegmentationObject/a.png").unlink()
    assert categories(tmp_path, "semantic") == ["cat", "dog", "cat"]
    check_refused(tmp_path, r"1 of 1 are in SegmentationClass \(.*--masks MODE.*semantic: ")
    (tmp_path / "labelmap.txt").unlink()
    dataset = read_set(tmp_path, "semantic")
    assert {obj.category for obj in dataset.images[0].objects} == {"(128,0,0)", "(0,128,0)"}
    (finding,) = dataset.findings
    assert finding.count == 2
    assert "all colors in labelmap.txt" in finding.effect


@pytest.mark.parametrize(
    ("file", "lines", "expected"),
    [
        ("class_names.txt", "_background_\ncat\ndog\n", "dog"),
        ("_classes.csv", "Pixel Value, Class\n0, background\n2, owl\n", "owl"),
        ("other.txt", "", "2"),
    ],
)
def test_categories_of_values(folder, file, lines, expected):
    """Of LabelMe, with a second piece of an object, and Roboflow."""
    objects = TWO.copy()
    objects[30:, 50:] = 200
    dataset = read(
        folder({
            "JPEGImages/a.jpg": None, "SegmentationObjectVisualization/a.jpg": None, file: lines,
            "SegmentationObject/a.png": objects,
            "SegmentationClass/a.png": (TWO > 0).astype(np.uint8) * 2,
        })
    )  # fmt: skip
    assert [obj.category for obj in dataset.images[0].objects] == [expected] * 2
    found = [(one.what, one.count) for one in dataset.findings]
    assert found == [("categories without names are numbered", 1)] * (expected == "2")


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
