"""COCO json files: find them and their images in folders, and split them."""

import hashlib
import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from detlite.data.annotations.scan import is_coco
from detlite.data.annotations.store import open_table
from detlite.data.findings import Findings
from detlite.data.images.reading import image_size
from detlite.files.errors import DataError

from .file_tree import IMAGES_OPTION, FileTree, NoImageError, excerpt

VAL_FRACTION = 0.2
_SAMPLE = 20  # images that decide whether a folder is the right one
_TEST = re.compile(r"(?<![a-z])test(?![a-z])")
_SPLITS = {"train": r"train", "val": r"val(id(ation)?)?(?![a-z])"}


def find_coco_files(tree: FileTree) -> tuple[dict[str, Path], list[Path]]:
    """Find the annotation files of a folder by name: "train", and "val" if present; and the others.

    They may be in the folder, in its `annotations`, or next to their images in `train` and `val`.
    A file for both, such as trainval.json, counts as "train". DataError for ambiguous names.
    """
    folder = tree.root
    near = [f for f in tree.with_suffix(".json") if folder in (f.parent, f.parent.parent)]
    files = list(filter(_is_coco, near))
    if len(files) <= 1:
        return ({"train": files[0]} if files else {}), []
    named: defaultdict[str, list[Path]] = defaultdict(list)
    for file in files:
        named[_split_name(file, folder)].append(file)
    train, val, test, both = (named[split] for split in ("train", "val", "test", "trainval"))
    if len(train) == 1 and (len(val) == 1 or len(test) == len(files) - 1):
        used = {split: named[split][0] for split in ("train", "val") if named[split]}
        return used, [file for file in files if file not in used.values()]
    if len(both) == 1 and not train and not val:
        return {"train": both[0]}, [file for file in files if file != both[0]]
    names = ", ".join(str(file.relative_to(folder)) for file in files)
    raise DataError(
        f"{folder}: contains several annotation files ({names}): name the one to train on with "
        "--data, and the one to evaluate on with `detlite init --val`"
    )


