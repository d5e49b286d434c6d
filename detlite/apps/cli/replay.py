"""Recompute the losses of a batch that a run saved because its loss was not finite.

    detlite replay --batch output/batch_0000123_rank0.pth \\
        --weights output/model_0000100.pth

The command prints the losses, and the first module of the model with an output that is not finite.
A run checks its losses only every SOLVER.LOG_PERIOD iterations, so the weights of the failing
iteration are not available. Use the last checkpoint before it. Boxes are sampled randomly; --seed
sets the seed.

Exit status: 0 if everything is finite; 1 if something is not; 2 for an error that you can fix.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from detlite.apps import cli


def add_arguments(parser: ArgumentParser) -> None:
    cli.add_option(parser, "--batch", "batch file of the run", "FILE", type=Path, required=True)
    cli.add_weights(parser, "checkpoint of the run")
    cli.add_option(parser, "--seed", "seed for sampling boxes", default=0)
    cli.add_overrides(parser)


def run(args: Namespace) -> int:
    import math

    from detlite.checkpoint.loading import build_model_from_checkpoint
    from detlite.engine.replay import first_non_finite, read_batch
    from detlite.engine.rng import seed_all

    iteration, batch = read_batch(args.batch)
    _, model = build_model_from_checkpoint(args.weights, cli.config_overrides(args))
    seed_all(args.seed)
    losses, module = first_non_finite(model, batch)
    images, targets = batch
    print(f"iteration {iteration}, images {[target['image_id'] for target in targets]}")
    for image, target in zip(images, targets, strict=True):
        print(f"  {list(image.shape)}, {len(target['boxes'])} boxes")
    print(", ".join(f"{name} {value:.4g}" for name, value in losses.items()))
    print(f"first output that is not finite: {module or 'none'}")
    return 0 if module is None and all(map(math.isfinite, losses.values())) else 1
