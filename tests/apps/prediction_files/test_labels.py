"""Labels that predict writes are read again, with the same objects."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from detlite.apps.dataset_formats import Conversion, convert
from detlite.apps.prediction_files.writer import ModelInfo
from detlite.data import CocoDataset
from detlite.data.datasets.options import DatasetOptions
from detlite.structures.masks.formats import encode_bitmap, to_bitmap
from tests.builders import write_predictions

SIZE = HEIGHT, WIDTH = 40, 60
NAMES = ["cell", "tall & thin", "unseen"]  # no object has the last category
CENTER = 0.5
MODEL = ModelInfo([{"id": 10 * k, "name": name} for k, name in enumerate(NAMES, 1)], CENTER)
WITH_POINTS = ModelInfo(
    [{**row, "keypoints": ["head", "tail"], "skeleton": []} for row in MODEL.categories], CENTER
)
BOXES = [[5.0, 3.0, 20.0, 25.0], [30.25, 8.5, 12.0, 20.0]]


def masks() -> list[np.ndarray]:
    """Return a mask of two parts, one with a hole, and one of one part."""
    first, second = np.zeros(SIZE, bool), np.zeros(SIZE, bool)
    first[4:14, 6:20], first[20:27, 10:24] = True, True
    first[7:10, 9:14] = False
    second[10:25, 32:40] = True
    return [first, second]


def entries(with_masks: bool = False, with_points: bool = False) -> list[dict[str, Any]]:
    """Return entries of an image of two objects and the background, and an empty image."""
    rows: list[dict[str, Any]] = [
        {"image_id": 1, "category_id": category, "score": 0.75, "bbox": box}
        for category, box in zip((10, 20, -1), (*BOXES, BOXES[0]), strict=True)
    ]
    for row, mask in zip(rows, [*masks(), masks()[0]], strict=True):
        if with_masks:
            row["segmentation"] = encode_bitmap(mask)
        if with_points:
            row["keypoints"] = [10.0, 8.0, 1.0, 12.0, 20.0, 1.0]
    image = {"file_name": "photos/a.png", "height": HEIGHT, "width": WIDTH}
    return [
        {"image": {"id": 1, "copy": "0001_a.png", **image}, "objects": rows},
        {"image": {"id": 2, "copy": "0002_b.png", **image}, "objects": []},
    ]


def write(
    folder: Path, format: str, model: ModelInfo = MODEL, written: Any = None, **kinds: bool
) -> None:
    """Write labels, by default of `entries`, and their images."""
    written = written or entries(**kinds)
    write_predictions(folder, format, written, model)
    (folder / "images").mkdir(exist_ok=True)
    for entry in written:
        Image.new("RGB", (WIDTH, HEIGHT)).save(folder / "images" / entry["image"]["copy"])


def read(folder: Path, format: str) -> COCO:
    """Return what `detlite init --coco` reads; a COCO file is read unchanged."""
    if format == "coco":
        options = DatasetOptions(masks=False)
        dataset = CocoDataset(folder / "annotations.json", folder / "images", options)
        assert len(dataset) == len(list((folder / "images").glob("*.png")))
        return COCO(folder / "annotations.json")
    (file,) = convert(folder, folder / "read.json", Conversion())
    return COCO(file)


FORMATS_READ = ["coco", "yolo", "labelme"]


def sorted_rows(coco: COCO) -> list[dict[str, Any]]:
    assert sorted(Path(row["file_name"]).name for row in coco.dataset["images"]) == [
        "0001_a.png", "0002_b.png",
    ]  # fmt: skip
    assert [row["name"] for row in coco.dataset["categories"]] == NAMES
    rows = sorted(coco.dataset["annotations"], key=lambda row: row["bbox"])
    assert [coco.cats[row["category_id"]]["name"] for row in rows] == NAMES[:2]
    return rows


@pytest.mark.parametrize("format", FORMATS_READ)
def test_boxes_and_masks_are_read_again(tmp_path, format):
    write(tmp_path, format)
    boxes = [row["bbox"] for row in sorted_rows(read(tmp_path, format))]
    np.testing.assert_allclose(boxes, BOXES, atol=1e-4)
    write(tmp_path, format, with_masks=True)
    for row, mask in zip(sorted_rows(read(tmp_path, format)), masks(), strict=True):
        again = to_bitmap(row["segmentation"], *SIZE) > 0
        assert (again != mask).sum() <= 0.04 * mask.sum(), (again != mask).sum()


@pytest.mark.parametrize("format", ["coco", "yolo"])
def test_keypoints_are_read_again(tmp_path, format):
    write(tmp_path, format, WITH_POINTS, with_points=True)
    for row in sorted_rows(read(tmp_path, format)):
        np.testing.assert_allclose(row["keypoints"], [10, 8, 2, 12, 20, 2], atol=1e-4)
    if format == "coco":  # CVAT requires a segmentation, and integers as `iscrowd`
        content = json.loads((tmp_path / "annotations.json").read_text())
        for number, row in enumerate(content["annotations"], start=1):
            assert (row["id"], row["segmentation"], row["iscrowd"]) == (number, [], 0)
            assert row["area"] == row["bbox"][2] * row["bbox"][3]
    else:
        text = (tmp_path / "data.yaml").read_text()
        assert "val: images" in text
        assert "kpt_shape:\n- 2\n- 3\n" in text
        assert (tmp_path / "labels/0002_b.txt").read_text() == ""


@pytest.mark.parametrize("format", FORMATS_READ)
def test_an_object_with_an_empty_mask_keeps_its_box(tmp_path, format):
    entry = entries(with_masks=True)[0]
    entry["objects"][1]["segmentation"] = encode_bitmap(np.zeros(SIZE))
    write(tmp_path, format, written=[entry])
    rows = read(tmp_path, format).dataset["annotations"]
    assert len(rows) == 2
    np.testing.assert_allclose(rows[1]["bbox"], BOXES[1], atol=0.6)


def test_geojson_of_qupath(tmp_path):
    """See https://qupath.readthedocs.io: closed rings in pixels of the whole image."""
    for with_masks, counts in ((True, [3, 1]), (False, [1, 1])):
        write(tmp_path, "geojson", with_masks=with_masks)
        assert len(list((tmp_path / "geojson").iterdir())) == 2
        content = json.loads((tmp_path / "geojson/0001_a.geojson").read_text())
        assert content["type"] == "FeatureCollection"
        polygons = [feature["geometry"]["coordinates"] for feature in content["features"]]
        assert list(map(len, polygons)) == counts
        assert all(ring[0] == ring[-1] for (ring, *_) in polygons[0])
        names = [row["properties"]["classification"]["name"] for row in content["features"]]
        assert names == NAMES[:2]
    assert polygons[0] == [[[[5, 3], [25, 3], [25, 28], [5, 28], [5, 3]]]]


