"""Export whole detectors to ONNX with standard operators, and run them with onnxruntime.

detlite's operators are translated to ONNX operators (https://onnx.ai/onnx/operators): RoIAlign
level by level, and NMS to NonMaxSuppression and TopK. Needs `pip install 'detlite[onnx]'`.

Shapes: B images, N boxes in an image, G groups, R RoIs.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from detlite.apps.optional_packages import import_optional
from detlite.config import ConfigError
from detlite.errors import CheckpointError
from detlite.files.errors import short_reason
from detlite.modeling.detection_model import DetectionModel

from .exported_program import Run, export_program, output_names
from .limited_run import run_limited

_METADATA_KEY = "detlite"
_OPSET = 18
_LOWEST_SCORE = -3.4e38
_NO_LIMIT = 2**31 - 1
_FATAL = 4  # of onnxruntime's severities


def write_onnx(path: Path, metadata: str, model: DetectionModel) -> None:
    """Write a detector as an ONNX file with metadata."""
    onnx = import_optional("onnx", "detlite[onnx]")
    import_optional("onnxscript", "detlite[onnx]")
    program = export_program(model)
    count = len(program.graph_signature.user_inputs)
    inputs = ["pixels", "sizes", "proposals", "valid_proposals"][:count]
    graph = to_onnx(program, inputs, output_names(model))
    onnx.helper.set_model_props(graph, {_METADATA_KEY: metadata})
    onnx.save(graph, path)


def to_onnx(program: ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """Convert a program to an `onnx.ModelProto` with named inputs and outputs.

    Raises:
        ConfigError: an operator has no translation.
    """
    table = _translations()
    names = {str(node.target) for node in program.graph.nodes}
    custom = {name for name in names if name.startswith(("detlite.", "torchvision."))}
    if missing := custom - {str(operator) for operator in table}:
        raise ConfigError(
            f"ONNX cannot express {', '.join(sorted(missing))}: export to openvino or pt2"
        )
    exported = torch.onnx.export(
        program,
        dynamo=True,
        opset_version=_OPSET,
        custom_translation_table=table,
        input_names=inputs,
        output_names=outputs,
        verbose=False,
    )
    assert exported is not None
    return exported.model_proto


def _loops(node: Any) -> list[str]:
    """Return the parts of an ONNX file that can run others many times; detlite writes none."""
    loops = {node.op_type} if getattr(node, "op_type", "") in ("Loop", "Scan") else set()
    for field, value in node.ListFields():
        if field.name == "functions":
            loops |= {f"function {one.name}" for one in value}
        elif field.name in ("node", "attribute", "graph", "graphs", "g"):
            for part in [value] if field.name in ("graph", "g") else value:
                loops |= {*_loops(part)}
    return sorted(loops)


def onnx_run(path: Path) -> tuple[str, Run]:
    """Return the metadata of a file written by `write_onnx`, and a function that runs it.

    The first call runs the file in another process before, see `run_limited`.
    """
    runtime = import_optional("onnxruntime", "detlite[onnx]")
    file = import_optional("onnx", "detlite[onnx]").load(path, load_external_data=False)
    if loops := _loops(file):
        raise CheckpointError(
            f"{path}: contains loops or functions ({', '.join(loops)[:200]}), which may never end"
        )
    metadata = {entry.key: entry.value for entry in file.metadata_props}[_METADATA_KEY]
    names = [value.name for value in file.graph.input]
    sessions: list[Any] = []

    def run(*inputs: Tensor) -> list[Tensor]:
        arrays = {name: x.contiguous().numpy() for name, x in zip(names, inputs, strict=True)}
        if not sessions:
            run_limited(path, arrays)
            options = runtime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            options.log_severity_level = _FATAL  # errors are raised as well
            providers = ["CPUExecutionProvider"]
            sessions.append(runtime.InferenceSession(path, options, providers=providers))
        try:
            return [torch.from_numpy(x) for x in sessions[0].run(None, arrays)]
        except Exception as error:  # onnxruntime raises various types, and does not export them
            shapes = ", ".join(str(list(x.shape)) for x in inputs)
            raise CheckpointError(
                f"{path}: cannot run on inputs of {shapes} ({short_reason(error)})"
            ) from error

    return metadata, run


def _translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translations of detlite's operators."""
    op: Any = import_optional("onnxscript", "detlite[onnx]").opset18

    def roi_align(
        inputs: Sequence[Any],
        rois: Any,
        levels: Any,
        spatial_scales: Sequence[float],
        pooled_height: int,
        pooled_width: int,
        sampling_ratio: int,
        aligned: bool,
    ) -> Any:
        image = op.Cast(op.Squeeze(op.Slice(rois, [0], [1], [1]), [1]), to=7)
        boxes = op.Slice(rois, [1], [5], [1])
        shape = op.Concat(
            op.Shape(image), op.Shape(inputs[0], start=1, end=2),
            op.Constant(value_ints=[pooled_height, pooled_width]), axis=0,
        )  # fmt: skip
        pooled = op.Expand(op.Constant(value_float=0.0), shape)
        valid = op.GreaterOrEqual(image, op.Constant(value_int=0))  # padding stays zero
        for level, (features, scale) in enumerate(zip(inputs, spatial_scales, strict=True)):
            on_level = op.And(valid, op.Equal(levels, op.Constant(value_int=level)))
            index = op.Transpose(op.NonZero(on_level), perm=[1, 0])
            aligned_rois = op.RoiAlign(
                features,
                op.GatherND(boxes, index),
                op.GatherND(image, index),
                mode="avg",
                output_height=pooled_height,
                output_width=pooled_width,
                sampling_ratio=max(sampling_ratio, 0),
                spatial_scale=scale,
                coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
            )
            pooled = op.ScatterND(pooled, index, aligned_rois)
        return pooled

    def padded_nms(
        boxes: Any, scores: Any, groups: Any, valid: Any, iou_threshold: float, limit: int
    ) -> Any:
        one, zero = op.Constant(value_ints=[1]), op.Constant(value_ints=[0])
        lowest = op.Constant(value_float=float("-inf"))
        # A row of scores for each group, with the lowest score for boxes of other groups.
        num_groups = op.Add(op.ReduceMax(groups, keepdims=0), op.Constant(value_int=1))
        group = op.Range(op.Constant(value_int=0), num_groups, op.Constant(value_int=1))
        group = op.Unsqueeze(group, op.Constant(value_ints=[0, 2]))
        in_group = op.And(op.Equal(op.Unsqueeze(groups, one), group), op.Unsqueeze(valid, one))
        selected = op.NonMaxSuppression(  # [K, 3] of image, group, box
            boxes,
            op.Where(in_group, op.Unsqueeze(scores, one), lowest),
            op.Constant(value_ints=[_NO_LIMIT]),
            op.Constant(value_floats=[iou_threshold]),
            op.Constant(value_floats=[_LOWEST_SCORE]),
        )
        position = op.Gather(selected, op.Constant(value_ints=[0, 2]), axis=1)
        empty = op.Expand(lowest, op.Shape(scores))
        remaining = op.ScatterND(empty, position, op.GatherND(scores, position))
        # TopK orders equal scores by index, as detlite does.
        maximum = op.Constant(value_ints=[limit])
        count = op.Min(maximum, op.Shape(scores, start=1, end=2))
        best, index = op.TopK(remaining, count, axis=1, largest=1, sorted=1)
        kept = op.Greater(best, lowest)
        index = op.Where(kept, index, op.Constant(value_int=0))
        pads = op.Concat(zero, zero, zero, op.Sub(maximum, count), axis=0)
        kept = op.Cast(op.Pad(op.Cast(kept, to=7), pads), to=9)
        return op.Pad(index, pads), kept

    def cumsum(values: Any, dim: int) -> Any:
        if values.dtype.is_floating_point():
            return op.CumSum(values, op.Constant(value_int=dim))
        # TensorRT has no CumSum of integers. Float32 counts exactly up to 2^24.
        return op.Cast(op.CumSum(op.Cast(values, to=1), op.Constant(value_int=dim)), to=7)

    return {
        torch.ops.aten.cumsum.default: cumsum,
        torch.ops.detlite.roi_align_forward.maps: roi_align,
        torch.ops.detlite.padded_nms.default: padded_nms,
    }
