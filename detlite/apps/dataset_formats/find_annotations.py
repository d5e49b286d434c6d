"""Find the annotations of a file or folder in any supported format, as COCO files."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from detlite.apps.autoconfig.image_values import measure_values, spread
from detlite.apps.dataset_check.fingerprints import read_fingerprints
from detlite.apps.dataset_check.image_groups import group_images
from detlite.data.annotations.store import open_table
from detlite.data.findings import Finding, Findings
from detlite.data.images.pixels import ImageOptions
from detlite.files.atomic_write import write_json
from detlite.files.errors import DataError
from detlite.structures.categories import CategoryMatch

from .coco_files import find_coco_files, read_coco, split_content
from .csv_boxes import csv_labels, has_boxes
from .file_tree import OUTPUT_FOLDER, UNLABELED, UNLISTED, FileTree, read_lines
from .labeled_dataset import Conversion, LabeledDataset, LabeledImage, to_coco
from .labelme import NO_OBJECTS, labelme_labels
from .mask_files import MODES, is_mask_folder, read_mask_folder
from .other_formats import describe_unknown
from .shapes import read_shapes
from .voc_xml import voc_labels
from .yolo import is_yolo, read_yolo

_VOC, _LABELME = r"<annotation[\s>](?!.*<(pt|points)>)", r'^\s*\{.*"(shapes|imagePath)"\s*:'
# Name, how it is recognized, and its reader. The first match counts: folders of YOLO and VOC may
# contain other json files, and VOC's masks.
_Reader = Callable[[FileTree, Conversion], LabeledDataset]
_FORMATS: tuple[tuple[str, Callable[[FileTree], bool], _Reader], ...] = (
    ("YOLO", is_yolo, read_yolo),
    ("PASCAL VOC", partial(FileTree.contains, suffix=".xml", pattern=_VOC),
     partial(read_shapes, voc_labels, ".xml")),
    ("LabelMe", partial(FileTree.contains, suffix=".json", pattern=_LABELME),
     partial(read_shapes, labelme_labels, ".json")),
    ("mask files", is_mask_folder, read_mask_folder),
    ("CSV of boxes", has_boxes, partial(read_shapes, csv_labels, ".csv", one_each=False)),
    ("YOLO", partial(is_yolo, named=False), read_yolo),
)  # fmt: skip
_UNUSED = {
    "test": ("images of the test set",
             "They are neither trained on nor evaluated here. `detlite init --val` evaluates on "
             "them."),
    UNLISTED: ("images that the lists of splits do not name",
               "They are not used. Delete train.txt and the other lists to use all images."),
    UNLABELED: ("images without labels",
                "They are not used. Images without objects need a label file without objects."),
}  # fmt: skip
_TWICE = ("images listed as train and as val", "They are one set, which `detlite init` divides.")


@dataclass(frozen=True)
class Source:
    """A COCO file, and the folder that its file names are relative to."""

    annotations: Path
    images: Path


# A COCO file or the content of one, and the folder that its file names are relative to.
_Split = tuple[Path | dict[str, Any], Path]


def find_sets(
    data: Path,
    val: Path | None = None,
    images: Path | None = None,
    folder: Path | None = None,
    masks: str | None = None,
    skip_bad: bool = False,
    upright: bool = True,
    single_class: bool = False,
    group_by: str | None = None,
) -> tuple[dict[str, Source], str]:
    """Find the datasets to train and evaluate on.

    Other formats are converted to COCO files. Without a validation set, or if it has the same
    images as the training set, `data` is split by a hash of the image paths (file names for COCO).
    Images that show the same stay together, see `group_images`.

    Args:
        data, val: a label file, or a folder, in any supported format.
        images: the image folder of label files; None: searched for.
        folder: output folder; None: `detlite` in the folder of the data.
        masks, skip_bad, upright: see `Conversion`.
        single_class: replace all categories by one, "object".
        group_by: see `group_images`; not for data that are split already.

    Returns:
        Sources of "train" and, unless only one group of images has objects, "val"; and a summary.
    """
    if masks not in (None, *MODES):
        raise DataError(f"masks is {masks!r}: it must be one of {', '.join(MODES)}")
    data, val = data.absolute(), val and val.absolute()
    conversion = partial(Conversion, masks, skip_bad, upright)
    format, splits = _read(data, images, conversion())
    summary = f"read as {format}"
    if group_by and (val is not None or "val" in splits):
        evaluated = val or "images that the data name"
        raise DataError(f"--group-by has no effect: {evaluated} are used for evaluation")
    if val is not None:
        _, val_splits = _read(val, images, conversion())
        splits["val"] = val_splits.get("val", val_splits["train"])
        summary += f"; evaluated on {val}"
    elif "val" in splits:
        summary += ", divided already into train and val"
    else:
        splits, note = _split(splits["train"], data, group_by, upright)
        summary += f"; {note}"
    splits = _match_categories(splits, val or data)
    if single_class:
        splits = {name: _with_one_category(split) for name, split in splits.items()}
        summary += "; all categories are one, object"
    output = (folder or (data if data.is_dir() else data.parent) / OUTPUT_FOLDER).absolute()
    prefix = ("" if data.is_dir() else f"{data.stem}_") + "single_class_" * single_class
    sources, written = {}, []
    for name, (coco, image_folder) in splits.items():
        file = coco if isinstance(coco, Path) else output / f"{prefix}{name}.json"
        if not isinstance(coco, Path):
            try:
                write_json(file, coco)
            except DataError as error:
                hint = f"; choose another folder: `detlite init --data {data} --annotations FOLDER`"
                raise DataError(f"{error}{'' if folder else hint}") from error
            written.append(str(file))
        sources[name] = Source(file, image_folder.absolute())
    return sources, summary + (f"; written: {', '.join(written)}" if written else "")


def convert(data: Path, file: Path, conversion: Conversion | None = None) -> dict[Path, Findings]:
    """Convert a file or folder of another format to COCO json; return the findings by file.

    A dataset that is already split becomes two: `<name>_train.json` and `<name>_val.json`.
    `conversion` has the options of reading it.
    """
    _, datasets = read_folder(data.absolute(), conversion)
    written = {}
    for split, dataset in datasets.items():
        output = file.with_stem(f"{file.stem}_{split}") if len(datasets) > 1 else file
        write_json(output, to_coco(dataset))
        written[output] = dataset.findings
    return written


def read_folder(
    data: Path, conversion: Conversion | None = None, images: Path | None = None
) -> tuple[str, dict[str, LabeledDataset]]:
    """Read a folder or label file of any format but COCO.

    Returns:
        The name of the format; and "train", and "val" if the dataset is split already.

    Raises:
        DataError: it has no supported format, or a file is invalid.
    """
    conversion, tree = conversion or Conversion(), FileTree(data, images)
    for name, recognize, read in _FORMATS:
        if recognize(tree):
            return name, _by_split(read(tree, conversion), conversion, tree)
    raise DataError(describe_unknown(tree))


def _by_split(
    dataset: LabeledDataset, conversion: Conversion, tree: FileTree
) -> dict[str, LabeledDataset]:
    """Divide a dataset by the splits of its images; those of _UNUSED are only reported.

    If its files name no categories, they are those of the objects, or a list in `tree` of these
    and maybe more.
    """
    parts: dict[str, dict[Path, LabeledImage]] = {name: {} for name in ("train", "val", *_UNUSED)}
    divided = any(image.split == "train" for image in dataset.images)
    for image in dataset.images:
        split = image.split if divided or image.split == UNLABELED else None
        if parts[split or "train"].setdefault(image.file, image) is not image:
            problem = f"{image.file}: two files or entries label this image: remove one"
            conversion.add_bad(problem, "The first one is used.", [image.file])
    if (both := parts["val"].keys()) and both == parts["train"].keys():
        conversion.findings.add(*_TWICE, str(next(iter(both))), "image", len(both))
        parts["val"] = {}
    unused = Findings()
    for split, kind in _UNUSED.items():
        if files := parts.pop(split):
            unused.add(*kind, str(next(iter(files))), "image", len(files))
    findings = conversion.finish()
    objects = [obj for image in dataset.images for obj in image.objects]
    found = {obj.category for obj in objects if obj.category and not obj.ignored}
    names = dataset.categories
    if not names:  # labels.txt of LabelMe may list them
        file = tree.root / "labels.txt"
        lines = map(str.strip, read_lines(file)) if file in tree.files else ()
        listed = [name for name in dict.fromkeys(lines) if name and name not in NO_OBJECTS]
        names = listed if found <= {*listed} else sorted(found)
    points = dataset.keypoints or list(
        dict.fromkeys(key for obj in objects for key in obj.keypoints)
    )
    datasets = {}
    for split, part in parts.items():
        if part or split == "train":
            own = findings.of_images({str(f): str(f) for f in part}, others=split == "train")
            datasets[split] = LabeledDataset(
                dataset.source, [*part.values()], names, points, dataset.flip_idx,
                Findings([*own, *unused])
            )  # fmt: skip
    return datasets


def _read(data: Path, images: Path | None, conversion: Conversion) -> tuple[str, dict[str, _Split]]:
    """Return the name of the format and the splits."""
    files, unused = find_coco_files(FileTree(data))
    if files:
        names = ", ".join(map(str, unused))
        hint = f" without {names} (use them with --data or `detlite init --val`)" if names else ""
        return f"COCO json{hint}", {
            name: read_coco(file, images, conversion.upright) for name, file in files.items()
        }
    format, datasets = read_folder(data, conversion, images)
    return format, {name: (to_coco(one), one.image_folder) for name, one in datasets.items()}


def _content(coco: Path | dict[str, Any]) -> dict[str, Any]:
    return open_table(coco).full_content() if isinstance(coco, Path) else coco


def _split(
    train: _Split, data: Path, group_by: str | None, upright: bool
) -> tuple[dict[str, _Split], str]:
    """Split a dataset into "train" and, if two groups of images have objects, "val"; say how."""
    coco, folder = train
    content, is_made = _content(coco), isinstance(coco, dict)
    within = Path(os.path.relpath(folder, data)).as_posix() if is_made else ""
    rows = content["images"]
    files = [folder / row["file_name"] for row in rows]
    options = measure_values(spread(files), ImageOptions(exif_orientation=upright)).options
    groups = group_images(rows, read_fingerprints(files, options), group_by)
    contents = split_content(content, within, groups.labels)
    if len(contents) == 1:
        few = "only one image, or group of images, has objects"
        return {"train": train}, f"{few}, so there is no evaluation; {groups}"
    return {name: (part, folder) for name, part in contents.items()}, (
        f"{len(contents['val']['images'])} of {len(rows)} images, chosen by a hash of their names, "
        f"are used for evaluation and not for training; {groups}"
    )


def _with_one_category(split: _Split) -> _Split:
    content = _content(split[0])
    known = {row["id"] for row in content["categories"]}
    merged = {key: value for row in content["categories"] for key, value in row.items()}
    content["categories"] = [{**merged, "id": 1, "name": "object"}]
    for row in content["annotations"]:
        row["category_id"] = 1 if row.get("category_id") in known else None  # reported as unknown
    return content, split[1]


def _match_categories(splits: dict[str, _Split], source: Path) -> dict[str, _Split]:
    """Match the categories of all splits by name; categories that "train" lacks come last."""
    heads = [open_table(coco).content if isinstance(coco, Path) else coco
             for coco, _ in splits.values()]  # fmt: skip
    lists = [sorted(head["categories"], key=lambda row: row["id"]) for head in heads]
    pairs = [[(row["id"], row["name"]) for row in rows] for rows in lists]
    if pairs[:-1] == pairs[1:]:
        return splits
    train, val = lists
    match = CategoryMatch(train, val, ("the training set", "val"))
    if all(number is None for number in match.numbers):
        raise DataError(f"{source}: its categories are not those of the training set: {match}")
    matched = list(zip(val, match.numbers, strict=True))
    extra = [row for row, number in matched if number is None]
    ids = {row["id"]: train[number]["id"] for row, number in matched if number is not None}
    ids |= {row["id"]: n for n, row in enumerate(extra, max(row["id"] for row in train) + 1)}
    train = [*train, *({**row, "id": ids[row["id"]]} for row in extra)]
    contents = {name: _content(coco) for name, (coco, _) in splits.items()}
    for row in contents["val"]["annotations"]:
        row["category_id"] = ids.get(row.get("category_id"), row.get("category_id"))
    text = "They are matched by name. A category that is only in val is not trained."
    names = ", ".join(row["name"] for row in extra)
    finding = Finding("categories of train and val differ", text, len(extra), "category", names)
    for content in contents.values():
        found = [*Findings.from_json(content.get("findings")), finding]
        content |= {"categories": train, "findings": Findings(found).to_json()}
    return {name: (content, splits[name][1]) for name, content in contents.items()}
