"""Detectors whose dense parts OpenVINO runs on the CPU, in float32 or in int8.

The optional packages are those of `pip install 'detlite[openvino]'`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from detlite.config import ConfigError
from detlite.inference.optimize import ENGINES
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.exportable_parts import ExportablePart

from .submodule_export import example_batch, example_calls, export_part, recording, split

if TYPE_CHECKING:
    import openvino

logger = logging.getLogger(__name__)

# RoIs of a picture that quantisation looks at, evenly over all of them.
_ROIS = 100


class OpenVINOPart(nn.Module):
    """A dense part run by OpenVINO: the arguments and results of the module that it was made of.

    Tensors are shared, not copied, both ways, if they are float32 and channels-last.

    Args:
        graph: takes and gives maps as [B, H, W, C].
        results: how its results are arranged, by `torch.utils._pytree.treespec_dumps`.
    """

    def __init__(self, graph: openvino.Model, results: str) -> None:
        super().__init__()
        self.graph = graph
        self.results = results
        self._spec = pytree.treespec_loads(results)
        settings = {
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            # Else float32 becomes bfloat16 where the hardware is fast at that.
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._compiled = _core().compile_model(graph, "CPU", settings)

    def forward(self, *arguments: Any) -> Any:
        inputs = [_innermost(x.float()).numpy() for x in pytree.tree_leaves(arguments)]
        # A request of its own for each call: it owns the memory of the results.
        request = self._compiled.create_infer_request()
        found = request.infer(inputs, share_inputs=True, share_outputs=True).values()
        results = [_outermost(torch.from_numpy(x)) for x in found]
        return pytree.tree_unflatten(results, self._spec)


def to_openvino(
    model: DetectionModel,
    calibration: Sequence[Tensor] = (),
    proposals: Sequence[Tensor] | None = None,
) -> DetectionModel:
    """A copy of a detector whose dense parts OpenVINO runs; RoIAlign and NMS stay detlite's.

    With pictures to calibrate by, the parts are quantised to int8 by NNCF (post-training, weights
    of 7 bits per channel, activations of 8 per tensor), all but the first convolution; else they
    are float32.

    Args:
        model: a detector on the CPU, left as it is.
        calibration: some dozens of training pictures [3, H, W], resized as in evaluation.
        proposals: of a Fast R-CNN, those of each picture, see `DetectionModel.detect`.

    Raises:
        ConfigError: a package is not installed, the model is on another device, or OpenVINO lacks
            an operation of it.
    """
    if model.device.type != "cpu":
        raise ConfigError("OpenVINO runs on the CPU: set MODEL.DEVICE cpu")
    copy, parts = split(model)
    examples = example_calls(copy, parts, example_batch(model))
    graphs = {part.name: _convert(part, examples[part.name]) for part in parts}
    if calibration:
        graphs = _quantised(copy, parts, graphs, calibration, proposals)
    for part in parts:
        with torch.no_grad():
            _, spec = pytree.tree_flatten(part.module(*examples[part.name]))
        graph = _channels_last(graphs[part.name])
        part.replace(OpenVINOPart(graph, pytree.treespec_dumps(spec)))
    return copy


ENGINES.register("int8")(to_openvino)


def openvino_parts(model: DetectionModel) -> dict[str, OpenVINOPart]:
    """The parts of a detector that OpenVINO runs, by name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, OpenVINOPart)}


