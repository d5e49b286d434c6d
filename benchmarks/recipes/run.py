"""Trains recipes on a data set for the same time each, and writes a table of what they reach.

    python benchmarks/recipes/run.py measure --train t.json --val v.json --output out
    python benchmarks/recipes/run.py train --output out --minutes 15 --seeds 0 1 --slots 2
    python benchmarks/recipes/run.py table --output out --markdown out/table.md

`measure` writes the base config and the seconds of a step of each recipe, which wants a quiet
machine. `train` gives each recipe minutes x 60 / seconds steps, so that a machine that others use
spoils nothing; what is finished is skipped, what was interrupted goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

sys.path.insert(0, str(Path(__file__).parent))
from benchmarks.recipes.recipes import RECIPES
from detlite.apps.autoconfig.step_timing import step_seconds
from detlite.apps.cli.init import config as init_config
from detlite.config import load_config

BASE, TIMES, RESULTS = "base.yaml", "step_seconds.json", "results.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 1 where a run failed."""
    args = _parser().parse_args(arguments)
    return {"measure": measure, "train": train, "table": table}[args.action](args)


def measure(args: argparse.Namespace) -> int:
    """The base config, and the mean seconds of a step of each recipe, one after the other."""
    args.output.mkdir(parents=True, exist_ok=True)
    base = args.output / BASE
    if base.exists():
        if args.train or args.opts or args.start != "lite0":
            print(f"{base} is there already and is measured: --train, --start, --opts are not read")
    elif args.train is None:
        raise SystemExit(f"{base} is not there: --train names the data to write it for")
    else:
        _write_base(args, base)
    file = args.output / TIMES
    found: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    for name in _chosen(args, base):
        if name not in found and not RECIPES[name].tests:
            found[name] = statistics.mean(step_seconds(configured(base, name), args.steps, 2))
            print(f"{name}: {found[name]:.2f} s a step", flush=True)
            file.write_text(json.dumps(found, indent=2))
    return 0


def train(args: argparse.Namespace) -> int:
    """All runs that are not finished, so many at a time."""
    names, failed = _chosen(args, args.output / BASE), []
    with ThreadPoolExecutor(args.slots) as slots:
        for tests in (False, True):  # those that only test need weights
            jobs = [
                (name, seed, steps_of(args, RECIPES[name].tests or name))
                for name in names
                for seed in args.seeds
                if bool(RECIPES[name].tests) == tests
            ]
            done = slots.map(lambda job: run(args, *job), jobs)
            failed += [job[:2] for job, status in zip(jobs, done, strict=True) if status]
    for name, seed in failed:
        print(f"failed: {name}, seed {seed}; see {folder(args.output, name, seed)}/out.txt")
    table(args)
    return int(bool(failed))


def run(args: argparse.Namespace, name: str, seed: int, steps: int) -> int:
    """Trains, or only evaluates, a recipe in a process of its own; its exit status."""
    own, recipe = folder(args.output, name, seed), RECIPES[name]
    base = hashlib.sha256((args.output / BASE).read_bytes()).hexdigest()
    plan = {"recipe": name, "seed": seed, "steps": steps, "base": base}
    done = own / "plan.json"
    if done.exists() and json.loads(done.read_text()) != plan:
        print(f"{own} holds another run, {done.read_text()}: remove it", flush=True)
        return 1
    if (own / "evaluation.json").exists():
        return 0
    own.mkdir(parents=True, exist_ok=True)
    done.write_text(json.dumps(plan))
    file = own / "recipe.yaml"
    opts = {**schedule(steps), "SEED": seed, "OUTPUT_DIR": str(own)}
    if recipe.tests:
        opts["MODEL.WEIGHT"] = str(folder(args.output, recipe.tests, seed) / "model_final.pth")
    file.write_text(configured(args.output / BASE, name, opts).dump())
    action = ["test"] if recipe.tests else ["train", "--resume"]
    command = [sys.executable, "-m", "detlite", *action, "--config", str(file)]
    threads = {"OMP_NUM_THREADS": str(args.threads)} if args.threads else {}
    print(f"{name}, seed {seed}: {steps} steps", flush=True)
    with (own / "out.txt").open("a") as out:
        return subprocess.run(
            command, env={**os.environ, **threads}, stdout=out, stderr=out
        ).returncode


def table(args: argparse.Namespace) -> int:
    """Writes results.json, and the table in markdown, of all that is finished."""
    rows = list(results(args.output, RECIPES))
    (args.output / RESULTS).write_text(json.dumps(rows, indent=2))
    text = markdown(rows)
    if args.markdown:
        args.markdown.write_text(text)
    print(text)
    return 0


