"""Compare detectron2's models with converted models.

`python -m tests.conversion.detectron2.live_comparison [name...]` needs detectron2, built and
imported from its sources. It stores the largest differences in live_comparison.json, from which
`tests/conversion/fidelity.py` makes its table.
"""

import json
import os
import pickle
import re
import sys
import tempfile
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

import detlite
from detlite.data.images.reading import read_image
from detlite.data.transforms.resize import resize_shortest
from tests.conversion.detection_differences import DetectionDifference, as_dict, compare
from tests.conversion.detectron2.vitdet_reference import filled
from tests.conversion.recorded_outputs import load_recipe

RECORD = Path(__file__).with_suffix(".json")
_SIDES = (320, 533)  # pixels of the short and the long side; small, to be fast
_IMAGES = 2
_FIELDS = ("count", "unmatched", "box", "score", "mask")
_LSJ, _MISC, _SEGMENTATION = "new_baselines", "Misc", "COCO-InstanceSegmentation"
_RETINANET = "COCO-Detection/retinanet_R_50_FPN_1x.yaml"
# Config file of detectron2, and overrides.
MODELS: dict[str, tuple[str, list[Any]]] = {
    "mask_rcnn_R_50_FPN_100ep_LSJ": (f"{_LSJ}/mask_rcnn_R_50_FPN_100ep_LSJ.py", []),
    "mask_rcnn_R_101_FPN_100ep_LSJ": (f"{_LSJ}/mask_rcnn_R_101_FPN_100ep_LSJ.py", []),
    "mask_rcnn_regnetx_4gf_dds_FPN_100ep_LSJ": (
        f"{_LSJ}/mask_rcnn_regnetx_4gf_dds_FPN_100ep_LSJ.py", []),
    "mask_rcnn_regnety_4gf_dds_FPN_100ep_LSJ": (
        f"{_LSJ}/mask_rcnn_regnety_4gf_dds_FPN_100ep_LSJ.py", []),
    "mask_rcnn_regnetx_4gf_dds_fpn_1x": (
        f"{_SEGMENTATION}/mask_rcnn_regnetx_4gf_dds_fpn_1x.py", []),
    "mask_rcnn_regnety_4gf_dds_fpn_1x": (
        f"{_SEGMENTATION}/mask_rcnn_regnety_4gf_dds_fpn_1x.py", []),
    "retinanet_R_50_FPN_1x, GN": (_RETINANET, ["MODEL.RETINANET.NORM", "GN"]),
    "retinanet_R_50_FPN_1x, BN": (_RETINANET, ["MODEL.RETINANET.NORM", "BN"]),
    "retinanet_R_50_FPN_1x, SyncBN": (_RETINANET, ["MODEL.RETINANET.NORM", "SyncBN"]),
    "mask_rcnn_R_50_FPN_3x_gn": (f"{_MISC}/mask_rcnn_R_50_FPN_3x_gn.yaml", []),
    "mask_rcnn_R_50_FPN_3x_syncbn": (f"{_MISC}/mask_rcnn_R_50_FPN_3x_syncbn.yaml", []),
    "scratch_mask_rcnn_R_50_FPN_9x_syncbn": (
        f"{_MISC}/scratch_mask_rcnn_R_50_FPN_9x_syncbn.yaml", []),
    "mask_rcnn_R_50_FPN_3x_dconv_c3-c5": (f"{_MISC}/mask_rcnn_R_50_FPN_3x_dconv_c3-c5.yaml", []),
    "mask_rcnn_R_50_FPN_1x_cls_agnostic": (f"{_MISC}/mask_rcnn_R_50_FPN_1x_cls_agnostic.yaml", []),
    "faster_rcnn_R_50_C4, VOC": ("PascalVOC-Detection/faster_rcnn_R_50_C4.yaml", []),
    **{
        name: (f"../projects/ViTDet/configs/COCO/{name}.py", [])
        for name in (
            "mask_rcnn_vitdet_b_100ep", "mask_rcnn_vitdet_l_100ep", "mask_rcnn_vitdet_h_75ep",
            "cascade_mask_rcnn_vitdet_b_100ep", "cascade_mask_rcnn_vitdet_l_100ep",
            "cascade_mask_rcnn_vitdet_h_75ep",
        )
    },
}  # fmt: skip
# Target standard deviation of the outputs of the last layers, in order of execution, which leads to
# boxes of all sizes, and scores between 0 and 1.
_SPREAD = {
    r"rpn_head\.objectness_logits$": 1.5,
    r"rpn_head\.anchor_deltas$": 0.3,
    r"box_predictor\.(\d\.)?cls_score$": 2.5,
    r"box_predictor\.(\d\.)?bbox_pred$": 1.0,
    r"mask_head\.predictor$": 2.0,
    r"^head\.cls_score$": 0.4,
    r"^head\.bbox_pred$": 0.3,
}


