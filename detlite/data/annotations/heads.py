"""Read the images and categories of an annotation file into COCO's notation; report changes."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from detlite.data.findings import Findings
from detlite.errors import one_line
from detlite.files.errors import DataError, short_repr
from detlite.structures.names import category_form, clean_path

from .ids import WRITTEN_ID, Ids, is_id, parse_integer
from .notation import Row

_AS_INTEGERS = "They are read as integers."
_MAX_SIDE = 1 << 31  # pixels
_MAX_NAME = 1000  # characters


def _read_id(ids: Ids, written: Any, findings: Findings, where: str, kind: str) -> int:
    """Return the integer of an id of a list, and report it if it is written otherwise."""
    number = ids.number(written) or 0
    if type(written) is not int or number != written:
        effect = "Texts of integers are read as these; others get new integers, also in results."
        example = f"{where}: read as {number}"
        images = [number] * (kind == "image")
        findings.add(f"{kind} ids that are not integers", effect, example, kind, images=images)
    return number


@dataclass
class ImageTable:
    """The valid image entries of a file.

    Attributes:
        known: converts ids as written.
        positions: their positions in the file.
        sizes: (height, width); 0 if missing.
        same: for each further entry of an image file, its id and the id of the first entry.
        problems: the invalid entries, and what is wrong with them.
        unused: the `id` and WRITTEN_ID of entries that are invalid or in `same`.
        federated: entries list the categories that are labeled in them, as LVIS's do.
    """

    known: Ids
    problems: list[tuple[str, str]]
    same: dict[int, int] = field(default_factory=dict)
    positions: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    unused: list[Row] = field(default_factory=list)
    federated: bool = False

    @property
    def numbers(self) -> dict[int, int]:
        """The position in this table of each id."""
        numbers = {image_id: number for number, image_id in enumerate(self.ids)}
        return numbers | {other: numbers[first] for other, first in self.same.items()}


def read_images(
    file: object, entries: Iterable[Row], by_url: bool, nameless: bool, findings: Findings
) -> ImageTable:
    """Read the image entries of a file. Raises DataError if none is valid.

    With `nameless`, they need no file name.
    """
    rows: list[tuple[int, Any, bool, str, tuple[int, int]]] = []
    problems: list[tuple[str, str]] = []
    written_ids: list[Any] = []
    federated = False
    for position, entry in enumerate(entries):
        set_file_name(entry, by_url, nameless)
        where = f"image {short_repr(entry.get('id'))}, entry {position} of 'images'"
        federated |= "neg_category_ids" in entry
        written_ids += [entry["id"]] if is_id(entry.get("id")) else []
        if problem := _image_problem(entry):
            problems.append((where, problem))
            continue
        written = [entry.get(key) for key in ("height", "width")]
        is_odd = any(side is not None and type(side) is not int for side in written)
        height, width = (parse_integer(side) or 0 for side in written)
        rows.append((position, entry["id"], is_odd, entry["file_name"], (height, width)))
    table = ImageTable(Ids(written_ids), problems, federated=federated)
    values = [(table.known.number(raw), file_and_size) for _, raw, _, *file_and_size in rows]
    last = dict(values)
    ambiguous = {image_id for image_id, value in values if last[image_id] != value}
    owners: dict[tuple[Any, ...], int] = {}
    for position, raw, is_odd, name, size in rows:
        where = f"image {short_repr(raw)}, entry {position} of 'images'"
        image_id = _read_id(table.known, raw, findings, where, "image")
        if is_odd:
            what = "sizes of images as text or fractions"
            findings.add(what, _AS_INTEGERS, where, "image", images=[image_id])
        if image_id in ambiguous:  # to which of the files do annotations belong?
            problems.append((where, "the id occurs twice, with different files or sizes"))
        elif (name, size) in owners:
            table.same[image_id] = owners[name, size]
            effect = "The first entry is used, with the objects of all."
            what, images = "images that are listed twice", [owners[name, size]]
            findings.add(what, effect, f"{where} ({name})", "image", images=images)
        else:
            owners[name, size] = image_id
            table.ids.append(image_id)
            table.sizes.append(size)
            table.positions.append(position)
            table.folders.add(name.rpartition("/")[0])
    used, written_as = {*table.ids}, {table.known.number(raw): raw for raw in written_ids}
    table.unused = [{"id": n, WRITTEN_ID: written_as[n]} for n in written_as if n not in used]
    if not table.ids:
        reason = f"no image is valid, {': '.join(problems[0])}" if problems else "'images' is empty"
        raise DataError(f"{file}: not in COCO format: {reason}")
    return table


def _image_problem(entry: Row) -> str:
    """Describe the fields of an image entry that cannot be used; return "" if all can."""
    name = entry.get("file_name")
    unusable = [] if is_id(entry.get("id")) else ["id"]
    if not name or not isinstance(name, str):
        unusable.append("file_name")
    # `CocoDataset` asks for a missing size, and `detlite init` measures it.
    if entry.get("height") or entry.get("width"):
        for key in ("height", "width"):
            if not 0 < (parse_integer(entry.get(key)) or 0) < _MAX_SIDE:
                unusable.append(key)
    if not unusable:
        return ""
    values = [f"has {key}: {short_repr(entry.get(key))}" for key in unusable]
    return f"{', '.join(values)}, which cannot be used"


def set_file_name(image: Row, by_url: bool, nameless: bool = False) -> Row:
    """Set the `file_name` of an image entry from its `coco_url`, in place, if it has none.

    With `by_url`, `coco_url` takes precedence: LVIS v0.5 has file names without the folder, and
    some that COCO no longer uses. With `nameless`, a missing name is made from the id. See
    `clean_path` for the form of the name.
    """
    # LVIS v1 has only URLs, which end in train2017/<file> or val2017/<file>.
    if (by_url or "file_name" not in image) and isinstance(image.get("coco_url"), str):
        image["file_name"] = "/".join(image["coco_url"].split("/")[-2:])
    name = image.get("file_name")
    if nameless and not name:
        image["file_name"] = f"image {image.get('id')}"
    elif name and isinstance(name, str):
        image["file_name"] = clean_path(name)
    return image


def read_categories(
    file: object, entries: list[Row], nameless: bool, findings: Findings
) -> tuple[list[Row], Ids]:
    """Read the category entries of a file. Raises DataError.

    With `nameless`, they need no name.
    """
    for row in entries if nameless else ():
        if row.get("name") is None:
            row["name"] = str(row.get("id"))
    for position, row in enumerate(entries):
        for key in ("id", "name"):
            if not is_id(row.get(key)):
                raise DataError(
                    f"{file}: not in COCO format: categories[{position}] (id "
                    f"{short_repr(row.get('id'))}) has {key}: {short_repr(row.get(key))}"
                )
    if not entries:
        raise DataError(f"{file}: not in COCO format: 'categories' is empty")
    ids = Ids(row["id"] for row in entries)
    valid: dict[int, Row] = {}
    for row in entries:
        example = f"id {short_repr(row['id'])}, name {short_repr(row['name'])}"
        category_id = _read_id(ids, row["id"], findings, example, "category")
        if (length := len(str(row["name"]))) > _MAX_NAME:
            raise DataError(
                f"{file}: the name of category {category_id} has {length} characters, "
                f"more than {_MAX_NAME}"
            )
        name = one_line(row["name"])  # it becomes part of configs, tables and messages
        if name != row["name"]:
            effect = "Their text is used, with control characters escaped."
            what = "names of categories that are numbers or have control characters"
            findings.add(what, effect, example, "category")
        category = {**row, "id": category_id, "name": name}
        if type(row["id"]) is not int:
            category[WRITTEN_ID] = row["id"]
        if valid.setdefault(category_id, category)["name"] != category["name"]:
            raise DataError(f"{file}: the id {category_id} occurs twice in 'categories'")
    keypoints = [row["keypoints"] for row in valid.values() if row.get("keypoints")]
    effect = "All are used with the names of the category with the lowest id."
    for other in keypoints:
        if other != keypoints[0]:
            what = "categories whose keypoints have other names"
            findings.add(what, effect, short_repr(other), "category")
    return list(valid.values()), ids


def drop_namesakes(
    file: object, categories: list[Row], used: set[int], findings: Findings
) -> list[Row]:
    """Drop categories without annotations that are the root or have the name of another one.

    Exports of Roboflow have a root category, which is the supercategory of the others. Raises
    DataError if two categories with annotations have the same name.
    """
    effect = "They have no annotation and are skipped."
    by_name: dict[str, Row] = {}
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
    text = "They are different categories. Give equal categories the same name."
    what = "categories whose names differ only in case, spaces, - or _, or in Unicode's forms"
    alike = defaultdict(list)
    for name, row in by_name.items():
        alike[category_form(name)].append(f"id {row['id']}, {short_repr(name)}")
    for names in alike.values():
        if len(names) > 1:
            findings.add(what, text, "; ".join(names), "category", len(names))
    kept = [row for row in categories if by_name[row["name"]] is row]
    names = [row["name"] for row in kept if row["id"] == 0 and row.get("supercategory") == "none"]
    others = [row for row in kept if row["id"] != 0]
    if names and 0 not in used and {str(row.get("supercategory")) for row in others} == {*names}:
        example = f"id 0, {short_repr(names[0])}"
        findings.add("root categories of all others", effect, example, "category")
        return others
    return kept