def find_images(annotations: Path, folder: Path | None = None) -> Path:
    """Find the folder that the file names of a COCO file are relative to.

    Without a `folder`, the folder of the file, its parent, their `images`, and the folders in them
    are searched. If several contain the same number of images, the one named like the file, "train"
    or "val", is preferred. Raises DataError if no folder contains the images, or several do.
    """
    table = open_table(annotations)
    count = len(table)
    sample = range(0, count, max(count // _SAMPLE, 1))
    names = [table.image(number)["file_name"] for number in sample]
    root = annotations.parent.parent
    usual = [path for parent in (annotations.parent, root) for path in (parent / "images", parent)]
    inner = (path for parent in usual for path in sorted(parent.glob("*")) if os.path.isdir(path))
    candidates = [folder] if folder else [*usual, *inner]
    counts = {path: sum(os.path.isfile(path / name) for name in names) for path in candidates}
    max_count = max(counts.values())
    if not max_count:
        searched = ", ".join(map(str, [*counts][:4])) + ", ..." * (len(counts) > 4)
        raise DataError(
            f"{annotations}: its images, such as {names[0]}, are not in {searched}: name the "
            f"folder that their names are relative to with {IMAGES_OPTION}"
        )
    best = [path for path in counts if counts[path] == max_count]
    if not folder and (split := _split_name(annotations, root)):
        best = [path for path in best if _split_name(path, root) == split] or best
    if len(best) > 1 and best[0] not in usual:
        raise DataError(
            f"{annotations}: its images, such as {names[0]}, are in several folders "
            f"({', '.join(map(str, best))}): name the right one with {IMAGES_OPTION}"
        )
    return best[0]


def read_coco(
    file: Path, images: Path | None, upright: bool = True
) -> tuple[Path | dict[str, Any], Path]:
    """Return a COCO file and the folder that its file names are relative to, see `find_images`.

    If images have other names or no size in the file, its content is returned with the right ones.
    """
    problem = None
    try:
        folder = find_images(file, images)
    except DataError as error:
        folder, problem = images or file.parent, error
    table = open_table(file)
    names = [table.image(number)["file_name"] for number in range(len(table))]
    missing = [name for name in names if not os.path.isfile(folder / name)]
    found: dict[str, Path] = {}
    if missing:
        near = FileTree(file, images or (folder if folder != file.parent else None))
        for name in missing:
            with suppress(NoImageError):  # reported as a missing file
                found[name] = near.image(name, file)
    if problem and not found:
        raise problem
    if not found and (table.sizes > 0).all():
        return file, folder
    root = Path(os.path.commonpath([folder, *(path.parent for path in found.values())]))
    content = table.full_content()
    findings = Findings(Findings.from_json(content.get("findings")))
    for row in content["images"]:
        path = found.get(row["file_name"], folder / row["file_name"])
        if row["file_name"] in found:
            text = "The written annotations have the names of the files."
            example = f"{row['file_name']}: {path}"
            findings.add("file names in another notation", text, example, "image")
        row["file_name"] = os.path.relpath(path, root).replace(os.sep, "/")
        if not row["height"]:
            row["height"], row["width"] = image_size(path, upright)
            example = f"image {row['id']} ({row['file_name']})"
            text = "They are read from the image files."
            findings.add("images without height and width", text, example, "image")
    return {**content, "findings": findings.to_json()}, root


def split_content(
    content: dict[str, Any], within: str = "", groups: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Split the content of a COCO file into "train" and "val" by a hash of the file names.

    An image stays in its split when others are added, except to ensure that both splits have an
    annotated image, and that "train" has one with each category if possible. With a single
    annotated image there is no "val". `within`, the image folder relative to the dataset, is hashed
    with the names.
    `groups` are names of images that stay together, each with the name that is hashed instead.
    """
    annotated = {str(row.get("image_id")) for row in content["annotations"]}
    hashes = {}
    for row in content["images"]:
        name = (groups or {}).get(row["file_name"], row["file_name"])
        path = posixpath.normpath(posixpath.join(within, name)) if within else name
        hashes[str(row["id"])] = _hash_fraction(path)
    values = sorted({hashes[number] for number in annotated & hashes.keys()})
    if len(values) < 2:  # one annotated image, or all of them in one group
        return {"train": content}
    low = {n for n, value in hashes.items() if value < VAL_FRACTION or value == values[0]}
    images_of: defaultdict[Any, set[float]] = defaultdict(set)  # hashes by category
    for row in content["annotations"]:
        if str(row.get("image_id")) in hashes:
            images_of[row.get("category_id")].add(hashes[str(row["image_id"])])
    in_train = {values[-1], *(hashes[number] for number in hashes.keys() - low)}
    moved: list[float] = []
    for found in sorted(images_of.values(), key=len):
        if not found & {*in_train, *moved}:  # all of its images are in "val"
            moved.append(max(found))
    if in_train | {*moved} >= {*values}:  # "val" keeps the image that moved last
        moved.pop()
    val = {number for number in low if hashes[number] not in {values[-1], *moved}}

    findings = Findings.from_json(content.get("findings")).before_split()
    shared = {**content, "findings": findings.to_json()} if len(findings) else content

    def part(is_val: bool) -> dict[str, Any]:
        # Annotations of unknown images stay in "train", where they are reported.
        keys = {"images": "id", "annotations": "image_id"}
        return shared | {
            name: [row for row in content[name] if (str(row.get(key)) in val) == is_val]
            for name, key in keys.items()
        }

    return {"train": part(False), "val": part(True)}


def _hash_fraction(name: str) -> float:
    """Return a number in [0, 1) that depends only on a name."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _split_name(path: Path, root: Path) -> str:
    """Return the "train", "val", "trainval" or "test" in the name of a path or its parents."""
    for name in (path.name.lower(), path.relative_to(root).as_posix().lower()):
        if split := "".join(split for split, text in _SPLITS.items() if re.search(text, name)):
            return split
    return "test" if _TEST.search(name) else ""


def _is_coco(file: Path) -> bool:
    """Return True if a json file has COCO's three lists and is not a panoptic file."""
    keys = [rf'"{key}"\s*:\s*\[' for key in ("images", "annotations", "categories")]
    text = excerpt(file).lstrip("\ufeff \t\r\n")
    if not text.startswith("{") or not any(re.search(key, text, re.IGNORECASE) for key in keys):
        return False
    return is_coco(file)
