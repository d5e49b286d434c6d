"""Test reading the files of VIA, Label Studio, Supervisely, CreateML and Datumaro."""

import base64
import io
import json
import zlib

import numpy as np
import pytest
from PIL import Image

from detlite.apps.dataset_formats.find_annotations import read_folder
from detlite.apps.dataset_formats.labeled_dataset import Conversion, to_coco
from detlite.data.images.pixels import ImageOptions
from detlite.files.errors import DataError
from detlite.structures.masks.formats import to_bitmap


@pytest.fixture
def read(tmp_path, image, text):
    """Return `read(path, content)`, which writes the file next to two images and reads it."""

    def write(path, content, format, **options):
        for name in "ab":
            image(tmp_path / f"images/{name}.jpg")
        text(tmp_path / path, content if isinstance(content, str) else json.dumps(content))
        found, sets = read_folder(tmp_path, Conversion(**options))
        assert found == format
        return to_coco(sets["train"])

    return write


def names_and_boxes(content):
    names = {row["id"]: row["name"] for row in content["categories"]}
    return [(names[row["category_id"]], row["bbox"]) for row in content["annotations"]]


RECT = {"name": "rect", "x": 5, "y": 6, "width": 10, "height": 8}
POLYGON = {"name": "polygon", "all_points_x": [1, 20, 20], "all_points_y": [2, 2, 30.5]}
CIRCLE = {"name": "circle", "cx": 30, "cy": 20, "r": 5}


def via(*shapes, attributes=None, as_dict=False):
    regions = [
        {"shape_attributes": shape, "region_attributes": attributes or {"class": "cell"}}
        for shape in shapes
    ]
    if as_dict:
        regions = {str(number): region for number, region in enumerate(regions)}
    return {"a.jpg123": {"filename": "a.jpg", "size": 123, "regions": regions}}


@pytest.mark.parametrize("project", [True, False])
@pytest.mark.parametrize("as_dict", [True, False])
def test_via_json(read, project, as_dict):
    content = via(RECT, POLYGON, CIRCLE, as_dict=as_dict)
    content = {"_via_settings": {}, "_via_img_metadata": content} if project else content
    coco = read("via.json", content, "VIA")
    assert names_and_boxes(coco) == [
        ("cell", [5, 6, 10, 8]), ("cell", [1, 2, 19, 28.5]), ("cell", [25, 15, 10, 10]),
    ]  # fmt: skip
    assert coco["annotations"][1]["segmentation"] == [[1, 2, 20, 2, 20, 30.5]]


def test_via_csv(read):
    def row(shape, count, attributes):
        texts = (json.dumps(one).replace('"', '""') for one in (shape, attributes))
        return 'a.jpg,123,"{{}}",{},0,"{}","{}"\n'.format(count, *texts)

    header = (
        "filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,"
        "region_attributes\n"
    )
    lines = header + row(RECT, 1, {"name": "cell"}) + row({}, 0, {})
    assert names_and_boxes(read("via.csv", lines, "VIA csv")) == [("cell", [5, 6, 10, 8])]


def test_via_attributes(read):
    chosen = {"type": {"cat": True, "dog": False}, "id": "3"}
    assert names_and_boxes(read("via.json", via(RECT, attributes=chosen), "VIA"))[0][0] == "cat"
    with pytest.raises(DataError, match=r"attributes id, kind\. Rename the attribute"):
        read("via.json", via(RECT, attributes={"id": "1", "kind": "cat"}), "VIA")
    content = via(RECT, {"name": "polyline"})
    with pytest.raises(DataError, match=r"object 2 \(cell\): a shape of type polyline is not"):
        read("via.json", content, "VIA")
    assert len(read("via.json", content, "VIA", skip_bad=True)["annotations"]) == 1


def task(*values, image="/data/upload/1/0a1b2c3d-a.jpg", **more):
    result = [
        {"id": f"r{k}", "from_name": "x", "original_width": 60, "original_height": 40, **value}
        if isinstance(value, dict)
        else value
        for k, value in enumerate(values)
    ]
    return {"id": 1, "data": {"image": image}, "annotations": [{"result": result}], **more}


BOX = {"x": 10, "y": 25, "width": 50, "height": 50, "rotation": 0, "rectanglelabels": ["car"]}


