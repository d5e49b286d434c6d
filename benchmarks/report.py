"""Markdown tables of result rows, and a description of the machine."""

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import torch
import torchvision

from detlite.modeling.precision import describe_formats, processor_name


def environment(device: str) -> str:
    """Return the date, the hardware and the versions in one line."""
    if device == "cuda":
        hardware = torch.cuda.get_device_name()
    else:
        hardware = (
            f"{torch.get_num_threads()} threads of {processor_name()} "
            f"({torch.backends.cpu.get_cpu_capability()}), which "
            f"{describe_formats(torch.device('cpu'))}"
        )
    return (
        f"{datetime.date.today()}, {hardware}, torch {torch.__version__}, "
        f"torchvision {torchvision.__version__}"
    )


def header(kind: type) -> str:
    """Return the first two lines of a table for rows of a dataclass."""
    names = [field.name for field in _columns(kind)]
    widths = [_width(name, index) for index, name in enumerate(names)]
    titles = (_title(name).ljust(width) for name, width in zip(names, widths, strict=True))
    return _line(titles) + "\n" + _line("-" * width for width in widths)


def line(row: Any) -> str:
    """Return the table line of a row."""
    cells = (
        _cell(getattr(row, field.name)).ljust(_width(field.name, index))
        for index, field in enumerate(_columns(type(row)))
    )
    return _line(cells)


def phase_table(rows: Sequence[Any]) -> str:
    """Return a table of milliseconds, with a line per phase and a column per row, or ""."""
    measured = [row for row in rows if row.phases]
    if not measured:
        return ""
    columns = [" ".join(dataclasses.astuple(row)[:2]) for row in measured]
    phases = list(dict.fromkeys(phase for row in measured for phase in row.phases))
    widths = [14, *map(len, columns)]
    lines = [["phase", *columns], ["-" * width for width in widths]]
    lines += [[phase, *(_cell(row.phases.get(phase)) for row in measured)] for phase in phases]
    return "\n".join(
        _line(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        for cells in lines
    )


def markdown(rows: Sequence[Any], measured_on: str, command: str) -> str:
    """Return a run as Markdown: machine, command and tables."""
    lines = [f"{measured_on}:", f"`{command}`", "", header(type(rows[0])), *map(line, rows)]
    if hasattr(rows[0], "phases") and (phases := phase_table(rows)):
        lines += ["", "Time of each phase in milliseconds:", "", phases]
    return "\n".join(lines) + "\n"


def _columns(kind: type) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(kind) if field.name != "phases"]


def _title(name: str) -> str:
    return name.replace("_per_s", "/s").replace("_", " ")


def _width(name: str, index: int) -> int:
    return max(len(_title(name)), 9 if index else 26)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _line(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"
