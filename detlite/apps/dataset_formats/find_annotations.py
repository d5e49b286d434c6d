"""Find the annotations of a file or folder in any supported format, as COCO files."""

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detlite.data.data_arguments import FINDERS
from detlite.data.errors import DataError
from detlite.data.index.build import open_index

from .coco_files import OUTPUT_FOLDER, find_coco_files, find_images, split_content, write_coco
from .labeled_dataset import LabeledDataset, to_coco
from .labelme import is_labelme, read_labelme
from .mask_files import is_mask_folder, read_mask_folder
from .voc_xml import is_voc, read_voc_folder
from .yolo import is_yolo, read_yolo

# The first match counts: folders of YOLO and VOC may contain other json files, and VOC's masks.
_FORMATS = {
    "YOLO": (is_yolo, read_yolo),
    "PASCAL VOC": (is_voc, read_voc_folder),
    "LabelMe": (is_labelme, read_labelme),
    "mask files": (is_mask_folder, read_mask_folder),
}


class UnknownFormatError(DataError):
    """A folder without labels of any supported format."""


@dataclass(frozen=True)
class Source:
    """A COCO file, and the folder that its file names are relative to."""

    annotations: Path
    images: Path


@dataclass(frozen=True)
class _Split:
    """A COCO file or the content of one, and the folder that its file names are relative to."""

    coco: Path | dict[str, Any]
    images: Path

    @property
    def categories(self) -> list[dict[str, Any]]:
        content = open_index(self.coco).content if isinstance(self.coco, Path) else self.coco
        return sorted(content["categories"], key=lambda row: row["id"])

    @property
    def converted_images(self) -> set[Path]:
        """The image files if another format was converted."""
        if isinstance(self.coco, Path):
            return set()
        return {self.images / row["file_name"] for row in self.coco["images"]}


def find_sets(
    data: Path, val: Path | None = None, images: Path | None = None, folder: Path | None = None
) -> tuple[dict[str, Source], str]:
    """Find the datasets to train and evaluate on.

    Other formats are converted to COCO files. If nothing is given to evaluate on, or only the
    training images, `data` is split by a hash of the image paths (for COCO files, the file names).

    Args:
        data: an annotation file, or a folder in any supported format.
        val: the same, to evaluate on.
        images: the image folder of annotation files; None: searched for.
        folder: output folder; None: `detlite` in the folder of the data.

    Returns:
        "train", and "val" unless only one image has an object; and a summary in a sentence.

    Raises:
        DataError: there is no dataset, or it cannot be read or written.
    """
    data, val = data.absolute(), val and val.absolute()
    format, splits = _read(data, images)
    if "val" in splits:
        shared = splits["train"].converted_images
        if shared and shared == splits["val"].converted_images:
            del splits["val"]
            format += ", whose train and val are the same images"
    if val is not None:
        names = [row["name"] for row in splits["train"].categories]
        _, val_splits = _read(val, images, names)
        splits = {"train": splits["train"], "val": val_splits.get("val", val_splits["train"])}
        _check_categories(splits, val)
        summary = f"read as {format}; evaluated on {val}"
    elif "val" in splits:
        summary = f"read as {format}, which has train and val"
    else:
        splits, counts = _split(splits["train"], data)
        summary = f"read as {format}; " + (
            f"{counts['val']} of {sum(counts.values())} images, chosen by a hash of their names, "
            "are used for evaluation and not for training"
            if "val" in splits
            else "only one image has an object, so there is no evaluation"
        )
    output = (folder or (data if data.is_dir() else data.parent) / OUTPUT_FOLDER).absolute()
    prefix = "" if data.is_dir() else f"{data.stem}_"
    sources, written = {}, []
    for name, split in splits.items():
        if isinstance(split.coco, Path):
            file = split.coco
        else:
            file = output / f"{prefix}{name}.json"
            try:
                write_coco(split.coco, file)
            except DataError as error:
                hint = f"; choose another folder: `detlite init --data {data} --annotations FOLDER`"
                raise DataError(f"{error}{'' if folder else hint}") from error
            written.append(str(file))
        sources[name] = Source(file, split.images.absolute())
    return sources, summary + (f"; written: {', '.join(written)}" if written else "")


