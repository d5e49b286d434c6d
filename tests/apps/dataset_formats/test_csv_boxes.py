"""Test reading CSV files of boxes."""

import pytest

from detlite.apps.dataset_formats.find_annotations import read_folder
from tests.apps.dataset_formats.reading import check_refused, read_as, read_set

TENSORFLOW = "filename,width,height,class,xmin,ymin,xmax,ymax\n"


@pytest.mark.parametrize(
    "lines",
    [
        TENSORFLOW + "a.png,60,40,cat,10,5,30,25\na.png,60,40,dog,1,1,9,9\n",
        "image_id,width,height,bbox,class_name\na,60,40,\"[10.0, 5, 20, 20]\",cat\n"
        "a,60,40,\"[1,1,8,8]\",dog\nb,60,40,,\n",
        "image_id;class_id;class_name;x_min;y_min;x_max;y_max\n"
        "a;0;cat;10;5;30;25\na;1;dog;1;1;9;9\nb;2;nothing;nan;NaN;nan;nan\n",
        "\ufeffimage,x,y,width,height,label\nphotos/a.png,10,5,20,20,cat\nphotos/a.png,1,1,8,8,dog\n",
        "path\tx1\ty1\tx2\ty2\tclass\n/data/a.png\t30\t25\t10\t5\tcat\n/data/a.png\t1\t1\t9\t9\tdog\n",
    ],
)  # fmt: skip
def test_layouts(tmp_path, image, text, lines):
    for name in ("a", "b"):
        image(tmp_path / f"photos/{name}.png")
    text(tmp_path / "labels.csv", lines)
    splits = read_as("CSV of boxes", tmp_path)
    objects = [(obj.category, obj.box) for one in splits["train"].images for obj in one.objects]
    assert objects == [("cat", (10, 5, 20, 20)), ("dog", (1, 1, 8, 8))]
    assert splits["train"].categories == ["cat", "dog"]
    assert len(splits["train"].images) == 1 + ("\nb" in lines)


def test_splits_by_the_names_of_files(tmp_path, image, text):
    for split in ("train", "test", "val"):
        image(tmp_path / f"images/{split}.png")
        text(tmp_path / f"{split}_labels.csv", f"image,xmin,ymin,xmax,ymax\n{split}.png,1,1,9,9\n")
    _, splits = read_folder(tmp_path)
    assert {name: one.images[0].file.stem for name, one in splits.items()} == {
        "train": "train", "val": "val",
    }  # fmt: skip
    assert splits["train"].categories == ["object"]
    assert "images of the test set: 1 image" in "".join(map(str, splits["train"].findings))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("a.png,60,40,cat,10,5,30\n", "line 2: its box is .*, not four numbers"),
        ("a.png,60,40,cat,x,5,30,25\n", "line 2: its box is .*, not four numbers"),
        ("a.png,60,40,,10,5,30,25\n", "line 2: has no label"),
        ("b.png,60,40,cat,10,5,30,25\n", r"its image 'b\.png' is not in .*--images"),
        ("a.png,40,60,cat,10,5,30,25\n", "its size is 40x60"),
        ("a.png,60,40,cat,70,5,90,25\n", "line 2: bbox .* is outside the 60x40 image"),
    ],
)
def test_invalid_lines(tmp_path, image, text, line, problem):
    image(tmp_path / "a.png")
    file = text(tmp_path / "labels.csv", TENSORFLOW + line)
    check_refused(tmp_path, problem, file=None if "line 2" in problem else file)


def test_a_table_with_other_columns_is_not_read(tmp_path, image, text):
    image(tmp_path / "a.png")
    text(tmp_path / "labels.csv", TENSORFLOW + "a.png,60,40,cat,10,5,30,25\n")
    text(tmp_path / "sample_submission.csv", "image_id,PredictionString\na,1 2 3 4\n")
    assert len(read_set(tmp_path).images) == 1
