"""ResNet (He et al., https://arxiv.org/abs/1512.03385) and ResNeXt's grouped bottlenecks.

Shapes: B images, C channels, H x W pixels; stage k (2 to 5) has stride 2**k.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.conventions import convention_of
from detlite.modeling.layers.norm import Norm, freeze_batch_norm

from .activation_checkpointing import check_no_batch_statistics, checkpoint_activations
from .build import BODIES, build_body_norm
from .deform import DeformConv3x3

# Blocks in stages res2, res3, res4, res5.
DEPTHS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


@dataclass(frozen=True)
class ResNetOptions:
    """Options that distinguish ResNets."""

    depth: int  # 18 or 34 (basic blocks), 50, 101 or 152 (bottlenecks)
    norm: Norm = nn.BatchNorm2d
    stem_channels: int = 64
    res2_channels: int = 256  # doubled in each later stage
    # Options of the 3x3 convolution in a bottleneck of res2 (ResNeXt). Its width is their product,
    # doubled in each later stage.
    groups: int = 1
    width_per_group: int = 64
    stride_in_1x1: bool = False  # bottlenecks halve the map in the first 1x1, not in the 3x3
    deformable: tuple[bool, ...] = (False,) * 4  # the 3x3 convolutions of res2 to res5
    modulated: bool = False  # see `DeformConv3x3`
    offset_groups: int = 1
    freeze_norm: bool = True  # batch norm in frozen stages keeps its statistics too

    def __post_init__(self) -> None:
        grouped = self.groups != 1 or self.width_per_group != 64
        if self.depth < 50 and (grouped or any(self.deformable)):
            raise ValueError(
                f"ResNet-{self.depth} has basic blocks: MODEL.RESNETS.NUM_GROUPS, WIDTH_PER_GROUP "
                "and STAGE_WITH_DCN apply to bottlenecks only"
            )

    def channels(self, stage: int) -> int:
        """Return the output channels of stage 1 (the stem) to 5."""
        return self.stem_channels if stage == 1 else self.res2_channels * 2 ** (stage - 2)


class Stem(nn.Module):
    """7x7 convolution of stride 2, then a 3x3 max pooling of stride 2."""

    def __init__(self, channels: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        self.norm1 = norm(channels)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute [B, C, H / 4, W / 4] from [B, 3, H, W]."""
        return self.pool(self.relu(self.norm1(self.conv1(x))))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(
        self, options: ResNetOptions, stage: int, in_channels: int, stride: int, dilation: int
    ) -> None:
        super().__init__()
        out_channels, norm = options.channels(stage), options.norm
        self.conv1 = _conv3x3(in_channels, out_channels, stride, dilation)
        self.norm1 = norm(out_channels)
        self.conv2 = _conv3x3(out_channels, out_channels, 1, dilation)
        self.norm2 = norm(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _downsample(in_channels, out_channels, norm, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Compute [B, out_channels, H / stride, W / stride] from [B, C, H, W]."""
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return self.relu(out + self.downsample(x))


class Bottleneck(nn.Module):
    """1x1 convolution to the inner width, (grouped) 3x3, 1x1 to the output width, a shortcut."""

    def __init__(
        self, options: ResNetOptions, stage: int, in_channels: int, stride: int, dilation: int
    ) -> None:
        super().__init__()
        out_channels, norm = options.channels(stage), options.norm
        width = options.groups * options.width_per_group * 2 ** (stage - 2)
        stride_1x1, stride_3x3 = (stride, 1) if options.stride_in_1x1 else (1, stride)
        self.conv1 = nn.Conv2d(in_channels, width, 1, stride=stride_1x1, bias=False)
        self.norm1 = norm(width)
        conv2 = _conv3x3(width, width, stride_3x3, dilation, options.groups)
        self.conv2: nn.Module = conv2
        if options.deformable[stage - 2]:
            self.conv2 = DeformConv3x3(conv2, options.modulated, options.offset_groups)
        self.norm2 = norm(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.norm3 = norm(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _downsample(in_channels, out_channels, norm, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Compute [B, out_channels, H / stride, W / stride] from [B, C, H, W]."""
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.relu(self.norm2(self.conv2(out)))
        out = self.norm3(self.conv3(out))
        return self.relu(out + self.downsample(x))


def make_stage(options: ResNetOptions, stage: int, stride: int, dilation: int = 1) -> nn.Sequential:
    """Create the blocks of stage res2 to res5; the first has the stride, all have the dilation."""
    block: Callable[..., nn.Module] = BasicBlock if options.depth < 50 else Bottleneck
    layers, in_channels = nn.Sequential(), options.channels(stage - 1)
    for _ in range(DEPTHS[options.depth][stage - 2]):
        layers.append(block(options, stage, in_channels, stride, dilation))
        in_channels, stride = options.channels(stage), 1
    init_convs(layers)
    return layers


class ResNet(nn.Module):
    """Stem and stages; returns the maps of some stages.

    Args:
        out_stages: stages whose maps are returned, finest first; the last one ends the network.
        freeze_at: the number of leading parts (stem, res2, ...) that are not trained.
        res5_dilation: 2: the last stage dilates its convolutions instead of halving the map (DC5).
    """

    def __init__(
        self,
        options: ResNetOptions,
        out_stages: tuple[int, ...],
        freeze_at: int = 0,
        res5_dilation: int = 1,
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__()
        self.out_stages = out_stages
        self.channels = [options.channels(stage) for stage in out_stages]
        self.strides = tuple(2**k // (res5_dilation if k == 5 else 1) for k in out_stages)
        self.checkpoint_activations = checkpoint_activations
        self.stem = Stem(options.stem_channels, options.norm)
        init_convs(self.stem)
        for stage in range(2, out_stages[-1] + 1):
            dilation = res5_dilation if stage == 5 else 1
            layers = make_stage(options, stage, 1 if stage == 2 else 2 // dilation, dilation)
            self.add_module(f"res{stage}", layers)
        for part in list(self.children())[:freeze_at]:
            part.requires_grad_(False)
            if options.freeze_norm:
                freeze_batch_norm(part)
        if checkpoint_activations:
            check_no_batch_statistics(self, f"ResNet-{options.depth}")

    def forward(self, x: Tensor) -> list[Tensor]:
        """Compute a map [B, C_k, H / 2**k, W / 2**k] for each stage k in out_stages."""
        x = self.stem(x)
        maps = []
        for stage in range(2, self.out_stages[-1] + 1):
            layers = self.get_submodule(f"res{stage}")
            x = checkpoint_activations(layers, x) if self.checkpoint_activations else layers(x)
            if stage in self.out_stages:
                maps.append(x)
        return maps


def init_convs(module: nn.Module) -> None:
    """Initialize every convolution inside `module` (He, fan out), except for offsets."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    for layer in module.modules():
        if reset_offsets := getattr(layer, "reset_offsets", None):
            reset_offsets()


def _conv3x3(
    in_channels: int, out_channels: int, stride: int, dilation: int, groups: int = 1
) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, stride, dilation, dilation, groups, bias=False)


def _downsample(in_channels: int, out_channels: int, norm: Norm, stride: int) -> nn.Module:
    if in_channels == out_channels and stride == 1:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False), norm(out_channels)
    )


def build_resnet_options(cfg: CfgNode) -> ResNetOptions:
    """Build the ResNet options of CONV_BODY (R-<depth>-...) and MODEL.RESNETS."""
    name = cfg.MODEL.BACKBONE.CONV_BODY
    match = re.match(r"R-(\d+)-", name)
    if not match or int(match[1]) not in DEPTHS:
        raise ValueError(
            f"MODEL.BACKBONE.CONV_BODY is {name}, but a RoI head applies res5 of a ResNet: set "
            "its FEATURE_EXTRACTOR to another, such as FPN2MLPFeatureExtractor"
        )
    resnets, depth = cfg.MODEL.RESNETS, int(match[1])
    return ResNetOptions(
        depth=depth,
        norm=build_body_norm(cfg),
        stem_channels=resnets.STEM_OUT_CHANNELS,
        res2_channels=resnets.RES2_OUT_CHANNELS or (64 if depth < 50 else 256),
        groups=resnets.NUM_GROUPS,
        width_per_group=resnets.WIDTH_PER_GROUP,
        stride_in_1x1=resnets.STRIDE_IN_1X1,
        deformable=resnets.STAGE_WITH_DCN,
        modulated=resnets.WITH_MODULATED_DCN,
        offset_groups=resnets.DEFORMABLE_GROUPS,
        freeze_norm=convention_of(cfg).freeze_batch_statistics,
    )


def _build_resnet(cfg: CfgNode, strides: Sequence[int]) -> ResNet:
    stages = tuple(stride.bit_length() - 1 for stride in strides)
    dilation = cfg.MODEL.RESNETS.RES5_DILATION if stages == (5,) else 1
    node = cfg.MODEL.BACKBONE
    options = build_resnet_options(cfg)
    return ResNet(options, stages, node.FREEZE_CONV_BODY_AT, dilation, node.CHECKPOINT_ACTIVATIONS)


BODIES.register(*(f"R-{depth}" for depth in DEPTHS))(_build_resnet)
