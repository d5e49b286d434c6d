"""Compare the folders of two runs bit for bit, except for times and paths."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

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
    leaves, others = (
        {pytree.keystr(path): leaf for path, leaf in pytree.tree_flatten_with_path(content)[0]}
        for content in (one, other)
    )
    for place in dict.fromkeys([*leaves, *others]):
        if (place in leaves) != (place in others):
            return f"{place} is in only one of the two"
        first, second = leaves[place], others[place]
        if isinstance(first, Tensor) and isinstance(second, Tensor):
            if first.dtype != second.dtype or not torch.equal(first, second):
                return f"{place}: different values"
        elif type(first) is not type(second) or first != second:
            return f"{place}: {first!r} and {second!r}"
    return ""
