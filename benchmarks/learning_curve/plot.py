"""Evaluate the results of all libraries with the same evaluator, and plot AP over minutes.

    python -m benchmarks.learning_curve.plot --val v.json --detections 200 --output curve.png out/*

Each folder contains `checkpoints.json`, a list of {"seconds", "results"}. The AP is cached in
`scores.json` in the folder.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pycocotools.coco import COCO

from detlite.evaluation.coco import evaluate_coco
from detlite.evaluation.results import Results

KINDS = ("bbox", "segm")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--val", type=Path, required=True)
    parser.add_argument(
        "--detections", type=int, default=100, help="detections per image that count (100)"
    )
    parser.add_argument("--output", type=Path, default=Path("curve.png"))
    args = parser.parse_args(arguments)
    ground_truth = COCO(str(args.val))
    curves = {folder.name: scores(folder, ground_truth, args.detections) for folder in args.folders}
    draw(curves, args.output)
    print("| library | minutes | box AP | box AP50 | mask AP |\n|---|---|---|---|---|")
    for name, rows in curves.items():
        last = rows[-1]
        points = " | ".join(f"{100 * last[kind]:.1f}" for kind in ("box_AP", "box_AP50", "mask_AP"))
        print(f"| {name} | {last['minutes']:.1f} | {points} |")


def scores(folder: Path, ground_truth: COCO, detections: int) -> list[dict[str, Any]]:
    """Return the AP (0 to 1) of each checkpoint of a folder, by time."""
    file = folder / "scores.json"
    cached = json.loads(file.read_text()) if file.exists() else {}
    rows = []
    for row in json.loads((folder / "checkpoints.json").read_text()):
        key = f"{row['results']} {detections}"
        if key not in cached:
            results = json.loads((folder / row["results"]).read_text())
            metrics = evaluate_coco(
                ground_truth, Results.from_coco(results, KINDS), KINDS, detections
            )
            cached[key] = {
                "box_AP": metrics["bbox"]["AP"],
                "box_AP50": metrics["bbox"]["AP50"],
                "mask_AP": metrics["segm"]["AP"],
            }
            file.write_text(json.dumps(cached, indent=2))
        rows.append({"minutes": row["seconds"] / 60, **cached[key]})
    return sorted(rows, key=lambda row: row["minutes"])


def draw(curves: dict[str, list[dict[str, Any]]], file: Path) -> None:
    """Plot box and mask AP in points over minutes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 5), sharex=True, layout="constrained")
    for axis, kind in zip(axes, ("box_AP", "mask_AP"), strict=True):
        for name, rows in curves.items():
            minutes = [row["minutes"] for row in rows]
            axis.plot(minutes, [100 * row[kind] for row in rows], marker="o", label=name)
        axis.set(xlabel="minutes", ylabel=kind.replace("_", " "), ylim=(0, None), xlim=(0, None))
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    main()
