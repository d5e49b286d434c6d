"""Turn the `data` arguments of `detlite.train` and `detlite.evaluate` into config keys."""

from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.config import ConfigError, expand_path
from detlite.data.annotations.store import open_table
from detlite.data.locations import local_copy, location_id, parse_location
from detlite.files.errors import DataError

from .find_annotations import find_sets

FilePath = str | Path
# An annotation file in COCO format, and the folder of its images.
Pair = tuple[FilePath, FilePath]
# A pair, or a folder or annotation file that `detlite init --data` accepts.
Data = FilePath | Pair


def training_data(
    data: Data, test_data: Data | None = None, **options: Any
) -> tuple[dict[str, Any], str]:
    """Return the config keys of the datasets "train" and "test", and for a path its summary.

    If a path contains no test set, one in five images is split off as one, see
    `dataset_formats.find_sets`, also for the options. Pairs are not split. Raises ConfigError or
    DataError.
    """
    if not isinstance(data, str | Path):
        train = _pair("data", data)
        test = None if test_data is None else _pair("test_data", test_data)
        return _dataset_keys(train=train, test=test) | _class_keys(train), ""
    if not (test_data is None or isinstance(test_data, str | Path)):
        raise ConfigError(
            "test_data is a pair, but data is a path: give both as (annotation file, image "
            "folder), or both as paths"
        )
    test_path = None if test_data is None else expand_path(str(test_data))
    if images := options.pop("images", None):
        options["images"] = expand_path(str(images))
    sources, summary = find_sets(expand_path(str(data)), test_path, **options)
    pairs = {split: (source.annotations, source.images) for split, source in sources.items()}
    keys = _dataset_keys(train=pairs["train"], test=pairs.get("val"))
    return keys | _class_keys(pairs["train"]), summary


def evaluation_data(data: Pair) -> dict[str, Any]:
    """Return the config keys of the dataset "test"."""
    return _dataset_keys(test=_pair("data", data))


def keep_entry_options(keys: dict[str, Any], datasets: CfgNode) -> None:
    """Give the datasets in `keys` the `fields` and `evaluators` of those that they replace.

    Args:
        keys: config keys of "train" and "test", which are changed in place.
        datasets: the section DATASETS of the config that they override.
    """
    for entry in keys["DATASETS.CATALOG"]:
        for replaced in datasets.CATALOG:
            if replaced["name"] in datasets[entry["name"].upper()]:
                options = ("fields", "evaluators")
                entry |= {option: replaced[option] for option in options if option in replaced}


def _pair(name: str, value: Any) -> Pair:
    if isinstance(value, (tuple, list)) and len(value) == 2:
        first, second = value
        if isinstance(first, str | Path) and isinstance(second, str | Path):
            return first, second
    raise ConfigError(f"{name} is {value!r}: it must be (annotation file, image folder)")


def _dataset_keys(**sets: Pair | None) -> dict[str, Any]:
    catalog, keys = [], {}
    for name, files in sets.items():
        keys[f"DATASETS.{name.upper()}"] = (name,) if files else ()
        if files:
            annotations, images = (location_id(parse_location(str(path))) for path in files)
            catalog.append({"name": name, "annotations": annotations, "images": images})
    return {"DATASETS.CATALOG": catalog, **keys}


def _class_keys(data: Pair) -> dict[str, Any]:
    with local_copy(parse_location(str(data[0]))) as file:
        if not file.is_file():
            raise DataError(f"data: the annotation file {file} does not exist")
        count = len(open_table(file).content["categories"]) + 1
    return {f"MODEL.{part}.NUM_CLASSES": count for part in ("ROI_BOX_HEAD", "RETINANET")}
