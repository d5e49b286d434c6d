"""Detect objects in pictures with a trained checkpoint.

    detlite predict --weights model_final.pth --input photos extra.png --output found
    detlite predict --weights model_final.pth --input 'photos/**/*.jpg' --output found
    detlite predict --weights model_final.pth --input list.txt https://host/a.jpg --output found

--input takes files, folders, globs, text files that list paths or addresses, and addresses.

In the output folder:
    0001_<name>.png   each picture with its detections; 1 is the picture's image_id
    results.json      all detections as COCO results
    images.json       which file has which image_id, and the categories, as a COCO file without
                      annotations: COCO("images.json").loadRes("results.json") loads both

Exit status: 0; 1 when a picture could not be read (it is named and skipped); 2 when nothing could
be done.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from ..config import ConfigError
from ..data import DataError
from ..engine.checkpoint import CheckpointError
from ..evaluation import coco_results
from ..inference.exported import SUFFIXES
from ..inference.inputs import list_pictures, load_picture, stem_of
from ..inference.memory import keep_freed_memory
from ..inference.predictor import Prediction, Predictor
from ..inference.stream import predict_stream
from ..visualization import draw_detections

Entry = dict[str, Any]  # of a json file


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own; returns the exit status."""
    args = _parser().parse_intermixed_args(arguments)
    if args.batch < 1:
        print(f"error: --batch {args.batch}: at least one picture is needed", file=sys.stderr)
        return 2
    keep_freed_memory()
    try:
        pictures = list_pictures(args.input)
        if Path(args.weights).suffix in SUFFIXES.values():
            predictor = Predictor(args.weights, score_thresh=args.threshold, rle=True)
        else:
            predictor = Predictor.from_checkpoint(
                args.weights, args.opts, args.config, args.threshold, rle=True
            )
        if predictor.model.takes_proposals:
            raise ConfigError(
                f"{args.weights}: a Fast R-CNN needs proposals for each picture: call a Predictor "
                "with them, or evaluate a data set that has them (`detlite test`)"
            )
        unreadable = predict_pictures(predictor, pictures, args.output, args.batch)
    except (CheckpointError, ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # pictures and weights have errors of their own
        print(f"error: --output {args.output}: cannot be written to ({error})", file=sys.stderr)
        return 2
    print(f"{len(pictures) - unreadable} pictures done, {unreadable} unreadable: see {args.output}")
    return 1 if unreadable else 0


def predict_pictures(
    predictor: Predictor, pictures: Sequence[str], output: Path, batch: int
) -> int:
    """Draws and writes the detections in `pictures`; returns how many could not be read."""
    output.mkdir(parents=True, exist_ok=True)

    def write(place: int, picture: Tensor, found: Prediction) -> tuple[Entry, list[Entry]]:
        image_id, name = place + 1, pictures[place]
        drawn = draw_detections(picture, found, predictor.categories, min_score=0)
        drawn.save(output / f"{image_id:04d}_{stem_of(name)}.png")
        _, height, width = picture.shape
        image = {"id": image_id, "file_name": name, "height": height, "width": width}
        rows = coco_results(
            image_id, found["boxes"], found["scores"], found["category_ids"],
            found.get("masks"), found.get("keypoints"), predictor.model.convention.keypoint_center,
        ).rows()  # fmt: skip
        return image, list(rows)

    images, results = [], []
    load = partial(load_picture, predictor)
    stream = predict_stream(predictor, pictures, write, batch, load=load)
    for written in tqdm(stream, total=len(pictures), unit=" pictures", disable=None):
        if isinstance(written, DataError):
            tqdm.write(f"skipped: {written}", file=sys.stderr)
            continue
        images.append(written[0])
        results += written[1]
    index = {
        "info": {},
        "images": images,
        "annotations": [],
        "categories": predictor.categories,
    }
    (output / "images.json").write_text(json.dumps(index, indent=1), encoding="utf-8")
    (output / "results.json").write_text(json.dumps(results), encoding="utf-8")
    return len(pictures) - len(images)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "detlite predict", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", required=True, help="checkpoint, or exported model")
    parser.add_argument(
        "--config", "--config-file", help="YAML file of the model, for weights without a config"
    )
    parser.add_argument(
        "--input",
        required=True,
        nargs="+",
        metavar="PICTURES",
        help="files, folders, globs, lists (.txt) or addresses (http, https)",
    )
    parser.add_argument("--output", required=True, type=Path, help="folder for what is found")
    parser.add_argument(
        "--threshold", type=float, default=0.5, help="lowest score of a detection (0.5)"
    )
    parser.add_argument(
        "--batch", type=int, default=1, help="pictures of like size that are run together (1)"
    )
    parser.add_argument(
        "opts", nargs="*", metavar="KEY VALUE", help="overrides of the checkpoint's config"
    )
    return parser
