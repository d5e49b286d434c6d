"""Where published weights lie on disk: the files that `catalog://` and web addresses stand for.

Nothing is downloaded. A name of maskrcnn-benchmark's or detectron2's catalog, or an address, means
a file under MODEL.WEIGHT_ROOT:

    catalog://ImageNetPretrained/MSRA/R-50  ->  <root>/ImageNetPretrained/MSRA/R-50.pkl
    detectron2://COCO-Detection/.../model_final_280758.pkl  ->  <root>/COCO-Detection/.../...
    https://host/any/path/file.pth  ->  <root>/file.pth, as torch.hub keeps it
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from yacs.config import CfgNode

from ..config import ConfigError, expand_path

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


def weight_file(cfg: CfgNode) -> Path:
    """The file that MODEL.WEIGHT names; a plain path is taken as it is.

    Raises:
        ConfigError: a name without its file (the message says which file is expected where), or an
            unknown kind of name.
    """
    name = cfg.MODEL.WEIGHT
    scheme, separator, rest = name.partition("://")
    if not separator:
        return expand_path(name)
    if scheme == "catalog":
        relative, address = f"{rest}.pkl", _catalog_address(rest)
    elif scheme == "detectron2":
        relative, address = rest, f"{_HOST}/detectron2/{rest}"
    elif scheme in ("http", "https"):
        relative, address = Path(unquote(urlsplit(name).path)).name, name
    else:
        raise ConfigError(
            f"MODEL.WEIGHT is {name}, but must be a path, or start with catalog://, detectron2:// "
            "or https://"
        )
    file = expand_path(cfg.MODEL.WEIGHT_ROOT) / relative
    if not file.is_file():
        origin = f"it is published at {address}" if address else "it is in no catalog known here"
        raise ConfigError(
            f"MODEL.WEIGHT {name}: no file {file}; {origin}. Put the file there, set "
            "MODEL.WEIGHT_ROOT to the folder that holds it, or MODEL.WEIGHT to its path"
        )
    return file


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
