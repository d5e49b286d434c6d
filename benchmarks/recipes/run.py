"""Train recipes on a dataset for the same time.

    python -m benchmarks.recipes.run measure --train t.json --val v.json --output out
    python -m benchmarks.recipes.run train --output out --minutes 15 --seeds 0 1 --slots 2
    detlite compare out/*/seed* --format markdown
    python -m benchmarks.recipes.run short --output out --train photos --busy 1 --seeds 0 1 2

`measure` writes the base config and the seconds per step of each recipe; it needs a machine without
other work. `train` gives each recipe minutes x 60 / seconds steps, so that other work on the
machine does not change the results. It skips complete runs and resumes interrupted ones. `short`
runs what `detlite init --minutes` chooses, with other work on --busy cores.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.apps.autoconfig import init_config as configs
from detlite.apps.autoconfig.time_budget import mean_step_seconds
from detlite.apps.cli.main import build_parser
from detlite.config import load_config

from .recipes import RECIPES

BASE, TIMES = "base.yaml", "step_seconds.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a run failed."""
    args = _parser().parse_args(arguments)
    return {"measure": measure, "train": train, "short": short}[args.action](args)


def measure(args: argparse.Namespace) -> int:
    """Write the base config and the mean seconds per step of each recipe."""
    args.output.mkdir(parents=True, exist_ok=True)
    base = args.output / BASE
    if base.exists():
        if args.train or args.opts or args.start != "lite0":
            print(f"{base} exists and is used: --train, --start and --opts are ignored")
    elif args.train is None:
        raise SystemExit(f"{base} does not exist: name the dataset with --train to write it")
    else:
        _write_base(args, base)
    file = args.output / TIMES
    seconds: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    for name in _selected(args, base):
        if name not in seconds:
            cfg = recipe_config(base, name)
            seconds[name] = mean_step_seconds(cfg, 15.0, args.steps, warm_up=2)
            print(f"{name}: {seconds[name]:.2f} s per step", flush=True)
            file.write_text(json.dumps(seconds, indent=2))
    return 0


def train(args: argparse.Namespace) -> int:
    """Run everything that is not complete, with --slots simultaneous runs."""
    jobs = [
        (name, seed, number_of_steps(args, name))
        for name in _selected(args, args.output / BASE)
        for seed in args.seeds
    ]
    with ThreadPoolExecutor(args.slots) as slots:
        statuses = slots.map(lambda job: run(args, *job), jobs)
        failed = [job[:2] for job, status in zip(jobs, statuses, strict=True) if status]
    for name, seed in failed:
        print(f"failed: {name}, seed {seed}; see {run_folder(args.output, name, seed)}/out.txt")
    return int(bool(failed))


def run(args: argparse.Namespace, name: str, seed: int, steps: int) -> int:
    """Train a recipe in a new process; return its exit status."""
    folder = run_folder(args.output, name, seed)
    base = hashlib.sha256((args.output / BASE).read_bytes()).hexdigest()
    plan = {"recipe": name, "seed": seed, "steps": steps, "base": base}
    plan_file = folder / "plan.json"
    if plan_file.exists() and json.loads(plan_file.read_text()) != plan:
        print(f"{folder} contains another run, {plan_file.read_text()}: remove it", flush=True)
        return 1
    if (folder / "evaluation.json").exists():
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    plan_file.write_text(json.dumps(plan))
    file = folder / "recipe.yaml"
    opts = {**schedule(steps), "SEED": seed, "OUTPUT_DIR": str(folder)}
    file.write_text(recipe_config(args.output / BASE, name, opts).dump())
    command = [sys.executable, "-m", "detlite", "train", "--resume", "--config", str(file)]
    threads = {"OMP_NUM_THREADS": str(args.threads)} if args.threads else {}
    print(f"{name}, seed {seed}: {steps} steps", flush=True)
    with (folder / "out.txt").open("a") as out:
        return subprocess.run(
            command, env={**os.environ, **threads}, stdout=out, stderr=out
        ).returncode


def short(args: argparse.Namespace) -> int:
    """Train configs of `detlite init --minutes`, and print what it chose and the box AP."""
    spinning = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spinning) for _ in range(args.busy)]
    print(
        "| minutes | seed | images per step | size | steps | box AP |", "|---" * 6 + "|", sep="\n"
    )
    try:
        for minutes, seed in product(args.short_minutes, args.seeds):
            folder = args.output / f"{minutes:g}_minutes_{args.busy}_busy" / f"seed{seed}"
            file, result = folder / "init.yaml", folder / "evaluation.json"
            if not result.exists():
                folder.mkdir(parents=True, exist_ok=True)
                file.write_text(init_config(args.train, args.val, args.images, folder, minutes))
                words = ["train", "--config", str(file), "--output", str(folder), f"SEED={seed}"]
                subprocess.run([sys.executable, "-m", "detlite", *words], check=True)
            cfg, metrics = load_config(folder / "config.yaml"), json.loads(result.read_text())
            steps = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["iteration"]
            sizes = f"{cfg.SOLVER.IMS_PER_BATCH} | {cfg.INPUT.MIN_SIZE_TEST} | {steps}"
            print(f"| {minutes:g} | {seed} | {sizes} | {100 * metrics['bbox']['AP']:.1f} |")
    finally:
        for process in others:
            process.kill()
    return 0


