"""mmdetection 2 and 3: Faster, Mask and Cascade R-CNN and RetinaNet on ResNets with a pyramid."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detlite.conversion.checkpoint_source import (
    CheckpointSource,
    ConfigValues,
    RawStateDict,
    StateDict,
)
from detlite.conversion.detectron2.source import move_background_first

from .config_file import read_python_config
from .model_config import model_config

_RULES = [
    (r"^backbone\.(conv1|bn1)\.", r"backbone.body.stem.\1."),
    *((rf"^backbone\.layer{n}\.", f"backbone.body.res{n + 1}.") for n in range(1, 5)),
    (r"\.bn(\d)\.", r".norm\1."),
    # convolution and norm
    (r"(convs\.\d)\.conv\.", r"\1.0."),
    (r"(convs\.\d)\.(?:bn|gn)\.", r"\1.1."),
    (r"^neck\.lateral_convs\.", "backbone.neck.lateral."),
    (r"^neck\.fpn_convs\.", "backbone.neck.output."),
    (r"^rpn_head\.rpn_conv\.(?:0\.conv\.)?(?=weight|bias)", "rpn.head.conv."),
    *((rf"^rpn_head\.rpn_conv\.{n}\.conv\.", f"rpn.head.more_convs.{n - 1}.") for n in range(1, 4)),
    (r"^rpn_head\.rpn_cls\.", "rpn.head.cls_logits."),
    (r"^rpn_head\.rpn_reg\.", "rpn.head.bbox_pred."),
    # heads of a cascade
    (r"^roi_head\.bbox_head\.(\d\.)?fc_cls\.", r"roi_heads.box.\1predictor.cls_score."),
    (r"^roi_head\.bbox_head\.(\d\.)?fc_reg\.", r"roi_heads.box.\1predictor.bbox_pred."),
    (r"^roi_head\.bbox_head\.(\d\.)?", r"roi_heads.box.\1feature_extractor."),
    (r"_extractor\.shared_convs\.", "_extractor.convs."),
    (r"_extractor\.shared_fcs\.0\.", "_extractor.fc6."),
    (r"_extractor\.shared_fcs\.1\.", "_extractor.fc7."),
    # mask heads of a cascade, whose predictions are averaged
    (r"^roi_head\.mask_head\.(0\.)?(?=[a-z])", "roi_heads.mask."),
    *((rf"^roi_head\.mask_head\.{n}\.", f"roi_heads.mask.more.{n - 1}.") for n in range(1, 3)),
    (r"^(roi_heads\.mask\.(?:more\.\d\.)?)convs\.", r"\1feature_extractor.convs."),
    (r"^(roi_heads\.mask\.(?:more\.\d\.)?)upsample\.", r"\1predictor.conv5_mask."),
    (r"^(roi_heads\.mask\.(?:more\.\d\.)?)conv_logits\.", r"\1predictor.mask_fcn_logits."),
    (r"^bbox_head\.cls_convs\.", "head.cls_tower."),
    (r"^bbox_head\.reg_convs\.", "head.bbox_tower."),
    (r"^bbox_head\.retina_cls\.", "head.cls_logits."),
    (r"^bbox_head\.retina_reg\.", "head.bbox_pred."),
]  # fmt: skip


def _adapt(state: StateDict, _raw: RawStateDict) -> StateDict:
    # P6 and P7 follow the outputs of the lateral levels
    levels = len({name.split(".")[3] for name in state if ".neck.lateral." in name})
    for number in range(2):
        output, top = f"neck.output.{levels + number}.0.", f"neck.top.p{6 + number}."
        state = {name.replace(output, top): value for name, value in state.items()}
    move_background_first(state)
    return state


def _configure(
    state: StateDict, raw: RawStateDict, path: Path, content: Any
) -> tuple[ConfigValues, ConfigValues]:
    meta = _meta(content)
    version = str(meta.get("mmdet_version", ""))
    heads = any(name.startswith("bbox_head.") and "fc_cls." in name for name in raw)
    if heads or version.startswith(("0.", "1.")):
        raise ValueError(
            "it is from mmdetection 1, with other conventions of boxes and labels: convert it with "
            "tools/model_converters/upgrade_model_version.py of mmdetection 2"
        )
    return model_config(read_python_config(_config_text(meta, path)), state)


def _meta(content: Any) -> dict[str, Any]:
    meta = content.get("meta") if isinstance(content, dict) else None
    return meta if isinstance(meta, dict) else {}


def _config_text(meta: dict[str, Any], path: Path) -> str:
    """Return the config from a .py file with the name of the weights next to them, or from them."""
    # published names end in a date and a part of the hash
    names = [path.stem, re.sub(r"_\d{8}(_\d{6})?-[0-9a-f]{8}$", "", path.stem)]
    for name in names:
        file = path.parent / f"{name}.py"
        if name and file.is_file():
            return file.read_text(encoding="utf-8")
    for key in ("cfg", "config"):  # of version 3, of version 2
        if isinstance(meta.get(key), str):
            return str(meta[key])
    raise ValueError(
        "it has no config: copy the flat .py file that training wrote to "
        f"{names[-1] or 'the name of the weights'}.py next to the weights"
    )


def _class_names(content: Any) -> Sequence[str]:
    meta = _meta(content)
    tables = [table for table in (meta.get("dataset_meta"), meta) if isinstance(table, dict)]
    values = (table.get(key) for table in tables for key in ("classes", "CLASSES"))
    names = next((value for value in values if value), ())
    names = (names,) if isinstance(names, str) else names
    valid = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    return names if valid else ()


MMDETECTION = CheckpointSource(
    names=r"^(neck\.(lateral|fpn)_convs|rpn_head|roi_head|bbox_head)\.",
    convention="mmdetection",
    rules=_RULES,
    adapt=_adapt,
    configure=_configure,
    class_names=_class_names,
)
