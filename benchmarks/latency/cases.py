"""Settings and results of the latency benchmark."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from .detlite_models import MODELS, MODES

PEERS = ("yolo11n-seg", "yolo26n-seg")  # exported by ultralytics
PEER_MODES = ("float32", "int8")
PEER_PATHS = ("predict", "compiled")
# Models whose phases are measured, at this size and with the most cores.
PROFILED = ("small", "Lite0-FPN")
PROFILED_SIZE = 512
JPEG_SIZE = 640


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark.

    Attributes:
        work: folder for the models; existing files are used again.
        peer_python: Python of an environment with ultralytics; None: YOLO is not measured.
        models: names in MODELS.
        modes: some of MODES.
        sizes: sides of the square images, multiples of 32.
        cores: numbers of cores.
        rounds: number of turns of each call.
        seconds, max_calls: a turn repeats the call until one of these limits is reached.
        cold_rounds: number of measured cold starts of each kind.
        clock: "wall" or "cpu", a key of `worker.CLOCKS`.
    """

    work: Path
    peer_python: Path | None = None
    models: tuple[str, ...] = tuple(MODELS)
    modes: tuple[str, ...] = MODES
    sizes: tuple[int, ...] = (320, 512, 800)
    cores: tuple[int, ...] = (1, 2)
    rounds: int = 3
    seconds: float = 0.3
    max_calls: int = 5
    cold_rounds: int = 3
    clock: str = "wall"

    def __post_init__(self) -> None:
        if bad := [size for size in self.sizes if size < 32 or size % 32]:
            raise ValueError(f"--sizes {bad[0]}: must be a multiple of 32")
        core_numbers(max(self.cores))

    @property
    def image(self) -> Path:
        """The JPEG file for phases and cold starts."""
        return self.work / "image.jpg"


@dataclass(frozen=True)
class LatencyRow:
    """Times of a model.

    Attributes:
        model: name of the model.
        mode: engine and data type, or the kind of a cold start.
        cores: number of cores and threads.
        size: side of the image; for cold starts, of the JPEG file.
        ms: median milliseconds per image.
        fastest_ms: the shortest time.
        calls: number of timed calls.
        detections: number of objects with masks.
        phases: milliseconds of each phase of a call.
    """

    model: str
    mode: str
    cores: int
    size: int
    ms: float
    fastest_ms: float
    calls: int
    detections: int
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def library(self) -> str:
        """Title of the column in a table of phases."""
        return self.model


def core_numbers(count: int) -> list[int]:
    """Return the numbers of `count` cores that this process may use.

    Raises:
        ValueError: this process may use fewer cores.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = list(range(os.cpu_count() or 1))
    if not 0 < count <= len(cores):
        raise ValueError(f"--cores {count}: must be 1 to {len(cores)}, which this process may use")
    return cores[-count:]
