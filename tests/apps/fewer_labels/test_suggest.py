"""Suggested images: their order, which are left out, and their labels in the formats of tools."""

import csv
import json
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from PIL import Image

from detlite.apps.cli.main import main
from detlite.apps.dataset_formats.find_annotations import read_folder
from detlite.apps.fewer_labels.suggest import _write_yolo
from detlite.apps.fewer_labels.suggest import suggest as suggest_images
from detlite.data import CocoDataset
from detlite.inference.predictor import Predictor
from detlite.structures.masks.formats import to_bitmap


@pytest.fixture
def suggest(train, photos):
    """Return a function that runs the command with a model trained on `photos`."""
    weights = train("first", {"SOLVER.MAX_ITER": 2}).weights

    def run(*words, images="more"):
        start = ["suggest", "--weights", weights, "--input", photos / images]
        return main([*map(str, start), "--output", str(photos / "out"), *words])

    return run


def read_table(folder):
    with (folder / "suggestions.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_new_images_come_in_order_of_their_uncertain_detections(suggest, photos, capsys, caplog):
    """The model has trained on its detections in them, but these are no labels."""
    weights = photos / "first" / "model_final.pth"
    assert "pseudo_labels" in weights.with_name("config.yaml").read_text()
    assert suggest("--count", "3") == 0
    done = capsys.readouterr()
    assert "3 of 4 images: see " in done.out
    assert "damaged.png" in caplog.text
    assert "2 of 7 images without labels are left out, because they are nearly" in caplog.text
    rows = read_table(photos / "out")
    new = {str(photos / "more" / f"copy_{number}.png") for number in (7, 8, 9, 10)}
    assert {row["file"] for row in rows} < new
    order = [(int(row["uncertain"]), int(row["certain"])) for row in rows]
    assert order == sorted(order, reverse=True)
    images = sorted((photos / "out" / "images").iterdir())
    assert [path.name for path in images] == [row["name"] for row in rows]
    assert [path.name[:5] for path in images] == ["0001_", "0002_", "0003_"]
    sensitive = Predictor(weights, score_thresh=0.345 / 2)
    for row, path in zip(rows, images, strict=True):
        scores = sensitive(path)["scores"]
        assert int(row["certain"]) == (scores >= 0.345).sum()
        assert int(row["uncertain"]) == (scores < 0.345).sum()


@pytest.mark.slow
def test_coco_labels_are_the_certain_detections(suggest, photos):
    suggest()
    file = photos / "out" / "annotations.json"
    rows = json.loads(file.read_text())["annotations"]
    data = CocoDataset(file, photos / "out" / "images")
    predictor = Predictor(photos / "first" / "model_final.pth")
    for index, image_id in enumerate(data.image_ids):
        masks = predictor(data.image_path(index))["masks"]
        masks = masks[masks.flatten(1).any(1)]
        polygons = [row["segmentation"] for row in rows if row["image_id"] == image_id]
        assert len(data[index][1]["boxes"]) == len(masks) == len(polygons)
        for parts, mask in zip(polygons, masks.numpy(), strict=True):
            drawn = to_bitmap(parts, *mask.shape)
            assert (drawn & mask).sum() > 0.9 * (drawn | mask).sum()


@pytest.mark.slow
def test_yolo_labels_are_read_as_a_dataset(suggest, photos):
    suggest("--format", "yolo")
    _, sets = read_folder(photos / "out")
    predictor = Predictor(photos / "first" / "model_final.pth")
    assert list(sets["train"].categories) == [row["name"] for row in predictor.categories]
    for image in sets["train"].images:
        prediction = predictor(image.file)
        assert len(image.objects) == prediction["masks"].flatten(1).any(1).sum()


def test_yolo_has_boxes_or_the_largest_polygon(tmp_path):
    row = {"image_id": 3, "category_id": 7, "bbox": [10.0, 20, 20, 10]}
    parts = [[0.0, 0, 4, 0, 4, 4], [10.0, 20, 30, 20, 30, 30, 10, 30], [1.0, 1, 2, 1, 2, 2, 1, 2]]
    content = {
        "images": [{"id": 3, "width": 100, "height": 50, "file_name": "a.jpg"}],
        "categories": [{"id": 9, "name": "b: c"}, {"id": 7, "name": "a"}],
        "annotations": [row | {"segmentation": []}, row | {"segmentation": parts}],
    }
    _write_yolo(content, tmp_path)
    lines = (tmp_path / "labels" / "a.txt").read_text().splitlines()
    assert [[float(word) for word in line.split()] for line in lines] == [
        [1, 0.2, 0.5, 0.2, 0.2],
        [1, 0.1, 0.4, 0.3, 0.4, 0.3, 0.6, 0.1, 0.6],
    ]
    names = yaml.safe_load((tmp_path / "data.yaml").read_text())["names"]
    assert names == {0: "b: c", 1: "a"}


def test_yolo_has_keypoints(tmp_path):
    row = {"id": 1, "image_id": 3, "category_id": 7, "bbox": [10.0, 20, 20, 10]}
    points = {"keypoints": [12.0, 22, 2, 18, 28, 2], "num_keypoints": 2, "segmentation": []}
    names = {"keypoints": ["left end", "right end"], "skeleton": []}
    content = {
        "images": [{"id": 3, "width": 100, "height": 50, "file_name": "a.png"}],
        "categories": [{"id": 7, "name": "rod"} | names],
        "annotations": [row | points],
    }
    (tmp_path / "images").mkdir()
    Image.new("RGB", (100, 50)).save(tmp_path / "images/a.png")
    _write_yolo(content, tmp_path, keypoint_center=0.5)
    _, sets = read_folder(tmp_path)
    assert sets["train"].keypoints == names["keypoints"]
    (obj,) = sets["train"].images[0].objects
    assert obj.box == pytest.approx((10, 20, 20, 10))
    found = [value for name in names["keypoints"] for value in obj.keypoints[name]]
    assert found == pytest.approx([12.5, 22.5, 2, 18.5, 28.5, 2])


def test_names_of_files_survive_urls_and_limits(suggest, photos):
    long = "a#b c%20d&e?" + "n" * 230
    for path in sorted((photos / "more").glob("*_[789].png")):
        path.rename(photos / "more" / f"{path.stem[-1]}{long}.png")
    (photos / "out").mkdir()
    assert suggest("--format", "label-studio") == 0
    tasks = json.loads((photos / "out" / "tasks.json").read_text())
    urls = [task["data"]["image"] for task in tasks]
    paths = [parse_qs(urlsplit(url).query)["d"][0] for url in urls]
    assert len(paths) == 4
    for path in paths:
        assert (photos / path).is_file()
    # As annotated in the tool.
    for task in tasks:
        task["annotations"] = task.pop("predictions")
    (photos / "out" / "tasks.json").write_text(json.dumps(tasks))
    _, sets = read_folder(photos / "out")
    assert len(sets["train"].images) == 4


def test_turned_images_are_reported(suggest, photos, caplog):
    image = Image.open(photos / "more/copy_7.png")
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(photos / "more/copy_7.png", exif=exif)
    suggest()
    assert "EXIF" not in caplog.text
    suggest("--output", str(photos / "out2"), "MODEL.CONVENTION_OVERRIDE",
            "['exif_orientation=False']")  # fmt: skip
    assert "1 of 4 images have an EXIF orientation, such as" in caplog.text


@pytest.mark.parametrize("masks", [True, False])
def test_cvat_reads_coco_labels(train, photos, masks):
    """CVAT imports files by datumaro."""
    datumaro = pytest.importorskip("datumaro")
    train("first", {"SOLVER.MAX_ITER": 2, "MODEL.MASK_ON": masks})
    weights = str(photos / "first" / "model_final.pth")
    folder = photos / "annotations"  # where datumaro expects the file
    suggest_images(weights, [str(photos / "more")], 4, "coco", folder, [])
    content = json.loads((folder / "annotations.json").read_text())
    data = datumaro.Dataset.import_from(str(folder / "annotations.json"), "coco_instances")
    found = [annotation.type.name for item in data for annotation in item.annotations]
    assert len(data) == len(content["images"])
    assert found.count("bbox") == len(content["annotations"]) > 0
    parts = sum(len(row["segmentation"]) for row in content["annotations"])
    assert found.count("polygon") == parts
    assert bool(parts) == masks


def test_labelme_labels_are_read_as_a_dataset(suggest, photos):
    suggest("--format", "labelme")
    _, sets = read_folder(photos / "out")
    assert len(sets["train"].images) == 4
    assert any(image.objects for image in sets["train"].images)
    assert (photos / "out/labels.txt").read_text() == "cat\ndog\n"


def test_label_studio_tasks_fit_their_configuration(suggest, photos):
    interface = pytest.importorskip("label_studio_sdk.label_interface").LabelInterface
    suggest("--format", "label-studio")
    tasks = json.loads((photos / "out" / "tasks.json").read_text())
    config = interface((photos / "out" / "labels.xml").read_text())
    config.validate()
    assert len(tasks) == 4
    assert any(task["predictions"][0]["result"] for task in tasks)
    for task in tasks:
        assert config.validate_prediction(task["predictions"][0], return_errors=True) == []


@pytest.mark.slow
def test_errors_are_one_line(suggest, capsys):
    def error(images):
        capsys.readouterr()
        assert suggest(images=images) == 2
        return capsys.readouterr().err.splitlines()[-1]

    assert "all 6 images are in the training or test sets" in error("images/[1-6].png")
    assert "all 2 images are nearly identical to images" in error("more/*_[15].png")
    assert "all 2 images are nearly identical to images" in error("more/*[1d].png")
    suggest()
    assert "out exists already and is not empty: choose another output folder" in error("more")


@pytest.mark.slow
def test_missing_datasets_are_reported(suggest, photos, caplog):
    (photos / "val.json").unlink()
    suggest()
    assert "images of test may be among the suggested ones" in caplog.text
    names = {row["file"].rpartition("_")[2] for row in read_table(photos / "out")}
    assert names == {"5.png", "7.png", "8.png", "9.png", "10.png"}
