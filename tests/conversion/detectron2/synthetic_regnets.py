"""State dicts of detectron2's newer baselines; the RegNets have their real widths."""

import re

import torch

from tests.conversion.synthetic_state_dicts import (
    PYRAMID,
    StateDict,
    StateDictBuilder,
    detectron2,
    long_rpn,
)

_DEPTHS, _WIDTHS, _GROUP = (1, 1, 4, 7), (24, 56, 152, 368), 8  # of RegNetX-200MF, RegNetY-200MF


def long_jittered() -> StateDict:
    """mask_rcnn_R_50_FPN_100ep_LSJ: trained batch norm, longer RPN head, 4conv1fc box head."""
    state = {name: value for name, value in long_rpn().items() if ".fc2." not in name}
    out = StateDictBuilder()
    for number in range(1, 5):
        out.layer(f"roi_heads.box_head.conv{number}", PYRAMID, PYRAMID, 3, 3)
    state = _with_norms(state | out.state, r"^backbone\.fpn_|\.mask_fcn\d\.|box_head\.conv\d\.")
    return _with_counters(state)


def regnet(squeeze: bool, trained: bool) -> StateDict:
    """Mask R-CNN on the smallest RegNetX, or RegNetY with `squeeze`.

    Like mask_rcnn_regnetx_4gf_dds_fpn_1x or, with `trained` norms, ..._100ep_LSJ.
    """
    full = long_jittered() if trained else detectron2()
    state = {n: v for n, v in full.items() if not re.search(r"bottom_up|fpn_lateral", n)}
    out = StateDictBuilder()
    backbone, channels = "backbone.bottom_up.", 32

    def layer(conv: str, norm: str, *shape: int) -> None:
        out.layer(backbone + conv, *shape, bias=False)
        out.add_norm(backbone + norm, shape[0])

    layer("stem.conv", "stem.bn", 32, 3, 3, 3)
    for stage, (depth, width) in enumerate(zip(_DEPTHS, _WIDTHS, strict=True), start=1):
        for block in (f"s{stage}.b{number}." for number in range(1, depth + 1)):
            if block.endswith("b1."):
                layer(f"{block}proj", f"{block}bn", width, channels, 1, 1)
            layer(f"{block}f.a", f"{block}f.a_bn", width, channels, 1, 1)
            layer(f"{block}f.b", f"{block}f.b_bn", width, _GROUP, 3, 3)
            if squeeze:
                inner = round(channels / 4)
                out.layer(f"{backbone}{block}f.se.f_ex.0", inner, width, 1, 1)
                out.layer(f"{backbone}{block}f.se.f_ex.2", width, inner, 1, 1)
            layer(f"{block}f.c", f"{block}f.c_bn", width, width, 1, 1)
            channels = width
        out.layer(f"backbone.fpn_lateral{stage + 1}", PYRAMID, width, 1, 1)
    return (
        _with_counters(_with_norms(state | out.state, "fpn_lateral"))
        if trained
        else state | out.state
    )


def _with_norms(state: StateDict, layers: str) -> StateDict:
    """Replace the biases of some convolutions by norms."""
    out = StateDictBuilder()
    biases = [n for n in state if n.endswith(".bias") and re.search(layers, n)]
    for name in biases:
        out.add_norm(name.removesuffix("bias") + "norm", len(state[name]))
    return {n: v for n, v in state.items() if n not in biases} | out.state


def _with_counters(state: StateDict) -> StateDict:
    """Add the batch counters of trained norms."""
    norms = [n.removesuffix("running_var") for n in state if n.endswith(".running_var")]
    return state | {f"{norm}num_batches_tracked": torch.tensor(7) for norm in norms}