def recipe_config(base: Path, name: str, opts: dict[str, Any] | None = None) -> CfgNode:
    """Return the config of a recipe: the base config, `opts`, and the recipe's keys."""
    opts = opts or {}
    cfg = load_config(base, [item for pair in opts.items() for item in pair])
    overrides = opts | RECIPES[name].overrides(cfg)
    return load_config(base, [item for pair in overrides.items() for item in pair])


def schedule(steps: int) -> dict[str, Any]:
    """Return keys for an evaluation only at the end, and for checkpoints to resume from."""
    return {
        "SOLVER.MAX_ITER": steps,
        "SOLVER.WARMUP_ITERS": min(100, steps // 10),
        "SOLVER.TEST_PERIOD": 0,
        "SOLVER.BEST_METRIC": "",
        "SOLVER.CHECKPOINT_PERIOD": max(steps // 4, 1),
        "SOLVER.CHECKPOINTS_KEPT": 1,
    }


def number_of_steps(args: argparse.Namespace, name: str) -> int:
    """Return the number of steps of a recipe."""
    if args.steps_each:
        return args.steps_each
    times = json.loads((args.output / TIMES).read_text())
    return max(round(args.minutes * 60 / times[name]), 1)


def run_folder(output: Path, name: str, seed: int) -> Path:
    """Return the folder of a run."""
    return output / name / f"seed{seed}"


def init_config(
    train: Path, val: Path | None, images: Path | None, output: Path, minutes: float | None = None
) -> str:
    """Return the config of `detlite init`, which writes its json files to `output`."""
    options = {"--data": train, "--val": val, "--images": images, "--annotations": output,
               "--minutes": minutes}  # fmt: skip
    words = [str(word) for pair in options.items() if pair[1] for word in pair]
    return configs.init_config(build_parser("init").parse_args(words), lambda text: None)


def _write_base(args: argparse.Namespace, base: Path) -> None:
    """Write the config of `detlite init`, changed by a recipe and other keys."""
    init = base.with_name("init.yaml")  # if a key is invalid, no base config is written
    init.write_text(init_config(args.train, args.val, args.images, args.output))
    overrides = RECIPES[args.start].overrides(load_config(init))
    opts = [item for pair in overrides.items() for item in pair] + args.opts
    base.write_text(load_config(init, opts).dump() if opts else init.read_text())


def _selected(args: argparse.Namespace, base: Path) -> list[str]:
    """Return the selected recipes that apply to the dataset."""
    if not base.exists():
        raise SystemExit(f"{base} does not exist: run `measure` first, with --train and --val")
    cfg = load_config(base)
    return [name for name in args.only or RECIPES if RECIPES[name].applies_to(cfg)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("action", choices=("measure", "train", "short"))
    add("--output", type=Path, required=True, help="folder of all runs")
    add("--train", type=Path, help="measure, short: training data, as in `detlite init --data`")
    add("--val", type=Path, help="measure, short: validation data")
    add("--images", type=Path, help="measure, short: folder of the images of COCO json files")
    text = "measure: recipe that changes the base config (lite0: none)"
    add("--start", choices=RECIPES, default="lite0", metavar="RECIPE", help=text)
    text = "measure: keys of the base config"
    add("--opts", nargs="+", default=[], metavar="KEY VALUE", help=text)
    add(
        "--only",
        nargs="+",
        choices=RECIPES,
        default=[],
        metavar="RECIPE",
        help="run only these recipes",
    )
    add("--steps", type=int, default=10, help="measure: timed steps (10)")
    add("--minutes", type=float, default=15, help="train: minutes of each run (15)")
    add("--steps-each", type=int, help="train: steps of each run, instead of minutes")
    add("--seeds", type=int, nargs="+", default=[0], help="seeds of the runs (0)")
    add("--slots", type=int, default=1, help="train: number of simultaneous runs (1)")
    add("--threads", type=int, default=0, help="train: threads of each run; 0 for all")
    add("--short-minutes", type=float, nargs="+", default=[1, 2, 5, 10], help="short: minutes")
    add("--busy", type=int, default=0, help="short: cores that other processes use")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
