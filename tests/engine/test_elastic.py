"""torchrun with a changing number of machines, simulated by agents on the loopback device."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from detlite.checkpoint.files import read_checkpoint
from detlite.data import build_train_dataset
from detlite.engine.run import TrainingRun
from tests.engine.toy import new_toy, read_metrics

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

# The second machine dies in its fourth step. Then the first one waits, in its third step alone,
# until its agent stops it because a new machine has joined.
CHANGING = """
import os, signal, time, yaml
from pathlib import Path
from detlite.config import config_from
from detlite.data import build_train_dataset
from detlite.distributed import process_group, rank, world_size
from detlite.engine.run import TrainingRun
from tests.engine.toy import new_toy

died, alone = Path("died"), Path("alone")
cfg = config_from(yaml.safe_load(open("config.yaml")), "config.yaml")
with process_group("cpu"):
    with open("worlds", "a") as file:
        file.write(f"{world_size()} {rank()} {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n")
    model = new_toy(noise=0.0)
    forward, calls = model.forward, []

    def changing(*args):
        calls.append(1)
        if world_size() == 2 and rank() == 1 and len(calls) == 4 and not died.exists():
            died.touch()
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        if world_size() == 1 and len(calls) == 3:
            alone.touch()
            while not signal.getsignal(signal.SIGTERM).__self__.received:
                time.sleep(0.05)
        return forward(*args)

    model.forward = changing
    TrainingRun(cfg, model, build_train_dataset(cfg), []).train(resume=True)
"""


# Otherwise torchrun's agent does not send a new machine the address of rank 0 (torch 2.15).
NEW_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def agent(folder: Path, port: int, is_host: int) -> subprocess.Popen[bytes]:
    """Start torchrun on one of up to two machines."""
    waits = "last_call_timeout=6,keep_alive_interval=1,keep_alive_max_attempt=3"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1",
        "--max-restarts", "3", "--monitor-interval", "0.2", "--rdzv-backend", "c10d",
        "--rdzv-id", "changing", "--rdzv-endpoint", f"127.0.0.1:{port}",
        "--rdzv-conf", f"is_host={is_host},{waits}", "script.py",
    ]  # fmt: skip
    with (folder / f"agent{time.monotonic_ns()}.txt").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | NEW_STORES | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def logs(folder: Path) -> str:
    return "\n".join(file.read_text()[-3000:] for file in sorted(folder.glob("agent*.txt")))


def test_a_run_continues_with_fewer_and_more_processes(make_cfg, tmp_path, free_port):
    opts = ["SOLVER.IMS_PER_BATCH", 4, "SOLVER.MAX_ITER", 12, "SOLVER.CHECKPOINT_PERIOD", 2]
    opts += ["DATASETS.TEST", ()]
    cfg = make_cfg(*opts, "OUTPUT_DIR", str(tmp_path / "unbroken"))
    TrainingRun(cfg, new_toy(noise=0.0), build_train_dataset(cfg), []).train()

    changing = make_cfg(*opts, "OUTPUT_DIR", str(tmp_path / "changing"))
    (tmp_path / "config.yaml").write_text(changing.dump())
    (tmp_path / "script.py").write_text(CHANGING)
    port = free_port()
    agents = [agent(tmp_path, port, is_host=1), agent(tmp_path, port, is_host=0)]
    try:
        end = time.monotonic() + 120
        while not (tmp_path / "alone").exists():
            assert time.monotonic() < end, logs(tmp_path)
            time.sleep(0.1)
        agents.append(agent(tmp_path, port, is_host=0))
        statuses = [one.wait(timeout=120) for one in agents]
    except subprocess.TimeoutExpired:
        pytest.fail(logs(tmp_path))
    finally:
        for one in agents:
            one.kill()
    assert statuses == [0, -9, 0], logs(tmp_path)
    # (processes, rank, restarts); each agent counts restarts separately.
    worlds = [tuple(map(int, row.split())) for row in (tmp_path / "worlds").open()]
    assert sorted(worlds[:2]) == [(2, 0, 0), (2, 1, 0)]
    assert worlds[2] == (1, 0, 1)
    assert sorted(restarts for _, _, restarts in worlds[3:]) == [0, 1]

    rows = [read_metrics(tmp_path / name) for name in ("unbroken", "changing")]
    assert [row["iteration"] for row in rows[1]] == list(range(1, 13))
    losses = [[row["loss"] for row in run] for run in rows]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    finals = [
        read_checkpoint(tmp_path / name / "model_final.pth") for name in ("unbroken", "changing")
    ]
    torch.testing.assert_close(finals[1].model, finals[0].model, rtol=1e-5, atol=1e-6)
    assert len(finals[1].training["rng"]) == 2
