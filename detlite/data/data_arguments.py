"""The data that a call from Python names, as config keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detlite.config import ConfigError, expand_path

from .errors import DataError
from .index.build import open_index
from .remote.locations import local_copy, location_id, parse_location

FilePath = str | Path
# An annotation file in COCO's form, and the folder of its pictures.
Pair = tuple[FilePath, FilePath]
# Or a folder of any form that `detlite init` knows, or an annotation file whose pictures it finds.
Data = FilePath | Pair


def training_data(data: Data, test_data: Data | None = None) -> tuple[dict[str, Any], str]:
    """The keys of the sets "train" and "test", and how they came about, in a sentence, if asked.

    Of a path that says not what to measure on, one in five pictures is set apart for it, see
    `formats.find_sets`; of a pair nothing is.

    Raises:
        ConfigError: one is neither a path nor a pair of paths, or one is a path, the other a pair.
        DataError: there is no such data, or they cannot be read.
    """
    if not isinstance(data, str | Path):
        train = _pair("data", data)
        test = None if test_data is None else _pair("test_data", test_data)
        return _datasets(train=train, test=test) | _classes(train), ""
    if not (test_data is None or isinstance(test_data, str | Path)):
        raise ConfigError(
            "test_data is a pair, and data is a path: name both as (annotation file, folder of its "
            "pictures), or each by a path"
        )
    from detlite.apps.dataset_formats import find_sets

    found, how = find_sets(
        expand_path(str(data)), None if test_data is None else expand_path(str(test_data))
    )
    pairs = {split: (one.annotations, one.images) for split, one in found.items()}
    keys = _datasets(train=pairs["train"], test=pairs.get("val"))
    return keys | _classes(pairs["train"]), how


def evaluation_data(data: Pair) -> dict[str, Any]:
    """The key of the set "test".

    Raises:
        ConfigError: no pair of paths.
    """
    return _datasets(test=_pair("data", data))


def _pair(name: str, value: Any) -> Pair:
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        first, second = value
        if isinstance(first, str | Path) and isinstance(second, str | Path):
            return first, second
    raise ConfigError(f"{name} is {value!r}: it must be (annotation file, folder of its pictures)")


def _datasets(**sets: Pair | None) -> dict[str, Any]:
    """The keys of sets called "train" and "test"; one that is None is left out."""
    catalog, keys = [], {}
    for name, files in sets.items():
        keys[f"DATASETS.{name.upper()}"] = (name,) if files else ()
        if files:
            annotations, images = map(_address, files)
            catalog.append({"name": name, "annotations": annotations, "images": images})
    return {"DATASETS.CATALOG": catalog, **keys}


def _address(path: FilePath) -> str:
    """A URL, or an absolute path, with `~` and variables as a config may have them."""
    return location_id(parse_location(str(path)))


def _classes(data: Pair) -> dict[str, Any]:
    with local_copy(parse_location(str(data[0]))) as file:
        if not file.is_file():
            raise DataError(f"data: no annotation file {file}")
        count = len(open_index(file).content["categories"]) + 1
    return {f"MODEL.{part}.NUM_CLASSES": count for part in ("ROI_BOX_HEAD", "RETINANET")}
