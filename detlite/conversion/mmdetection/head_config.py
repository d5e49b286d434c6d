"""Convert configs that several heads of mmdetection share: anchors, box coder, loss, RoI pooler."""

from detlite.conversion.checkpoint_source import ConfigValues

from .config_section import ConfigSection

STRIDES = [4, 8, 16, 32, 64]  # of the levels of an R-CNN


def anchor_config(head: ConfigSection, key: str, strides: list[int]) -> ConfigValues:
    """Return the anchors of a head, for the config section `key`."""
    if "anchor_generator" not in head:
        raise ValueError(
            f"its config has no {head.where}.anchor_generator, as before version 2.0: use the "
            "config of the same name from a later version"
        )
    generator = head.section("anchor_generator")
    generator.check(
        ("AnchorGenerator",),
        "scales octave_base_scale scales_per_octave ratios strides base_sizes center_offset "
        "use_box_type",
        off="centers",
        scale_major=(True,),
    )
    if generator.numbers("strides") != strides:
        generator.reject("strides", str(strides))
    bases = generator.numbers("base_sizes", strides)
    octaves = int(generator.number("scales_per_octave", 1))
    in_octaves = "octave_base_scale" in generator
    scales = generator.numbers("octave_base_scale" if in_octaves else "scales")
    config: ConfigValues = {f"{key}.ASPECT_RATIOS": generator.numbers("ratios")}
    if key == "MODEL.RETINANET":
        config |= {f"{key}.OCTAVE": 2.0, f"{key}.SCALES_PER_OCTAVE": octaves}
    elif in_octaves:
        scales = [scale * 2 ** (step / octaves) for scale in scales for step in range(octaves)]
    sizes = [[base * scale for scale in scales] for base in bases]
    config[f"{key}.ANCHOR_SIZES"] = sizes if len(scales) > 1 else [row[0] for row in sizes]
    offset = generator.number("center_offset", 0.0)
    if offset and bases == strides:
        config["MODEL.CONVENTION_OVERRIDE"] = [f"anchor_offset={float(offset)}"]
    elif offset:
        generator.reject("center_offset", "0, or base_sizes that are the strides,")
    return config


def box_coder_weights(head: ConfigSection) -> list[float]:
    """Return the weights of the box coder, 1 / target_stds."""
    coder = head.section("bbox_coder")
    coder.check(
        ("DeltaXYWHBBoxCoder",),
        "target_stds ctr_clamp use_box_type",
        off="add_ctr_clamp",
        target_means=([0.0] * 4, (0.0,) * 4),
        clip_border=(True,),
    )
    stds = coder.numbers("target_stds", [1.0] * 4)
    if len(stds) != 4 or min(stds) <= 0:
        coder.reject("target_stds", "4 numbers above 0")
    return [1.0 / std for std in stds]


def box_loss_config(head: ConfigSection, key: str) -> ConfigValues:
    """Return the box loss of a head, if detlite has it, for the config section `key`."""
    if "loss_bbox" not in head:
        return {}
    loss, retinanet = head.section("loss_bbox"), key == "MODEL.RETINANET"
    beta = "BBOX_REG_BETA" if retinanet else "SMOOTH_L1_BETA"
    known: dict[str, ConfigValues] = {
        "L1Loss": {f"{key}.BOX_LOSS": "l1"},
        "SmoothL1Loss": {
            f"{key}.BOX_LOSS": "smooth_l1",
            f"{key}.{beta}": float(loss.number("beta", 1.0)),
        },
        "GIoULoss": {f"{key}.BOX_LOSS": "giou"},
    }
    if loss.kind not in known:
        return {}
    factor = float(loss.number("loss_weight", 1.0))
    if not retinanet:
        return known[loss.kind] | {f"{key}.BOX_LOSS_WEIGHT": factor}
    if factor <= 0:
        loss.reject("loss_weight", "a number above 0")
    return known[loss.kind] | {f"{key}.BBOX_REG_WEIGHT": 1 / factor}


def pooler_config(extractor: ConfigSection, key: str) -> ConfigValues:
    """Return the RoI pooler of a head, for the config section `key`."""
    extractor.check(
        ("SingleRoIExtractor",),
        "roi_layer out_channels",
        featmap_strides=(STRIDES[:4], tuple(STRIDES[:4])),
        finest_scale=(56,),
    )
    layer = extractor.section("roi_layer")
    layer.check(
        ("RoIAlign",),
        "output_size out_size sampling_ratio sample_num aligned use_torchvision",
        pool_mode=("avg",),
    )
    size, samples = "output_size", "sampling_ratio"
    if "out_size" in layer:  # before version 2.3
        size, samples = "out_size", "sample_num"
    return {
        f"{key}.POOLER_TYPE": "ROIAlignV2" if layer.get("aligned", True) else "ROIAlign",
        f"{key}.POOLER_RESOLUTION": int(layer.number(size)),
        f"{key}.POOLER_SAMPLING_RATIO": int(layer.number(samples, 0)),
    }


def nms_threshold(test: ConfigSection) -> float:
    """Return the IoU threshold of NMS."""
    if "nms_thr" in test:
        return float(test.number("nms_thr"))
    nms = test.section("nms")
    nms.check((), "iou_threshold iou_thr split_thr", class_agnostic=(False,), max_num=(-1, 0))
    if nms.kind not in ("nms", ""):
        nms.reject("type", "'nms'")
    return float(nms.number("iou_threshold" if "iou_threshold" in nms else "iou_thr"))
