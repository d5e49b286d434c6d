"""Build the datasets of a config, check that they fit the model, and report unused data."""

import logging
import math
import os
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.data.annotations.selection import Selection
from detlite.data.annotations.table import AnnotationTable
from detlite.data.findings import Finding, summary
from detlite.data.images.checks import unlisted_images
from detlite.files.errors import DataError
from detlite.structures.keypoints import doubtful_sides, has_sides, with_sides
from detlite.structures.names import file_key

from .catalog import locate_dataset, object_fields
from .coco import Check, CocoDataset, ConcatDataset
from .options import build_dataset_options
from .proposals import build_proposals

logger = logging.getLogger(__name__)

_SCALE_CHANGE = 1.5  # factor between the sizes of training and test images that lowers the AP
_MIRRORED = (
    "Images are mirrored without exchanging keypoints. Name pairs in "
    "DATASETS.KEYPOINT_FLIP_PAIRS, or set INPUT.HORIZONTAL_FLIP_PROB_TRAIN 0."
)
_NOT_MIRRORED = "Images are not mirrored. Name pairs in DATASETS.KEYPOINT_FLIP_PAIRS to allow it."


def build_dataset(cfg: CfgNode, name: str, train: bool, check: Check | None = None) -> CocoDataset:
    """Build the dataset that DATASETS.CATALOG, or else the built-in catalog, lists under `name`.

    `check` is that of `CocoDataset`. Raises ConfigError for the entry, or DataError for the files.
    """
    kind, annotations, images = locate_dataset(cfg, name)
    if isinstance(annotations, Path) and annotations.is_dir():
        raise DataError(
            f"dataset {name}: {annotations} is a folder, not an annotation file. To convert a "
            "folder, use `detlite init --data`"
        )
    if isinstance(annotations, Path) and not annotations.is_file():
        raise DataError(
            f"dataset {name}: the annotation file {annotations} does not exist (images are "
            f"expected in {images}). Put the files there, or set DATASETS.ROOT "
            f"({cfg.DATASETS.ROOT}) to the folder that contains them"
        )
    options = replace(build_dataset_options(cfg, train), fields=object_fields(cfg, name))
    dataset = CocoDataset(annotations, images, options, name, kind, check)
    if cfg.MODEL.LOAD_PROPOSALS:
        dataset.proposals = build_proposals(cfg, dataset, "TRAIN" if train else "TEST")
    dataset.findings += config_findings(cfg, dataset.table, dataset.options.selection, train)
    return dataset


def config_findings(
    cfg: CfgNode, table: AnnotationTable, selection: Selection, train: bool
) -> Iterator[Finding]:
    """Yield findings about settings that change how a dataset is used."""
    counts = table.counts(selection.objects)
    for what, limit, effect in _limits(cfg, train, int(counts.max(initial=0))):
        if full := int((counts > limit).sum()):
            number = int(counts.argmax())
            example = f"image {table.image_ids[number]} with {counts[number]}"
            yield Finding(f"images with more objects than {what}", effect, full, "image", example,
                          len(counts))  # fmt: skip
    size, trained = cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MIN_SIZE_TRAIN
    if not train and not min(trained) / _SCALE_CHANGE <= size <= max(trained) * _SCALE_CHANGE:
        effect = (
            f"INPUT.MIN_SIZE_TEST is {size}, and INPUT.MIN_SIZE_TRAIN {list(trained)}. Objects of "
            "sizes that were not trained are hardly detected: change both keys, and train again."
        )
        yield Finding("images are evaluated at another scale than they are trained at", effect, 0)
    names = with_sides(table.keypoint_names, cfg.DATASETS.KEYPOINT_FLIP_PAIRS)
    if not (train and selection.keypoints):
        return
    if not has_sides(names):
        mirrored = cfg.INPUT.HORIZONTAL_FLIP_PROB_TRAIN > 0
        effect = _MIRRORED if mirrored else _NOT_MIRRORED
        yield Finding("no keypoint names are known to be left and right", effect, 0)
    elif doubts := doubtful_sides(names):
        effect = "If they are left and right, name pairs in DATASETS.KEYPOINT_FLIP_PAIRS."
        what = "keypoints that mirroring does not exchange"
        yield Finding(what, effect, len(doubts), "name", ", ".join(doubts))


