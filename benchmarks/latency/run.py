"""Measure the latency of all models, alternately, each in a separate process."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from PIL import Image

from .cases import (
    JPEG_SIZE,
    PEER_MODES,
    PEER_PATHS,
    PEERS,
    PROFILED,
    PROFILED_SIZE,
    LatencyRow,
    Settings,
    core_numbers,
)
from .detlite_models import files, square_image
from .worker import ROOT, Answer, Worker, environment, use_cores

Key = tuple[str, str, int]  # model, mode, size


def benchmark_latency(settings: Settings) -> Iterator[LatencyRow]:
    """Yield the rows of all models, sizes and numbers of cores, and then the cold starts."""
    prepare(settings)
    thresholds: dict[Key, float] = {}
    for count in settings.cores:
        yield from _measure(settings, count, thresholds)
    if settings.cold_rounds:
        yield from _cold_starts(settings, max(settings.cores), thresholds)


def prepare(settings: Settings) -> None:
    """Write the image and the missing model files to the work folder."""
    settings.work.mkdir(parents=True, exist_ok=True)
    pixels = square_image(JPEG_SIZE).permute(1, 2, 0).numpy()
    Image.fromarray(pixels).save(settings.image, quality=95)
    for name in settings.models:
        if not all(file.exists() for file in files(settings.work, name)):
            _report(f"writing {name}")
            _run([sys.executable, "-m", "benchmarks.latency.detlite_models", "write",
                  str(settings.work), name])  # fmt: skip
    for name in PEERS if settings.peer_python else ():
        sizes = [s for s in settings.sizes if not all(
            _yolo_folder(settings, name, mode, s).exists() for mode in PEER_MODES
        )]  # fmt: skip
        if sizes:
            _report(f"writing {name}")
            _run([str(settings.peer_python), "-m", "benchmarks.latency.yolo_models", "write",
                  str(settings.work), name, *map(str, sizes)])  # fmt: skip


def _measure(settings: Settings, count: int, thresholds: dict[Key, float]) -> Iterator[LatencyRow]:
    """Yield the rows of one number of cores, and add the models' score thresholds."""
    limits = {"max_calls": settings.max_calls, "clock": settings.clock}
    with ExitStack() as stack:
        cases: dict[Key, tuple[Worker, dict[str, Any]]] = {}
        detections: dict[Key, int] = {}
        for model, mode, command, requests in _processes(settings):
            worker = Worker(command, core_numbers(count))
            stack.callback(worker.close)
            for name, request in requests.items():
                for size in settings.sizes:
                    case = {"size": size, **request, **limits}
                    key = (model, name or mode, size)
                    answer = worker.ask(seconds=0, **case)
                    thresholds[key], detections[key] = answer["threshold"], answer["detections"]
                    cases[key] = worker, case
            _report(f"{count} cores: {model} {mode} is loaded")
        times: dict[Key, list[float]] = defaultdict(list)
        for number in range(settings.rounds):
            for key, (worker, case) in cases.items():
                times[key] += worker.ask(seconds=settings.seconds, **case)["ms"]
            _report(f"{count} cores: round {number + 1} of {settings.rounds}")
        for key, (worker, case) in cases.items():
            model, mode, size = key
            phases = {}
            if count == max(settings.cores) and model in PROFILED and size == PROFILED_SIZE:
                phases = worker.ask(file=str(settings.image), **case)["phases"]
            yield LatencyRow(
                model, mode, count, size, statistics.median(times[key]), min(times[key]),
                len(times[key]), detections[key], phases,
            )  # fmt: skip


