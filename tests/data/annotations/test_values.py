"""Values in other notations are read; invalid ones are refused, or skipped and counted."""

import json

import numpy as np
import pytest
from PIL import Image

from detlite.data.annotations.ids import parse_integer
from detlite.data.annotations.notation import normalize
from detlite.data.annotations.single import read_box
from detlite.data.annotations.store import table_of
from detlite.data.datasets.coco import CocoDataset
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.data.datasets.options import DatasetOptions
from detlite.data.images.pixels import ImageOptions
from detlite.files.errors import DataError
from detlite.structures.masks.formats import encode_bitmap
from detlite.structures.masks.rle import run_lengths
from tests.builders import coco_content, coco_object

NAN = float("nan")
SQUARE = ((4, 6), (14, 6), (14, 14), (4, 14))
HALVES = (4, 6, 9, 6, 9, 14, 4, 14), (9, 6, 14, 6, 14, 14, 9, 14)


def found(dataset):
    return "\n".join(map(str, dataset.findings))


@pytest.mark.parametrize(
    ("annotations", "images", "message"),
    [
        ("none.json", "small/images", r"none\.json: cannot be read \(No such file"),
        ("small", "small/images", "small: cannot be read"),
        ("small/annotations.json", "none", r"none: the image folder .* does not exist"),
    ],
)
def test_missing_files(content, write_set, tmp_path, annotations, images, message):
    write_set(content)
    with pytest.raises(DataError, match=message):
        CocoDataset(tmp_path / annotations, tmp_path / images)


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("images", {"id": 11}, r"image 11, entry 0 .*: the id occurs twice, with different files"),
        ("images", {"id": None}, r"image None, entry 0 of 'images': has id: None, which cannot"),
        ("images", {"file_name": 5}, r"image 10, .* has file_name: 5, which"),
        ("images", {"width": "wide"}, "has width: 'wide', which cannot"),
        ("images", {"height": 0}, "image 10, .* has height: 0, which"),
        ("images", {"height": None, "width": None}, "image 10 has no height and width"),
        ("images", {"height": 0, "width": 0}, "image 10 has no height and width"),
        ("images", {"width": "w" * 5000}, r"has width: 'w{79}\.\.\. \(5002 characters\), which"),
        ("categories", {"id": 3}, "id 3 occurs twice in 'categories'"),
        ("categories", {"name": None}, "has name: None"),
        (
            "categories",
            {"name": "x" * 1001},
            "the name of category 7 has 1001 characters, more than 1000",
        ),
        ("categories", {"name": "dog"}, "categories 7 and 3 have the same name 'dog'"),
    ],
)
def test_bad_image_or_category_entry(content, write_set, key, change, message):
    file, folder = write_set(content)
    content[key][0].update(change)
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=rf"annotations\.json: .*{message}"):
        CocoDataset(file, folder)


def rle(counts, size=(30, 40)):
    return {"segmentation": {"size": size, "counts": counts}}


def polygons(*rings):
    return {"segmentation": [*rings]}


