"""Quantize OpenVINO graphs to int8 with NNCF.

Needs `pip install 'detlite[openvino]'`.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from detlite.apps.optional_packages import import_optional
from detlite.config import ConfigError
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.exportable_parts import ExportablePart

from .submodule_export import recording

if TYPE_CHECKING:
    import openvino

logger = logging.getLogger(__name__)

_MAX_ROIS = 100  # RoIs of each image used for calibration


def quantize_graphs(
    model: DetectionModel,
    parts: Sequence[ExportablePart],
    graphs: Mapping[str, openvino.Model],
    images: Sequence[Tensor],
    proposals: Sequence[Tensor] | None,
) -> dict[str, openvino.Model]:
    """Quantize the graphs of the parts of a model after training.

    Weights have 7 bits per channel, activations 8 bits per tensor. The first convolution and
    group norm stay in float32.

    Args:
        model: from `split`, with its parts.
        graphs: of the parts, by name.
        images, proposals: for calibration, see `to_openvino`.

    Raises:
        ConfigError: NNCF is missing, or a part was not called for any image.
    """
    nncf = import_optional("nncf", "detlite[openvino]")
    nncf.set_log_level(logging.WARNING)
    # Save the calls on disk, because the maps of an image of 800 x 1216 take 100 MB.
    with tempfile.TemporaryDirectory() as folder:
        calls = _record_calls(model, parts, images, proposals, Path(folder))
        return {name: _quantize(nncf, name, graph, calls[name], len(images))
                for name, graph in graphs.items()}  # fmt: skip


def _record_calls(
    model: DetectionModel,
    parts: Sequence[ExportablePart],
    images: Sequence[Tensor],
    proposals: Sequence[Tensor] | None,
    folder: Path,
) -> dict[str, list[Path]]:
    """Save the arguments of all calls of the parts, and return the files by part."""
    calls: dict[str, list[Path]] = {part.name: [] for part in parts}

    def save(name: str, arguments: tuple[Any, ...]) -> None:
        leaves = [x[:: max(1, len(x) // _MAX_ROIS)] for x in pytree.tree_leaves(arguments)]
        if all(x.numel() for x in leaves):
            path = folder / f"{name}-{len(calls[name])}.pt"
            torch.save([x.clone() for x in leaves], path)
            calls[name].append(path)

    with recording(parts, save):
        for index, image in enumerate(images):
            model.detect([image], None if proposals is None else [proposals[index]])
    return calls


def _quantize(
    nncf: Any, name: str, graph: openvino.Model, calls: list[Path], images: int
) -> openvino.Model:
    if not calls:
        raise ConfigError(
            f"int8: {name} was not called for any of the {images} calibration images, because "
            "nothing was detected: use images with objects"
        )
    logger.info("int8: %s is calibrated with %d calls", name, len(calls))
    # Quantized pixels are off by up to half a level, which is much in dark images.
    first = _first_convolutions(graph) if name.startswith("backbone") else []
    return nncf.quantize(
        graph,
        nncf.Dataset(calls, _read_call),
        subset_size=len(calls),
        # Group norm takes the float32 results of convolutions, which need no rounding.
        ignored_scope=nncf.IgnoredScope(names=first, types=["GroupNormalization"], validate=False),
        # Correct biases with the outputs of quantized layers, not of float32 layers.
        fast_bias_correction=False,
        # Processors without VNNI or AMX add two products in 16 bits. Weights of 7 bits never
        # overflow there, so the results are the same on every processor.
        advanced_parameters=nncf.AdvancedQuantizationParameters(
            overflow_fix=nncf.OverflowFix.ENABLE
        ),
    )


def _first_convolutions(graph: openvino.Model) -> list[str]:
    """Return the names of convolutions that no other convolution precedes."""
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
