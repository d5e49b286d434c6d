"""The index of an annotation file: its checked images and annotations at known byte positions.

The file of an index contains the JSON text of each image and annotation, which is read on demand,
and then a zip archive with arrays of the values that are needed for all of them together. A dataset
of any size therefore opens fast and needs little memory.

Letters in shapes: I images, A annotations.
"""

import json
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile

from detlite.data.findings import Finding, Findings
from detlite.files.errors import DataError
from detlite.structures.keypoints import keypoint_names

from .states import (
    PROBLEM_KEY,
    PROBLEMS,
    QUADS,
    WRITTEN_ID,
    Flag,
    Selection,
    annotation_name,
    located,
    set_file_name,
)

VERSION = 17  # increase it with every change of the content of indexes or of the checks behind it
_FIX = (
    "Training stops at them: fix them (`detlite check --repair`), or set "
    "DATASETS.ON_BAD_ANNOTATION skip."
)
_SKIP = "They are skipped with their objects."
_BAD_ENTRIES = "entries of images that cannot be used"
_CROWDS = (
    "They are neither trained on nor measured. CVAT marks every brush mask as a crowd: if these "
    "are single objects, set DATASETS.CROWDS_AS_OBJECTS True."
)
_IGNORED = "They are ignored regions: detections there count as neither correct nor wrong."
_MASKS_OFF = (
    "To train on them, correct or complete the others, or set MODEL.MASK_ON True and "
    "DATASETS.ON_BAD_ANNOTATION skip, which ignores objects without a mask."
)
_KEYPOINTS_OFF = (
    "To train on them, correct unreadable ones, and set the key to True; objects without "
    "keypoints then train the boxes."
)
# Selects annotations by their states [A], as bool [A].
Select = Callable[[np.ndarray], np.ndarray]


class DamagedIndexError(ValueError):
    """A file is not an index, is truncated, or has another version."""


