"""Saved batches: they are read back unchanged, and the first non-finite output is found."""

import math

import pytest
import torch

from detlite.checkpoint.files import CheckpointError
from detlite.data import build_train_loader
from detlite.engine.replay import first_non_finite, read_batch, save_batch


@pytest.mark.parametrize("iteration", [1, 5])
def test_a_saved_batch_belongs_to_the_iteration(make_cfg, make_sets, iteration):
    cfg = make_cfg("DATALOADER.NUM_WORKERS", 2)
    train_set, _ = make_sets(cfg)
    stored, (images, targets) = read_batch(save_batch(cfg, train_set, iteration))
    expected_images, expected_targets = next(
        iter(build_train_loader(cfg, train_set, iteration - 1))
    )
    assert stored == iteration
    assert all(map(torch.equal, images, expected_images))
    for target, expected in zip(targets, expected_targets, strict=True):
        assert target.keys() == expected.keys()
        assert torch.equal(target["boxes"], expected["boxes"])
        assert torch.equal(target["masks"].values, expected["masks"].values)


def test_a_saved_batch_has_the_size_of_its_iteration(make_cfg, make_sets):
    cfg = make_cfg("INPUT.MIN_SIZE_TRAIN", (20,), "INPUT.EARLY_FRACTION", 0.5)
    train_set, _ = make_sets(cfg)
    for progress, side in ((0.4, 15), (0.5, 20)):
        _, (images, _) = read_batch(save_batch(cfg, train_set, 3, progress))
        assert {min(image.shape[1:]) for image in images} == {side}


def test_the_first_module_with_a_non_finite_output_is_found(make_cfg, make_sets, toy):
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


def test_other_files_are_refused(tmp_path, toy):
    torch.save(toy.state_dict(), tmp_path / "w.pth")
    (tmp_path / "text.pth").write_text("x")
    for name in ("w.pth", "text.pth", "none.pth"):
        with pytest.raises(CheckpointError, match=rf"{name}: is not a batch saved by"):
            read_batch(tmp_path / name)
