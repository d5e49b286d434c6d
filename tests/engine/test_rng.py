"""Random number generators."""

import random

import numpy as np
import torch

from detlite.engine.rng import rng_state, seed_all, set_rng_state

CPU = torch.device("cpu")


def draw():
    # Normal values come in pairs: an odd number leaves one in the state of numpy and Python.
    return random.gauss(0, 1), float(np.random.randn()), torch.rand(3).tolist()


def test_a_seed_determines_all_generators():
    seed_all(2**40 + 1)
    first = draw()
    seed_all(2**40 + 1)
    assert draw() == first
    seed_all(2)
    assert draw() != first


def test_the_state_is_restored_from_a_file(tmp_path):
    seed_all(3)
    draw()
    torch.save(rng_state(CPU), tmp_path / "rng.pth")
    expected = [draw(), draw()]
    seed_all(4)
    set_rng_state(torch.load(tmp_path / "rng.pth", weights_only=True), CPU)
    assert [draw(), draw()] == expected
