"""Compile the training losses and the inference of a model by torch.compile, see MODEL.COMPILE.

Each operation between convolutions reads and writes whole maps. The compiler fuses them, and
launches fewer kernels.
"""

import contextlib
import functools
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from detlite.errors import ConfigError, one_line
from detlite.structures.instances import GroundTruth, Images, Proposals

from .detection_model import DetectionModel, M, shallow_copy
from .optimize_for_training import use_static_shapes

logger = logging.getLogger(__name__)

_COMPILER_PACKAGES = ("torch._dynamo", "torch._inductor", "torch.fx", "triton")


def compile_losses(model: DetectionModel, backend: str = "inductor") -> DetectionModel:
    """Compile the losses of a model, in place, and return it.

    Compiling takes a minute or more in the first step. torch keeps the result in the folder of the
    variable TORCHINDUCTOR_CACHE_DIR. Images may have any sizes. Losses, gradients and random
    numbers are those of the uncompiled model, up to rounding. Copies of the model are not compiled.

    If the compiler does not work here, log a warning and leave the model unchanged.

    Args:
        model: a model on its device, after `optimize_for_training`.
        backend: of torch.compile.
    """
    if not compiler_works(model.device, backend):
        return model
    use_static_shapes(model)
    parts = model.training_parts()
    for number, (module, method) in enumerate(parts, start=1):
        label = f"part {number} of {len(parts)} of the losses ({method})"
        setattr(module, method, _CompiledMethod(module, method, backend, label))
    return model


def compile_parts(
    model: DetectionModel, names: Sequence[str], backend: str = "inductor"
) -> DetectionModel:
    """Return a copy of a model for inference whose submodules of some names are compiled.

    The copy shares all weights with `model`. Images may have any sizes. Outputs are those of the
    uncompiled model, up to rounding. A second copy, or one of another model with the same layers,
    needs no new compilation in the same process.

    If the compiler does not work here, log a warning and return `model` itself.

    Args:
        model: a model in evaluation mode on its device.
        names: of submodules that compute on feature maps, see `detlite.inference.optimize.PARTS`.
        backend: of torch.compile.
    """
    return _with_compiled(model, names, backend) if compiler_works(model.device, backend) else model


@contextlib.contextmanager
def explain_compiler_errors() -> Iterator[None]:
    """Raise a ConfigError with the key MODEL.COMPILE instead of the errors of torch's compiler.

    The gradients of losses may be compiled as late as in `backward`.
    """
    try:
        yield
    except Exception as error:
        if not _is_of_compiler(error):
            raise
        raise ConfigError(
            f"torch {torch.__version__} cannot compile this model "
            f"({_first_line(error)}): set MODEL.COMPILE False"
        ) from error


class _CompiledFunction:
    """A function that is compiled when it is called for the first time."""

    def __init__(self, function: Callable[..., Any], backend: str, label: str) -> None:
        self.function, self._label = function, label
        # Otherwise the samples are different ones.
        options: Any = {"fallback_random": True} if backend == "inductor" else None
        self._compiled = torch.compile(function, backend=backend, options=options)
        self._is_first = True

    def __call__(self, *arguments: Any) -> Any:
        """Call the function.

        Raises:
            ConfigError: torch cannot compile it.
        """
        from torch._dynamo import config
        from torch._dynamo.utils import counters  # loads the compiler
        from torch.compiler import config as compiler_config
        from torch.fx.experimental import _config

        if self._is_first:
            logger.info("compiling %s, which may take minutes", self._label)
            self._is_first = False
        start, graphs = time.perf_counter(), counters["stats"]["unique_graphs"]
        # Lengths that are equal in the first batch may differ in the next one. torch counts the
        # compilations of all modules with the same code together.
        varying = _config.patch(use_duck_shape=False)  # type: ignore[attr-defined]
        # Otherwise the first number of rows of `head_losses` would be a constant of the graph.
        rows = compiler_config.patch(dynamic_sources="L['rows']")  # type: ignore[attr-defined]
        with explain_compiler_errors(), varying, rows, config.patch(recompile_limit=64):
            result = self._compiled(*arguments)
        if counters["stats"]["unique_graphs"] > graphs:  # the first time, or for other inputs
            logger.info("compiled %s in %.0f s", self._label, time.perf_counter() - start)
        return result


