"""Train a YOLO with ultralytics, and write the results of its checkpoints.

    environments/ultralytics/bin/python -m benchmarks.learning_curve.ultralytics_yolo \
        --model yolo11n-seg.pt --train t.json --val v.json --images images --minutes 15 \
        --output out/yolo11n

A model with the suffix .pt is pretrained on COCO; ultralytics downloads it if the file does not
exist. A model with the suffix .yaml starts from random weights.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from pycocotools import mask as rle_codec
from ultralytics import YOLO
from ultralytics.data.converter import merge_multi_segment

from .checkpoints import (
    Results,
    add_arguments,
    coco_result,
    select_checkpoints,
    write_results,
)


def main() -> None:
    """Run the command line."""
    args = _parser().parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    data = write_yolo(args.output / "data", {"train": args.train, "val": args.val}, args.images)
    options = {"imgsz": args.size} if args.size else {}
    start = time.time()
    YOLO(args.model).train(
        data=str(data), time=args.minutes / 60, save_period=1, device=args.device,
        project=str(args.output.absolute()), name="run", exist_ok=True, **options,
    )  # fmt: skip
    files = (args.output / "run" / "weights").glob("epoch*.pt")
    write_results(
        args.output,
        select_checkpoints(files, start, args.checkpoints),
        lambda file: predict(YOLO(str(file)), args.val, args.images, options),
    )


def write_yolo(folder: Path, splits: dict[str, Path], images: Path) -> Path:
    """Convert COCO json to YOLO's text files, without crowds, and link the images."""
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
            target = (images / image["file_name"]).absolute()
            link = folder / "images" / split / f"{image['id']}{target.suffix}"
            if not link.exists():
                link.symlink_to(target)
            lines = []
            for row in rows[image["id"]]:
                for polygon in _polygons(row, image):
                    points = polygon / [image["width"], image["height"]]
                    numbers = " ".join(f"{value:.6f}" for value in points.clip(0, 1).flatten())
                    lines.append(f"{classes[row['category_id']]} {numbers}")
            (folder / "labels" / split / f"{image['id']}.txt").write_text("\n".join(lines))
    data = folder / "data.yaml"
    entries = {"path": str(folder.absolute()), "train": "images/train", "val": "images/val"}
    data.write_text(json.dumps({**entries, "names": dict(enumerate(names))}))  # json is YAML
    return data


def _polygons(row: dict[str, Any], image: dict[str, Any]) -> list[np.ndarray]:
    """Return a list with the polygon [P, 2] of an object, its parts joined as by ultralytics; empty
    without a valid polygon."""
    segmentation = row["segmentation"]
    if isinstance(segmentation, dict):
        if isinstance(segmentation["counts"], list):
            segmentation = rle_codec.frPyObjects(segmentation, image["height"], image["width"])
        contours, _ = cv2.findContours(
            rle_codec.decode(segmentation), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE
        )
        # OpenCV's coordinates are integers at pixel centers, COCO's at pixel corners.
        parts = [
            (contour[:, 0] + 0.5).flatten().tolist() for contour in contours if len(contour) > 2
        ]
    else:
        parts = [part for part in segmentation if len(part) >= 6]
    if len(parts) > 1:
        return [np.concatenate(merge_multi_segment(parts)).reshape(-1, 2)]
    return [np.array(part, np.float64).reshape(-1, 2) for part in parts]


def predict(model: YOLO, file: Path, images: Path, options: dict[str, Any]) -> Results:
    """Return COCO results for an annotation file's images, with ultralytics' test settings."""
    content = json.loads(file.read_text())
    ids = {number: category for category, number in _classes(content).items()}
    results: Results = []
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
        for box, score, label, mask in columns:
            results.append(coco_result(image["id"], ids[int(label)], score, box, mask))
    return results


def _classes(content: dict[str, Any]) -> dict[int, int]:
    """Map category ids to consecutive numbers from 0."""
    ids = sorted(row["id"] for row in content["categories"])
    return {category: number for number, category in enumerate(ids)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="yolo11n-seg.pt")
    add_arguments(parser)
    parser.add_argument("--size", type=int, help="image size (default: ultralytics' default)")
    parser.add_argument("--device", default="cpu")
    return parser


if __name__ == "__main__":
    main()
