"""Trains a YOLO of ultralytics by its own call, then writes what each checkpoint finds.

    environments/ultralytics/bin/python ultralytics_yolo.py --model yolo11n-seg.pt \
        --train t.json --val v.json --images images --minutes 15 --output out/yolo11n

A model's name ending in .pt is pretrained on COCO and downloaded by ultralytics where it is not a
file; ending in .yaml it starts from random weights.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from pycocotools import mask as coco_mask
from ultralytics import YOLO
from ultralytics.data.converter import merge_multi_segment


def main() -> None:
    args = _parser().parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    data = write_yolo(args.output / "data", {"train": args.train, "val": args.val}, args.images)
    options = {"imgsz": args.size} if args.size else {}
    start = time.time()
    YOLO(args.model).train(
        data=str(data), time=args.minutes / 60, save_period=1, device=args.device,
        project=str(args.output.absolute()), name="run", exist_ok=True, **options,
    )  # fmt: skip
    rows = []
    files = sorted((args.output / "run" / "weights").glob("epoch*.pt"), key=_made)
    for number, file in enumerate(_some(files, args.checkpoints)):
        seconds = _made(file) - start
        results = f"results_{number}.json"
        found = predict(YOLO(str(file)), args.val, args.images, options)
        (args.output / results).write_text(json.dumps(found))
        rows.append({"seconds": seconds, "results": results})
        (args.output / "checkpoints.json").write_text(json.dumps(rows, indent=2))


def write_yolo(folder: Path, splits: dict[str, Path], images: Path) -> Path:
    """COCO json as YOLO's text files, beside links to the pictures; crowds are left out."""
    names: list[str] = []
    for split, file in splits.items():
        content = json.loads(file.read_text())
        classes = _classes(content)
        names = [row["name"] for row in sorted(content["categories"], key=lambda row: row["id"])]
        rows: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in content["images"]}
        for row in content["annotations"]:
            if not row.get("iscrowd"):
                rows[row["image_id"]].append(row)
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
        for image in content["images"]:
            picture = (images / image["file_name"]).absolute()
            link = folder / "images" / split / f"{image['id']}{picture.suffix}"
            if not link.exists():
                link.symlink_to(picture)
            lines = []
            for row in rows[image["id"]]:
                for outline in _outline(row, image):
                    points = outline / [image["width"], image["height"]]
                    numbers = " ".join(f"{value:.6f}" for value in points.clip(0, 1).flatten())
                    lines.append(f"{classes[row['category_id']]} {numbers}")
            (folder / "labels" / split / f"{image['id']}.txt").write_text("\n".join(lines))
    data = folder / "data.yaml"
    entries = {"path": str(folder.absolute()), "train": "images/train", "val": "images/val"}
    data.write_text(json.dumps({**entries, "names": dict(enumerate(names))}))  # json is YAML
    return data


def _outline(row: dict[str, Any], image: dict[str, Any]) -> list[np.ndarray]:
    """The polygon [P, 2] of an object, its parts joined as ultralytics joins them; or none."""
    form = row["segmentation"]
    if isinstance(form, dict):
        if isinstance(form["counts"], list):
            form = coco_mask.frPyObjects(form, image["height"], image["width"])
        found, _ = cv2.findContours(
            coco_mask.decode(form), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE
        )
        # Pixels' centres lie half a pixel in.
        parts = [(contour[:, 0] + 0.5).flatten().tolist() for contour in found if len(contour) > 2]
    else:
        parts = [part for part in form if len(part) >= 6]
    if len(parts) > 1:
        return [np.concatenate(merge_multi_segment(parts)).reshape(-1, 2)]
    return [np.array(part, np.float64).reshape(-1, 2) for part in parts]


def predict(model: YOLO, file: Path, images: Path, options: dict[str, Any]) -> list[dict[str, Any]]:
    """COCO results of the pictures of an annotation file, by ultralytics' own test settings."""
    content = json.loads(file.read_text())
    ids = {number: category for category, number in _classes(content).items()}
    found = []
    for image in content["images"]:
        [result] = model.predict(
            str(images / image["file_name"]), conf=0.001, iou=0.7, max_det=300,
            retina_masks=True, verbose=False, **options,
        )  # fmt: skip
        boxes = result.boxes
        masks = [] if result.masks is None else result.masks.data.cpu().numpy()
        columns = zip(
            boxes.xyxy.tolist(), boxes.conf.tolist(), boxes.cls.tolist(), masks, strict=False
        )
        for (x1, y1, x2, y2), score, label, mask in columns:
            found.append(
                {
                    "image_id": image["id"],
                    "category_id": ids[int(label)],
                    "score": score,
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "segmentation": _rle(mask),
                }
            )
    return found


def _rle(mask: np.ndarray) -> dict[str, Any]:
    rle = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": rle["size"], "counts": rle["counts"].decode()}


def _classes(content: dict[str, Any]) -> dict[int, int]:
    """From ids of categories to numbers from 0 on."""
    ids = sorted(row["id"] for row in content["categories"])
    return {category: number for number, category in enumerate(ids)}


def _made(file: Path) -> float:
    return file.stat().st_mtime


def _some(files: list[Path], most: int) -> list[Path]:
    """So many of them at most, evenly, with the last."""
    count = min(most, len(files))
    return [files[(k + 1) * len(files) // count - 1] for k in range(count)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="yolo11n-seg.pt")
    for name in ("train", "val", "images", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--size", type=int, help="of pictures; ultralytics' own if left out")
    parser.add_argument("--checkpoints", type=int, default=8, help="most that are scored (8)")
    parser.add_argument("--device", default="cpu")
    return parser


if __name__ == "__main__":
    main()
