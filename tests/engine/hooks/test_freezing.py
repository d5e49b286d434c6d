"""A body that is not trained at first, and norms that see too few images."""

from __future__ import annotations

import itertools

import pytest
import torch

from detlite.conversion.checkpoint.files import Checkpoint, read_checkpoint
from detlite.engine.checkpointer import build_state
from detlite.engine.hooks.freezing import resolve_frozen_norms
from detlite.engine.rng import seed_all
from detlite.engine.run_length import Budget
from detlite.engine.trainer import train
from detlite.modeling.build import build_model


@pytest.fixture
def run(make_cfg, make_sets, toy, tmp_path):
    """Trains a new toy detector, whose body is frozen at first; returns its checkpoints."""

    def start(folder, *opts, model=None, resume=False, frozen=3):
        cfg = make_cfg(
            "SOLVER.BACKBONE_FREEZE_ITERS", frozen, "SOLVER.MAX_ITER", 6,
            "SOLVER.CHECKPOINT_PERIOD", 1, "SOLVER.TEST_PERIOD", 2,
            "OUTPUT_DIR", str(tmp_path / folder), *opts,
        )  # fmt: skip
        train_set, test_sets = make_sets(cfg)
        torch.manual_seed(0)
        model = model or type(toy)()
        model.categories = train_set.categories
        seed_all(0)
        train(cfg, model, train_set, test_sets, resume)
        names = [f"model_{number:07d}.pth" for number in range(1, 6)] + ["model_final.pth"]
        return [read_checkpoint(tmp_path / folder / name) for name in names]

    return start


def moved(checkpoints, name):
    """In which iterations after the first an entry changed."""
    values = [checkpoint.model[name] for checkpoint in checkpoints]
    pairs = itertools.pairwise(values)
    return [
        number for number, (before, after) in enumerate(pairs, 2) if not torch.equal(before, after)
    ]


def test_a_body_that_never_begins_to_learn_is_told(run, caplog):
    run("some", frozen=5)
    assert "not trained at all" not in caplog.text
    run("all", frozen=6)
    assert "BACKBONE_FREEZE_ITERS is 6 and the run has 6 iterations: the body is not" in caplog.text


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_the_body_begins_to_learn_after_so_many_iterations(run, optimizer):
    checkpoints = run("run", "SOLVER.OPTIMIZER", optimizer, "SOLVER.WEIGHT_DECAY", 0.1)
    for name in ("body.weight", "norm.bias", "norm.running_mean", "norm.num_batches_tracked"):
        assert moved(checkpoints, name) == [4, 5, 6]
    assert moved(checkpoints, "roi_heads.box.predictor.cls_score.weight") == [2, 3, 4, 5, 6]
    groups = [checkpoint.training["optimizer"]["param_groups"] for checkpoint in checkpoints]
    assert len({tuple(tuple(group["params"]) for group in found) for found in groups}) == 1
    known = [len(checkpoint.training["optimizer"]["state"]) for checkpoint in checkpoints]
    assert known == [4, 4, 4, 8, 8, 8]  # momentum begins with the first step