def _limits(cfg: CfgNode, train: bool, most: int) -> Iterator[tuple[str, int, str]]:
    """Yield limits of the number of objects in an image: what, how many, and what to do.

    `most` is the largest number of objects in an image. With tiles, limits are per tile.
    """
    heads, kind = cfg.MODEL.ROI_HEADS, cfg.MODEL.META_ARCHITECTURE
    if not cfg.TEST.TILE:
        limit = heads.DETECTIONS_PER_IMG
        effect = f"MODEL.ROI_HEADS.DETECTIONS_PER_IMG is {limit}: set it above {most}, and "
        yield "are detected", limit, f"{effect}MODEL.RPN.FPN_POST_NMS_TOP_N_TEST above that."
    if not cfg.TEST.TILE and kind != "RetinaNet":
        part, section = "MODEL.RPN", cfg.MODEL.RPN
        key = "FPN_" * ("FPN" in cfg.MODEL.BACKBONE.CONV_BODY) + "POST_NMS_TOP_N_TEST"
        if cfg.MODEL.LOAD_PROPOSALS:
            part, section, key = "DATASETS", cfg.DATASETS, "PRECOMPUTED_PROPOSAL_TOPK_TEST"
        yield "proposals", section[key], f"{part}.{key} is {section[key]}: set it above {most}."
    limit = int(heads.BATCH_SIZE_PER_IMAGE * heads.POSITIVE_FRACTION)
    if train and kind == "GeneralizedRCNN" and limit and not cfg.INPUT.TILE:
        effect = (
            f"Each iteration trains the heads on up to {limit} of their objects, drawn at random "
            "(MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE * POSITIVE_FRACTION). This is usual. To train "
            f"on all of up to {most} at once, set MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE: "
            f"{math.ceil(most / heads.POSITIVE_FRACTION)}; iterations become slower."
        )
        yield "positive RoIs", limit, effect


def build_train_dataset(cfg: CfgNode) -> ConcatDataset:
    """Build all datasets of DATASETS.TRAIN as one; they have the same categories.

    Raises ConfigError or DataError.
    """
    if not cfg.DATASETS.TRAIN:
        raise ConfigError("DATASETS.TRAIN is empty: name at least one entry of DATASETS.CATALOG")
    first, *others = cfg.DATASETS.TRAIN
    parts = [build_dataset(cfg, first, True, check=partial(check_num_classes, cfg))]
    parts += [build_dataset(cfg, name, train=True) for name in others]
    dataset = ConcatDataset(parts)
    if not any(part.has_objects for part in dataset.parts):
        raise DataError(
            f"DATASETS.TRAIN {', '.join(cfg.DATASETS.TRAIN)}: no image has an annotation, so "
            "nothing can be trained: add a dataset with annotations"
        )
    return dataset


def build_test_datasets(cfg: CfgNode) -> list[CocoDataset]:
    """Build the datasets of DATASETS.TEST. Raises ConfigError or DataError.

    Their categories match those of the model by name, so the number may differ.
    """
    datasets = [build_dataset(cfg, name, train=False) for name in cfg.DATASETS.TEST]
    for dataset in datasets:
        check_num_keypoints(cfg, dataset)
    return datasets


def findings_of(datasets: Sequence[CocoDataset], trained: Sequence[CocoDataset] = ()) -> str:
    """Return the findings of datasets as one text, "" if there are none.

    Datasets that are not among the `trained` ones are test sets.
    """
    found = {
        str(part.annotation_file): [*part.findings, *leaks(part, trained)] for part in datasets
    }
    if trained:
        parts = [(part.table, part.images) for part in {*datasets, *trained}]
        found[str(datasets[0].annotation_file)] += unlisted_images(parts)
    return summary(found)


def log_findings(datasets: Sequence[CocoDataset], trained: Sequence[CocoDataset] = ()) -> None:
    if text := findings_of(datasets, trained):
        logger.warning("%s", text)


def leaks(test: CocoDataset, trained: Sequence[CocoDataset]) -> Iterator[Finding]:
    """Yield the images of a test set that are trained on."""
    for train in trained if test not in trained else ():
        files = _files(train)
        if names := [name for key, name in _files(test).items() if key in files]:
            effect = "Results say nothing about new images. `detlite init` splits off a test set."
            what, total = "images that are also trained on", len(test)
            yield Finding(what, effect, len(names), "image", min(names), total)


def _files(dataset: CocoDataset) -> dict[object, str]:
    """Return the file names of the images of a dataset by the file that each names."""
    names = [row["file_name"] for row in dataset.table.images(dataset.numbers)]
    if not isinstance(dataset.images, Path):
        return {(dataset.images, name): name for name in names}
    folders = {posixpath.dirname(name) for name in names}
    real = {folder: file_key(dataset.images / folder) for folder in folders}
    parts = zip(map(posixpath.split, names), names, strict=True)
    return {(real[folder], os.path.normcase(last)): name for (folder, last), name in parts}


def check_num_classes(cfg: CfgNode, dataset: CocoDataset | ConcatDataset) -> None:
    """Raise ConfigError if the model and the dataset differ in classes or keypoints."""
    part = "RETINANET" if cfg.MODEL.META_ARCHITECTURE == "RetinaNet" else "ROI_BOX_HEAD"
    actual, expected = cfg.MODEL[part].NUM_CLASSES, len(dataset.categories) + 1
    if actual != expected:
        raise ConfigError(
            f"MODEL.{part}.NUM_CLASSES is {actual}, but the dataset {dataset.name} has "
            f"{expected - 1} categories: set it to {expected}, which includes the background"
        )
    check_num_keypoints(cfg, dataset)


def check_num_keypoints(cfg: CfgNode, dataset: CocoDataset | ConcatDataset) -> None:
    """Raise ConfigError if the model and the dataset differ in keypoints."""
    names, points = dataset.keypoint_names, cfg.MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES
    if names and points != len(names):
        raise ConfigError(
            f"MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES is {points}, but the dataset {dataset.name} "
            f"has {len(names)} keypoints"
        )