def main(names: list[str]) -> None:
    """Compare the named models, or all, and store the differences."""
    root = Path(__file__).parents[3]
    shared = root / os.environ.get("DETLITE_TEST_DATA", "../shared")
    recipe = load_recipe(shared / "golden")
    files = sorted((shared / "data/coco_open/images").rglob("*.jpg"))[:_IMAGES]
    images = [read_image(file) for file in files]
    for name in names or MODELS:
        difference = compare_live(name, recipe, images)
        record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        record[name] = {
            "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
            "versions": _versions(),
            **{
                key: vars(difference)[key] for key in ("count", "unmatched", "box", "score", "mask")
            },
        }
        RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        print(name, difference, flush=True)


def compare_live(name: str, recipe: ModuleType, images: list[Tensor]) -> DetectionDifference:
    """Compare the detections in RGB images uint8 [3, H, W], each with its own resize."""
    d2_model = build_d2_model(*MODELS[name])
    _fill(d2_model, recipe)
    with torch.no_grad():
        _spread(d2_model, _d2_inputs(d2_model, images[:1]))
    with tempfile.TemporaryDirectory() as folder:
        path = save(d2_model.state_dict(), Path(folder), MODELS[name][0])
        model = detlite.load_checkpoint(path, ["MODEL.DEVICE", "cpu"]).model
    total = DetectionDifference()
    for image in images:
        resized = resize_shortest(image, *_SIDES, model.convention.resize)
        total.merge(compare(as_dict(model.detect([resized])[0]), detect(d2_model, image)))
    return total


def build_d2_model(config: str, opts: list[Any]) -> Any:
    """Build the detectron2 model of a config, in evaluation mode; see `load_d2_config`."""
    from detectron2.config import instantiate
    from detectron2.modeling import build_model

    cfg = load_d2_config(config, opts)
    return (instantiate(cfg.model) if config.endswith(".py") else build_model(cfg)).eval()


def load_d2_config(config: str, opts: list[Any]) -> Any:
    """Load a config of detectron2.

    Args:
        config: a YAML or Python file in its folder configs.
        opts: overrides of a YAML file.
    """
    import detectron2
    from detectron2.config import LazyConfig, get_cfg

    path = Path(detectron2.__file__).parents[1] / "configs" / config
    if path.suffix == ".py":
        return LazyConfig.load(str(path))
    cfg = get_cfg()
    cfg.merge_from_file(str(path))
    cfg.merge_from_list(["MODEL.DEVICE", "cpu", "MODEL.WEIGHTS", "", *opts])
    return cfg


