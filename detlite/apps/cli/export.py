"""Export a trained model, and run what was written beside it.

    detlite export --weights model_final.pth --format onnx --output model.onnx
    detlite export --weights model_final.pth --format openvino --int8 \\
        --output model.openvino

Files of the formats pt2 (torch.export) and aoti (AOTInductor) end in .pt2, others in their name.
detlite.Predictor("model.onnx") runs any of them.

The file is read back and compared with the model on pictures (--check, else generated ones), in two
other sizes and on a picture without objects; a file in int8 with the model in int8, and the AP
before and after is printed.

Exit status: 0; 1 when the file does not find what the model finds, or the AP falls by more than 0.5
points; 2 when nothing could be done.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from yacs.config import CfgNode

from detlite.apps.export.comparison import Difference, compare_detectors
from detlite.apps.export.exported_detector import (
    SUFFIXES,
    check_target,
    exportable,
    read_exported,
    write_exported,
)
from detlite.apps.export.openvino import to_openvino
from detlite.config import ConfigError
from detlite.conversion.checkpoint.files import CheckpointError
from detlite.conversion.checkpoint.loading import build_model_from_checkpoint
from detlite.data import CocoDataset, DataError, build_dataset
from detlite.data.datasets.synthetic import draw_scene
from detlite.data.loading.image_reading import read_image
from detlite.data.transforms.augment import build_transform
from detlite.data.transforms.resize import resize_shortest
from detlite.engine.evaluate import evaluate_dataset
from detlite.modeling.detector import Detector

# The largest differences that rounding explains: pixels, probabilities of boxes and of masks.
TOLERANCE = {"boxes": 0.05, "scores": 1e-3, "masks": 1e-2}
LARGEST_LOSS = 0.005  # of AP, in 0..1
GENERATED = 4  # pictures
OTHER_SIZES = (0.75, 1.25)  # of the short side at which the model sees a picture
RUNS = 9  # whose time is taken


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own; returns the exit status."""
    args = _parser().parse_intermixed_args(arguments)
    try:
        return run(args)
    except (CheckpointError, ConfigError, DataError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run(args: argparse.Namespace) -> int:
    """Exports, compares, and returns 0 or 1."""
    if args.int8 and args.format != "openvino":
        raise ConfigError("--int8 is of the format openvino: add --format openvino")
    check_target(args.output, args.format)
    opts = [*args.opts, "MODEL.DEVICE", "cpu"]
    cfg, model = build_model_from_checkpoint(args.weights, opts, args.config)
    cfg = exportable(cfg, model)
    images = check_images(cfg, model, args.check)
    proposals = [grid_of_boxes(x) for x in images] if model.takes_proposals else None
    datasets = evaluation_sets(cfg, args.evaluate) if args.int8 else []
    form = model
    if args.format == "openvino":
        form = to_openvino(model, *calibration(cfg, args.calibrate) if args.int8 else ())
    write_exported(args.output, args.format, cfg, form)
    _, exported = read_exported(args.output)
    megabytes = args.output.stat().st_size / 1e6
    print(f"{args.output}: {megabytes:.1f} MB, beside the model on {len(images)} images")
    # int8 itself changes what is found: by how much, AP says.
    reference = form if args.int8 else model
    agrees = report(compare_detectors(reference, exported, images, proposals))
    for dataset in datasets:
        agrees = report_ap(cfg, model, exported, dataset) and agrees
    if args.time:
        report_time(model, exported, images[0], proposals and proposals[:1])
    return 0 if agrees else 1


def check_images(cfg: CfgNode, model: Detector, folder: Path | None) -> list[Tensor]:
    """Pictures as the network sees them: those to check, the first in other sizes, a blank one."""
    if folder is None:
        scenes = (draw_scene(np.random.default_rng(seed))[0] for seed in range(GENERATED))
        pictures = [torch.from_numpy(pixels).permute(2, 0, 1) for pixels in scenes]
    else:
        formats = Image.registered_extensions()
        files = sorted(f for f in folder.glob("*") if formats.get(f.suffix.lower()) in Image.OPEN)
        if not files:
            raise DataError(f"--check {folder}: there is no picture in this folder")
        pictures = [read_image(file) for file in files]
    size, most = cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST
    shown = [(picture, size) for picture in pictures]
    shown += [(pictures[0], round(factor * size)) for factor in OTHER_SIZES]
    shown.append((torch.full_like(pictures[0], 128), size))
    resize = model.convention.resize
    return [resize_shortest(picture, side, most, resize) for picture, side in shown]


def grid_of_boxes(image: Tensor) -> Tensor:
    """Proposals [9, 4] all over an image [3, H, W], for a Fast R-CNN."""
    height, width = image.shape[-2:]
    x, y = torch.meshgrid(torch.arange(3) * width / 4, torch.arange(3) * height / 4, indexing="xy")
    low = torch.stack([x, y], dim=-1).reshape(-1, 2)
    return torch.cat([low, low + torch.tensor([width / 2, height / 2])], dim=1)


def calibration(cfg: CfgNode, count: int) -> tuple[list[Tensor], list[Tensor] | None]:
    """Pictures of the first training set, evenly over it, with their proposals if it has any."""
    if not cfg.DATASETS.TRAIN:
        raise ConfigError("--int8 is calibrated on DATASETS.TRAIN, which is empty: name a data set")
    if count < 1:
        raise ConfigError(f"--calibrate {count}: at least one picture is needed")
    dataset = build_dataset(cfg, cfg.DATASETS.TRAIN[0], train=False)
    transform = build_transform(cfg, train=False)
    count = min(count, len(dataset))
    chosen = [transform(*dataset[k * len(dataset) // count]) for k in range(count)]
    images = [image for image, _ in chosen]
    given = [target["proposals"] for _, target in chosen if "proposals" in target]
    return images, given or None


def report(difference: Difference) -> bool:
    """Prints a difference and whether rounding explains it, and returns that."""
    agrees = difference.within(**TOLERANCE)
    limits = ", ".join(f"{name} {value}" for name, value in TOLERANCE.items())
    print(
        f"{difference.objects} objects; largest difference: boxes {difference.boxes:.2g} pixels, "
        f"scores {difference.scores:.2g}, masks {difference.masks:.2g}, keypoints "
        f"{difference.keypoints:.2g} pixels; {difference.unmatched} objects of one alone\n"
        f"it {'agrees' if agrees else 'DOES NOT AGREE'} with the model (tolerance: {limits})"
    )
    return agrees


def evaluation_sets(cfg: CfgNode, name: str | None) -> list[CocoDataset]:
    """The data sets that the AP of int8 is measured on."""
    names = [name] if name else cfg.DATASETS.TEST
    if not names:
        raise ConfigError("--int8 measures AP, but DATASETS.TEST is empty: add --evaluate <name>")
    return [build_dataset(cfg, own, train=False) for own in names]


def report_ap(cfg: CfgNode, model: Detector, exported: Detector, dataset: CocoDataset) -> bool:
    """Prints the AP of both on a data set, and returns whether it falls by little."""
    cfg = cfg.clone()
    cfg.defrost()
    cfg.TEST.OPTIMIZE = False  # both as they are
    cfg.freeze()
    with tempfile.TemporaryDirectory() as folder:
        before, after = (
            evaluate_dataset(cfg, own, dataset, Path(folder)) for own in (model, exported)
        )
    for kind, row in before.items():
        print(
            f"{dataset.name}: {kind} AP {100 * row['AP']:.1f} before, "
            f"{100 * after[kind]['AP']:.1f} in int8"
        )
    return all(row["AP"] - after[kind]["AP"] <= LARGEST_LOSS for kind, row in before.items())


def report_time(
    model: Detector, exported: Detector, image: Tensor, proposals: list[Tensor] | None
) -> None:
    """Prints what an image takes, medians of runs in turn after one of each that does not count."""
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(RUNS + 1):
        for detector, own in zip((model, exported), spent, strict=True):
            start = time.perf_counter()
            detector.detect([image], proposals)
            own.append(1e3 * (time.perf_counter() - start))
    before, after = (statistics.median(own[1:]) for own in spent)
    size = " x ".join(map(str, image.shape[-2:]))
    print(
        f"an image of {size} on {torch.get_num_threads()} threads: {before:.1f} ms by the model, "
        f"{after:.1f} ms by the file, {before / after:.2f} times as fast"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "detlite export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", required=True, help="checkpoint that training wrote")
    parser.add_argument(
        "--config", "--config-file", help="YAML file of the model, for weights without a config"
    )
    parser.add_argument("--format", required=True, choices=list(SUFFIXES), help="what to write")
    parser.add_argument("--output", required=True, type=Path, help="the file to write")
    parser.add_argument("--int8", action="store_true", help="quantise (openvino)")
    parser.add_argument(
        "--calibrate", type=int, default=40, metavar="N", help="training pictures for --int8 (40)"
    )
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="pictures to compare on")
    parser.add_argument(
        "--evaluate", metavar="NAME", help="data set for the AP of --int8 (DATASETS.TEST)"
    )
    parser.add_argument("--time", action="store_true", help="compare the time of an image too")
    parser.add_argument(
        "opts", nargs="*", metavar="KEY VALUE", help="overrides of the checkpoint's config"
    )
    return parser
