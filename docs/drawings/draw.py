"""Draw the figures of docs/operators.md, with the results of the operators.

Run `python docs/drawings/draw.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from detlite.ops import assign_levels, crop_masks, heatmap_peaks, match_boxes, nms, roi_pool
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.masks.pasting import paste_probabilities

FOLDER = Path(__file__).parent
INK, GRAY, TEAL, ORANGE, RED = "#263238", "#b0bec5", "#00897b", "#ef6c00", "#c62828"
PALE = "#e0f2f1"

MASK = matplotlib.colors.ListedColormap(["white", TEAL])

plt.rcParams.update(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "detlite",
        "font.family": "sans-serif",
        "font.sans-serif": ["Arial", "DejaVu Sans", "sans-serif"],
        "font.size": 10,
        "text.color": INK,
        "axes.edgecolor": GRAY,
        "axes.labelcolor": INK,
        "axes.titlesize": 10,
        "xtick.color": INK,
        "ytick.color": INK,
    }
)


def cells(axes: Axes, width: int, height: int, centers: bool = True) -> None:
    """Draw a map of width x height cells of side 1, with the first row at the top."""
    for x in range(width + 1):
        axes.plot([x, x], [0, height], color=GRAY, lw=0.8, zorder=1)
    for y in range(height + 1):
        axes.plot([0, width], [y, y], color=GRAY, lw=0.8, zorder=1)
    if centers:
        x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
        axes.plot(x.ravel(), y.ravel(), ".", color=GRAY, ms=3, zorder=1)
    axes.set(xlim=(-0.2, width + 0.2), ylim=(height + 0.2, -0.2), aspect="equal")
    axes.axis("off")


def box(axes: Axes, corners: tuple[float, ...], color: str, text: str = "", **kwargs: Any) -> None:
    x1, y1, x2, y2 = corners
    style: dict[str, Any] = {"fill": False, "edgecolor": color, "lw": 1.8, "zorder": 3, **kwargs}
    axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, **style))
    if text:
        axes.text(x1, y1 - 0.12, text, color=color, va="bottom", zorder=5)


def roi_align() -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.2), width_ratios=(8, 6))
    cells(left, 8, 6)
    roi = (1.2, 0.9, 6.8, 5.1)
    box(left, roi, TEAL)
    left.plot([4, 4], [0.9, 5.1], "--", color=TEAL, lw=1.2)
    left.plot([1.2, 6.8], [3, 3], "--", color=TEAL, lw=1.2)
    xs = 1.2 + 2.8 * (np.array([0, 0, 1, 1]) + (np.array([0, 1, 0, 1]) + 0.5) / 2)
    ys = 0.9 + 2.1 * (np.array([0, 0, 1, 1]) + (np.array([0, 1, 0, 1]) + 0.5) / 2)
    left.plot(*(part.ravel() for part in np.meshgrid(xs, ys)), "o", color=ORANGE, ms=5, zorder=4)
    sample = xs[2], ys[1]
    for x in (4.5, 5.5):
        for y in (2.5, 1.5):
            left.plot([sample[0], x], [sample[1], y], color=RED, lw=1.2, zorder=3)
            left.plot(x, y, "o", color=RED, ms=4, zorder=4)
    left.set_title("2 x 2 bins of 2 x 2 samples;\none sample and its four cell centers")
    cells(right, 6, 6)
    box(right, (1, 1, 4, 4), TEAL, "aligned=True")
    box(right, (1.5, 1.5, 4.5, 4.5), ORANGE, ls="--")
    right.text(4.5, 4.62, "aligned=False", color=ORANGE, va="top", ha="right")
    right.set_title("cells that the box (1, 1, 4, 4) reads")
    return figure


def roi_pooling() -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2), width_ratios=(8, 3))
    rng = np.random.default_rng(3)
    values = rng.integers(0, 99, (6, 8))
    cells(left, 8, 6, centers=False)
    roi = (1.3, 0.6, 6.2, 4.4)
    pooled = roi_pool(
        torch.tensor(values, dtype=torch.float32)[None, None], torch.tensor([[0, *roi]]), 2
    )[0, 0]
    best = {int(value) for value in pooled.flatten()}
    whole = (1, 1, 7, 5)  # rounded, the last cell included
    left.add_patch(Rectangle((1, 1), 6, 4, color=PALE, zorder=0))
    box(left, whole, TEAL)
    box(left, roi, ORANGE, ls="--")
    left.plot([4, 4], [1, 5], "--", color=TEAL)
    left.plot([1, 7], [3, 3], "--", color=TEAL)
    for y, x in np.ndindex(values.shape):
        inside = 1 <= x < 7 and 1 <= y < 5
        wins = inside and values[y, x] in best
        left.text(
            x + 0.5, y + 0.5, str(values[y, x]), ha="center", va="center", fontsize=9, zorder=4,
            color=RED if wins else INK if inside else GRAY, weight="bold" if wins else "normal",
        )  # fmt: skip
    left.set_title("the box (dashed), rounded to whole cells (green), in 2 x 2 bins")
    cells(right, 2, 2, centers=False)
    for y, x in np.ndindex(2, 2):
        right.text(
            x + 0.5, y + 0.5, f"{pooled[y, x]:.0f}", ha="center", va="center", color=RED,
            weight="bold",
        )  # fmt: skip
    right.set_title("maximum of each bin")
    return figure


def levels() -> plt.Figure:
    figure, axes = plt.subplots(figsize=(7.2, 2.8))
    sides = torch.arange(8, 1000, 0.5)
    boxes = torch.stack([0 * sides, 0 * sides, sides, sides], 1)
    scales = [1 / 4, 1 / 8, 1 / 16, 1 / 32]
    axes.plot(sides, assign_levels(boxes, scales), color=TEAL, lw=2)
    for side in (112, 224, 448):
        axes.axvline(side, color=GRAY, lw=0.8, ls=":")
    axes.set_yticks(range(4), [f"{k}: stride {4 * 2**k}" for k in range(4)])
    axes.set_xticks([0, 112, 224, 448, 1000])
    axes.set(xlabel="square root of the area of the box, in pixels", ylabel="level")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def suppression() -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.9))
    boxes = [(0.4, 0.6, 3.4, 4.2), (0.9, 0.9, 3.9, 4.5), (0.3, 1.2, 3.1, 4.6), (3.2, 1.4, 6.4, 4.8),
             (3.6, 1.1, 6.9, 4.6)]  # fmt: skip
    scores = [0.9, 0.8, 0.6, 0.7, 0.95]
    places = [(0.5, 0.42, "left"), (3.85, 0.7, "right"), (0.4, 4.8, "left"), (3.3, 5.0, "left"),
              (6.8, 0.9, "right")]  # fmt: skip
    kept = set(nms(torch.tensor(boxes), torch.tensor(scores), 0.5).tolist())
    for axes, shown, title in (
        (left, range(5), "before"),
        (right, sorted(kept), "after nms(boxes, scores, 0.5)"),
    ):
        for index in shown:
            stays = index in kept
            color = TEAL if stays else ORANGE
            box(axes, boxes[index], color, ls="-" if stays else "--")
            x, y, side = places[index]
            axes.text(x, y, f"{scores[index]:.2f}", color=color, ha=side, va="center")
        axes.set(xlim=(0, 7.2), ylim=(5.2, 0.2), aspect="equal", title=title)
        axes.axis("off")
    return figure


def matching() -> plt.Figure:
    figure, axes = plt.subplots(figsize=(7.2, 3.4))
    objects = [(1.0, 1.0, 4.0, 4.0), (6.2, 1.6, 7.6, 4.4)]
    squares = [(1.3, 0.8, 3), (2.4, 1.2, 2.8), (3.6, 0.6, 2.8), (5.6, 1.2, 2.8)]
    anchors = [(x, y, x + side, y + side) for x, y, side in (*squares, (8.6, 0.8, 2))]
    _, iou, best = match_boxes(
        torch.tensor([objects]), torch.ones(1, 2, dtype=torch.bool), torch.tensor(anchors)
    )
    for number, corners in enumerate(objects):
        axes.add_patch(Rectangle(corners[:2], corners[2] - corners[0], corners[3] - corners[1],
                                 color=PALE, zorder=0))  # fmt: skip
        x, y = corners[0], corners[3] + 0.05
        axes.text(x, y, f"object {number}", va="top", color=INK, weight="bold", fontsize=9)
    for corners, overlap, first in zip(anchors, iou[0].tolist(), best[0].tolist(), strict=True):
        color = TEAL if first or overlap >= 0.7 else GRAY if overlap < 0.3 else ORANGE
        color = "#78909c" if color == GRAY else color
        mark = ", best" if first else ""
        box(axes, corners, color, f"{overlap:.2f}{mark}")
    axes.text(8.7, 3.5, "foreground", color=TEAL)
    axes.text(8.7, 3.95, "neither (0.3 to 0.7)", color=ORANGE)
    axes.text(8.7, 4.4, "background", color="#78909c")
    axes.set(xlim=(0.5, 11.6), ylim=(4.9, 0.1), aspect="equal")
    axes.axis("off")
    return figure


STAR = [
    (6 + r * np.sin(a), 6 - r * np.cos(a))
    for a, r in zip(np.arange(10) * np.pi / 5, [5, 2.2] * 5, strict=True)
]


def star_targets(side: int, corners: tuple[float, ...]) -> np.ndarray:
    ring = [[float(number) for point in STAR for number in point]]
    packed = PackedMasks.from_segmentations([ring], 12, 12, as_rle=False)
    fields = packed.values, packed.pieces, packed.instances, packed.frames
    targets = crop_masks(*fields, torch.tensor([0]), torch.tensor([corners]), side, False)
    return targets[0].numpy()


def cropping() -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2))
    corners = (2.0, 2.5, 11.5, 11.0)
    left.fill(*zip(*STAR, strict=True), color=PALE, ec=TEAL, lw=1.5)
    box(left, corners, ORANGE, "box")
    left.set(
        xlim=(0, 12.2), ylim=(12, 0.4), aspect="equal", title="polygon of an object, and a box"
    )
    left.axis("off")
    target = star_targets(14, corners)
    right.imshow(target, cmap=MASK, extent=(0, 14, 14, 0))
    cells(right, 14, 14, centers=False)
    right.set_title("crop_masks: 14 x 14 cells of the box")
    return figure


def pasting() -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2))
    rng = np.random.default_rng(1)
    y, x = np.mgrid[:7, :7]
    probs = 1 / (1 + np.exp(1.6 * (np.hypot(x - 3, y - 3) - 2.4 + rng.normal(0, 0.3, (7, 7)))))
    left.imshow(probs, cmap="YlGn", extent=(0, 7, 7, 0), vmin=0, vmax=1)
    cells(left, 7, 7, centers=False)
    left.set_title("7 x 7 probabilities")
    corners = (2.3, 1.7, 16.8, 11.2)
    pasted = paste_probabilities(
        torch.tensor(probs)[None], torch.tensor([corners]), (13, 19)
    )[0].numpy()  # fmt: skip
    mask = pasted >= 0.5
    right.imshow(mask, cmap=MASK, extent=(0, 19, 13, 0),
                 alpha=0.8)  # fmt: skip
    cells(right, 19, 13, centers=False)
    box(right, corners, ORANGE)
    right.set_title("in the image: interpolated, at least 0.5")
    return figure


def peaks() -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.0), width_ratios=(1, 1.45))
    y, x = np.mgrid[:8, :8]
    logits = 4 * np.exp(-((x - 4.6) ** 2 + (y - 2.3) ** 2) / 3) - 1.0
    heatmap = torch.tensor(logits, dtype=torch.float32)[None, None]
    corners = (3.0, 2.0, 31.0, 21.0)
    points, _ = heatmap_peaks(heatmap, torch.tensor([corners]))
    left.imshow(logits, cmap="YlGn", extent=(0, 8, 8, 0))
    cells(left, 8, 8, centers=False)
    left.set_title("logits, 8 x 8")
    size = int(corners[3] - corners[1]), int(corners[2] - corners[0])
    large = torch.nn.functional.interpolate(heatmap, size, mode="bicubic", align_corners=False)[
        0, 0
    ]
    right.imshow(large, cmap="YlGn", extent=(corners[0], corners[2], corners[3], corners[1]))
    box(right, corners, ORANGE, "box")
    right.plot(*points[0, 0, :2].tolist(), "x", color=RED, ms=10, mew=2)
    right.set(xlim=(0, 34), ylim=(23, 0), aspect="equal")
    right.axis("off")
    right.set_title("enlarged to the box, and its maximum")
    return figure


def focal() -> plt.Figure:
    figure, axes = plt.subplots(figsize=(7.2, 3.2))
    p = np.linspace(0.005, 1, 300)
    for gamma, color in ((0, INK), (0.5, "#78909c"), (1, ORANGE), (2, TEAL), (5, RED)):
        axes.plot(p, -((1 - p) ** gamma) * np.log(p), color=color, label=f"gamma = {gamma:g}")
    axes.set(
        ylim=(0, 4), xlim=(0, 1), xlabel="predicted probability of the true class", ylabel="loss"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


DRAWINGS: dict[str, Callable[[], plt.Figure]] = {
    "roi_align": roi_align,
    "roi_pool": roi_pooling,
    "levels": levels,
    "nms": suppression,
    "match_boxes": matching,
    "crop_masks": cropping,
    "paste_masks": pasting,
    "heatmap_peaks": peaks,
    "focal_loss": focal,
}

if __name__ == "__main__":
    for file, draw in DRAWINGS.items():
        figure = draw()
        figure.tight_layout()
        figure.savefig(FOLDER / f"{file}.svg", metadata={"Date": None})
        plt.close(figure)