class _CompiledMethod(_CompiledFunction):
    """A compiled method of a module; without gradients, as in evaluation, the method itself."""

    def __init__(self, module: nn.Module, name: str, backend: str, label: str) -> None:
        super().__init__(getattr(module, name), backend, label)
        self._module, self._name = module, name

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return the method of the copied module; the compiled code belongs to the original."""
        return getattr(type(self._module), self._name).__get__(memo[id(self._module)])

    def __call__(self, *arguments: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.function(*arguments)
        return super().__call__(*map(_with_varying_lengths, arguments))


class _CompiledPart(nn.Module):
    """A compiled submodule for inference; with gradients, the submodule itself.

    Its arguments are lists of maps [B, C, H_l, W_l], or images, and in a head [R, ...] for each of
    R RoIs.
    """

    def __init__(self, part: nn.Module, name: str, backend: str) -> None:
        super().__init__()
        self.part = part
        self._has_rois = name in ("feature_extractor", "predictor")
        self._call = _CompiledFunction(part.forward, backend, f"the {name} for inference")

    def forward(self, *arguments: Any) -> Any:
        maps = pytree.tree_leaves(arguments)
        if self._has_rois:
            rois = maps.pop()
            if len(rois) < 2:  # torch would compile for 0 and for 1 separately
                return self.part(*arguments)
            _mark(rois, 0)
        if torch.is_grad_enabled():
            return self.part(*arguments)
        for level in maps:
            _mark(level, 0, 2, 3)
        return self._call(*arguments)


def _with_compiled(module: M, names: Sequence[str], backend: str) -> M:
    """Copy the modules that contain parts, which are compiled, and share everything else."""
    copied = shallow_copy(module)
    for name, child in module._modules.items():
        if name in names and child is not None:
            copied._modules[name] = _CompiledPart(child, name, backend)
        elif child is not None:
            copied._modules[name] = _with_compiled(child, names, backend)
    return copied


def _with_varying_lengths(argument: Any) -> Any:
    """Mark the lengths in an argument of a part of the losses that differ between batches.

    Without these marks, torch compiles for the lengths of the first batch, and once more when
    others follow. It also compiles separately for lengths of 0 and 1 and for missing fields, so
    ground truth is padded to at least two ignored regions, mask values and mask pieces.
    """
    if isinstance(argument, Images):
        _mark(argument.pixels, 2, 3)
    elif isinstance(argument, list):  # feature maps
        for level in argument:
            _mark(level, 2, 3)
    elif isinstance(argument, GroundTruth):
        ignored, masks = argument.ignored, argument.masks
        ignored = argument.boxes[:, :0] if ignored is None else ignored
        argument = replace(argument, ignored=_pad(ignored, 1), masks=None)
        for field in pytree.tree_leaves(argument):
            _mark(field, 1)
        if masks is not None:
            masks = replace(masks, values=_pad(masks.values, 0), pieces=_pad(masks.pieces, 0))
            for tensor in masks.tensors():
                _mark(tensor, 0)
            argument = replace(argument, masks=masks)
    elif isinstance(argument, Proposals):
        for field in pytree.tree_leaves(argument):
            _mark(field, 1)
    return argument


def _pad(tensor: Tensor, dimension: int) -> Tensor:
    """Append zeros to a dimension until its length is 2."""
    missing = max(0, 2 - tensor.shape[dimension])
    return F.pad(tensor, (0, 0) * (tensor.ndim - 1 - dimension) + (0, missing))


def _mark(tensor: Tensor | None, *dimensions: int) -> None:
    for dimension in dimensions if tensor is not None else ():
        torch._dynamo.maybe_mark_dynamic(tensor, dimension)


@functools.cache  # warn once
def compiler_works(device: torch.device, backend: str = "inductor") -> bool:
    """Compile a small function; return False, after a warning, if the compiler does not work."""
    try:
        torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(8, device=device))
    except Exception as error:  # the compiler, the linker, Triton or the driver may be missing
        logger.warning(
            "MODEL.COMPILE has no effect, because torch.compile does not work on %s here: %s",
            device, _first_line(error),
        )  # fmt: skip
        return False
    return True


def _is_of_compiler(error: Exception) -> bool:
    """Return True for an error of a compiler, or of a function that compiles gradients."""
    compiling = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
    from_compiler = type(error).__module__.startswith(_COMPILER_PACKAGES)
    return from_compiler or "_wrapped_bw_compiler" in compiling


def _first_line(error: Exception) -> str:
    """Return what a long message of the compiler says first, without the name of the backend."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.endswith("raised:")] or [type(error).__name__]
    return one_line(lines[0].rstrip(".:"))