def to_bytes(graph: openvino.Model) -> tuple[bytes, bytes]:
    """A graph as XML and weights, see `from_bytes`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.xml"
        _import_openvino().save_model(graph, path, compress_to_fp16=False)
        return path.read_bytes(), path.with_suffix(".bin").read_bytes()


def from_bytes(xml: bytes, weights: bytes) -> openvino.Model:
    """The graph that `to_bytes` wrote."""
    tensor = _import_openvino().Tensor(np.frombuffer(weights, np.uint8))
    return _core().read_model(xml, tensor)


def _convert(part: ExportablePart, arguments: tuple[Any, ...]) -> openvino.Model:
    ov, program = _import_openvino(), export_part(part, arguments)
    try:
        with _logging_kept():
            graph = ov.convert_model(program)
    except ov.frontend.OpConversionFailure as error:
        missing = re.findall(r"operations?: (.+)", str(error))
        raise ConfigError(
            f"OpenVINO has no form of {', '.join(missing) or error} in {part.name}: export to pt2 or "
            "aoti"
        ) from error
    shapes = [list(x.shape) for x in pytree.tree_leaves(arguments)]
    for shape in shapes:
        for axis in part.free_axes:
            shape[axis] = -1
    graph.reshape(dict(enumerate(shapes)))
    return graph


@contextlib.contextmanager
def _logging_kept() -> Iterator[None]:
    """OpenVINO sets the root logger to errors alone, and leaves it so where a conversion fails."""
    root = logging.getLogger()
    level, filters, handlers = root.level, root.filters[:], root.handlers[:]
    try:
        yield
    finally:
        root.setLevel(level)
        root.filters, root.handlers = filters, handlers


def _channels_last(graph: openvino.Model) -> openvino.Model:
    """A graph that takes and gives maps as [B, H, W, C]: RoIAlign is fastest on such."""
    from openvino import Layout
    from openvino.preprocess import PrePostProcessor

    steps = PrePostProcessor(graph)
    ports = [(steps.input, k, port) for k, port in enumerate(graph.inputs)]
    ports += [(steps.output, k, port) for k, port in enumerate(graph.outputs)]
    for step, index, port in ports:
        if len(port.partial_shape) == 4:
            step(index).tensor().set_layout(Layout("NHWC"))
            step(index).model().set_layout(Layout("NCHW"))
    return steps.build()


def _quantised(
    model: DetectionModel,
    parts: Sequence[ExportablePart],
    graphs: Mapping[str, openvino.Model],
    pictures: Sequence[Tensor],
    proposals: Sequence[Tensor] | None,
) -> dict[str, openvino.Model]:
    """The graphs in int8, by the ranges of what the model computes of the pictures."""
    nncf = _import_nncf()
    found: dict[str, list[Path]] = {name: [] for name in graphs}
    # On the disk: the maps of a picture of 800 x 1216 are 100 MB.
    with tempfile.TemporaryDirectory() as folder:

        def note(name: str, arguments: tuple[Any, ...]) -> None:
            leaves = [x[:: max(1, len(x) // _ROIS)] for x in pytree.tree_leaves(arguments)]
            if all(x.numel() for x in leaves):
                path = Path(folder) / f"{name}-{len(found[name])}.pt"
                torch.save([x.clone() for x in leaves], path)
                found[name].append(path)

        given = [None] * len(pictures) if proposals is None else [[own] for own in proposals]
        with recording(parts, note):
            for picture, own in zip(pictures, given, strict=True):
                model.detect([picture], own)
        quantised = {}
        for name, graph in graphs.items():
            if not found[name]:
                raise ConfigError(
                    f"int8: {name} was never used on the {len(pictures)} pictures to calibrate "
                    "by, because nothing was detected: give pictures with objects"
                )
            logger.info("int8: %s by %d calls", name, len(found[name]))
            # 256 levels that do not fall on those of the pixels are off by up to half of one, which
            # is much of what a dark picture has: the first convolution stays in float32.
            pixels = name.startswith("backbone")
            data = nncf.Dataset(found[name], _read_call)
            # Group norm takes what a convolution gives in float32, and would be given it rounded.
            in_float = nncf.IgnoredScope(
                names=_first_convolutions(graph) if pixels else [],
                types=["GroupNormalization"],
                validate=False,
            )
            quantised[name] = nncf.quantize(
                graph,
                data,
                subset_size=len(found[name]),
                ignored_scope=in_float,
                # By what the quantised layers before give, not by what the float ones would.
                fast_bias_correction=False,
                # Without VNNI or AMX two products are added in 16 bits. Weights of 7 bits never
                # overflow there, so that a file gives the same wherever it is taken.
                advanced_parameters=nncf.AdvancedQuantizationParameters(
                    overflow_fix=nncf.OverflowFix.ENABLE
                ),
            )
    return quantised


def _first_convolutions(graph: openvino.Model) -> list[str]:
    """The names of the convolutions that see what a graph is given, not what others made of it."""
    found: set[str] = set()
    outputs = [x for parameter in graph.get_parameters() for x in parameter.outputs()]
    while outputs:
        for target in outputs.pop().get_target_inputs():
            node = target.get_node()
            if "Convolution" in node.get_type_name():
                found.add(node.get_friendly_name())
            elif node.get_type_name() != "ShapeOf":
                outputs += node.outputs()
    return sorted(found)


def _read_call(path: Path) -> list[np.ndarray]:
    return [x.contiguous().numpy() for x in torch.load(path, weights_only=True)]


def _innermost(x: Tensor) -> Tensor:
    """Maps [B, C, H, W] as [B, H, W, C]; anything else as it is."""
    return (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).contiguous()


def _outermost(x: Tensor) -> Tensor:
    """The opposite of `_innermost`; the tensor is channels-last."""
    return x.permute(0, 3, 1, 2) if x.dim() == 4 else x


@functools.cache
def _core() -> openvino.Core:
    """The one runtime of the process, never let go.

    Where the processor has AMX, each runtime gives the thread a stack for signals, and takes it
    back when it goes: with two of them, the next signal after that may find none and end the
    process.
    """
    return _import_openvino().Core()


def _import_openvino() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise ConfigError(
            f"OpenVINO cannot be loaded ({error}): pip install 'detlite[openvino]'"
        ) from error
    return openvino


def _import_nncf() -> Any:
    try:
        import nncf
    except ImportError as error:
        raise ConfigError(
            f"NNCF, which quantises, cannot be loaded ({error}): pip install 'detlite[openvino]'"
        ) from error
    nncf.set_log_level(logging.WARNING)
    return nncf
