"""Catalog entries of the data set names that published configs use.

Folders under DATASETS.ROOT have the layout of maskrcnn-benchmark and detectron2.
"""

from typing import Any

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


def _coco(name: str, annotations: str, images: str) -> dict[str, Any]:
    return {"name": name, "annotations": annotations, "images": images}


def _cityscapes(
    name: str, split: str, form: str, max_images: int, all_labels: bool
) -> dict[str, Any]:
    entry = {"name": name, "type": "cityscapes", "folder": "cityscapes", "split": split}
    return {**entry, "form": form, "most": max_images, "all": all_labels}


_ENTRIES: list[dict[str, Any]] = [
    *(
        _coco(f"{prefix}coco_{split}", f"coco/annotations/{task}_{file}.json", f"coco/{folder}")
        for prefix, task in (("", "instances"), ("keypoints_", "person_keypoints"))
        for split, (folder, file) in _COCO_SPLITS.items()
    ),
    *(
        _coco(
            f"voc_{year}_{split}_cocostyle",
            f"voc/VOC{year}/Annotations/pascal_{split}{year}.json",
            f"voc/VOC{year}/JPEGImages",
        )
        for year, splits in ((2007, ("train", "val", "test")), (2012, ("train", "val")))
        for split in splits
    ),
    *(
        _coco(
            f"cityscapes_fine_instanceonly_seg_{split}_cocostyle",
            f"cityscapes/annotations/instancesonly_filtered_gtFine_{split}.json",
            "cityscapes/images",
        )
        for split in ("train", "val", "test")
    ),
    *(
        {**_coco(f"lvis_{part}", f"lvis/lvis_{part}.json", "coco"), "type": "lvis"}
        for part in (
            *("v0.5_train", "v0.5_val", "v0.5_val_rand_100"),
            *("v0.5_train_cocofied", "v0.5_val_cocofied"),
            *("v1_train", "v1_val"),
        )
    ),
    *(
        {"name": f"voc_{year}_{split}", "type": "voc", "folder": f"voc/VOC{year}", "split": split}
        for year in (2007, 2012)
        for split in ("train", "val", "trainval", "test")
    ),
    # names of maskrcnn-benchmark: ten categories
    *(
        _cityscapes(f"cityscapes_{form}_instance_{prefix}{split}", split, form, limit, True)
        for form in ("poly", "mask")
        for prefix, split, limit in (("", "train", 0), ("", "val", 0), ("mini", "val", 10))
    ),
    # names of detectron2: the eight evaluated categories
    *(
        _cityscapes(f"cityscapes_fine_instance_seg_{split}", split, "mask", 0, False)
        for split in ("train", "val")
    ),
]

BUILTIN: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in _ENTRIES}
"""Entries by name, in the form of DATASETS.CATALOG. Entries there take precedence."""
