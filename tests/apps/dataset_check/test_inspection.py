"""Tests of `detlite check` on a valid dataset and on one with every kind of defect."""

import json

import numpy as np
import pytest
from PIL import Image

from detlite.apps.cli.main import main
from detlite.apps.dataset_check.inspection import check_datasets, inspect_dataset, outliers
from detlite.apps.dataset_check.inspection_report import similar_images
from detlite.data import DataError
from detlite.data.datasets.options import DatasetOptions


@pytest.fixture
def content(content):
    """Return the small dataset, with the tight box of its RLE mask."""
    content["annotations"][1]["bbox"] = [0, 0, 10, 40]
    return content


def run_check(*arguments):
    """Run `detlite check` and return its exit status."""
    return main(["check", *map(str, arguments)])


def kinds(found, refused):
    return {(d.kind, d.where) for d in found.defects if d.refused == refused}


def test_valid_dataset_has_no_defects(content, write_set):
    found = inspect_dataset(*write_set(content))
    assert found.defects == []
    assert found.selection.masks
    assert str(found.findings[0]).startswith("crowds (iscrowd 1): 1 of 4 annotations")
    assert found.class_balance() == [("dog", 2, 2), ("cat", 1, 1)]
    assert sum(len(found.rows(number)) for number in range(4)) == 4  # and the crowd
    assert found.prints["known"].all()


@pytest.mark.parametrize("is_rle", [False, True])
def test_masks_of_an_image_with_a_huge_stated_size(content, write_set, is_rle):
    annotation, height, width = content["annotations"][0], 10**9, content["images"][0]["width"]
    file, images = write_set(content)
    content["images"][0]["height"] = height
    annotation["area"] = 1
    if is_rle:
        counts = [5, 10, height * width - 15]
        annotation["segmentation"] = {"size": [height, width], "counts": counts}
    file.write_text(json.dumps(content))
    found = inspect_dataset(file, images)
    assert {(one.kind, one.where[:8]) for one in found.defects} == {("image", "image 10")}


def test_folders_are_converted_and_checked(tmp_path, capsys):
    for name in ("labels", "images", "empty"):
        (tmp_path / name).mkdir()
    for number in range(10):
        Image.new("RGB", (60, 50), (20 * number,) * 3).save(tmp_path / f"images/{number}.png")
        (tmp_path / f"labels/{number}.txt").write_text("0 0.5 0.5 0.2 0.2\n" * (1 + (number == 3)))
    (tmp_path / "data.yaml").write_text("names: [cat]\n")
    assert run_check("--data", tmp_path) == 0
    text = capsys.readouterr().out
    assert str(tmp_path / "detlite/train.json") in text
    assert str(tmp_path / "detlite/val.json") in text
    assert "duplicate: 1" in text
    assert run_check("--data", tmp_path, "INPUT.MIN_AREA", 121) == 1
    assert "has 120 pixels, which INPUT.MIN_AREA ignores" in capsys.readouterr().out
    assert run_check("--data", tmp_path / "empty") == 2
    assert "contains no annotations of a supported format" in capsys.readouterr().err


def test_a_val_file_needs_no_objects(content, write_set, capsys):
    file, folder = write_set(content)
    file.rename(folder / "train.json")
    (folder / "val.json").write_text(json.dumps({**content, "annotations": []}))
    assert run_check("--data", folder) == 0
    assert "They are evaluated as images without objects" in capsys.readouterr().out
    assert run_check("--data", folder / "val.json") == 1
    assert "so it can be evaluated on, but not trained on" in capsys.readouterr().out


@pytest.mark.parametrize("min_area", [0, 90])
def test_specks_are_listed(content, write_set, min_area):
    """The value of `detlite init` decides if INPUT.MIN_AREA is 0: 3 of 23 are specks."""
    valid = {"image_id": 10, "category_id": 7, "segmentation": [[4, 6, 14, 6, 14, 14, 4, 14]]}
    content["annotations"] += [{**valid, "id": 10 + k, "bbox": [4, 6, 10, 8]} for k in range(20)]
    specks = [{**valid, "id": 40 + k, "bbox": [k, 2, 1, 1], "area": 1} for k in range(3)]
    content["annotations"] += [{**row, "segmentation": [[0, 0, 1, 0, 1, 1]]} for row in specks]
    options = DatasetOptions(train=True, background=True, min_area=min_area)
    found = inspect_dataset(*write_set(content), options)
    small = [one for one in found.defects if one.kind == "small object"]
    assert not any(one.refused for one in small)
    assert small[0].box
    ids = {1, *range(10, 30), 40, 41, 42} if min_area else {40, 41, 42}
    assert {int(one.where.split()[1]) for one in small} == ids
    assert ("ignores" if min_area else "sets INPUT.MIN_AREA 4 to ignore it") in small[0].problem
    assert any("INPUT.MIN_AREA" in str(one) for one in found.findings) == bool(min_area)


