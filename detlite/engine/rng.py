"""Generators of random numbers: seeded, kept in checkpoints, put back."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_all(seed: int, deterministic: bool = False) -> None:
    """Seeds random, numpy and torch (all devices); any seed from 0.

    With `deterministic` torch also takes algorithms that give the same bits each time, and raises
    a RuntimeError where it has none. CUDA reads the setting of cuBLAS when it is first used.
    """
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(deterministic)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state(device: torch.device) -> dict[str, Any]:
    """The generators' state in tensors and plain containers, fit for a checkpoint."""
    numpy_state: dict[str, Any] = np.random.get_state(legacy=False)
    numpy_state["state"]["key"] = numpy_state["state"]["key"].tolist()
    state = {"python": random.getstate(), "numpy": numpy_state, "torch": torch.get_rng_state()}
    if device.type != "cpu":
        state[device.type] = torch.get_device_module(device).get_rng_state(*_which(device))
    return state


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Puts back what `rng_state` took; a generator that it did not know stays as it is."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if device.type != "cpu" and device.type in state:
        own = state[device.type]
        torch.get_device_module(device).set_rng_state(own, *_which(device))


@contextmanager
def generators_kept(device: torch.device) -> Iterator[None]:
    """Leaves the generators as they were before."""
    state = rng_state(device)
    try:
        yield
    finally:
        set_rng_state(state, device)


def _which(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # of which there is one, not to be named
