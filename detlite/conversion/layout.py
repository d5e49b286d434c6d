"""State dicts of other frameworks, by our names: numbers brought into our place and order."""

from __future__ import annotations

import re
from itertools import product

import torch
from torch import Tensor


def nest_deformable(state: dict[str, Tensor]) -> None:
    """Puts a convolution beside that of its offsets, as detectron2's, under the same layer."""
    for name in [name for name in state if name.endswith(".conv2.offset.weight")]:
        layer = name.removesuffix(".offset.weight")
        if f"{layer}.weight" in state:
            state[f"{layer}.conv.weight"] = state.pop(f"{layer}.weight")


def join_shared_stage(state: dict[str, Tensor]) -> None:
    """Gives the box head the last stage of a body that the heads of a C4 model share.

    maskrcnn-benchmark lists it once for each head. Loading them there in turn, the last head's
    values stay; in files that it wrote they are all the same.
    """
    for head in ("mask", "keypoint"):
        own = f"roi_heads.{head}.feature_extractor.res5."
        for name in [name for name in state if name.startswith(own)]:
            state[name.replace(own, "roi_heads.box.feature_extractor.res5.")] = state.pop(name)


def from_level_0(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Numbers a pyramid's levels from 0, also where its finest is P3."""
    level = re.compile(r"^(backbone\.neck\.(?:lateral|output)\.)(\d+)")
    found = [int(match[2]) for match in map(level.match, state) if match]
    first = min(found, default=0)
    return {
        level.sub(lambda match: f"{match[1]}{int(match[2]) - first}", name): value
        for name, value in state.items()
    }


def background_first(state: dict[str, Tensor]) -> None:
    """Moves the background, which has scores but neither boxes nor masks, to class 0."""
    rows = {"bbox_pred": 4, "mask_fcn_logits": 1}
    for name, value in state.items():
        layer = name.split(".")[-2]
        if layer == "cls_score":
            state[name] = value.roll(1, dims=0)
        elif layer in rows and name.startswith("roi_heads."):
            background = value.new_zeros((rows[layer], *value.shape[1:]))
            state[name] = torch.cat([background, value])


def ratios_slowest(state: dict[str, Tensor], ratios: int | None = None) -> None:
    """Reorders the anchors of a cell: by size, then ratio, becomes by ratio, then size.

    Args:
        state: changed in place.
        ratios: how many; None: 3, or as many as anchors where these are not a multiple of 3.
    """
    for head in ("rpn.head.", "head."):
        if f"{head}bbox_pred.bias" not in state:
            continue
        anchors_per_cell = len(state[f"{head}bbox_pred.bias"]) // 4
        count = ratios or (anchors_per_cell if anchors_per_cell % 3 else 3)
        for layer, leaf in product(("cls_logits", "bbox_pred"), ("weight", "bias")):
            name = f"{head}{layer}.{leaf}"
            values = len(state[name]) // anchors_per_cell
            anchors = state[name].unflatten(0, (-1, count, values))
            state[name] = anchors.transpose(0, 1).flatten(0, 2)


def give_res5_to_heads(state: dict[str, Tensor]) -> None:
    """Moves the last stage to the box head of a C4 model; the names do not say whose it is."""
    if not (
        "roi_heads.box.predictor.cls_score.weight" in state
        and "roi_heads.box.feature_extractor.fc6.weight" not in state
    ):
        return
    body = "backbone.body.res5."
    for name in [name for name in state if name.startswith(body)]:
        state[name.replace(body, "roi_heads.box.feature_extractor.res5.")] = state.pop(name)


def add_statistics(state: dict[str, Tensor]) -> None:
    """Where batch statistics are folded into the scales, what is left are mean 0 and variance 1."""
    for name, value in list(state.items()):
        layer, _, leaf = name.rpartition(".")
        if leaf == "weight" and re.search(r"\.(res\d\.\d+|stem)\.(norm\d|downsample\.1)$", layer):
            state.setdefault(f"{layer}.running_mean", torch.zeros_like(value))
            state.setdefault(f"{layer}.running_var", torch.ones_like(value))
