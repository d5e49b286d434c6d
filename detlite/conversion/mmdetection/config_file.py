"""Read the configs of mmdetection, Python files of assignments, without running them.

A `ConfigSection` is a dict of such a file, with checks of its keys and values.
"""

from __future__ import annotations

import ast
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

# Keys that are converted, that follow from the shapes, or that do not affect detections.
_KNOWN = (
    "add_extra_convs aligned anchor_generator backbone backend_args base_channels base_sizes "
    "base_width batch_augments bbox_clip_border bbox_coder bbox_head bbox_roi_extractor beta "
    "bgr_to_rgb boxtype2tensor center_offset clip_object_border conv_out_channels ctr_clamp "
    "data_preprocessor depth extra_convs_on_inputs fc_out_channels feat_channels "
    "file_client_args frozen_stages groups img_scale in_channels iou_thr iou_threshold "
    "mask_head mask_pad_value mask_roi_extractor mask_thr_binary max_num max_per_img mean "
    "min_bbox_size multiscale_mode neck nms nms_post nms_pre nms_thr non_blocking norm_eval "
    "num_classes num_convs octave_base_scale out_channels out_size output_size override "
    "pad_mask pad_seg pad_size_divisor pretrained ratios reg_decoded_bbox "
    "relu_before_extra_convs requires_grad rcnn roi_feat_size roi_head roi_layer rpn rpn_head "
    "sample_num sampling_ratio scale scales scales_per_octave score_thr seg_pad_value "
    "size_divisor split_thr stacked_convs stage_loss_weights start_level std stem_channels "
    "strides target_stds test_cfg to_float32 to_rgb train_cfg transforms type use_box_type "
    "use_sigmoid use_torchvision with_cp zero_init_residual"
)
# Keys that must be None or False, and keys that must be None or True.
_OFF = (
    "add_ctr_clamp act_cfg avg_down centers class_agnostic conv_cfg dcn deep_stem flip norm_cfg "
    "nms_across_levels no_norm_on_lateral plugins ratio_range rgb_to_bgr scale_factor shared_head "
    "with_avg_pool"
)
_ON = "clip_border keep_ratio scale_major with_cls with_reg"
# Supported values of further keys, in addition to None. Lists are equal to tuples.
_ALLOWED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(_OFF.split(), (False,)),
    **dict.fromkeys(_ON.split(), (True,)),
    "backend": ("cv2",),
    "channel_order": ("bgr",),
    "cls_predictor_cfg": ({"type": "Linear"},),
    "color_type": ("color",),
    "conv_kernel_size": (3,),
    "dilations": ((1, 1, 1, 1),),
    "end_level": (-1, 3),
    "eps": (1e-5,),
    "featmap_strides": ((4, 8, 16, 32),),
    "finest_scale": (56,),
    "imdecode_backend": ("cv2",),
    "interpolation": ("bilinear",),
    "num_outs": (5,),
    "out_indices": ((0, 1, 2, 3),),
    "pad_val": (0, {"img": 0, "masks": 0, "seg": 255}),
    "pad_value": (0,),
    "pool_mode": ("avg",),
    "predictor_cfg": ({"type": "Conv"},),
    "reg_predictor_cfg": ({"type": "Linear"},),
    "stage_with_dcn": ((False,) * 4,),
    "style": ("pytorch", "caffe"),
    "target_means": ((0.0,) * 4,),
    "upsample_cfg": ({"mode": "nearest"}, {"type": "deconv", "scale_factor": 2}),
}
# Abbreviates values, because one may contain another many times.
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 3, 80, 80


@dataclass(frozen=True)
class UnparsedExpression:
    """An expression that is not a literal. It is an error only if its value is needed."""

    text: str


def read_python_config(text: str) -> dict[str, Any]:
    """Return the values that a flat config file assigns, by name. Nothing is executed.

    Literals, `dict(...)` and names assigned before are evaluated; other expressions become
    `UnparsedExpression`.

    Raises:
        ValueError: not valid Python, statements other than assignments, or a `_base_`.
    """
    values: dict[str, Any] = {}
    try:
        # Python 3.10 raises ValueError for NUL.
        for statement in ast.parse(text.replace("\0", "?")).body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                values[statement.targets[0].id] = _value(statement.value, values)
            elif not isinstance(statement, (ast.Import, ast.ImportFrom, ast.Expr)):
                raise ValueError(
                    f"its config has a statement other than an assignment in line "
                    f"{statement.lineno}: {_source(statement)}"
                )
    except (SyntaxError, RecursionError, MemoryError) as error:
        reason = str(error) or "nested too deep"
        raise ValueError(f"its config is not valid Python ({reason})") from error
    if "_base_" in values:
        raise ValueError(
            "its config has _base_, other files that it includes: use the flat config that "
            "training writes next to its checkpoints, or the output of tools/misc/print_config.py"
        )
    return values


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    try:
        match node:
            case ast.List() | ast.Tuple():
                items = [_value(item, names) for item in node.elts]
                return items if isinstance(node, ast.List) else tuple(items)
            case ast.Dict():
                return _dict(zip(node.keys, node.values, strict=True), names)
            case ast.Call(func=ast.Name("dict"), args=[]):
                pairs = ((i.arg and ast.Constant(i.arg), i.value) for i in node.keywords)
                return _dict(pairs, names)
            case ast.Name() if node.id in names:
                return names[node.id]
        return ast.literal_eval(node)
    except ValueError:
        return UnparsedExpression(_source(node))