@torch.no_grad()
def detect(d2_model: Any, image: Tensor) -> dict[str, Tensor]:
    """Return detections in the resized image; labels start at 1, and masks are probabilities."""
    inputs = _d2_inputs(d2_model, [image])
    if hasattr(d2_model, "roi_heads"):
        outputs = d2_model.inference(inputs, do_postprocess=False)[0]
    else:
        outputs = d2_model(inputs)[0]["instances"]
    nonempty = outputs.pred_boxes.nonempty()
    result = {
        "boxes": outputs.pred_boxes.tensor[nonempty],
        "scores": outputs.scores[nonempty],
        "labels": outputs.pred_classes[nonempty] + 1,
    }
    if outputs.has("pred_masks"):
        result["mask_probs"] = outputs.pred_masks[nonempty, 0]
    return result


def save(state: Mapping[str, Tensor], folder: Path, config: str) -> Path:
    """Write a file in the format of detectron2, in a folder named after the config."""
    path = folder / Path(config.removeprefix("../")).with_suffix("") / "model_final.pkl"
    path.parent.mkdir(parents=True)
    arrays = {name: value.numpy() for name, value in state.items()}
    path.write_bytes(pickle.dumps({"model": arrays, "__author__": "test"}))
    return path


def _d2_inputs(d2_model: Any, images: list[Tensor]) -> list[dict[str, Any]]:
    from detectron2.data.transforms import ResizeShortestEdge

    resize = ResizeShortestEdge(_SIDES[0], _SIDES[1])
    inputs = []
    for image in images:
        pixels = image.permute(1, 2, 0).numpy()
        if getattr(d2_model, "input_format", "BGR") == "BGR":
            pixels = pixels[:, :, ::-1]
        resized = np.ascontiguousarray(resize.get_transform(pixels).apply_image(pixels))
        tensor = torch.from_numpy(resized.transpose(2, 0, 1).copy())
        inputs.append({"image": tensor, "height": tensor.shape[1], "width": tensor.shape[2]})
    return inputs


def _fill(d2_model: Any, recipe: ModuleType) -> None:
    """Set weights that depend on the names of the parameters."""
    if "backbone.net.pos_embed" in d2_model.state_dict():
        d2_model.load_state_dict(filled(d2_model))
        return
    entries = [(name, tuple(value.shape), "") for name, value in d2_model.state_dict().items()]
    gains = {name: 0.25 for name, _, _ in entries if ".c_bn." in name}
    gains |= {name: 0.1 for name, _, _ in entries if "conv2_offset" in name}
    gains["backbone.bottom_up.stem.conv1.weight"] = gains["backbone.stem.conv1.weight"] = 0.016
    state = recipe.build_state(entries, gains)
    own = d2_model.state_dict()
    d2_model.load_state_dict({n: torch.from_numpy(state[n]) if n in state else own[n] for n in own})
    for module in d2_model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.num_batches_tracked.fill_(7)  # trained norms


def _spread(d2_model: Any, inputs: list[dict[str, Any]]) -> None:
    """Scale the last layers one after the other to the targets in `_SPREAD`."""
    outputs: dict[str, list[Tensor]] = {}
    hooks = [
        layer.register_forward_hook(
            lambda _layer, _args, out, name=name: outputs.setdefault(name, []).append(out.flatten())
        )
        for name, layer in d2_model.named_modules()
        if any(re.search(pattern, name) for pattern in _SPREAD)
    ]
    maps = d2_model.backbone(
        d2_model.preprocess_image(inputs).tensor
    )  # the backbone has none of these layers
    with patch.object(d2_model.backbone, "forward", lambda _: maps):
        for layers in ("rpn_head", "box_predictor", "mask_head", "^head"):
            outputs.clear()
            d2_model(inputs)
            for name, values in outputs.items():
                if re.search(layers, name):
                    target = next(v for pattern, v in _SPREAD.items() if re.search(pattern, name))
                    layer = d2_model.get_submodule(name)
                    layer.weight.mul_(target / torch.cat(values).std())
                    if name == "head.cls_score":
                        layer.bias.fill_(-2.0)
    for hook in hooks:
        hook.remove()


def _versions() -> str:
    import detectron2

    return f"detectron2 {detectron2.__version__}, torch {torch.__version__.split('+')[0]}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
