"""Reads data sets whole and reports every defect with its id.

    detlite check --data train.json val.json --images pictures --page report.html
    detlite check --data configs/mine.yaml
    detlite check --data train.json --mend mended.json

Of a config all sets of DATASETS.TRAIN and DATASETS.TEST are checked, as its model needs them. What
training refuses comes first; the rest is worth a look: boxes off their masks, annotations given
twice, EXIF orientations, shapes far from all others, pictures that two sets share.

Exit status: 0; 1 when training would refuse a set; 2 when nothing could be checked.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tqdm import tqdm

from detlite.apps.dataset_check.data_page import data_page
from detlite.apps.dataset_check.inspection import inspect_set, near_duplicates
from detlite.apps.dataset_check.inspection_report import Inspection
from detlite.apps.dataset_check.repair import mend
from detlite.config import ConfigError, load_config
from detlite.conventions import convention_of
from detlite.data import DataError
from detlite.data.datasets.catalog import locate_dataset

_SMALL, _LARGE = 32**2, 96**2  # areas at which COCO's sizes part


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own; returns the exit status."""
    args = _parser().parse_args(arguments)
    try:
        if args.mend and len(args.data) > 1:
            raise ConfigError("--mend takes one annotation file, as --data")
        sets = [found for path in args.data for found in inspect(path, args.images)]
        if args.mend and len(sets) > 1:
            raise ConfigError("--mend takes one annotation file, not a config of several sets")
        pairs = near_duplicates(sets)
        for number, found in enumerate(sets):
            report(found, args.most)
            shared = sum({first[0], second[0]} == {number} for first, second in pairs)
            print(f"  {shared} pairs of nearly the same pictures in this set")
        across = [pair for pair in pairs if pair[0][0] != pair[1][0]]
        print(f"{len(across)} pairs of nearly the same pictures across sets")
        for (first, first_id), (second, second_id) in across[: args.most]:
            print(
                f"  {sets[first].name} image {first_id} and {sets[second].name} image {second_id}"
            )
        if args.page:
            page = data_page(
                sets, across + [p for p in pairs if p not in across], list(map(numbers, sets))
            )
            args.page.write_text(page, encoding="utf-8")
        if args.mend:
            content, done = mend(sets[0])
            args.mend.write_text(json.dumps(content), encoding="utf-8")
            for what, count in done.items():
                print(f"mended: {count} {what}")
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: cannot be written ({error})", file=sys.stderr)
        return 2
    return 1 if any(found.refused for found in sets) else 0


def inspect(path: Path, images: Path | None) -> list[Inspection]:
    """What is found in an annotation file, or in all sets of a config."""

    def progress(rows: list[Any]) -> Any:
        return tqdm(rows, "pictures", disable=None)

    if path.suffix == ".json":
        if not path.is_file():
            raise ConfigError(f"--data {path}: there is no such file")
        return [inspect_set(path, images or find_images(path), progress=progress)]
    cfg = load_config(path)
    names = list(dict.fromkeys([*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST]))
    if not names:
        raise ConfigError(f"--data {path}: DATASETS.TRAIN and DATASETS.TEST are empty")
    found = []
    for name in names:
        kind, annotations, folder = locate_dataset(cfg, name)
        found.append(
            inspect_set(
                annotations,
                folder,
                by_url=kind == "lvis",
                masks=cfg.MODEL.MASK_ON,
                keypoints=cfg.MODEL.KEYPOINT_ON,
                max_pixels=cfg.DATASETS.MAX_PIXELS,
                picture_bits=cfg.INPUT.PICTURE_BITS,
                exif_orientation=convention_of(cfg).exif_orientation,
                progress=progress,
            )
        )
    return found


def find_images(annotations: Path) -> Path:
    """The folder of the pictures beside an annotation file: `images` there or one folder up."""
    for folder in (annotations.parent / "images", annotations.parent.parent / "images"):
        if folder.is_dir():
            return folder
    return annotations.parent


def report(found: Inspection, most: int) -> None:
    """Prints statistics and defects, at most so many of a kind."""
    print(found.name)
    for name, value in numbers(found):
        print(f"  {name}: {value}")
    for name, objects, images in found.balance():
        print(f"  {name}: {objects} objects in {images} images")
    shown: Counter[str] = Counter()
    for defect in sorted(found.defects, key=lambda one: not one.refused):
        shown[defect.kind] += 1
        if shown[defect.kind] <= most:
            verdict = "refused" if defect.refused else "look at"
            print(f"  {verdict}: {defect.where}: {defect.kind}: {defect.problem}")
    for kind, count in shown.items():
        more = f", {count - most} not shown" if count > most else ""
        print(f"  {kind}: {count}{more}")
    refused = len(found.refused)
    print(f"  training refuses {refused} entries" if refused else "  training takes it")


def numbers(found: Inspection) -> list[tuple[str, str]]:
    """Statistics of a set, (name, value)."""
    crowds = sum(bool(row.get("iscrowd", 0)) for row in found.objects)
    objects = [row for row in found.objects if not row.get("iscrowd", 0)]
    areas = [row["bbox"][2] * row["bbox"][3] for row in objects]
    in_image = Counter(row["image_id"] for row in objects)
    sizes = [
        sum(low <= area < high for area in areas)
        for low, high in ((0, _SMALL), (_SMALL, _LARGE), (_LARGE, float("inf")))
    ]
    lines = [
        (
            "images",
            f"{len(found.images)}, {len(found.images.keys() - in_image.keys())} without objects",
        ),
        ("objects", f"{len(objects)}, and {crowds} crowds, in {len(found.categories)} categories"),
        ("boxes below 32x32, to 96x96, above", ", ".join(map(str, sizes))),
    ]
    if in_image:
        counts = in_image.values()
        lines.append(("objects in an image", f"median {median(counts):g}, most {max(counts)}"))
    if found.images:
        widths, heights = (
            [row[side] for row in found.images.values()] for side in ("width", "height")
        )
        value = f"{min(widths)} to {max(widths)} wide, {min(heights)} to {max(heights)} high"
        lines.append(("pictures", value))
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "detlite check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        required=True,
        nargs="+",
        type=Path,
        help="annotation files (.json), or a config by path or name",
    )
    parser.add_argument("--images", type=Path, help="folder of pictures (images, beside --data)")
    parser.add_argument("--page", type=Path, help="HTML file for the report, with pictures")
    parser.add_argument("--mend", type=Path, help="file for a copy without what training refuses")
    parser.add_argument("--most", type=int, default=20, help="defects of a kind to print (20)")
    return parser
