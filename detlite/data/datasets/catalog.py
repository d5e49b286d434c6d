"""The catalog: locate the datasets that DATASETS.TRAIN and DATASETS.TEST name."""

import difflib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.config.removed import DATASET_TYPES
from detlite.data.images.sources import ImageFolder
from detlite.data.locations import Location, parse_location
from detlite.data.remote.remote_path import RemotePath
from detlite.files.atomic_write import write_json
from detlite.files.errors import DataError
from detlite.registry import Registry
from detlite.structures.object_fields import OBJECT_FIELDS

from .builtin_entries import BUILTIN, Entry
from .options import GIGABYTE

logger = logging.getLogger(__name__)

DATASETS: Registry[Callable[[Entry, Any], tuple[Location, ImageFolder]]] = Registry(
    "dataset type",
    on_demand={
        "cityscapes": "detlite.data.datasets.cityscapes",
        "shapes": "detlite.data.datasets.synthetic",
        "voc": "detlite.apps.dataset_formats.voc_xml",
    },
)
"""Types of catalog entries. `@DATASETS.register("mine")` adds a function of an entry and the folder
DATASETS.ROOT. It locates or creates the dataset and returns (annotation file, image folder).
"""

_REMOTE_TYPES = ("coco", "lvis")  # accept a URL as DATASETS.ROOT


def locate_dataset(cfg: CfgNode, name: str) -> tuple[str, Location, ImageFolder]:
    """Return the type, the annotation file and the image folder of a dataset."""
    entry = _catalog_entry(cfg.DATASETS.CATALOG, name)
    kind = entry.get("type", "coco")
    if kind in DATASET_TYPES:
        raise ConfigError(
            f"DATASETS.CATALOG, {name}: the type {kind} was removed: {DATASET_TYPES[kind]}"
        )
    locate = DATASETS.get(kind, key=f"DATASETS.CATALOG, {name}, type")
    root = parse_location(cfg.DATASETS.ROOT)
    if not isinstance(root, Path) and kind not in _REMOTE_TYPES:
        raise ConfigError(
            f"DATASETS.CATALOG, {name}: datasets of type {kind!r} need a local folder as "
            f"DATASETS.ROOT, not {root}"
        )
    annotations, images = locate(entry, root)
    if isinstance(images, RemotePath):
        images = replace(images, cache_bytes=int(cfg.DATASETS.CACHE_GB * GIGABYTE))
    return kind, annotations, images


def listed_names(cfg: CfgNode, name: str, key: str, default: Sequence[str] = ()) -> Sequence[str]:
    """Return the names that an entry lists as `key`, such as its `evaluators` or `fields`."""
    entries = [entry for entry in cfg.DATASETS.CATALOG if entry["name"] == name]
    names: Any = entries[0].get(key, default) if entries else default
    if not isinstance(names, list | tuple) or not all(isinstance(part, str) for part in names):
        raise ConfigError(
            f"DATASETS.CATALOG, {name}, {key} is {names!r}, but must be a list of names"
        )
    return names


def object_fields(cfg: CfgNode, name: str) -> tuple[str, ...]:
    """Return the `fields` of a dataset: the own fields of its objects. Raises ConfigError."""
    names, where = listed_names(cfg, name, "fields"), f"DATASETS.CATALOG, {name}, fields"
    for field in names:
        if OBJECT_FIELDS.get(field, where)(field).shape is None:
            raise ConfigError(f"{where}: {field!r} has no shape, so targets cannot have it")
    return tuple(names)


def converted_file(root: Path, name: str, convert: Callable[[], dict[str, Any]]) -> Path:
    """Return `<DATASETS.ROOT>/converted/<name>.json`; write the result of `convert` if missing."""
    file = root / "converted" / f"{name}.json"
    if file.is_file():
        return file
    content = {**convert(), "converted": True}  # one of several splits
    write_json(file, content)
    logger.info("%s: converted %d images to %s", name, len(content["images"]), file)
    return file


def require(path: Path, name: str) -> Path:
    """Return `path`; raise DataError if it does not exist. `name` is the name of the dataset."""
    if not path.exists():
        raise DataError(
            f"dataset {name}: {path} does not exist. Put it there, or set DATASETS.ROOT to the "
            "folder that contains it"
        )
    return path


@DATASETS.register("coco", "lvis")
def coco_files(entry: Entry, root: Location) -> tuple[Location, Location]:
    """`{name, annotations: file, images: folder}`: URLs or paths relative to `root`."""
    check_fields(entry, {"annotations": str, "images": str})
    return parse_location(entry["annotations"], root), parse_location(entry["images"], root)


def check_fields(entry: Entry, fields: dict[str, type]) -> None:
    """Raise ConfigError if a catalog entry has other fields, or values of other types."""
    where = f"DATASETS.CATALOG, {entry['name']}"
    for field, kind in fields.items():
        if field not in entry:
            raise ConfigError(f"{where}: {field!r} is missing; required: {', '.join(fields)}")
        if type(entry[field]) is not kind:
            raise ConfigError(
                f"{where}: {field!r} is {entry[field]!r}, but must be a {kind.__name__}"
            )
    for field in entry:
        if field not in ("name", "type", "evaluators", "fields", *fields):
            hint = _did_you_mean(field, fields)
            raise ConfigError(f"{where}: unknown field {field!r}{hint}")


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _catalog_entry(catalog: Sequence[Entry], name: str) -> Entry:
    entries = [entry for entry in catalog if entry["name"] == name]
    if len(entries) > 1:
        raise ConfigError(f"DATASETS.CATALOG: {len(entries)} entries have the name {name!r}")
    if entries:
        return entries[0]
    if name in BUILTIN:
        return BUILTIN[name]
    names = [entry["name"] for entry in catalog]
    hint = _did_you_mean(name, [*names, *BUILTIN])
    known = f"known: {', '.join(names)}" if names else "the catalog is empty"
    raise ConfigError(
        f"DATASETS.CATALOG: there is no dataset {name!r}{hint} ({known}, and the built-in names "
        "in docs/data.md)"
    )
