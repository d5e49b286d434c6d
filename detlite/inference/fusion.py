"""Fuse convolutions with the norm, the addition and the activation after them, for inference.

The code of a part of a model is recorded as a graph. Nodes of the graph are fused, and the graph is
compiled to Python code. On CPUs, a fused convolution is one call of oneDNN if torch has it.
"""

import functools
import operator
from importlib import import_module
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import fx, nn

from detlite.modeling.backbone.timm.vit import TimmViT
from detlite.modeling.backbone.vit import ViT
from detlite.modeling.optimize_for_training import (
    NoGraphError,
    is_customized,
    record_graph,
    undo_optimize_for_training,
)
from detlite.modeling.roi_heads.pooler import Pooler

from .fused_layers import ACTIVATIONS, NORMS, FusedConv2d, split_layers

_ADDITIONS = {operator.add, operator.iadd, torch.add}
_WEIGHTED = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


def fuse(part: nn.Module, dtype: torch.dtype, levels: int, scores: bool) -> nn.Module:
    """Create a faster module from `part`, which is in evaluation mode and is modified.

    Args:
        part: called with tensors; an argument named `features` is a list of levels.
        dtype: of maps and weights, float32 or a half type. Norms that cannot be folded keep their
            type, and modules that cannot be fused run in float32.
        levels: the number of levels of the backbone.
        scores: `part` predicts scores and box deltas, so its last layers run in float32.

    Raises:
        NoGraphError: the code of `part` depends on values or sizes, or it has hooks.
    """
    undo_optimize_for_training(part)
    if any(isinstance(module, (TimmViT, ViT)) for module in part.modules()):
        raise NoGraphError("a transformer has no convolutions to fuse, and reads sizes")
    if any(map(is_customized, part.modules())):
        raise NoGraphError("a layer has hooks or computed weights")
    split_layers(part)
    graph = _Graph(part, levels)
    graph.drop_identities()
    if scores:
        graph.in_float32 = graph.last_layers()
    graph.fuse_convs(dtype)
    if dtype != torch.float32:
        graph.cast(dtype)
    graph.mark_overwritten()
    return FusedPart(part, graph.graph).eval()


class FusedPart(nn.Module):
    """Runs the code of a fused graph, and has the attributes of the part, such as out_channels.

    It is pickled as code. A pickled `fx.GraphModule` is traced again when it is read, which patches
    `nn.Module` for all threads.
    """

    _forward: Any

    def __init__(self, part: nn.Module, graph: fx.Graph) -> None:
        super().__init__()
        used = fx.GraphModule(part, graph)  # has the layers that the graph calls
        self._modules, self._buffers, self._parameters = (
            used._modules, used._buffers, used._parameters,
        )  # fmt: skip
        for name, value in vars(part).items():
            if not name.startswith("_"):
                setattr(self, name, value)
        generated = graph.python_code("self")
        self.code = generated.src
        # Modules cannot be pickled, but their names can.
        self._globals = {
            name: value.__name__ if isinstance(value, ModuleType) else value
            for name, value in generated.globals.items()
        }
        self._define()

    def forward(self, *args: Any) -> Any:
        return self._forward(self, *args)

    def _define(self) -> None:
        names = {k: import_module(v) if isinstance(v, str) else v for k, v in self._globals.items()}
        exec(_bytecode(self.code), names)
        self._forward = names["forward"]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_forward"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._define()


@functools.cache
def _bytecode(code: str) -> CodeType:
    """Compile code to the same object every time, by which torch.compile finds its results."""
    return compile(code, "<fused>", "exec")


