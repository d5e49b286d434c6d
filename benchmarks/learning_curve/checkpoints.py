"""Write results of a training's checkpoints in the format of plot.py.

The scripts of this folder run in the environments of different libraries, so this module imports
neither detlite nor torch.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as rle_codec

Results = list[dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that all scripts have."""
    for name in ("train", "val", "images", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument(
        "--checkpoints", type=int, default=8, help="maximum number of evaluated checkpoints (8)"
    )


def write_results(
    output: Path, checkpoints: Iterable[tuple[float, Path]], predict: Callable[[Path], Results]
) -> None:
    """Write checkpoints.json and the results of each checkpoint (seconds of training, file)."""
    rows = []
    for number, (seconds, file) in enumerate(checkpoints):
        results = f"results_{number}.json"
        (output / results).write_text(json.dumps(predict(file)))
        rows.append({"seconds": seconds, "results": results})
        (output / "checkpoints.json").write_text(json.dumps(rows, indent=2))


def select_checkpoints(
    files: Iterable[Path], start: float, max_count: int
) -> list[tuple[float, Path]]:
    """Return evenly spaced checkpoints, including the last one, as (seconds since start, file)."""
    ordered = sorted(files, key=_modified)
    count = min(max_count, len(ordered))
    selected = [ordered[(k + 1) * len(ordered) // count - 1] for k in range(count)]
    return [(_modified(file) - start, file) for file in selected]


def _modified(file: Path) -> float:
    return file.stat().st_mtime


def coco_result(
    image_id: int, category_id: int, score: float, box: list[float], mask: np.ndarray
) -> dict[str, Any]:
    """Return the COCO result of a detection with a box xyxy and a mask [H, W]."""
    x1, y1, x2, y2 = box
    rle = rle_codec.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {
        "image_id": image_id,
        "category_id": category_id,
        "score": score,
        "bbox": [x1, y1, x2 - x1, y2 - y1],
        "segmentation": {"size": rle["size"], "counts": rle["counts"].decode()},
    }
