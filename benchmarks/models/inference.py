"""Inference, a picture in and run-length encoded masks out, beside torchvision's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pycocotools import mask as rle_codec
from torch import Tensor, nn
from yacs.config import CfgNode

from benchmarks.interleaved_timing import StepRow, in_turn
from benchmarks.operators.case import Clock
from benchmarks.roofline import flops, matmul_peak, peak_memory
from detlite.inference.optimize import optimize
from detlite.inference.predictor import Predictor
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.precision import autocast

from .detectron2_baseline import AVAILABLE, detected_masks, detectron2_model
from .images import pictures
from .phases import Stopwatch, phases_of, places_of
from .torchvision_baseline import comparable_config, seeded_model, spread_scores, torchvision_model

_EAGER = ("float32", "bfloat16")
_INT8 = all(find_spec(package) for package in ("openvino", "nncf"))  # extras
_OPTIMIZED = ("float32", "bfloat16", "int8") if _INT8 else _EAGER
# (library, way): eager in float32, by autocast in bfloat16, or optimized.
WAYS = (
    *(("torchvision", dtype) for dtype in _EAGER),
    *(("detectron2", dtype) for dtype in _EAGER if AVAILABLE),
    *(("detlite", dtype) for dtype in _EAGER),
    *(("detlite", f"optimize {dtype}") for dtype in _OPTIMIZED),
)


@dataclass(frozen=True)
class Inference:
    """What a call is.

    Attributes:
        config: of a Mask R-CNN, a YAML file; it is used at torchvision's settings.
        opts: overrides of it, which go over those.
        batch: pictures a call.
        size: (height, width) of them, which the network sees as they are.
        detections: the most of a picture; at least as many come out.
        threshold: that their scores pass.
        device: "cpu" or "cuda".
    """

    config: str | Path
    opts: tuple[Any, ...] = ()
    batch: int = 1
    size: tuple[int, int] = (800, 1216)
    detections: int = 100
    threshold: float = 0.05
    device: str = "cpu"

    def cfg(self) -> CfgNode:
        """The config at torchvision's settings."""
        opts = {
            "MODEL.DEVICE": self.device,
            "MODEL.ROI_HEADS.DETECTIONS_PER_IMG": self.detections,
            "MODEL.ROI_HEADS.SCORE_THRESH": self.threshold,
            "INPUT.MIN_SIZE_TEST": min(self.size),
            "INPUT.MAX_SIZE_TEST": max(self.size),
        }
        own = [item for pair in opts.items() for item in pair]
        return comparable_config(self.config, [*own, *self.opts])

    def call(self, library: str, way: str, watch: Stopwatch | None = None) -> Callable[[], object]:
        """A call of a library in one of its ways.

        A stopwatch gets the phases that no function stands for.
        """
        cfg = self.cfg()
        model = seeded_model(cfg).eval()
        images = pictures(self.batch, *self.size)
        # Five times as many as come out: what overlaps is suppressed.
        spread_scores(model, images[0], self.threshold, 5 * self.detections)
        if library == "torchvision":
            return _torchvision_call(torchvision_model(cfg, model).eval(), images, way)
        if library == "detectron2":
            return _detectron2_call(detectron2_model(cfg, model).eval(), images, way)
        prepared, dtype = _prepared(model, way, images)
        if watch:  # what replaces an optimized backbone is none of ours
            backbone: Any = prepared.backbone
            backbone.forward = watch.watching("backbone", backbone.forward)
        predictor = Predictor(prepared, min(self.size), max(self.size), rle=True, dtype=dtype)
        return lambda: predictor(images)


def _prepared(model: DetectionModel, way: str, images: list[Tensor]) -> tuple[DetectionModel, str]:
    """The model that a way calls, and the arithmetic of autocast."""
    if way in _EAGER:
        return model, way
    return optimize(model, way.removeprefix("optimize "), images), "float32"


def _torchvision_call(model: nn.Module, images: list[Tensor], dtype: str) -> Callable[[], object]:
    device = next(model.parameters()).device

    @torch.no_grad()
    def call() -> list[list[Any]]:
        with autocast(dtype, device):
            found = model([(image / 255).to(device) for image in images])
        # As its users do.
        return [_encoded(one["masks"][:, 0] >= 0.5) for one in found]

    return call


def _detectron2_call(model: nn.Module, images: list[Tensor], dtype: str) -> Callable[[], object]:
    device = next(model.parameters()).device

    @torch.no_grad()
    def call() -> list[list[Any]]:
        with autocast(dtype, device):
            masks = detected_masks(model, images)
        return [_encoded(one) for one in masks]  # as its evaluator does

    return call


def _encoded(masks: Tensor) -> list[Any]:
    """bool [N, H, W] -> COCO's RLEs."""
    bitmaps = masks.byte().cpu().numpy()
    return [rle_codec.encode(np.asfortranarray(bitmap)) for bitmap in bitmaps]


def benchmark_model(
    inference: Inference,
    turns: int = 5,
    ways: tuple[tuple[str, str], ...] = WAYS,
    clock: Clock = time.perf_counter,
) -> Iterator[StepRow]:
    """Measures all ways in turn.

    Args:
        inference: what a call is.
        turns: calls of each way that count, after one to warm up.
        ways: some of WAYS.
        clock: what times are read from.
    """
    device = inference.device
    names = {f"{library} {way}": (library, way) for library, way in ways}
    watches = {name: Stopwatch(device, clock) for name in names}
    calls = {name: inference.call(*way, watches[name]) for name, way in names.items()}
    counted = flops(inference.call("detlite", "float32"))
    peaks = {dtype: matmul_peak(getattr(torch, dtype), device, clock) for dtype in _EAGER}
    seconds = in_turn(calls, turns, device, clock)
    for name, (library, way) in names.items():
        dtype = way.removeprefix("optimize ")
        peer = seconds.get(f"torchvision {'float32' if dtype == 'int8' else dtype}")
        watch = watches[name]
        yield StepRow(
            library,
            way,
            seconds[name],
            peer / seconds[name] if peer else None,
            counted / 1e9,
            counted / seconds[name] / peaks[dtype] if dtype in peaks else None,
            peak_memory(inference.call, library, way, device=device),
            phases_of(
                watch.watching("other", calls[name]), places_of(library), watch, max(1, turns // 2)
            ),
        )
