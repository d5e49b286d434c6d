"""Quantize OpenVINO graphs to int8 with NNCF.

Needs `pip install 'detlite[openvino]'`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from detlite.apps.optional_packages import import_optional
from detlite.config import ConfigError
from detlite.modeling.detection_model import DetectionModel

from .parts import ExportablePart

if TYPE_CHECKING:
    import openvino

logger = logging.getLogger(__name__)

_MAX_ROIS = 100  # RoIs of each image used for calibration


def save_calls(
    model: DetectionModel,
    parts: Sequence[ExportablePart],
    images: Sequence[Tensor],
    proposals: Sequence[Tensor] | None,
    folder: str,
) -> dict[str, list[Path]]:
    """Detect objects in calibration images, and save the arguments of the calls of each part.

    They are saved on disk, because the maps of an image of 800 x 1216 take 100 MB.

    Args:
        model: in evaluation mode, with its exportable parts as separate modules.
        images, proposals: see `to_openvino`.

    Raises:
        ConfigError: NNCF is missing, or no image led to a call of some part.
    """
    import_optional("nncf", "detlite[openvino]")
    calls: dict[str, list[Path]] = {part.name: [] for part in parts}

    def save(name: str, arguments: tuple[Any, ...]) -> None:
        leaves = [x[:: max(1, len(x) // _MAX_ROIS)] for x in pytree.tree_leaves(arguments)]
        if all(x.numel() for x in leaves):
            path = Path(folder, f"{name}-{len(calls[name])}.pt")
            torch.save([x.clone() for x in leaves], path)
            calls[name].append(path)

    with recording(parts, save):
        for index, image in enumerate(images):
            model.detect([image], None if proposals is None else [proposals[index]])
    for name, files in calls.items():
        if not files:
            raise ConfigError(
                f"int8: {name} was not called for any of the {len(images)} calibration images, "
                "because nothing was detected: use images with objects"
            )
        logger.info("int8: %s is calibrated with %d calls", name, len(files))
    return calls


@contextmanager
def recording(
    parts: Sequence[ExportablePart], record: Callable[[str, tuple[Any, ...]], object]
) -> Iterator[None]:
    """Call `record` with the name and arguments of every call of a part."""

    def before_call(name: str, _: Any, arguments: tuple[Any, ...]) -> None:
        record(name, arguments)  # a returned value would replace the arguments

    with ExitStack() as hooks:
        for part in parts:
            hook = part.module.register_forward_pre_hook(partial(before_call, part.name))
            hooks.enter_context(hook)
        yield


def quantize(name: str, graph: openvino.Model, calls: Sequence[Path]) -> openvino.Model:
    """Quantize the graph of a part, calibrated with the result of `save_calls`.

    Weights are quantized to 7 bits per channel, activations to 8 bits per tensor. The first
    convolution and group norm stay in float32.
    """
    nncf = import_optional("nncf", "detlite[openvino]")
    nncf.set_log_level(logging.WARNING)
    # Quantized pixels have errors of up to half a level, which matters in dark images.
    first = _first_convolutions(graph) if name.startswith("backbone") else []
    return nncf.quantize(
        graph,
        nncf.Dataset(calls, _read_call),
        subset_size=len(calls),
        # The input of group norm, the float32 results of convolutions, needs no rounding.
        ignored_scope=nncf.IgnoredScope(names=first, types=["GroupNormalization"], validate=False),
        # Correct biases with the outputs of quantized layers, not of float32 layers.
        fast_bias_correction=False,
        # Processors without VNNI or AMX add two products in 16 bits. With 7-bit weights, this never
        # overflows, so the results are the same on every processor.
        advanced_parameters=nncf.AdvancedQuantizationParameters(
            overflow_fix=nncf.OverflowFix.ENABLE
        ),
    )


def _first_convolutions(graph: openvino.Model) -> list[str]:
    """Return the names of convolutions that are not preceded by another convolution."""
    names: set[str] = set()
    outputs = [x for parameter in graph.get_parameters() for x in parameter.outputs()]
    while outputs:
        for target in outputs.pop().get_target_inputs():
            node = target.get_node()
            if "Convolution" in node.get_type_name():
                names.add(node.get_friendly_name())
            elif node.get_type_name() != "ShapeOf":
                outputs += node.outputs()
    return sorted(names)


def _read_call(path: Path) -> list[np.ndarray]:
    return [x.contiguous().numpy() for x in torch.load(path, weights_only=True)]
