"""Read the entries of an annotation file into COCO's notation, and note what was not in it."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from detlite.data.datasets.coco_values import (
    CLIPPED,
    EFFECTS,
    FROM_MASK,
    TEXT,
    Reading,
    integer,
    mask_box,
    number,
    numbers,
    read_box,
    read_keypoints,
    read_segmentation,
)
from detlite.data.errors import DataError, short_repr
from detlite.data.findings import Findings

from .states import (
    BAD_BOX,
    BAD_CROWD,
    BAD_KEYPOINTS,
    BAD_MASK,
    CROWD,
    IGNORED,
    NO_MASK,
    REGION,
    UNKNOWN_CATEGORY,
    UNKNOWN_IMAGE,
    annotation_name,
    describe,
)

Entry = dict[str, Any]

_AS_INTEGERS = "They are read as integers."
_MIN_BOXES = 4  # that can show that all are wrong


class Ids:
    """Reads ids as integers, or numbers all of them from 1 if one is no integer.

    Two ids that differ only in notation, such as "01" and "1", are not read as integers either.
    """

    def __init__(self, ids: Iterable[Any]) -> None:
        by_text = {str(one): integer(one) for one in ids}
        self.numbered = None in by_text.values() or len({*by_text.values()}) < len(by_text)
        self._numbers = {text: number for number, text in enumerate(by_text, start=1)}

    def __call__(self, value: Any) -> int | None:
        return self._numbers.get(str(value)) if self.numbered else integer(value)


def set_file_name(image: Entry, by_url: bool) -> Entry:
    """Set the `file_name` of an image entry from its `coco_url`, in place, if it has none.

    With `by_url`, `coco_url` takes precedence: LVIS v0.5 has file names without the folder, and
    some that COCO no longer uses. Backslashes of Windows become slashes.
    """
    # LVIS v1 has only URLs, which end in train2017/<file> or val2017/<file>.
    if (by_url or "file_name" not in image) and isinstance(image.get("coco_url"), str):
        image["file_name"] = "/".join(image["coco_url"].split("/")[-2:])
    if isinstance(image.get("file_name"), str):
        image["file_name"] = image["file_name"].replace("\\", "/")
    return image


@dataclass
class ImageTable:
    """The valid image entries of a file.

    Attributes:
        positions: int64 [I], their positions in the file.
        ids: int64 [I].
        sizes: int64 [I, 2], (height, width); 0 if missing.
        folders: the folders of the images.
        read_id: converts ids as written.
        problems: the other entries, and what is wrong with them.
    """

    positions: np.ndarray
    ids: np.ndarray
    sizes: np.ndarray
    folders: set[str]
    read_id: Ids
    problems: list[tuple[str, str]]


def read_images(
    file: Path, entries: Iterable[Entry], by_url: bool, findings: Findings
) -> ImageTable:
    """Read the image entries of a file. Raises DataError if none is valid."""
    rows: list[tuple[int, Any, str, int, int]] = []
    problems: list[tuple[str, str]] = []
    folders = set()
    for position, entry in enumerate(entries):
        name = set_file_name(entry, by_url).get("file_name")
        where = f"image {short_repr(entry.get('id'))}, entry {position} of 'images'"
        missing = entry.get("height") is None and entry.get("width") is None
        sides = [0 if missing else integer(entry.get(key)) for key in ("height", "width")]
        height, width = sides
        wrong = [key for key, side in zip(("height", "width"), sides, strict=True) if side is None]
        if not isinstance(entry.get("id"), (int, float, str)) or isinstance(entry["id"], bool):
            problems.append((where, f"has id: {short_repr(entry.get('id'))}, not an integer"))
        elif not isinstance(name, str) or not name:
            problems.append((where, f"has file_name: {short_repr(name)}, not a name"))
        elif height is None or width is None:
            value = short_repr(entry.get(wrong[0]))
            problems.append((where, f"has {wrong[0]}: {value}, not an integer"))
        elif min(height, width) < 1 and not missing:
            problems.append((where, f"has size {width}x{height}"))
        else:
            if any(type(entry[key]) is not int for key in ("height", "width") if not missing):
                findings.add("sizes of images as text or fractions", _AS_INTEGERS, where, "image")
            rows.append((position, entry["id"], name, height, width))
    read_id = Ids(row[1] for row in rows)
    ids, sizes, positions = array("q"), array("q"), array("q")
    seen: dict[int, tuple[Any, ...]] = {}
    for position, raw, name, *size in rows:
        image_id = read_id(raw)
        assert image_id is not None
        where = f"image {short_repr(raw)}, entry {position} of 'images'"
        if read_id.numbered:
            effect = "Images are numbered from 1 in the order of the file, also in results."
            findings.add("ids of images that are not all integers", effect, where, "image")
        elif type(raw) is not int:
            findings.add("ids of images as text or fractions", _AS_INTEGERS, where, "image")
        if seen.setdefault(image_id, (name, *size)) != (name, *size):
            problems.append((where, "the id occurs twice"))
        elif len(seen) == len(ids):
            effect = "The entries are equal, and one is used."
            findings.add("images that are listed twice", effect, where, "image")
        else:
            ids.append(image_id)
            sizes.extend(size)
            positions.append(position)
            folders.add(name.rpartition("/")[0])
    if not ids:
        first = ": ".join(problems[0]) if problems else ""
        reason = f"no image is valid, {first}" if first else "'images' is empty"
        raise DataError(f"{file}: not in COCO form: {reason}")
    return ImageTable(
        np.array(positions), np.array(ids), np.array(sizes).reshape(-1, 2), folders, read_id,
        problems,
    )  # fmt: skip


def read_categories(
    file: Path, entries: list[Entry], findings: Findings
) -> tuple[list[Entry], Ids]:
    """Read the category entries of a file. Raises DataError."""
    for position, row in enumerate(entries):
        for key in ("id", "name"):
            if not isinstance(row.get(key), (int, float, str)) or isinstance(row[key], bool):
                raise DataError(
                    f"{file}: not in COCO form: categories[{position}] (id "
                    f"{short_repr(row.get('id'))}) has {key}: {short_repr(row.get(key))}"
                )
    if not entries:
        raise DataError(f"{file}: not in COCO form: 'categories' is empty")
    read_id = Ids(row["id"] for row in entries)
    valid: dict[int, Entry] = {}
    for row in entries:
        category_id, name = read_id(row["id"]), row["name"]
        assert category_id is not None
        example = f"id {short_repr(row['id'])}, name {short_repr(name)}"
        if read_id.numbered:
            effect = "Categories are numbered from 1 in the order of the file, also in results."
            findings.add("ids of categories that are not all integers", effect, example, "category")
        elif type(row["id"]) is not int:
            findings.add(
                "ids of categories as text or fractions", _AS_INTEGERS, example, "category"
            )
        if not isinstance(name, str):
            effect = "The text of the number is the name."
            findings.add("names of categories that are numbers", effect, example, "category")
            name = str(name)
        first = valid.setdefault(category_id, {**row, "id": category_id, "name": name})
        if first["name"] != name:
            raise DataError(f"{file}: the id {category_id} occurs twice in 'categories'")
    lists = [row["keypoints"] for row in valid.values() if row.get("keypoints")]
    for other in lists[1:]:
        if other != lists[0]:
            effect = "All are used with the names of the category with the lowest id."
            what = "categories whose keypoints have other names"
            findings.add(what, effect, short_repr(other), "category")
    return list(valid.values()), read_id


def drop_namesakes(
    file: Path, categories: list[Entry], used: set[int], findings: Findings
) -> list[Entry]:
    """Leave out categories without an annotation that have the name of another one.

    Exports of Roboflow have such a root category, which is the supercategory of the others. Raises
    DataError if two categories of a name have annotations.
    """
    by_name: dict[str, list[Entry]] = {}
    for row in categories:
        by_name.setdefault(row["name"], []).append(row)
    kept = []
    for name, rows in by_name.items():
        with_objects = [row for row in rows if row["id"] in used]
        if len(with_objects) > 1:
            first, second = with_objects[:2]
            raise DataError(
                f"{file}: categories {first['id']} and {second['id']} have the same name "
                f"{short_repr(name)}. Results are listed by name, so rename one"
            )
        no_root = [row for row in rows if row.get("supercategory") != "none"]
        kept.append((with_objects or no_root or rows)[0])
        for row in rows:
            if row is not kept[-1]:
                effect = "They have no annotation and are left out."
                what = "categories with the name of another one"
                findings.add(what, effect, f"id {row['id']}, {short_repr(name)}", "category")
    return [row for row in categories if row in kept]


@dataclass
class AnnotationReader:
    """Reads annotations, collects findings, and counts boxes that are not in their images.

    Attributes:
        images, categories, read_category_id: what annotations refer to.
        keypoint_count: number of keypoints of an object.
        findings: what was read in another notation, and where.
        examples: the first annotation with each flag, and what is wrong with it.
    """

    images: ImageTable
    categories: list[Entry]
    read_category_id: Ids
    keypoint_count: int
    findings: Findings
    examples: dict[int, str] = field(default_factory=dict)
    boxes: int = 0
    like_corners: int = 0
    misplaced: int = 0
    first_misplaced: str = ""

    def __post_init__(self) -> None:
        self._places = {number: place for place, number in enumerate(self.images.ids.tolist())}
        self._sizes = [(height, width) for height, width in self.images.sizes.tolist()]
        self._category_ids = {row["id"] for row in self.categories}

    def read(self, row: Entry, position: int) -> tuple[Entry, int, int, int, int]:
        """Read an annotation.

        Returns:
            The annotation, the same object if it is in COCO's notation; its flags; the place of its
            image and the id of its category, 0 if unknown; and its number of labeled keypoints.
        """
        where = annotation_name(row, position)
        changes: Entry = {}
        flags, labeled, size = 0, 0, (0, 0)

        def use(key: str, reading: Reading, empty: Any = None) -> None:
            if reading.note:
                example = f"{where}: {key} {short_repr(row.get(key))}"
                self.findings.add(reading.note, EFFECTS[reading.note], example)
            if reading.value is not row.get(key, empty):
                changes[key] = reading.value

        image_id = self.images.read_id(row.get("image_id"))
        place = self._places.get(image_id) if image_id is not None else None
        category_id = self.read_category_id(row.get("category_id"))
        for key, value, known, flag in (
            ("image_id", image_id, place is not None, UNKNOWN_IMAGE),
            ("category_id", category_id, category_id in self._category_ids, UNKNOWN_CATEGORY),
        ):
            if not known:
                flags |= flag
            elif type(row.get(key)) is not int:
                use(key, Reading(value, note=TEXT if isinstance(row.get(key), str) else None))
        crowd = row.get("iscrowd") or 0
        crowd = int(crowd) if isinstance(crowd, bool) else integer(crowd)
        if crowd not in (0, 1):
            flags |= BAD_CROWD
        else:
            flags |= CROWD * crowd
            if crowd != row.get("iscrowd", 0) or type(row.get("iscrowd", 0)) is not int:
                use("iscrowd", Reading(crowd))
        flags |= IGNORED * (integer(row.get("ignore")) == 1)
        if (area := row.get("area")) is not None:
            pixels = number(area)
            if pixels is None or pixels < 0:
                effect = "They are computed from masks or boxes."
                self.findings.add("areas that are not square pixels", effect, f"{where}: {area}")
                changes["area"] = None
            else:
                use("area", Reading(pixels, note=TEXT if isinstance(area, str) else None))
        if place is not None:
            size = self._sizes[place]
            if size[0]:
                flags |= self._read_shape(row, size, where, changes, use)
            if self.keypoint_count:
                points = read_keypoints(row.get("keypoints"), self.keypoint_count)
                if points.problem:
                    flags |= BAD_KEYPOINTS
                else:
                    use("keypoints", points)
                    labeled = sum(v > 0 for v in points.value[2::3])
            elif row.get("keypoints"):
                effect = 'They are not used. Add "keypoints": ["nose", ...] to the category.'
                self.findings.add("keypoints that no category names", effect, where)
        for flag in (UNKNOWN_IMAGE, UNKNOWN_CATEGORY, BAD_BOX, BAD_CROWD, NO_MASK, BAD_MASK,
                     BAD_KEYPOINTS, CROWD, IGNORED):  # fmt: skip
            if flags & flag and flag not in self.examples:
                problem = ""
                if flag not in (CROWD, IGNORED):
                    described = describe(row, flag, size, self.categories, self.keypoint_count)
                    problem = f": {described}"
                self.examples[flag] = f"{where}{problem}"
        row = {**row, **changes} if changes else row
        return row, flags, -1 if place is None else place, category_id or 0, labeled

    def _read_shape(
        self, row: Entry, size: tuple[int, int], where: str, changes: Entry, use: Any
    ) -> int:
        """Read the box and the mask of an annotation, and return their flags."""
        flags = 0
        box = read_box(row.get("bbox"), *size)
        mask = read_segmentation(row.get("segmentation"), *size, box.value)
        if mask.problem:
            flags |= BAD_MASK if row.get("segmentation") else NO_MASK
        else:
            use("segmentation", mask)
        self.boxes += 1
        if box.problem is None:
            use("bbox", box)
        values = numbers(row.get("bbox"))
        sides = values is not None and len(values) == 4 and min(values[2:]) > 0
        if sides and values is not None:
            x, y, w, h = values
            self.like_corners += 0 <= x < w <= size[1] and 0 <= y < h <= size[0]
        if box.note == CLIPPED or "is outside" in (box.problem or ""):
            self.misplaced += 1
            self.first_misplaced = self.first_misplaced or f"{where}: bbox {row['bbox']}"
        if box.problem:
            tight = None if mask.problem else mask_box(mask.value, *size)
            if tight is not None and not sides:
                use("bbox", Reading(tight, note=FROM_MASK))
            elif tight is not None:
                flags |= BAD_BOX | REGION
                changes["region"] = tight
            else:
                flags |= BAD_BOX
        return flags

    def check_boxes(self, file: Path) -> None:
        """Raise DataError if most boxes are not inside their images, or all fit as corners."""
        corners = self.like_corners == self.boxes >= _MIN_BOXES and self.misplaced
        if corners or (self.misplaced >= _MIN_BOXES and self.misplaced > self.boxes / 2):
            raise DataError(
                f"{file}: {self.misplaced} of {self.boxes} boxes are outside of their images or "
                f"exceed them, for example {self.first_misplaced}. If these are corners "
                "[x1, y1, x2, y2], convert them to [x, y, width, height]; if they belong to images "
                "of another size, scale them"
            )