OTHER, RUNS, MASK = "another number of pixels", "not run lengths", "is neither run lengths nor"
# Changes of the first annotation, and the message. Its place is then known unless they are in
# WITHOUT_PLACE.
BAD_ANNOTATIONS = [
    ({"bbox": [40, 6, 10, 8]}, r"bbox \[40, 6, 10, 8\] is outside the 40x30 image"),
    ({"bbox": [-20, -20, 10, 8]}, "is outside the 40x30 image"),
    ({"bbox": [0.5, 0.25, 0.5, 0.5]}, "is inside the first pixel.* by the size 40x30"),
    ({"bbox": [30, 6, 1e-9, 8]}, r"bbox \[30, 6, 1e-09, 8\] has a side that is too short"),
    ({"bbox": [3, 29.9999999, 9, 2]}, "a side that is too short for 32-bit numbers"),
    ({"category_id": 9}, "category_id 9 is not in 'categories', whose ids are 3 to 7"),
    ({"category_id": None}, "category_id is missing: write"),
    ({"category_id": [7]}, r"category_id \[7\] is not in"), ({"iscrowd": 2}, "iscrowd 2 is not 0"),
    ({"segmentation": None}, "segmentation None has no mask, but masks are trained"),
    ({"segmentation": []}, r"segmentation \[\] has no mask"),
    ({"segmentation": "x"}, f"segmentation 'x' {MASK}"), (polygons([]), rf"\[\[\]\] {MASK}"),
    (polygons([1, 1, 9, 9]), r"\[\[1, 1, 9, 9\]\] is .*of at least three points"),
    (polygons([1, 1, 9, 9, 1, 9, 4]), MASK), (polygons([1, 1, 9, NAN, 1, 9]), MASK),
    (polygons({"counts": "a"}, {"counts": "a"}), MASK),
    (polygons([1, 1, 9, 1, 5, 1]), "polygon without area"),
    (polygons([0.1, 0.1, 0.9, 0.1, 0.9, 0.9]), "inside the first pixel"),
    (polygons([50, 1, 60, 1, 55, 9]), r"\] is outside the 40x30"),
    (polygons([1, 1, 1e300, 1, 1e300, 50]), "too far outside the 40x30"),
    (rle([0, 1200], [40, 31]), "another size .* than its image, .30, 40"), (rle("01"), OTHER),
    (rle([0, 1000]), OTHER), (rle([1300, -100]), RUNS), (rle([1200]), "empty: no pixel"),
    (rle(5), RUNS), (rle(None), RUNS), (rle([0, 1200.5]), RUNS), (rle([0, 2**64]), RUNS),
    (rle([2**62] * 4 + [1200]), OTHER),  # sums that overflow 64 bits to 1200
    ({"segmentation": {"size": [30, 40]}}, MASK), (rle("P" * 12 + "0"), RUNS),
    (rle("`U1"), "empty: no pixel"), (rle("0`U1o"), RUNS), (rle("0`U1 "), RUNS),
]  # fmt: skip
WITHOUT_PLACE = [
    ({"bbox": [4, 6, 0, 8], "segmentation": []}, "has no positive width and height"),
    ({"bbox": None, "segmentation": None}, "bbox None is not four finite numbers"),
    ({"image_id": 99}, "image_id 99 is not in 'images'"),
]


@pytest.mark.parametrize(("change", "message"), [*BAD_ANNOTATIONS, *WITHOUT_PLACE])
def test_bad_annotation_is_refused_or_becomes_a_region(content, write_set, change, message):
    place = (change, message) in BAD_ANNOTATIONS
    content["annotations"][0].update(change)
    file, folder = write_set(content)
    with pytest.raises(DataError, match=rf"annotations\.json: annotation 1 .*{message}"):
        CocoDataset(file, folder, DatasetOptions(train=True))
    dataset = CocoDataset(file, folder, DatasetOptions(train=True, skip_bad=True))
    _, target = dataset[0]
    assert target["boxes"].tolist() == [[20, 10, 30, 20]]
    assert target["ignored_boxes"].tolist() == [[4, 6, 14, 14]] * place
    assert "annotation 1 " in found(dataset)
    rows = {row["id"]: row for row in build_coco_gt(dataset).dataset["annotations"]}
    assert (1 in rows) == place
    assert not place or (rows[1]["iscrowd"], rows[1]["bbox"]) == (1, [4, 6, 10, 8])


@pytest.mark.parametrize(("ids", "start"), [((1, 2), 0), ((0, 1), 1)])
def test_categories_counted_from_another_number(content, open_set, ids, start):
    for row, number in zip(content["categories"], ids, strict=True):
        row["id"] = number
    for row in content["annotations"]:
        row["category_id"] = start + row["category_id"] // 4
    with pytest.raises(DataError, match=rf"Were they counted from {start}\?"):
        open_set(content)


