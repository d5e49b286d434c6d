"""Make training of a model faster: one call, `optimize_for_training`, and its inverse.

Frozen batch norm becomes part of the convolution before it: scale * conv(x) + shift is a
convolution with the weights scale * w. Multiplying the weights costs far less than another pass
over a map, forward and backward. Their gradient flows through the product.
"""

import inspect
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from .backbone.deform import DeformConv3x3
from .detection_model import DetectionModel
from .layers.conv import (
    CPUConv2d,
    PaddedConv2d,
    share_parameters,
    slow_in_bfloat16,
    slow_in_float32,
)
from .layers.norm import FrozenBatchNorm2d
from .roi_heads.pooler import Pooler

logger = logging.getLogger(__name__)

_FOLDABLE = (nn.Conv2d, CPUConv2d, PaddedConv2d)


def optimize_for_training(model: DetectionModel) -> DetectionModel:
    """Prepare a model for fast training, in place, and return it.

    - Frozen batch norm of the backbone is folded into the convolutions.
    - Convolutions use faster gradients on CPUs.
    - Weights have the memory format of the maps, so that convolutions do not convert them.
    - On other devices shapes are static, so that no operation waits for values. The mask and
      keypoint heads still skip most of the padding, see `DetectionModel.reads_foreground`.

    Layers with hooks, parametrizations or pruned weights are unchanged, and keep the norms of the
    backbone from being folded. Results are the same up to rounding. Parameters and state dict
    names do not change, so optimizers and checkpoints can be created before or after. A second call
    changes nothing.
    """
    fold_frozen_norms(model.backbone.body)
    use_fast_conv_gradients(model)
    model.use_memory_format()
    if model.device.type != "cpu":
        use_static_shapes(model)
    return model


def is_customized(module: nn.Module) -> bool:
    """Return True if a layer does more than its class, so that no other layer may replace it.

    It has hooks, parametrizations (spectral and weight norm), or weights that are no parameters but
    computed before each call (pruning).
    """
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return (
        any(getattr(module, name) for name in hooks)
        or parametrize.is_parametrized(module)
        or any(isinstance(vars(module).get(name), Tensor) for name in ("weight", "bias"))
    )


def use_static_shapes(model: DetectionModel) -> None:
    """Make the shapes of training independent of values, except for the number of foreground
    samples."""
    model.static_shapes = model.reads_foreground = True


def undo_optimize_for_training(module: nn.Module) -> None:
    """Replace the layers of `optimize_for_training` inside `module` with plain ones."""
    for path, layer in list(module.named_modules()):
        if isinstance(layer, CPUConv2d):
            if isinstance(layer, FoldedConvBN2d):
                layer.norm.folded = False
            kind = share_parameters if layer.margins is None else PaddedConv2d
            module.set_submodule(path, kind(layer))


def use_fast_conv_gradients(model: nn.Module) -> None:
    """Replace convolutions that have slow gradients on CPUs with `CPUConv2d`."""
    for path, conv in list(model.named_modules()):
        if type(conv) not in (nn.Conv2d, PaddedConv2d) or is_customized(conv):
            continue
        assert isinstance(conv, nn.Conv2d)
        slow = slow_in_bfloat16(conv) or slow_in_float32(conv)
        if slow and conv.padding_mode == "zeros":
            model.set_submodule(path, CPUConv2d(conv))


class FoldedConvBN2d(CPUConv2d):
    """A convolution and the frozen batch norm after it, computed as one convolution.

    `norm` keeps its place in the model, so that its entries in checkpoints keep their names, but
    returns its input from now on.
    """

    def __init__(self, conv: nn.Conv2d, norm: FrozenBatchNorm2d) -> None:
        super().__init__(conv)
        self._norm = (norm,)  # in a tuple, because a child would have entries in the state dict
        # The buffers of the norm with their versions, and the scale and shift that they give.
        self._kept: tuple[list[tuple[Tensor, int]], tuple[Tensor, Tensor]] | None = None
        norm.folded = True

    @property
    def norm(self) -> FrozenBatchNorm2d:
        """The batch norm."""
        return self._norm[0]

    def forward(self, x: Tensor) -> Tensor:
        """Convolve and normalize [B, C, H, W]."""
        scale, shift = self._scale_and_shift()
        bias = shift if self.bias is None else torch.addcmul(shift, self.bias, scale)
        x = x if self.margins is None else F.pad(x, self.margins)
        return self._conv_forward(x, self.weight * scale[:, None, None, None], bias)

    def _scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """Return those of the norm, computed again only if one of its buffers was changed.

        They would be a fifth of the kernels of a training step. A change through `buffer.data` is
        not noticed, because torch does not count it.
        """
        if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
            return self.norm.scale_and_shift()
        now = [(buffer, buffer._version) for buffer in self.norm.buffers()]
        if self._kept is None or any(
            buffer is not kept or version != before
            for (buffer, version), (kept, before) in zip(now, self._kept[0], strict=True)
        ):
            self._kept = now, self.norm.scale_and_shift()
        return self._kept[1]


