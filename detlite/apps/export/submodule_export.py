"""Export the dense parts of a model, which other engines then run.

RoIAlign, NMS, box decoding and postprocessing stay detlite's.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.exportable_parts import ExportablePart
from detlite.structures.instances import Images, Proposals


def split(model: DetectionModel) -> tuple[DetectionModel, list[ExportablePart]]:
    """Copy a model in evaluation mode, with its exportable parts as separate modules."""
    model = deepcopy(model).eval().requires_grad_(False)
    parts = model.exportable_parts()
    for part in parts:
        part.replace(part.module)
    return model, parts


@contextmanager
def recording(
    parts: Sequence[ExportablePart], record: Callable[[str, tuple[Any, ...]], object]
) -> Iterator[None]:
    """Call `record` with the name and arguments of every call of a part."""

    def before_call(name: str, _: Any, arguments: tuple[Any, ...]) -> None:
        record(name, arguments)  # its result is not returned, which would replace the arguments

    hooks = [
        part.module.register_forward_pre_hook(partial(before_call, part.name)) for part in parts
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def example_batch(model: DetectionModel) -> tuple[Images, Proposals | None]:
    """Return two images, and proposals if the model takes them, to trace a model with.

    No variable dimension is 1. There are as many proposals as detections at most, because a graph
    traced with fewer would return fewer.
    """
    proposals, side = None, max(256, model.backbone.min_image_side)
    if model.takes_proposals:
        count = max(2, model.postprocess.detections_per_image)
        proposals = [torch.tensor([8.0, 8.0, 90.0, 70.0]).repeat(count, 1)] * 2
    images = [torch.rand(model.channels, *size) for size in ((side, side + 64), (side - 32, side))]
    return model.prepare(images, proposals)


def example_calls(
    model: DetectionModel,
    parts: Sequence[ExportablePart],
    batch: tuple[Images, Proposals | None],
) -> dict[str, tuple[Any, ...]]:
    """Return arguments to trace each part of a split model with, by name."""
    calls: dict[str, tuple[Any, ...]] = {}
    model.static_shapes = True  # padding reaches heads that find no object
    with torch.no_grad(), recording(parts, calls.setdefault):
        model.predict(*batch)
    model.static_shapes = False
    return calls


def export_part(part: ExportablePart, arguments: tuple[Any, ...]) -> ExportedProgram:
    """Export a part as a graph whose free axes may have any length."""
    free = dict.fromkeys(part.free_axes, Dim.AUTO)
    shapes = pytree.tree_map(lambda _: free, arguments)
    with torch.no_grad():
        return torch.export.export(part.module, arguments, dynamic_shapes=shapes)