BITMAP = np.zeros((30, 40), bool)
BITMAP[6:14, 4:14] = True
PIXELS = run_lengths(encode_bitmap(BITMAP)["counts"]).tolist()
# Changes of the first annotation that have one meaning, and the kind of the finding if there is
# one. Its box is [4, 6, 10, 8] and its area 80.
PLAIN = [
    ({"bbox": [4, 6, "10.00", "8.00"]}, "as text"), ({"bbox": None}, "The tight box of the mask"),
    ({"bbox": [4, 6, 10, 0]}, "The tight box of the mask"),
    ({"bbox": ["a", None]}, "The tight box of the mask"), ({"area": "80"}, "numbers as text"),
    *(({"area": area}, "areas that are not square pixels") for area in (NAN, -1, 0, 1 / 15, 1201)),
    *(({"iscrowd": mark}, "") for mark in (None, False, "0", "False")),
    ({"category_id": "7"}, "numbers as text"), ({"image_id": 10.0}, ""),
    ({"segmentation": [4, 6, 14, 6, 14, 14, 4, 14]}, "polygons as pairs"),
    (polygons([*map(str, [4, 6, 14, 6, 14, 14, 4, 14])]), "numbers as text"),
    (polygons(*map(list, SQUARE)), "polygons as pairs"),
    (polygons([*map(list, SQUARE)]), "polygons as pairs"),
    (polygons(*([[x, y]] for x, y in SQUARE)), "polygons as pairs"),  # OpenCV
    (polygons([[[x, y]] for x, y in SQUARE]), "polygons as pairs"),
    (polygons([[4, 6, 14, 6, 14, 14, 4, 14]]), "polygons as pairs"),
    (polygons([[SQUARE]]), "polygons as pairs"),  # GeoJSON
    (polygons([HALVES[0]], [HALVES[1]]), "polygons as pairs"),
    (polygons([4, 6, 14, 6, 14, 14, 4, 14], [5, 5, 9, 9]), "unusable parts"),
    (rle([*map(float, PIXELS)]), "run"), (rle(PIXELS, ["30", 40.0]), "run lengths"),
    (polygons(rle(PIXELS)["segmentation"]), "in a list"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "note"), PLAIN)
def test_values_with_one_meaning_are_read(content, open_set, change, note):
    content["annotations"][0].update(change)
    dataset = open_set(content, train=True)
    _, target = dataset[0]
    assert target["boxes"].tolist() == [[4, 6, 14, 14], [20, 10, 30, 20]]
    assert len(target["ignored_boxes"]) == 0
    assert (target["masks"].bitmaps(30, 40)[0].numpy() == BITMAP).all()
    text = found(dataset)
    assert note in text
    assert bool(note) == ("annotation 1 (image 10" in text)
    gt = {row["id"]: row for row in build_coco_gt(dataset).dataset["annotations"]}
    assert (gt[1]["area"], gt[1]["iscrowd"]) == (80, 0)


def test_regions_of_unknown_categories_and_clipped_boxes(content, open_set):
    content["annotations"][0]["category_id"] = 9
    content["annotations"][2]["bbox"] = [30, 6, 20, 8]
    dataset = open_set(content, skip_bad=True)
    assert "boxes that exceed their image: 1 annotation" in found(dataset)
    assert dataset[0][1]["boxes"][0].tolist() == [30, 6, 40, 14]
    rows = build_coco_gt(dataset).dataset["annotations"]
    regions = [row for row in rows if row["bbox"] == [4, 6, 10, 8]]
    assert [(row["category_id"], row["iscrowd"]) for row in regions] == [(3, 1), (7, 1)]
    assert len({row["id"] for row in rows}) == len(rows)
    assert [row["bbox"] for row in rows if row["id"] == 3] == [[30, 6, 10, 8]]


@pytest.mark.parametrize("skip_bad", [False, True])
def test_boxes_of_another_notation_are_refused(content, open_set, skip_bad):
    """Clipping corners would change all boxes."""
    row = content["annotations"][2]
    row["bbox"] = [20, 10, 30, 20]
    content["annotations"] += [{**row, "id": number} for number in range(5, 9)]
    with pytest.raises(DataError, match=r"5 of 8 boxes .*annotation 3 .*corners \[x1, y1, x2"):
        open_set(content, train=True, skip_bad=skip_bad)


def test_corners_inside_of_the_image_are_refused(content, open_set):
    """If a box exceeds its image, all boxes are interpreted as corners."""
    row = content["annotations"][0]
    boxes = [[1, 2, 9, 8], [20, 10, 30, 20], [3, 3, 30, 29], [5, 6, 12, 20]]
    rows = [{**row, "bbox": box, "id": n} for n, box in enumerate(boxes, start=1)]
    with pytest.raises(DataError, match=r"1 of 4 boxes .*annotation 2 .*corners"):
        open_set({**content, "annotations": rows})
    rows[0]["bbox"] = [10, 2, 5, 8]
    assert len(open_set({**content, "annotations": rows}, "boxes")) == 4


