"""Catalog entries of the dataset names that published configs use."""

from collections.abc import Iterator
from typing import Any

Entry = dict[str, Any]

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
