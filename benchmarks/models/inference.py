"""Time inference of detlite and other libraries, from an image to run-length encoded masks."""

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

from benchmarks.clock import Clock
from benchmarks.interleaved_timing import StepRow, interleaved_medians
from benchmarks.roofline import count_flops, matmul_peak, peak_memory
from detlite.apps.export.openvino import to_openvino
from detlite.inference.optimize import optimize
from detlite.inference.options import InferenceOptions, View
from detlite.inference.predictor import Predictor
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.precision import autocast
from detlite.structures import to_device

from .detectron2_baseline import AVAILABLE, detect_masks, detectron2_model
from .images import generate_images
from .phases import Stopwatch, measure_phases, phase_functions
from .torchvision_baseline import comparable_config, seeded_model, spread_scores, torchvision_model

_EAGER = ("float32", "bfloat16")
_INT8 = all(find_spec(package) for package in ("openvino", "nncf"))  # extras
_OPTIMIZED = ("float32", "bfloat16", "int8") if _INT8 else _EAGER
# (library, mode): float32, bfloat16 with autocast, or optimized.
MODES = (
    *(("torchvision", dtype) for dtype in _EAGER),
    *(("detectron2", dtype) for dtype in _EAGER if AVAILABLE),
    *(("detlite", dtype) for dtype in _EAGER),
    *(("detlite", f"optimize {dtype}") for dtype in _OPTIMIZED),
)


@dataclass(frozen=True)
class Inference:
    """Settings of an inference call.

    Attributes:
        config: YAML file of a Mask R-CNN, changed to torchvision's settings.
        opts: overrides, applied last.
        batch: images per call.
        size: (height, width) of the images, which are not resized.
        detections: detections per image; scores are scaled so that there are enough of them.
        threshold: score threshold.
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
        """Return the config with torchvision's settings."""
        opts = {
            "MODEL.DEVICE": self.device,
            "MODEL.ROI_HEADS.DETECTIONS_PER_IMG": self.detections,
            "MODEL.ROI_HEADS.SCORE_THRESH": self.threshold,
            "INPUT.MIN_SIZE_TEST": min(self.size),
            "INPUT.MAX_SIZE_TEST": max(self.size),
        }
        settings = [item for pair in opts.items() for item in pair]
        return comparable_config(self.config, [*settings, *self.opts])

    def call(self, library: str, mode: str, watch: Stopwatch | None = None) -> Callable[[], object]:
        """Return a call of a library in one of MODES.

        `watch` records the backbone, because an optimized one is not a function of detlite.
        """
        cfg = self.cfg()
        model = seeded_model(cfg).eval()
        images = generate_images(self.batch, *self.size)
        # Five times the number of detections, because NMS suppresses most of them.
        spread_scores(model, images[0], self.threshold, 5 * self.detections)
        if library == "torchvision":
            return _torchvision_call(torchvision_model(cfg, model).eval(), images, mode)
        if library == "detectron2":
            return _detectron2_call(detectron2_model(cfg, model).eval(), images, mode)
        detector, dtype = _prepare(model, mode, images)
        if watch:
            backbone: Any = detector.backbone
            backbone.forward = watch.wrap("backbone", backbone.forward)
        options = InferenceOptions(View(min(self.size), max(self.size)), dtype=dtype)
        predictor = Predictor(detector, rle=True, options=options)
        return lambda: predictor(images)


def _prepare(model: DetectionModel, mode: str, images: list[Tensor]) -> tuple[DetectionModel, str]:
    """Return the model of a mode, and the data type of autocast."""
    if mode in _EAGER:
        return model, mode
    if mode == "optimize int8":
        return to_openvino(model, images), "float32"
    return optimize(model, mode.removeprefix("optimize ")), "float32"


def _torchvision_call(model: nn.Module, images: list[Tensor], dtype: str) -> Callable[[], object]:
    device = next(model.parameters()).device

    @torch.no_grad()
    def call() -> list[list[Any]]:
        with autocast(dtype, device):
            detections = model([to_device(image / 255, device) for image in images])
        return [_encode(detected["masks"][:, 0] >= 0.5) for detected in detections]

    return call


def _detectron2_call(model: nn.Module, images: list[Tensor], dtype: str) -> Callable[[], object]:
    device = next(model.parameters()).device

    @torch.no_grad()
    def call() -> list[list[Any]]:
        with autocast(dtype, device):
            masks = detect_masks(model, images)
        return [_encode(image_masks) for image_masks in masks]

    return call


def _encode(masks: Tensor) -> list[Any]:
    """Convert masks, bool [N, H, W], to COCO's run lengths."""
    bitmaps = masks.byte().cpu().numpy()
    return [rle_codec.encode(np.asfortranarray(bitmap)) for bitmap in bitmaps]


def benchmark_model(
    inference: Inference,
    turns: int = 5,
    modes: tuple[tuple[str, str], ...] = MODES,
    clock: Clock = time.perf_counter,
) -> Iterator[StepRow]:
    """Measure all modes, interleaved.

    Args:
        inference: settings of the call.
        turns: timed calls of each mode, after a warm-up call.
        modes: some of MODES.
        clock: source of times.
    """
    device = inference.device
    names = {f"{library} {mode}": (library, mode) for library, mode in modes}
    watches = {name: Stopwatch(device, clock) for name in names}
    calls = {name: inference.call(*mode, watches[name]) for name, mode in names.items()}
    operations = count_flops(inference.call("detlite", "float32"))
    peaks = {dtype: matmul_peak(getattr(torch, dtype), device, clock) for dtype in _EAGER}
    seconds = interleaved_medians(calls, turns, device, clock)
    for name, (library, mode) in names.items():
        dtype = mode.removeprefix("optimize ")
        torchvision = seconds.get(f"torchvision {'float32' if dtype == 'int8' else dtype}")
        watch = watches[name]
        yield StepRow(
            library,
            mode,
            seconds[name],
            torchvision / seconds[name] if torchvision else None,
            operations / 1e9,
            operations / seconds[name] / peaks[dtype] if dtype in peaks else None,
            peak_memory(inference.call, library, mode, device=device),
            measure_phases(
                watch.wrap("other", calls[name]),
                phase_functions(library),
                watch,
                max(1, turns // 2),
            ),
        )
