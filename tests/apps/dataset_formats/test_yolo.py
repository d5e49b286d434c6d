"""Test reading YOLO's text files."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from detlite.apps.cli.main import main
from detlite.apps.dataset_formats.find_annotations import find_sets, read_folder
from detlite.apps.dataset_formats.labeled_dataset import Conversion, to_coco
from detlite.data.datasets.coco import CocoDataset
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.data.datasets.options import DatasetOptions
from detlite.files.errors import DataError
from tests.apps.dataset_formats.reading import check_refused, read_as, read_set

YAML = "path: {path}\ntrain: images/train\nval: images/val\nnc: 2\nnames: [cat, dog]\n"
BOX = "0 0.5 0.5 1 1\n"
SPLIT = {"train": ["a", "b"], "val": ["c"]}


@pytest.fixture
def yolo(tmp_path, folder):
    """Write two images for training, one without objects, and one for evaluation."""
    return folder({
        **{f"images/{name}.jpg": None for name in ("train/b", "train/a", "val/c")},
        "labels/train/a.txt": "1 0.5 0.5 0.5 0.25\n\n0 0 0 0.5 0 0.5 0.5 0 0.5\n",
        "labels/val/c.txt": "0 0.1 0.1 0.2 0.2\n",
        "data.yaml": YAML.format(path=tmp_path),
    })  # fmt: skip


def stems(sets):
    return {split: sorted(image.file.stem for image in one.images) for split, one in sets.items()}


def test_boxes_and_polygons(yolo):
    sets = read_as("YOLO", yolo)
    assert stems(sets) == SPLIT
    content = to_coco(sets["train"])
    assert [row["file_name"] for row in content["images"]] == ["a.jpg", "b.jpg"]
    assert (content["images"][0]["height"], content["images"][0]["width"]) == (40, 60)
    assert content["categories"] == [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    box, polygon = content["annotations"]
    assert box == {"id": 1, "category_id": 2, "image_id": 1, "bbox": [15, 15, 30, 10],
                   "iscrowd": 0, "area": 300}  # fmt: skip
    assert polygon["segmentation"] == [[0, 0, 30, 0, 30, 20, 0, 20]]
    assert (polygon["bbox"], polygon["area"]) == ([0, 0, 30, 20], 600)


def test_names_as_a_mapping_and_lists_of_images(yolo, folder):
    folder({
        "some.txt": "images/train/a.jpg\n./images/val/c.jpg\n",
        "data.yaml": "train: [some.txt, ../images/train]\nnames: {0: no, 1: 007}\n",
    })  # fmt: skip
    (dataset,) = read_as("YOLO", yolo).values()
    assert dataset.categories == ["no", "007"]  # not False and 7
    assert [image.file.name for image in dataset.images] == ["a.jpg", "c.jpg", "b.jpg"]  # each once


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("2 0.5 0.5 0.1 0.1", "category 2 must be in 0..1"),
        ("-1 0.5 0.5 0.1 0.1", "category -1 must be in 0..1"),
        ("0 30 20 10 10", "30 is not between 0 and 1: coordinates must be fractions"),
        ("0 0.5 0.5 0.1", "has 3 numbers after the category"),
        ("0 0.5 0.5 0.1 0.1 0.1 0.1 0.5", "has 7 numbers after the category"),
        ("0 0.5 nan 0.1 0.1", "needs a category number and fractions, not ['0', '0.5', 'nan',"),
        ("cat 0.5 0.5 0.1 0.1", "needs a category number and fractions, not ['cat', "),
        ("0 0.5 0.5 0.5 0.25 1.57", "its sixth number seems to be the angle of a rotated box"),
        ("0 0.5 0.5 0.5 0.25 -0.5", "its sixth number seems to be the angle of a rotated box"),
        ("0 0.5 0.5 0.1 0", "no positive width and height"),
        ("0 0.5,0.5 0.1 0.1", "needs a category number and fractions, not"),
    ],
)
def test_invalid_line(yolo, text, line, problem):
    file = text(yolo / "labels/train/b.txt", f"0 0.5 0.5 0.1 0.1\n{line}\n")
    with pytest.raises(DataError) as raised:
        read_folder(yolo)
    assert str(raised.value).startswith(f"{file}, line 2: ")
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("names: cat", "names is 'cat', not a list"),
        ("names: {1: cat}", "not a list or a mapping {0: name, ...}"),
        ("names: [a, a]", "names contains a duplicate"),
        ("names: [a]\nnc: 2", "nc is 2, but there are 1 names"),
        ("names: [a]\ntrain: nowhere", "train is 'nowhere', but .* does not exist"),
        ("names: [a]\nkpt_shape: [17]", "kpt_shape is [17], not"),
        ("names: [a]\nkpt_shape: [x, 3]", "kpt_shape is ['x', 3], not"),
        ("names: [a]\nkpt_shape: [2, 3]\nkpt_names: {0: [b]}", "kpt_names has 1 names, but kpt_s"),
        ("names: [a]\nkpt_shape: [1000000000, 3]", "kpt_shape is [1000000000, 3], not"),
        ("names: [a]\nkpt_shape: [2, 3]\nkpt_names: 7", "kpt_names is 7, not a list"),
        ("nc: 1000000000\ntrain: .", "has 1000000000 categories, more than 100000"),
        ("names: [a", "is not YAML"),
        ("- cat\n- dog", "contains a list instead of keys and values"),
    ],
)
def test_invalid_yaml(yolo, text, content, problem):
    file = text(yolo / "data.yaml", content)
    check_refused(yolo, re.escape(problem).replace(r"\.\*", ".*"), file)


def test_unusable_images(yolo):
    (yolo / "images/train/a.jpg").write_bytes(b"not an image")
    check_refused(yolo, r"a\.jpg: the image is damaged")
    (yolo / "labels/train/a.txt").unlink()
    check_refused(yolo, r"none of 2 images has a text file .*a\.txt for .*a\.jpg")


def test_images_of_another_format_are_not_background(folder, tmp_path):
    folder({"a.jpg": None, "b.jpg": None, "a.txt": BOX, "classes.txt": "worm\n", "b.xml": "<a/>"})
    check_refused(tmp_path, r"b\.xml: the labels of other images are text files")
    assert len(read_set(tmp_path, skip_bad=True).images) == 1


@pytest.mark.parametrize(
    ("photo", "labels", "names"),
    [
        ("x.jpg", "x.txt", "classes.txt"),
        ("Images/x.jpg", "Labels/x.txt", "obj.names"),
        ("images/train/x.jpg", "labels/train/x.txt", "labels/classes.txt"),
        ("images/train/x.jpg", "labels/train/x.txt", "train/_darknet.labels"),
    ],
)
def test_files_of_other_tools(folder, photo, labels, names):
    notes = '{"categories": [{"id": 0, "name": "x"}], "info": {}}'
    files = {photo: None, labels: "1.0 0.5 0.5 1 1\n", names: "cat\ndog\n", "notes.json": notes}
    content = to_coco(read_as("YOLO", folder(files))["train"])
    assert [row["name"] for row in content["categories"]] == ["cat", "dog"]
    assert content["annotations"][0]["category_id"] == 2
    assert content["annotations"][0]["bbox"] == [0, 0, 60, 40]


def test_lists_of_darknet(folder, tmp_path):
    for name in "abc":
        folder({f"obj_{name}_data/{name}.jpg": None, f"obj_{name}_data/{name}.txt": BOX})
    folder({
        "obj.names": "cat\n",
        "obj.data": "classes = 1\ntrain = data/train.txt\nvalid = data/valid.txt\nbackup = x/\n",
        "train.txt": "data/obj_a_data/a.jpg\n",
        "valid.txt": "C:\\x\\data\\obj_b_data\\b.jpg\n",
    })  # fmt: skip
    assert stems(read_as("YOLO", tmp_path)) == {"train": ["a"], "val": ["b"]}
    folder({"train.txt": "data/x.jpg\ndata/y.jpg\n"})
    check_refused(tmp_path, r"its image 'data/x\.jpg' is not in .*\(2 bad labels\)")


@pytest.mark.parametrize(
    ("yaml", "names"),
    [
        ("names: {'0': cat, '1': dog}\ntrain: images\\train\nvalidation: images\\val\n", None),
        ("names: [cat, dog]\npath: /home/x/set\ntrain: /home/x/set/images/train\nvalid: images/val",
         None),
        ("names: [cat, dog]\ntrain: ../images/train\nval: ../images/val\ntest: ../images/test\n",
         None),
        ("Train: images/train\nValidation: images/val\nnames: [cat, dog]\n", None),  # CVAT
        ("nc: 2\ntrain: images/train\nval: images/val\n", ["0", "1"]),
        # Folders tell the splits.
        ("names: [cat, dog]\n", None),
        ("", ["0", "1"]),
    ],
)  # fmt: skip
def test_variants_of_yaml(yolo, text, yaml, names):
    (yolo / "data.yaml").unlink() if not yaml else text(yolo / "data.yaml", yaml)
    sets = read_as("YOLO", yolo)
    assert stems(sets) == SPLIT
    assert sets["train"].categories == (names or ["cat", "dog"])
    numbered = [one.what for one in sets["train"].findings]
    assert numbered == ["categories without names are numbered"] * bool(names)


@pytest.mark.parametrize("path", ["{}/sets/pets", "../sets/pets", "/home/someone/pets"])
def test_images_in_another_folder_than_the_yaml_file(folder, tmp_path, path):
    lines = f"names: [cat]\npath: {path.format(tmp_path)}\ntrain: images\n"
    pets = {"sets/pets/images/a.jpg": None, "sets/pets/labels/a.txt": BOX}
    file = folder({**pets, "code/pets.yaml": lines}) / "code/pets.yaml"
    with pytest.raises(DataError, match=r"does not exist\. Correct the path, or name .*--images"):
        read_folder(file)
    _, splits = read_folder(file, images=tmp_path / "sets/pets")
    assert len(splits["train"].images[0].objects) == 1


def test_labels_of_stored_pixels(yolo_folder, tmp_path):
    exif = Image.Exif()
    exif[0x112] = 6
    for file in (yolo_folder / "images").iterdir():
        Image.new("RGB", (60, 40)).save(file, exif=exif)
    for upright, box in ((True, [16, 24, 8, 12]), (False, [24, 16, 12, 8])):
        conversion = Conversion(upright=upright)
        content = to_coco(read_folder(yolo_folder, conversion)[1]["train"])
        assert content["annotations"][0]["bbox"] == box
        words = ["init", "--data", str(yolo_folder), "--coco", str(tmp_path / "all.json")]
        words += ["MODEL.CONVENTION_OVERRIDE", f"exif_orientation={upright}"]
        assert main(words) == 0
        assert json.loads((tmp_path / "all.json").read_text()) == content
        found = [row["what"] for row in content.get("findings", ())]
        assert found == ["images with an EXIF orientation, whose labels state no size"] * upright


def test_keypoints(yolo, text):
    text(yolo / "data.yaml", YAML.format(path=".") + "kpt_shape: [2, 3]\nkpt_names: {0: [a, b]}\n"
         "flip_idx: [1, 0]\n")  # fmt: skip
    text(yolo / "labels/train/a.txt", "0 0.5 0.5 0.5 0.25 0.5 0.5 2 0 0 0\n")
    content = to_coco(read_as("YOLO", yolo)["train"])
    assert content["annotations"][0]["keypoints"] == [30, 20, 2, 0, 0, 0]
    assert content["categories"][0]["keypoints"] == ["a", "b"]
    assert content["categories"][0]["flip_idx"] == [1, 0]
    for values, problem in (("0.5 0.5 0.98", "visibility 0.98 is not 0"), ("9 9 2", "9 is not")):
        text(yolo / "labels/train/a.txt", f"0 0.5 0.5 0.5 0.25 0.5 0.5 2 {values}\n")
        with pytest.raises(DataError, match=rf"a\.txt, line 1: {problem}"):
            read_as("YOLO", yolo)
    text(yolo / "data.yaml", YAML.format(path=".") + "kpt_shape: [2, 2]\n")
    text(yolo / "labels/train/a.txt", "0 0.5 0.5 0.5 0.25 0.5 0.5 0 0\n")
    content = to_coco(read_as("YOLO", yolo)["train"])
    assert content["annotations"][0]["keypoints"] == [30, 20, 2, 0, 0, 0]
    assert content["categories"][0]["keypoints"] == ["keypoint 1", "keypoint 2"]


def test_sixth_numbers(yolo, text):
    lines = [f"0 0.5 0.5 0.5 0.25 {number}\n" for number in (0.9, 1, 17)]
    text(yolo / "labels/train/a.txt", "".join(lines))
    (finding,) = read_as("YOLO", yolo)["train"].findings
    assert (finding.what, finding.count) == ("a number after boxes", 3)


def test_skipped_labels_are_neither_trained_on_nor_measured(yolo, text):
    lines = ["0 0.5 0.5 0.5 0.25", "7 0.5 0.1 0.1 0.1", "dog 0.1 0.5 0.1 0.1", "1 1.2 0.9 0.6 0.1"]
    text(yolo / "labels/train/a.txt", "\n".join([*lines, "0 0.1 0.1 0.1"]))
    sets, _ = find_sets(yolo, skip_bad=True)
    files = sets["train"].annotations, sets["train"].images
    dataset = CocoDataset(*files, DatasetOptions(train=True, masks=False))
    _, target = dataset[0]
    assert target["boxes"].tolist() == [[15, 15, 45, 25]]
    regions = [[27, 2, 33, 6]] * 2 + [[3, 18, 9, 22]] * 2 + [[54, 34, 60, 38]]
    assert target["ignored_boxes"].numpy() == pytest.approx(np.array(regions))
    truth = build_coco_gt(dataset).dataset["annotations"]
    assert [(row["category_id"], row["iscrowd"]) for row in truth] == [
        (1, 0), (1, 1), (2, 1), (1, 1), (2, 1), (2, 1),
    ]  # fmt: skip


def test_names_must_agree(yolo_folder, text):
    text(yolo_folder / "yolov5/coco.yaml", "names: [person]\n")
    text(yolo_folder / "labels/classes.txt", "cat\n")
    assert read_set(yolo_folder).categories == ["cat"]
    for name, content in (("other.yaml", "names: [dog]\n"), ("labels/classes.txt", "dog\n")):
        file = text(yolo_folder / name, content)
        check_refused(yolo_folder, "its names differ from those of .*/data.yaml: remove one", file)
        file.unlink()
    text(yolo_folder / "labels/classes.txt", "horse\n")
    text(yolo_folder / "data.yaml", "nc: 1\ntrain: images\n")
    assert read_set(yolo_folder).categories == ["horse"]


def test_unused_images_and_label_files_are_reported(yolo, folder):
    folder({
        "train.txt": "./images/train/a.jpg\n./images/train/a.png\n",
        "val.txt": "./images/val/c.jpg\n",
        "data.yaml": "train: train.txt\nval: val.txt\nnames: [cat, dog]\n",
        "labels/train/lost.txt": BOX,
        "labels/train/notes.txt": "not labels\n",
        "images/train/a.png": None,
    })  # fmt: skip
    found = [(one.what, one.count, one.example) for one in read_as("YOLO", yolo)["train"].findings]
    assert found == [
        ("images that share a label file", 1, str(yolo / "images/train/a.png")),
        ("label files without an image", 1, str(yolo / "labels/train/lost.txt")),
        ("images that the lists of splits do not name", 1, str(yolo / "images/train/b.jpg")),
    ]
