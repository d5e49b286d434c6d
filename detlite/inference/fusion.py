"""Fuse convolutions with the norm, the addition and the activation after them, for inference.

A part of a model is traced by torch.fx. On the CPU each fused convolution is one call of oneDNN, if
torch has it.
"""

import operator
from typing import Any

import torch
from torch import fx, nn

from detlite.modeling.backbone.deform import DeformConv3x3
from detlite.modeling.backbone.timm_vit import TimmViT
from detlite.modeling.backbone.vit import ViT
from detlite.modeling.layers.asymmetric_padding import PaddedConv2d
from detlite.modeling.layers.conv import share_parameters
from detlite.modeling.layers.norm import (
    FrozenBatchNorm2d,
    FrozenBatchNormAct2d,
    LevelBatchNorm,
)
from detlite.modeling.optimize_for_training import undo_optimize_for_training
from detlite.modeling.roi_heads.pooler import Pooler

from .fused_layers import ACTIVATIONS, NORMS, FusedConv2d, InFloat32, cast, merge_convs

_ADDITIONS = {operator.add, operator.iadd, torch.add}
_WEIGHTED = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


def fuse(part: nn.Module, dtype: torch.dtype, levels: int, scores: bool) -> nn.Module:
    """Create a faster module with the parameters of `part`, which is in evaluation mode.

    Args:
        part: called with a batch, or with `features`, a list of levels.
        dtype: of maps and weights, float32 or a half type. Norms that cannot be folded keep their
            type, and modules that cannot be fused run in float32.
        levels: the number of levels of the backbone.
        scores: `part` predicts scores and box deltas, so its last layers run in float32.

    Raises:
        TraceError: the code of `part` depends on values or sizes, so it has no graph.
    """
    if any(isinstance(module, (TimmViT, ViT)) for module in part.modules()):
        raise fx.proxy.TraceError("a transformer has no convolutions to fuse, and reads sizes")
    undo_optimize_for_training(part)
    _split_layers(part)
    code = part.forward.__code__
    levels_only = code.co_varnames[1 : code.co_argcount] == ("features",)
    graph = _Tracer().trace(part, {"features": [fx.PH] * levels} if levels_only else None)
    traced = fx.GraphModule(part, graph)
    _drop_identities(traced)
    if scores:
        _fuse_last(traced)
    fused: dict[tuple[Any, ...], str] = {}
    for node in list(graph.nodes):
        if _is_conv(traced, node):
            _fuse_behind(traced, node, dtype, fused)
    if dtype != torch.float32:
        _cast(traced, dtype)
    _mark_overwritten(traced)
    traced.delete_all_unused_submodules()
    traced.recompile()
    for name, value in vars(part).items():  # such as out_channels
        if not name.startswith("_") and name != "training":
            setattr(traced, name, value)
    return traced.eval()


class _Tracer(fx.Tracer):
    """Treats poolers, norms, deformable convolutions and modules without children as leaves."""

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        leaf = isinstance(module, (Pooler, DeformConv3x3)) or not list(module.children())
        return leaf or super().is_leaf_module(module, name)


def _split_layers(module: nn.Module) -> None:
    """Split norms with an activation and convolutions with margins into two layers each.

    Each norm of a `LevelBatchNorm` gets the shared scale and shift.
    """
    for name, child in module.named_children():
        if isinstance(child, FrozenBatchNormAct2d):
            frozen = FrozenBatchNorm2d(len(child.weight), child.eps)
            frozen.load_state_dict(child.state_dict())
            setattr(module, name, nn.Sequential(frozen, child.act))
        elif isinstance(child, nn.BatchNorm2d) and hasattr(child, "act"):
            norm = nn.BatchNorm2d(child.num_features, child.eps, affine=child.affine)
            norm.load_state_dict(child.state_dict())
            setattr(module, name, nn.Sequential(norm.eval(), child.get_submodule("act")))
        elif isinstance(child, LevelBatchNorm):
            for own in child.children():
                assert isinstance(own, nn.modules.batchnorm._BatchNorm)
                own.affine, own.weight, own.bias = True, child.weight, child.bias
        elif isinstance(child, PaddedConv2d):
            padding = nn.ZeroPad2d(child.margins)
            setattr(module, name, nn.Sequential(padding, share_parameters(child)))
        else:
            _split_layers(child)


def _drop_identities(traced: fx.GraphModule) -> None:
    for node in list(traced.graph.nodes):
        layer = _module(traced, node)
        if isinstance(layer, nn.Identity | nn.Dropout) or type(layer).__name__ == "DropPath":
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)