FINDERS.register("path")(find_sets)


def convert(data: Path, file: Path) -> list[Path]:
    """Convert a folder of another format to COCO json, and return the files.

    A dataset that is already split becomes two: `<name>_train.json` and `<name>_val.json`.

    Raises:
        DataError: there is nothing to convert, or it cannot be read or written.
    """
    if not data.is_dir():
        raise DataError(f"{data}: is not a folder, so there is nothing to convert")
    try:
        _, datasets = read_folder(data.absolute())
    except UnknownFormatError as error:
        if files := find_coco_files(data):
            raise DataError(
                f"{files['train']}: is a COCO file already, so there is nothing to convert"
            ) from error
        raise
    outputs = []
    for split, dataset in datasets.items():
        outputs.append(file.with_stem(f"{file.stem}_{split}") if len(datasets) > 1 else file)
        write_coco(to_coco(dataset), outputs[-1])
    return outputs


def read_folder(folder: Path) -> tuple[str, dict[str, LabeledDataset]]:
    """Read a dataset of YOLO, PASCAL VOC, LabelMe or mask files.

    Returns:
        The name of the format; and "train", and "val" if the dataset is split already.

    Raises:
        UnknownFormatError: the folder has none of these formats.
        DataError: a file is invalid.
    """
    for name, (recognize, read) in _FORMATS.items():
        if recognize(folder):
            return name, read(folder)
    counts = Counter(file.suffix or file.name for file in folder.iterdir())
    content = ", ".join(f"{count} {kind}" for kind, count in counts.most_common(5)) or "nothing"
    raise UnknownFormatError(
        f"{folder}: contains no annotations of a supported format, but {content}. Supported: COCO "
        "json, data.yaml or classes.txt (YOLO), *.xml or Annotations/*.xml (PASCAL VOC), json "
        "files next to images (LabelMe), folders images and masks"
    )


def _read(
    data: Path, images: Path | None, categories: list[str] | None = None
) -> tuple[str, dict[str, _Split]]:
    """Return the name of the format and the splits; `categories` as for `to_coco`."""
    if not data.exists():
        raise DataError(f"{data}: there is no such file or folder")
    files = {"train": data} if data.is_file() else find_coco_files(data)
    if files:
        return "COCO json", {
            split: _Split(file, find_images(file, images)) for split, file in files.items()
        }
    format, datasets = read_folder(data)
    return format, {
        split: _Split(to_coco(dataset, categories), dataset.image_folder)
        for split, dataset in datasets.items()
    }


def _split(train: _Split, data: Path) -> tuple[dict[str, _Split], dict[str, int]]:
    """Return the splits of a dataset, and their numbers of images."""
    if isinstance(train.coco, Path):
        # The file was checked when it was indexed.
        contents = split_content(json.loads(train.coco.read_bytes()))
    else:
        contents = split_content(train.coco, Path(os.path.relpath(train.images, data)).as_posix())
    counts = {name: len(content["images"]) for name, content in contents.items()}
    if len(contents) == 1:
        return {"train": train}, counts
    return {name: _Split(content, train.images) for name, content in contents.items()}, counts


def _check_categories(splits: dict[str, _Split], val: Path) -> None:
    """Raise a DataError if two datasets have different categories."""
    train, other = (
        {(row["id"], row["name"]) for row in splits[name].categories} for name in ("train", "val")
    )
    if train != other:
        number, name = min(train ^ other)
        place = "the training set" if (number, name) in train else "this one"
        raise DataError(
            f"{val}: its categories differ from those of the training set: only {place} has "
            f"{number} ({name!r}). Both need the same ids and names"
        )
