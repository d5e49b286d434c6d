"""Train a model with `detlite init` and `detlite train`, and write the results of its checkpoints.

    python -m benchmarks.learning_curve.detlite_models --train t.json --val v.json \
        --images images --minutes 15 --output out/detlite --recipe small

The recipes are in benchmarks/recipes/recipes.py.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.recipes.recipes import RECIPES
from detlite.config import load_config

from .checkpoints import Results, add_arguments, select_checkpoints, write_results


def main() -> None:
    """Run the command line."""
    args = _parser().parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    base, config, run = (args.output / name for name in ("base.yaml", "config.yaml", "run"))
    command = ["init", "--data", args.train, "--val", args.val, "--images", args.images]
    base.write_text(run_detlite(*command, "--annotations", args.output))
    opts = {
        **RECIPES[args.recipe].overrides(load_config(base)),
        "SOLVER.MAX_MINUTES": args.minutes,
        "SOLVER.TEST_PERIOD": 0,
        "SOLVER.BEST_METRIC": "",
        "SOLVER.CHECKPOINTS_KEPT": 0,
        "SOLVER.CHECKPOINT_PERIOD": args.period,
        "OUTPUT_DIR": str(run),
    }
    config.write_text(load_config(base, [x for pair in opts.items() for x in pair]).dump())
    start = time.time()
    run_detlite("train", "--config", config)

    def predict(file: Path) -> Results:
        folder = args.output / f"test_{file.stem}"
        run_detlite("test", "--config", config, "MODEL.WEIGHT", file, "OUTPUT_DIR", folder)
        [results] = folder.glob("results_*.json")
        return json.loads(results.read_text())

    files = [*run.glob("model_[0-9]*.pth"), run / "model_final.pth"]
    write_results(args.output, select_checkpoints(files, start, args.checkpoints), predict)


def run_detlite(*arguments: object) -> str:
    """Run a command of detlite and return its output."""
    command = [sys.executable, "-m", "detlite", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--recipe", default="lite0", choices=RECIPES)
    parser.add_argument("--period", type=int, default=50, help="steps between checkpoints (50)")
    return parser


if __name__ == "__main__":
    main()
