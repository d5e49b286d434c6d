"""How the published models of detectron2 differ where the entries of their files do not say it.

Facts from its configs/ and MODEL_ZOO.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from detlite.conversion.checkpoint_source import Config

# Classes of LVIS 0.5 and 1.0 with background: so many that each scores low.
LVIS = (1231, 1204)

# Of ImageNet's pixels. Elsewhere the first convolution has taken the division up.
_PIXEL_STD = (57.375, 57.12, 58.395)

# Models whose entries are those of another: the names of their configs, or of their files.
_NAMED: list[tuple[str, Config]] = [
    (
        r"scratch_mask_rcnn_R_50_FPN_9x_|model_final_(da7b4c|5ce33e)\.",
        {"INPUT.PIXEL_STD": list(_PIXEL_STD)},
    ),
    # Trained anew since, by a config that was mended.
    (
        r"_3x_syncbn/143915318|model_final_220cfb\.",
        {"MODEL.RESNETS.STRIDE_IN_1X1": False},
    ),
    (
        r"Cityscapes/mask_rcnn_R_50_FPN|model_final_af9cf5\.",
        {"INPUT.MIN_SIZE_TEST": 1024, "INPUT.MAX_SIZE_TEST": 2048},
    ),
    (
        r"Detectron1-Comparisons/|_noaug_1x|model_final_(7ab50c|62ca52|cce136)\.",
        {
            "MODEL.RPN.SMOOTH_L1_BETA": 0.1111,
            "MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA": 1.0,
            **{
                f"MODEL.ROI_{head}_HEAD.{key}": value
                for head in ("BOX", "MASK", "KEYPOINT")
                for key, value in (("POOLER_TYPE", "ROIAlign"), ("POOLER_SAMPLING_RATIO", 2))
            },
        },
    ),
]


# What older files call the anchors of a level.
_CELL_ANCHORS = re.compile(r"(?:^|\.)anchor_generator\.cell_anchors\.(\d+)$")


def config_by_name(path: Path) -> Config:
    """What a model needs that only its name tells: the path of its file as it was published."""
    return {
        key: value
        for pattern, config in _NAMED
        if re.search(pattern, path.as_posix())
        for key, value in config.items()
    }


def config_by_shape(config: Config, stem_trained: bool) -> Config:
    """What a model needs beyond the config that follows from its entries.

    Args:
        config: that.
        stem_trained: whether the norm of its stem has seen batches.
    """
    found: Config = {}
    # Batch norm that was trained along. Models with a longer RPN head came later, by other configs.
    trained_norm = (
        "BN" in config.get("MODEL.FPN.NORM", "") and config.get("MODEL.RPN.NUM_CONVS", 1) == 1
    )
    from_scratch = trained_norm and stem_trained
    body = config["MODEL.BACKBONE.CONV_BODY"]
    resnext_101 = body.startswith("R-101-") and config["MODEL.RESNETS.NUM_GROUPS"] > 1
    regnet = body.startswith("timm/regnet")
    if from_scratch and not regnet:
        found["MODEL.RESNETS.STRIDE_IN_1X1"] = False
    if from_scratch or resnext_101 or regnet:
        found["INPUT.PIXEL_STD"] = list(_PIXEL_STD)
    if config.get("MODEL.ROI_BOX_HEAD.NUM_CLASSES") in LVIS:
        found["MODEL.ROI_HEADS.SCORE_THRESH"] = 1e-4
        found["MODEL.ROI_HEADS.DETECTIONS_PER_IMG"] = 300
    return found


def pixel_config(entries: Mapping[str, Any]) -> Config:
    """INPUT's keys from the mean and deviation that some files hold.

    Args:
        entries: by detectron2's names; `pixel_mean` and `pixel_std` [3, 1, 1] count, in 0..255.
    """
    if not {"pixel_mean", "pixel_std"} <= entries.keys():
        return {}
    mean, std = (
        # the shortest decimals that are the same float32
        [float(str(value)) for value in np.asarray(entries[name], np.float32).flatten()]
        for name in ("pixel_mean", "pixel_std")
    )
    if mean[0] <= mean[-1]:  # pictures have more red than blue
        return {"INPUT.PIXEL_MEAN": mean, "INPUT.PIXEL_STD": std}
    return {
        "INPUT.TO_BGR255": False,
        "INPUT.PIXEL_MEAN": [value / 255 for value in mean],
        "INPUT.PIXEL_STD": [value / 255 for value in std],
    }


def anchor_config(entries: Mapping[str, Any], part: str) -> Config:
    """Sizes and aspect ratios of the anchors that older files hold, where they are not the usual.

    Args:
        entries: by detectron2's names; `...cell_anchors.<level>` [A, 4] count, xyxy around the
            origin, by size, then by aspect ratio.
        part: "MODEL.RPN" or "MODEL.RETINANET", whose anchors they are.
    """
    found = {match[1]: name for name in entries if (match := _CELL_ANCHORS.search(name))}
    if not found:
        return {}
    cells = np.stack([np.asarray(entries[found[level]], np.float64) for level in sorted(found)])
    width, height = np.moveaxis(cells[..., 2:] - cells[..., :2], -1, 0)  # (levels, A)
    sizes, ratios = np.sqrt(width * height).round(4), (height / width).round(4)
    count = int((sizes[0] == sizes[0, 0]).sum())
    sizes, ratios = sizes[:, ::count], ratios[0, :count]
    retinanet = part == "MODEL.RETINANET"
    usual = np.outer([32, 64, 128, 256, 512], 2 ** (np.arange(3 if retinanet else 1) / 3))
    as_usual = sizes.size == usual.size and np.allclose(sizes.ravel(), usual.ravel(), atol=1e-3)
    if as_usual and ratios.tolist() == [0.5, 1.0, 2.0]:
        return {}
    return {
        f"{part}.ANCHOR_SIZES": sizes.tolist(),
        f"{part}.ASPECT_RATIOS": ratios.tolist(),
        **({f"{part}.SCALES_PER_OCTAVE": 1} if retinanet else {}),
    }
