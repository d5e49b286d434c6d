"""Keys of maskrcnn-benchmark that restate others: checked, given their meaning, and dropped."""

import pytest
import torch

from detlite.config import ConfigError, load_config
from detlite.config.loading import flatten
from detlite.modeling.backbone import build_backbone

BODY, NORM = "MODEL.BACKBONE.CONV_BODY", "MODEL.RESNETS.NORM"
TRANS, STEM = "MODEL.RESNETS.TRANS_FUNC", "MODEL.RESNETS.STEM_FUNC"
FPN = (BODY, "R-50-FPN")
META = "MODEL.META_ARCHITECTURE"
RETINANET = (BODY, "R-50-FPN-RETINANET", META, "RetinaNet")
ON = ("MODEL.RETINANET_ON", True)
ALONE = ("MODEL.RPN_ONLY", True)
CHANNELS, OLD_CHANNELS = "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", "MODEL.BACKBONE.OUT_CHANNELS"
DETECTIONS, TESTED = "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", "TEST.DETECTIONS_PER_IMG"


@pytest.mark.parametrize(
    ("opts", "key", "expected"),
    [
        ((), META, "GeneralizedRCNN"),
        (ON, META, "RetinaNet"),
        (ALONE, META, "ProposalNetwork"),
        ((*ALONE, *ON), META, "RetinaNet"),
        ((META, "GeneralizedRCNN", *ON), META, "RetinaNet"),
        ((META, "RetinaNet", *ON), META, "RetinaNet"),
        ((META, "RetinaNet", *ALONE), META, "RetinaNet"),
        ((*ON, "MODEL.RETINANET_ON", False), META, "GeneralizedRCNN"),
        ((*RETINANET, TESTED, 7), DETECTIONS, 7),
        ((*RETINANET, DETECTIONS, 9), DETECTIONS, 9),
        ((*RETINANET, DETECTIONS, 9, TESTED, 7), DETECTIONS, 7),
        ((DETECTIONS, 9, TESTED, 7), DETECTIONS, 9),
        ((), NORM, "FrozenBN"),
        ((TRANS, "BottleneckWithGN"), NORM, "GN"),
        ((STEM, "StemWithBatchNorm"), NORM, "BN"),
        ((TRANS, "BottleneckWithGN", STEM, "StemWithGN"), NORM, "GN"),
        ((NORM, "BN"), NORM, "BN"),
        ((*FPN, OLD_CHANNELS, 64), CHANNELS, 64),
        ((*FPN, OLD_CHANNELS, 64, CHANNELS, 64), CHANNELS, 64),
    ],
)
def test_value_that_follows_from_restating_keys(opts, key, expected, caplog):
    assert dict(flatten(load_config(None, opts)))[key] == expected
    assert (f"{TESTED} has no effect" in caplog.text) == (opts == (DETECTIONS, 9, TESTED, 7))


@pytest.mark.parametrize("part", ["FPN", "ROI_BOX_HEAD", "ROI_MASK_HEAD"])
def test_group_norm_of_a_section(part):
    key, norm = f"MODEL.{part}.USE_GN", f"MODEL.{part}.NORM"
    for opts, value in (
        ((key, True), "GN"),
        ((key, True, norm, "GN"), "GN"),
        ((key, False, norm, "BN"), "BN"),
        ((key, True, key, False), ""),
    ):
        assert value == load_config(None, opts).MODEL[part].NORM
    for use, name in ((True, "BN"), (False, "GN")):
        with pytest.raises(ConfigError, match=rf"^{key} is {use}, but {norm} implies {not use}"):
            load_config(None, [key, use, norm, name])


HEADS = ("MODEL.ROI_HEADS.USE_FPN", False, "MODEL.ROI_BOX_HEAD.POOLER_SCALES", (0.0625,))
STRIDES = ("MODEL.RPN.ANCHOR_STRIDE", (4, 8, 16, 32, 64))
SCALES = (0.25, 0.125, 0.0625, 0.03125)


@pytest.mark.parametrize(
    ("opts", "restated"),
    [
        (FPN, ("MODEL.RPN.USE_FPN", True)),
        (FPN, ("MODEL.ROI_HEADS.USE_FPN", True)),
        (FPN, STRIDES),
        ((), (OLD_CHANNELS, 1024)),
        (FPN, ("MODEL.ROI_BOX_HEAD.POOLER_SCALES", SCALES)),
        (FPN, ("MODEL.ROI_MASK_HEAD.POOLER_SCALES", SCALES)),
        (FPN, ("MODEL.RETINANET_ON", False)),
        (FPN, ("TEST.DETECTIONS_PER_IMG", 100)),
        (FPN, (STEM, "StemWithFixedBatchNorm")),
        # Any values of keys without a meaning for the detector or its backbone.
        (FPN, ("MODEL.RETINANET.ANCHOR_STRIDES", (8, 16, 32, 64, 128))),
        (RETINANET, STRIDES),
        (RETINANET, HEADS),
        ((*FPN, *ALONE), HEADS),
        ((BODY, "FBNet"), ("MODEL.RPN.USE_FPN", True)),
    ],
)
def test_consistent_restating_keys_change_nothing(opts, restated):
    assert load_config(None, [*opts, *restated]) == load_config(None, opts)


