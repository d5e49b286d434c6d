from __future__ import annotations

import math

import pytest
import torch

from detlite.conversion.checkpoint.files import CheckpointError
from detlite.data import build_train_loader
from detlite.engine.replay import first_non_finite, save_batch, read_batch


@pytest.mark.parametrize("iteration", [1, 5])
def test_the_batch_of_an_iteration_comes_back(make_cfg, make_sets, iteration):
    cfg = make_cfg("DATALOADER.NUM_WORKERS", 2)
    train_set, _ = make_sets(cfg)
    found, (images, targets) = read_batch(save_batch(cfg, train_set, iteration))
    wanted_images, wanted_targets = next(iter(build_train_loader(cfg, train_set, iteration - 1)))
    assert found == iteration
    assert all(map(torch.equal, images, wanted_images))
    for target, wanted in zip(targets, wanted_targets, strict=True):
        assert target.keys() == wanted.keys()
        assert torch.equal(target["boxes"], wanted["boxes"])
        assert torch.equal(target["masks"].values, wanted["masks"].values)


def test_where_it_begins(make_cfg, make_sets, toy):
    cfg = make_cfg()
    _, batch = read_batch(save_batch(cfg, make_sets(cfg)[0], 1))
    losses, where = first_non_finite(toy, batch)
    assert where is None
    assert set(losses) == {"loss_classifier", "loss_box"}
    with torch.no_grad():
        toy.norm.weight[0] = math.inf
    losses, where = first_non_finite(toy, batch)
    assert where == "norm"
    assert math.isnan(losses["loss_box"])
    assert not toy.norm._forward_hooks


def test_files_that_are_no_batch(tmp_path, toy):
    torch.save(toy.state_dict(), tmp_path / "w.pth")
    (tmp_path / "text.pth").write_text("x")
    for name in ("w.pth", "text.pth", "none.pth"):
        with pytest.raises(CheckpointError, match=rf"{name}: is not a batch that a run kept"):
            read_batch(tmp_path / name)
