"""Keys that restate others are filled in, and refused when they contradict."""

from __future__ import annotations

import pytest

from detlite.config import ConfigError, load_config

FPN = ("MODEL.BACKBONE.CONV_BODY", "R-50-FPN")


def test_c4_keys_follow_from_the_body():
    cfg = load_config(None, ["MODEL.BACKBONE.CONV_BODY", "R-50-C4"])
    assert cfg.MODEL.RPN.USE_FPN is False
    assert cfg.MODEL.ROI_HEADS.USE_FPN is False
    assert cfg.MODEL.RPN.ANCHOR_STRIDE == (16,)
    assert cfg.MODEL.ROI_BOX_HEAD.POOLER_SCALES == (1 / 16,)
    assert cfg.MODEL.ROI_MASK_HEAD.POOLER_SCALES == (1 / 16,)
    assert cfg.MODEL.RESNETS.RES2_OUT_CHANNELS == 256
    assert cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS == 1024


def test_fpn_keys_follow_from_the_body():
    cfg = load_config(None, [*FPN])
    assert cfg.MODEL.RPN.USE_FPN is True
    assert cfg.MODEL.ROI_HEADS.USE_FPN is True
    assert cfg.MODEL.RPN.ANCHOR_STRIDE == (4, 8, 16, 32, 64)
    assert cfg.MODEL.ROI_BOX_HEAD.POOLER_SCALES == (1 / 4, 1 / 8, 1 / 16, 1 / 32)
    assert cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS == 256


@pytest.mark.parametrize(
    ("body", "res2", "out"), [("R-18-C4", 64, 256), ("R-34-FPN", 64, 256), ("R-101-C4", 256, 1024)]
)
def test_widths_follow_from_the_depth(body, res2, out):
    cfg = load_config(None, ["MODEL.BACKBONE.CONV_BODY", body])
    assert res2 == cfg.MODEL.RESNETS.RES2_OUT_CHANNELS
    assert out == cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS


def test_c4_width_follows_from_res2():
    cfg = load_config(None, ["MODEL.RESNETS.RES2_OUT_CHANNELS", 32])
    assert cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS == 128