def test_label_studio(read):
    polygon = {"points": [[0, 0], [50, 0], [50, 50]], "polygonlabels": ["road"]}
    ellipse = {"x": 50, "y": 50, "radiusX": 10, "radiusY": 10, "ellipselabels": ["car"]}
    point = {"value": {"x": 20, "y": 50, "width": 1, "keypointlabels": ["wheel"]}, "parentID": "r1"}
    shapes = point, {"value": BOX}, {"value": polygon}, {"value": ellipse}
    content = [task(*shapes), task(image="b.jpg")]
    coco = read("project.json", content, "Label Studio")
    assert [row["file_name"] for row in coco["images"]] == ["a.jpg", "b.jpg"]
    assert names_and_boxes(coco) == [
        ("car", [6, 10, 30, 20]), ("road", [0, 0, 30, 20]), ("car", [24, 16, 12, 8]),
    ]  # fmt: skip
    assert coco["annotations"][0]["keypoints"] == [12, 20, 2]
    assert coco["categories"][0]["keypoints"] == ["wheel"]


def test_label_studio_min_and_separate_labels(read):
    box = {**BOX, "original_width": 60, "original_height": 40}
    row = {"image": "a.jpg", "id": 3, "box": [box], "weather": ["rain", "fog"]}
    assert names_and_boxes(read("min.json", [row], "Label Studio")) == [("car", [6, 10, 30, 20])]
    place = {key: value for key, value in BOX.items() if key != "rectanglelabels"}
    both = task({"value": place}, {"id": "r0", "value": {**place, "labels": ["bus"]}})
    assert names_and_boxes(read("min.json", [both], "Label Studio")) == [("bus", [6, 10, 30, 20])]
    with pytest.raises(DataError, match="object 1: has no label"):
        read("min.json", [task({"value": place})], "Label Studio")


def test_label_studio_regions_that_are_bad(read):
    """Only bad regions are skipped; a relation between regions is not a region."""
    point = {"x": 20, "y": 50, "width": 1, "keypointlabels": ["wheel"]}
    relation = {"type": "relation", "from_id": "r0", "to_id": "r1", "direction": "right"}
    regions = [
        {"value": BOX}, relation, {}, {"value": None}, {"value": {**BOX, "x": None}},
        {"value": {key: BOX[key] for key in BOX if key != "x"}},
        {"value": point, "parentID": "r0"},
        {"value": {**point, "x": None}, "parentID": "r0"},
        {"value": {**point, "y": "low"}, "parentID": "r0"},
        {"value": {"keypointlabels": ["wheel"]}, "parentID": "r0"},
        "text", {"value": {"choices": ["sharp"]}},
    ]  # fmt: skip
    for region in regions[2:6] + regions[7:11]:
        message = r"object 2.*(has no value|has no label|is not complete)"
        with pytest.raises(DataError, match=message):
            read("project.json", [task(*regions[:2], region)], "Label Studio")
    coco = read("project.json", [task(*regions)], "Label Studio", skip_bad=True)
    assert names_and_boxes(coco) == [("car", [6, 10, 30, 20])]
    assert coco["annotations"][0]["keypoints"] == [12, 20, 2]


def test_label_studio_names_and_labels(read):
    """The image is the text with the suffix of an image; the first of several labels is used."""
    both = task({"value": {**BOX, "rectanglelabels": ["bus", "car"]}})
    both["data"] = {"key": "7", "photo": "s3://bucket/a.jpg?version=2"}
    content = read("project.json", [both], "Label Studio")
    assert names_and_boxes(content) == [("bus", [6, 10, 30, 20])]
    expected = ["regions with several labels", "images without labels"]
    assert [one["what"] for one in content["findings"]] == expected


def pack_brush(mask):
    """Encode a mask as Label Studio does, without runs: count, word size, four lengths, values."""
    values = np.repeat(mask.ravel().astype(np.uint8) * 255, 4)
    bits = f"{len(values):032b}{7:05b}" + "".join(f"{size - 1:04b}" for size in (3, 4, 8, 16))
    for start in range(0, len(values), 8):  # alternately a run and single values
        part = values[start : start + 8]
        if (part == part[0]).all():
            bits += f"100{7:03b}{part[0]:08b}"
        else:
            bits += f"001{7:04b}" + "".join(f"{value:08b}" for value in part)
    bits += "0" * (-len(bits) % 8)
    return [int(bits[k : k + 8], 2) for k in range(0, len(bits), 8)]


