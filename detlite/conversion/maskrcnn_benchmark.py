"""maskrcnn-benchmark: R-CNNs, RPNs and RetinaNets on ResNets and FBNets."""

import re
from pathlib import Path
from typing import Any

from .checkpoint_source import (
    CheckpointSource,
    ConfigValues,
    RawStateDict,
    StateDict,
    names_match,
    number_levels_from_zero,
)
from .infer_config import infer_config

_RULES = [
    *((rf"\.layer{n}\.", f".res{n + 1}.") for n in range(1, 5)),
    (r"\.bn(\d)\.", r".norm\1."),
    (r"^rpn\.head\.(?:0\.(?=head\.)|1\.)", "rpn.head."),  # FBNets have a sequence
    (r"^(roi_heads\.\w+\.feature_extractor)\.head\.", r"\1."),
    # the heads of a C4 model share this stage, and the file has it once per head
    (r"^roi_heads\.\w+\.feature_extractor\.res5\.", "roi_heads.box.feature_extractor.res5."),
    # a convolution alone, or followed by its group norm
    (r"(fpn_(?:inner|layer)\d|mask_fcn\d|conv_fcn\d|fc[67])\.(weight|bias)$", r"\1.0.\2"),
    *((rf"^backbone\.fpn\.fpn_inner{n}\.", f"backbone.neck.lateral.{n - 1}.") for n in range(1, 5)),
    *((rf"^backbone\.fpn\.fpn_layer{n}\.", f"backbone.neck.output.{n - 1}.") for n in range(1, 5)),
    (r"^backbone\.fpn\.top_blocks\.", "backbone.neck.top."),
    *((rf"^rpn\.head\.(cls|bbox)_tower\.{2 * n}\.", rf"head.\1_tower.{n}.0.") for n in range(8)),
    # sequences of convolution, group norm and ReLU
    *((rf"\.xconvs\.{3 * n + k}\.", f".convs.{n}.{k}.") for n in range(8) for k in range(2)),
    (r"\.fc([67])\.0\.", r".fc\1."),
    (r"\.fc([67])\.1\.", r".norm\1."),
    *((rf"\.(mask|conv)_fcn{n}\.", f".convs.{n - 1}.") for n in range(1, 9)),
]  # fmt: skip


def _adapt(state: StateDict, _raw: RawStateDict) -> StateDict:
    if any(name.startswith("head.") for name in state):  # a RetinaNet
        state = {re.sub(r"^rpn\.head\.", "head.", name): value for name, value in state.items()}
    return number_levels_from_zero(state)


def configure(
    state: StateDict, _raw: RawStateDict, _path: Path, _content: Any
) -> tuple[ConfigValues, ConfigValues]:
    """Infer the config of a detector of maskrcnn-benchmark or Caffe2.

    Empty for FBNets, whose weights do not determine their operators.
    """
    if any(name.startswith("backbone.body.stages.xif") for name in state):
        return {}, {}
    return {"MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 1000, **infer_config(state, "ROIAlign", 2)}, {}


MASKRCNN_BENCHMARK = CheckpointSource(
    name="maskrcnn-benchmark",
    convention="maskrcnn-benchmark",
    recognise=names_match(
        r"backbone\.body\.stem\.bn1\.weight$|rpn\.head\.0\.head\.|"
        r"roi_heads\.\w+\.feature_extractor\.head\."
    ),
    rules=_RULES,
    unused=r"(^|\.)anchor_generator\.",
    adapt=_adapt,
    configure=configure,
)
