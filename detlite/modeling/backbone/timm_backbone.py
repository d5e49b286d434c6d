"""Any model of timm (https://github.com/huggingface/pytorch-image-models) as a body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from detlite.modeling.layers.asymmetric_padding import PaddedConv2d, pad_to
from detlite.modeling.layers.norm import frozen, takes_batch_statistics


class TimmBody(nn.Module):
    """A classifier of timm without its head; returns the maps of the asked strides, finest first.

    Entries of the state dict are called as in timm, behind `net.`.

    Args:
        name: of the model, as `timm.create_model` takes it.
        strides: image pixels per cell of the wanted maps, finest first.
        freeze_at: so many leading parts are not trained, and their batch norm is frozen: 1 is all
            before the stage of stride 4, 2 ends with that stage, each further one with the next.
        frozen_norm: freeze all other batch norm as well.
        checkpoints: training keeps what timm's own checkpointing keeps, the rest it computes again.
        drop_path: probability of stochastic depth at the last block, less before it.

    Attributes:
        channels: of each map.

    Raises:
        ValueError: timm is not installed or does not know the model, the model does not have such
            maps, or it can neither be checkpointed nor leave out blocks.
    """

    def __init__(
        self, name: str, strides: Sequence[int], freeze_at: int = 0, frozen_norm: bool = False,
        checkpoints: bool = False, drop_path: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        net = _with_drop_path(name, drop_path)
        # Of several maps of a stride the last is the deepest.
        levels = {info["reduction"]: index for index, info in enumerate(net.feature_info)}
        if not levels.keys() >= set(strides):
            raise ValueError(
                f"timm's {name} gives maps of strides {sorted(levels)}, but "
                f"MODEL.BACKBONE.CONV_BODY needs {list(strides)}: use another model, or an ending "
                "such as -C4 that fits"
            )
        wanted = [levels[stride] for stride in strides]
        self.channels = [net.feature_info[index]["num_chs"] for index in wanted]
        self.padding_multiple = strides[-1]
        if freeze_at:
            _freeze(net, name, freeze_at)
        if frozen_norm:
            _freeze_norms(net, list(net.named_modules()))
        self.indices = net.prune_intermediate_layers(wanted, prune_norm=True)
        _fix_margins(net)
        if checkpoints:
            _checkpoint(net, name)
        self.net = net

    def layers(self) -> list[list[nn.Parameter]]:
        """The parameters of each stage (transformer: block) by timm's grouping, the stem first."""
        from timm.models import group_parameters

        matcher = self.net.group_matcher(coarse=True)
        groups = group_parameters(self.net, matcher, return_values=True)
        return [groups[number] for number in sorted(groups)]

    def forward(self, x: Tensor) -> list[Tensor]:
        """[B, 3, H, W] -> for each stride [B, C, H' / stride, W' / stride].

        H' and W' are H and W up to the next multiple of the last stride: some models cannot divide
        other sizes, some round up and some down.
        """
        x = pad_to(x, self.padding_multiple)
        return self.net.forward_intermediates(
            x, indices=self.indices, output_fmt="NCHW", intermediates_only=True
        )


def create(name: str, **options: Any) -> Any:
    """A classifier of timm without its last layer, which takes images of any size if it can.

    Raises:
        ValueError: timm is not installed, or does not know the model.
    """
    try:
        import timm
    except ImportError as error:
        raise ValueError(
            f"MODEL.BACKBONE.CONV_BODY names timm's {name}, but timm is not installed: "
            "pip install 'detlite[timm]'"
        ) from error
    if not timm.is_model(name):
        raise ValueError(
            f"MODEL.BACKBONE.CONV_BODY: timm {timm.__version__} has no model {name!r}; "
            "timm.list_models() names them"
        )
    # Transformers take one size of image only, unless they are asked by this option.
    try:
        return timm.create_model(name, num_classes=0, dynamic_img_size=True, **options)
    except TypeError:
        return timm.create_model(name, num_classes=0, **options)


def _with_drop_path(name: str, drop_path: float) -> Any:
    """By the key, 0 as well: some models, as Swin, have another default."""
    try:
        return create(name, drop_path_rate=drop_path)
    except TypeError as error:
        if not drop_path:
            return create(name)
        raise ValueError(
            f"MODEL.VIT.DROP_PATH is {drop_path}, but timm's {name} cannot leave out blocks in "
            "training: set it to 0"
        ) from error


def _freeze(net: Any, name: str, freeze_at: int) -> None:
    """Freezes the leading parts in the order in which the model lists its modules."""
    finer = [info["module"] for info in net.feature_info if info["reduction"] < 4]
    stages = {info["reduction"]: info["module"] for info in net.feature_info}
    coarser = [stages[stride] for stride in sorted(stages) if stride >= 4]
    if freeze_at == 1:
        last, whole = (finer[-1], True) if finer else (coarser[0], False)
    else:
        last, whole = coarser[min(freeze_at - 2, len(coarser) - 1)], True
    leading: list[tuple[str, nn.Module]] = []
    inside = False
    for path, module in net.named_modules():
        is_part = path == last or path.startswith(f"{last}.")
        if (inside or not whole) and is_part != inside:
            break
        inside = is_part
        leading.append((path, module))
    else:
        if not inside:
            raise ValueError(
                f"MODEL.BACKBONE.FREEZE_CONV_BODY_AT: timm's {name} lists no module {last!r} by "
                "which its stages could be told apart: set it to 0"
            )
    for _, module in leading:
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(False)
    _freeze_norms(net, leading)


def _fix_margins(net: nn.Module) -> None:
    """Fixes the margins of TensorFlow's "same" convolutions, which timm finds in every call.

    They depend on the size of a map modulo the stride, and that is 0 in an image that was padded.
    Graphs of free sizes could not be traced in minutes with sizes that are divided and rounded.
    """
    from timm.layers import Conv2dSame

    for path, conv in list(net.named_modules()):
        if type(conv) is Conv2dSame:
            sides = zip(conv.kernel_size, conv.stride, conv.dilation, strict=True)
            down, right = (max((k - 1) * d + 1 - stride, 0) for k, stride, d in sides)
            margins = (right // 2, right - right // 2, down // 2, down - down // 2)
            net.set_submodule(path, PaddedConv2d(conv, margins))


def _checkpoint(net: Any, name: str) -> None:
    """Asks the model for the checkpointing of activations that it has."""
    key = "MODEL.BACKBONE.CHECKPOINT_ACTIVATIONS"
    if takes_batch_statistics(net):
        raise ValueError(
            f"{key}: timm's {name} has batch norm, which would count every batch twice: set "
            "MODEL.TIMM.FROZEN_NORM to True as well, or this key to False"
        )
    try:
        net.set_grad_checkpointing()
    except (AttributeError, AssertionError) as error:
        raise ValueError(f"{key}: timm's {name} has no checkpointing: set it to False") from error


def _freeze_norms(net: nn.Module, modules: Sequence[tuple[str, nn.Module]]) -> None:
    """Replaces those of `modules` that are batch norm."""
    for path, module in modules:
        if isinstance(module, (nn.BatchNorm2d, nn.SyncBatchNorm)):
            net.set_submodule(path, frozen(module))
