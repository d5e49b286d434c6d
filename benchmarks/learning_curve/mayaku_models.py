"""Trains a model of mayaku by its own call, then writes what each checkpoint finds.

    environments/mayaku/bin/python mayaku_models.py --model mayaku-n-seg \
        --train t.json --val v.json --images images --minutes 15 --output out/mayaku_n

`mayaku-n-seg` is its smallest, pretrained on Objects365 and downloaded by mayaku; a .pth that is
there is taken as it is, and of a .yaml of its repository (configs/segmentation/mayaku-n-seg.yaml)
the model starts from random weights. `mask_rcnn` is its Mask R-CNN on ResNet-50, for which it
offers no weights: it starts from random ones, with batch norm, as its ResNets have no group norm.

mayaku counts in epochs, its cosine as well. One is timed first, and as many as fit are trained.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from mayaku import from_pretrained, train
from mayaku.config import MayakuConfig
from pycocotools import mask as coco_mask


def main() -> None:
    args = _parser().parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    epochs = args.epochs
    if not epochs:
        seconds = run(args, args.output / "timed", 1)
        epochs = max(int(args.minutes * 60 / seconds), 1)
        print(f"an epoch takes {seconds:.0f} s: {epochs} of them", flush=True)
    start = time.time()
    run(args, args.output / "run", epochs)
    rows = []
    trained = args.output / "run" / "train"
    averaged = trained / "ema"  # what mayaku hands out, where it averages
    files = sorted((averaged if averaged.is_dir() else trained).glob("model_*.pth"), key=_made)
    for number, file in enumerate(_some(files, args.checkpoints)):
        results = f"results_{number}.json"
        (args.output / results).write_text(json.dumps(predict(file, args)))
        rows.append({"seconds": _made(file) - start, "results": results})
        (args.output / "checkpoints.json").write_text(json.dumps(rows, indent=2))


def run(args: argparse.Namespace, folder: Path, epochs: int) -> float:
    """Trains; the seconds that it took."""
    model: dict[str, Any] = {"weights": args.model}
    if args.model == "mask_rcnn":
        model = {"config": mask_rcnn(args.train)}
    elif args.model.endswith(".yaml"):
        model = {"config": from_file(Path(args.model), args.train)}
    found = train(
        **model, train_annotations=args.train, train_images=args.images, output_dir=folder,
        num_epochs=epochs, device=args.device,
    )  # fmt: skip
    return float(found["train_seconds"])


def from_file(config: Path, file: Path) -> MayakuConfig:
    """One of mayaku's configs, for the classes and the form of masks of an annotation file."""
    content = yaml.safe_load(config.read_text())
    content["model"]["roi_heads"]["num_classes"] = _classes(file)
    content["input"]["mask_format"] = "bitmask"
    content["solver"]["checkpoint_period"] = 1  # in epochs, by which the package counts
    return MayakuConfig.model_validate(content)


def mask_rcnn(file: Path) -> MayakuConfig:
    """mayaku's Mask R-CNN as its schema has it by default, for a small batch and no weights."""
    return MayakuConfig.model_validate(
        {
            "model": {
                "meta_architecture": "mask_rcnn",
                "mask_on": True,
                "backbone": {"name": "resnet50", "norm": "BN", "freeze_at": 0},
                "roi_heads": {"num_classes": _classes(file)},
                "roi_mask_head": {},
            },
            "input": {"mask_format": "bitmask"},
            "solver": {"ims_per_batch": 2, "base_lr": 0.0025},
        }
    )


def predict(weights: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """COCO results of the pictures to measure on."""
    content = json.loads(args.val.read_text())
    ids = sorted(row["id"] for row in content["categories"])
    predictor = from_pretrained(weights, device=args.device)
    found = []
    for image in content["images"]:
        instances = predictor(args.images / image["file_name"])
        if not len(instances):  # such have no masks
            continue
        masks = instances.pred_masks.cpu().numpy()
        columns = zip(
            instances.pred_boxes.tensor.tolist(), instances.scores.tolist(),
            instances.pred_classes.tolist(), masks, strict=True,
        )  # fmt: skip
        for (x1, y1, x2, y2), score, label, mask in columns:
            rle = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
            found.append(
                {
                    "image_id": image["id"],
                    "category_id": ids[label],
                    "score": score,
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "segmentation": {"size": rle["size"], "counts": rle["counts"].decode()},
                }
            )
    return found


def _classes(file: Path) -> int:
    return len(json.loads(file.read_text())["categories"])


def _made(file: Path) -> float:
    return file.stat().st_mtime


def _some(files: list[Path], most: int) -> list[Path]:
    """So many of them at most, evenly, with the last."""
    count = min(most, len(files))
    return [files[(k + 1) * len(files) // count - 1] for k in range(count)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mayaku-n-seg", help="name, .pth, .yaml, or mask_rcnn")
    for name in ("train", "val", "images", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--epochs", type=int, help="instead of by the minutes")
    parser.add_argument("--checkpoints", type=int, default=8, help="most that are scored (8)")
    parser.add_argument("--device", default="cpu")
    return parser


if __name__ == "__main__":
    main()
