"""A training step, beside torchvision's with the same weights, images and settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import profile
from yacs.config import CfgNode

from benchmarks.interleaved_timing import StepRow, in_turn
from benchmarks.operators.case import Clock
from benchmarks.roofline import flops, matmul_peak, peak_memory
from detlite.data import build_train_dataset, build_train_loader
from detlite.engine.solver import build_optimizer
from detlite.modeling.precision import autocast

from .detectron2_baseline import AVAILABLE, Recorded, detectron2_model, for_detectron2
from .images import Batch, for_torchvision, training_batch
from .phases import Stopwatch, phases_of, places_of, watched
from .torchvision_baseline import comparable_config, seeded_model, torchvision_model

LIBRARIES = ("detlite", "torchvision", *(["detectron2"] if AVAILABLE else []))
DTYPES = ("float32", "bfloat16")

Step = Callable[[], object]


@dataclass(frozen=True)
class Training:
    """What a step is.

    Attributes:
        config: of a Mask R-CNN, a YAML file; it is used at torchvision's settings.
        opts: overrides of it, which go over those.
        batch: images a step.
        size: (height, width) of generated pictures.
        objects: in each of them.
        real: take pictures of the config's training set instead, and load them in every step, in
            this process. torchvision's are then made float, and their masks bitmaps, as well.
        device: "cpu" or "cuda".
    """

    config: str | Path
    opts: tuple[Any, ...] = ()
    batch: int = 2
    size: tuple[int, int] = (800, 1216)
    objects: int = 20
    real: bool = False
    device: str = "cpu"

    def cfg(self) -> CfgNode:
        """The config at torchvision's settings. The weights hardly move: all steps are alike."""
        opts = {
            "MODEL.DEVICE": self.device,
            "SOLVER.IMS_PER_BATCH": self.batch,
            "SOLVER.BASE_LR": 1e-8,
            "DATALOADER.NUM_WORKERS": 0,
        }
        own = [item for pair in opts.items() for item in pair]
        return comparable_config(self.config, [*own, *self.opts])

    def batches(
        self, cfg: CfgNode, prepare: Callable[[Batch], tuple[Any, ...]]
    ) -> Iterator[tuple[Any, ...]]:
        """The same images and targets for every step, prepared for a library."""
        torch.manual_seed(0)
        if not self.real:
            classes = cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES
            yield from repeat(
                prepare(training_batch(self.batch, *self.size, self.objects, classes))
            )
        dataset = build_train_dataset(cfg)
        while True:  # a new loader begins with the same batch
            yield prepare(next(iter(build_train_loader(cfg, dataset))))

    def step(self, library: str, dtype: str, watch: Stopwatch | None = None) -> Step:
        """A call that makes one step; a stopwatch gets the phases that no function stands for."""
        watch = watch or Stopwatch(self.device)
        cfg = self.cfg()
        model: Any = seeded_model(cfg)
        if library == "torchvision":
            model = torchvision_model(cfg, model)
            batches = self.batches(cfg, partial(for_torchvision, device=self.device))
            optimizer = _plain_optimizer(cfg, model)
        elif library == "detectron2":
            model = Recorded(detectron2_model(cfg, model))
            batches = self.batches(cfg, lambda batch: (for_detectron2(batch),))
            optimizer = _plain_optimizer(cfg, model)
        else:
            batches = self.batches(cfg, lambda batch: batch)
            optimizer = build_optimizer(cfg, model)
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


def _plain_optimizer(cfg: CfgNode, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that the config names, as torch's users build it."""
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
    """Measures a step of each library in each arithmetic, in turn.

    Args:
        training: what a step is.
        turns: steps of each that count, after one to warm up.
        libraries, dtypes: some of LIBRARIES and DTYPES.
        clock: what times are read from.
    """
    device = training.device
    counted = {library: flops(training.step(library, "float32")) for library in libraries}
    for dtype in dtypes:
        peak = matmul_peak(getattr(torch, dtype), device, clock)
        watches = {library: Stopwatch(device, clock) for library in libraries}
        steps = {name: training.step(name, dtype, watches[name]) for name in libraries}
        seconds = in_turn(steps, turns, device, clock)
        for library, step in steps.items():
            phases = phases_of(step, places_of(library), watches[library], max(1, turns // 2))
            yield StepRow(
                library,
                dtype,
                seconds[library],
                seconds["torchvision"] / seconds[library] if "torchvision" in seconds else None,
                counted[library] / 1e9,
                counted[library] / seconds[library] / peak,
                peak_memory(training.step, library, dtype, device=device),
                phases,
            )


def write_trace(training: Training, dtype: str, path: Path) -> None:
    """Writes what happens in detlite's second step, as chrome://tracing and perfetto.dev show it.

    Raises:
        OSError: the file cannot be written.
    """
    watch = Stopwatch(training.device)
    step = training.step("detlite", dtype, watch)
    step()
    with watched(places_of("detlite"), watch), profile() as profiler:
        step()
    profiler.export_chrome_trace(str(path))
