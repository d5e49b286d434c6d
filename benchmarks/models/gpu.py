"""Measure a GPU in one run: training steps, the whole loop from JPEGs, inference, evaluation."""

import logging
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from yacs.config import CfgNode

from benchmarks.clock import synchronize
from benchmarks.data.loading import generated_dataset
from benchmarks.roofline import count_flops, matmul_peak
from detlite.config import ConfigError, load_config
from detlite.data import CocoDataset, build_train_loader
from detlite.engine.evaluate import evaluate_dataset
from detlite.engine.solver import build_optimizer
from detlite.engine.train_step import TrainStep
from detlite.modeling.compilation import compile_losses, compiler_works
from detlite.modeling.optimize_for_training import optimize_for_training

from .images import Batch, pin_memory, training_batch
from .inference import Inference
from .torchvision_baseline import seeded_model
from .training import Training

logger = logging.getLogger(__name__)

# Width over height of COCO's images: most have 640 x 480 or 640 x 427 pixels.
RATIOS = (4 / 3, 3 / 2, 4 / 3, 3 / 4)
_MODES = ("eager", "compiled")
# Kinds of kernels by parts of their names, the first that matches. The compiler names its kernels
# after all operations that they fuse.
_KINDS = (
    ("elementwise", ("triton",)),
    ("copies", ("memcpy", "memset", "copy")),
    ("detlite", ("detlite", "roi_align", "roi_pool", "nms", "crop_masks", "match_boxes", "paste")),
    ("convolution and matrix product",
     ("conv", "gemm", "cudnn", "cutlass", "wgrad", "dgrad", "nvjet", "xmma", "mm")),
    ("elementwise", ("elementwise", "relu", "add", "mul", "reduce", "where")),
)  # fmt: skip


@dataclass(frozen=True)
class GpuRow:
    """Result of one measurement.

    Attributes:
        task: "training", "training from JPEGs", "inference" or "evaluation".
        mode: images per call and how the model runs.
        images_per_s: calls back to back, including the work of the GPU.
        milliseconds: per call.
        memory_gib: the highest memory that torch allocated on the GPU.
        peak_fraction: operations per second over the highest rate of `torch.mm`.
        warm_up_s: time of the first calls, in which compilation happens.
        phases: milliseconds of each kind of kernel per step, and of the time without a kernel.
    """

    task: str
    mode: str
    images_per_s: float
    milliseconds: float
    memory_gib: float | None = None
    peak_fraction: float | None = None
    warm_up_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MixedTraining(Training):
    """Training steps on batches of landscape and of portrait images with a short side of `short`.

    The objects per image are those of COCO on average.
    """

    short: int = 800
    objects: int = 7

    def batches(
        self, cfg: CfgNode, prepare: Callable[[Batch], tuple[Any, ...]]
    ) -> Iterator[tuple[Any, ...]]:
        torch.manual_seed(0)
        classes, batches = cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES, []
        for ratio in RATIOS:  # the loader groups landscape and portrait images, too
            size = _sides(self.short, ratio)
            batch = training_batch(self.batch, *size, self.objects, classes)
            batches.append(prepare(pin_memory(batch) if self.device == "cuda" else batch))
        return cycle(batches)


def _sides(short: int, ratio: float) -> tuple[int, int]:
    """Return height and width of an image with a ratio of width to height."""
    return (short, round(short * ratio)) if ratio > 1 else (round(short / ratio), short)


