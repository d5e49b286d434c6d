"""Computes the losses of a batch that a run kept because one of them was not finite.

    detlite replay --batch output/batch_0000123_rank0.pth \\
        --weights output/model_0000100.pth

Prints the losses and the first part of the model whose output is not finite. The run noticed when
it read its losses (SOLVER.LOG_PERIOD), so the weights of that step are gone; those of the last
checkpoint before it are the nearest. Which boxes are sampled is random, by the seed.

Exit status: 0 when all is finite, 1 when something is not, 2 for what the user can mend.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from detlite.config import ConfigError
from detlite.conversion.checkpoint.files import CheckpointError
from detlite.conversion.checkpoint.loading import build_model_from_checkpoint
from detlite.engine.replay import first_non_finite, read_batch
from detlite.engine.rng import seed_all


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own; returns the exit status."""
    parser = argparse.ArgumentParser(
        "detlite replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", required=True, type=Path, help="file that the run kept")
    parser.add_argument("--weights", required=True, help="checkpoint of the run")
    parser.add_argument("--seed", type=int, default=0, help="of the boxes that are sampled (0)")
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE", help="override config keys")
    args = parser.parse_intermixed_args(arguments)
    try:
        iteration, batch = read_batch(args.batch)
        _, model = build_model_from_checkpoint(args.weights, args.opts)
    except (ConfigError, CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    seed_all(args.seed)
    losses, where = first_non_finite(model, batch)
    images, targets = batch
    print(f"iteration {iteration}, images {[target['image_id'] for target in targets]}")
    for image, target in zip(images, targets, strict=True):
        print(f"  {list(image.shape)}, {len(target['boxes'])} boxes")
    print(", ".join(f"{name} {value:.4g}" for name, value in losses.items()))
    print(f"first output that is not finite: {where or 'none'}")
    return 0 if where is None and all(map(math.isfinite, losses.values())) else 1