def test_boxes_that_mostly_differ_from_their_masks(content, open_set):
    """Boxes contain centers, or run lengths go along rows. A single one is not a finding."""
    rows = [{**content["annotations"][0], "id": number} for number in range(1, 6)]
    rows[0]["bbox"] = [9, 10, 10, 8]
    assert "from their masks" not in found(open_set({**content, "annotations": rows}, "one"))
    for one in rows:
        one["bbox"] = [9, 10, 10, 8]
    text = found(open_set({**content, "annotations": rows}))
    assert "from their masks, among the first 200: 5 annotations, for example annot" in text
    assert "bbox [9, 10, 10, 8], box of the mask [4.0, 6.0, 10.0, 8.0]" in text


def test_masks_that_may_be_boxes(content, write_set, open_set):
    """Exports of boxes write them as polygons too, and YOLO's oriented boxes are polygons."""
    row, turned = content["annotations"][0], [[9, 6, 14, 10, 9, 14, 4, 10, 9, 6]]
    content["annotations"] = rows = [{**row, "id": n} for n in range(1, 5)]
    rows[1]["segmentation"] = turned
    text = found(open_set(content, "corners"))
    assert "masks with four corners, as boxes have, of the first 200 annotations: 4 masks" in text
    assert "corners" not in found(open_set(content, "boxes", masks=False))
    rows[0]["segmentation"] = [[4, 6, 14, 6, 14, 14, 9, 14, 4, 10]]
    assert "four corners" not in found(open_set(content, "polygon"))


def with_similar_names(content):
    names = ["red cell", "red  cell", "Red_cell", "blue cell"]
    content["categories"] = [{"id": id, "name": name} for id, name in enumerate(names, start=1)]
    for number, row in enumerate(content["annotations"], start=1):
        row["category_id"] = number


def without_valid_masks(content):
    for row in content["annotations"]:
        row["segmentation"] = [row["bbox"]]


def with_repeats(content):
    content["annotations"] += [{**row, "id": 9 + row["id"]} for row in content["annotations"][:2]]


# Changes of a valid file, the options, and the finding.
FINDINGS = [
    (lambda content: content["annotations"][0].update(bbox=[4, 6, 10, 0.01]), {"masks": False},
     "boxes with a side below one pixel: 1 annotation, for example annotation 1"),
    (with_similar_names, {},
     "or in Unicode's forms: 3 categories, for example id 1, 'red cell'; id 2,"),
    (lambda content: content["categories"].insert(
        0, {"id": 0, "name": "cat", "supercategory": "none"}), {},
     "categories with the name of another one: 1 category"),
    (with_repeats, {}, "box of another one: 2 annotations, for example annotation 10"),
    (lambda content: content["images"].append(dict(content["images"][0])), {},
     "images that are listed twice: 1 image"),
    (without_valid_masks, {"masks": False},
     "masks that are not used, because MODEL.MASK_ON is False: 3 of 3 objects, for"),
    (lambda content: content["annotations"][0].update(segmentation=[[1, 1, 9, 9]]),
     {"masks": False}, "MASK_ON is False: 2 of 3 objects, for example annotation 1 (image 10)"),
    (lambda content: content["annotations"][0].update(segmentation=[]), {"skip_bad": True},
     "without a usable object: 1 category, for example cat. They are not in use."),
    (lambda content: content["images"][0].update(width=-4), {"skip_bad": True},
     "entries of images that cannot be used: 1 image, for example image 10"),
    (lambda content: [row.update(neg_category_ids=[7]) for row in content["images"]], {},
     "Set type: lvis"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "options", "text"), FINDINGS)
def test_findings(content, write_set, change, options, text):
    file, folder = write_set(content)
    kind = text.partition(":")[0]
    assert kind not in found(CocoDataset(file, folder, DatasetOptions(**options)))
    change(content)
    file.write_text(json.dumps(content))
    dataset = CocoDataset(file, folder, DatasetOptions(**options))
    assert text in found(dataset)
    assert text != "Set type: lvis" or text not in found(CocoDataset(file, folder, kind="lvis"))
    skipped = {10} if "entries of images" in text else set()
    assert {*dataset.image_ids} == {10, 11, 12, 13} - skipped
    assert 0 not in [row["id"] for row in dataset.categories]


