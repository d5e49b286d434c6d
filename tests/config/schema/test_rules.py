"""Contradictions between the values of several keys."""

import pytest

from detlite.config import ConfigError, load_config

CASCADE = {"MODEL.ROI_HEADS.CASCADE_IOUS": (0.5, 0.6, 0.7), "MODEL.CLS_AGNOSTIC_BBOX_REG": True}
PASSES = {"MODEL.ROI_BOX_HEAD.PASSES": 2}
RETINANET = {"MODEL.META_ARCHITECTURE": "RetinaNet"}
NETWORK = {"MODEL.META_ARCHITECTURE": "ProposalNetwork"}
FREE = {"SOLVER.OPTIMIZER": "ScheduleFreeAdamW", "SOLVER.LR_SCHEDULE": "constant"}
TWO_CHANNELS = {"INPUT.PIXEL_MEAN": (0.1, 0.2), "INPUT.PIXEL_STD": (1.0, 2.0)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"INPUT.PIXEL_MEAN": (0.1, 0.2)}, r"PIXEL_MEAN is \[0.1, 0.2\], .*PIXEL_STD \(.* needs"),
        ({**TWO_CHANNELS, "INPUT.VALUE_RANGE": (0, 1, 0, 1, 0, 1)}, "one pair or as many pairs"),
        *(
            ({**model, key: value}, f"{named} need RoI heads, which a {kind} does not have")
            for model, kind in ((RETINANET, "RetinaNet"), (NETWORK, "ProposalNetwork"))
            for key, value, named in (
                ("MODEL.MASK_ON", True, "MODEL.MASK_ON"),
                ("MODEL.KEYPOINT_ON", True, "MODEL.KEYPOINT_ON"),
                ("MODEL.LOAD_PROPOSALS", True, "MODEL.LOAD_PROPOSALS"),
                ("MODEL.ROI_BOX_HEAD.PASSES", 2, "MODEL.ROI_BOX_HEAD.PASSES above 1"),
                ("TEST.EXTRA_OUTPUTS", ("features",), "features in TEST.EXTRA_OUTPUTS"),
            )
        ),
        (
            {**RETINANET, "MODEL.MASK_ON": True, "MODEL.KEYPOINT_ON": True},
            "MODEL.MASK_ON and MODEL.KEYPOINT_ON need RoI heads",
        ),
        ({**NETWORK, "TEST.EXTRA_OUTPUTS": ("class_scores",)}, "a ProposalNetwork has no classes"),
        (
            {**PASSES, "MODEL.MASK_ON": True},
            "PASSES above 1 needs MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR False",
        ),
        (
            {**CASCADE, "MODEL.KEYPOINT_ON": True},
            "CASCADE_IOUS needs MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR False",
        ),
        ({**CASCADE, **PASSES}, r"single box head: set it to 1, or MODEL.ROI_HEADS.CASCADE_IOUS"),
        (
            {**CASCADE, "MODEL.ROI_HEADS.CASCADE_IOUS": (0.5, 0.6)},
            r"CASCADE_IOUS is \(0.5, 0.6\), but CASCADE_BBOX_REG_WEIGHTS is \(\(10.0, ",
        ),
        (
            {**CASCADE, "MODEL.ROI_HEADS.FG_IOU_THRESHOLD": 0.6},
            "starts with 0.5, but MODEL.ROI_HEADS.FG_IOU_THRESHOLD is 0.6",
        ),
        (
            {**CASCADE, "MODEL.CLS_AGNOSTIC_BBOX_REG": False},
            "CASCADE_IOUS needs MODEL.CLS_AGNOSTIC_BBOX_REG True",
        ),
        *(
            ({**FREE, f"SOLVER.{key}": value}, f"SOLVER.{key} {message}")
            for key, value, message in (
                ("LR_SCHEDULE", "cosine", "is cosine, .* needs SOLVER.LR_SCHEDULE constant"),
                ("MOMENTUM", 0.0, r"is 0\.0, .* needs SOLVER.MOMENTUM above 0, such as 0\.9"),
                ("EMA_DECAY", 0.99, r"is 0\.99, .* needs SOLVER.EMA_DECAY 0, because it averages"),
            )
        ),
        (
            {"MODEL.BACKBONE.CONV_BODY": "timm/resnet18-FPN", "MODEL.RESNETS.NORM": "SyncBN"},
            "NORM is SyncBN, which timm models do not have",
        ),
        ({"SOLVER.PATIENCE": 1}, "PATIENCE is 1, but SOLVER.BEST_METRIC is empty: name a metric"),
    ],
)
def test_contradictions(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, settings)


@pytest.mark.parametrize(
    "settings",
    [
        CASCADE,
        PASSES,
        FREE,
        {"SOLVER.PATIENCE": 1, "SOLVER.BEST_METRIC": "bbox/AP"},
        RETINANET,
        NETWORK,
        *({**TWO_CHANNELS, "INPUT.VALUE_RANGE": pairs} for pairs in ((), (0, 1), (0, 1, 5, 9))),
        {**RETINANET, "TEST.EXTRA_OUTPUTS": ("class_scores",)},
        {**PASSES, "MODEL.MASK_ON": True, "MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR": False},
    ],
)
def test_values_that_fit(settings):
    load_config(None, settings)
