"""Parts of a model that other engines can run, and how to replace them with an engine.

Inputs and outputs of a part are tensors, and no shape depends on a value. Shapes: B images, R RoIs,
S x S pooled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from detlite.modeling.backbone.fpn import FPN
from detlite.modeling.roi_heads.extractors import Extractor


@dataclass(frozen=True)
class ExportablePart:
    """A dense part of a model."""

    name: str  # identifies the part in exported files; the path of the module after `replace`
    module: nn.Module  # computes the part
    replace: Callable[[nn.Module], None]  # installs a module that the model calls instead

    @property
    def dynamic_axes(self) -> tuple[int, ...]:
        """Axes of the arguments that may have any length: RoIs, or images and their sides."""
        return (0,) if self.name.startswith("roi_heads.") else (0, 2, 3)


def exportable_parts(model: Any) -> list[ExportablePart]:
    """Return the parts of a model that other engines can run, in the order of their calls."""
    parts = [_backbone_part(model)]
    if isinstance(getattr(model, "head", None), nn.Module):  # RetinaNet
        parts.append(_child_part(model, "head", "head"))
    if getattr(model, "rpn", None) is not None:
        parts.append(_child_part(model.rpn, "head", "rpn.head"))
    if hasattr(model, "roi_heads"):
        parts += _head_parts(model.roi_heads)
    return parts


def _child_part(owner: nn.Module, child: str, name: str) -> ExportablePart:
    """Return the child module `owner.<child>` as a part."""
    return ExportablePart(name, getattr(owner, child), partial(setattr, owner, child))


def _backbone_part(model: Any) -> ExportablePart:
    """Return the backbone of a model as a part."""
    neck = getattr(model.backbone, "neck", None)
    if not isinstance(neck, FPN) or neck.top is not None:
        return _child_part(model, "backbone", "backbone")

    def replace(module: nn.Module) -> None:
        model.backbone = _Call(_with_top, module)

    return ExportablePart("backbone.dense", _Call(_all_but_last, model.backbone), replace)


def _head_parts(heads: Any) -> list[ExportablePart]:
    """Return the parts of all heads inside `RoIHeads`, in the order of their calls.

    Extractor and predictor are one part, unless the features of the box head have another use.
    """
    separate, parts = heads.shares_features or heads.returns_features, []
    for path, head in heads.named_modules(prefix="roi_heads"):
        if hasattr(head, "predictor") and hasattr(head, "feature_extractor"):
            parts += _parts_of_head(head, path, separate and path.startswith("roi_heads.box"))
    return parts


def _parts_of_head(head: Any, name: str, separate: bool) -> list[ExportablePart]:
    extractor = head.feature_extractor
    predictor = _child_part(head, "predictor", f"{name}.predictor")
    if extractor is None:
        return [predictor]

    def replace_embedding(module: nn.Module) -> None:
        head.feature_extractor = _SplitExtractor(extractor, module)

    def replace_both(module: nn.Module) -> None:
        replace_embedding(nn.Identity())
        predictor.replace(module)

    embedding = _Call(type(extractor).embed, extractor)  # of pooled RoIs [R, C, S, S]
    if separate:
        path = f"{name}.feature_extractor.embedding"
        return [ExportablePart(path, embedding, replace_embedding), predictor]
    both = nn.Sequential(embedding, predictor.module)
    return [ExportablePart(predictor.name, both, replace_both)]


class _SplitExtractor(Extractor):
    """Pools like an extractor, and calls a module to compute the features."""

    def __init__(self, extractor: Extractor, embedding: nn.Module) -> None:
        super().__init__()
        self.pooler = extractor.pooler
        self.out_channels = extractor.out_channels
        self.out_resolution = extractor.out_resolution
        self.embedding = embedding

    def embed(self, pooled: Tensor) -> Tensor:
        return self.embedding(pooled)


class _Call(nn.Module):
    """A function of a module and its input, as a module."""

    def __init__(self, function: Callable[..., Any], dense: nn.Module) -> None:
        super().__init__()
        self.function, self.dense = function, dense

    def forward(self, x: Tensor) -> Any:
        return self.function(self.dense, x)


def _all_but_last(backbone: nn.Module, pixels: Tensor) -> list[Tensor]:
    return backbone(pixels)[:-1]


def _with_top(dense: nn.Module, pixels: Tensor) -> list[Tensor]:
    """Add the coarsest level, P6 of an FPN, to the levels of a backbone part.

    Inside an int8 graph, OpenVINO 2026.4 returns this level at a wrong scale.
    """
    levels = dense(pixels)
    return [*levels, F.max_pool2d(levels[-1], 1, 2)]
