"""Run the dense parts of detectors with OpenVINO on the CPU, in float32 or int8.

Needs `pip install 'detlite[openvino]'`.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

from detlite.apps.optional_packages import import_optional
from detlite.config import ConfigError
from detlite.modeling.detection_model import DetectionModel
from detlite.structures.instances import Images, Proposals

from .exported_program import example_batch
from .parts import ExportablePart, exportable_parts

if TYPE_CHECKING:
    import openvino

logger = logging.getLogger(__name__)

_MAX_ROIS = 100  # RoIs of each image used for calibration


class OpenVINOPart(nn.Module):
    """A part of a model run by OpenVINO, with the arguments and results of the original module.

    Float32 channels-last tensors are shared with OpenVINO, not copied.

    Args:
        graph: its inputs and outputs are feature maps [B, H, W, C].
        results: structure of the results of the original module.
    """

    def __init__(self, graph: openvino.Model, results: pytree.TreeSpec) -> None:
        super().__init__()
        self.graph = graph
        self.results = results
        settings = {
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            # By default OpenVINO uses bfloat16 for float32 on some processors.
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._compiled = _core().compile_model(graph, "CPU", settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return part_from_bytes, (*to_bytes(self.graph), self.results)

    def forward(self, *arguments: Any) -> Any:
        maps = [_permute_maps(x.float(), 0, 2, 3, 1) for x in pytree.tree_leaves(arguments)]
        inputs = [x.contiguous().numpy() for x in maps]
        # A request owns the memory of its results, so each call needs a new one.
        call = self._compiled.create_infer_request()
        # With one thread, `infer` does not report missing memory, and returns empty results.
        call.start_async(inputs, share_inputs=True)
        call.wait()
        maps = [_permute_maps(torch.from_numpy(x.data), 0, 3, 1, 2) for x in call.output_tensors]
        return pytree.tree_unflatten(maps, self.results)


def to_openvino(
    model: DetectionModel,
    calibration: Sequence[Tensor] = (),
    proposals: Sequence[Tensor] | None = None,
) -> DetectionModel:
    """Copy a detector and run its dense parts with OpenVINO; RoIAlign and NMS still run in detlite.

    Args:
        model: a detector on the CPU, which is not changed.
        calibration: some dozens of training images [3, H, W], resized as in evaluation, for
            quantizing the parts to int8 (see `quantize`). Empty: float32.
        proposals: proposals of each calibration image, for Fast R-CNN.

    Raises:
        ConfigError: a package is missing, the model is not on the CPU, or OpenVINO does not support
            one of its operations.
    """
    if model.device.type != "cpu":
        raise ConfigError(f"OpenVINO runs on the CPU, not on {model.device}: set MODEL.DEVICE cpu")
    _openvino()  # not found out after the model was traced
    copy = deepcopy(model).eval().requires_grad_(False)
    copy.use_memory_format()
    calls = example_calls(copy, *example_batch(copy))
    with tempfile.TemporaryDirectory() as folder:
        parts = [part for part, *_ in calls]
        saved = save_calls(copy, parts, calibration, proposals, folder) if calibration else {}
        for part, arguments, results in calls:
            graph = _convert(part, arguments)
            if calibration:
                graph = quantize(part.name, graph, saved[part.name])
            part.replace(OpenVINOPart(_use_channels_last(graph), results))
    copy.is_optimized = True
    return copy


def example_calls(
    model: DetectionModel, images: Images, proposals: Proposals | None
) -> list[tuple[ExportablePart, tuple[Any, ...], pytree.TreeSpec]]:
    """Make the parts of a model separate modules, and call each.

    Returns:
        The parts, with the arguments of a call and the structure of its results.
    """
    parts = exportable_parts(model)
    for part in parts:
        part.replace(part.module)
    calls: dict[str, tuple[Any, ...]] = {}
    model.static_shapes = True  # padding ensures that each head is called, even without objects
    with torch.no_grad(), recording(parts, calls.setdefault):
        model.predict(images, proposals)
        results = [pytree.tree_structure(part.module(*calls[part.name])) for part in parts]
    model.static_shapes = False
    return [(one, calls[one.name], spec) for one, spec in zip(parts, results, strict=True)]


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


def openvino_parts(model: DetectionModel) -> dict[str, OpenVINOPart]:
    """Return the parts that OpenVINO runs, by name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, OpenVINOPart)}


def to_bytes(graph: openvino.Model) -> tuple[bytes, bytes]:
    """Convert a graph to XML and weights."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.xml"
        _openvino().save_model(graph, path, compress_to_fp16=False)
        return path.read_bytes(), path.with_suffix(".bin").read_bytes()


def part_from_bytes(xml: bytes, weights: bytes, results: pytree.TreeSpec) -> OpenVINOPart:
    """Build a part from the result of `to_bytes` and the structure of its results."""
    tensor = _openvino().Tensor(np.frombuffer(weights, np.uint8))
    graph = _core().read_model(xml, tensor)
    if loops := {op.get_type_name() for op in graph.get_ops()} & {"Loop", "TensorIterator", "If"}:
        raise ValueError(f"contains {', '.join(sorted(loops))}, which may never end")
    return OpenVINOPart(graph, results)


def _convert(part: ExportablePart, arguments: tuple[Any, ...]) -> openvino.Model:
    ov, free = _openvino(), dict.fromkeys(part.dynamic_axes, Dim.AUTO)
    dynamic = pytree.tree_map(lambda _: free, arguments)
    with torch.no_grad():
        program = torch.export.export(part.module, arguments, dynamic_shapes=dynamic)
    root = logging.getLogger()
    level, filters, handlers = root.level, root.filters[:], root.handlers[:]
    try:
        graph = ov.convert_model(program)
    except ov.frontend.OpConversionFailure as error:
        missing = re.findall(r"operations?: (.+)", str(error))
        problem = f"OpenVINO does not support {', '.join(missing) or error} in {part.name}"
        raise ConfigError(f"{problem}: export to pt2") from error
    finally:  # OpenVINO leaves the root logger silenced if a conversion fails
        root.setLevel(level)
        root.filters, root.handlers = filters, handlers
    shapes = [list(x.shape) for x in pytree.tree_leaves(arguments)]
    for shape, axis in itertools.product(shapes, part.dynamic_axes):
        shape[axis] = -1
    graph.reshape(dict(enumerate(shapes)))
    return graph


def _use_channels_last(graph: openvino.Model) -> openvino.Model:
    """Convert a graph's feature maps to [B, H, W, C], the fastest layout for RoIAlign."""
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


def _permute_maps(x: Tensor, *order: int) -> Tensor:
    """Permute a tensor if it is a feature map, that is, if it has four dimensions."""
    return x.permute(order) if x.dim() == 4 else x


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


@functools.cache
def _core() -> openvino.Core:
    """Return the single OpenVINO runtime of the process; it is never destroyed.

    On processors with AMX, each runtime installs an alternative signal stack and removes it when
    destroyed. If a process creates two runtimes, a later signal may crash it.
    """
    return _openvino().Core()


def _openvino() -> Any:
    return import_optional("openvino", "detlite[openvino]")
