"""detectron2's ViTDet: the detectors of its projects/ViTDet on plain vision transformers."""

from __future__ import annotations

from detlite.conversion.checkpoint_source import Config, Rules, State
from detlite.conversion.infer_config import read_config
from detlite.modeling.backbone.timm_vit import PATCH
from detlite.modeling.backbone.vit import SIZES
from detlite.modeling.backbone.windows import global_blocks

from .model_zoo import LVIS

# The place of the first convolution in the row of layers that makes a level.
_FIRST = {2: 4, 3: 1, 4: 0, 5: 1}
VITDET_RULES: Rules = [
    (r"^backbone\.net\.", "backbone.body."),
    (r"^backbone\.simfp_2\.([013])\.", r"backbone.neck.scale.0.\1."),
    (r"^backbone\.simfp_3\.0\.", "backbone.neck.scale.1."),
    *(
        (rf"^backbone\.simfp_{level}\.{first + place}\.", f"backbone.neck.{part}.{level - 2}.")
        for level, first in _FIRST.items()
        for place, part in enumerate(("lateral", "output"))
    ),
    (r"^(backbone\.neck\.(?:lateral|output)\.\d)\.norm\.", r"\1.1."),
    (r"^(backbone\.neck\.(?:lateral|output)\.\d)\.(?=weight$|bias$)", r"\1.0."),
]

_DROP_PATH = {"B": 0.1, "L": 0.4, "H": 0.5}
_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # RGB


def is_vitdet(state: State) -> bool:
    """Whether a detector's entries, by our names, are those of a ViTDet."""
    return "backbone.body.patch_embed.proj.weight" in state


def vitdet_config(state: State) -> Config:
    """What the weights of a ViTDet need beyond what all of detectron2's do.

    Raises:
        ValueError: a transformer that is none of ours, or a model of LVIS.
    """
    config = read_config(state, "ROIAlignV2", 0, _body)
    # They score by sigmoids, which no entry tells.
    if config["MODEL.ROI_BOX_HEAD.NUM_CLASSES"] in LVIS:
        raise ValueError("it scores the classes of LVIS by sigmoids, which no model of ours does")
    # A norm of weight and bias alone is taken for GN.
    return {key: "LN" if key.endswith("NORM") and value else value for key, value in config.items()}


def _body(state: State) -> Config:
    blocks = "backbone.body.blocks."
    depth = sum(name.startswith(blocks) and name.endswith(".norm1.weight") for name in state)
    lines = [state.get(f"{blocks}{number}.attn.rel_pos_h") for number in range(depth)]
    known = [line for line in lines if line is not None]
    if not depth or len(known) < depth:
        raise ValueError("the transformer's blocks have no relative positions")
    channels = len(state["backbone.body.patch_embed.proj.weight"])
    shape = (channels, depth, channels // known[0].shape[1])
    name = next((name for name, size in SIZES.items() if size == shape), None)
    if name is None:
        raise ValueError(
            f"its transformer has {shape[0]} channels, {depth} blocks and {shape[2]} heads, which "
            f"is none of {', '.join(f'{n} {size}' for n, size in SIZES.items())}"
        )
    sides = [(len(line) + 1) // 2 for line in known]
    whole = {number for number, side in enumerate(sides) if side == max(sides)}
    if len(set(sides)) > 2 or whole != global_blocks(depth, len(whole)):
        raise ValueError(f"its blocks {sorted(whole)} attend to the whole image, not evenly spread")
    image = max(sides) * PATCH
    return {
        "MODEL.BACKBONE.CONV_BODY": f"ViT-{name}-SFP",
        "MODEL.BACKBONE.FREEZE_CONV_BODY_AT": 0,
        "MODEL.VIT.WINDOW": min(sides) if len(set(sides)) > 1 else 0,
        "MODEL.VIT.GLOBAL_BLOCKS": len(whole),
        "MODEL.VIT.IMAGE_SIZE": image,
        "MODEL.VIT.DROP_PATH": _DROP_PATH.get(name, 0.1),
        "MODEL.RESNETS.BACKBONE_OUT_CHANNELS": len(state["backbone.neck.output.0.0.weight"]),
        "MODEL.FPN.NORM": "LN",
        # Images are padded to squares of the size that it was trained on.
        "DATALOADER.SIZE_DIVISIBILITY": image,
        "INPUT.MIN_SIZE_TRAIN": [image],
        "INPUT.MAX_SIZE_TRAIN": image,
        "INPUT.MIN_SIZE_TEST": image,
        "INPUT.MAX_SIZE_TEST": image,
        "INPUT.TO_BGR255": False,
        "INPUT.PIXEL_MEAN": [value / 255 for value in _MEAN],
        "INPUT.PIXEL_STD": [value / 255 for value in _STD],
    }