def fold_frozen_norms(backbone: nn.Module) -> None:
    """Fold each frozen batch norm into the convolution before it, if nothing else reads its input.

    The pairs are found in the graph of `backbone`. If it has none, or a layer has hooks, which the
    pairs would drop, the norms stay.
    """
    if not any(isinstance(m, FrozenBatchNorm2d) and not m.folded for m in backbone.modules()):
        return
    if any(map(is_customized, backbone.modules())):
        logger.info("frozen batch norm is not folded: a layer has hooks or computed weights")
        return
    try:
        pairs = list(_conv_norm_pairs(backbone))
    except NoGraphError as error:
        reason = str(error).partition("\n")[0]
        logger.info("frozen batch norm is not folded into convolutions: %s", reason)
        return
    for path, norm in pairs:
        conv = backbone.get_submodule(path)
        assert isinstance(conv, nn.Conv2d)
        backbone.set_submodule(path, FoldedConvBN2d(conv, norm))


def _conv_norm_pairs(backbone: nn.Module) -> Iterator[tuple[str, FrozenBatchNorm2d]]:
    """Yield the path of each convolution that only a frozen norm reads, and that norm."""
    with torch.no_grad():  # without activation checkpointing
        nodes = record_graph(backbone).nodes
    layers = {n: backbone.get_submodule(str(n.target)) for n in nodes if n.op == "call_module"}
    calls = Counter(layers.values())
    for node, norm in layers.items():
        producer = node.args[0]
        conv = layers.get(producer)
        if (
            isinstance(norm, FrozenBatchNorm2d)
            and isinstance(conv, nn.Conv2d)
            and type(conv) in _FOLDABLE
            and conv.padding_mode == "zeros"
            and calls[norm] == calls[conv] == len(producer.users) == 1
        ):
            yield str(producer.target), norm


class NoGraphError(ValueError):
    """The graph of a module cannot be traced: its code depends on values, or it has hooks."""


def record_graph(part: nn.Module, levels: int = 0) -> fx.Graph:
    """Record the calls of modules and functions in `part`, without running them.

    An argument named `features` is a list of `levels` maps. Unlike `fx.Tracer.trace`, torch is not
    patched, so other threads can use it.

    Raises:
        NoGraphError: the code of `part` depends on values or sizes.
    """
    return _Recorder(part, levels).graph


class _Recorder(fx.Tracer):
    def __init__(self, part: nn.Module, levels: int) -> None:
        super().__init__()
        self.root, self.graph, self.tensor_attrs = part, fx.Graph(), {}
        leaves = {path: m for path, m in part.named_modules() if path and _is_leaf(m)}
        try:
            for path, leaf in leaves.items():
                vars(leaf)["forward"] = self._recorder(path)
            arguments = []
            for name in inspect.signature(part.forward).parameters:
                proxy: Any = self.create_proxy("placeholder", name, (), {})
                is_list = name == "features"
                arguments.append([proxy[i] for i in range(levels)] if is_list else proxy)
            self.create_node("output", "output", (self.create_arg(part.forward(*arguments)),), {})
        except Exception as error:  # from the code of the part
            raise NoGraphError(str(error)) from error
        finally:
            for leaf in leaves.values():
                vars(leaf).pop("forward", None)

    def _recorder(self, path: str) -> Any:
        return lambda *args, **kwargs: self.create_proxy("call_module", path, args, kwargs)


def _is_leaf(module: nn.Module) -> bool:
    if isinstance(module, (Pooler, DeformConv3x3, FrozenBatchNorm2d)) or not [*module.children()]:
        return True
    return type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.Sequential)