class AnnotationIndex:
    """The content of an annotation file. Images are numbered from 0 in the order of the file.

    A pickle of it contains only the arguments. Raises DamagedIndexError, or OSError.

    Args:
        path: the file of the index.
        min_area: objects with fewer pixels are flagged as SMALL.

    Attributes:
        table: facts about the file, such as its `hash` and `image_problems`.
        arrays: the values of all images and annotations, see `write_index`.
        content: the members of the annotation file except images and annotations.
        notes: findings about entries that were not in COCO's notation.
    """

    def __init__(self, path: Path, min_area: float = 0) -> None:
        self.path, self._min_area = path, min_area
        # Read at byte positions: a failing disk would kill a process with a memory map by SIGBUS.
        self._file = path.open("rb", buffering=0)
        weakref.finalize(self, self._file.close)
        try:
            with NpzFile(self._file) as archive:
                self.arrays = {name: archive[name] for name in archive.files}
            self.table: dict[str, Any] = json.loads(self.arrays.pop("table").tobytes())
        except OSError:
            raise
        except Exception as error:  # zipfile and numpy raise various errors for damaged files
            raise DamagedIndexError(f"{path}: not an index, or damaged") from error
        if self.table["version"] != VERSION:
            raise DamagedIndexError(f"{path}: not an index of this version")
        small = (self.arrays["areas"] > 0) & (self.arrays["areas"] < min_area)
        self.arrays["states"] |= small * np.uint16(Flag.SMALL)
        self.content: dict[str, Any] = self.table["content"]
        self.notes = Findings.from_json(self.table["findings"])

    def __reduce__(self) -> tuple[Any, ...]:
        return AnnotationIndex, (self.path, self._min_area)

    def ignoring_below(self, min_area: float) -> "AnnotationIndex":
        """Return the index in which objects with fewer pixels are ignored regions."""
        return AnnotationIndex(self.path, min_area) if min_area != self._min_area else self

    @property
    def image_ids(self) -> np.ndarray:
        """The ids of the images, int64 [I]."""
        return self.arrays["image_ids"]

    @property
    def sizes(self) -> np.ndarray:
        """The (height, width) of the images, int64 [I, 2]."""
        return self.arrays["sizes"]

    @property
    def keypoint_names(self) -> list[str]:
        return keypoint_names(sorted(self.content["categories"], key=lambda row: row["id"]))

    def image(self, number: int) -> dict[str, Any]:
        """Return the entry of an image; it has a `file_name`."""
        (entry,) = self._load(self.arrays["images"][number : number + 1])
        height, width = self.sizes[number].tolist()
        if type(entry["id"]) is not int:
            entry[WRITTEN_ID] = entry["id"]
        entry |= {"height": height, "width": width, "id": int(self.image_ids[number])}
        return set_file_name(entry, self.table["by_url"])

    def annotations(self, number: int, select: Select = located) -> list[dict[str, Any]]:
        """Return the selected annotations of an image, in file order."""
        return self._read(self._selected(number, select))

    def values(self, name: str, number: int, select: Select) -> np.ndarray:
        """Return the values of an array (`write_index`) for selected annotations of an image."""
        return self.arrays[name][self._selected(number, select)]

    def counts(self, select: Select = np.ones_like, values: np.ndarray | int = 1) -> np.ndarray:
        """Return the sum of `values` [A] over the selected annotations of each image, int64 [I]."""
        selected = select(self.arrays["states"]) * values
        sums = np.concatenate([[0], selected.cumsum(dtype=np.int64)])
        return np.diff(sums[self.arrays["first"]])

    def full_content(self) -> dict[str, Any]:
        """Return the content of the annotation file in COCO's notation, with its findings."""
        in_file_order = np.argsort(self.arrays["positions"])
        content = {**self.content, "annotations": self._read(in_file_order)}
        content["images"] = [self.image(number) for number in range(len(self.image_ids))]
        findings = Findings([*Findings.from_json(self.content.get("findings")), *self.notes])
        for problem in self.table["image_problems"]:
            findings.add(_BAD_ENTRIES, _SKIP, ": ".join(problem), "image")
        return content | ({"findings": findings.to_json()} if len(findings) else {})

    def bad_annotations(
        self, selection: Selection, limit: int | None = None
    ) -> list[tuple[dict[str, Any], str, str]]:
        """Return the first invalid annotations as written, with their names and problems."""
        positions = self.arrays["positions"]
        bad = np.flatnonzero(selection.bad(self.arrays["states"]))
        bad = bad[np.argsort(positions[bad])[:limit]]
        described = []
        for index, row in zip(bad, self._load(self.arrays["annotations"][bad]), strict=True):
            problems = row.pop(PROBLEM_KEY).items()
            refused = [text for flag, text in problems if int(flag) & selection.refused]
            described.append((row, annotation_name(row, int(positions[index])), refused[0]))
        return described

    def problems(self, selection: Selection, limit: int | None = None) -> tuple[list[str], int]:
        """Describe the first invalid entries of images and annotations, and count all of them."""
        of_images = [": ".join(pair) for pair in self.table["image_problems"]]
        count = len(of_images) + int(selection.bad(self.arrays["states"]).sum())
        texts = [f"{where}: {text}" for _, where, text in self.bad_annotations(selection, limit)]
        return [*of_images, *texts][:limit], count

    def findings(
        self,
        selection: Selection,
        skip: bool,
        bad_images: Mapping[int, str] = MappingProxyType({}),
        empty_effect: str = "",
    ) -> list[Finding]:
        """Return what is skipped, reinterpreted or switched off with these targets.

        Args:
            selection: the annotations that are used.
            skip: unusable annotations are skipped instead of stopping the training.
            bad_images: what is wrong with image files, by number.
            empty_effect: what happens to images without annotations; "": they are not a finding.
        """
        noted = Findings([*Findings.from_json(self.content.get("findings")), *self.notes])
        return [
            *(finding for finding in self._skipped(selection, skip, bad_images) if finding.count),
            *self._switched_off(selection),
            *(finding for finding in noted if selection.masks or finding.what != QUADS),
            *(self._empty_images(empty_effect) if empty_effect else ()),
        ]

    def _skipped(
        self, selection: Selection, skip: bool, bad_images: Mapping[int, str]
    ) -> Iterator[Finding]:
        entries = [": ".join(problem) for problem in self.table["image_problems"]]
        for what, count, first in (
            (_BAD_ENTRIES, len(entries), entries),
            ("image files that cannot be used", len(bad_images), [*bad_images.values()]),
        ):
            yield Finding(what, _SKIP if skip else _FIX, count, "image", first[0] if first else "")
        states = self.arrays["states"]
        bad = selection.bad(states)
        kinds = [
            (what, effect if skip else _FIX, flag, bad & (states & flag & selection.refused > 0))
            for flag, (what, effect) in PROBLEMS.items()
        ]
        kinds += [
            ("crowds (iscrowd 1)", _CROWDS, Flag.CROWD, selection.crowds(states)),
            ('annotations with "ignore": 1', _IGNORED, Flag.IGNORED, states & Flag.IGNORED > 0),
            (
                f"objects of fewer than {self._min_area:g} pixels (INPUT.MIN_AREA)",
                _IGNORED, Flag.SMALL, states & Flag.SMALL > 0,
            ),
        ]  # fmt: skip
        for what, effect, flag, counted in kinds:
            count, example = int(counted.sum()), self._example(flag)
            yield Finding(what, effect, count, example=example, total=len(states))

    def _switched_off(self, selection: Selection) -> Iterator[Finding]:
        """Yield masks, keypoints and categories that are not used although objects have them."""
        states, ids = self.arrays["states"], self.arrays["category_ids"]
        objects = replace(selection, masks=False, keypoints=False).objects(states)
        total, no_mask = int(objects.sum()), Flag.NO_MASK | Flag.BAD_MASK
        for name, valid, bad, effect in (
            ("masks", states & no_mask == 0, Flag.BAD_MASK, _MASKS_OFF),
            ("keypoints", self.arrays["labeled"] > 0, Flag.BAD_KEYPOINTS, _KEYPOINTS_OFF),
        ):
            usable = int((objects & valid).sum())
            count = usable or int((objects & (states & bad > 0)).sum())
            if not getattr(selection, name) and count and usable < total:
                what = f"{name} that are not used, because MODEL.{name[:-1].upper()}_ON is False"
                example = self._example(bad) or self._example(Flag.NO_MASK) * (name == "masks")
                yield Finding(what, effect, count, "object", example, total)
        lost = {*ids[located(states)].tolist()} - {*ids[selection.objects(states)].tolist()}
        if names := [row["name"] for row in self.content["categories"] if row["id"] in lost]:
            effect, what = "They are not in use.", "categories without a usable object"
            yield Finding(what, effect, len(names), "category", ", ".join(names))

    def _empty_images(self, effect: str) -> Iterator[Finding]:
        empty = np.flatnonzero(self.counts() == 0)
        if len(empty):
            first, total = self.image(int(empty[0])), len(self.image_ids)
            example = f"image {first['id']} ({first['file_name']})"
            what = "images without annotations"
            yield Finding(what, effect, len(empty), "image", example, total)

    def _example(self, flag: int) -> str:
        """Return the first annotation with a flag, and what is wrong with it; "" if none."""
        return self.table["examples"].get(str(int(flag)), "")

    def _selected(self, number: int, select: Select) -> np.ndarray:
        """Return the indices of the selected annotations of an image."""
        first, last = self.arrays["first"][number : number + 2].tolist()
        return first + np.flatnonzero(select(self.arrays["states"][first:last]))

    def _read(self, indices: np.ndarray) -> list[dict[str, Any]]:
        """Return annotations with their ids, and without their problems."""
        rows = self._load(self.arrays["annotations"][indices])
        for row, position in zip(rows, self.arrays["positions"][indices].tolist(), strict=True):
            row.pop(PROBLEM_KEY, None)
            if self.table["numbered"]:
                row["id"] = position + 1
        return rows

    def _load(self, spans: np.ndarray) -> list[dict[str, Any]]:
        """Parse the JSON texts at spans int64 [N, 2] of (start, stop)."""
        try:
            return [
                json.loads(os.pread(self._file.fileno(), stop - start, start))
                for start, stop in spans.tolist()
            ]
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise DataError(
                f"{self.path}: the index is damaged. Delete the file; it will be built again"
            ) from error