def _module(traced: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    return traced.get_submodule(str(node.target)) if node.op == "call_module" else None


def _is_conv(traced: fx.GraphModule, node: fx.Node) -> bool:
    conv = _module(traced, node)
    if not isinstance(conv, nn.Conv2d) or type(conv) is not nn.Conv2d:
        return False  # subclasses may compute something else
    return conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def _fuse_last(traced: fx.GraphModule) -> None:
    """Run the last layers in float32, and merge last convolutions of the same map into one."""
    graph = traced.graph
    groups: dict[Any, list[fx.Node]] = {}
    for node in _last_layers(traced):
        groups.setdefault(_merge_key(traced, node) or node, []).insert(0, node)
    for nodes in groups.values():
        name = "last_" + "_".join(str(node.target) for node in nodes).replace(".", "_")
        layers = [traced.get_submodule(str(node.target)) for node in nodes]
        if not hasattr(traced, name):  # levels share the layers
            convs = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
            merged = merge_convs(convs) if _is_conv(traced, nodes[0]) else layers[0]
            traced.add_submodule(name, InFloat32(merged))
        with graph.inserting_before(nodes[0]):
            new = graph.call_module(name, nodes[0].args)
            if len(nodes) > 1:
                sizes = [layer.out_channels for layer in layers if isinstance(layer, nn.Conv2d)]
                split = graph.call_function(torch.split, (new, sizes, 1))
            for place, node in enumerate(nodes):
                part = graph.call_function(operator.getitem, (split, place)) if nodes[1:] else new
                node.replace_all_uses_with(part)
        for node in nodes:
            graph.erase_node(node)


def _merge_key(traced: fx.GraphModule, node: fx.Node) -> tuple[Any, ...] | None:
    """Return a key that is equal for convolutions that can be merged; None if it cannot be."""
    conv = _module(traced, node)
    if not isinstance(conv, nn.Conv2d) or not _is_conv(traced, node) or conv.groups > 1:
        return None
    return (node.args[0], conv.kernel_size, conv.padding, conv.stride, conv.dilation)


def _last_layers(traced: fx.GraphModule) -> list[fx.Node]:
    last, followed = [], set()
    for node in reversed(traced.graph.nodes):
        weighted = isinstance(_module(traced, node), _WEIGHTED)
        if weighted and node not in followed:
            last.append(node)
        if weighted or node in followed:
            followed.update(node.all_input_nodes)
    return last


def _fuse_behind(
    traced: fx.GraphModule, conv: fx.Node, dtype: torch.dtype, fused: dict[tuple[Any, ...], str]
) -> None:
    """Replace a convolution, and the layers that only it feeds, by a FusedConv2d."""
    end, norm, other, activation = conv, None, None, None
    following = _only_user(end)
    if following is not None and type(_module(traced, following)) in NORMS:
        end, norm = following, _module(traced, following)
        following = _only_user(end)
    if following is not None and following.target in _ADDITIONS and not following.kwargs:
        terms = [term for term in following.args if term is not end]
        if len(terms) == 1 and isinstance(terms[0], fx.Node):
            end, other = following, terms[0]
            following = _only_user(end)
    if following is not None:
        layer = _module(traced, following)
        kind = following.target if layer is None else type(layer)
        # With an addition oneDNN supports no other activation.
        if kind in ACTIVATIONS and (other is None or ACTIVATIONS[kind][0] == "relu"):
            end, activation = following, kind
    key = (conv.target, norm, activation)
    if key not in fused:  # levels share the layer
        fused[key] = f"fused_{len(fused)}"
        module = _module(traced, conv)
        assert isinstance(module, nn.Conv2d)
        traced.add_submodule(fused[key], FusedConv2d(module, norm, activation, dtype))
    with traced.graph.inserting_before(end):
        arguments = (conv.args[0],) if other is None else (conv.args[0], other)
        new = traced.graph.call_module(fused[key], arguments)
    end.replace_all_uses_with(new)
    traced.graph.eliminate_dead_code()


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _cast(traced: fx.GraphModule, dtype: torch.dtype) -> None:
    """Convert maps to `dtype`, and to float32 around modules that run in float32."""
    graph = traced.graph
    for node in list(graph.nodes):
        module = _module(traced, node)
        if isinstance(module, _WEIGHTED):
            module.to(dtype)
        elif module is not None and not isinstance(module, (FusedConv2d, InFloat32, Pooler)):
            if not [*module.parameters(), *module.buffers()]:
                continue
            with graph.inserting_before(node):
                node.args = tuple(graph.call_method("float", (x,)) for x in node.args)
            with graph.inserting_after(node):
                back = graph.call_method("to", (node, dtype))
            node.replace_all_uses_with(back, lambda user, back=back: user is not back)
    inputs = [node for node in graph.nodes if node.op == "placeholder" and node.name != "rois"]
    for node in inputs:
        first = next(step for step in graph.nodes if step.op != "placeholder")
        with graph.inserting_before(first):
            new = graph.call_function(cast, (node, dtype))
        node.replace_all_uses_with(new, lambda user, new=new: user is not new)


def _mark_overwritten(traced: fx.GraphModule) -> None:
    """Let a fused addition overwrite its second term if nothing reads that afterwards."""
    order = {node: place for place, node in enumerate(traced.graph.nodes)}
    for node in traced.graph.nodes:
        if isinstance(_module(traced, node), FusedConv2d) and len(node.args) == 2:
            other = node.args[1]
            fresh = (FusedConv2d, nn.MaxPool2d)  # their results share memory with nothing
            last = all(
                order[user] <= order[node] and isinstance(_module(traced, user), fresh)
                for user in other.users
            )
            if last and isinstance(_module(traced, other), fresh):
                node.kwargs = {"overwrite": True}