def test_label_studio_brush(read):
    mask = np.zeros((40, 60), bool)
    mask[5:17, 11:30] = True
    value = {"format": "rle", "rle": pack_brush(mask), "brushlabels": ["mud"]}
    coco = read("brush.json", [task({"value": value})], "Label Studio")
    assert (to_bitmap(coco["annotations"][0]["segmentation"], 40, 60) == mask).all()


def test_createml(read):
    center = {"x": 30, "y": 20.5, "width": "10", "height": 7}
    rows = [{"image": "a.jpg", "annotations": [{"label": "x", "coordinates": center}]}]
    coco = read("_annotations.createml.json", rows, "CreateML")
    assert names_and_boxes(coco) == [("x", [25, 17, 10, 7])]


def test_supervisely(tmp_path, read, text):
    mask = np.zeros((4, 6), np.uint8)
    mask[1:3, 2:6] = 255
    buffer = io.BytesIO()
    Image.fromarray(mask).save(buffer, "PNG")
    square = [[10, 10], [20, 10], [20, 20], [10, 20]]
    hole = [[12, 12], [14, 12], [14, 14], [12, 14]]
    rows = [
        ("rectangle", {"points": {"exterior": [[1, 2], [10, 11]], "interior": []}}),
        ("polygon", {"points": {"exterior": square, "interior": [hole]}}),
        ("bitmap", {"bitmap": {"data": base64.b64encode(zlib.compress(buffer.getvalue())).decode(),
                               "origin": [30, 5]}}),
    ]  # fmt: skip
    objects = [{"classTitle": "cell", "geometryType": kind, **more} for kind, more in rows]
    content = {"size": {"height": 40, "width": 60}, "objects": objects}
    text(tmp_path / "meta.json", '{"classes": []}')
    coco = read("images/ann/a.jpg.json", content, "Supervisely")
    rectangle, ring, bitmap = coco["annotations"]
    assert rectangle["bbox"] == [1, 2, 10, 10]
    assert to_bitmap(ring["segmentation"], 40, 60).sum() == 100 - 4
    assert bitmap["bbox"] == [32, 6, 4, 2]


@pytest.mark.parametrize("format", ["Datumaro", "Label Studio", "Supervisely"])
def test_masks_of_an_image_are_bounded_together(format, read, monkeypatch):
    options = ImageOptions(max_pixels=2400)
    monkeypatch.setattr("detlite.apps.dataset_formats.shapes.DEFAULT_OPTIONS", options)
    mask = np.ones((40, 60), bool)

    def content(count):
        if format == "Datumaro":
            rle = {"counts": [0, 2400], "size": [40, 60]}
            return datumaro(*count * [{"type": "mask", "label_id": 0, "rle": rle}])
        if format == "Label Studio":
            value = {"format": "rle", "rle": pack_brush(mask), "brushlabels": ["cell"]}
            return [task(*count * [{"value": value}])]
        buffer = io.BytesIO()
        Image.fromarray(mask.astype(np.uint8) * 255).save(buffer, "PNG")
        data = base64.b64encode(zlib.compress(buffer.getvalue())).decode()
        bitmap = {"data": data, "origin": [0, 0]}
        row = {"classTitle": "cell", "geometryType": "bitmap", "bitmap": bitmap}
        return {"size": {"height": 40, "width": 60}, "objects": count * [row]}

    path = "ann/a.jpg.json" if format == "Supervisely" else "annotations/default.json"
    assert len(read(path, content(10), format)["annotations"]) == 10
    with pytest.raises(DataError, match="masks of its image have together more than 10 times"):
        read(path, content(11), format)


