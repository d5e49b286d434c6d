"""The catalog: locate the datasets that DATASETS.TRAIN and DATASETS.TEST name."""

import difflib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.data.images.sources import ImageFolder
from detlite.data.locations import Location, parse_location
from detlite.files.atomic_write import write_file
from detlite.files.errors import DataError
from detlite.registry import Registry

from .options import GIGABYTE

logger = logging.getLogger(__name__)

Entry = dict[str, Any]

DATASETS: Registry[Callable[[Entry, Any], tuple[Location, ImageFolder]]] = Registry(
    "dataset type",
    on_demand={
        "cityscapes": "detlite.data.datasets.cityscapes",
        "shapes": "detlite.data.datasets.synthetic",
        "voc": "detlite.apps.dataset_formats.voc_xml",
        "webdataset": "detlite.apps.shards.dataset",
    },
)
"""Types of catalog entries. `@DATASETS.register("mine")` adds a function of an entry and the folder
DATASETS.ROOT. It locates or creates the dataset and returns (annotation file, image folder).
"""

_REMOTE_TYPES = ("coco", "lvis", "webdataset")  # accept a URL as DATASETS.ROOT


def locate_dataset(cfg: CfgNode, name: str) -> tuple[str, Location, ImageFolder]:
    """Return the type, the annotation file and the image folder of a dataset."""
    entry = _catalog_entry(cfg.DATASETS.CATALOG, name)
    kind = entry.get("type", "coco")
    locate = DATASETS.get(kind, key=f"DATASETS.CATALOG, {name}, type")
    root = parse_location(cfg.DATASETS.ROOT)
    if not isinstance(root, Path) and kind not in _REMOTE_TYPES:
        raise ConfigError(
            f"DATASETS.CATALOG, {name}: datasets of type {kind!r} need a local folder as "
            f"DATASETS.ROOT, not {root}"
        )
    annotations, images = locate(entry, root)
    if not isinstance(images, Path):
        images = replace(images, cache_bytes=int(cfg.DATASETS.CACHE_GB * GIGABYTE))
    return kind, annotations, images


def converted_file(root: Path, name: str, convert: Callable[[], dict[str, Any]]) -> Path:
    """Return `<DATASETS.ROOT>/converted/<name>.json`; write the result of `convert` if missing."""
    file = root / "converted" / f"{name}.json"
    if file.is_file():
        return file
    content = {**convert(), "converted": True}  # one of several splits
    write_file(file, json.dumps(content).encode())
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
        if field not in ("name", "type", "evaluators", *fields):
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


VOC_CATEGORIES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
# COCO splits: image folder, and the end of the annotation file's name.
_COCO_SPLITS = {
    "2014_train": ("train2014", "train2014"),
    "2014_val": ("val2014", "val2014"),
    "2014_minival": ("val2014", "minival2014"),
    "2014_minival_100": ("val2014", "minival2014_100"),
    "2014_valminusminival": ("val2014", "valminusminival2014"),
    "2017_train": ("train2017", "train2017"),
    "2017_val": ("val2017", "val2017"),
    "2017_val_100": ("val2017", "val2017_100"),
}


def _coco(name: str, annotations: str, images: str) -> Entry:
    return {"name": name, "annotations": annotations, "images": images}


def _builtin_entries() -> Iterator[Entry]:
    for prefix, task in (("", "instances"), ("keypoints_", "person_keypoints")):
        for split, (folder, file) in _COCO_SPLITS.items():
            annotations = f"coco/annotations/{task}_{file}.json"
            yield _coco(f"{prefix}coco_{split}", annotations, f"coco/{folder}")
    for year, splits in ((2007, ("train", "val", "test")), (2012, ("train", "val"))):
        for split in splits:
            annotations = f"voc/VOC{year}/Annotations/pascal_{split}{year}.json"
            yield _coco(f"voc_{year}_{split}_cocostyle", annotations, f"voc/VOC{year}/JPEGImages")
    for split in ("train", "val", "test"):
        annotations = f"cityscapes/annotations/instancesonly_filtered_gtFine_{split}.json"
        name = f"cityscapes_fine_instanceonly_seg_{split}_cocostyle"
        yield _coco(name, annotations, "cityscapes/images")
    lvis = ("train", "val", "val_rand_100", "train_cocofied", "val_cocofied")
    for part in (*(f"v0.5_{split}" for split in lvis), "v1_train", "v1_val"):
        yield {**_coco(f"lvis_{part}", f"lvis/lvis_{part}.json", "coco"), "type": "lvis"}
    for year in (2007, 2012):
        for split in ("train", "val", "trainval", "test"):
            entry = {"type": "voc", "folder": f"voc/VOC{year}", "split": split}
            yield {"name": f"voc_{year}_{split}", **entry}
    city = {"type": "cityscapes", "folder": "cityscapes"}
    # names of maskrcnn-benchmark: ten categories
    for form in ("poly", "mask"):
        for prefix, split, limit in (("", "train", 0), ("", "val", 0), ("mini", "val", 10)):
            name = f"cityscapes_{form}_instance_{prefix}{split}"
            yield {"name": name, **city, "split": split, "form": form, "most": limit, "all": True}
    # names of detectron2: the eight evaluated categories
    for split in ("train", "val"):
        name = f"cityscapes_fine_instance_seg_{split}"
        yield {"name": name, **city, "split": split, "form": "mask", "most": 0, "all": False}


# Entries of the names that published configs use. DATASETS.CATALOG takes precedence.
# Folders under DATASETS.ROOT have the layout of maskrcnn-benchmark and detectron2.
BUILTIN: dict[str, Entry] = {entry["name"]: entry for entry in _builtin_entries()}