def _dict(pairs: Iterable[tuple[Any, ast.expr]], names: Mapping[str, Any]) -> dict[Any, Any]:
    """Evaluate the pairs of a dict; the key of `**value` is None. ValueError: a part is unknown."""
    merged: dict[Any, Any] = {}
    for key, expression in pairs:
        name, value = key and _value(key, names), _value(expression, names)
        if key is None and isinstance(value, dict):
            merged |= value
        elif isinstance(name, (str, int)):
            merged[name] = value
        else:
            raise ValueError("unknown key")
    return merged


def _source(node: ast.AST) -> str:
    text = ast.unparse(node).splitlines()[0]
    return text if len(text) <= 60 else f"{text[:57]}..."


class ConfigSection:
    """A dict of a config that rejects unknown keys and values.

    Attributes:
        where: its path in the config, such as "model.backbone", for messages.
    """

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"its config has no dict {where}")
        self._values = values
        self.where = where

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key; ValueError if it is not a literal."""
        value = self._values.get(key, default)
        if isinstance(value, UnparsedExpression):
            raise self._invalid(key, value.text, ", which is not a literal")
        return value

    def numbers(self, key: str, default: Any = None) -> list[float]:
        """Return the value of a key, a number or a sequence of numbers, as a list."""
        value = self.get(key)
        value = default if value is None else value
        numbers = list(value) if isinstance(value, (list, tuple)) else [value]
        if not numbers or not {*map(type, numbers)} <= {int, float}:
            raise self._invalid(key, _REPR.repr(value), ", expected numbers")
        return numbers

    def number(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, a number or a sequence of equal numbers."""
        numbers = self.numbers(key, default)
        if len(set(numbers)) > 1:
            raise self._invalid(key, _REPR.repr(numbers), ", expected one number")
        return numbers[0]

    def _invalid(self, key: str, text: str, problem: str) -> ValueError:
        return ValueError(f"its config says {self.where}.{key} = {text}{problem}")

    def section(self, key: str, *kinds: str, **only: tuple[Any, ...]) -> ConfigSection:
        """Return the dict of a key, checked."""
        return ConfigSection(self.get(key), f"{self.where}.{key}").check(*kinds, **only)

    def sections(self, key: str) -> list[ConfigSection]:
        """Return the dicts of a key, which has one or a list of them, not checked."""
        value, where = self.get(key), f"{self.where}.{key}"
        if not isinstance(value, (list, tuple)):
            return [ConfigSection(value, where)]
        return [ConfigSection(item, f"{where}[{n}]") for n, item in enumerate(value)]

    @property
    def kind(self) -> str:
        """The class in `type`, without its module."""
        return str(self.get("type", "")).rpartition(".")[2]

    def reject(self, key: str, expected: str) -> NoReturn:
        """Raise ValueError: the value of a key is not one of the `expected`."""
        raise self._invalid(key, _REPR.repr(self.get(key)), f": only {expected} is converted")

    def check(self, *kinds: str, **only: tuple[Any, ...]) -> ConfigSection:
        """Reject unknown classes, keys and values, and return the section.

        `kinds` are the allowed classes; empty: any. `only` adds the allowed values of keys, besides
        None; empty: any.
        """
        if kinds and self.kind not in kinds:
            self.reject("type", ", ".join(kinds))
        allowed = dict.fromkeys(_KNOWN.split(), ()) | _ALLOWED | only
        for key in self._values:
            if str(key).startswith(("loss_", "init_")):
                continue
            if key not in allowed:
                raise ValueError(f"its config has {self.where}.{key}, which is unknown")
            value = self.get(key) if allowed[key] else None
            value = tuple(value) if isinstance(value, list) else value
            if value is not None and value not in allowed[key]:
                self.reject(key, ", ".join(map(repr, allowed[key])))
        return self
