"""detectron2's own models, live, beside ours with the same weights.

`python tests/conversion/detectron2/live_comparison.py [name...]`, where a built detectron2 can be imported
from its sources, compares models and keeps the largest differences in detectron2_live.json, from
which `fidelity.py` writes its table.
"""

from __future__ import annotations

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
from detlite.data.loading.image_io import read_image
from detlite.data.transforms.resize import resize_shortest
from tests.conversion.detection_differences import Difference, as_dict, compare
from tests.conversion.detectron2.vitdet_reference import filled
from tests.conversion.recorded_outputs import load_recipe

RECORD = Path(__file__).with_suffix(".json")
_SIDES = (320, 533)  # pixels of the short and the long side: half the usual ones would be slow
_PICTURES = 2
_LSJ, _MISC, _SEGMENTATION = "new_baselines", "Misc", "COCO-InstanceSegmentation"
_RETINANET = "COCO-Detection/retinanet_R_50_FPN_1x.yaml"
# A file of its configs, and what is changed in it.
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
# What the last layers should give, so that boxes of all places and sizes come out, and scores that
# are neither 0 nor 1: the standard deviation of their results, in the order in which they are met.
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
    """Compares the models that are named, or all, and keeps what was found."""
    root = Path(__file__).parents[3]
    shared = root / os.environ.get("DETLITE_TEST_DATA", "../shared")
    recipe = load_recipe(shared / "golden")
    files = sorted((shared / "data/coco_open/images").rglob("*.jpg"))[:_PICTURES]
    images = [read_image(file) for file in files]
    for name in names or MODELS:
        found = compare_live(name, recipe, images)
        record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        record[name] = {
            "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
            "versions": _versions(),
            **{key: vars(found)[key] for key in ("count", "unmatched", "box", "score", "mask")},
        }
        RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        print(name, found, flush=True)


def compare_live(name: str, recipe: ModuleType, images: list[Tensor]) -> Difference:
    """Detections of both in RGB uint8 images [3, H, W], resized by each its own way."""
    peer = build_peer(*MODELS[name])
    _fill(peer, recipe)
    with torch.no_grad():
        _spread(peer, _peer_inputs(peer, images[:1]))
    with tempfile.TemporaryDirectory() as folder:
        path = save(peer.state_dict(), Path(folder), MODELS[name][0])
        model = detlite.load_checkpoint(path, ["MODEL.DEVICE", "cpu"]).model
    total = Difference()
    for image in images:
        resized = resize_shortest(image, *_SIDES, model.convention.resize)
        total.merge(compare(as_dict(model.detect([resized])[0]), detect(peer, image)))
    return total


def build_peer(config: str, opts: list[Any]) -> Any:
    """Its model of a config, with fresh weights, in evaluation mode; see `peer_config`."""
    from detectron2.config import instantiate
    from detectron2.modeling import build_model

    cfg = peer_config(config, opts)
    return (instantiate(cfg.model) if config.endswith(".py") else build_model(cfg)).eval()


def peer_config(config: str, opts: list[Any]) -> Any:
    """Its config, as it reads it.

    Args:
        config: a file under its configs, YAML or Python.
        opts: keys and values that are changed, of a YAML file.
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
def detect(peer: Any, image: Tensor) -> dict[str, Tensor]:
    """Its detections in the resized image, labels from 1, masks as probabilities."""
    inputs = _peer_inputs(peer, [image])
    if hasattr(peer, "roi_heads"):
        found = peer.inference(inputs, do_postprocess=False)[0]
    else:
        found = peer(inputs)[0]["instances"]
    some = found.pred_boxes.nonempty()
    result = {
        "boxes": found.pred_boxes.tensor[some],
        "scores": found.scores[some],
        "labels": found.pred_classes[some] + 1,
    }
    if found.has("pred_masks"):
        result["mask_probs"] = found.pred_masks[some, 0]
    return result


def save(state: Mapping[str, Tensor], folder: Path, config: str) -> Path:
    """A file as detectron2 publishes them, in a folder called as its config."""
    path = folder / Path(config.removeprefix("../")).with_suffix("") / "model_final.pkl"
    path.parent.mkdir(parents=True)
    arrays = {name: value.numpy() for name, value in state.items()}
    path.write_bytes(pickle.dumps({"model": arrays, "__author__": "test"}))
    return path


def _peer_inputs(peer: Any, images: list[Tensor]) -> list[dict[str, Any]]:
    from detectron2.data.transforms import ResizeShortestEdge

    resize = ResizeShortestEdge(_SIDES[0], _SIDES[1])
    inputs = []
    for image in images:
        pixels = image.permute(1, 2, 0).numpy()
        if getattr(peer, "input_format", "BGR") == "BGR":
            pixels = pixels[:, :, ::-1]
        resized = np.ascontiguousarray(resize.get_transform(pixels).apply_image(pixels))
        tensor = torch.from_numpy(resized.transpose(2, 0, 1).copy())
        inputs.append({"image": tensor, "height": tensor.shape[1], "width": tensor.shape[2]})
    return inputs


def _fill(peer: Any, recipe: ModuleType) -> None:
    """Weights that are made from the names of the parameters."""
    if "backbone.net.pos_embed" in peer.state_dict():
        peer.load_state_dict(filled(peer))
        return
    entries = [(name, tuple(value.shape), "") for name, value in peer.state_dict().items()]
    gains = {name: 0.25 for name, _, _ in entries if ".c_bn." in name}  # as the recipe's others
    gains |= {name: 0.1 for name, _, _ in entries if "conv2_offset" in name}
    gains["backbone.bottom_up.stem.conv1.weight"] = gains["backbone.stem.conv1.weight"] = 0.016
    state = recipe.build_state(entries, gains)
    own = peer.state_dict()
    peer.load_state_dict({n: torch.from_numpy(state[n]) if n in state else own[n] for n in own})
    for module in peer.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.num_batches_tracked.fill_(7)  # as after training


def _spread(peer: Any, inputs: list[dict[str, Any]]) -> None:
    """Scales the last layers one after the other, by what they give of a picture."""
    found: dict[str, list[Tensor]] = {}
    hooks = [
        layer.register_forward_hook(
            lambda _layer, _args, out, name=name: found.setdefault(name, []).append(out.flatten())
        )
        for name, layer in peer.named_modules()
        if any(re.search(pattern, name) for pattern in _SPREAD)
    ]
    maps = peer.backbone(peer.preprocess_image(inputs).tensor)  # no layer of these is before them
    with patch.object(peer.backbone, "forward", lambda _: maps):
        for part in ("rpn_head", "box_predictor", "mask_head", "^head"):
            found.clear()
            peer(inputs)
            for name, values in found.items():
                if re.search(part, name):
                    wanted = next(v for pattern, v in _SPREAD.items() if re.search(pattern, name))
                    layer = peer.get_submodule(name)
                    layer.weight.mul_(wanted / torch.cat(values).std())
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
