"""From the names in DATASETS.TRAIN and DATASETS.TEST to data sets."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.conventions import convention_of
from detlite.data.errors import DataError
from detlite.data.remote.paths import GIGABYTE, Location, Remote, place
from detlite.data.remote.shards import Folder, ShardFolder
from detlite.registry import Registry

from .builtin_catalog import BUILTIN
from .coco import CocoDataset, Target

logger = logging.getLogger(__name__)

Entry = dict[str, Any]

DATASETS: Registry[Callable[[Entry, Any], tuple[Location, Folder]]] = Registry("data set type")
"""Types of catalog entries. `@DATASETS.register("mine")` adds a function that is given the entry
and the folder DATASETS.ROOT, makes or finds the set, and returns (annotation file, image folder).
"""

_AT_URLS = ("coco", "lvis", "webdataset")  # types that take a DATASETS.ROOT that is a URL


class JoinedDataset(ConcatDataset[tuple[Tensor, Target]]):
    """Several data sets with the same categories as one.

    Raises:
        DataError: the categories differ.
    """

    def __init__(self, datasets: Sequence[CocoDataset]) -> None:
        super().__init__(datasets)
        first = datasets[0]
        known = {(row["id"], row["name"]) for row in first.categories}
        for other in datasets[1:]:
            if other.keypoint_names != first.keypoint_names:
                raise DataError(
                    f"{other.annotation_file}: has other keypoints than {first.annotation_file}"
                )
            difference = known ^ {(row["id"], row["name"]) for row in other.categories}
            if difference:
                number, name = min(difference)
                raise DataError(
                    f"{other.annotation_file}: has other categories than "
                    f"{first.annotation_file}: {number} ({name!r}) is in one of the two only; "
                    "data sets that are trained on together need the same ids and names"
                )
        self.parts = datasets
        self.name = " + ".join(dataset.name for dataset in datasets)
        self.categories = first.categories
        self.keypoint_names = first.keypoint_names

    @property
    def aspect_ratios(self) -> list[float]:
        """Width / height of each image, as a new list."""
        return [ratio for dataset in self.parts for ratio in dataset.aspect_ratios]

    @property
    def shards(self) -> np.ndarray | None:
        """Which shard each image is in, as of a CocoDataset; a picture that is a file is one."""
        found = [dataset.shards for dataset in self.parts]
        if all(one is None for one in found):
            return None
        first, joined = 0, []
        for dataset, one in zip(self.parts, found, strict=True):
            joined.append(first + (np.arange(len(dataset)) if one is None else one))
            first = int(joined[-1][-1]) + 1
        return np.concatenate(joined)


def build_dataset(cfg: CfgNode, name: str, train: bool) -> CocoDataset:
    """The data set that DATASETS.CATALOG, or else the built-in catalog, lists under `name`.

    For training (`train`) it has masks, if MODEL.MASK_ON, and no images that teach nothing;
    those without any annotation only under DATASETS.BACKGROUND_PICTURES.

    Raises:
        ConfigError: no or no sound entry of that name, or no file of its proposals.
        DataError: the data set is missing or broken.
    """
    kind, annotations, images = locate_dataset(cfg, name)
    if isinstance(annotations, Path) and annotations.is_dir():
        raise DataError(
            f"data set {name}: {annotations} is a folder, not an annotation file; `detlite init "
            "--data` reads folders"
        )
    if isinstance(annotations, Path) and not annotations.is_file():
        raise DataError(
            f"data set {name}: no annotation file {annotations}; its pictures are expected in "
            f"{images}. Put them there, or set DATASETS.ROOT ({cfg.DATASETS.ROOT}) to the folder "
            "that holds them"
        )
    return CocoDataset(
        annotations,
        images,
        name=name,
        kind=kind,
        train=train,
        masks=cfg.MODEL.MASK_ON,
        masks_as_runs=convention_of(cfg).mask_targets == "soft",
        keypoints=cfg.MODEL.KEYPOINT_ON,
        min_keypoints=cfg.DATASETS.MIN_KEYPOINTS_PER_IMAGE if cfg.MODEL.KEYPOINT_ON else 0,
        background=cfg.DATASETS.BACKGROUND_PICTURES,
        skip_bad=cfg.DATASETS.ON_BAD_ANNOTATION == "skip",
        proposals=_proposal_file(cfg, name, train) if cfg.MODEL.LOAD_PROPOSALS else None,
        most_proposals=(
            cfg.DATASETS.PRECOMPUTED_PROPOSAL_TOPK_TRAIN
            if train
            else cfg.DATASETS.PRECOMPUTED_PROPOSAL_TOPK_TEST
        ),
        max_pixels=cfg.DATASETS.MAX_PIXELS,
        picture_bits=cfg.INPUT.PICTURE_BITS,
        exif_orientation=convention_of(cfg).exif_orientation,
        check_pictures=cfg.DATASETS.CHECK_PICTURES,
    )


def locate_dataset(cfg: CfgNode, name: str) -> tuple[str, Location, Folder]:
    """The type, the annotation file and the image folder of the data set of that name.

    Raises:
        ConfigError, DataError: as from `build_dataset`.
    """
    entry = _entry(cfg.DATASETS.CATALOG, name)
    kind = entry.get("type", "coco")
    factory = DATASETS.get(kind, key=f"DATASETS.CATALOG, {name}, type")
    root = place(cfg.DATASETS.ROOT)
    if isinstance(root, Remote) and kind not in _AT_URLS:
        raise ConfigError(
            f"DATASETS.CATALOG, {name}: of type {kind!r}, which needs a folder on the disk as "
            f"DATASETS.ROOT, not {root}"
        )
    annotations, images = factory(entry, root)
    if isinstance(images, (Remote, ShardFolder)):
        images = replace(images, cache_bytes=int(cfg.DATASETS.CACHE_GB * GIGABYTE))
    return kind, annotations, images


def build_train_dataset(cfg: CfgNode) -> JoinedDataset:
    """All of DATASETS.TRAIN, joined, and checked against NUM_CLASSES.

    Raises:
        ConfigError: DATASETS.TRAIN is empty or contradicts the model.
        DataError: a data set is missing, broken, or has other categories than the first.
    """
    if not cfg.DATASETS.TRAIN:
        raise ConfigError("DATASETS.TRAIN is empty: name at least one entry of DATASETS.CATALOG")
    dataset = JoinedDataset([build_dataset(cfg, name, train=True) for name in cfg.DATASETS.TRAIN])
    check_num_classes(cfg, dataset)
    return dataset


def warn_of_known(train: JoinedDataset, tests: Sequence[CocoDataset]) -> None:
    """Logs a warning of sets that are trained on and measured on."""
    known = {_place(part) for part in train.parts}
    for test in tests:
        if _place(test) in known:
            logger.warning(
                "DATASETS.TEST names %s, which is trained on as well: its results say nothing "
                "about new pictures; set some apart (`detlite init --data` does)",
                test.name,
            )


def _place(dataset: CocoDataset) -> str:
    file = dataset.annotation_file
    return str(file if isinstance(file, Remote) else Path(file).resolve())


def check_num_classes(cfg: CfgNode, dataset: CocoDataset | JoinedDataset) -> None:
    """Raises ConfigError if the model's numbers of classes or keypoints contradict the data set."""
    part = "RETINANET" if cfg.MODEL.META_ARCHITECTURE == "RetinaNet" else "ROI_BOX_HEAD"
    given, wanted = cfg.MODEL[part].NUM_CLASSES, len(dataset.categories) + 1
    if given != wanted:
        raise ConfigError(
            f"MODEL.{part}.NUM_CLASSES is {given}, but the data set {dataset.name} has "
            f"{wanted - 1} categories: with the background that makes {wanted}"
        )
    names, points = dataset.keypoint_names, cfg.MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES
    if names and points != len(names):
        raise ConfigError(
            f"MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES is {points}, but the data set {dataset.name} "
            f"has {len(names)} keypoints"
        )


