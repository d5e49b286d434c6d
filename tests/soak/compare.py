"""Two runs' folders compared bit for bit, but for times and paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_TIMES = ("time", "data_time", "eta_s")
_CHECKPOINTS = ("model_final.pth", "model_final_average.pth", "model_best.pth")


def first_difference(one: Path, other: Path) -> str:
    """Where the final checkpoints, metrics and results of two runs differ first; empty: nowhere."""
    names = {path.name for folder in (one, other) for path in folder.rglob("*.json")}
    for name in (*_CHECKPOINTS, "metrics.jsonl", *sorted(names), "average/evaluation.json"):
        ours, theirs = one / name, other / name
        if ours.exists() != theirs.exists():
            return f"{name} is in one of the two only"
        if ours.exists() and (found := _difference(_content(ours), _content(theirs))):
            return f"{name}{found}"
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
    """The path to the first difference, such as ['model']['body.weight']; empty: none."""
    if type(one) is not type(other):
        return f": {type(one).__name__} and {type(other).__name__}"
    if isinstance(one, Tensor):
        return "" if one.dtype == other.dtype and torch.equal(one, other) else ": other numbers"
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return f": only one has {sorted(map(str, one.keys() ^ other.keys()))}"
        parts = [(key, one[key], other[key]) for key in one]
    elif isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f": {len(one)} and {len(other)} entries"
        parts = [(number, *pair) for number, pair in enumerate(zip(one, other, strict=True))]
    else:
        return "" if one == other else f": {one!r} and {other!r}"
    for key, ours, theirs in parts:
        if found := _difference(ours, theirs):
            return f"[{key!r}]{found}"
    return ""