@dataclass(frozen=True)
class GpuBenchmark:
    """Settings of the run.

    Attributes:
        config, opts, device: see `Training`.
        short: short side of the images.
        batches: images per training step. The last two are the least important.
        images: JPEGs of the whole loop and of the evaluation.
        steps: timed calls.
        seconds: measurements that would start later are left out.
        dtype: of training and inference.
    """

    config: str | Path
    opts: tuple[Any, ...] = ()
    device: str = "cuda"
    short: int = 800
    batches: tuple[int, ...] = (16, 2, 12, 8)
    images: int = 640
    steps: int = 20
    seconds: float = 480.0
    dtype: str = "bfloat16"

    def rows(self) -> Iterator[GpuRow]:
        """Run the measurements, the most important ones first."""
        start, peak = time.perf_counter(), matmul_peak(getattr(torch, self.dtype), self.device)
        first, *others = self.batches
        with tempfile.TemporaryDirectory() as folder:
            size = _sides(self.short * 3 // 5, RATIOS[0])
            dataset = generated_dataset(Path(folder), self.images, size)
            compiles = compiler_works(torch.device(self.device))
            # On a CPU, MODEL.COMPILE does not change the evaluation of optimized models.
            compiled_evaluation = compiles and self.device != "cpu"
            cases: list[tuple[bool, Callable[[], GpuRow]]] = [
                (True, lambda: self._train(first, False, peak)),
                (compiles, lambda: self._train(first, True, peak)),
                (True, lambda: self._train(others[0], False, peak)),
                (True, lambda: self._loop(first, False, dataset)),
                (True, lambda: self._infer(1)),
                (True, lambda: self._infer(16)),
                (True, lambda: self._evaluate(False, dataset, Path(folder))),
                (compiles, lambda: self._loop(first, True, dataset)),
                (compiled_evaluation, lambda: self._evaluate(True, dataset, Path(folder))),
                *((True, lambda n=n: self._train(n, False, peak)) for n in others[1:]),
                *((compiles, lambda n=n: self._train(n, True, peak)) for n in others),
            ]
            for is_possible, case in cases:
                if is_possible and time.perf_counter() - start < self.seconds:
                    try:
                        row = case()
                    except ConfigError:  # torch cannot compile this case
                        logger.exception("left out")
                    else:
                        yield row

    def _train(self, batch: int, compiled: bool, peak: float) -> GpuRow:
        training = MixedTraining(
            self.config, self.opts, batch, device=self.device, short=self.short, compiled=compiled
        )
        _reset(self.device)
        start = time.perf_counter()
        step = training.step("detlite", self.dtype)
        for _ in range(2 * len(RATIOS)):
            step()
        synchronize(self.device)
        warm_up, seconds = time.perf_counter() - start, _time(step, self.steps, self.device)
        flops = None
        if not compiled:  # the counter does not see compiled operations
            flops = count_flops(lambda: [step() for _ in RATIOS]) / len(RATIOS)
        return GpuRow(
            "training",
            f"{batch} images, {_MODES[compiled]}, {self.dtype}",
            batch / seconds,
            1e3 * seconds,
            _memory(self.device),
            flops / seconds / peak if flops else None,
            warm_up,
            kernel_times(step, len(RATIOS), self.device),
        )

    def _cfg(self, batch: int, *opts: Any) -> CfgNode:
        """Return the config as a user trains it: the loader reads and resizes bytes.

        With torchvision's settings, images are floats, four times as large.
        """
        settings = {
            "DTYPE": self.dtype,
            "MODEL.DEVICE": self.device,
            "MODEL.WEIGHT": "",
            "INPUT.MIN_SIZE_TRAIN": (self.short,),
            "INPUT.MIN_SIZE_TEST": self.short,
            "SOLVER.IMS_PER_BATCH": batch,
            "SOLVER.BASE_LR": 1e-8,
            "TEST.IMS_PER_BATCH": batch,
            "DATALOADER.NUM_WORKERS": max((os.cpu_count() or 1) - 2, 1),
        }
        pairs = [item for pair in settings.items() for item in pair]
        classes = ["MODEL.ROI_BOX_HEAD.NUM_CLASSES", 2]  # the generated dataset has one category
        return load_config(self.config, [*pairs, *opts, *self.opts, *classes])

    def _loop(self, batch: int, compiled: bool, dataset: CocoDataset) -> GpuRow:
        cfg = self._cfg(batch)
        _reset(self.device)
        model = optimize_for_training(seeded_model(cfg)).train()
        if compiled:
            compile_losses(model)
        scaler = torch.amp.GradScaler(self.device, enabled=False)
        step = TrainStep(cfg, model, build_optimizer(cfg, model), scaler)
        batches, start = iter(build_train_loader(cfg, dataset)), time.perf_counter()
        for images, targets in islice(batches, 3):
            step(images, targets)
        synchronize(self.device)
        warm_up = time.perf_counter() - start
        seconds = _time(lambda: step(*next(batches)), self.steps, self.device)
        workers = f"{cfg.DATALOADER.NUM_WORKERS} loader processes"
        mode = f"{batch} images, {_MODES[compiled]}, {self.dtype}, {workers}"
        memory = _memory(self.device)
        return GpuRow(
            "training from JPEGs", mode, batch / seconds, 1e3 * seconds, memory, None, warm_up
        )

    def _infer(self, batch: int) -> GpuRow:
        size = _sides(self.short, RATIOS[0])
        inference = Inference(self.config, self.opts, batch, size, device=self.device)
        _reset(self.device)
        call = inference.call("detlite", f"optimize {self.dtype}")
        start = time.perf_counter()
        for _ in range(3):
            call()
        warm_up, seconds = time.perf_counter() - start, _time(call, self.steps, self.device)
        mode = f"{batch} images to run lengths, optimized, {self.dtype}"
        memory = _memory(self.device)
        return GpuRow("inference", mode, batch / seconds, 1e3 * seconds, memory, None, warm_up)

    def _evaluate(self, compiled: bool, dataset: CocoDataset, folder: Path) -> GpuRow:
        cfg = self._cfg(8, "MODEL.COMPILE", compiled)
        _reset(self.device)
        model = seeded_model(cfg)
        model.categories = dataset.categories
        mode, start = f"{len(dataset)} images to metrics, optimized", time.perf_counter()
        if compiled:
            mode += " and compiled"
            evaluate_dataset(cfg, model, dataset, folder)
        warm_up, start = time.perf_counter() - start, time.perf_counter()
        evaluate_dataset(cfg, model, dataset, folder)
        seconds, memory = time.perf_counter() - start, _memory(self.device)
        return GpuRow(
            "evaluation", mode, len(dataset) / seconds, 1e3 * seconds, memory, None, warm_up
        )


def kernel_times(step: Callable[[], object], count: int, device: str) -> dict[str, float]:
    """Return the milliseconds of each kind of kernel per step, and of no kernel ("idle").

    On a CPU, these are torch's operators.
    """
    on_cuda = device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with profile(activities=activities) as profiler:
        start = time.perf_counter()
        for _ in range(count):
            step()
        synchronize(device)
        total = 1e3 * (time.perf_counter() - start) / count
    kinds: Counter[str] = Counter()
    for event in profiler.key_averages():
        is_kernel = event.device_type == torch.autograd.DeviceType.CUDA
        if on_cuda and (not is_kernel or event.is_user_annotation):
            continue  # calls on the host, and the times of regions such as optimizer steps
        time_us = event.self_device_time_total if on_cuda else event.self_cpu_time_total
        kinds[kernel_kind(event.key)] += time_us / 1e3 / count
    idle = max(total - sum(kinds.values()), 0.0)
    return {**dict(kinds.most_common()), "idle": idle}


def kernel_kind(kernel: str) -> str:
    """Return the kind of a kernel by its name: one of those in _KINDS, or "other"."""
    name = kernel.lower()
    matches = (kind for kind, parts in _KINDS if any(part in name for part in parts))
    return next(matches, "other")


def _time(call: Callable[[], object], count: int, device: str) -> float:
    """Return the seconds per call of `count` calls back to back: the median of three turns."""
    turns = []
    for _ in range(3):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(count):
            call()
        synchronize(device)
        turns.append((time.perf_counter() - start) / count)
    return statistics.median(turns)


def _reset(device: str) -> None:
    torch._dynamo.reset()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _memory(device: str) -> float | None:
    return torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
