"""Save and replay batches, to find out why a loss was not finite."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.checkpoint.files import CheckpointError, save_torch_file
from detlite.data import ConcatDataset, build_train_loader
from detlite.distributed import rank
from detlite.structures.masks.packed import PackedMasks

Batch = tuple[list[Tensor], list[dict[str, Any]]]
_MASK_FIELDS = ("values", "pieces", "instances", "frames")


def save_batch(
    cfg: CfgNode, train_set: ConcatDataset, iteration: int, progress: float = 1.0
) -> Path:
    """Write this process's share of the batch of a training step into OUTPUT_DIR.

    The batch is loaded again: SEED, the iteration and `progress`, the fraction of the run before
    the iteration, determine it.
    """
    cfg = cfg.clone()
    cfg.defrost()
    cfg.DATALOADER.NUM_WORKERS = 0
    images, targets = next(iter(build_train_loader(cfg, train_set, iteration - 1, progress)))
    path = Path(cfg.OUTPUT_DIR) / f"batch_{iteration:07d}_rank{rank()}.pth"
    targets = [dict(target) for target in targets]
    for target in targets:
        if "masks" in target:
            target["masks"] = dict(zip(_MASK_FIELDS, target["masks"].tensors(), strict=True))
    save_torch_file(path, {"iteration": iteration, "images": images, "targets": targets})
    return path


def read_batch(path: Path) -> tuple[int, Batch]:
    """Return the iteration and the batch, (images, targets), of a file that `save_batch` wrote."""
    try:
        content = torch.load(path, weights_only=True)
        for target in content["targets"]:
            if "masks" in target:
                target["masks"] = PackedMasks(**target["masks"])
        return content["iteration"], (content["images"], content["targets"])
    except Exception as error:  # torch raises many types
        raise CheckpointError(
            f"{path}: is not a batch saved by a training run, or is damaged"
        ) from error


def first_non_finite(model: nn.Module, batch: Batch) -> tuple[dict[str, float], str | None]:
    """Return the losses of a batch, and the first module with a non-finite output, or None.

    The batch statistics of the model may change, nothing else.
    """
    names = {module: name for name, module in model.named_modules() if name}
    non_finite: list[str] = []

    def check_output(module: nn.Module, inputs: Any, output: Any) -> None:
        leaves = torch.utils._pytree.tree_leaves(output)
        tensors = [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
        if not all(x.isfinite().all() for x in tensors):
            non_finite.append(names[module])

    # Child modules finish before their parents, so the first one is the innermost.
    handles = [module.register_forward_hook(check_output) for module in names]
    try:
        with torch.no_grad():
            losses = model.train()(*batch)
    finally:
        for handle in handles:
            handle.remove()
    return {name: float(loss) for name, loss in losses.items()}, next(iter(non_finite), None)
