"""Names and addresses of published weights mean files under MODEL.WEIGHT_ROOT."""

from __future__ import annotations

from pathlib import Path

import pytest

from detlite.config import ConfigError, load_config
from detlite.conversion import weight_file

_NAMES = [
    ("catalog://ImageNetPretrained/MSRA/R-50", "ImageNetPretrained/MSRA/R-50.pkl"),
    (
        "catalog://ImageNetPretrained/FAIR/20171220/X-101-32x8d",
        "ImageNetPretrained/FAIR/20171220/X-101-32x8d.pkl",
    ),
    (
        "catalog://Caffe2Detectron/COCO/35857345/e2e_faster_rcnn_R-50-FPN_1x",
        "Caffe2Detectron/COCO/35857345/e2e_faster_rcnn_R-50-FPN_1x.pkl",
    ),
    (
        "catalog://Caffe2Detectron/COCO/37129812/e2e_mask_rcnn_X-152-32x8d-FPN-IN5k_1.44x",
        "Caffe2Detectron/COCO/37129812/e2e_mask_rcnn_X-152-32x8d-FPN-IN5k_1.44x.pkl",
    ),
    ("detectron2://ImageNetPretrained/MSRA/R-50.pkl", "ImageNetPretrained/MSRA/R-50.pkl"),
    ("https://host.example/a/b/weights.pth?download=1", "weights.pth"),
    ("http://host.example/a%20b.pth", "a b.pth"),
]


def _config(weight: str, root: Path | str = "weights"):
    return load_config(None, ["MODEL.WEIGHT", weight, "MODEL.WEIGHT_ROOT", str(root)])


@pytest.mark.parametrize(("name", "relative"), _NAMES)
def test_name_is_a_file_under_the_root(name, relative, tmp_path):
    file = tmp_path / relative
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    assert weight_file(_config(name, tmp_path)) == file


@pytest.mark.parametrize(("name", "relative"), _NAMES)
def test_missing_file_is_named_with_its_place(name, relative, tmp_path):
    with pytest.raises(ConfigError) as error:
        weight_file(_config(name, tmp_path))
    assert f"MODEL.WEIGHT {name}: no file {tmp_path / relative}; it is published at " in str(
        error.value
    )


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("catalog://ImageNetPretrained/MSRA/R-101", "/detectron/ImageNetPretrained/MSRA/R-101.pkl"),
        (
            "catalog://ImageNetPretrained/MSRA/R-50-GN",
            "/detectron/ImageNetPretrained/47261647/R-50-GN.pkl",
        ),
        (
            "catalog://Caffe2Detectron/COCO/37697547/e2e_keypoint_rcnn_R-50-FPN_1x",
            "/detectron/37697547/12_2017_baselines/e2e_keypoint_rcnn_R-50-FPN_1x.yaml."
            "08_42_54.kdzV35ao/output/train/keypoints_coco_2014_train%3A"
            "keypoints_coco_2014_valminusminival/generalized_rcnn/model_final.pkl",
        ),
        (
            "detectron2://COCO-Detection/faster_rcnn_R_50_FPN_3x/137849458/model_final_280758.pkl",
            "/detectron2/COCO-Detection/faster_rcnn_R_50_FPN_3x/137849458/model_final_280758.pkl",
        ),
    ],
)
def test_missing_file_is_told_its_address(name, address, tmp_path):
    with pytest.raises(ConfigError) as error:
        weight_file(_config(name, tmp_path))
    assert f"published at https://dl.fbaipublicfiles.com{address}. Put" in str(error.value)


@pytest.mark.parametrize("name", ["catalog://R-50", "catalog://Caffe2Detectron/COCO/1/own"])
def test_unknown_catalog_name(name, tmp_path):
    with pytest.raises(ConfigError, match=r"no file .*\.pkl; it is in no catalog known here"):
        weight_file(_config(name, tmp_path))


def test_unknown_kind_of_name():
    with pytest.raises(ConfigError, match=r"s3://b/c, but must be a path, or start with catalog:"):
        weight_file(_config("s3://b/c"))


def test_root_and_plain_paths_may_name_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_FOLDER", str(tmp_path))
    (tmp_path / "a.pth").touch()
    cfg = _config("https://host.example/a.pth", "${SOME_FOLDER:-nowhere}")
    assert weight_file(cfg) == tmp_path / "a.pth"
    assert weight_file(_config("$SOME_FOLDER/b.pth")) == tmp_path / "b.pth"
    assert weight_file(_config("b.pth")) == Path("b.pth")
