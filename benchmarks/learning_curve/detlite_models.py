"""Trains a model of detlite by `detlite init` and `detlite train`, and writes what it finds.

    python detlite_models.py --train t.json --val v.json --images images --minutes 15 \
        --output out/detlite
    python detlite_models.py ... --output out/detlite_small --recipe small

A recipe is one of benchmarks/recipes/recipes.py; none is what `detlite init` writes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from detlite.config import load_config

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))
from recipes import RECIPES


def main() -> None:
    args = _parser().parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    base, config, run = (args.output / name for name in ("base.yaml", "config.yaml", "run"))
    command = ["init", "--data", args.train, "--val", args.val, "--images", args.images]
    base.write_text(detlite(*command, "--annotations", args.output))
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
    detlite("train", "--config", config)
    files = sorted(run.glob("model_[0-9]*.pth"), key=_made)
    files += [run / "model_final.pth"]
    rows = []
    for number, file in enumerate(_some(files, args.checkpoints)):
        folder = args.output / f"test_{number}"
        detlite("test", "--config", config, "MODEL.WEIGHT", file, "OUTPUT_DIR", folder)
        [found] = folder.glob("results_*.json")
        results = found.relative_to(args.output).as_posix()
        rows.append({"seconds": _made(file) - start, "results": results})
        (args.output / "checkpoints.json").write_text(json.dumps(rows, indent=2))


def detlite(*words: object) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "detlite", *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _made(file: Path) -> float:
    return file.stat().st_mtime


def _some(files: list[Path], most: int) -> list[Path]:
    """So many of them at most, evenly, with the last."""
    count = min(most, len(files))
    return [files[(k + 1) * len(files) // count - 1] for k in range(count)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("train", "val", "images", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--recipe", default="lite0", choices=RECIPES)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--period", type=int, default=50, help="steps between checkpoints (50)")
    parser.add_argument("--checkpoints", type=int, default=8, help="most that are scored (8)")
    return parser


if __name__ == "__main__":
    main()
