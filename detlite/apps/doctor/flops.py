"""Count the parameters, operations and activations of the modules of a model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from yacs.config import CfgNode

from detlite.apps.doctor.machine import aligned
from detlite.data.transforms.resize import resize_shortest
from detlite.modeling import build_model
from detlite.modeling.detection_model import DetectionModel

_COUNTED_LAYERS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


@dataclass(frozen=True)
class ModuleCost:
    """Cost of a module for one image.

    Attributes:
        module: path in the model; "" is the whole model.
        parameters: number of parameters, without buffers.
        trained: number of parameters that training changes.
        gflop: 10^9 operations; a multiply-add counts as two. The number of the whole model includes
            every matrix product, and the number of a module only its convolutions and linear
            layers. RoIAlign and NMS do not count.
        activations: millions of outputs of convolutions and linear layers.
        percent: percentage of the operations of the model.
    """

    module: str
    parameters: int
    trained: int
    gflop: float
    activations: float
    percent: float


def count_cost(
    cfg: CfgNode, size: tuple[int, int] = (480, 640), depth: int = 2
) -> list[ModuleCost]:
    """Count the cost of an image in evaluation, with the maximum number of proposals and objects.

    `size` is the height and width of the image before resizing, and `depth` the maximum number of
    names in the path of a module.
    """
    cfg = cfg.clone()
    cfg.defrost()
    cfg.MODEL.DEVICE = "cpu"
    # Suppress nothing, so that the numbers of proposals and detections reach their maximum.
    cfg.MODEL.RPN.NMS_THRESH = cfg.MODEL.ROI_HEADS.NMS = 1.0
    cfg.MODEL.ROI_HEADS.SCORE_THRESH = cfg.MODEL.RETINANET.INFERENCE_TH = 0.0
    cfg.freeze()
    model = build_model(cfg).eval()
    for parameter in model.parameters():
        parameter.data.zero_()  # proposals equal the anchors
    layers: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, module in model.named_modules():
        if isinstance(module, _COUNTED_LAYERS):
            module.register_forward_hook(partial(_count, layers[name]))
    image = resize_shortest(
        torch.zeros(model.channels, *size, dtype=torch.uint8),
        cfg.INPUT.MIN_SIZE_TEST,
        cfg.INPUT.MAX_SIZE_TEST,
        model.convention.resize,
    )
    targets = None
    if model.takes_proposals:
        height, width = image.shape[-2:]
        box = torch.tensor([[0.0, 0.0, width / 2, height / 2]])
        targets = [{"proposals": box.repeat(1000, 1)}]
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model([image], targets)
    return list(_rows(model, layers, counter.get_total_flops(), depth))


def _count(counts: list[int], layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    """Add the operations and the outputs of a call of a layer to `counts`, as a forward hook."""
    # A transposed convolution applies its kernel to each input, other layers to each output.
    positions = inputs[0] if isinstance(layer, nn.ConvTranspose2d) else output
    counts[0] += 2 * positions.numel() * layer.get_parameter("weight")[0].numel()
    counts[1] += output.numel()


def _rows(
    model: DetectionModel, layers: dict[str, list[int]], total: int, depth: int
) -> Iterator[ModuleCost]:
    for name, module in model.named_modules():
        parameters = list(module.parameters())
        path = f"{name}." if name else ""
        inner = [counts for layer, counts in layers.items() if f"{layer}.".startswith(path)]
        if name and (name.count(".") >= depth or not (parameters or inner)):
            continue
        operations = sum(counts[0] for counts in inner) if name else total
        yield ModuleCost(
            name,
            sum(p.numel() for p in parameters),
            sum(p.numel() for p in parameters if p.requires_grad),
            operations / 1e9,
            sum(counts[1] for counts in inner) / 1e6,
            100 * operations / max(total, 1),
        )


def cost_table(rows: list[ModuleCost]) -> str:
    """Format the rows as a table, with modules indented under their parents, and the memory."""
    lines = [["module", "parameters", "trained", "GFLOP", "percent", "activations, M"]]
    for row in rows:
        indent = "  " * (row.module.count(".") + 1) if row.module else ""
        name = indent + (row.module.rpartition(".")[2] or "model")
        counts = f"{row.parameters:,}", f"{row.trained:,}", f"{row.gflop:.2f}"
        lines.append([name, *counts, f"{row.percent:.1f} %", f"{row.activations:.2f}"])
    millions = rows[0].parameters / 1e6
    return "\n".join([
        *aligned(lines), "",
        f"weights: {4 * millions:.0f} MB (float32), {2 * millions:.0f} MB (bfloat16)",
        "training adds a gradient and one (SGD) or two (AdamW) states per trained parameter",
    ])  # fmt: skip
