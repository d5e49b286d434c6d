"""State dicts of detectron2's newer baselines, of small widths but for the bodies of timm."""

from __future__ import annotations

import re

import torch

from tests.conversion.synthetic_state_dicts import PYRAMID, StateDict, Writer, detectron2

_DEPTHS, _WIDTHS, _GROUP = (1, 1, 4, 7), (24, 56, 152, 368), 8  # of RegNetX-200MF, RegNetY-200MF


def long_jittered() -> StateDict:
    """As mask_rcnn_R_50_FPN_100ep_LSJ: batch norm that was trained nearly everywhere, two
    convolutions in the RPN, four and a fully connected layer in the box head."""
    state = {
        name: value
        for name, value in detectron2().items()
        if ".rpn_head.conv." not in name and ".fc2." not in name
    }
    out = Writer(lambda: "", lambda: "")
    for number in range(2):
        out.layer(f"proposal_generator.rpn_head.conv.conv{number}", PYRAMID, PYRAMID, 3, 3)
    for number in range(1, 5):
        out.layer(f"roi_heads.box_head.conv{number}", PYRAMID, PYRAMID, 3, 3)
    state = _normed(state | out.state, r"^backbone\.fpn_|\.mask_fcn\d\.|box_head\.conv\d\.")
    return _counted(state)


def regnet(squeezes: bool, trained: bool) -> StateDict:
    """A Mask R-CNN on the smallest RegNetX or, if it `squeezes`, RegNetY; as
    mask_rcnn_regnetx_4gf_dds_fpn_1x or, if its norms were `trained`, as ..._100ep_LSJ."""
    whole = long_jittered() if trained else detectron2()
    state = {n: v for n, v in whole.items() if not re.search(r"bottom_up|fpn_lateral", n)}
    out = Writer(lambda: "", lambda: "")
    body, before = "backbone.bottom_up.", 32

    def layer(conv: str, norm: str, *shape: int) -> None:
        out.layer(body + conv, *shape, bias=False)
        out.add_norm(body + norm, shape[0])

    layer("stem.conv", "stem.bn", 32, 3, 3, 3)
    for stage, (depth, width) in enumerate(zip(_DEPTHS, _WIDTHS, strict=True), start=1):
        for block in (f"s{stage}.b{number}." for number in range(1, depth + 1)):
            if block.endswith("b1."):
                layer(f"{block}proj", f"{block}bn", width, before, 1, 1)
            layer(f"{block}f.a", f"{block}f.a_bn", width, before, 1, 1)
            layer(f"{block}f.b", f"{block}f.b_bn", width, _GROUP, 3, 3)
            if squeezes:
                inner = round(before / 4)
                out.layer(f"{body}{block}f.se.f_ex.0", inner, width, 1, 1)
                out.layer(f"{body}{block}f.se.f_ex.2", width, inner, 1, 1)
            layer(f"{block}f.c", f"{block}f.c_bn", width, width, 1, 1)
            before = width
        out.layer(f"backbone.fpn_lateral{stage + 1}", PYRAMID, width, 1, 1)
    return _counted(_normed(state | out.state, "fpn_lateral")) if trained else state | out.state


def _normed(state: StateDict, layers: str) -> StateDict:
    """With norms in place of the biases of some convolutions."""
    out = Writer(lambda: "", lambda: "")
    biases = [n for n in state if n.endswith(".bias") and re.search(layers, n)]
    for name in biases:
        out.add_norm(name.removesuffix("bias") + "norm", len(state[name]))
    return {n: v for n, v in state.items() if n not in biases} | out.state


def _counted(state: StateDict) -> StateDict:
    """With the counters that norms have while they are trained."""
    norms = [n.removesuffix("running_var") for n in state if n.endswith(".running_var")]
    return state | {f"{norm}num_batches_tracked": torch.tensor(7) for norm in norms}