def test_ids_of_any_type(content, open_set):
    for row in content["images"]:
        row["id"] = f"img_{row['id']}"
    for row in content["annotations"]:
        row["image_id"], row["category_id"] = f"img_{row['image_id']}", f"{row['category_id']}.0"
    for row in content["categories"]:
        row["id"], row["name"] = str(row["id"]), row["id"]
    dataset = open_set(content, train=True)
    assert dataset.image_ids == [1, 2]
    assert dataset.categories == [{"id": 3, "name": "3"}, {"id": 7, "name": "7"}]
    assert dataset.labels(0).tolist() == [2, 1]
    text = found(dataset)
    assert "image ids that are not integers: 4 images" in text
    assert "names of categories that are numbers or have control characters: 2 categ" in text


@pytest.mark.parametrize("name", ["a.png", "./a.png", "cats/../a.png", ".\\a.png"])
def test_entries_of_one_file_are_joined(content, write_set, name):
    """An image entry for each annotation, as some tools write them, is read as one image."""
    files = write_set(content)
    content["images"].append({**content["images"][0], "id": 99, "file_name": name})
    content["annotations"][2]["image_id"] = 99
    files[0].write_text(json.dumps(content))
    dataset = CocoDataset(*files, DatasetOptions(train=True))
    assert dataset.image_ids == [10, 11]
    assert [len(dataset[number][1]["boxes"]) for number in range(2)] == [2, 1]
    text = "listed twice: 1 image, for example image 99, entry 4 of 'images' (a.png)"
    assert text in found(dataset)
    assert {row["image_id"] for row in build_coco_gt(dataset).dataset["annotations"]} == {10, 11}


@pytest.mark.parametrize("name", ["a\x1b[31m", "a\nb", "\ud800", "a\x85", "\u202ea", "a\0"])
def test_control_characters_in_names_of_categories(name):
    content = coco_content([coco_object([1, 1, 5, 5])], [1], categories={1: name, 2: "می‌خواهم é"})
    table = table_of(content, "a.json")
    first, second = (row["name"] for row in table.content["categories"])
    assert first.isprintable()
    assert (first, second) == (ascii(name)[1:-1], "می‌خواهم é")
    (finding,) = table.notes
    assert "have control characters: 1 category" in str(finding)


def test_images_with_one_id_keep_no_objects(content, open_set):
    """The objects could belong to the wrong image, as in two exports that were joined."""
    content["images"][1]["id"] = 10
    content["annotations"][1]["image_id"] = 10
    content["images"].append({**content["images"][2], "id": 14, "file_name": "other.png"})
    content["annotations"].append({**content["annotations"][0], "id": 9, "image_id": 14})
    dataset = open_set(content, skip_bad=True)
    assert dataset.image_ids == [12, 13, 14]
    assert [row["id"] for row in build_coco_gt(dataset).dataset["annotations"]] == [4, 9]


def test_root_category_without_annotations(content, open_set):
    """Exports of Roboflow name it after the project."""
    content["categories"].insert(0, {"id": 0, "name": "pets", "supercategory": "none"})
    names = [row["name"] for row in open_set(content, "one").categories]
    assert names[0] == "pets"  # a usual category, because the others do not refer to it
    content["categories"] = [{"supercategory": "pets"} | row for row in content["categories"]]
    dataset = open_set(content, train=True)
    assert [row["id"] for row in dataset.categories] == [3, 7]
    assert "root categories of all others: 1 category" in found(dataset)
    content["annotations"][0]["category_id"] = 0
    assert len(open_set(content, "used").categories) == 3


@pytest.mark.parametrize("key", ["iscrowd", "isCrowd"])
def test_crowds_as_objects(content, write_set, key):
    content["annotations"][0].pop("iscrowd")
    content["annotations"][0][key] = 1
    files = write_set(content)
    plain = CocoDataset(*files, DatasetOptions(train=True))
    assert "crowds (iscrowd 1): 2 of 4 annotations, for example annotation 1" in found(plain)
    assert [len(plain[0][1][name]) for name in ("boxes", "ignored_boxes")] == [1, 0]
    objects = CocoDataset(*files, DatasetOptions(train=True, crowds_as_objects=True))
    assert "crowd" not in found(objects)
    assert len(objects[0][1]["boxes"]) == 2
    assert all(row["iscrowd"] == 0 for row in build_coco_gt(objects).dataset["annotations"])


