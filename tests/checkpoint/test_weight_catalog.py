"""Names of weights, and their files."""

from pathlib import Path

import pytest

from detlite.checkpoint.loading import weight_file
from detlite.checkpoint.weight_catalog import find_weights
from detlite.config import ConfigError, load_config

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
def test_existing_file(name, relative, tmp_path):
    file = tmp_path / relative
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    assert weight_file(_config(name, tmp_path)) == file


@pytest.fixture
def downloads(monkeypatch):
    """Record downloads (url, file, digits of its SHA-256) instead of making them."""
    recorded = []

    def record(url, file, sha256=""):
        recorded.append((url, file, sha256))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    monkeypatch.setattr("detlite.checkpoint.weight_catalog.download", record)
    return recorded


@pytest.mark.parametrize(("name", "relative"), _NAMES)
def test_missing_file_is_downloaded_once(name, relative, tmp_path, downloads):
    for _ in range(2):
        assert weight_file(_config(name, tmp_path)) == tmp_path / relative
    assert [file for _, file, _ in downloads] == [tmp_path / relative]


@pytest.mark.parametrize(
    ("name", "url"),
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
def test_urls_of_names(name, url, tmp_path, downloads):
    weight_file(_config(name, tmp_path))
    assert downloads[0][0] == f"https://dl.fbaipublicfiles.com{url}"


def test_hash_in_a_url(tmp_path, downloads):
    url = "https://host.example/w.pth?a=b"
    assert weight_file(_config(f"{url}#sha256=ABC12345", tmp_path)) == tmp_path / "w.pth"
    assert downloads == [(url, tmp_path / "w.pth", "abc12345")]


def test_hash_in_a_name_of_openmmlab(tmp_path, downloads):
    url = "https://download.openmmlab.com/mmdetection/v2.0/a/b_1x_coco_20200205-d4b0c5d6.pth"
    file = tmp_path / "b_1x_coco_20200205-d4b0c5d6.pth"
    assert weight_file(_config(url, tmp_path)) == file
    assert downloads == [(url, file, "d4b0c5d6")]
    elsewhere = "https://host.example/c-d4b0c5d6.pth"
    weight_file(_config(elsewhere, tmp_path))
    assert downloads[1] == (elsewhere, tmp_path / "c-d4b0c5d6.pth", "")


def test_torchvision_cache(tmp_path, downloads, monkeypatch):
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    file = tmp_path / "checkpoints" / "resnet18-f37072fd.pth"
    assert weight_file(_config("torchvision://ResNet18_Weights.IMAGENET1K_V1")) == file
    url = "https://download.pytorch.org/models/resnet18-f37072fd.pth"
    assert downloads == [(url, file, "f37072fd")]


def test_failed_download(tmp_path):
    name = "http://host.invalid/w.pth"
    with pytest.raises(ConfigError) as error:
        weight_file(_config(name, tmp_path))
    assert str(error.value).startswith(f"weights {name}: {name}: cannot be read (host not found")
    assert f"put the file at {tmp_path / 'w.pth'}" in str(error.value)


URL, PLANTED = "https://host.invalid/w.pth", "#sha256=00000000"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([f"{URL}#{part}" for part in ("md5=0123456789", "egg", "sha256=", "sha256=xyz12345")],
         "expected #sha256=<8 to 64 digits>"),
        ([f"torchvision://{name}" for name in ("ResNet18", "ResNet18_Weights.NONE", "No.V1")],
         r"torchvision has no weights of this name\. Use .* ResNet50_We"),
        (["catalog://R-50", "catalog://Caffe2Detectron/COCO/1/own"],
         r"no file .*\.pkl, and its URL is unknown"),
        (["s3://b/c"], "s3://b/c: must be a path, or start with one of catalog:"),
        ([URL + PLANTED], "SHA-256 of the content starts with"),
    ],
)  # fmt: skip
def test_unknown_names(names, message, tmp_path):
    (tmp_path / "w.pth").write_bytes(b"planted")
    for name in names:
        with pytest.raises(ConfigError, match=message):
            find_weights(name, str(tmp_path))


@pytest.mark.parametrize(
    "name",
    [
        "detectron2://../../outside.pkl", "detectron2:///etc/outside.pkl", "catalog://a/../../b",
        "hf://owner/name/../../file.pth", "https://host/a%00b.pth", "http://host/a%0Ab.pth",
        "catalog://" + 300 * "n", "https://[::1/w.pth", "http://host:port/w.pth", "https://me:secret@host/w.pth?key=secret",
    ],
)  # fmt: skip
def test_names_of_no_file(name, tmp_path):
    with pytest.raises(ConfigError, match=r"^weights \w+://") as error:
        find_weights(name, str(tmp_path / "root"))
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)
    assert not {path.name for path in tmp_path.iterdir()} - {"root"}


def test_environment_variables_in_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_FOLDER", str(tmp_path))
    (tmp_path / "a.pth").touch()
    cfg = _config("https://host.example/a.pth", "${SOME_FOLDER:-nowhere}")
    assert weight_file(cfg) == tmp_path / "a.pth"
    assert weight_file(_config("$SOME_FOLDER/b.pth")) == tmp_path / "b.pth"
    assert weight_file(_config("b.pth")) == Path("b.pth")
