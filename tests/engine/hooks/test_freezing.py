"""Freezing of the backbone in the first iterations."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from detlite.checkpoint.files import read_checkpoint
from detlite.engine.hooks.freezing import BackboneFreezeSchedule
from detlite.engine.trainer import Trainer
from detlite.modeling.build import build_model
from tests.engine.toy import assert_equal, call_at, interrupt, new_toy


@pytest.fixture
def run(train_toy, tmp_path):
    """Return a function that trains with a frozen backbone and returns all checkpoints."""

    def start(folder, *opts, model=None, resume=False, frozen=3):
        train_toy(
            "SOLVER.BACKBONE_FREEZE_ITERS", frozen, "SOLVER.MAX_ITER", 6,
            "SOLVER.CHECKPOINT_PERIOD", 1, "SOLVER.TEST_PERIOD", 2,
            "OUTPUT_DIR", str(tmp_path / folder), *opts, model=model, resume=resume,
        )  # fmt: skip
        names = [f"model_{number:07d}.pth" for number in range(1, 6)] + ["model_final.pth"]
        return [read_checkpoint(tmp_path / folder / name) for name in names]

    return start


def changed_at(checkpoints, name):
    """Return the iterations, from 2, in which an entry changed."""
    values = [checkpoint.model[name] for checkpoint in checkpoints]
    pairs = itertools.pairwise(values)
    return [
        number for number, (before, after) in enumerate(pairs, 2) if not torch.equal(before, after)
    ]


@pytest.mark.slow
def test_a_backbone_that_is_never_trained_causes_a_warning(run, caplog):
    run("some", frozen=5)
    assert "not trained at all" not in caplog.text
    run("all", frozen=6)
    assert "BACKBONE_FREEZE_ITERS is 6 and the run has 6 iterations: the backbone is" in caplog.text


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_the_backbone_is_trained_after_the_frozen_iterations(run, optimizer):
    checkpoints = run("run", "SOLVER.OPTIMIZER", optimizer, "SOLVER.WEIGHT_DECAY", 0.1)
    for name in ("body.weight", "norm.bias", "norm.running_mean", "norm.num_batches_tracked"):
        assert changed_at(checkpoints, name) == [4, 5, 6]
    assert changed_at(checkpoints, "roi_heads.box.predictor.cls_score.weight") == [2, 3, 4, 5, 6]
    groups = [checkpoint.training["optimizer"]["param_groups"] for checkpoint in checkpoints]
    assert len({tuple(tuple(group["params"]) for group in one) for one in groups}) == 1
    known = [len(checkpoint.training["optimizer"]["state"]) for checkpoint in checkpoints]
    assert known == [4, 4, 4, 8, 8, 8]  # momentum exists from the first step


@pytest.mark.parametrize(
    "call", [pytest.param(2, marks=pytest.mark.slow), 4, pytest.param(5, marks=pytest.mark.slow)]
)
def test_resuming_before_at_and_after_the_change(run, call):
    straight = run("straight")[-1]
    with pytest.raises(KeyboardInterrupt):
        run("interrupted", model=call_at(new_toy(), call, interrupt))
    resumed = run("interrupted", resume=True)[-1]
    torch.testing.assert_close(resumed.model, straight.model, rtol=0, atol=0)
    ours, theirs = (one.training["optimizer"] for one in (resumed, straight))
    assert_equal(ours, theirs)


def test_parameters_that_are_never_trained_stay_frozen(tiny_config):
    cfg = tiny_config("MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 2)
    model = build_model(cfg).train()
    backbone = model.backbone.body
    never_trained = [name for name, p in backbone.named_parameters() if not p.requires_grad]
    assert never_trained
    schedule, rewrapped = BackboneFreezeSchedule(model, 1), []
    train_step = SimpleNamespace(wrap_model=lambda: rewrapped.append(schedule.trainer.iteration))
    schedule.trainer = SimpleNamespace(iteration=1, train_step=train_step)
    schedule.before_step()
    assert not any(p.requires_grad for p in backbone.parameters())
    assert not backbone.training
    assert all(p.requires_grad for p in model.rpn.parameters())
    schedule.trainer.iteration = 2
    schedule.before_step()
    schedule.before_step()
    assert [n for n, p in backbone.named_parameters() if not p.requires_grad] == never_trained
    assert backbone.training
    assert rewrapped == [2]


SHARED = """
import yaml
from detlite.config import config_from
from detlite.data import build_train_dataset
from detlite.distributed import process_group
from detlite.engine.trainer import Trainer
from tests.engine.toy import assert_equal, new_toy

cfg = config_from(yaml.safe_load(open("config.yaml")), "config.yaml")
with process_group("cpu"):
    Trainer(cfg, new_toy(noise=0.0), build_train_dataset(cfg), []).train()
"""


@pytest.mark.slow
def test_two_processes_unfreeze_like_one(make_cfg, make_sets, in_two_processes, tmp_path):
    """DDP then also averages the gradients of the backbone."""
    opts = ["SOLVER.IMS_PER_BATCH", 4, "SOLVER.MAX_ITER", 8, "DATASETS.TEST", ()]
    opts += ["SOLVER.BACKBONE_FREEZE_ITERS", 3, "SOLVER.BASE_LR", 0.01]
    cfg = make_cfg(*opts, "OUTPUT_DIR", str(tmp_path / "alone"))
    model = new_toy(noise=0.0)
    before = model.body.weight.detach().clone()
    Trainer(cfg, model, make_sets(cfg)[0], []).train()
    assert not torch.equal(model.body.weight, before)
    shared = make_cfg(*opts, "OUTPUT_DIR", str(tmp_path / "shared"))
    (tmp_path / "config.yaml").write_text(shared.dump())
    in_two_processes(SHARED)
    ours, theirs = (
        read_checkpoint(tmp_path / name / "model_final.pth").model for name in ("alone", "shared")
    )
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-6)