def broken(content):
    """Add one defect of each kind to a valid dataset."""
    valid = {"image_id": 10, "category_id": 7, "segmentation": [[4, 6, 14, 6, 14, 14, 4, 14]]}
    content["annotations"] += [
        {**valid, "id": 20, "bbox": [44, 6, 10, 8]},
        {**valid, "id": 21, "bbox": [4, 6, 10, 8], "category_id": 99},
        {**valid, "id": 22, "bbox": [4, 6, 10, 8], "image_id": 99},
        {**valid, "id": 23, "bbox": [4, 6, 10, 8]},  # a duplicate of annotation 1
        {**valid, "id": 24, "bbox": [4, 6, 30, 20]},  # does not match its mask
        {**valid, "id": 25, "bbox": [-1, 6, 15.5, 8]},  # overhangs
        {**valid, "id": 26, "bbox": [3, 6, 11, 8], "segmentation": []},
        {**valid, "id": 27, "bbox": [5, 6, 9, 8], "area": 1},
        {**valid, "id": 28, "bbox": [30, 6, 10, 0], "segmentation": []},  # without a known place
    ]
    content["images"] += [
        {"id": 14, "file_name": "gone.png", "height": 9, "width": 9},
        {"id": 15, "file_name": "turned.png", "height": 20, "width": 30},
        {"id": 16, "file_name": "swapped.png", "height": 20, "width": 30},
    ]
    return content