def results(output: Path, names: Iterable[str]) -> Iterable[dict[str, Any]]:
    """Of each recipe what its finished runs reached."""
    file = output / TIMES
    times = json.loads(file.read_text()) if file.exists() else {}
    for name in names:
        runs = []
        for own in sorted(output.glob(f"{name}/seed*")):
            if not (own / "evaluation.json").exists():
                continue
            averaged = own / "average" / "evaluation.json"  # of a mean of weights, it counts
            file = averaged if averaged.exists() else own / "evaluation.json"
            metrics = json.loads(file.read_text())
            plan = json.loads((own / "plan.json").read_text())
            runs.append(
                {
                    "seed": plan["seed"],
                    "steps": plan["steps"],
                    # On the quiet machine that was measured, not on the one that did it.
                    "minutes": plan["steps"] * times[name] / 60 if name in times else None,
                    "box_AP": metrics["bbox"]["AP"],
                    "box_AP50": metrics["bbox"]["AP50"],
                    "mask_AP": metrics["segm"]["AP"] if "segm" in metrics else None,
                }
            )
        if runs:
            yield {"recipe": name, "what": RECIPES[name].what, "runs": runs}


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table: means over seeds, and how far the seeds lie apart."""
    lines = [
        "| recipe | what | steps | box AP | box AP50 | mask AP | seeds | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        runs = row["runs"]
        cells = [_cell(runs, kind) for kind in ("box_AP", "box_AP50", "mask_AP")]
        minutes = [one["minutes"] for one in runs if one["minutes"] is not None]
        spent = f"{statistics.mean(minutes):.1f}" if minutes else ""
        steps = runs[0]["steps"]
        lines.append(
            f"| {row['recipe']} | {row['what']} | {steps} | {' | '.join(cells)} | {len(runs)} | "
            f"{spent} |"
        )
    return "\n".join(lines) + "\n"


def configured(base: Path, name: str, opts: dict[str, Any] | None = None) -> CfgNode:
    """The config of a recipe over the base config and other keys."""
    overrides = (opts or {}) | RECIPES[name].overrides(load_config(base))
    return load_config(base, [item for pair in overrides.items() for item in pair])


def schedule(steps: int) -> dict[str, Any]:
    """Evaluated once, at the end; checkpoints to go on from."""
    return {
        "SOLVER.MAX_ITER": steps,
        "SOLVER.WARMUP_ITERS": min(100, steps // 10),
        "SOLVER.TEST_PERIOD": 0,
        "SOLVER.BEST_METRIC": "",
        "SOLVER.CHECKPOINT_PERIOD": max(steps // 4, 1),
        "SOLVER.CHECKPOINTS_KEPT": 1,
    }


def steps_of(args: argparse.Namespace, name: str) -> int:
    """The budget of a recipe in steps."""
    if args.steps_each:
        return args.steps_each
    times = json.loads((args.output / TIMES).read_text())
    return max(round(args.minutes * 60 / times[name]), 1)


def folder(output: Path, name: str, seed: int) -> Path:
    """Where a run leaves its files."""
    return output / name / f"seed{seed}"


def _write_base(args: argparse.Namespace, base: Path) -> None:
    """What `detlite init` writes, or a recipe and other keys over it."""
    init = base.with_name("init.yaml")  # the base is written when the keys are seen to be sound
    init.write_text(init_config(args.train, args.val, args.images, args.output))
    overrides = RECIPES[args.start].overrides(load_config(init))
    opts = [item for pair in overrides.items() for item in pair] + args.opts
    base.write_text(load_config(init, opts).dump() if opts else init.read_text())


def _chosen(args: argparse.Namespace, base: Path) -> list[str]:
    """The recipes that were asked for and mean something for the data."""
    if not base.exists():
        raise SystemExit(f"{base} is not there: run `measure` first, with --train and --val")
    cfg = load_config(base)
    unknown = set(args.only) - RECIPES.keys()
    if unknown:
        raise SystemExit(f"no recipe {', '.join(sorted(unknown))}; there are {', '.join(RECIPES)}")
    return [name for name in args.only or RECIPES if RECIPES[name].fits(cfg)]


def _cell(runs: Sequence[dict[str, Any]], kind: str) -> str:
    """A mean times 100 and, of several seeds, half of their range."""
    values = [100 * one[kind] for one in runs if one[kind] is not None]
    if not values:
        return ""
    mean = f"{statistics.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {(max(values) - min(values)) / 2:.1f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("measure", "train", "table"))
    parser.add_argument("--output", type=Path, required=True, help="folder of all runs")
    parser.add_argument(
        "--train", type=Path, help="measure: COCO json, or a folder that init reads"
    )
    parser.add_argument("--val", type=Path, help="measure: the same, to evaluate on")
    parser.add_argument("--images", type=Path, help="measure: folder of the pictures of json files")
    parser.add_argument(
        "--start",
        choices=RECIPES,
        default="lite0",
        metavar="RECIPE",
        help="measure: what all start from is changed by this recipe first",
    )
    parser.add_argument(
        "--opts", nargs="+", default=[], metavar="KEY VALUE", help="measure: and by these keys"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="RECIPE", help="these recipes")
    parser.add_argument("--steps", type=int, default=10, help="measure: steps that are timed (10)")
    parser.add_argument("--minutes", type=float, default=15, help="train: of each run (15)")
    parser.add_argument("--steps-each", type=int, help="train: steps of each run, not by minutes")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="train: a run of each (0)"
    )
    parser.add_argument("--slots", type=int, default=1, help="train: runs at a time (1)")
    parser.add_argument("--threads", type=int, default=0, help="train: of each run; 0: all")
    parser.add_argument("--markdown", type=Path, help="table: write it there")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
