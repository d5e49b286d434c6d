"""ViTDet of detectron2 (projects/ViTDet): detectors on plain vision transformers."""

from detlite.conversion.checkpoint_source import ConfigValues, StateDict, pixel_config, section
from detlite.conversion.infer_config import infer_config
from detlite.modeling.backbone.vit import PATCH, SIZES
from detlite.modeling.backbone.windows import global_blocks

from .model_zoo import LVIS

# Index of the first convolution in the sequence of layers of each level.
_FIRST_CONV = {2: 4, 3: 1, 4: 0, 5: 1}
VITDET_RULES = [
    (r"^backbone\.net\.", "backbone.body."),
    (r"^backbone\.simfp_2\.([013])\.", r"backbone.neck.scale.0.\1."),
    (r"^backbone\.simfp_3\.0\.", "backbone.neck.scale.1."),
    *(
        (rf"^backbone\.simfp_{level}\.{first + n}\.", f"backbone.neck.{layer}.{level - 2}.")
        for level, first in _FIRST_CONV.items()
        for n, layer in enumerate(("lateral", "output"))
    ),
    (r"^(backbone\.neck\.(?:lateral|output)\.\d)\.norm\.", r"\1.1."),
    (r"^(backbone\.neck\.(?:lateral|output)\.\d)\.(?=weight$|bias$)", r"\1.0."),
]

_DROP_PATH = {"B": 0.1, "L": 0.4, "H": 0.5}
_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # RGB


def is_vitdet(state: StateDict) -> bool:
    return "backbone.body.patch_embed.proj.weight" in state


def vitdet_config(state: StateDict) -> ConfigValues:
    """Infer the config of a ViTDet.

    Raises:
        ValueError: an unknown transformer, or a model of LVIS.
    """
    config = infer_config(state, "ROIAlignV2", 0, _backbone)
    # Only LVIS models score with sigmoids; the weights do not show it.
    if config["MODEL.ROI_BOX_HEAD.NUM_CLASSES"] in LVIS:
        raise ValueError("it scores LVIS classes with sigmoids, which detlite does not have")
    # `infer_config` cannot tell LN from GN.
    return {key: "LN" if key.endswith("NORM") and value else value for key, value in config.items()}


def _backbone(state: StateDict) -> ConfigValues:
    blocks = "backbone.body.blocks."
    depth = sum(name.startswith(blocks) and name.endswith(".norm1.weight") for name in state)
    names = [f"{blocks}{number}.attn.rel_pos_h" for number in range(depth)]
    if not depth or not all(name in state for name in names):
        raise ValueError("the blocks of the transformer have no relative positions")
    positions = [state[name] for name in names]
    channels = len(state["backbone.body.patch_embed.proj.weight"])
    shape = (channels, depth, channels // positions[0].shape[1])
    name = next((name for name, size in SIZES.items() if size == shape), None)
    if name is None:
        raise ValueError(
            f"its transformer has {shape[0]} channels, {depth} blocks and {shape[2]} heads, which "
            f"is none of {', '.join(f'{n} {size}' for n, size in SIZES.items())}"
        )
    sides = [(len(table) + 1) // 2 for table in positions]
    globals_ = {number for number, side in enumerate(sides) if side == max(sides)}
    if len(set(sides)) > 2 or globals_ != global_blocks(depth, len(globals_)):
        raise ValueError(f"its global blocks {sorted(globals_)} are not evenly spaced")
    image_size = max(sides) * PATCH
    return {
        **section("MODEL.BACKBONE", CONV_BODY=f"ViT-{name}-SFP", FREEZE_CONV_BODY_AT=0),
        **section(
            "MODEL.VIT",
            WINDOW=min(sides) if len(set(sides)) > 1 else 0,
            GLOBAL_BLOCKS=len(globals_),
            IMAGE_SIZE=image_size,
            DROP_PATH=_DROP_PATH.get(name, 0.1),
        ),
        "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": len(state["backbone.neck.output.0.0.weight"]),
        "MODEL.FPN.NORM": "LN",
        # Images are padded to squares of the training size.
        "DATALOADER.SIZE_DIVISIBILITY": image_size,
        **section("INPUT", MIN_SIZE_TRAIN=[image_size], MAX_SIZE_TRAIN=image_size),
        **section("INPUT", MIN_SIZE_TEST=image_size, MAX_SIZE_TEST=image_size),
        **pixel_config(_MEAN, _STD, rgb=True),
    }
