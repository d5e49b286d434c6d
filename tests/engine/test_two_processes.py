"""Two processes train like one, and leave no threads."""

import sys

import pytest
import torch

from detlite.data import build_train_dataset
from detlite.engine.run import TrainingRun
from tests.engine.toy import new_toy, read_final, read_metrics

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
