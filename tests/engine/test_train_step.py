"""Training steps: accumulation and clipping."""

import pytest
import torch

from detlite.config import ConfigError
from tests.engine.toy import new_toy, read_final


def test_gradients_are_clipped(train_toy, toy):
    before = {name: value.clone() for name, value in toy.named_parameters()}
    no_decay = ["SOLVER.WEIGHT_DECAY", 0.0, "SOLVER.WEIGHT_DECAY_NORM", 0.0]
    train_toy("SOLVER.CLIP_GRAD_NORM", 1e-6, *no_decay, model=toy)
    for name, value in toy.named_parameters():
        torch.testing.assert_close(value, before[name], rtol=0, atol=1e-6)


def test_accumulated_gradients_equal_those_of_the_whole_batch(train_toy, tmp_path):
    weights = []
    for parts in (1, 2, 4):
        opts = ["SOLVER.ACCUMULATION_STEPS", parts, "SOLVER.IMS_PER_BATCH", 4]
        model = new_toy(noise=0.0)  # random numbers and batch statistics would differ
        cfg, _ = train_toy(*opts, "OUTPUT_DIR", str(tmp_path / str(parts)), model=model)
        weights.append(read_final(cfg.OUTPUT_DIR).model)
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights[2], weights[0], rtol=1e-5, atol=1e-6)


def test_batches_that_cannot_be_divided_are_refused(train_toy):
    with pytest.raises(ConfigError, match=r"ACCUMULATION_STEPS 3 in 1 processes: .* multiple of 3"):
        train_toy("SOLVER.ACCUMULATION_STEPS", 3)
