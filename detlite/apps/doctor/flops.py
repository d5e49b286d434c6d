"""What a model costs, counted and not measured: numbers of weights, operations and results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from yacs.config import CfgNode

from detlite.data.transforms.resize import resize_shortest
from detlite.modeling import build_model
from detlite.modeling.detection_model import DetectionModel

_MULTIPLYING = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


@dataclass(frozen=True)
class PartCost:
    """A part of a model.

    Args:
        part: its name in the model; "" is the whole.
        parameters: how many numbers it learns or keeps fixed, buffers left out.
        trained: how many of them training changes.
        gflop: 10^9 operations of convolutions and matrix products for a picture, a multiplication
            and an addition counted as two: the whole's are counted as they run; a part's are
            those of its convolutions and linear layers. RoIAlign and suppression count as none.
        activations: millions of numbers that its convolutions and matrix products give.
        share: of the whole's operations, in percent.
    """

    part: str
    parameters: int
    trained: int
    gflop: float
    activations: float
    share: float


def count_cost(cfg: CfgNode, size: tuple[int, int] = (480, 640), depth: int = 2) -> list[PartCost]:
    """The cost of a picture in evaluation, with as many proposals and detections as the config
    allows.

    Args:
        cfg: of the model, which needs no weights for it.
        size: height and width of a picture, before it is resized as in evaluation.
        depth: how many dots a part's name has at most, plus one.
    """
    cfg = cfg.clone()
    cfg.defrost()
    cfg.MODEL.DEVICE = "cpu"
    # Nothing is left out, so that there are as many proposals and detections as there may be.
    cfg.MODEL.RPN.NMS_THRESH = cfg.MODEL.ROI_HEADS.NMS = 1.0
    cfg.MODEL.ROI_HEADS.SCORE_THRESH = cfg.MODEL.RETINANET.INFERENCE_TH = 0.0
    cfg.freeze()
    model = build_model(cfg).eval()
    for parameter in model.parameters():
        parameter.data.zero_()  # then all anchors are proposals, as they are
    layers: dict[str, _Layer] = {}
    for name, module in model.named_modules():
        if isinstance(module, _MULTIPLYING):
            layers[name] = _Layer()
            module.register_forward_hook(layers[name].count)
    picture = torch.zeros(3, *size, dtype=torch.uint8)
    image = resize_shortest(
        picture, cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST, model.convention.resize
    )
    given = [{"proposals": _boxes(image, 1000)}] if model.takes_proposals else None
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model([image], given)
    return list(_rows(model, layers, counter.get_total_flops(), depth))


class _Layer:
    """What a layer that multiplies did in all its calls."""

    def __init__(self) -> None:
        self.operations = self.activations = 0

    def count(self, layer: nn.Module, inputs: tuple[Tensor, ...], result: Tensor) -> None:
        """A forward hook."""
        weight = layer.get_parameter("weight")
        # A transposed convolution multiplies each number of its input by its whole kernel, the
        # others compute each number of their result with one.
        across = inputs[0] if isinstance(layer, nn.ConvTranspose2d) else result
        self.operations += 2 * across.numel() * weight[0].numel()
        self.activations += result.numel()


def _boxes(image: Tensor, count: int) -> Tensor:
    """Proposals [count, 4] for a Fast R-CNN."""
    height, width = image.shape[-2:]
    return torch.tensor([[0.0, 0.0, width / 2, height / 2]]).repeat(count, 1)


def _rows(
    model: DetectionModel, layers: dict[str, _Layer], total: int, depth: int
) -> Iterator[PartCost]:
    for name, module in model.named_modules():
        parameters = list(module.parameters())
        own = [layer for path, layer in layers.items() if f"{path}.".startswith(f"{name}.")]
        if name and (name.count(".") >= depth or not (parameters or own)):
            continue
        operations = sum(layer.operations for layer in own) if name else total
        yield PartCost(
            name,
            sum(p.numel() for p in parameters),
            sum(p.numel() for p in parameters if p.requires_grad),
            operations / 1e9,
            sum(layer.activations for layer in (own if name else layers.values())) / 1e6,
            100 * operations / max(total, 1),
        )


def cost_table(rows: list[PartCost]) -> str:
    """Format the rows as a table, with modules indented under their parents."""
    lines = [("part", "parameters", "trained", "GFLOP", "share", "activations, M")]
    for row in rows:
        indent = "  " * (row.part.count(".") + 1) if row.part else ""
        lines.append(
            (
                f"{indent}{row.part.rpartition('.')[2] or 'model'}",
                f"{row.parameters:,}",
                f"{row.trained:,}",
                f"{row.gflop:.2f}",
                f"{row.share:.1f} %",
                f"{row.activations:.2f}",
            )
        )
    first, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    return "\n".join(
        "  ".join([part.ljust(first), *(n.rjust(w) for n, w in zip(numbers, widths, strict=True))])
        for part, *numbers in lines
    )
