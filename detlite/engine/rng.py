"""Random number generators: seed them, save their state, restore it."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_all(seed: int, deterministic: bool = False) -> None:
    """Seed random, numpy and torch on all devices with an integer from 0.

    If `deterministic`, torch uses only algorithms that are bit-for-bit reproducible, and raises a
    RuntimeError for an operator without one. On CUDA this has an effect only before cuBLAS is used
    for the first time.
    """
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(deterministic)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state(device: torch.device) -> dict[str, Any]:
    """Return the state of all generators as tensors and plain containers, for a checkpoint."""
    numpy_state: dict[str, Any] = np.random.get_state(legacy=False)
    numpy_state["state"]["key"] = numpy_state["state"]["key"].tolist()
    state = {"python": random.getstate(), "numpy": numpy_state, "torch": torch.get_rng_state()}
    if device.type != "cpu":
        state[device.type] = torch.get_device_module(device).get_rng_state(*_index(device))
    return state


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore what `rng_state` returned; a device without a saved state is left unchanged."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if device.type != "cpu" and device.type in state:
        torch.get_device_module(device).set_rng_state(state[device.type], *_index(device))


@contextmanager
def preserve_rng(device: torch.device) -> Iterator[None]:
    """Restore the generators, and the settings of `seed_all`, at the end of a `with` block."""
    state, cudnn = rng_state(device), torch.backends.cudnn
    settings = torch.are_deterministic_algorithms_enabled(), cudnn.benchmark
    try:
        yield
    finally:
        set_rng_state(state, device)
        # The call imports parts of torch; a signal may have interrupted their import.
        if torch.are_deterministic_algorithms_enabled() != settings[0]:
            torch.use_deterministic_algorithms(settings[0])
        cudnn.benchmark = settings[1]


def _index(device: torch.device) -> tuple[torch.device, ...]:
    """Return the device argument of torch's functions; functions of torch.mps have none."""
    return () if device.type == "mps" else (device,)
