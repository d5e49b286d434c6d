"""The dense parts of a detector: what other engines compile, while the rest stays as it is.

RoIAlign, NMS, the decoding of boxes and postprocessing stay detlite's own. Shapes: R RoIs, S x S
pooled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from detlite.modeling.backbone.fpn import FPN
from detlite.modeling.detector import Detector
from detlite.modeling.rcnn import GeneralizedRCNN
from detlite.modeling.retinanet import RetinaNet
from detlite.modeling.roi_heads.cascade import CascadeBoxHead
from detlite.modeling.roi_heads.extractors import Extractor
from detlite.structures.instances import Images, Proposals
from detlite.structures.padding import fixed_shapes


class Embedding(nn.Module):
    """What an extractor computes of pooled RoIs [R, C, S, S]."""

    def __init__(self, extractor: Extractor) -> None:
        super().__init__()
        self.extractor = extractor

    def forward(self, pooled: Tensor) -> Tensor:
        return self.extractor.embed(pooled)


class SplitExtractor(Extractor):
    """Pools as an extractor does, and calls a module for the rest."""

    def __init__(self, extractor: Extractor, embedding: nn.Module) -> None:
        super().__init__()
        self.pooler = extractor.pooler
        self.out_channels = extractor.out_channels
        self.out_resolution = extractor.out_resolution
        self.embedding = embedding

    def embed(self, pooled: Tensor) -> Tensor:
        return self.embedding(pooled)


class AllButLast(nn.Module):
    """The levels of a backbone without the coarsest."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, pixels: Tensor) -> list[Tensor]:
        return self.backbone(pixels)[:-1]


class PooledLast(nn.Module):
    """A backbone whose coarsest level, P6 of an FPN, is pooled outside of its dense part.

    Within a graph in int8 OpenVINO 2026.4 gives it at a wrong scale.
    """

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.dense: nn.Module = AllButLast(backbone)

    def forward(self, pixels: Tensor) -> list[Tensor]:
        levels = self.dense(pixels)
        return [*levels, F.max_pool2d(levels[-1], 1, 2)]


def split(model: Detector) -> tuple[Detector, list[str]]:
    """A copy of a detector in evaluation mode whose dense parts are submodules, and their names.

    The parts are the backbone, the heads of the RPN or RetinaNet, and what each head computes
    after pooling, in the order in which they are called.
    """
    model = deepcopy(model).eval().requires_grad_(False)
    names = ["backbone"]
    neck = getattr(model.backbone, "neck", None)
    if isinstance(neck, FPN) and neck.top is None:
        model.set_submodule("backbone", PooledLast(model.backbone))
        names = ["backbone.dense"]
    if isinstance(model, RetinaNet):
        names.append("head")
    if getattr(model, "rpn", None) is not None:
        names.append("rpn.head")
    if not isinstance(model, GeneralizedRCNN):
        return model, names
    heads = model.roi_heads
    heads_by_name: dict[str, Any] = {"roi_heads.box": heads.box}
    if isinstance(heads.box, CascadeBoxHead):
        stages = enumerate(heads.box.stages)
        heads_by_name = {f"roi_heads.box.{number}": stage for number, stage in stages}
    heads_by_name |= {"roi_heads.mask": heads.mask, "roi_heads.keypoint": heads.keypoint}
    more: Iterable[Any] = () if heads.mask is None else heads.mask.more
    heads_by_name |= {f"roi_heads.mask.more.{number}": head for number, head in enumerate(more)}
    for name, head in heads_by_name.items():
        extractor = None if head is None else head.feature_extractor
        if extractor is not None and name == "roi_heads.box" and heads.shares:
            head.feature_extractor = SplitExtractor(extractor, Embedding(extractor))
            names.append(f"{name}.feature_extractor.embedding")
        elif extractor is not None:
            # With the predictor as one part: what lies between is never seen.
            head.predictor = nn.Sequential(Embedding(extractor), head.predictor)
            head.feature_extractor = SplitExtractor(extractor, nn.Identity())
        if head is not None:
            names.append(f"{name}.predictor")
    return model, names


def replace_parts(model: Detector, parts: Mapping[str, nn.Module]) -> None:
    """Puts modules in the place of a split detector's parts."""
    for name, part in parts.items():
        model.set_submodule(name, part)


@contextmanager
def recording(
    model: Detector, names: Sequence[str], note: Callable[[str, tuple[Any, ...]], object]
) -> Iterator[None]:
    """Within it `note` is given the name and the arguments of every call of the named parts."""
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, arguments, name=name: note(name, arguments)
        )
        for name in names
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def example_batch(model: Detector) -> tuple[Images, Proposals | None]:
    """Two images in which no dimension that may vary is 1, and proposals if the model takes any.

    As many proposals as there may be detections: with fewer, a graph would give fewer.
    """
    given, side = None, max(256, _two_windows(model))
    if model.takes_proposals:
        count = max(2, model.postprocess.detections_per_image)
        given = [torch.tensor([8.0, 8.0, 90.0, 70.0]).repeat(count, 1)] * 2
    return model.prepare([torch.rand(3, side, side + 64), torch.rand(3, side - 32, side)], given)


def least_side(model: Detector) -> int:
    """The least height and width that a program takes: two cells of the coarsest level, and two of
    the windows that a transformer attends within."""
    return max(2 * model.backbone.strides[-1], _two_windows(model))


def _two_windows(model: Detector) -> int:
    """The least side that holds two windows of the transformer in a detector, or 0."""
    return max(getattr(module, "two_windows", 0) for module in model.modules())


def example_calls(model: Detector, names: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Arguments that each part of a split detector can be traced with."""
    calls: dict[str, tuple[Any, ...]] = {}
    with torch.no_grad(), fixed_shapes(), recording(model, names, calls.setdefault):
        model.predict(*example_batch(model))
    return calls


def free_axes(name: str) -> tuple[int, ...]:
    """Which axes of a part's arguments may have any length: RoIs, or images and their sides."""
    return (0,) if name.startswith("roi_heads.") else (0, 2, 3)


def export_part(model: Detector, name: str, arguments: tuple[Any, ...]) -> ExportedProgram:
    """A part of a split detector as a graph, whose free axes may have any length."""
    free = dict.fromkeys(free_axes(name), Dim.AUTO)
    shapes = pytree.tree_map(lambda _: free, arguments)
    with torch.no_grad():
        return torch.export.export(model.get_submodule(name), arguments, dynamic_shapes=shapes)
