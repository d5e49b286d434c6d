"""A small COCO file, and more than 300 variants of it that tools write.

A variant changes the content in place, or returns the text or bytes of the file.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from detlite.structures.masks.formats import encode_bitmap
from detlite.structures.masks.rle import run_lengths
from tests.builders import rectangle

HEIGHT, WIDTH = 60, 80
NAN, INF = float("nan"), float("inf")
Content = dict[str, Any]
Variant = Callable[[Content], Any]


def rle(box: tuple[int, ...], size: tuple[int, int] = (HEIGHT, WIDTH), plain: bool = False) -> Any:
    """Return the run lengths of a box (x, y, width, height), as integers if `plain`."""
    bitmap, (x, y, w, h) = np.zeros(size, np.uint8), box
    bitmap[y : y + h, x : x + w] = 1
    mask = encode_bitmap(bitmap)
    return {**mask, "counts": run_lengths(mask["counts"]).tolist()} if plain else mask


def content(keypoints: bool = False) -> Content:
    """Return the file: 6 images, 2 categories and 8 objects with each kind of mask."""
    boxes = [(1, 1, (10, 10, 20, 20)), (1, 2, (40, 10, 20, 30)), (2, 1, (5, 5, 30, 30)),
             (3, 2, (30, 20, 25, 25)), (4, 1, (12, 14, 16, 18)), (4, 1, (50, 30, 20, 20)),
             (5, 2, (8, 8, 40, 40)), (6, 1, (20, 20, 22, 23))]  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"id": n, "image_id": image, "category_id": category, "bbox": [*box], "iscrowd": 0,
         "area": box[2] * box[3], "segmentation": rectangle(*box)}
        for n, (image, category, box) in enumerate(boxes, start=1)
    ]  # fmt: skip
    rows[2]["segmentation"] = rle(boxes[2][2])
    rows[3]["segmentation"] = rle(boxes[3][2], plain=True)
    images = [{"id": n, "file_name": f"{n}.png", "height": HEIGHT, "width": WIDTH}
              for n in range(1, 7)]  # fmt: skip
    categories: list[dict[str, Any]] = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    if keypoints:
        for category in categories:
            category["keypoints"] = ["nose", "tail"]
        for row in rows:
            x, y, w, h = row["bbox"]
            points = [x + 2, y + 2, 2, x + w - 2, y + h - 2, 1]
            row |= {"keypoints": points, "num_keypoints": 2}
    return {"images": images, "categories": categories, "annotations": rows}


def first(key: str, **fields: Any) -> Variant:
    """Change fields of the first entry of a list; `...` removes one."""

    def change(truth: Content) -> None:
        truth[key][0].update(fields)
        for name in [name for name, value in fields.items() if value is ...]:
            del truth[key][0][name]

    return change


def every(key: str, change: Callable[[dict[str, Any]], Any]) -> Variant:
    """Change all entries of a list."""
    return lambda truth: [change(row) for row in truth[key]] and None


def ids(key: str, to: Callable[[int], Any], own: bool = True, refs: bool = True) -> Variant:
    """Change the ids of images or categories, and the references to them."""
    field = {"images": "image_id", "categories": "category_id"}[key]

    def change(truth: Content) -> None:
        for row in truth[key] if own else ():
            row["id"] = to(row["id"])
        for row in truth["annotations"] if refs else ():
            row[field] = to(row[field])

    return change


def append(key: str, **fields: Any) -> Variant:
    """Append the first entry of a list with other fields."""
    return lambda truth: truth[key].append({**truth[key][0], **fields})


def text(change: Callable[[str], Any], **fields: Any) -> Variant:
    """Change the text of the file, after setting fields of the first annotation."""
    return lambda truth: first("annotations", **fields)(truth) or change(json.dumps(truth))


def swap(old: str, new: str, **fields: Any) -> Variant:
    return text(lambda data: data.replace(old, new, 1), **fields)


def root(used: bool) -> Variant:
    """Add a root category, as exports of Roboflow have it."""

    def change(truth: Content) -> None:
        for row in truth["categories"]:
            row["supercategory"] = "animals"
        truth["categories"].insert(0, {"id": 0, "name": "animals", "supercategory": "none"})
        if used:
            truth["annotations"][0]["category_id"] = 0

    return change


_IDS: dict[str, Callable[[int], Any]] = {
    "text": str, "padded": lambda n: f"{n:05d}", "floats": float, "halves": lambda n: n + 0.5,
    "one text": lambda n: {1: 2, 2: 1}.get(n, n) if n < 6 else "six", "from 0": lambda n: n - 1,
    "large": lambda n: n + (1 << 40), "beyond floats": lambda n: n + (1 << 53),
    "beyond 64 bits": lambda n: n + (1 << 64), "01 and 1": lambda n: {1: "1", 2: "01"}.get(n, n),
    "other digits": lambda n: chr(0x660 + n), "underscore": lambda n: f"1_{n}",
    "exponent": lambda n: f"{n}e0", "names": lambda n: f"c{n}", "holes": lambda n: 37 * n,
    "descending": lambda n: 10 - n, "negative": lambda n: -n, "spaces": lambda n: f" {n} ",
    "mixed types": lambda n: {1: "1", 2: 2.0}.get(n, n), "float text": lambda n: f"{n}.0",
}  # fmt: skip
_BOXES: dict[str, Any] = {
    "texts": ["10", "10", "20", "20"], "one text": [10, "10", 20, 20], "json": "[10, 10, 20, 20]",
    "words": "10 10 20 20", "null": None, "empty": [], "three": [10, 10, 20],
    "five": [10, 10, 20, 20, 0.9], "NaN": [10, 10, NAN, 20], "inf": [10, 10, INF, 20],
    "nested": [[10, 10, 20, 20]], "object": {"x": 10, "y": 10, "w": 20, "h": 20},
    "bool": [True, 10, 20, 20], "no width": [10, 10, 0, 20], "no side": [10, 10, 0, 0],
    "negative": [30, 10, -20, 20], "left 1": [-1, 10, 20, 20], "left 15": [-15, 10, 40, 20],
    "right 1": [61, 41, 20, 20], "right 15": [75, 40, 20, 20], "outside": [200, 200, 20, 20],
    "touching": [80, 10, 20, 20], "fractions": [0.1, 0.1, 0.5, 0.5], "corners": [10, 10, 30, 30],
    "whole": [0, 0, 80, 60], "larger": [-1, -1, 82, 62], "tiny": [10, 10, 0.5, 0.5],
    "tiny at 0": [0, 0, 0.5, 0.5], "pixel": [0, 0, 1, 1], "1e-9": [10, 10, 1e-9, 1e-9],
    "1e300": [10, 10, 1e300, 20], "10**400": [10, 10, 10**400, 20],
    "null inside": [10, 10, None, 2],
    "decimals": [10.25, 10.5, 19.75, 20.125], "-0.0": [-0.0, 10, 20, 20], "...": ...,
}  # fmt: skip
_P = rectangle(10, 10, 20, 20)
_POINTS = [[10, 10], [30, 10], [30, 30], [10, 30]]
_R = rle((10, 10, 20, 20))
_RUNS = rle((10, 10, 20, 20), plain=True)["counts"]
_MASKS: dict[str, Any] = {
    "null": None, "list": [], "object": {}, "no text": "", "empty polygon": [[]], "...": ...,
    "odd": [[*_P[0], 5]], "four numbers": [[10, 10, 30, 30]], "flat": _P[0], "points": _POINTS,
    "nested points": [_POINTS], "opencv": [[[[x, y]] for x, y in _POINTS]], "deep": [[[[_POINTS]]]],
    "points by name": [{"x": x, "y": y} for x, y in _POINTS], "texts": [[str(x) for x in _P[0]]],
    "json": json.dumps(_P), "bad part": [*_P, [1, 2]], "empty part": [*_P, []],
    "word part": [*_P, "x"], "word first": ["x", *_P], "none first": [None, *_P],
    "two": rectangle(10, 10, 8, 20) + rectangle(20, 10, 10, 20), "NaN": [[10, 10, NAN, 10, 30, 30]],
    "inf": [[10, 10, INF, 10, 30, 30]], "line": [[10, 10, 20, 10, 30, 10]],
    "bbox": [10, 10, 20, 20],
    "no area": [[10, 10, 30, 30, 10, 10]], "outside": rectangle(200, 200, 20, 20),
    "partly": rectangle(70, 40, 40, 40), "far": rectangle(-300, 10, 350, 20), "number": 5,
    "fractions": rectangle(0.1, 0.1, 0.5, 0.5), "elsewhere": rectangle(50, 30, 20, 20),
    "true": True,
    "rle": _R, "runs": {**_R, "counts": _RUNS}, "rle in a list": [_R], "two rles": [_R, _R],
    "rle json": json.dumps(_R), "swapped": {"size": [WIDTH, HEIGHT], "counts": _RUNS},
    "swapped rows": rle((10, 10, 20, 20), (WIDTH, HEIGHT)),
    "other size": rle((1, 1, 9, 9), (50, 50)),
    "no pixel": {**_R, "counts": [HEIGHT * WIDTH]}, "no runs": {**_R, "counts": []},
    "short": {**_R, "counts": [100, 50]}, "garbage": {**_R, "counts": "xyz"},
    "é": {**_R, "counts": "é"}, "no counts": {"size": [HEIGHT, WIDTH]}, "null counts":
    {**_R, "counts": None}, "negative run": {**_R, "counts": [100, -50, HEIGHT * WIDTH - 50]},
    "float runs": {**_R, "counts": [*map(float, _RUNS)]}, "text size": {**_R, "size": ["60", "80"]},
    "text runs": {**_R, "counts": [*map(str, _RUNS)]}, "half runs": {**_R, "counts": [0.5, 4799.5]},
    "bytes": {**_R, "counts": str(_R["counts"].encode())}, "no size": {"counts": _R["counts"]},
    "large run": {**_R, "counts": [1 << 62, 1 << 62, 4800]}, "3 sizes": {**_R, "size": [60, 80, 1]},
    "x y": {"x": [10, 30, 30, 10], "y": [10, 10, 30, 30]},
    "all_points": {"all_points_x": [10, 30, 30, 10], "all_points_y": [10, 10, 30, 30]},
    "subpixel": rectangle(10.2, 10.2, 0.3, 0.3), "thin": rectangle(10, 10, 0.4, 20),
}  # fmt: skip
_FIELDS: dict[str, list[Any]] = {
    "iscrowd": [1, "1", "0", True, False, 1.0, 2, -1, None, "true", "yes", 0.5, [], "", ..., {}],
    "ignore": [1, "1", True, 1.0, 2, 0, False, None, "true", "0", [1]],
    "area": [None, 0, -5, "400", 1e9, 0.1, NAN, [400], True, 20, 399.5, INF, "x", ..., "0"],
    "id": ["1", "a-1", None, -1, 0, 1 << 62, 1 << 64, 1.0, 2, True, ..., [1]],
    "image_id": [77, None, "1", 1.0, [1], {}, True, 1.5, "x", ..., ""],
    "category_id": [77, None, "1", 1.0, [1], True, 0, 3, "cat", ...],
    "num_keypoints": ["0", 0, None], "caption": ['"ignore": 1', "\ud800", "\0"],
    "keypoints": [[11, 11, 2, 12, 12, 1]], "segments_info": [[]],
    "attributes": [{"rotation": 30.0}, {"rotation": 0.0}, {"rotation": "left"}, [], None, "x",
                   {"x": {"rotation": 5}}],
}  # fmt: skip
_HEADS: dict[str, list[Any]] = {
    "id": [None, 1.5, "one", True], "file_name": [".\\1.png", "./1.png", "2.png", "1.PNG",
    "%31.png"],
    "height": [61, "60", 60.0], "extra": [[2], NAN],
}  # fmt: skip
# Metrics do not need these; datasets refuse them.
_NEEDED: dict[str, list[Any]] = {
    "file_name": [None, 5, "", ...],
    "height": [..., None, 60.5, -60, 1 << 33],
}
_KEYPOINTS: dict[str, dict[str, Any]] = {
    "ok": {}, "none": {"keypoints": []}, "null": {"keypoints": None}, "...": {"keypoints": ...},
    "five": {"keypoints": [1, 1, 2, 3, 3]}, "texts": {"keypoints": [*"121212"]},
    "triples": {"keypoints": [[12, 12, 2], [20, 20, 1]]},
    "json": {"keypoints": "[12, 12, 2, 9, 9, 1]"},
    "nulls": {"keypoints": [12, 12, 2, None, None, 0]},
    "v 3": {"keypoints": [12, 12, 3, 20, 20, 1]},
    "v float": {"keypoints": [12, 12, 2.0, 20, 20, 1.0]}, "v bool": {"keypoints": [9, 9, True] * 2},
    "zeros": {"keypoints": [0] * 6, "num_keypoints": 0}, "zeros of 2": {"keypoints": [0] * 6},
    "num 0": {"num_keypoints": 0}, "num text": {"num_keypoints": "0"},
    "num": {"num_keypoints": None},
    "num float": {"num_keypoints": 2.0}, "outside": {"keypoints": [500, 500, 2, 20, 20, 1]},
    "NaN": {"keypoints": [12, 12, 2, NAN, NAN, 0]}, "crowd": {"iscrowd": 1},
    "word": {"keypoints": "x"},
    "crowd without": {"iscrowd": 1, "keypoints": [], "num_keypoints": 0},
    "number": {"keypoints": 5},
    "unknown image": {"image_id": 77, "keypoints": [1]}, "v 0.5": {"keypoints": [9, 9, 0.5] * 2},
    "v 1.5": {"keypoints": [9, 9, 1.5] * 2}, "seven": {"keypoints": [9] * 7},
}  # fmt: skip
_LISTS: dict[str, Variant] = {
    "unchanged": lambda truth: None,
    "refs as text": ids("images", str, own=False),
    "refs as floats": ids("images", float, own=False),
    "category refs as text": ids("categories", str, own=False),
    "category refs by name": ids("categories", {1: "cat", 2: "dog"}.get, own=False),
    "image twice": append("images"), "image id twice": append("images", file_name="2.png"),
    "file twice": append("images", id=99), "file twice, sizes": append("images", id=99, height=61),
    "root": root(used=False), "used root": root(used=True), "name 5": first("categories", name=5),
    "no name": first("categories", name=""), "namesake": append("categories", id=9),
    "category twice": append("categories"),
    "no annotations": lambda truth: truth["annotations"].clear(),
    "one annotation": lambda truth: truth["annotations"].__delitem__(slice(1, None)),
    "repeated": append("annotations", id=77),
    "sizes as text": every("images", lambda row: row.update(
        height=str(row["height"]), width=str(row["width"]))),
    "sizes swapped": every("images", lambda row: row.update(height=WIDTH, width=HEIGHT)),
    "boxes as corners": every("annotations", lambda row: row.update(
        bbox=[*row["bbox"][:2], row["bbox"][0] + row["bbox"][2], row["bbox"][1] + row["bbox"][3]])),
    "boxes as fractions": every("annotations", lambda row: row.update(
        bbox=[x / 100 for x in row["bbox"]])),
    "no areas": every("annotations", lambda row: row.pop("area")),
    "no ids": every("annotations", lambda row: row.pop("id")),
    "no masks": every("annotations", lambda row: row.pop("segmentation")),
    "no boxes": every("annotations", lambda row: row.pop("bbox")),
    "no crowd marks": every("annotations", lambda row: row.pop("iscrowd")),
    "all crowds": every("annotations", lambda row: row.update(iscrowd=1)),
    "same ids": every("annotations", lambda row: row.update(id=5)),
    "isCrowd": first("annotations", iscrowd=..., isCrowd=1),
    "rotated": first("annotations", segmentation=..., attributes={"rotation": 30.0}),
    "rotated text": first("annotations", segmentation=[], attributes={"rotation": "90"}),
    "rotated outside": first("annotations", bbox=[70, 40, 9, 50], segmentation=...,
    attributes={"rotation": 90}),
    "accents": lambda truth: [row.update(name=name) for row, name in zip(
        truth["categories"], ("\u00e9", "e\u0301"), strict=True)] and None,
    "null entry": lambda truth: truth["annotations"].append(None),
    "text entry": lambda truth: truth["images"].append("x"),
}  # fmt: skip
_TEXTS: dict[str, Variant] = {
    "ignore 1e0": swap('"ignore": 1', '"ignore": 1e0', ignore=1),
    "escaped key": swap('"ignore": 1', '"\\u0069gnore": 1', ignore=1),
    "escaped isCrowd": swap('"iscrowd": 0', '"is\\u0043rowd": 1'),
    "line break": swap('"ignore": 1', '"ignore":\n1', ignore=1),
    "field twice": swap('"ignore": 1', '"ignore": 0, "ignore": 1', ignore=1),
    "list twice": text(lambda data: data[:-1] + ', "annotations": []}'),
    "images twice": text(lambda data: '{"images": [], ' + data[1:]),
    "id twice": swap('"annotations": [{"id": 1,', '"annotations": [{"id": 100, "id": 1,'),
    "BOM": text(lambda data: "\ufeff" + data), "UTF-16": text(lambda data: data.encode("utf-16")),
    "UTF-16 without BOM": text(lambda data: data.encode("utf-16-le")),
    "latin-1": text(lambda data: data.replace("cat", "Katze ü").encode("latin-1")),
    "UTF-8": text(lambda data: data.replace('"cat"', '"Kätzchen €"').encode()),
    "bad comma": text(lambda data: data[:-1] + ",}"), "space": text(lambda data: f" \n{data}\n\n"),
    "two documents": text(lambda data: f"{data}\n{data}"),
    "gzip": text(lambda data: gzip.compress(data.encode())),
    "NaN elsewhere": text(lambda data: data[:-1] + ', "info": NaN}'),
    "cut": text(lambda data: data[:-9]),
    "leading zero": swap('"area": 400', '"area": 0400'),
    "no digits": swap('"area": 400', '"area": 400.'),
    "long integer": text(lambda data: data[:-1] + f', "info": {10**4000}}}'),
    "deep": text(lambda data: data[:-1] + ', "info": ' + "[" * 100 + "]" * 100 + "}"),
    "deep entry": swap('"iscrowd": 0', '"x": ' + "[" * 70 + "]" * 70 + ', "iscrowd": 0'),
    "too deep entry": swap('"iscrowd": 0', '"x": ' + "[" * 5000 + "]" * 5000 + ', "iscrowd": 0'),
    "too deep": text(lambda data: data[:-1] + ', "info": ' + "[" * 99999),
    "other members": text(lambda data: data[:-1] + ', "info": {"a": [1]}, "licenses": null}'),
    **{f"{key} {value}": swap(f'"{key}": [', f'"{key}": {value}, "old": [')
       for key in ("images", "annotations", "categories") for value in ("[]", "null", "{}", '"x"')},
    "no categories": swap('"categories"', '"Categories"'), "a list": text(lambda data: f"[{data}]"),
}  # fmt: skip


def variants() -> Iterator[tuple[str, Content, Variant, bool]]:
    """Yield (name, content to change, variant, True if metrics need less than datasets)."""
    for key in ("images", "categories"):
        for name, to in _IDS.items():
            yield f"ids of {key}: {name}", content(), ids(key, to), False
    for field, values in (("bbox", _BOXES), ("segmentation", _MASKS)):
        for name, value in values.items():
            yield f"{field}: {name}", content(), first("annotations", **{field: value}), False
    for name, value in (("box", _BOXES["outside"]), ("box", _BOXES["null"]), ("box", [0, 0, 0, 0])):
        change = first("annotations", bbox=value, segmentation=[])
        yield f"{name} without mask: {value}", content(), change, False
    for key, fields, needed in (("annotations", _FIELDS, False), ("images", _HEADS, False),
                                ("images", _NEEDED, True)):  # fmt: skip
        for field, options in fields.items():
            for value in options:
                change = first(key, **{field: value})
                yield f"{key}: {field} {value!r}", content(), change, needed
    for field in ("height", "width"):
        change = every("images", lambda row, field=field: row.update({field: 0}))
        yield f"images: all {field} 0", content(), change, True
    for name, marks in _KEYPOINTS.items():
        yield f"keypoints: {name}", content(keypoints=True), first("annotations", **marks), False
    for name, change in (_LISTS | _TEXTS).items():
        yield name, content(), change, False
