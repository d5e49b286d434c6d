"""Settings of detectron2's published models that their weights do not determine.

Taken from its configs/ and MODEL_ZOO.md.
"""

import re
from pathlib import Path

import numpy as np

from detlite.conversion.checkpoint_source import ConfigValues, RawStateDict, pixel_config, section

# Numbers of classes of LVIS 0.5 and 1.0, with background.
LVIS = (1231, 1204)

# Standard deviation of ImageNet. In other models, the first convolution includes the division.
_PIXEL_STD = (57.375, 57.12, 58.395)

_OLDER_POOLING = {"POOLER_TYPE": "ROIAlign", "POOLER_SAMPLING_RATIO": 2}
# Settings by a pattern of the name of the config or of the file.
_NAMED: dict[str, ConfigValues] = {
    r"scratch_mask_rcnn_R_50_FPN_9x_|model_final_(da7b4c|5ce33e)\.": {
        "INPUT.PIXEL_STD": list(_PIXEL_STD)
    },
    r"_3x_syncbn/143915318|model_final_220cfb\.": {  # trained again with a corrected config
        "MODEL.RESNETS.STRIDE_IN_1X1": False
    },
    r"Cityscapes/mask_rcnn_R_50_FPN|model_final_af9cf5\.": section(
        "INPUT", MIN_SIZE_TEST=1024, MAX_SIZE_TEST=2048
    ),
    r"Detectron1-Comparisons/|_noaug_1x|model_final_(7ab50c|62ca52|cce136)\.": {
        "MODEL.RPN.SMOOTH_L1_BETA": 0.1111,
        **section("MODEL.ROI_BOX_HEAD", SMOOTH_L1_BETA=1.0, **_OLDER_POOLING),
        **section("MODEL.ROI_MASK_HEAD", **_OLDER_POOLING),
        **section("MODEL.ROI_KEYPOINT_HEAD", **_OLDER_POOLING),
    },
}
# Anchors of a level in older files.
_CELL_ANCHORS = re.compile(r"(?:^|\.)anchor_generator\.cell_anchors\.(\d+)$")


def config_by_name(path: Path) -> ConfigValues:
    """Return the settings that follow from the published path of a file."""
    return {
        key: value
        for pattern, config in _NAMED.items()
        if re.search(pattern, path.as_posix())
        for key, value in config.items()
    }


def config_by_shape(config: ConfigValues, stem_trained: bool) -> ConfigValues:
    """Return the settings that follow from the inferred config and from the norm of the stem."""
    extra: ConfigValues = {}
    # Models with a longer RPN head are newer and have other settings.
    older = config.get("MODEL.RPN.NUM_CONVS", 1) == 1
    from_scratch = stem_trained and older and "BN" in config.get("MODEL.FPN.NORM", "")
    backbone = config["MODEL.BACKBONE.CONV_BODY"]
    resnext_101 = backbone.startswith("R-101-") and config["MODEL.RESNETS.NUM_GROUPS"] > 1
    regnet = backbone.startswith("timm/regnet")
    if from_scratch and not regnet:
        extra["MODEL.RESNETS.STRIDE_IN_1X1"] = False
    if from_scratch or resnext_101 or regnet:
        extra["INPUT.PIXEL_STD"] = list(_PIXEL_STD)
    if config.get("MODEL.ROI_BOX_HEAD.NUM_CLASSES") in LVIS:
        extra |= section("MODEL.ROI_HEADS", SCORE_THRESH=1e-4, DETECTIONS_PER_IMG=300)
    return extra


def stored_pixel_config(raw: RawStateDict) -> ConfigValues:
    """Return the INPUT keys of files that store `pixel_mean` and `pixel_std` [3, 1, 1]."""
    if not {"pixel_mean", "pixel_std"} <= raw.keys():
        return {}
    mean, std = (
        # the shortest decimals of these float32 values
        [float(str(value)) for value in np.asarray(raw[name], np.float32).flatten()]
        for name in ("pixel_mean", "pixel_std")
    )
    return pixel_config(mean, std, rgb=mean[0] > mean[-1])  # images have more red than blue


def anchor_config(raw: RawStateDict, node: str) -> ConfigValues:
    """Return the anchor sizes and aspect ratios of older files, which store them; {} for defaults.

    Cell anchors [A, 4] are xyxy around the origin, sorted by size, then by aspect ratio.
    `node` is "MODEL.RPN" or "MODEL.RETINANET".
    """
    names = {match[1]: name for name in raw if (match := _CELL_ANCHORS.search(name))}
    if not names:
        return {}
    cells = np.stack([np.asarray(raw[names[level]], np.float64) for level in sorted(names)])
    width, height = np.moveaxis(cells[..., 2:] - cells[..., :2], -1, 0)  # [levels, A]
    sizes, ratios = np.sqrt(width * height).round(4), (height / width).round(4)
    count = int((sizes[0] == sizes[0, 0]).sum())
    sizes, ratios = sizes[:, ::count], ratios[0, :count]
    retinanet = node == "MODEL.RETINANET"
    default = np.outer([32, 64, 128, 256, 512], 2 ** (np.arange(3 if retinanet else 1) / 3))
    same = sizes.size == default.size and np.allclose(sizes.ravel(), default.ravel(), atol=1e-3)
    if same and ratios.tolist() == [0.5, 1.0, 2.0]:
        return {}
    config = section(node, ANCHOR_SIZES=sizes.tolist(), ASPECT_RATIOS=ratios.tolist())
    return config | section(node, SCALES_PER_OCTAVE=1) if retinanet else config
