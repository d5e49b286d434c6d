"""Wherever annotations are and whatever form they have: COCO json files, and their pictures."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detlite.data.data_arguments import FINDERS
from detlite.data.errors import DataError
from detlite.data.index.build import open_index

from .coco_files import WRITTEN, coco_files, find_pictures
from .coco_writer import split_content, write_coco
from .detect_format import UnknownFormError, read_set
from .labeled_dataset import coco_content, image_folder


@dataclass(frozen=True)
class Source:
    """An annotation file in COCO's form, and the folder that its file names are relative to."""

    annotations: Path
    images: Path


@FINDERS.register("path")
def find_sets(
    data: Path, val: Path | None = None, images: Path | None = None, folder: Path | None = None
) -> tuple[dict[str, Source], str]:
    """The sets of `data`, and how they came about, in a sentence.

    What is not COCO json is written as such; and where nothing says what is measured on, or it is
    what is trained on, `data` is divided by a hash of the pictures' paths in it, of COCO json their
    file names.

    Args:
        data: an annotation file, or a folder of any form that is known.
        val: the same, to measure on.
        images: the folder of the pictures of annotation files; None: found.
        folder: for what is written; None: `detlite` in the folder of the data.

    Returns:
        "train", and "val" unless the set has but one picture with an object.

    Raises:
        DataError: there is no data set, or it cannot be read or written.
    """
    data, val = data.absolute(), val and val.absolute()
    way_out = (
        "" if folder else f"; `detlite init --data {data} --annotations FOLDER` writes elsewhere"
    )
    folder = (folder or (data if data.is_dir() else data.parent) / WRITTEN).absolute()
    stem = "" if data.is_dir() else f"{data.stem}_"
    form, parts = _parts(data, images)
    if _pictures(parts["train"]) == _pictures(parts.get("val")) != set():
        del parts["val"]
        form += ", whose train and val are the same pictures"
    if val is not None:
        names = [row["name"] for row in _category_rows(parts["train"])]
        _, measured = _parts(val, images, names)
        parts = {"train": parts["train"], "val": measured.get("val", measured["train"])}
        _check_categories(parts, val)
        how = f"read as {form}; measured on {val}"
    elif "val" in parts:
        how = f"read as {form}, which is divided already"
    else:
        # Images and annotations were checked when the file was indexed.
        content, pictures = parts["train"]
        within = ""
        if isinstance(content, Path):
            content = json.loads(content.read_bytes())
        else:
            within = Path(os.path.relpath(pictures, data)).as_posix()
        halves = split_content(content, within)
        if "val" in halves:
            parts = {split: (half, pictures) for split, half in halves.items()}
            count = {split: len(half["images"]) for split, half in halves.items()}
            how = (
                f"read as {form}; {count['val']} of {count['train'] + count['val']} pictures, by a "
                "hash of their names, are measured on and never trained on"
            )
        else:
            how = f"read as {form}; there is but one picture with an object, so none to measure on"
    sets = {}
    for split, (content, pictures) in parts.items():
        file = content if isinstance(content, Path) else folder / f"{stem}{split}.json"
        if not isinstance(content, Path):
            try:
                write_coco(content, file)
            except DataError as error:
                raise DataError(f"{error}{way_out}") from error
        sets[split] = Source(file, pictures.absolute())
    written = [str(one.annotations) for one in sets.values() if one.annotations.parent == folder]
    return sets, how + (f"; written: {', '.join(written)}" if written else "")


def convert(data: Path, file: Path) -> list[Path]:
    """Writes a folder of another form as COCO json; returns the files.

    A set that is divided already becomes two: `<name>_train.json` and `<name>_val.json`.

    Raises:
        DataError: there is nothing to convert, or it cannot be read or written.
    """
    if not data.is_dir():
        raise DataError(f"{data}: is no folder, so there is nothing to convert")
    try:
        _, parts = read_set(data.absolute())
    except UnknownFormError as error:
        if known := coco_files(data):
            raise DataError(
                f"{known['train']}: is COCO json already, so there is nothing to convert"
            ) from error
        raise
    files = []
    for split, found in parts.items():
        files.append(file.with_stem(f"{file.stem}_{split}") if len(parts) > 1 else file)
        write_coco(coco_content(found), files[-1])
    return files


def _parts(
    data: Path, images: Path | None, categories: list[str] | None = None
) -> tuple[str, dict[str, tuple[Any, Path]]]:
    """What form a set has, and of each part its file or content in COCO's form, and its pictures.

    `categories` are those of another set, whose ids it is to have.
    """
    if not data.exists():
        raise DataError(f"{data}: there is no such file or folder")
    files = {"train": data} if data.is_file() else coco_files(data)
    if files:
        return "COCO json", {
            split: (file, find_pictures(file, images)) for split, file in files.items()
        }
    form, found = read_set(data)
    return form, {
        split: (coco_content(one, categories), image_folder(one)) for split, one in found.items()
    }


def _pictures(part: tuple[Any, Path] | None) -> set[Path]:
    """The files of a part that was not COCO json, or none."""
    if part is None or isinstance(part[0], Path):
        return set()
    return {part[1] / row["file_name"] for row in part[0]["images"]}


def _check_categories(parts: dict[str, tuple[Any, Path]], val: Path) -> None:
    """Raises DataError where the two sets number their categories differently."""
    trained, measured = (
        {(row["id"], row["name"]) for row in _category_rows(parts[split])}
        for split in ("train", "val")
    )
    if trained != measured:
        number, name = min(trained ^ measured)
        where = "only" if (number, name) in trained else "not"
        raise DataError(
            f"{val}: has other categories than the set to train on, which {where} has "
            f"{number} ({name!r}): both need the same ids and names"
        )


def _category_rows(part: tuple[Any, Path]) -> list[dict[str, Any]]:
    content = open_index(part[0]).content if isinstance(part[0], Path) else part[0]
    return sorted(content["categories"], key=lambda row: row["id"])
