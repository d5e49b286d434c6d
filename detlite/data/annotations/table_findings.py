"""Findings of tables: what is skipped, reinterpreted or switched off with a model's targets."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from detlite.data.findings import Finding, Findings

from .judge import QUADS
from .selection import PROBLEMS, Flag, Selection, located
from .table import BAD_ENTRIES, SKIPPED, AnnotationTable

_FIX = (
    "Training stops at them: fix them (`detlite check` lists them), or set "
    "DATASETS.ON_BAD_ANNOTATION skip."
)
_CROWDS = (
    "They are neither trained on nor measured. If they are single objects, as CVAT marks masks of "
    "the brush, set DATASETS.CROWDS_AS_OBJECTS True."
)
_IGNORED = "They are ignored regions: detections there count as neither correct nor wrong."
_MASKS_OFF = (
    "To train on them, complete the others, or set MODEL.MASK_ON True and "
    "DATASETS.ON_BAD_ANNOTATION skip, which ignores objects without a mask."
)
_KEYPOINTS_OFF = "To train on them, correct unreadable ones, and set the key to True."
_FEDERATED = Finding(
    "neg_category_ids of images, as in LVIS",
    "They are not used. Set type: lvis in DATASETS.CATALOG to measure as LVIS does.", 0,
)  # fmt: skip


def table_findings(
    table: AnnotationTable,
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
    noted = Findings([*Findings.from_json(table.content.get("findings")), *table.notes])
    return [
        *(finding for finding in _skipped(table, selection, skip, bad_images) if finding.count),
        *_switched_off(table, selection),
        *(finding for finding in noted if selection.masks or finding.what != QUADS),
        *(_empty_images(table, empty_effect) if empty_effect else ()),
        *([_FEDERATED] if table.facts["federated"] and not table.facts["by_url"] else ()),
    ]


def _skipped(
    table: AnnotationTable, selection: Selection, skip: bool, bad_images: Mapping[int, str]
) -> Iterator[Finding]:
    effect, problems = SKIPPED if skip else _FIX, table.facts["image_problems"]
    entries = ": ".join(problems[0]) if problems else ""
    files = next(iter(bad_images.values()), "")
    yield Finding(BAD_ENTRIES, effect, len(problems), "image", entries)
    yield Finding("image files that cannot be used", effect, len(bad_images), "image", files)
    flags, bad = table.flags, selection.bad(table.flags)
    small = f"objects of fewer than {table.min_area:g} pixels (INPUT.MIN_AREA)"
    for what, effect, flag, counted in (
        *((what, effect if skip else _FIX, flag, bad & (flags & flag & selection.refused > 0))
          for flag, (what, effect) in PROBLEMS.items()),
        ("crowds (iscrowd 1)", _CROWDS, Flag.CROWD, selection.crowds(flags)),
        ('annotations with "ignore": 1', _IGNORED, Flag.IGNORED, flags & Flag.IGNORED > 0),
        (small, _IGNORED, Flag.SMALL, flags & Flag.SMALL > 0),
    ):  # fmt: skip
        example = _example(table, flag)
        yield Finding(what, effect, int(counted.sum()), example=example, total=len(flags))


def _switched_off(table: AnnotationTable, selection: Selection) -> Iterator[Finding]:
    """Yield masks, keypoints and categories that are not used although objects have them."""
    flags, ids = table.flags, table.column("category_ids")
    objects = replace(selection, masks=False, keypoints=False).objects(flags)
    for name, valid, bad, effect in (
        ("masks", flags & (Flag.NO_MASK | Flag.BAD_MASK) == 0, Flag.BAD_MASK, _MASKS_OFF),
        ("keypoints", table.column("labeled") > 0, Flag.BAD_KEYPOINTS, _KEYPOINTS_OFF),
    ):
        total, usable = int(objects.sum()), int((objects & valid).sum())
        count = usable or int((objects & (flags & bad > 0)).sum())
        if not getattr(selection, name) and count and usable < total:
            what = f"{name} that are not used, because MODEL.{name[:-1].upper()}_ON is False"
            example = _example(table, bad) or _example(table, Flag.NO_MASK) * (name == "masks")
            yield Finding(what, effect, count, "object", example, total)
    lost = {*ids[located(flags)].tolist()} - {*ids[selection.objects(flags)].tolist()}
    if names := [row["name"] for row in table.content["categories"] if row["id"] in lost]:
        effect, what = "They are not in use.", "categories without a usable object"
        yield Finding(what, effect, len(names), "category", ", ".join(names))


def _empty_images(table: AnnotationTable, effect: str) -> Iterator[Finding]:
    empty = np.flatnonzero(table.counts() == 0)
    if len(empty):
        first, what = table.image(int(empty[0])), "images without annotations"
        example = f"image {first['id']} ({first['file_name']})"
        yield Finding(what, effect, len(empty), "image", example, len(table))


def _example(table: AnnotationTable, flag: int) -> str:
    """Return the first annotation with a flag, and what is wrong with it; "" if none."""
    return table.facts["examples"].get(str(int(flag)), "")