def test_datumaro(read):
    mask = {"counts": [10 * 40 + 5, 20, 60 * 40 - 10 * 40 - 25], "size": [40, 60]}
    rows = [
        {"type": "bbox", "label_id": 1, "bbox": [1, 2, 3, 4], "group": 0},
        {"type": "polygon", "label_id": 0, "points": [1, 1, 9, 1, 9, 9], "group": 5},
        {"type": "polygon", "label_id": 0, "points": [20, 1, 29, 1, 29, 9], "group": 5},
        {"type": "mask", "label_id": 1, "rle": mask, "attributes": {"is_crowd": True}},
        {"type": "label", "label_id": 0},
        {"type": "bbox", "label_id": 1, "bbox": [20, 15, 20, 10], "attributes": {"rotation": "90"}},
    ]
    content = datumaro(*rows, names=("cat", "dog"))
    box, cat, crowd, turned = read("annotations/default.json", content, "Datumaro")["annotations"]
    assert turned["bbox"] == [25, 10, 10, 20]
    assert box["bbox"] == [1, 2, 3, 4]
    assert len(cat["segmentation"]) == 2
    assert (crowd["bbox"], crowd["iscrowd"]) == ([10, 5, 1, 20], 1)


def createml(*coordinates):
    labels = [{"label": "cell", "coordinates": one} for one in coordinates]
    return [{"image": "a.jpg", "annotations": labels}]


def supervisely(*points):
    objects = [
        {"classTitle": "cell", "geometryType": "rectangle", "points": {"exterior": one}}
        for one in points
    ]
    return {"size": {"height": 40, "width": 60}, "objects": objects}


def datumaro(*shapes, names=("cell",)):
    item = {"id": "a", "annotations": shapes, "image": {"path": "a.jpg", "size": [40, 60]}}
    categories = {"label": {"labels": [{"name": name} for name in names]}}
    return {"info": {}, "categories": categories, "items": [item]}


@pytest.mark.parametrize(
    ("path", "format", "content"),
    [
        ("via.json", "VIA", via(RECT, {"name": "rect", "x": 5})),
        ("via.json", "VIA", via(RECT, POLYGON | {"all_points_x": [1]})),
        ("project.json", "Label Studio", [task({"value": BOX}, {"value": BOX | {"x": None}})]),
        ("createml.json", "CreateML", createml({"x": 5, "y": 5, "width": 4, "height": 4}, {})),
        ("images/ann/a.jpg.json", "Supervisely", supervisely([[1, 2], [9, 9]], [[1, 2]])),
        ("annotations/default.json", "Datumaro",
         datumaro({"type": "bbox", "label_id": 0, "bbox": [1, 2, 3, 4]},
                  {"type": "polygon", "label_id": 0, "points": "1,2"})),
        ("annotations/default.json", "Datumaro",
         datumaro({"type": "bbox", "label_id": 0, "bbox": [1, 2, 3, 4]},
                  {"type": "bbox", "label_id": 9, "bbox": [1, 2, 3, 4]})),
    ],
)  # fmt: skip
def test_only_a_bad_shape_is_skipped(read, tmp_path, path, format, content):
    with pytest.raises(DataError, match=r"object 2.*(is not complete|has no label)"):
        read(path, content, format)
    kept = read(path, content, format, skip_bad=True)["annotations"]
    assert len([row for row in kept if not row.get("ignore")]) == 1


@pytest.mark.parametrize(
    ("path", "format", "content", "bad"),
    [
        ("project.json", "Label Studio", [task({"value": BOX})], task(image=None)),
        ("createml.json", "CreateML", createml({"x": 5, "y": 5, "width": 4, "height": 4}), {}),
        ("annotations/default.json", "Datumaro",
         datumaro({"type": "bbox", "label_id": 0, "bbox": [1, 2, 3, 4]}), {"annotations": []}),
    ],
)  # fmt: skip
def test_only_a_bad_image_entry_is_skipped(read, path, format, content, bad):
    (content if isinstance(content, list) else content["items"]).append(bad)
    with pytest.raises(DataError, match=r"is not complete|its image '' is not in"):
        read(path, content, format)
    assert len(read(path, content, format, skip_bad=True)["annotations"]) == 1


