"""Write the results of a run as Markdown, and plot AP over milliseconds."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import phase_table

from .cases import PROFILED_SIZE, LatencyRow
from .detlite_models import DETECTIONS

# AP of a model, or of "model mode": {"box", "mask", "source"}, in points. The source is a page of
# benchmarks/results.
APs = Mapping[str, Mapping[str, Any]]
AP_FILE = Path(__file__).with_name("ap.json")
# Models of the Open Model Zoo (https://github.com/openvinotoolkit/open_model_zoo): name, backbone,
# image side, GFLOP, box AP and mask AP on COCO.
ANCHORS = (
    ("instance-segmentation-security-1039", "EfficientNet-B2", 480, 14, 32.9, 28.6),
    ("instance-segmentation-security-1040", "EfficientNet-B2", 608, 29, 35.0, 31.2),
)


def read_aps(file: Path) -> APs:
    """Read the AP of models.

    Raises:
        ValueError: the file is not such a JSON file.
    """
    content: dict[str, dict[str, Any]] = json.loads(file.read_text())
    for name, ap in content.items():
        if not isinstance(ap, dict) or not {"box", "mask"} <= ap.keys():
            raise ValueError(f'{file}: {name} needs {{"box": AP, "mask": AP}}, got {ap}')
    return content


def find_ap(aps: APs, row: LatencyRow) -> Mapping[str, Any] | None:
    """Return the AP of a row's model and mode, or of its model; None if not measured."""
    return aps.get(f"{row.model} {row.mode}") or aps.get(row.model)


def page(rows: Sequence[LatencyRow], machine: str, command: str, aps: APs, plot: str) -> str:
    """Return the record.

    Args:
        rows: results of `benchmark_latency`.
        machine: hardware, versions and date.
        command: the command that measured the rows.
        aps: AP of the models.
        plot: file of the plot, relative to the record; empty: no plot.
    """
    timed = [row for row in rows if not _is_cold(row)]
    cold = [row for row in rows if _is_cold(row)]
    lines = [
        "# Latency of one image on a CPU",
        "",
        "- **Question**: how long does one image take, compared with YOLO on OpenVINO, and at "
        "which AP?",
        f"- **Command**: `{command}`",
        f"- **Hardware, versions and date**: {machine}",
        "",
        "The time is measured from an array uint8 [S, S, 3] to boxes and masks of S x S pixels, "
        "with one image per batch. The box head has two passes, as `detlite init` sets. Weights "
        "are random; masks are computed for the "
        f"{DETECTIONS} highest-scoring objects. Each model and mode runs in a separate process "
        "restricted to the cores, and the processes run alternately. `openvino` is a model "
        "exported by detlite, the other modes are `detlite.optimize`. YOLO has one class. "
        "`predict` is the ultralytics call; `compiled` is the compiled model with the "
        "ultralytics functions for NMS and masks.",
        "",
        "## Milliseconds per image",
        "",
        *_times_table(timed, aps),
    ]
    if plot:
        lines += ["", f"![AP against milliseconds per image]({plot})"]
    sources = sorted({str(ap["source"]) for ap in aps.values() if "source" in ap})
    links = ", ".join(f"[{source}](../{source})" for source in sources)
    lines += ["", f"AP on `nuclei_dsb2018` after at most 15 minutes of training: {links}."]
    if phases := phase_table(timed):
        lines += ["", "## Phases", "", "Milliseconds per phase for a JPEG file:", "", phases]
    if cold:
        lines += ["", "## Cold start", "", "Milliseconds for a new process that detects objects in "
                  "one JPEG file, with cached bytecode:", "", *_cold_table(cold)]  # fmt: skip
    lines += ["", "## Published models of this size", "", *_anchors_table()]
    return "\n".join(lines) + "\n"


def _is_cold(row: LatencyRow) -> bool:
    return row.mode.startswith(("detlite predict", "in phases"))


def _times_table(rows: Sequence[LatencyRow], aps: APs) -> list[str]:
    columns = sorted({(row.cores, row.size) for row in rows})
    titles = [f"{cores} core{'s' * (cores > 1)}, {size}" for cores, size in columns]
    cells = [["model", "mode", *titles, "objects", "box AP / mask AP"]]
    models = dict.fromkeys((row.model, row.mode) for row in rows)
    for key in models:
        by_column = {(row.cores, row.size): row for row in rows if (row.model, row.mode) == key}
        times = [f"{by_column[c].ms:.1f}" if c in by_column else "" for c in columns]
        counts = [row.detections for row in by_column.values()]
        low, high = min(counts), max(counts)
        ap = find_ap(aps, next(iter(by_column.values())))
        points = f"{ap['box']:.1f} / {ap['mask']:.1f}" if ap else ""
        cells.append([*key, *times, str(low) if low == high else f"{low} to {high}", points])
    return _table(cells)


def _cold_table(rows: Sequence[LatencyRow]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row.phases))
    cells = [["model", "process", "total", "shortest", *names]]
    for row in rows:
        phases = [f"{row.phases[name]:.0f}" if name in row.phases else "" for name in names]
        cells.append([row.model, row.mode, f"{row.ms:.0f}", f"{row.fastest_ms:.0f}", *phases])
    return _table(cells)


def _anchors_table() -> list[str]:
    rows = [
        [name, backbone, str(side), str(gflop), f"{box:.1f} / {mask:.1f}"]
        for name, backbone, side, gflop, box, mask in ANCHORS
    ]
    titles = ["Open Model Zoo", "backbone", "image side", "GFLOP", "COCO box AP / mask AP"]
    return _table([titles, *rows])


def _table(cells: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "|" + "---|" * len(cells[0]), *lines[1:]]


def plot_latency(rows: Sequence[LatencyRow], path: Path, aps: APs) -> None:
    """Plot box and mask AP over milliseconds, for images of 512 pixels on the most cores.

    Colors show models, markers show modes.

    Raises:
        OSError: the file cannot be written.
    """
    # Imported here because it is slow to import.
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    cores = max(row.cores for row in rows)
    shown = [
        row for row in rows
        if (row.cores, row.size) == (cores, PROFILED_SIZE) and not _is_cold(row)
    ]  # fmt: skip
    colors = {model: f"C{n}" for n, model in enumerate(dict.fromkeys(r.model for r in shown))}
    markers = dict(zip(dict.fromkeys(row.mode for row in shown), "osD*^v<>", strict=False))
    figure = Figure(figsize=(11, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    for panel, kind in zip(panels, ("box", "mask"), strict=True):
        for row in shown:
            if ap := find_ap(aps, row):
                color, marker = colors[row.model], markers.get(row.mode, "P")
                panel.plot(row.ms, ap[kind], marker, color=color, markersize=8, alpha=0.8)
        panel.set(xscale="log", xlabel=f"ms per image, {cores} cores", ylabel=f"{kind} AP")
        ticks = [ms for ms in (10, 20, 50, 100, 200, 500, 1000, 2000) if _is_visible(shown, ms)]
        panel.set_xticks(ticks, map(str, ticks))
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    entries = [Line2D([], [], color=color, lw=4, label=name) for name, color in colors.items()]
    entries += [
        Line2D([], [], color="gray", marker=marker, linestyle="", label=mode)
        for mode, marker in markers.items()
    ]
    figure.legend(handles=entries, loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=100)


def _is_visible(rows: Sequence[LatencyRow], ms: float) -> bool:
    times = [row.ms for row in rows]
    return min(times) / 2 <= ms <= max(times) * 2
