"""COCO json files as folders hold them, and the pictures that belong to one."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path

from detlite.data.errors import DataError
from detlite.data.index.build import open_index

_READ = 1 << 16
_SAMPLE = 20  # pictures by which a folder is recognised
_PLACES = ("*.json", "annotations/*.json", "*/*.json")
WRITTEN = "detlite"  # the folder that `detlite init` writes annotation files to
_SPLITS = {"train": r"train", "val": r"val(id(ation)?)?(?![a-z])"}


def coco_files(folder: Path) -> dict[str, Path]:
    """The annotation files of a folder: "train", and "val" where one is called so; or none.

    They may lie in it, in its `annotations`, or beside their pictures in `train` and `val`. One for
    both, such as trainval.json, is not divided.

    Raises:
        DataError: there are several, and names do not say which is which.
    """
    found = {file for place in _PLACES for file in folder.glob(place)}
    files = sorted(file for file in found if file.parent.name != WRITTEN and _is_coco(file))
    if len(files) <= 1:
        return dict.fromkeys(["train"], files[0]) if files else {}
    train, val, both = (
        [file for file in files if _splits(file, folder) == wanted]
        for wanted in ({"train"}, {"val"}, {"train", "val"})
    )
    if len(train) == len(val) == 1:
        return {"train": train[0], "val": val[0]}
    if len(both) == 1 and not train and not val:
        return {"train": both[0]}
    listed = ", ".join(str(file.relative_to(folder)) for file in files)
    raise DataError(
        f"{folder}: holds several annotation files ({listed}): name that to train on by "
        "--data, and that to measure on by --val"
    )


def find_pictures(annotations: Path, folder: Path | None = None) -> Path:
    """The folder that the file names of an annotation file are relative to.

    Args:
        annotations: in COCO's form.
        folder: where to look, alone; None: beside the file and one folder up, there also in
            `images` and in the folders inside. Of those that hold the same number of its pictures
            the one that is named like the file, "train" or "val", goes before.

    Raises:
        DataError: the file is not in COCO's form, no picture of it is there, or several folders
            inside may be meant.
    """
    index = open_index(annotations)
    count = len(index.image_ids)
    numbers = range(0, count, max(count // _SAMPLE, 1))
    names = [index.image(number)["file_name"] for number in numbers]
    places = [folder] if folder else _places(annotations)
    found = {place: sum(os.path.isfile(place / name) for name in names) for place in places}
    most = max(found.values())
    if not most:
        looked = ", ".join(str(place) for place in places[:4]) + ", ..." * (len(places) > 4)
        raise DataError(
            f"{annotations}: its pictures, such as {names[0]}, are not in {looked}: name the "
            "folder that their names are relative to by --images"
        )
    best = [place for place in places if found[place] == most]
    root = annotations.parent.parent
    if not folder and (split := _splits(annotations, root)):
        best = [place for place in best if _splits(place, root) == split] or best
    if len(best) > 1 and best[0] not in _near(annotations):
        raise DataError(
            f"{annotations}: its pictures, such as {names[0]}, may be those in "
            f"{', '.join(map(str, best))}: name the folder by --images"
        )
    return best[0]


def _near(annotations: Path) -> list[Path]:
    """Where pictures are expected, the most usual place first."""
    folders = (annotations.parent, annotations.parent.parent)
    return [place for folder in folders for place in (folder / "images", folder)]


def _places(annotations: Path) -> list[Path]:
    places = _near(annotations)
    for folder in _near(annotations):
        with suppress(OSError):  # there is none, or it is not ours to look into
            places += [place for place in sorted(folder.iterdir()) if os.path.isdir(place)]
    return list(dict.fromkeys(places))


def _splits(file: Path, root: Path) -> set[str]:
    """Which of "train" and "val" the name of a file or folder says, or else its path in `root`."""
    for name in (file.name, file.relative_to(root).as_posix()):
        found = {split for split, text in _SPLITS.items() if re.search(text, name.lower())}
        if found:
            return found
    return set()


def _is_coco(file: Path) -> bool:
    """Whether the beginning of a json file looks like COCO's."""
    if not os.path.isfile(file):
        return False
    with file.open("rb") as opened:
        data = opened.read(_READ)
    text = data.decode(json.detect_encoding(data), "replace")
    return re.search(r'"(images|annotations|categories)"\s*:\s*\[', text) is not None
