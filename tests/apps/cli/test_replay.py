"""`detlite replay` on a batch of a small Mask R-CNN."""

import pytest
import torch

from detlite.checkpoint.files import Checkpoint, save_checkpoint
from detlite.data import build_train_dataset
from detlite.engine.replay import save_batch
from detlite.modeling.build import build_model


@pytest.fixture
def kept(tiny_config, tmp_path):
    """A batch and the checkpoint of a model."""
    entry = {
        "name": "made",
        "type": "shapes",
        "path": "s",
        "split": "train",
        "images": 3,
        "seed": 1,
    }
    cfg = tiny_config(
        "DATASETS.ROOT", str(tmp_path), "DATASETS.CATALOG", [entry], "DATASETS.TRAIN", ("made",),
        "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 6, "SOLVER.IMS_PER_BATCH", 2, "OUTPUT_DIR", str(tmp_path),
        "INPUT.MIN_SIZE_TRAIN", (64,),
    )  # fmt: skip
    model = build_model(cfg)
    weights = Checkpoint(tmp_path / "w.pth", model.state_dict(), [], cfg.dump())
    save_checkpoint(weights)
    return save_batch(cfg, build_train_dataset(cfg), 1), weights


def test_valid_and_broken_weights(run_command, kept, capsys):
    batch, weights = kept
    arguments = ["--batch", batch, "--weights", weights.path]
    assert run_command("replay", *arguments) == 0
    out = capsys.readouterr().out
    assert "iteration 1, images [" in out
    assert "loss_mask" in out
    assert "first output that is not finite: none" in out
    # Finite weights, infinite features.
    next(value for value in weights.model.values() if value.ndim == 4).fill_(3e38)
    save_checkpoint(weights)
    assert run_command("replay", *arguments) == 1
    assert "first output that is not finite: backbone" in capsys.readouterr().out


def test_bad_input(run_command, kept, tmp_path, capsys):
    batch, weights = kept
    torch.save({}, tmp_path / "x.pth")
    for arguments in (
        ["--batch", tmp_path / "x.pth", "--weights", weights.path],
        ["--batch", batch, "--weights", tmp_path / "x.pth"],
        ["--batch", batch, "--weights", weights.path, "SEEED", 1],
    ):
        assert run_command("replay", *arguments) == 2
        assert capsys.readouterr().err.startswith("error: ")
