"""Batches kept as files, with which a loss that is not finite can be looked into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.conversion.checkpoint.files import CheckpointError, write_content
from detlite.data import JoinedDataset, build_train_loader
from detlite.distributed import rank
from detlite.structures.masks.packed import PackedMasks

Batch = tuple[list[Tensor], list[dict[str, Any]]]
_MASKS = ("values", "pieces", "instances", "frames")


def keep_batch(cfg: CfgNode, train_set: JoinedDataset, iteration: int) -> Path:
    """Writes this process's part of the batch of a training step into OUTPUT_DIR.

    Batches follow from SEED and iteration alone, so none has to be kept until it is needed.
    """
    cfg = cfg.clone()
    cfg.defrost()
    cfg.DATALOADER.NUM_WORKERS = 0
    images, targets = next(iter(build_train_loader(cfg, train_set, iteration - 1)))
    path = Path(cfg.OUTPUT_DIR) / f"batch_{iteration:07d}_rank{rank()}.pth"
    rows = [dict(target) for target in targets]
    for row in rows:
        if "masks" in row:
            row["masks"] = dict(zip(_MASKS, row["masks"].tensors(), strict=True))
    write_content(path, {"iteration": iteration, "images": images, "targets": rows})
    return path


def read_batch(path: Path) -> tuple[int, Batch]:
    """The iteration and the batch, images and targets, that `keep_batch` wrote.

    Raises:
        CheckpointError: a file that is missing, damaged or something else.
    """
    try:
        content = torch.load(path, weights_only=True)
        for row in content["targets"]:
            if "masks" in row:
                row["masks"] = PackedMasks(**row["masks"])
        return content["iteration"], (content["images"], content["targets"])
    except Exception as error:  # whatever torch raises, and what another content leads to
        raise CheckpointError(f"{path}: is not a batch that a run kept, or is damaged") from error


def first_non_finite(model: nn.Module, batch: Batch) -> tuple[dict[str, float], str | None]:
    """The losses of a batch, and the first module whose output is not finite, or None.

    Args:
        model: a detector; nothing in it is changed but batch statistics.
    """
    found: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            tensors = [leaf for leaf in _leaves(output) if leaf.is_floating_point()]
            if not all(leaf.isfinite().all() for leaf in tensors):
                found.append(name)

        return hook

    # Parts are done before what they are parts of, so the first is the innermost.
    hooks = [m.register_forward_hook(look(name)) for name, m in model.named_modules() if name]
    try:
        with torch.no_grad():
            losses = model.train()(*batch)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: float(loss) for name, loss in losses.items()}, next(iter(found), None)


def _leaves(output: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
