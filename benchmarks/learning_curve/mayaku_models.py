"""Train a model with mayaku, and write the results of its checkpoints.

    environments/mayaku/bin/python -m benchmarks.learning_curve.mayaku_models \
        --model mayaku-n-seg --train t.json --val v.json --images images --minutes 15 \
        --output out/mayaku_n

`--model` is one of:

- a name: `mayaku-n-seg` is the smallest model, pretrained on Objects365; mayaku downloads it.
- a .pth file with weights.
- a .yaml file of mayaku's repository (configs/segmentation/mayaku-n-seg.yaml): random weights.
- `mask_rcnn`: mayaku's Mask R-CNN on ResNet-50 with batch norm and random weights. mayaku offers
  no weights for it, and its ResNets have no group norm.

mayaku counts the training length in epochs. The script times one epoch, and then trains for the
number of epochs that fit into the minutes.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import yaml
from mayaku import from_pretrained, train
from mayaku.config import MayakuConfig

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
    epochs = args.epochs
    if not epochs:
        seconds = run(args, args.output / "timed", 1)
        epochs = max(int(args.minutes * 60 / seconds), 1)
        print(f"an epoch takes {seconds:.0f} s: training {epochs} epochs", flush=True)
    start = time.time()
    run(args, args.output / "run", epochs)
    folder = args.output / "run" / "train"
    if (folder / "ema").is_dir():  # averaged weights, which mayaku returns if they exist
        folder = folder / "ema"
    checkpoints = select_checkpoints(folder.glob("model_*.pth"), start, args.checkpoints)
    write_results(args.output, checkpoints, lambda file: predict(file, args))


def run(args: argparse.Namespace, folder: Path, epochs: int) -> float:
    """Train for a number of epochs; return the seconds."""
    model: dict[str, Any] = {"weights": args.model}
    if args.model == "mask_rcnn":
        model = {"config": mask_rcnn(args.train)}
    elif args.model.endswith(".yaml"):
        model = {"config": from_file(Path(args.model), args.train)}
    result = train(
        **model, train_annotations=args.train, train_images=args.images, output_dir=folder,
        num_epochs=epochs, device=args.device,
    )  # fmt: skip
    return float(result["train_seconds"])


def from_file(config: Path, file: Path) -> MayakuConfig:
    """Adapt a config of mayaku to the classes of an annotation file, with masks as bitmaps."""
    content = yaml.safe_load(config.read_text())
    content["model"]["roi_heads"]["num_classes"] = _classes(file)
    content["input"]["mask_format"] = "bitmask"
    content["solver"]["checkpoint_period"] = 1  # in epochs
    return MayakuConfig.model_validate(content)


def mask_rcnn(file: Path) -> MayakuConfig:
    """Return the default config of mayaku's Mask R-CNN, for batches of 2 and random weights."""
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


def predict(weights: Path, args: argparse.Namespace) -> Results:
    """Return COCO results for the validation images."""
    content = json.loads(args.val.read_text())
    ids = sorted(row["id"] for row in content["categories"])
    predictor = from_pretrained(weights, device=args.device)
    results: Results = []
    for image in content["images"]:
        instances = predictor(args.images / image["file_name"])
        if not len(instances):  # without detections there are no masks
            continue
        masks = instances.pred_masks.cpu().numpy()
        columns = zip(
            instances.pred_boxes.tensor.tolist(), instances.scores.tolist(),
            instances.pred_classes.tolist(), masks, strict=True,
        )  # fmt: skip
        for box, score, label, mask in columns:
            results.append(coco_result(image["id"], ids[label], score, box, mask))
    return results


def _classes(file: Path) -> int:
    return len(json.loads(file.read_text())["categories"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mayaku-n-seg", help="name, .pth, .yaml, or mask_rcnn")
    add_arguments(parser)
    parser.add_argument("--epochs", type=int, help="number of epochs, instead of minutes")
    parser.add_argument("--device", default="cpu")
    return parser


if __name__ == "__main__":
    main()
