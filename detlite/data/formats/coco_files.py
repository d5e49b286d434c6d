"""COCO json files as folders hold them, and the pictures that belong to one."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ..errors import DataError
from ..index_cache import open_index

_READ = 1 << 16
_SAMPLE = 20  # pictures by which a folder is recognised
_PLACES = ("*.json", "annotations/*.json", "*/*.json")
WRITTEN = "detlite"  # the folder that `detlite init` writes annotation files to
_SPLITS = {"train": r"train", "val": r"val(id(ation)?)?(?![a-z])"}


def coco_files(folder: Path) -> dict[str, Path]:
    """The annotation files of a folder: "train", and "val" where one is called so; or none.

    They may lie in it, in its `annotations`, or beside their pictures in `train` and `val`.

    Raises:
        DataError: there are several, and names do not say which is which.
    """
    found = {file for place in _PLACES for file in folder.glob(place)}
    files = sorted(file for file in found if file.parent.name != WRITTEN and _is_coco(file))
    if len(files) <= 1:
        return dict.fromkeys(["train"], files[0]) if files else {}
    named = {
        split: [file for file in files if re.search(pattern, _name(file, folder))]
        for split, pattern in _SPLITS.items()
    }
    if any(len(found) != 1 for found in named.values()):
        listed = ", ".join(str(file.relative_to(folder)) for file in files)
        raise DataError(
            f"{folder}: holds several annotation files ({listed}): name that to train on by "
            "--data, and that to measure on by --val"
        )
    return {split: found[0] for split, found in named.items()}


def find_pictures(annotations: Path, folder: Path | None = None) -> Path:
    """The folder that the file names of an annotation file are relative to.

    Args:
        annotations: in COCO's form.
        folder: where to look, alone; None: beside the file and one folder up, there also in
            `images` and in the folders inside.

    Raises:
        DataError: the file is not in COCO's form, or no picture of it is there.
    """
    index = open_index(annotations)
    count = len(index.image_ids)
    numbers = range(0, count, max(count // _SAMPLE, 1))
    names = [index.image(number)["file_name"] for number in numbers]
    places = [folder] if folder else _places(annotations)
    found = {place: sum((place / name).is_file() for name in names) for place in places}
    best = max(found, key=lambda place: found[place])  # of several the first
    if not found[best]:
        looked = ", ".join(str(place) for place in places[:4]) + ", ..." * (len(places) > 4)
        raise DataError(
            f"{annotations}: its pictures, such as {names[0]}, are not in {looked}: name the "
            "folder that their names are relative to by --images"
        )
    return best


def _places(annotations: Path) -> list[Path]:
    near = [annotations.parent, annotations.parent.parent]
    near = [place for folder in near for place in (folder / "images", folder)]
    inside = [
        place
        for folder in near
        if folder.is_dir()
        for place in sorted(folder.iterdir())
        if place.is_dir()
    ]
    return list(dict.fromkeys([*near, *inside]))


def _name(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix().lower()


def _is_coco(file: Path) -> bool:
    """Whether the beginning of a json file looks like COCO's."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        data = opened.read(_READ)
    text = data.decode(json.detect_encoding(data), "replace")
    return re.search(r'"(images|annotations|categories)"\s*:\s*\[', text) is not None