@DATASETS.register("coco", "lvis")
def coco_files(entry: Entry, root: Location) -> tuple[Location, Location]:
    """A set of files: `{name, annotations: file, images: folder}`, URLs, or relative to `root`.

    LVIS's files are in COCO's form; their type says that they are measured as LVIS does.
    """
    check_fields(entry, {"annotations": str, "images": str})
    return place(entry["annotations"], root), place(entry["images"], root)


def check_fields(entry: Entry, fields: dict[str, type]) -> None:
    """Raises ConfigError if a catalog entry lacks a field, has one too many or of a wrong type.

    `name`, `type` and `evaluators` are always allowed.
    """
    where = f"DATASETS.CATALOG, {entry['name']}"
    for field, kind in fields.items():
        if field not in entry:
            raise ConfigError(f"{where}: {field!r} is missing; needed: {', '.join(fields)}")
        if type(entry[field]) is not kind:
            raise ConfigError(
                f"{where}: {field!r} is {entry[field]!r}, but must be a {kind.__name__}"
            )
    for field in entry:
        if field not in ("name", "type", "evaluators", *fields):
            close = difflib.get_close_matches(field, fields, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"{where}: unknown field {field!r}{hint}")


def _entry(catalog: Sequence[Entry], name: str) -> Entry:
    entries = [entry for entry in catalog if entry["name"] == name]
    if len(entries) > 1:
        raise ConfigError(f"DATASETS.CATALOG: the name {name!r} is given {len(entries)} times")
    if entries:
        return entries[0]
    if name in BUILTIN:
        return BUILTIN[name]
    own = [entry["name"] for entry in catalog]
    close = difflib.get_close_matches(name, [*own, *BUILTIN], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    listed = f"known: {', '.join(own)}" if own else "the catalog is empty"
    raise ConfigError(
        f"DATASETS.CATALOG: no data set is called {name!r}{hint} ({listed}, and the built-in names "
        "in docs/data.md)"
    )


def _proposal_file(cfg: CfgNode, name: str, train: bool) -> Location:
    """The file that belongs to a set of DATASETS.TRAIN or DATASETS.TEST."""
    datasets, phase = cfg.DATASETS, "TRAIN" if train else "TEST"
    paths = datasets.PROPOSAL_FILES_TRAIN if train else datasets.PROPOSAL_FILES_TEST
    names = datasets[phase]
    if name not in names or len(names) != len(paths):
        raise ConfigError(
            f"DATASETS.PROPOSAL_FILES_{phase} is {paths!r} and DATASETS.{phase} {names!r}: "
            f"MODEL.LOAD_PROPOSALS needs one file for each set, and one for {name}"
        )
    return place(paths[names.index(name)], place(datasets.ROOT))