@pytest.mark.parametrize("ignore", [1, True, "true", "1"])
def test_annotations_marked_to_be_ignored(content, open_set, ignore):
    content["annotations"][0] |= {"ignore": ignore, "segmentation": None}
    dataset = open_set(content, train=True)
    assert dataset[0][1]["ignored_boxes"].tolist() == [[4, 6, 14, 14]]
    assert '"ignore": 1: 1 of 4 annotations' in found(dataset)


def test_problems_are_counted_and_shortened(content, write_set):
    file, folder = write_set(content)
    content["annotations"][0]["bbox"][0] = 50
    content["annotations"][2]["category_id"] = 9
    content["images"][1]["file_name"] = "n" * 5000
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"annot.*first of 3 problems.*ON_BAD_ANNOTATION") as error:
        CocoDataset(file, folder)
    assert len(str(error.value)) < 1000
    dataset = CocoDataset(file, folder, DatasetOptions(skip_bad=True))
    assert max(len(str(one)) for one in dataset.findings) < 1000


def test_area_of_an_unchecked_segmentation(content, open_set):
    """A segmentation that was not checked must not be drawn."""
    content["annotations"][2]["segmentation"] = [[1, 1, 1e300, 1, 1e300, 50]]
    coco = build_coco_gt(open_set(content, masks=False))
    assert coco.loadAnns([3])[0]["area"] == 100


def test_training_needs_a_usable_annotation(content, write_set):
    content["annotations"] = content["annotations"][3:]
    files = write_set(content)
    with pytest.raises(DataError, match="no image has a usable annotation"):
        CocoDataset(*files, DatasetOptions(train=True))
    assert len(CocoDataset(*files, DatasetOptions(train=False))) == 4


def test_bad_images_are_found_in_advance(content, write_set):
    file, folder = write_set(content)
    small = DatasetOptions(images=ImageOptions(800), skip_bad=True)
    assert "more than 800 pixels (40x30)" in found(CocoDataset(file, folder, small))
    read = CocoDataset(file, folder)
    (folder / "a.png").unlink()
    (folder / "b.png").write_bytes((folder / "b.png").read_bytes()[:-200])
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "empty.png")
    with pytest.raises(DataError, match=r"image 10 \(a.png\): the image .*first of 3 problems"):
        CocoDataset(file, folder)
    with pytest.raises(DataError, match=r"b.png: .*truncated.* \(image id 11\)"):
        read[1]
    dataset = CocoDataset(file, folder, DatasetOptions(skip_bad=True))
    assert dataset.image_ids == build_coco_gt(dataset).getImgIds() == [13]
    (finding,) = [one for one in dataset.findings if "image files" in one.what]
    assert "3 images, for example image 10 (a.png): the image file does not exist" in str(finding)


@pytest.mark.parametrize(
    "box",
    [[0, 0, 40, 30], [-2, 0, 10, 10], [39.9, 0, 0.3, 5], [1.5, 0, 0.5, 0.5], [0, 0, 1, 1]],
)
def test_valid_boxes_are_kept(box):
    assert read_box(box, 30, 40) == (box, None, None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (12, 12), (12.0, 12), ("12", 12), (" 12.0 ", 12), (-3, -3), (1 << 62, 1 << 62),
        ("9007199254740993", 9007199254740993), (2.0**60, None), (1 << 63, None), (True, None),
        (1.5, None), ("a", None), (None, None), ([1], None), (float("inf"), None), ("nan", None),
        (float("nan"), None),
    ],
)  # fmt: skip
def test_integers(value, expected):
    assert parse_integer(value) == expected


@pytest.mark.parametrize("degrees", [90, "-90.0", 270, 0.0, "left"])
def test_boxes_are_rotated_by_the_rotation_of_cvat(degrees):
    row = {"bbox": [20, 15, 20, 10], "attributes": {"rotation": degrees}, "segmentation": []}
    odd = normalize(row)
    if degrees in (0.0, "left"):
        assert odd.stored == {**row, "iscrowd": 0}
        return
    assert odd.entry.bbox == pytest.approx([25, 10, 10, 20])
    assert odd.notes["bbox"][0] == "boxes with attributes.rotation"
    mask = {**row, "segmentation": [[20, 15, 40, 15, 40, 25]]}
    assert normalize(mask).stored == {**mask, "iscrowd": 0}
