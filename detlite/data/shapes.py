"""A generated data set of overlapping shapes, see `shape_scenes.py`."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..config import ConfigError
from .catalog import DATASETS, Entry, check_fields
from .errors import DataError
from .shape_scenes import CATEGORIES, draw_scene

_VERSION = 2  # part of the folder's name: raise it with any change of the pictures


@DATASETS.register("shapes")
def shapes_files(entry: Entry, root: Path) -> tuple[Path, Path]:
    """A generated set: `{name, type: shapes, path: folder, split: train, images: 400, seed: 1}`.

    It is written under `root / path` when it is first asked for; splits with the same seed have
    different pictures.

    Raises:
        ConfigError: a field of the entry is missing, unknown or impossible.
    """
    check_fields(entry, {"path": str, "split": str, "images": int, "seed": int})
    if entry["images"] < 1 or entry["seed"] < 0:
        raise ConfigError(
            f"DATASETS.CATALOG, {entry['name']}: images must be at least 1 and seed at least 0, "
            f"not {entry['images']} and {entry['seed']}"
        )
    if not entry["split"].isidentifier():
        raise ConfigError(
            f"DATASETS.CATALOG, {entry['name']}: split is {entry['split']!r}, but must be a word"
        )
    folder = generate_shapes(root / entry["path"], entry["split"], entry["images"], entry["seed"])
    return folder / "annotations.json", folder / "images"


def generate_shapes(path: Path, split: str, images: int, seed: int) -> Path:
    """Writes a set of pictures and COCO annotations, unless it is there already.

    The same arguments give the same bytes. A set appears as a whole or not at all, also when
    several processes write it at once.

    Args:
        path: folder of all sets.
        split: name of the set; part of the seed.
        images: number of pictures.
        seed: of everything random.

    Returns:
        The set's folder, with `annotations.json` and `images/`.

    Raises:
        DataError: the folder cannot be written.
    """
    folder = path / f"{split}-{images}-seed{seed}-v{_VERSION}"
    if folder.is_dir():
        return folder
    try:
        path.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{split}-", dir=path))
        try:
            _write(unfinished, split, images, seed)
            unfinished.chmod(0o755)  # mkdtemp's folders are private
            os.rename(unfinished, folder)
        except OSError:
            # Another process has finished the same set first: as good as this one.
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise DataError(f"{path}: the shapes cannot be written ({error.strerror})") from error
    return folder


def _write(folder: Path, split: str, images: int, seed: int) -> None:
    (folder / "images").mkdir()
    content: dict[str, Any] = {
        "info": {"description": "detlite shapes", "version": _VERSION},
        "categories": [{"id": number, "name": name} for number, name in CATEGORIES.items()],
        "images": [],
        "annotations": [],
    }
    for index in range(images):
        rng = np.random.default_rng((seed, zlib.crc32(split.encode()), index))
        pixels, annotations = draw_scene(rng)
        file_name = f"{index + 1:06d}.png"
        Image.fromarray(pixels).save(folder / "images" / file_name)
        height, width = pixels.shape[:2]
        content["images"].append(
            {"id": index + 1, "file_name": file_name, "height": height, "width": width}
        )
        for annotation in annotations:
            number = len(content["annotations"]) + 1
            content["annotations"].append({"id": number, "image_id": index + 1, **annotation})
    (folder / "annotations.json").write_text(json.dumps(content))
