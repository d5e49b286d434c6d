"""COCO json files: written, and divided into what is trained on and what is measured on."""

from __future__ import annotations

import hashlib
import json
import posixpath
import tempfile
from pathlib import Path
from typing import Any

from detlite.data.errors import DataError

FRACTION = 0.2  # of the pictures that are measured on


def write_coco(content: dict[str, Any], file: Path) -> None:
    """Writes an annotation file, whole also where several processes do; its folder is made.

    Raises:
        DataError: it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".") as temporary:
            unfinished = Path(temporary) / file.name
            unfinished.write_text(json.dumps(content), encoding="utf-8")
            unfinished.replace(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be written ({error.strerror})") from error


def split_content(content: dict[str, Any], within: str = "") -> dict[str, dict[str, Any]]:
    """An annotation file's content as "train" and "val", by a hash of each picture's file name.

    Before the name `within` is put, the folder of the pictures in that of the data: a further
    folder of pictures, which makes file names longer, leaves the hashes as they are.

    So a picture stays where it is when others are added, unless it was the only one that could be
    measured on: both have at least one picture with an annotation. Where there is but one such
    picture, there is no "val".
    """
    labelled = {row.get("image_id") for row in content["annotations"]}
    # LVIS v1 has addresses alone.
    names = {row["id"]: row.get("file_name") or row["coco_url"] for row in content["images"]}
    places = {
        number: _place(posixpath.normpath(posixpath.join(within, name)) if within else name)
        for number, name in names.items()
    }
    order = sorted((place, number) for number, place in places.items() if number in labelled)
    if len(order) < 2:
        return {"train": content}
    measured = {number for number, place in places.items() if place < FRACTION}
    measured |= {order[0][1]}
    measured -= {order[-1][1]}
    parts = {}
    for split in ("train", "val"):
        # An annotation of no image stays in what is trained on, where it is reported.
        images = [row for row in content["images"] if (row["id"] in measured) == (split == "val")]
        annotations = [
            row
            for row in content["annotations"]
            if (row.get("image_id") in measured) == (split == "val")
        ]
        parts[split] = {**content, "images": images, "annotations": annotations}
    return parts


def _place(name: str) -> float:
    """From 0 to 1, by a name."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
