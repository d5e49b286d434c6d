"""Two processes train like one: shared batches, and ranks without objects."""

import json
import sys

import pytest
import torch

from detlite.data import build_train_dataset
from detlite.engine.run import TrainingRun
from tests.engine.toy import new_toy, read_final, read_metrics

EMPTY_RANKS = """
import json, torch, yaml
from detlite.config import config_from
from detlite.distributed import all_gather_objects, data_parallel, process_group, rank
from detlite.modeling.build import build_model
from detlite.modeling.optimize_for_training import optimize_for_training


def steps():
    cfg = config_from(yaml.safe_load(open("config.yaml")), "config.yaml")
    torch.manual_seed(0)
    model = build_model(cfg).train()
    optimize_for_training(model)  # gradients get the memory format of the weights
    parallel = data_parallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(rank())
    some = {"boxes": torch.tensor([[8.0, 8, 40, 40]]), "labels": torch.tensor([1]),
            "masks": torch.ones(1, 64, 64), "keypoints": torch.ones(1, 5, 3) * 20}
    if model.takes_proposals:
        some["proposals"] = torch.tensor([[4.0, 4, 44, 44], [30, 30, 60, 60]])
    none = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long(),
            "masks": torch.zeros(0, 64, 64), "keypoints": torch.zeros(0, 5, 3),
            **({"proposals": torch.zeros(0, 4)} if model.takes_proposals else {})}
    seen = []
    for filled in ([], [0], [1], [0, 1]):
        image = torch.rand(3, 64, 64) if rank() in filled else torch.zeros(3, 64, 64)
        optimizer.zero_grad()
        losses = parallel([image], [some if rank() in filled else none])
        sum(losses.values()).backward()
        missing = [name for name, p in model.named_parameters() if p.grad is None]
        norm = sum(p.grad.double().square().sum() for p in model.parameters()).item()
        optimizer.step()
        keys = list(losses)
        seen.append(all_gather_objects((keys, missing, norm)))
    return seen

with process_group("cpu"):
    first, seen = rank() == 0, steps()
if first:
    print(json.dumps(seen))
"""


_KEYPOINTS = [
    "MODEL.KEYPOINT_ON", True, "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", 5,
    "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", (16,),
]  # fmt: skip
_SEPARATE = [
    *_KEYPOINTS, "MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", False,
    "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION", 56,
]  # fmt: skip
_RETINANET = [
    "MODEL.META_ARCHITECTURE", "RetinaNet", "MODEL.BACKBONE.CONV_BODY", "R-18-FPN-RETINANET",
    "MODEL.MASK_ON", False, "MODEL.RETINANET.NUM_CLASSES", 4,
]  # fmt: skip


@pytest.mark.parametrize(
    ("opts", "c4", "heads"),
    [
        (_SEPARATE, False, {"loss_mask", "loss_keypoint", "loss_objectness"}),
        (
            [*_KEYPOINTS, "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION", 28],
            True,
            {"loss_mask", "loss_keypoint", "loss_objectness"},
        ),
        ([*_SEPARATE, "MODEL.LOAD_PROPOSALS", True], False, {"loss_mask", "loss_keypoint"}),
        (_RETINANET, False, set()),
    ],
    ids=["FPN", "C4", "Fast R-CNN", "RetinaNet"],
)
def test_ranks_without_objects_have_the_same_losses_and_gradients(
    tiny_config, in_two_processes, tmp_path, opts, c4, heads
):
    """Ranks without objects have a black image, no boxes and no proposals."""
    (tmp_path / "config.yaml").write_text(tiny_config(*opts, c4=c4).dump())
    steps = json.loads(in_two_processes(EMPTY_RANKS))
    assert len(steps) == 4
    for number, step in enumerate(steps):
        (first, missing, norm), (second, other_missing, other_norm) = step
        assert first == second
        assert heads < set(first)
        assert missing == other_missing == []
        assert norm == pytest.approx(other_norm, rel=1e-12)
        # If no rank has objects, an RPN still learns the background.
        assert (norm > 0) == (number > 0 or "MODEL.LOAD_PROPOSALS" not in opts)


REFERENCE_CYCLE = """
from pathlib import Path
import torch
from detlite.distributed import data_parallel, process_group

def step():
    model = torch.nn.Linear(3, 3)
    model.parallel = [data_parallel(model)]
    model.parallel[0](torch.ones(2, 3)).sum().backward()

with process_group("cpu"):
    step()
print(sorted(file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="lists the threads that Linux names")
def test_process_group_leaves_no_thread_of_gloo(in_two_processes):
    """A thread that releases tensors while the interpreter exits would abort the process."""
    assert "gloo" not in in_two_processes(REFERENCE_CYCLE)


SHARED_BATCHES = """
import yaml
from detlite.config import config_from
from detlite.data import build_train_dataset
from detlite.distributed import process_group
from detlite.engine.run import TrainingRun
from tests.engine.toy import new_toy

cfg = config_from(yaml.safe_load(open("config.yaml")), "config.yaml")
model = new_toy(noise=0.0)
with process_group("cpu"):
    TrainingRun(cfg, model, build_train_dataset(cfg), []).train()
"""
COMPILED = """
from detlite.modeling.compilation import compile_losses

compile_losses(model, "aot_eager")
with"""


@pytest.mark.parametrize("script", [SHARED_BATCHES, SHARED_BATCHES.replace("with", COMPILED)],
                         ids=["eager", "compiled"])  # fmt: skip
@pytest.mark.parametrize("parts", [1, 2])
def test_a_shared_batch_trains_like_a_whole_one(
    make_cfg, in_two_processes, tmp_path, script, parts
):
    """The losses are means over images, without random numbers and batch statistics."""
    opts = ["SOLVER.IMS_PER_BATCH", 4, "SOLVER.MAX_ITER", 10, "DATASETS.TEST", (),
            "SOLVER.ACCUMULATION_STEPS", parts]  # fmt: skip
    cfg = make_cfg(*opts, "OUTPUT_DIR", str(tmp_path / "alone"))
    TrainingRun(cfg, new_toy(noise=0.0), build_train_dataset(cfg), []).train()
    (tmp_path / "config.yaml").write_text(
        make_cfg(*opts, "OUTPUT_DIR", str(tmp_path / "shared")).dump()
    )
    in_two_processes(script)
    alone, shared = (tmp_path / name for name in ("alone", "shared"))
    ours, theirs = (read_final(f).model for f in (alone, shared))
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-6)
    losses = [[row["loss"] for row in read_metrics(folder)] for folder in (alone, shared)]
    assert len(losses[0]) == 10
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
