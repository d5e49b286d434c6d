"""Folders of images: local ones, URLs, and archives that applications implement, such as shards."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .loading.image_readers import StoredImage
from .remote.locations import RemotePath


@dataclass(frozen=True)
class ImageArchive(ABC):
    """Images inside of larger files, used like a folder of images."""

    name: str  # for messages
    cache_bytes: int = field(default=0, kw_only=True)  # limit of the cache for remote files

    @property
    @abstractmethod
    def id(self) -> str:
        """A text that identifies the images and their versions."""

    @abstractmethod
    def image(self, entry: dict[str, Any]) -> StoredImage:
        """Return the image of an entry in the annotation file."""


ImageFolder = Path | RemotePath | ImageArchive


def image_file_of(folder: ImageFolder, entry: dict[str, Any]) -> Path | StoredImage:
    """Return the image of an entry in the annotation file."""
    if isinstance(folder, ImageArchive):
        return folder.image(entry)
    return folder / entry["file_name"]