def test_fpn_width_is_free():
    cfg = load_config(None, [*FPN, "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 64])
    assert cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS == 64


def test_scales_of_norms_decay_as_weights_unless_told_otherwise():
    """As in maskrcnn-benchmark, which has no key for them."""
    decay = ["SOLVER.WEIGHT_DECAY", 1e-4]
    assert load_config(None, decay).SOLVER.WEIGHT_DECAY_NORM == 1e-4
    both = [*decay, "SOLVER.WEIGHT_DECAY_NORM", 0]
    assert load_config(None, both).SOLVER.WEIGHT_DECAY_NORM == 0.0


def test_detections_per_image_is_one_number():
    cfg = load_config(None, ["MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 7])
    assert cfg.TEST.DETECTIONS_PER_IMG == 7


RETINANET = ["MODEL.BACKBONE.CONV_BODY", "R-50-FPN-RETINANET", "MODEL.RETINANET_ON", True]


@pytest.mark.parametrize(
    ("opts", "number"),
    [
        ((*RETINANET, "TEST.DETECTIONS_PER_IMG", 7), 7),
        ((*RETINANET, "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 9), 9),
        ((*RETINANET, "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 9, "TEST.DETECTIONS_PER_IMG", 7), 7),
        (("MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 9, "TEST.DETECTIONS_PER_IMG", 7), 9),
    ],
)
def test_detections_per_image_by_the_key_that_counts_in_maskrcnn_benchmark(opts, number):
    cfg = load_config(None, opts)
    assert cfg.TEST.DETECTIONS_PER_IMG == cfg.MODEL.ROI_HEADS.DETECTIONS_PER_IMG == number


@pytest.mark.parametrize("opts", [[*RETINANET], [*FPN, "MODEL.RPN_ONLY", True]])
def test_detectors_without_heads_say_nothing_about_their_levels(opts):
    cfg = load_config(None, [*opts, "MODEL.ROI_HEADS.USE_FPN", False])
    assert cfg.MODEL.RPN.USE_FPN


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("MODEL.RPN.USE_FPN", True),
        ("MODEL.ROI_HEADS.USE_FPN", True),
        ("MODEL.RPN.ANCHOR_STRIDE", (4, 8, 16, 32, 64)),
        ("MODEL.ROI_BOX_HEAD.POOLER_SCALES", (0.25, 0.125, 0.0625, 0.03125)),
        ("MODEL.ROI_MASK_HEAD.POOLER_SCALES", (0.25, 0.125, 0.0625, 0.03125)),
        ("MODEL.RESNETS.RES2_OUT_CHANNELS", 256),
        ("TEST.DETECTIONS_PER_IMG", 100),
        ("MODEL.RESNETS.STEM_FUNC", "StemWithFixedBatchNorm"),
    ],
)
def test_restating_what_follows_changes_nothing(key, value):
    assert load_config(None, [*FPN, key, value]) == load_config(None, FPN)


@pytest.mark.parametrize(
    ("opts", "key", "origin"),
    [
        ((*FPN, "MODEL.RPN.USE_FPN", False), "MODEL.RPN.USE_FPN", "MODEL.BACKBONE.CONV_BODY"),
        (("MODEL.RPN.USE_FPN", True), "MODEL.RPN.USE_FPN", "MODEL.BACKBONE.CONV_BODY"),
        (
            ("MODEL.ROI_HEADS.USE_FPN", True),
            "MODEL.ROI_HEADS.USE_FPN",
            "MODEL.BACKBONE.CONV_BODY",
        ),
        (
            (*FPN, "MODEL.RPN.ANCHOR_STRIDE", (16,)),
            "MODEL.RPN.ANCHOR_STRIDE",
            "MODEL.BACKBONE.CONV_BODY",
        ),
        (
            (*FPN, "MODEL.ROI_BOX_HEAD.POOLER_SCALES", (0.0625,)),
            "MODEL.ROI_BOX_HEAD.POOLER_SCALES",
            "MODEL.BACKBONE.CONV_BODY",
        ),
        (
            (
                *FPN, "MODEL.MASK_ON", True,
                "MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", False,
                "MODEL.ROI_MASK_HEAD.POOLER_SCALES", (0.0625,),
            ),
            "MODEL.ROI_MASK_HEAD.POOLER_SCALES",
            "MODEL.BACKBONE.CONV_BODY",
        ),
        (
            ("MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 256),
            "MODEL.RESNETS.BACKBONE_OUT_CHANNELS",
            "MODEL.RESNETS.RES2_OUT_CHANNELS",
        ),
        (
            ("TEST.DETECTIONS_PER_IMG", 50),
            "TEST.DETECTIONS_PER_IMG",
            "MODEL.ROI_HEADS.DETECTIONS_PER_IMG",
        ),
        (
            ("MODEL.RESNETS.NORM", "BN", "MODEL.RESNETS.TRANS_FUNC", "BottleneckWithGN"),
            "MODEL.RESNETS.TRANS_FUNC",
            "MODEL.RESNETS.NORM",
        ),
        (
            (
                "MODEL.RESNETS.TRANS_FUNC", "BottleneckWithGN",
                "MODEL.RESNETS.STEM_FUNC", "StemWithBatchNorm",
            ),
            "MODEL.RESNETS.STEM_FUNC",
            "MODEL.RESNETS.NORM",
        ),
    ],
)  # fmt: skip
def test_contradiction_names_both_keys(opts, key, origin):
    with pytest.raises(ConfigError) as error:
        load_config(None, opts)
    assert str(error.value).startswith(f"{key} is ")
    assert origin in str(error.value)


@pytest.mark.parametrize("sizes", [(32, 64), ((32,), (64,)), (8, 16, 32, 64, 128, 256)])
def test_anchor_sizes_must_match_the_levels(sizes):
    with pytest.raises(ConfigError, match=f"ANCHOR_SIZES has {len(sizes)} levels.*gives 5"):
        load_config(None, [*FPN, "MODEL.RPN.ANCHOR_SIZES", sizes])


@pytest.mark.parametrize(
    ("opts", "norm"),
    [
        ((), "FrozenBN"),
        (("MODEL.RESNETS.TRANS_FUNC", "BottleneckWithGN"), "GN"),
        (("MODEL.RESNETS.STEM_FUNC", "StemWithBatchNorm"), "BN"),
        (
            (
                "MODEL.RESNETS.TRANS_FUNC",
                "BottleneckWithGN",
                "MODEL.RESNETS.STEM_FUNC",
                "StemWithGN",
            ),
            "GN",
        ),
        (("MODEL.RESNETS.NORM", "BN"), "BN"),
    ],
)
def test_norm_follows_from_the_old_functions(opts, norm):
    resnets = load_config(None, opts).MODEL.RESNETS
    trans = {"FrozenBN": "FixedBatchNorm", "BN": "BatchNorm", "GN": "GN"}[norm]
    assert (
        norm,
        f"BottleneckWith{trans}",
        f"StemWith{trans}",
    ) == (resnets.NORM, resnets.TRANS_FUNC, resnets.STEM_FUNC)


def test_unknown_trans_func():
    with pytest.raises(ConfigError, match="TRANS_FUNC is 'BottleneckWithLN', but must be one of"):
        load_config(None, ["MODEL.RESNETS.TRANS_FUNC", "BottleneckWithLN"])


_C4 = ("MODEL.BACKBONE.CONV_BODY", "R-50-C4")
_NARROW = ("MODEL.RESNETS.RES2_OUT_CHANNELS", 32)
_GN = ("MODEL.RESNETS.TRANS_FUNC", "BottleneckWithGN")


@pytest.mark.parametrize(
    ("first", "overrides"),
    [
        ((), ("MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 50)),
        ((), ("MODEL.RESNETS.NORM", "BN")),
        (FPN, ("MODEL.BACKBONE.CONV_BODY", "R-18-FPN")),
        (FPN, _C4),
        (_C4, FPN),
        (_C4, ("MODEL.BACKBONE.CONV_BODY", "R-18-C4")),
        (_C4, ("MODEL.BACKBONE.CONV_BODY", "R-50-C5")),
        ((*_C4, *_NARROW), ("MODEL.RESNETS.RES2_OUT_CHANNELS", 64)),
        ((*FPN, *_GN), ("MODEL.BACKBONE.CONV_BODY", "R-34-FPN")),
    ],
)
def test_overrides_of_a_resolved_config_act_as_on_what_it_came_from(tmp_path, first, overrides):
    """Nobody wrote the restating keys of a resolved config, so nobody contradicts an override."""
    file = tmp_path / "config.yaml"
    file.write_text(load_config(None, first).dump())
    after = load_config(file, overrides)
    if first[-2:] == _NARROW:
        assert after.MODEL.RESNETS.BACKBONE_OUT_CHANNELS == 256
    assert after == load_config(None, [*first, *overrides])


def test_override_keeps_widths_that_do_not_follow_from_the_body(tmp_path):
    file = tmp_path / "config.yaml"
    widths = ("MODEL.RESNETS.RES2_OUT_CHANNELS", 32, "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 24)
    file.write_text(load_config(None, [*FPN, *widths]).dump())
    resnets = load_config(file, ["MODEL.BACKBONE.CONV_BODY", "R-18-FPN"]).MODEL.RESNETS
    assert (resnets.RES2_OUT_CHANNELS, resnets.BACKBONE_OUT_CHANNELS) == (32, 24)


def test_override_may_resolve_what_a_file_contradicts(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("MODEL: {RPN: {USE_FPN: True}}")
    with pytest.raises(ConfigError, match=r"^MODEL\.RPN\.USE_FPN is True"):
        load_config(file)
    assert load_config(file, FPN).MODEL.RPN.USE_FPN


def test_override_still_contradicts_what_a_file_states_otherwise(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "MODEL: {RESNETS: {BACKBONE_OUT_CHANNELS: 96}, BACKBONE: {CONV_BODY: R-50-FPN}}"
    )
    with pytest.raises(ConfigError, match=r"^MODEL\.RESNETS\.BACKBONE_OUT_CHANNELS is 96"):
        load_config(file, _C4)
