"""Compare the folders of two runs bit for bit, except for times and paths."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_TIMES = ("time", "data_time", "eta_s")
_CHECKPOINTS = ("model_final.pth", "model_final_average.pth", "model_best.pth")


def first_difference(one: Path, other: Path) -> str:
    """Return the first difference of final checkpoints, metrics and results, or an empty string."""
    names = {path.name for folder in (one, other) for path in folder.rglob("*.json")}
    for name in (*_CHECKPOINTS, "metrics.jsonl", *sorted(names), "average/evaluation.json"):
        first, second = one / name, other / name
        if first.exists() != second.exists():
            return f"{name} is in only one of the two"
        if first.exists() and (place := _difference(_content(first), _content(second))):
            return f"{name}{place}"
    return ""


def _content(file: Path) -> Any:
    if file.suffix == ".pth":
        content = torch.load(file, weights_only=True)
        return {key: value for key, value in content.items() if key != "config"}
    if file.suffix == ".jsonl":
        rows = map(json.loads, file.read_text().splitlines())
        return [{key: row[key] for key in row if key not in _TIMES} for row in rows]
    return json.loads(file.read_bytes())


def _difference(one: Any, other: Any) -> str:
    """Return the path to the first difference, such as `['model']['w']: different values`."""
    if type(one) is not type(other):
        return f": {type(one).__name__} and {type(other).__name__}"
    if isinstance(one, Tensor):
        return "" if one.dtype == other.dtype and torch.equal(one, other) else ": different values"
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return f": only one of the two has {sorted(map(str, one.keys() ^ other.keys()))}"
        parts = [(key, one[key], other[key]) for key in one]
    elif isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f": {len(one)} and {len(other)} entries"
        parts = [(number, *pair) for number, pair in enumerate(zip(one, other, strict=True))]
    else:
        return "" if one == other else f": {one!r} and {other!r}"
    for key, first, second in parts:
        if place := _difference(first, second):
            return f"[{key!r}]{place}"
    return ""