def test_parts_of_an_object_belong_together(tmp_path):
    write(tmp_path, "labelme", WITH_POINTS, with_masks=True, with_points=True)
    shapes = json.loads((tmp_path / "images/0001_a.json").read_text())["shapes"]
    kinds = ["polygon"] * 3 + ["point"] * 2 + ["polygon"] + ["point"] * 2
    assert [shape["shape_type"] for shape in shapes] == kinds
    assert [shape["group_id"] for shape in shapes] == [0] * 5 + [1] * 3
    assert {shape["description"] for shape in shapes} == {"0.7500"}
    assert [shape["label"] for shape in shapes[2:5]] == ["cell", "cell head", "cell tail"]
    assert shapes[3]["points"] == [[10.5, 8.5]]


@pytest.mark.parametrize("with_masks", [False, True])
def test_label_studio_has_the_documented_form(tmp_path, with_masks):
    """See https://labelstud.io/guide/predictions; regions name controls of the configuration."""
    write(tmp_path, "label-studio", WITH_POINTS, with_masks=with_masks, with_points=True)
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    controls = {
        node.get("name"): node for node in ElementTree.parse(tmp_path / "labels.xml").getroot()
    }
    labels = {name: [label.get("value") for label in node] for name, node in controls.items()}
    assert labels == {"image": [], "boxes": NAMES, "masks": NAMES, "keypoints": ["head", "tail"]}
    folder = f"/data/local-files/?d={tmp_path.name}/images/"
    images = [folder + name for name in ("0001_a.png", "0002_b.png")]
    assert [task["data"]["image"] for task in tasks] == images
    (result,), (empty,) = (task["predictions"] for task in tasks)
    assert (result["score"], empty["result"]) == (0.75, [])
    regions = result["result"]
    assert len({region["id"] for region in regions}) == len(regions) == (8 if with_masks else 6)
    for region in regions:
        assert controls[region["from_name"]].tag.lower() == region["type"]
        assert controls[region["from_name"]].get("toName") == region["to_name"] == "image"
        assert set(region["value"][region["type"]]) <= set(labels[region["from_name"]])
        assert (region["original_height"], region["original_width"]) == SIZE
    if not with_masks:
        box, point, *_ = regions
        sides = [box["value"][name] for name in ("x", "y", "width", "height")]
        assert sides == pytest.approx([100 * 5 / 60, 7.5, 100 / 3, 62.5])
        assert (point["value"]["x"], point["value"]["y"]) == pytest.approx((17.5, 21.25))
        assert point["parentID"] == box["id"]