@pytest.fixture
def broken_set(content, write_set):
    annotations, folder = write_set(broken(content))
    (folder / "gone.png").unlink()
    pixels = np.random.default_rng(1).integers(0, 256, (30, 20, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(folder / "turned.png", exif=exif)
    Image.fromarray(pixels).save(folder / "swapped.png")
    return annotations, folder


REFUSED = {
    *(("annotation", f"annotation {number} (image 10)") for number in (20, 21, 26, 28)),
    ("annotation", "annotation 22 (image 99)"),
    ("image", "image 14 (gone.png)"),
    ("image", "image 16 (swapped.png)"),
}
WARNED = {
    ("duplicate", "annotation 23 (image 10)"),
    ("box does not match mask", "annotation 24 (image 10)"),
    ("box does not match mask", "annotation 25 (image 10)"),
    ("area", "annotation 27 (image 10)"),
    ("EXIF orientation", "image 15 (turned.png)"),
}


def test_every_defect_is_reported(broken_set):
    found = inspect_dataset(*broken_set)
    assert kinds(found, True) == REFUSED
    assert kinds(found, False) == WARNED
    problems = {defect.where: defect.problem for defect in found.defects}
    assert "width and height are swapped" in problems["image 16 (swapped.png)"]
    assert problems["annotation 24 (image 10)"].endswith("whose box is [4, 6, 10, 8]")
    found = inspect_dataset(*broken_set, masks=False)
    assert ("annotation", "annotation 26 (image 10)") not in kinds(found, True)


def test_images_that_training_skips_are_warnings(content, write_set):
    annotations, folder = write_set(content)
    (folder / "a.png").unlink()
    data = (folder / "b.png").read_bytes()
    (folder / "b.png").write_bytes(data[:60] + bytes(40) + data[100:])  # only decoding shows it
    found = inspect_dataset(annotations, folder, DatasetOptions(train=True, skip_bad=True))
    refused = {one.image_id: one.refused for one in found.defects if one.kind == "image"}
    assert refused == {10: False, 11: True}


def test_invalid_box_is_computed_from_its_mask(content, write_set):
    content["annotations"][0]["bbox"] = [4, 6, 0, 8]
    content["annotations"][1]["bbox"] = ["a", None]
    found = inspect_dataset(*write_set(content))
    assert not found.refused
    boxes = [found.rows(number)[0]["bbox"] for number in (0, 1)]
    assert boxes == [[4, 6, 10, 8], [0, 0, 10, 40]]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda c: c["images"].append({"id": 10, "file_name": "x"}), ("image entry", "image 10")),
        (lambda c: c["images"].append({"id": 5}), ("image entry", "image 5")),
        (lambda c: c["images"][2].update(height=0), ("image entry", "image 12")),
        (lambda c: c["annotations"].clear(), ("file", "annotations.json")),
    ],
)
def test_invalid_lists_are_reported_and_the_rest_inspected(content, write_set, change, expected):
    annotations, folder = write_set(content)
    change(content)
    annotations.write_text(json.dumps(content))
    found = inspect_dataset(annotations, folder)
    assert expected in kinds(found, True)
    known = found.table.image_ids[found.prints["known"]]
    assert {11, 13} <= {*known.tolist()}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"images": 5}', "nonsense", '{"images": [], "annotations": [5]}'],
)
def test_files_of_other_content(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    found = inspect_dataset(tmp_path / "a.json", tmp_path)
    assert kinds(found, True) == {("file", "a.json")}


def test_unusual_shapes():
    sizes = np.array([(640, 480 + index) for index in range(30)] + [(64, 48), (2700, 300)])
    found = [(index, "aspect" in problem) for index, problem in outliers(sizes)]
    assert found == [(30, False), (31, True)]


def test_duplicates_across_sets(content, write_set):
    first = inspect_dataset(*write_set(content))
    annotations, folder = write_set(content, "other")
    with Image.open(folder / "b.png") as image:
        changed = Image.fromarray(255 - np.asarray(image))
    changed.save(folder / "b.png")
    similar = similar_images([first, inspect_dataset(annotations, folder)])
    found = {kind: pairs.tolist() for kind, pairs in similar.items() if len(pairs)}
    assert found == {"nearly identical images": [[0, number, 1, number] for number in (0, 2, 3)]}


def test_report_page(broken_set, tmp_path, capsys):
    annotations, _ = broken_set
    page = tmp_path / "report.html"
    assert run_check("--data", annotations, "--page", page) == 1
    text, printed = page.read_text(), capsys.readouterr().out
    for kind, where in REFUSED | WARNED:
        assert f"{where}: {kind}: " in printed
        assert where in text
        assert kind in text
    assert "errors that stop training: 7" in printed
    assert text.count("data:image/jpeg;base64,") > 10


def test_config_as_data(content, write_set, tmp_path, capsys):
    write_set(content)
    (tmp_path / "a.yaml").write_text(
        f"DATASETS: {{ROOT: {tmp_path}, TRAIN: [small], TEST: [small], CATALOG: [{{name: small, "
        "annotations: small/annotations.json, images: small/images}]}\n"
    )
    assert run_check("--data", tmp_path / "a.yaml") == 1
    assert "NUM_CLASSES is 81, but the dataset small has 2" in capsys.readouterr().out
    with (tmp_path / "a.yaml").open("a") as file:
        file.write("MODEL: {ROI_BOX_HEAD: {NUM_CLASSES: 3}}\n")
    assert run_check("--data", tmp_path / "a.yaml") == 0
    assert capsys.readouterr().out.count("no errors") == 1


def test_config_by_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # a folder with neither the config nor its data
    assert run_check("--data", "coco/mask_rcnn_R_50_FPN_1x.yaml") == 1
    assert "error: instances_train2017.json: file: cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("none.json", None, "there is no such file"),
        ("empty.yaml", "SEED: 1\n", "DATASETS.TRAIN and DATASETS.TEST are empty"),
        ("coco/none.yaml", None, "or detlite's own configs"),
    ],
)
def test_unusable_arguments(tmp_path, monkeypatch, capsys, name, content, problem):
    monkeypatch.chdir(tmp_path)
    if content:
        (tmp_path / name).write_text(content)
    assert run_check("--data", name) == 2
    assert problem in capsys.readouterr().err


def test_categories_of_both_sets_match_by_name(content, write_set, small_cfg, tmp_path):
    write_set(content)
    first, second = content["categories"]
    first["id"], second["id"] = second["id"], first["id"]
    write_set(content, "other")
    check_datasets(small_cfg("DATASETS.TEST", ("small",)))
    check_datasets(small_cfg("DATASETS.TRAIN", (), "DATASETS.TEST", ("other",)))
    finding = check_datasets(small_cfg("DATASETS.TEST", ("other",)))["other"][-1]
    assert "categories matched by name: " in finding.effect
    first["name"], second["name"] = "owl", "fox"
    (tmp_path / "other/annotations.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"other.annotations.json: its categories are not trained"):
        check_datasets(small_cfg("DATASETS.TEST", ("other",)))