@pytest.mark.parametrize(
    ("opts", "origin"),
    [
        ((*FPN, "MODEL.RPN.USE_FPN", False), BODY),
        (("MODEL.RPN.USE_FPN", True), BODY),
        (("MODEL.ROI_HEADS.USE_FPN", True), BODY),
        ((*FPN, "MODEL.RPN.ANCHOR_STRIDE", (16,)), BODY),
        ((*FPN, "MODEL.ROI_BOX_HEAD.POOLER_SCALES", (0.0625,)), BODY),
        (
            (*FPN, "MODEL.MASK_ON", True, "MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", False,
             "MODEL.ROI_MASK_HEAD.POOLER_SCALES", (0.0625,)),
            BODY,
        ),
        ((*RETINANET, "MODEL.RETINANET_ON", False), META),
        ((META, "ProposalNetwork", *ON), META),
        ((*RETINANET, "MODEL.RETINANET.ANCHOR_STRIDES", (4, 8)), BODY),
        (("TEST.DETECTIONS_PER_IMG", 50), "MODEL.ROI_HEADS.DETECTIONS_PER_IMG"),
        ((NORM, "BN", TRANS, "BottleneckWithGN"), NORM),
        ((*FPN, CHANNELS, 64, OLD_CHANNELS, 128), CHANNELS),
        ((OLD_CHANNELS, 256), BODY),
        ((TRANS, "BottleneckWithGN", STEM, "StemWithBatchNorm"), NORM),
    ],
)  # fmt: skip
def test_contradiction_names_both_keys(opts, origin):
    with pytest.raises(ConfigError) as error:
        load_config(None, opts)
    assert str(error.value).startswith(f"{opts[-2]} is ")
    assert origin in str(error.value)


@pytest.mark.parametrize(
    ("stated", "overrides", "expected"),
    [
        ("RPN: {USE_FPN: True, ANCHOR_STRIDE: [4, 8, 16, 32, 64]}", FPN, FPN),
        ("RPN: {USE_FPN: False, ANCHOR_STRIDE: [16]}", FPN, FPN),
        ("ROI_BOX_HEAD: {POOLER_SCALES: [0.0625]}", FPN, FPN),
        ("RESNETS: {TRANS_FUNC: BottleneckWithGN}", ("MODEL.RESNETS.NORM", "BN"), None),
        ("RETINANET_ON: True", (META, "ProposalNetwork"), None),
        ("FPN: {USE_GN: True}", ("MODEL.FPN.NORM", "BN"), None),
        ("FPN: {USE_GN: True}", ("MODEL.FPN.USE_GN", False), ()),
        ("RPN_ONLY: True", (*ON, "MODEL.RETINANET_ON", False), ALONE),
    ],
)
def test_override_replaces_restating_keys_of_a_file(tmp_path, stated, overrides, expected):
    file = tmp_path / "config.yaml"
    file.write_text("MODEL:\n  " + stated)
    assert load_config(file, overrides) == load_config(
        None, overrides if expected is None else expected
    )


def test_files_and_overrides_replace_restating_keys_of_a_base(tmp_path):
    base, leaf = tmp_path / "base.yaml", tmp_path / "leaf.yaml"
    base.write_text("MODEL: {RPN: {USE_FPN: False}}")
    leaf.write_text("_BASE_: base.yaml\nMODEL: {BACKBONE: {CONV_BODY: R-50-FPN}}")
    assert load_config(leaf) == load_config(None, FPN)
    base.write_text("MODEL: {RPN: {USE_FPN: True}}")
    with pytest.raises(ConfigError, match=r"^MODEL\.RPN\.USE_FPN is True"):
        load_config(base)
    assert load_config(base, ["MODEL.RPN.USE_FPN", False]) == load_config()


@pytest.mark.parametrize(
    "first",
    [(), FPN, RETINANET, ("MODEL.RESNETS.RES2_OUT_CHANNELS", 32)],
    ids=["C4", "FPN", "RetinaNet", "narrow"],
)
@pytest.mark.parametrize(
    "overrides",
    [
        ("MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 50),
        ("MODEL.RESNETS.NORM", "BN"),
        ("MODEL.BACKBONE.CONV_BODY", "R-18-FPN"),
        ("MODEL.BACKBONE.CONV_BODY", "R-18-C4"),
    ],
)
def test_overrides_of_a_resolved_config(tmp_path, first, overrides):
    file = tmp_path / "config.yaml"
    file.write_text(load_config(None, first).dump())
    assert load_config(file, overrides) == load_config(None, [*first, *overrides])


@pytest.mark.parametrize(
    ("body", "opts", "channels"),
    [
        ("R-18-C4", (), 256),
        ("R-34-FPN", (), 256),
        ("R-101-C4", (), 1024),
        ("R-50-C5", (), 2048),
        ("R-50-C4", ("MODEL.RESNETS.RES2_OUT_CHANNELS", 32), 128),
        ("R-50-FPN", ("MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 64), 64),
        ("R-50-C4", ("MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 1024), 1024),
    ],
)
def test_widths_follow_from_the_backbone(body, opts, channels):
    with torch.device("meta"):
        backbone = build_backbone(load_config(None, ["MODEL.BACKBONE.CONV_BODY", body, *opts]))
    assert backbone.out_channels == channels


def test_single_map_has_a_fixed_width():
    cfg = load_config(None, ["MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 256])
    message = "BACKBONE_OUT_CHANNELS is 256, but R-50-C4 has 1024: remove the key"
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        build_backbone(cfg)
