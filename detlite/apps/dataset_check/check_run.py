"""Inspect the data sets of a command line and print what was found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from tqdm import tqdm

from detlite.config import ConfigError, load_config
from detlite.conventions import convention_of
from detlite.data.datasets.catalog import locate_dataset

from .inspection import inspect_set
from .inspection_report import Inspection

_SMALL, _LARGE = 32**2, 96**2  # COCO's limits of small and large objects, in pixels


def inspect(path: Path, images: Path | None) -> list[Inspection]:
    """Inspect an annotation file, or every data set of a config."""

    def progress(rows: list[Any]) -> Any:
        return tqdm(rows, "images", disable=None)

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
                image_bits=cfg.INPUT.IMAGE_BITS,
                exif_orientation=convention_of(cfg).exif_orientation,
                progress=progress,
            )
        )
    return found


def find_images(annotations: Path) -> Path:
    """Return the folder `images` next to an annotation file or one folder up, or its own folder."""
    for folder in (annotations.parent / "images", annotations.parent.parent / "images"):
        if folder.is_dir():
            return folder
    return annotations.parent


def print_report(found: Inspection, max_per_kind: int) -> None:
    """Print statistics and defects, at most `max_per_kind` of each kind."""
    print(found.name)
    for name, value in numbers(found):
        print(f"  {name}: {value}")
    for name, objects, images in found.balance():
        print(f"  {name}: {objects} objects in {images} images")
    shown: Counter[str] = Counter()
    for defect in sorted(found.defects, key=lambda one: not one.refused):
        shown[defect.kind] += 1
        if shown[defect.kind] <= max_per_kind:
            verdict = "refused" if defect.refused else "check"
            print(f"  {verdict}: {defect.where}: {defect.kind}: {defect.problem}")
    for kind, count in shown.items():
        more = f", {count - max_per_kind} not shown" if count > max_per_kind else ""
        print(f"  {kind}: {count}{more}")
    refused = len(found.refused)
    print(f"  training refuses {refused} entries" if refused else "  training accepts it")


def numbers(found: Inspection) -> list[tuple[str, str]]:
    """Return the statistics of a data set as (name, value) pairs."""
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
        lines.append(("objects in an image", f"median {median(counts):g}, maximum {max(counts)}"))
    if found.images:
        widths, heights = (
            [row[side] for row in found.images.values()] for side in ("width", "height")
        )
        value = f"{min(widths)} to {max(widths)} wide, {min(heights)} to {max(heights)} high"
        lines.append(("image sizes", value))
    return lines
