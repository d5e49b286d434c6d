"""Backbones from timm (https://github.com/huggingface/pytorch-image-models)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from detlite.modeling.backbone.activation_checkpointing import check_no_batch_statistics
from detlite.modeling.backbone.build import call_with_fake_tensors
from detlite.modeling.backbone.windows import pad_to_multiple
from detlite.modeling.layers.conv import PaddedConv2d
from detlite.modeling.layers.norm import freeze_batch_norm

from .models import create_timm_model

# Candidates for the multiple that images are padded to, in cells of the coarsest map. Transformers
# with windows of 7 cells, for example, need a multiple of 7.
_PADDING_CELLS: tuple[int, ...] = (1, 2, 4, 7, 8, 10, 12, 14, 16)
_TEST_HEIGHT = 1344  # pixels, rounded up to the candidate


class TimmBackbone(nn.Module):
    """A timm classifier without its head. It returns the maps with certain strides.

    The state dict has timm's names, prefixed by `net.`.

    Args:
        strides: image pixels per cell of the returned maps, finest first.
        freeze_at: the number of leading parts that are not trained, with frozen batch norm. The
            first part is everything before the stage of stride 4, the second is that stage.
        frozen_norm: freeze all other batch norm as well.
        drop_path: probability of stochastic depth at the last block; it increases with depth.

    Raises:
        ValueError: timm does not know the model, or the model does not support the arguments.
    """

    def __init__(
        self, name: str, strides: Sequence[int], freeze_at: int = 0, frozen_norm: bool = False,
        checkpoint_activations: bool = False, drop_path: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        net = create_timm_model(name, drop_path)
        # The last of several maps of a stride is the deepest.
        levels = {info["reduction"]: index for index, info in enumerate(net.feature_info)}
        if not levels.keys() >= set(strides):
            raise ValueError(
                f"timm's {name} has maps of strides {sorted(levels)}, but "
                f"MODEL.BACKBONE.CONV_BODY needs {list(strides)}: use another model, or another "
                "suffix such as -C4"
            )
        indices = [levels[stride] for stride in strides]
        self.channels = [net.feature_info[index]["num_chs"] for index in indices]
        self.strides, self.padding_multiple = tuple(strides), strides[-1]
        if freeze_at:
            _freeze(net, name, freeze_at)
        if frozen_norm:
            freeze_batch_norm(net)
        self.indices = net.prune_intermediate_layers(indices, prune_norm=True)
        if checkpoint_activations:
            _checkpoint(net, name)
        self.net = net
        _fix_padding(net)
        self._set_padding_multiple(name, strides)

    def _set_padding_multiple(self, name: str, strides: Sequence[int]) -> None:
        """Find the multiple that image sides must be padded to, by calls with fake tensors."""
        problem, candidates = "", _PADDING_CELLS
        if type(self.net).__name__ == "MultiScaleVit":  # calls with fake tensors succeed
            problem, candidates = "it has positions for one image size only", ()
        for cells in candidates:
            self.padding_multiple = side = cells * strides[-1]
            height, width = -(-_TEST_HEIGHT // side) * side, side
            expected = [(height // stride, width // stride) for stride in strides]
            try:
                sizes = [tuple(x.shape[2:]) for x in call_with_fake_tensors(self, height, width)]
                if sizes == expected:
                    return
                message = f"its maps have {sizes} cells and not {expected}"
            except (DataDependentOutputException, DynamicOutputShapeException):
                return  # the failure does not depend on the size
            except Exception as error:  # the type depends on the model
                message = str(error).partition("\n")[0] or type(error).__name__
            problem = problem or f"images of {height} x {width} pixels: {message}"
        raise ValueError(
            f"MODEL.BACKBONE.CONV_BODY: timm's {name} does not support images of any size "
            f"({problem}): use another model"
        )

    def layers(self) -> list[list[nn.Parameter]]:
        """Return the parameters of each stage (or transformer block), the stem first."""
        from timm.models import group_parameters

        matcher = self.net.group_matcher(coarse=True)
        groups = group_parameters(self.net, matcher, return_values=True)
        return [groups[number] for number in sorted(groups)]

    def forward(self, x: Tensor) -> list[Tensor]:
        """Compute a map [B, C, H' / stride, W' / stride] for each stride.

        The image is padded to multiples of the last stride, or of its windows, because models round
        other sizes differently, or reject them.
        """
        x = pad_to_multiple(x, self.padding_multiple)
        return self.net.forward_intermediates(
            x, indices=self.indices, output_fmt="NCHW", intermediates_only=True
        )


def _freeze(net: Any, name: str, freeze_at: int) -> None:
    """Freeze the leading parts, in the order of the modules."""
    finer = [info["module"] for info in net.feature_info if info["reduction"] < 4]
    stages = {info["reduction"]: info["module"] for info in net.feature_info}
    coarser = [stages[stride] for stride in sorted(stages) if stride >= 4]
    if freeze_at == 1:
        last, whole = (finer[-1], True) if finer else (coarser[0], False)
    else:
        last, whole = coarser[min(freeze_at - 2, len(coarser) - 1)], True
    modules = list(net.named_modules())
    indices = [k for k, (path, _) in enumerate(modules) if f"{path}.".startswith(f"{last}.")]
    if not indices:
        raise ValueError(
            f"MODEL.BACKBONE.FREEZE_CONV_BODY_AT: timm's {name} has no module {last!r} at which a "
            "stage ends: set it to 0"
        )
    leading = modules[: indices[-1] + 1 if whole else indices[0]]
    for _, module in leading:
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(False)
    freeze_batch_norm(net, leading)


def _fix_padding(net: nn.Module) -> None:
    """Replace TensorFlow's "same" convolutions, which compute their padding in every call.

    The padding depends on the size of a map modulo the stride, which is always 0 because images are
    padded. With computed padding, tracing graphs with dynamic sizes would take minutes.
    """
    from timm.layers import Conv2dSame

    for path, conv in list(net.named_modules()):
        if type(conv) is Conv2dSame:
            sides = zip(conv.kernel_size, conv.stride, conv.dilation, strict=True)
            rows, columns = (max((k - 1) * d + 1 - stride, 0) for k, stride, d in sides)
            margins = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
            net.set_submodule(path, PaddedConv2d(conv, margins))


def _checkpoint(net: Any, name: str) -> None:
    """Turn on the model's own activation checkpointing."""
    check_no_batch_statistics(net, f"timm's {name}")
    try:
        net.set_grad_checkpointing()
    except (AttributeError, AssertionError) as error:
        raise ValueError(
            f"MODEL.BACKBONE.CHECKPOINT_ACTIVATIONS: timm's {name} has no activation "
            "checkpointing: set it to False"
        ) from error