def test_an_image_name_is_independent_of_other_bad_entries(read, tmp_path, image):
    """A file with several entries does not label the image with its own name."""
    image(tmp_path / "images/createml.png")
    lost, kept = (createml({"x": 5, "y": 5, "width": 4, "height": 4})[0] for _ in range(2))
    lost["image"] = "gone.png"
    for content in ([lost, {}], [lost]):
        with pytest.raises(DataError, match=r"image 'gone\.png' is not in"):
            read("createml.json", content, "CreateML")
    coco = read("createml.json", [lost, {}, kept], "CreateML", skip_bad=True)
    assert [row["file_name"] for row in coco["images"]] == ["a.jpg"]


def test_datumaro_masks_must_cover_the_image(read):
    """pycocotools leaves the rest of a mask uninitialized, and writes beyond its end."""
    rows = [
        {"type": "mask", "label_id": 0, "rle": {"counts": counts, "size": [40, 60]}}
        for counts in ([405, 20], [405, 20, 9999])
    ]
    content = datumaro(*rows)
    with pytest.raises(DataError, match=r"object 1 \(cell\): its segmentation has RLE counts over"):
        read("annotations/default.json", content, "Datumaro")
    small = {"type": "mask", "label_id": 0, "rle": {"counts": [405, 20, 775], "size": [40, 30]}}
    with pytest.raises(DataError, match="its mask is 30x40, but the image 60x40"):
        read("annotations/default.json", datumaro(small), "Datumaro")


def test_label_studio_tasks_without_annotations(read):
    """Tasks that were skipped or have only predictions are unlabeled, not images of background."""
    labeled, skipped = task({"value": BOX}), task({"value": BOX}, image="b.jpg")
    skipped["annotations"][0]["was_cancelled"] = True
    predicted = {"data": skipped["data"], "predictions": skipped["annotations"]}
    for other in (skipped, predicted, {**predicted, "annotations": []}):
        content = read("project.json", [labeled, other], "Label Studio")
        assert [row["file_name"] for row in content["images"]] == ["a.jpg"]
        (finding,) = content["findings"]
        assert (finding["what"], finding["count"]) == ("images without labels", 1)
        assert finding["example"].endswith("b.jpg")


def test_label_studio_rotated_images_are_refused(read):
    with pytest.raises(DataError, match=r"object 1 \(car\): is drawn on an image that Label St"):
        read("project.json", [task({"value": BOX, "image_rotation": 90})], "Label Studio")


def test_label_studio_parts_of_an_object(read):
    """Polygons inside of another polygon with their label are parts of it."""

    def polygon(x, label, **more):
        points = [[x, 0], [x + 10, 0], [x + 10, 50]]
        return {"value": {"points": points, "polygonlabels": [label]}, **more}

    parts = polygon(0, "car"), polygon(20, "car", parentID="r0"), polygon(40, "car")
    content = read("p.json", [task(*parts, polygon(60, "bus", parentID="r0"))], "Label Studio")
    assert names_and_boxes(content) == [
        ("car", [0, 0, 18, 20]), ("car", [24, 0, 6, 20]), ("bus", [36, 0, 6, 20]),
    ]  # fmt: skip
    boxed = read("p.json", [task({"value": BOX}, polygon(0, "car", parentID="r0"))], "Label Studio")
    assert len(boxed["annotations"]) == 2


def test_datumaro_skeletons_and_equal_names_in_subsets(tmp_path, image, text):
    def point(label, x, y, visibility):
        return {"type": "points", "label_id": label, "points": [x, y], "visibility": [visibility]}

    for split, x in (("train", 5), ("val", 9)):
        image(tmp_path / f"images/{split}/a.jpg")
        elements = [point(1, x, 6, 2), point(2, 30, 20, 1), point(3, 0, 0, 0)]
        shape = {"type": "skeleton", "label_id": 0, "points": [], "elements": elements}
        content = datumaro(shape, names=("person", "nose", "ear", "tail"))
        del content["items"][0]["image"]["size"]
        text(tmp_path / f"annotations/{split}.json", json.dumps(content))
    _, sets = read_folder(tmp_path)
    for split, x in (("train", 5), ("val", 9)):
        assert sets[split].images[0].file.parent.name == split
        coco = to_coco(sets[split])
        assert names_and_boxes(coco) == [("person", [x, 6, 30 - x, 14])]
        assert coco["annotations"][0]["keypoints"] == [x, 6, 2, 30, 20, 1, 0, 0, 0]
