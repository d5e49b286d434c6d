"""Whole detectors as one ONNX file of standard operators, run by onnxruntime.

Our operators are put together of ONNX's own (https://onnx.ai/onnx/operators): RoIAlign level by
level, and non-maximum suppression by NonMaxSuppression and TopK. The optional packages are those of
`pip install 'detlite[onnx]'`.

Shapes: B images, N boxes in an image, G groups, R RoIs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from detlite.config import ConfigError
from detlite.modeling.detection_model import DetectionModel
from detlite.structures.instances import Detections

from .exported_program import Run, export_program

_NAME = "detlite"  # of what is stored beside a graph
_OPSET = 18
_LOWEST = -3.4e38  # below every finite score
_ALL = 2**31 - 1


def write_onnx(path: Path, note: str, model: DetectionModel) -> None:
    """Writes a detector as ONNX, with a note in its metadata.

    Raises:
        ConfigError: a package is not installed, or an operator has no form in ONNX.
    """
    for package in ("onnx", "onnxscript"):
        _import(package)
    program = export_program(model, batch=1)
    signature = program.graph_signature
    inputs = ["pixels", "sizes", "proposals", "valid_proposals"][: len(signature.user_inputs)]
    outputs = [field.name for field in fields(Detections)]
    if "masks" not in model.required_targets:
        outputs.remove("mask_probs")
    graph = to_onnx(program, inputs, outputs[: len(signature.user_outputs)])
    onnx = _import("onnx")
    onnx.helper.set_model_props(graph, {_NAME: note})
    onnx.save(graph, path)


def to_onnx(program: ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """A graph with our operators in it as an `onnx.ModelProto`, its arguments and results named.

    Raises:
        ConfigError: an operator has no form in ONNX.
    """
    table = _translations()
    names = (str(node.target) for node in program.graph.nodes)
    ours = {name for name in names if name.startswith(("detlite.", "torchvision."))}
    if missing := ours - {str(operator) for operator in table}:
        raise ConfigError(
            f"ONNX has no form of {', '.join(sorted(missing))}: export to openvino, pt2 or aoti"
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


def onnx_run(path: Path) -> tuple[str, Run]:
    """The note in a file of `write_onnx`, and the file as a program.

    Raises:
        ConfigError: onnxruntime is not installed.
    """
    runtime = _import("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]

    def run(*inputs: Tensor) -> list[Tensor]:
        arrays = {name: x.contiguous().numpy() for name, x in zip(names, inputs, strict=True)}
        return [torch.from_numpy(x) for x in session.run(None, arrays)]

    return session.get_modelmeta().custom_metadata_map[_NAME], run


def _translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """How our operators are put together of ONNX's."""
    op: Any = _import("onnxscript").opset18

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
            own = op.And(valid, op.Equal(levels, op.Constant(value_int=level)))
            index = op.Transpose(op.NonZero(own), perm=[1, 0])
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
        # A row of scores for each group, in which the boxes of others are out.
        count = op.Add(op.ReduceMax(groups, keepdims=0), op.Constant(value_int=1))
        group = op.Range(op.Constant(value_int=0), count, op.Constant(value_int=1))
        group = op.Unsqueeze(group, op.Constant(value_ints=[0, 2]))
        own = op.And(op.Equal(op.Unsqueeze(groups, one), group), op.Unsqueeze(valid, one))
        found = op.NonMaxSuppression(  # [K, 3] of image, group, box
            boxes,
            op.Where(own, op.Unsqueeze(scores, one), lowest),
            op.Constant(value_ints=[_ALL]),
            op.Constant(value_floats=[iou_threshold]),
            op.Constant(value_floats=[_LOWEST]),
        )
        place = op.Gather(found, op.Constant(value_ints=[0, 2]), axis=1)
        none = op.Expand(lowest, op.Shape(scores))
        left = op.ScatterND(none, place, op.GatherND(scores, place))
        # Of equal scores TopK gives the lower index first, as we do.
        wanted = op.Constant(value_ints=[limit])
        most = op.Min(wanted, op.Shape(scores, start=1, end=2))
        best, index = op.TopK(left, most, axis=1, largest=1, sorted=1)
        kept = op.Greater(best, lowest)
        index = op.Where(kept, index, op.Constant(value_int=0))
        pads = op.Concat(zero, zero, zero, op.Sub(wanted, most), axis=0)
        kept = op.Cast(op.Pad(op.Cast(kept, to=7), pads), to=9)
        return op.Pad(index, pads), kept

    return {
        torch.ops.detlite.roi_align_forward.maps: roi_align,
        torch.ops.detlite.padded_nms.default: padded_nms,
    }


def _import(package: str) -> Any:
    try:
        return __import__(package)
    except ImportError as error:
        raise ConfigError(
            f"{package} cannot be loaded ({error}): pip install 'detlite[onnx]'"
        ) from error
