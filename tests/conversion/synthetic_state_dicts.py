"""Narrow state dicts with the names of each framework."""

import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

STEM, RES2, PYRAMID, DIM, CLASSES = 8, 16, 8, 12, 5
DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
StateDict = dict[str, Tensor]


class StateDictBuilder:
    """Add random layers to `state`.

    Args:
        conv: (stage, block, number) -> name of a convolution of a ResNet; number 0 is the shortcut.
        norm: (stage, block, number) -> name of its norm.
        caffe2: use Caffe2's suffixes, without statistics of norms.
    """

    def __init__(
        self,
        conv: Callable[..., str] | None = None,
        norm: Callable[..., str] | None = None,
        caffe2: bool = False,
    ) -> None:
        self.conv, self.norm, self.caffe2 = conv, norm, caffe2
        self.state: StateDict = {}

    def layer(self, name: str, *shape: int, bias: bool = True) -> None:
        weight, shift = ("_w", "_b") if self.caffe2 else (".weight", ".bias")
        self.state[name + weight] = torch.randn(*shape)
        if bias:
            transposed = name.endswith(("conv5_mask", "deconv"))
            self.state[name + shift] = torch.randn(shape[1 if transposed else 0])

    def add_norm(self, name: str, channels: int) -> None:
        if self.caffe2:
            leaves = ["_s", "_b"]
        else:
            leaves = [".weight", ".bias", ".running_mean", ".running_var"]
        for leaf in leaves:
            self.state[name + leaf] = torch.rand(channels)

    def resnet(self, depth: int, stem: tuple[str, str], stages: range, groups: int = 1) -> None:
        assert self.conv is not None
        assert self.norm is not None
        if 2 in stages:
            self.layer(stem[0], STEM, 3, 7, 7, bias=False)
            self.add_norm(stem[1], STEM)
        for stage in stages:
            out = RES2 * 2 ** (stage - 2)
            width = out // 4 if groups == 1 else out // 2
            for block in range(DEPTHS[depth][stage - 2]):
                channels = out if block else (STEM if stage == 2 else out // 2)
                shapes = {
                    1: (width, channels, 1, 1),
                    2: (width, width // groups, 3, 3),
                    3: (out, width, 1, 1),
                }
                if block == 0:
                    shapes[0] = (out, channels, 1, 1)
                for number, shape in shapes.items():
                    self.layer(self.conv(stage, block, number), *shape, bias=False)
                    self.add_norm(self.norm(stage, block, number), shape[0])


def detectron2(depth: int = 50, fpn: bool = True, groups: int = 1) -> StateDict:
    def conv(stage: int, block: int, number: int) -> str:
        prefix = "backbone.bottom_up." if fpn else "backbone."
        prefix = "roi_heads." if stage == 5 and not fpn else prefix
        return f"{prefix}res{stage}.{block}." + (f"conv{number}" if number else "shortcut")

    stem = "backbone.bottom_up.stem.conv1" if fpn else "backbone.stem.conv1"
    out = StateDictBuilder(conv, lambda *at: conv(*at) + ".norm")
    out.resnet(depth, (stem, stem + ".norm"), range(2, 6), groups)
    anchors, channels, last = (3, PYRAMID, DIM) if fpn else (15, 4 * RES2, 8 * RES2)
    if fpn:
        for level in range(2, 6):
            out.layer(f"backbone.fpn_lateral{level}", PYRAMID, RES2 * 2 ** (level - 2), 1, 1)
            out.layer(f"backbone.fpn_output{level}", PYRAMID, PYRAMID, 3, 3)
        out.layer("roi_heads.box_head.fc1", DIM, PYRAMID * 49)
        out.layer("roi_heads.box_head.fc2", DIM, DIM)
        for number in range(1, 5):
            out.layer(f"roi_heads.mask_head.mask_fcn{number}", PYRAMID, PYRAMID, 3, 3)
    head = "proposal_generator.rpn_head."
    out.layer(head + "conv", channels, channels, 3, 3)
    out.layer(head + "objectness_logits", anchors, channels, 1, 1)
    out.layer(head + "anchor_deltas", anchors * 4, channels, 1, 1)
    out.layer("roi_heads.box_predictor.cls_score", CLASSES, last)
    out.layer("roi_heads.box_predictor.bbox_pred", 4 * (CLASSES - 1), last)
    out.layer("roi_heads.mask_head.deconv", PYRAMID if fpn else last, PYRAMID, 2, 2)
    out.layer("roi_heads.mask_head.predictor", CLASSES - 1, PYRAMID, 1, 1)
    return out.state


def cell_anchors(
    levels: Sequence[Sequence[float]], ratios: Sequence[float], strides: Sequence[int]
) -> StateDict:
    """Anchors of one cell as maskrcnn-benchmark stores them: they contain their last pixel."""
    cells = {}
    for level, (sizes, stride) in enumerate(zip(levels, strides, strict=True)):
        rows = []
        for ratio in ratios:
            width = round((stride**2 / ratio) ** 0.5)
            height = round(width * ratio)
            for size in sizes:
                x, y = (side * size / stride - 1 for side in (width, height))
                center = (stride - 1) / 2
                rows.append([center - x / 2, center - y / 2, center + x / 2, center + y / 2])
        cells[f"module.rpn.anchor_generator.cell_anchors.{level}"] = torch.tensor(rows)
    return cells


def maskrcnn_benchmark(fpn: bool = True) -> StateDict:
    def name(stage: int, block: int, number: int, kind: str) -> str:
        box = "roi_heads.box.feature_extractor.head."
        prefix = box if stage == 5 and not fpn else "backbone.body."
        last = f"{kind}{number}" if number else f"downsample.{int(kind == 'bn')}"
        return f"{prefix}layer{stage - 1}.{block}.{last}"

    out = StateDictBuilder(lambda *at: name(*at, "conv"), lambda *at: name(*at, "bn"))
    out.resnet(50, ("backbone.body.stem.conv1", "backbone.body.stem.bn1"), range(2, 6))
    anchors, channels, last = (3, PYRAMID, DIM) if fpn else (15, 4 * RES2, 8 * RES2)
    if fpn:
        for level in range(1, 5):
            out.layer(f"backbone.fpn.fpn_inner{level}", PYRAMID, RES2 * 2 ** (level - 1), 1, 1)
            out.layer(f"backbone.fpn.fpn_layer{level}", PYRAMID, PYRAMID, 3, 3)
        out.layer("roi_heads.box.feature_extractor.fc6", DIM, PYRAMID * 49)
        out.layer("roi_heads.box.feature_extractor.fc7", DIM, DIM)
        for number in range(1, 5):
            out.layer(f"roi_heads.mask.feature_extractor.mask_fcn{number}", PYRAMID, PYRAMID, 3, 3)
    else:  # the mask head repeats the shared stage
        box = "roi_heads.box."
        shared = {n: v for n, v in out.state.items() if n.startswith(box)}
        out.state |= {n.replace(box, "roi_heads.mask."): v for n, v in shared.items()}
    out.layer("rpn.head.conv", channels, channels, 3, 3)
    out.layer("rpn.head.cls_logits", anchors, channels, 1, 1)
    out.layer("rpn.head.bbox_pred", anchors * 4, channels, 1, 1)
    out.layer("roi_heads.box.predictor.cls_score", CLASSES, last)
    out.layer("roi_heads.box.predictor.bbox_pred", 4 * CLASSES, last)
    out.layer("roi_heads.mask.predictor.conv5_mask", PYRAMID if fpn else last, PYRAMID, 2, 2)
    out.layer("roi_heads.mask.predictor.mask_fcn_logits", CLASSES, PYRAMID, 1, 1)
    sizes = (32.0, 64.0, 128.0, 256.0, 512.0)
    levels, strides = ([[s] for s in sizes], [4, 8, 16, 32, 64]) if fpn else ([sizes], [16])
    state = {f"module.{n}": v for n, v in out.state.items()}
    return state | cell_anchors(levels, (0.5, 1.0, 2.0), strides)


def c4_keypoints(shared: bool) -> StateDict:
    """Keypoint R-CNN of maskrcnn-benchmark; its head shares a stage with the box head, or pools."""
    out = StateDictBuilder()
    head = "roi_heads.keypoint."
    if not shared:
        out.layer(f"{head}feature_extractor.conv_fcn1", PYRAMID, 4 * RES2, 3, 3)
        out.layer(f"{head}feature_extractor.conv_fcn2", PYRAMID, PYRAMID, 3, 3)
    out.state |= {
        f"{head}predictor.kps_score_lowres.weight": torch.randn(
            8 * RES2 if shared else PYRAMID, 17, 4, 4
        ),
        f"{head}predictor.kps_score_lowres.bias": torch.randn(17),
    }
    return maskrcnn_benchmark(fpn=False) | {f"module.{n}": v for n, v in out.state.items()}


def dilated() -> StateDict:
    """R_50_DC5: res5 in the backbone, and a box head of fully connected layers."""
    state = detectron2()
    names = {n: n.replace("backbone.bottom_up.", "backbone.") for n in state if ".fpn_" not in n}
    state = {new: state[old] for old, new in names.items()}
    out = StateDictBuilder()
    head, channels = "proposal_generator.rpn_head.", 8 * RES2
    out.layer(head + "conv", channels, channels, 3, 3)
    out.layer(head + "objectness_logits", 15, channels, 1, 1)
    out.layer(head + "anchor_deltas", 60, channels, 1, 1)
    out.layer("roi_heads.box_head.fc1", DIM, channels * 49)
    out.layer("roi_heads.mask_head.mask_fcn1", PYRAMID, channels, 3, 3)
    return state | out.state


def cascade() -> StateDict:
    """cascade_mask_rcnn_R_50_FPN: three class-agnostic box heads."""
    state = {n: v for n, v in detectron2().items() if ".box_" not in n}
    out = StateDictBuilder()
    for stage in range(3):
        out.layer(f"roi_heads.box_head.{stage}.fc1", DIM, PYRAMID * 49)
        out.layer(f"roi_heads.box_head.{stage}.fc2", DIM, DIM)
        out.layer(f"roi_heads.box_predictor.{stage}.cls_score", CLASSES, DIM)
        out.layer(f"roi_heads.box_predictor.{stage}.bbox_pred", 4, DIM)
    return state | out.state


def cascade_of_convolutions() -> StateDict:
    """cascade_mask_rcnn_X_152_32x8d_FPN_IN5k_gn_dconv: a cascade of 4conv1fc box heads."""
    state = {n: v for n, v in cascade().items() if ".fc2." not in n}
    out = StateDictBuilder()
    for stage, number in product(range(3), range(1, 5)):
        out.layer(f"roi_heads.box_head.{stage}.conv{number}", PYRAMID, PYRAMID, 3, 3)
    return state | out.state


def long_rpn() -> StateDict:
    """new_baselines/mask_rcnn_R_50_FPN_100ep_LSJ: two convolutions in the RPN."""
    state = {n: v for n, v in detectron2().items() if ".rpn_head.conv." not in n}
    out = StateDictBuilder()
    for number in range(2):
        out.layer(f"proposal_generator.rpn_head.conv.conv{number}", PYRAMID, PYRAMID, 3, 3)
    return state | out.state


def panoptic() -> StateDict:
    """panoptic_fpn_R_50: a Mask R-CNN with a semantic head."""
    out = StateDictBuilder()
    out.layer("sem_seg_head.p2.0", PYRAMID, PYRAMID, 3, 3)
    out.layer("sem_seg_head.predictor", 54, PYRAMID, 1, 1)
    return detectron2() | out.state


def retinanet(source: str, norm: str = "") -> StateDict:
    """RetinaNet of a framework. P6 is computed from P5 in torchvision, else from C5.

    In detectron2's, the towers may have a `norm`: "GN", or "BN" for each level.
    """
    full = {"torchvision": torchvision_fpn, "detectron2": detectron2}.get(
        source, maskrcnn_benchmark
    )()
    state = {
        name.removeprefix("module."): value
        for name, value in full.items()
        if not re.search(r"roi_heads|rpn|inner_blocks|layer_blocks|fpn_", name)
    }
    out = StateDictBuilder()
    lateral, output, top, cls, box, logits, deltas = RETINANET_NAMES[source]
    for level in range(3):
        out.layer(lateral(level), PYRAMID, RES2 * 2 ** (level + 1), 1, 1)
        out.layer(output(level), PYRAMID, PYRAMID, 3, 3)
    out.layer(f"{top}p6", PYRAMID, PYRAMID if source == "torchvision" else 8 * RES2, 3, 3)
    out.layer(f"{top}p7", PYRAMID, PYRAMID, 3, 3)
    for number in range(4):
        out.layer(cls(number), PYRAMID, PYRAMID, 3, 3)
        out.layer(box(number), PYRAMID, PYRAMID, 3, 3)
    scores = CLASSES if source == "torchvision" else CLASSES - 1
    out.layer(logits, 9 * scores, PYRAMID, 3, 3)
    out.layer(deltas, 9 * 4, PYRAMID, 3, 3)
    if norm:
        convs = re.compile(r"^head\.(cls|bbox)_subnet\.(\d)\.")
        out.state = {
            convs.sub(lambda at: f"head.{at[1]}_subnet.{int(at[2]) // 2 * 3}.", name): value
            for name, value in out.state.items()
        }
        for tower, number in product(("cls", "bbox"), range(4)):
            layer = f"head.{tower}_subnet.{3 * number + 1}"
            for leaf in ("weight", "bias"):
                out.state[f"{layer}.{leaf}"] = torch.rand(PYRAMID)
            for level in range(5 if norm == "BN" else 0):
                for leaf in ("running_mean", "running_var"):
                    out.state[f"{layer}.{level}.{leaf}"] = torch.rand(PYRAMID)
                out.state[f"{layer}.{level}.num_batches_tracked"] = torch.tensor(7)
    return state | out.state


RETINANET_NAMES: dict[str, tuple[Any, ...]] = {
    "torchvision": (
        lambda level: f"backbone.fpn.inner_blocks.{level}.0",
        lambda level: f"backbone.fpn.layer_blocks.{level}.0",
        "backbone.fpn.extra_blocks.",
        lambda number: f"head.classification_head.conv.{2 * number}",  # names before version 0.15
        lambda number: f"head.regression_head.conv.{number}.0",
        "head.classification_head.cls_logits",
        "head.regression_head.bbox_reg",
    ),
    "detectron2": (
        lambda level: f"backbone.fpn_lateral{level + 3}",
        lambda level: f"backbone.fpn_output{level + 3}",
        "backbone.top_block.",
        lambda number: f"head.cls_subnet.{2 * number}",
        lambda number: f"head.bbox_subnet.{2 * number}",
        "head.cls_score",
        "head.bbox_pred",
    ),
    "maskrcnn-benchmark": (
        lambda level: f"backbone.fpn.fpn_inner{level + 2}",
        lambda level: f"backbone.fpn.fpn_layer{level + 2}",
        "backbone.fpn.top_blocks.",
        lambda number: f"rpn.head.cls_tower.{2 * number}",
        lambda number: f"rpn.head.bbox_tower.{2 * number}",
        "rpn.head.cls_logits",
        "rpn.head.bbox_pred",
    ),
}


def torchvision_fpn() -> StateDict:
    """ResNet backbone of torchvision's detectors."""

    def name(stage: int, block: int, number: int, kind: str) -> str:
        last = f"{kind}{number}" if number else f"downsample.{int(kind == 'bn')}"
        return f"backbone.body.layer{stage - 1}.{block}.{last}"

    out = StateDictBuilder(lambda *at: name(*at, "conv"), lambda *at: name(*at, "bn"))
    out.resnet(50, ("backbone.body.conv1", "backbone.body.bn1"), range(2, 6))
    return out.state


def caffe2_backbone(norm: str = "bn") -> StateDictBuilder:
    def conv(stage: int, block: int, number: int) -> str:
        return f"res{stage}_{block}_branch" + (f"2{'abc'[number - 1]}" if number else "1")

    out = StateDictBuilder(conv, lambda *at: f"{conv(*at)}_{norm}", caffe2=True)
    out.resnet(50, ("conv1", "res_conv1_bn" if norm == "bn" else "conv1_gn"), range(2, 6))
    return out


def caffe2() -> StateDict:
    out = caffe2_backbone()
    for stage, block in zip(range(2, 6), (2, 3, 5, 2), strict=True):
        lateral = "" if stage == 5 else "_lateral"
        width = RES2 * 2 ** (stage - 2)
        out.layer(f"fpn_inner_res{stage}_{block}_sum{lateral}", PYRAMID, width, 1, 1)
        out.layer(f"fpn_res{stage}_{block}_sum", PYRAMID, PYRAMID, 3, 3)
    out.layer("conv_rpn_fpn2", PYRAMID, PYRAMID, 3, 3)
    out.layer("rpn_cls_logits_fpn2", 3, PYRAMID, 1, 1)
    out.layer("rpn_bbox_pred_fpn2", 12, PYRAMID, 1, 1)
    out.layer("fc6", DIM, PYRAMID * 49)
    out.layer("fc7", DIM, DIM)
    out.layer("cls_score", CLASSES, DIM)
    out.layer("bbox_pred", 4 * CLASSES, DIM)
    out.state["fc6_w_momentum"] = torch.zeros(1)
    out.state["lr"] = torch.zeros(1)
    return out.state | UNUSED_CAFFE2


# Unused weights of the classifier that training started from.
UNUSED_CAFFE2 = {"conv1_b": torch.zeros(STEM), "fc1000_w": torch.zeros(10, 4),
                     "fc1000_b": torch.zeros(10), "res2_0_branch2a_b": torch.zeros(4)}  # fmt: skip


def caffe2_c4() -> StateDict:
    out = caffe2_backbone()
    out.layer("conv_rpn", 4 * RES2, 4 * RES2, 3, 3)
    out.layer("rpn_cls_logits", 15, 4 * RES2, 1, 1)
    out.layer("rpn_bbox_pred", 60, 4 * RES2, 1, 1)
    out.layer("cls_score", CLASSES, 8 * RES2)
    out.layer("bbox_pred", 4 * CLASSES, 8 * RES2)
    out.layer("conv5_mask", 8 * RES2, PYRAMID, 2, 2)
    out.layer("mask_fcn_logits", CLASSES, PYRAMID, 1, 1)
    return out.state | UNUSED_CAFFE2


def caffe2_keypoints() -> StateDict:
    out = caffe2_backbone()
    for number in range(1, 9):
        out.layer(f"conv_fcn{number}", PYRAMID, PYRAMID, 3, 3)
    out.layer("kps_score", 17, 17, 4, 4)
    out.state |= {"kps_score_lowres_w": torch.randn(PYRAMID, 17, 4, 4),
                  "kps_score_lowres_b": torch.randn(17)}  # fmt: skip
    return out.state | caffe2()


def deformable(state: StateDict, source: str) -> StateDict:
    """Make the 3x3 convolutions of res4 and res5 modulated deformable convolutions."""
    out = dict(state)
    for name, value in state.items():
        if source == "detectron2" and re.search(r"\.res[45]\.\d\.conv2\.weight$", name):
            offset = name.replace("conv2.", "conv2_offset.")
        elif source != "detectron2" and re.search(r"\.layer[34]\.\d\.conv2\.weight$", name):
            offset = name.replace("conv2.", "conv2.offset.")
            out[name.replace("conv2.", "conv2.conv.")] = out.pop(name)
        else:
            continue
        out[offset] = torch.randn(27, value.shape[1], 3, 3)
        out[offset.replace("weight", "bias")] = torch.randn(27)
    return out
