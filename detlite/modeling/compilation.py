"""Compile the training losses of a model by torch.compile, see MODEL.COMPILE.

The compiler fuses the operations between convolutions, each of which reads and writes whole maps,
and launches fewer kernels.
"""

import logging
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from detlite.errors import ConfigError, one_line
from detlite.files import cache
from detlite.structures.instances import GroundTruth, Images, Proposals

from .detection_model import DetectionModel
from .optimize_for_training import use_static_shapes

logger = logging.getLogger(__name__)

_COMPILER_PACKAGES = ("torch._dynamo", "torch._inductor", "torch.fx", "triton")


def compile_losses(model: DetectionModel, backend: str = "inductor") -> DetectionModel:
    """Compile the losses of a model, in place, and return it.

    Compiling takes a minute or more in the first step. The result is kept in detlite's cache
    folder. Images may have any sizes. Losses, gradients and random numbers are those of the
    uncompiled model, up to rounding. Copies of the model are not compiled.

    If the compiler does not work here, log a warning and leave the model as it is.

    Args:
        model: a model on its device, after `optimize_for_training`.
        backend: of torch.compile.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    folder, chosen = cache.folder(), os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    # torch sets the variable to a folder in /tmp when its compiler is imported.
    if folder is not None and chosen in (None, default_cache_dir()):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "compiled")
    if reason := _why_unavailable(model.device, backend):
        logger.warning(
            "MODEL.COMPILE has no effect, because torch.compile does not work on %s here: %s",
            model.device, reason,
        )  # fmt: skip
        return model
    use_static_shapes(model)
    parts = model.training_parts()
    for number, (module, method) in enumerate(parts, start=1):
        label = f"part {number} of {len(parts)} of the losses ({method})"
        setattr(module, method, _CompiledMethod(module, method, backend, label))
    return model


@contextmanager
def explain_compiler_errors() -> Iterator[None]:
    """Raise a ConfigError with the key MODEL.COMPILE instead of the errors of torch's compiler.

    The gradients of compiled losses may be compiled as late as in `backward`.
    """
    try:
        yield
    except Exception as error:
        if not _is_of_compiler(error):
            raise
        raise ConfigError(
            f"torch {torch.__version__} cannot compile the losses of this model "
            f"({_first_line(error)}): set MODEL.COMPILE False"
        ) from error


class _CompiledMethod:
    """A compiled method of a module; without gradients, as in evaluation, the method itself."""

    def __init__(self, module: nn.Module, name: str, backend: str, label: str) -> None:
        self._name, self._method, self._label = name, getattr(module, name), label
        # Otherwise the samples are different ones.
        options: Any = {"fallback_random": True} if backend == "inductor" else None
        self._compiled = torch.compile(self._method, backend=backend, options=options)
        self._is_first = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return the method of the copied module; the compiled code belongs to the original."""
        return getattr(type(self._method.__self__), self._name).__get__(
            memo[id(self._method.__self__)]
        )

    def __call__(self, *arguments: Any) -> Any:
        """Call the method.

        Raises:
            ConfigError: torch cannot compile it.
        """
        if not torch.is_grad_enabled():
            return self._method(*arguments)
        from torch._dynamo.utils import counters  # loads the compiler
        from torch.fx.experimental import _config

        _mark_varying_lengths(arguments)
        if self._is_first:
            logger.info("compiling %s, which may take minutes", self._label)
            self._is_first = False
        start, graphs = time.perf_counter(), counters["stats"]["unique_graphs"]
        # Lengths that are equal in the first batch may differ in the next one.
        with explain_compiler_errors(), _config.patch(use_duck_shape=False):  # type: ignore[attr-defined]
            result = self._compiled(*arguments)
        if counters["stats"]["unique_graphs"] > graphs:  # the first time, or for other inputs
            logger.info("compiled %s in %.0f s", self._label, time.perf_counter() - start)
        return result


def _mark_varying_lengths(arguments: Any) -> None:
    """Mark the lengths in the arguments of a part of the losses that differ between batches.

    Without these marks, torch compiles for the lengths of the first batch, and once more when
    others follow.
    """
    for argument in arguments:
        if isinstance(argument, Images):
            _mark(argument.pixels, 2, 3)
        elif isinstance(argument, list):  # feature maps
            for level in argument:
                _mark(level, 2, 3)
        elif isinstance(argument, GroundTruth):
            for tensor in argument.masks.tensors() if argument.masks else ():
                _mark(tensor, 0)
            for field in (argument.boxes, argument.labels, argument.keypoints, argument.ignored):
                _mark(field, 1)
        elif isinstance(argument, Proposals):
            for field in pytree.tree_leaves(argument):
                _mark(field, 1)


def _mark(tensor: Tensor | None, *dimensions: int) -> None:
    for dimension in dimensions if tensor is not None else ():
        torch._dynamo.maybe_mark_dynamic(tensor, dimension)


def _why_unavailable(device: torch.device, backend: str) -> str:
    """Compile a small function, and return the error; "" if the compiler works."""
    try:
        torch.compile(_increment, backend=backend)(torch.zeros(8, device=device))
    except Exception as error:  # the compiler, the linker, Triton or the driver may be missing
        return _first_line(error)
    return ""


def _increment(x: Tensor) -> Tensor:
    return x + 1


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
