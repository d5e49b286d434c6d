"""Read the images and categories of an annotation file into COCO's notation; report changes."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detlite.data.datasets.coco_values import parse_integer
from detlite.data.findings import Findings
from detlite.files.errors import DataError, short_repr

from .states import WRITTEN_ID, set_file_name

Entry = dict[str, Any]

_AS_INTEGERS = "They are read as integers."


class Ids:
    """Reads ids as integers, or numbers all of them from 1 if one is not an integer.

    Ids that differ only in notation, such as "01" and "1", are numbered too.
    """

    def __init__(self, ids: Iterable[Any]) -> None:
        by_text = {str(x): parse_integer(x) for x in ids}
        self._numbered = None in by_text.values() or len({*by_text.values()}) < len(by_text)
        self._numbers = {text: number for number, text in enumerate(by_text, start=1)}

    def __call__(self, value: Any) -> int | None:
        return self._numbers.get(str(value)) if self._numbered else parse_integer(value)

    def read_own(self, value: Any, findings: Findings, where: str, kinds: tuple[str, str]) -> int:
        """Read one of the `ids`, and report it if it is not an integer.

        `kinds` names the entry for the report, as ("image", "images").
        """
        one, several = kinds
        if self._numbered:
            numbered = f"{several.capitalize()} are numbered from 1 in the order of the file"
            effect = f"{numbered}, also in results."
            findings.add(f"ids of {several} that are not all integers", effect, where, one)
        elif type(value) is not int:
            findings.add(f"ids of {several} as text or fractions", _AS_INTEGERS, where, one)
        return self(value) or 0


@dataclass
class ImageTable:
    """The valid image entries of a file.

    Attributes:
        positions: their positions in the file.
        sizes: (height, width); 0 if missing.
        read_id: converts ids as written.
        same: for each further entry of an image file, its id and the id of the first entry.
        problems: the invalid entries, and what is wrong with them.
    """

    read_id: Ids
    problems: list[tuple[str, str]]
    same: dict[int, int] = field(default_factory=dict)
    positions: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)


def read_images(
    file: Path, entries: Iterable[Entry], by_url: bool, findings: Findings
) -> ImageTable:
    """Read the image entries of a file. Raises DataError if none is valid."""
    rows: list[tuple[int, Any, str, tuple[int, int]]] = []
    problems: list[tuple[str, str]] = []
    for position, entry in enumerate(entries):
        set_file_name(entry, by_url)
        where = f"image {short_repr(entry.get('id'))}, entry {position} of 'images'"
        if problem := _image_problem(entry):
            problems.append((where, problem))
            continue
        written = [entry.get(key) for key in ("height", "width")]
        if any(side is not None and type(side) is not int for side in written):
            findings.add("sizes of images as text or fractions", _AS_INTEGERS, where, "image")
        height, width = (parse_integer(side) or 0 for side in written)
        rows.append((position, entry["id"], entry["file_name"], (height, width)))
    table = ImageTable(Ids(row[1] for row in rows), problems)
    files: defaultdict[int | None, set[tuple[Any, ...]]] = defaultdict(set)
    for _, raw, name, size in rows:
        files[table.read_id(raw)].add((name, size))
    owners: dict[tuple[Any, ...], int] = {}
    for position, raw, name, size in rows:
        where = f"image {short_repr(raw)}, entry {position} of 'images'"
        image_id = table.read_id.read_own(raw, findings, where, ("image", "images"))
        if len(files[image_id]) > 1:  # to which of the files do annotations belong?
            problems.append((where, "the id occurs twice, with different files or sizes"))
        elif (name, size) not in owners:
            owners[name, size] = image_id
            table.ids.append(image_id)
            table.sizes.append(size)
            table.positions.append(position)
            table.folders.add(name.rpartition("/")[0])
        else:
            table.same[image_id] = owners[name, size]
            effect = "The first entry is used, with the objects of all."
            findings.add("images that are listed twice", effect, f"{where} ({name})", "image")
    if not table.ids:
        reason = f"no image is valid, {': '.join(problems[0])}" if problems else "'images' is empty"
        raise DataError(f"{file}: not in COCO format: {reason}")
    return table


def _image_problem(entry: Entry) -> str:
    name = entry.get("file_name")
    if not _is_id(entry.get("id")):
        return f"has id: {short_repr(entry.get('id'))}, not an integer"
    if not isinstance(name, str) or not name:
        return f"has file_name: {short_repr(name)}, not a name"
    sides = {key: entry.get(key) for key in ("height", "width")}
    if not any(sides.values()):
        return ""  # `CocoDataset` asks for it, and `detlite init` measures it
    for key, side in sides.items():
        if parse_integer(side) is None:
            return f"has {key}: {short_repr(side)}, not an integer"
    if min(parse_integer(side) or 0 for side in sides.values()) < 1:
        return f"has size {sides['width']}x{sides['height']}"
    return ""


def _is_id(value: Any) -> bool:
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)


def read_categories(
    file: Path, entries: list[Entry], findings: Findings
) -> tuple[list[Entry], Ids]:
    """Read the category entries of a file. Raises DataError."""
    for position, row in enumerate(entries):
        for key in ("id", "name"):
            if not _is_id(row.get(key)):
                raise DataError(
                    f"{file}: not in COCO format: categories[{position}] (id "
                    f"{short_repr(row.get('id'))}) has {key}: {short_repr(row.get(key))}"
                )
    if not entries:
        raise DataError(f"{file}: not in COCO format: 'categories' is empty")
    read_id = Ids(row["id"] for row in entries)
    valid: dict[int, Entry] = {}
    for row in entries:
        example = f"id {short_repr(row['id'])}, name {short_repr(row['name'])}"
        category_id = read_id.read_own(row["id"], findings, example, ("category", "categories"))
        if not isinstance(row["name"], str):
            effect = "The text of the number is the name."
            findings.add("names of categories that are numbers", effect, example, "category")
        category = {**row, "id": category_id, "name": str(row["name"])}
        if type(row["id"]) is not int:
            category[WRITTEN_ID] = row["id"]
        if valid.setdefault(category_id, category)["name"] != category["name"]:
            raise DataError(f"{file}: the id {category_id} occurs twice in 'categories'")
    keypoints = [row["keypoints"] for row in valid.values() if row.get("keypoints")]
    for other in keypoints:
        if other != keypoints[0]:
            effect = "All are used with the names of the category with the lowest id."
            what = "categories whose keypoints have other names"
            findings.add(what, effect, short_repr(other), "category")
    return list(valid.values()), read_id


def drop_namesakes(
    file: Path, categories: list[Entry], used: set[int], findings: Findings
) -> list[Entry]:
    """Drop categories without annotations that are the root or have the name of another one.

    Exports of Roboflow have a root category, which is the supercategory of the others. Raises
    DataError if two categories with annotations have the same name.
    """
    effect = "They have no annotation and are skipped."
    by_name: dict[str, Entry] = {}
    # Categories with annotations come first, root categories last.
    for row in sorted(
        categories, key=lambda row: (row["id"] not in used, row.get("supercategory") == "none")
    ):
        first = by_name.setdefault(row["name"], row)
        if row is first:
            continue
        if row["id"] in used:
            raise DataError(
                f"{file}: categories {first['id']} and {row['id']} have the same name "
                f"{short_repr(row['name'])}. Results are listed by name, so rename one"
            )
        example = f"id {row['id']}, {short_repr(row['name'])}"
        findings.add("categories with the name of another one", effect, example, "category")
    alike = defaultdict(list)
    for name, row in by_name.items():
        form = re.sub(r"[\s_-]+", " ", name).strip().casefold()
        alike[form].append(f"id {row['id']}, {short_repr(name)}")
    for names in alike.values():
        if len(names) > 1:
            text = "They are different categories. Give equal categories the same name."
            what = "categories whose names differ only in case, spaces, - or _"
            findings.add(what, text, "; ".join(names), "category", len(names))
    kept = [row for row in categories if by_name[row["name"]] is row]
    names = [row["name"] for row in kept if row["id"] == 0 and row.get("supercategory") == "none"]
    others = [row for row in kept if row["id"] != 0]
    if names and 0 not in used and {str(row.get("supercategory")) for row in others} == {*names}:
        example = f"id 0, {short_repr(names[0])}"
        findings.add("root categories of all others", effect, example, "category")
        return others
    return kept
