"""Time training steps of detlite and other libraries with the same weights, images and settings."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import nn
from yacs.config import CfgNode

from benchmarks.clock import Clock
from benchmarks.interleaved_timing import StepRow, interleaved_medians
from benchmarks.roofline import count_flops, matmul_peak, peak_memory
from detlite.data import build_train_dataset, build_train_loader
from detlite.engine.solver import build_optimizer
from detlite.modeling.compilation import compile_losses
from detlite.modeling.optimize_for_training import optimize_for_training
from detlite.modeling.precision import autocast

from .detectron2_baseline import AVAILABLE, WithEventStorage, detectron2_model, to_detectron2_batch
from .images import Batch, pin_memory, to_torchvision_batch, training_batch
from .phases import Stopwatch, measure_phases, phase_functions
from .torchvision_baseline import comparable_config, seeded_model, torchvision_model

LIBRARIES = ("detlite", "torchvision", *(["detectron2"] if AVAILABLE else []))
DTYPES = ("float32", "bfloat16")

Step = Callable[[], object]


@dataclass(frozen=True)
class Training:
    """Settings of a training step.

    Attributes:
        config: YAML file of a Mask R-CNN, changed to torchvision's settings.
        opts: overrides, applied last.
        batch: images per step.
        size: (height, width) of generated images.
        objects: objects per generated image.
        real: load images of the config's training set in every step, in this process; for
            torchvision, including the conversion to float images and bitmaps.
        device: "cpu" or "cuda".
        compiled: compile detlite's losses.
    """

    config: str | Path
    opts: tuple[Any, ...] = ()
    batch: int = 2
    size: tuple[int, int] = (800, 1216)
    objects: int = 20
    real: bool = False
    device: str = "cpu"
    compiled: bool = False

    def cfg(self) -> CfgNode:
        """Return the config with a tiny learning rate, so that all steps do the same work."""
        opts = {
            "MODEL.DEVICE": self.device,
            "SOLVER.IMS_PER_BATCH": self.batch,
            "SOLVER.BASE_LR": 1e-8,
            "DATALOADER.NUM_WORKERS": 0,
        }
        settings = [item for pair in opts.items() for item in pair]
        return comparable_config(self.config, [*settings, *self.opts])

    def batches(
        self, cfg: CfgNode, prepare: Callable[[Batch], tuple[Any, ...]]
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the same images and targets for every step, converted by `prepare`."""
        torch.manual_seed(0)
        if not self.real:
            classes = cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES
            batch = training_batch(self.batch, *self.size, self.objects, classes)
            yield from repeat(prepare(pin_memory(batch) if self.device == "cuda" else batch))
        dataset = build_train_dataset(cfg)
        while True:  # every new loader starts with the same batch
            yield prepare(next(iter(build_train_loader(cfg, dataset))))

    def step(self, library: str, dtype: str, watch: Stopwatch | None = None) -> Step:
        """Return a call that runs one step of a library.

        `watch` records the phases that are not functions of the library.
        """
        watch = watch or Stopwatch(self.device)
        cfg = self.cfg()
        model: Any = seeded_model(cfg)
        if library == "torchvision":
            model = torchvision_model(cfg, model)
            batches = self.batches(cfg, partial(to_torchvision_batch, device=self.device))
            optimizer = _torch_optimizer(cfg, model)
        elif library == "detectron2":
            model = WithEventStorage(detectron2_model(cfg, model))
            batches = self.batches(cfg, lambda batch: (to_detectron2_batch(batch),))
            optimizer = _torch_optimizer(cfg, model)
        else:
            batches = self.batches(cfg, lambda batch: batch)
            optimizer = build_optimizer(cfg, model)
            optimize_for_training(model)  # as the trainer does
            if self.compiled:
                compile_losses(model)
        model.train()

        def step() -> None:
            with watch.phase("other"):
                with watch.phase("data"):
                    batch = next(batches)
                with autocast(dtype, torch.device(self.device)):
                    losses = model(*batch)
                optimizer.zero_grad()
                with watch.phase("backward"):
                    torch.stack(list(losses.values())).sum().backward()
                with watch.phase("optimizer"):
                    optimizer.step()

        return step


def _torch_optimizer(cfg: CfgNode, model: nn.Module) -> torch.optim.Optimizer:
    """Build the config's optimizer with torch's functions."""
    trained, solver = [p for p in model.parameters() if p.requires_grad], cfg.SOLVER
    if solver.OPTIMIZER == "AdamW":
        return torch.optim.AdamW(trained, solver.BASE_LR, weight_decay=solver.WEIGHT_DECAY)
    return torch.optim.SGD(
        trained, solver.BASE_LR, solver.MOMENTUM, weight_decay=solver.WEIGHT_DECAY
    )


def benchmark_train(
    training: Training,
    turns: int = 5,
    libraries: tuple[str, ...] = LIBRARIES,
    dtypes: tuple[str, ...] = DTYPES,
    clock: Clock = time.perf_counter,
) -> Iterator[StepRow]:
    """Measure a step of each library with each data type, interleaved.

    Args:
        training: settings of the step.
        turns: timed steps, after a warm-up step.
        libraries, dtypes: some of LIBRARIES and DTYPES.
        clock: source of times.
    """
    device = training.device
    operations = {library: count_flops(training.step(library, "float32")) for library in libraries}
    for dtype in dtypes:
        peak = matmul_peak(getattr(torch, dtype), device, clock)
        watches = {library: Stopwatch(device, clock) for library in libraries}
        steps = {name: training.step(name, dtype, watches[name]) for name in libraries}
        seconds = interleaved_medians(steps, turns, device, clock)
        for library, step in steps.items():
            phases = measure_phases(
                step, phase_functions(library), watches[library], max(1, turns // 2)
            )
            yield StepRow(
                library,
                dtype,
                seconds[library],
                seconds["torchvision"] / seconds[library] if "torchvision" in seconds else None,
                operations[library] / 1e9,
                operations[library] / seconds[library] / peak,
                peak_memory(training.step, library, dtype, device=device),
                phases,
            )