def _processes(settings: Settings) -> Iterator[tuple[str, str, list[str], dict[str, Answer]]]:
    """Yield model, mode, command, and the named requests; the name "" is the mode itself."""
    work = str(settings.work)
    for model in settings.models:
        for mode in settings.modes:
            module = "benchmarks.latency.detlite_models"
            yield model, mode, [sys.executable, "-m", module, "serve", work, model, mode], {"": {}}
    if settings.peer_python:
        for model in PEERS:
            for mode in PEER_MODES:
                module = "benchmarks.latency.yolo_models"
                command = [str(settings.peer_python), "-m", module, "serve", work, model, mode]
                yield (
                    model,
                    mode,
                    command,
                    {f"{mode}, {path}": {"path": path} for path in PEER_PATHS},
                )


def _cold_starts(
    settings: Settings, count: int, thresholds: dict[Key, float]
) -> Iterator[LatencyRow]:
    """Measure new processes alternately, after one of each kind that fills the bytecode cache."""
    cores = core_numbers(count)
    commands = dict(_cold_commands(settings, thresholds))
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    phases: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for number in range(settings.cold_rounds + 1):
        for key, command in commands.items():
            shutil.rmtree(settings.work / "predicted", ignore_errors=True)
            started = time.time()
            is_child = "benchmarks.latency.cold" in command
            words = [*command, str(started)] if is_child else command
            output = _run(words, cores, str(settings.work / "bytecode"))
            if number:
                times[key].append(1000 * (time.time() - started))
                if is_child:
                    phases[key].append(json.loads(output.splitlines()[-1]))
        _report(f"cold starts: round {number} of {settings.cold_rounds}")
    for (model, mode), ms in times.items():
        laps = phases[model, mode]
        names = laps[0] if laps else ()
        medians = {name: statistics.median(lap[name] for lap in laps) for name in names}
        yield LatencyRow(
            model, mode, count, JPEG_SIZE, statistics.median(ms), min(ms), len(ms), 0, medians
        )


def _cold_commands(
    settings: Settings, thresholds: dict[Key, float]
) -> Iterator[tuple[tuple[str, str], list[str]]]:
    """Yield (model, kind) and the command of a new process that runs a model on the JPEG file."""
    size = settings.sizes[-1] if PROFILED_SIZE not in settings.sizes else PROFILED_SIZE
    image = str(settings.image)
    for model in (name for name in PROFILED if name in settings.models):
        for mode in (mode for mode in ("float32", "openvino int8") if mode in settings.modes):
            file = files(settings.work, model)[0 if mode == "float32" else -1]
            threshold = f"{min(thresholds[model, mode, size], 1):.6f}"
            kind = "export to OpenVINO int8" if file.suffix == ".openvino" else "checkpoint"
            yield (model, f"detlite predict, {kind}"), [
                sys.executable, "-m", "detlite", "predict", "--weights", str(file), "--input",
                image, "--output", str(settings.work / "predicted"), "--threshold", threshold,
            ]  # fmt: skip
            yield (model, f"in phases, {kind}"), [
                sys.executable, "-m", "benchmarks.latency.cold", "detlite", str(file), image,
                threshold,
            ]  # fmt: skip
    for model in PEERS if settings.peer_python else ():
        folder = _yolo_folder(settings, model, "float32", size)
        threshold = f"{thresholds[model, 'float32, predict', size]:.9f}"
        yield (model, "in phases, OpenVINO float32"), [
            str(settings.peer_python), "-m", "benchmarks.latency.cold", "yolo", str(folder), image,
            threshold,
        ]  # fmt: skip


def _yolo_folder(settings: Settings, name: str, mode: str, size: int) -> Path:
    return settings.work / f"{name}_{size}_{mode}_openvino_model"


def _run(command: list[str], cores: list[int] | None = None, bytecode: str = "") -> str:
    """Run a program and return its output. Raises RuntimeError with the output if it fails."""
    env = environment(cores) if cores else dict(os.environ)
    if bytecode:
        env["PYTHONPYCACHEPREFIX"] = bytecode
    result = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True,
        preexec_fn=(lambda: use_cores(cores)) if cores else None,
    )  # fmt: skip
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def _report(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