@pytest.mark.parametrize("call", [2, 4, 5])
def test_a_run_is_resumed_exactly_before_at_and_after_the_change(run, toy, monkeypatch, call):
    straight = run("straight")[-1]
    torch.manual_seed(0)
    model = type(toy)()
    forward, calls = model.forward, []

    def interrupt(*args):
        calls.append(args)
        if len(calls) == call:
            raise KeyboardInterrupt
        return forward(*args)

    monkeypatch.setattr(model, "forward", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run("broken", model=model)
    resumed = run("broken", resume=True)[-1]
    torch.testing.assert_close(resumed.model, straight.model, rtol=0, atol=0)
    ours, theirs = (one.training["optimizer"] for one in (resumed, straight))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_what_is_never_trained_stays_so(tiny_config):
    cfg = tiny_config("MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 2, "SOLVER.BACKBONE_FREEZE_ITERS", 1)
    model = build_model(cfg).train()
    body = model.backbone.body
    never = [name for name, p in body.named_parameters() if not p.requires_grad]
    assert never
    _, step = build_state(cfg, model, Budget(2))
    assert not any(p.requires_grad for p in body.parameters())
    assert all(p.requires_grad for p in model.rpn.parameters())
    image = torch.rand(3, 64, 64)
    target = {
        "boxes": torch.tensor([[8.0, 8, 40, 40]]),
        "labels": torch.tensor([1]),
        "masks": torch.ones(1, 64, 64, dtype=torch.uint8),
    }
    step(1, [image], [target] if cfg.MODEL.MASK_ON else [{**target, "masks": None}])
    assert [name for name, p in body.named_parameters() if not p.requires_grad] == never


SHARED = """
import sys, torch, yaml
from conftest import ToyDetector
from detlite.config import config_from
from detlite.data import build_train_dataset
from detlite.distributed import process_group
from detlite.engine.trainer import train

cfg = config_from(yaml.safe_load(open("config.yaml")), "config.yaml")
with process_group("cpu"):
    torch.manual_seed(0)
    model = ToyDetector(noise=0.0)
    train_set = build_train_dataset(cfg)
    model.categories = train_set.categories
    train(cfg, model, train_set, [])
"""


def test_two_processes_unfreeze_as_one(make_cfg, make_sets, toy, in_two_processes, tmp_path):
    """Gradients of what is trained from now on travel too, and no other hook is left behind."""
    opts = ["SOLVER.IMS_PER_BATCH", 4, "SOLVER.MAX_ITER", 8, "DATASETS.TEST", ()]
    opts += ["SOLVER.BACKBONE_FREEZE_ITERS", 3, "SOLVER.BASE_LR", 0.01]
    cfg = make_cfg(*opts, "OUTPUT_DIR", str(tmp_path / "alone"))
    torch.manual_seed(0)
    model = type(toy)(noise=0.0)
    train_set, _ = make_sets(cfg)
    model.categories = train_set.categories
    before = model.body.weight.detach().clone()
    train(cfg, model, train_set, [])
    assert not torch.equal(model.body.weight, before)
    shared = make_cfg(*opts, "OUTPUT_DIR", str(tmp_path / "shared"))
    (tmp_path / "config.yaml").write_text(shared.dump())
    in_two_processes(SHARED)
    ours, theirs = (
        read_checkpoint(tmp_path / name / "model_final.pth").model for name in ("alone", "shared")
    )
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("norm", "batch", "parts", "wanted"),
    [
        ("BN", 4, 1, "BN"),
        ("BN", 3, 1, "FrozenBN"),
        ("BN", 8, 4, "FrozenBN"),
        ("SyncBN", 2, 1, "FrozenBN"),
        ("GN", 1, 1, "GN"),
        ("FrozenBN", 16, 1, "FrozenBN"),
    ],
)
def test_norms_by_batch(tiny_config, norm, batch, parts, wanted, caplog):
    caplog.set_level("INFO")
    cfg = tiny_config(
        "MODEL.RESNETS.NORM", norm, "SOLVER.IMS_PER_BATCH", batch,
        "SOLVER.ACCUMULATION_STEPS", parts, "MODEL.BACKBONE.FREEZE_NORM_BELOW", 4,
    )  # fmt: skip
    found = resolve_frozen_norms(cfg)
    assert wanted == found.MODEL.RESNETS.NORM
    assert found.is_frozen()
    assert ("FREEZE_NORM_BELOW 4" in caplog.text) == (norm != wanted)
    assert norm == cfg.MODEL.RESNETS.NORM
    assert resolve_frozen_norms(found) == found


@pytest.mark.parametrize(("batch", "frozen"), [(3, True), (4, False)])
def test_norms_of_timm_by_batch(tiny_config, batch, frozen):
    cfg = tiny_config(
        "MODEL.BACKBONE.CONV_BODY", "timm/test_resnet-FPN", "MODEL.TIMM.FROZEN_NORM", False,
        "SOLVER.IMS_PER_BATCH", batch, "MODEL.BACKBONE.FREEZE_NORM_BELOW", 4,
    )  # fmt: skip
    assert resolve_frozen_norms(cfg).MODEL.TIMM.FROZEN_NORM is frozen


@pytest.mark.parametrize(("first", "then", "wanted"), [(2, 4, "FrozenBN"), (4, 2, "BN")])
def test_a_resumed_run_keeps_its_norms(tiny_config, tmp_path, first, then, wanted):
    def by_batch(size, before=None):
        cfg = tiny_config(
            "MODEL.RESNETS.NORM", "BN", "SOLVER.IMS_PER_BATCH", size,
            "MODEL.BACKBONE.FREEZE_NORM_BELOW", 3,
        )  # fmt: skip
        return resolve_frozen_norms(cfg, before)

    cfg = by_batch(first)
    before = Checkpoint(tmp_path / "model.pth", {}, [], cfg.dump(), "", [])
    assert by_batch(then, before).MODEL.RESNETS.NORM == wanted == cfg.MODEL.RESNETS.NORM
    assert wanted != by_batch(then).MODEL.RESNETS.NORM


def test_norms_are_left_alone_by_default(tiny_config):
    cfg = tiny_config("MODEL.RESNETS.NORM", "BN", "SOLVER.IMS_PER_BATCH", 1)
    assert resolve_frozen_norms(cfg) == cfg