class _Graph:
    """The graph of a part. New layers become children of the part, and `in_float32` stay exact."""

    def __init__(self, part: nn.Module, levels: int) -> None:
        self.part = part
        self.in_float32: set[fx.Node] = set()
        self.graph = record_graph(part, levels)

    def drop_identities(self) -> None:
        for node in list(self.graph.nodes):
            layer = self._layer(node)
            if isinstance(layer, nn.Identity | nn.Dropout) or type(layer).__name__ == "DropPath":
                node.replace_all_uses_with(node.args[0])
                self.graph.erase_node(node)

    def fuse_convs(self, dtype: torch.dtype) -> None:
        """Replace each convolution and its exclusive followers with a FusedConv2d."""
        fused: dict[tuple[Any, ...], str] = {}
        for node in list(self.graph.nodes):
            conv = self._conv(node)
            if conv is None:
                continue
            fused_nodes, norm, other, activation = self._followers(node)
            key = (node.target, norm, activation)
            if key not in fused:  # levels share the layer
                fused[key] = f"_fused_{len(fused)}"
                own_dtype = torch.float32 if node in self.in_float32 else dtype
                self.part.add_module(fused[key], FusedConv2d(conv, norm, activation, own_dtype))
            with self.graph.inserting_before(fused_nodes[-1]):
                arguments = (node.args[0],) if other is None else (node.args[0], other)
                new = self.graph.call_module(fused[key], arguments)
            if node in self.in_float32:
                self.in_float32.add(new)
            fused_nodes[-1].replace_all_uses_with(new)
            for fused_node in reversed(fused_nodes):
                self.graph.erase_node(fused_node)

    def cast(self, dtype: torch.dtype) -> None:
        """Convert maps to `dtype`, and to float32 around modules that run in float32."""
        graph, floats = self.graph, dict[Any, fx.Node]()
        for node in list(graph.nodes):
            layer = self._layer(node)
            if node not in self.in_float32:
                if isinstance(layer, _WEIGHTED):
                    layer.to(dtype)
                if layer is None or isinstance(layer, (*_WEIGHTED, FusedConv2d, Pooler)):
                    continue
                if not [*layer.parameters(), *layer.buffers()]:
                    continue
            with graph.inserting_before(node):
                for x in node.args:  # layers of the same map share its conversion
                    floats[x] = floats.get(x) or graph.call_method("float", (x,))
            node.args = tuple(floats[x] for x in node.args)
            if node not in self.in_float32:
                self._convert_result(node, dtype)
        for node in list(graph.nodes):
            level = node.target is operator.getitem and node.args[0].op == "placeholder"
            if level or (node.op == "placeholder" and node.name not in ("features", "rois")):
                self._convert_result(node, dtype)

    def _convert_result(self, node: fx.Node, dtype: torch.dtype) -> None:
        with self.graph.inserting_after(node):
            converted = self.graph.call_method("to", (node, dtype))
        node.replace_all_uses_with(converted, lambda user: user is not converted)

    def mark_overwritten(self) -> None:
        """Let a fused addition overwrite its second term if nothing reads that afterwards."""
        order = {node: number for number, node in enumerate(self.graph.nodes)}
        fresh = (FusedConv2d, nn.MaxPool2d)  # their results do not share memory
        for node in self.graph.nodes:
            if isinstance(self._layer(node), FusedConv2d) and len(node.args) == 2:
                other = node.args[1]
                last = all(
                    order[user] <= order[node] and isinstance(self._layer(user), fresh)
                    for user in other.users
                )
                if last and isinstance(self._layer(other), fresh):
                    node.kwargs = {"overwrite": True}

    def _layer(self, node: fx.Node) -> nn.Module | None:
        return self.part.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _conv(self, node: fx.Node) -> nn.Conv2d | None:
        """Return the convolution that a node calls, if FusedConv2d can compute it."""
        conv = self._layer(node)
        if not isinstance(conv, nn.Conv2d) or type(conv) is not nn.Conv2d:
            return None  # subclasses may compute something else
        return None if conv.padding_mode != "zeros" or isinstance(conv.padding, str) else conv

    def last_layers(self) -> set[fx.Node]:
        """Return the layers with weights that no other one follows."""
        last, followed = set(), set()
        for node in reversed(self.graph.nodes):
            weighted = isinstance(self._layer(node), _WEIGHTED)
            if weighted and node not in followed:
                last.add(node)
            if weighted or node in followed:
                followed.update(node.all_input_nodes)
        return last

    def _followers(self, conv: fx.Node) -> tuple[list[fx.Node], nn.Module | None, Any, Any]:
        """Return a convolution and the nodes to fuse with it, the norm, addend and activation."""
        nodes, norm, other, activation = [conv], None, None, None
        following = _only_user(conv)
        if following is not None and type(self._layer(following)) in NORMS:
            nodes.append(following)
            norm = self._layer(following)
            following = _only_user(following)
        if following is not None and following.target in _ADDITIONS and not following.kwargs:
            terms = [term for term in following.args if term is not nodes[-1]]
            if len(terms) == 1 and isinstance(terms[0], fx.Node):
                nodes.append(following)
                other = terms[0]
                following = _only_user(following)
        if following is not None:
            layer = self._layer(following)
            kind = following.target if layer is None else type(layer)
            # After an addition, oneDNN supports only ReLU.
            if kind in ACTIVATIONS and (other is None or ACTIVATIONS[kind][0] == "relu"):
                nodes.append(following)
                activation = kind
        return nodes, norm, other, activation


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None
