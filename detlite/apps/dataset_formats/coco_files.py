"""COCO json files: find them and their images in folders, and split them."""

import hashlib
import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from detlite.data.annotations.scan import is_coco
from detlite.data.annotations.store import open_table
from detlite.data.findings import Findings
from detlite.data.images.reading import image_size
from detlite.files.errors import DataError
from detlite.structures.names import is_inside

from .file_tree import FileTree, NoImageError, excerpt

VAL_FRACTION, _TOLERANCE = 0.2, 0.2  # of all images; of that fraction
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
    counts = {
        path: sum(is_inside(name, path) and os.path.isfile(path / name) for name in names)
        for path in candidates
    }
    max_count = max(counts.values())
    if not max_count:
        searched = ", ".join(map(str, [*counts][:4])) + ", ..." * (len(counts) > 4)
        raise DataError(
            f"{annotations}: its images, such as {names[0]}, are not in {searched}: name the "
            f"folder that their names are relative to with --images"
        )
    best = [path for path in counts if counts[path] == max_count]
    if not folder and (split := _split_name(annotations, root)):
        best = [path for path in best if _split_name(path, root) == split] or best
    if len(best) > 1 and best[0] not in usual:
        raise DataError(
            f"{annotations}: its images, such as {names[0]}, are in several folders "
            f"({', '.join(map(str, best))}): name the right one with --images"
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
    missing = [
        name for name in names
        if not (is_inside(name, folder) and os.path.isfile(folder / name))
    ]  # fmt: skip
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
            what = "file names in another notation"
            findings.add(what, text, example, "image", images=[row["id"]])
        row["file_name"] = os.path.relpath(path, root).replace(os.sep, "/")
        if not row["height"]:
            row["height"], row["width"] = image_size(path, upright)
            example = f"image {row['id']} ({row['file_name']})"
            text = "They are read from the image files."
            what = "images without height and width"
            findings.add(what, text, example, "image", images=[row["id"]])
    return {**content, "findings": findings.to_json()}, root


def split_content(
    content: dict[str, Any], within: str = "", labels: np.ndarray | None = None
) -> dict[str, dict[str, Any]]:
    """Split the content of a COCO file into "train" and "val" by a hash of the file names.

    One image in five is in "val". An image stays in its split when others are added, except to keep
    this fraction, and to ensure that both splits have an annotated image, and that "train" has one
    with each category if possible. With a single annotated group there is no "val".

    Args:
        within: the image folder relative to the dataset, which is hashed with the names.
        labels: [I], index of the first image of each image's group; None: each is its own group.
    """
    names = [row["file_name"] for row in content["images"]]
    labels = np.arange(len(names)) if labels is None else labels
    ids = (str(row["id"]) for row in content["images"])
    group_of = dict(zip(ids, labels.tolist(), strict=True))
    categories = defaultdict[int, set[Any]](set)  # of annotated groups
    for row in content["annotations"]:
        if str(row.get("image_id")) in group_of:
            categories[group_of[str(row["image_id"])]].add(row.get("category_id"))
    if len(categories) < 2:
        return {"train": content}
    paths = {group: posixpath.join(within, names[group]) for group in set(group_of.values())}
    hashes = {group: _hash_fraction(posixpath.normpath(path)) for group, path in paths.items()}
    sizes = Counter(group_of.values())
    order = sorted(hashes, key=hashes.__getitem__)
    val_groups = _evaluation_groups(
        [n for n in order if n in categories], sizes, hashes, categories
    )
    val_groups |= _evaluation_groups([n for n in order if n not in categories], sizes, hashes, {})
    val = {number for number, group in group_of.items() if group in val_groups}
    findings = Findings.from_json(content.get("findings"))

    def part(is_val: bool) -> dict[str, Any]:
        # Annotations of unknown images stay in "train", where they are reported.
        images, annotations = (
            [row for row in content[name] if (str(row.get(key)) in val) == is_val]
            for name, key in (("images", "id"), ("annotations", "image_id"))
        )
        result = {**content, "images": images, "annotations": annotations}
        if len(findings):
            shown = {str(row["id"]): f"image {row['id']} ({row['file_name']})" for row in images}
            result["findings"] = findings.of_images(shown, others=not is_val).to_json()
        return result

    return {"train": part(False), "val": part(True)}


def _evaluation_groups(
    order: Sequence[int],
    sizes: Mapping[int, int],
    hashes: Mapping[int, float],
    categories: Mapping[int, set[Any]],
) -> set[int]:
    """Choose groups with about one in five images, those with the lowest hashes if possible.

    A category that few groups have stays in one of the others. Unless there are no `categories`, at
    least one group is chosen.
    """
    target, count = VAL_FRACTION * sum(sizes[group] for group in order), 0
    highest = max((1 + _TOLERANCE) * target, round(target))
    chosen = set[int]()
    left = Counter(category for group in order for category in categories.get(group, ()))

    def is_needed(group: int) -> bool:
        return any(left[category] == 1 for category in categories.get(group, ()))

    def choose(group: int) -> int:
        chosen.add(group)
        left.subtract(categories.get(group, ()))
        return sizes[group]

    for group in order:
        is_wanted = hashes[group] < VAL_FRACTION or count < (1 - _TOLERANCE) * target
        if is_wanted and count + sizes[group] <= highest and not is_needed(group):
            count += choose(group)
    if categories and count < target / 2:  # the other groups are large
        rest = [group for group in order if group not in chosen]
        group = min(rest, key=lambda group: (is_needed(group), sizes[group]))
        if not count or (not is_needed(group) and sizes[group] <= 2 * target):
            choose(group)
    return chosen


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
