"""tools/train_net.py and tools/test_net.py with a tiny Mask R-CNN."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from detlite.apps.cli.main import main
from detlite.checkpoint.files import read_checkpoint
from tests.builders import write_shapes_config

pytestmark = pytest.mark.usefixtures("without_drawings")

ROOT = Path(__file__).parents[2]
FREE_PORT = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]


def torchrun(program, *args, rendezvous=FREE_PORT, **env):
    """Run a program in two processes with one thread each; return their output."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *rendezvous]
    done = subprocess.run(
        [*command, str(ROOT / "tools" / program), *map(str, args)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(command, *args):
    """Run a command of detlite, as the programs of tools/ do, and return its status."""
    return main([command, *map(str, args)])


def start(program, *args, **env):
    """Start a program without waiting for it."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tools" / program), *map(str, args)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **env},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def wait_for(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.05)


def results(folder):
    """Return the detections of a run, sorted by image and score."""
    rows = json.loads((folder / "results_shapes_val.json").read_text())
    return sorted(rows, key=lambda row: (row["image_id"], -row["score"], row["bbox"]))


def assert_same_results(one, other):
    one, other = results(one), results(other)
    assert one
    for name in ("image_id", "category_id"):
        assert [row[name] for row in one] == [row[name] for row in other]
    for name in ("score", "bbox"):
        numbers = [torch.tensor([row[name] for row in rows]) for rows in (one, other)]
        torch.testing.assert_close(*numbers, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train_net")
    return write_shapes_config(folder / "tiny.yaml", folder / "data")


@pytest.mark.slow
def test_signal_saves_a_checkpoint_and_ends_with_status_75(config, tmp_path):
    opts = ["SOLVER.MAX_ITER", 100_000, "OUTPUT_DIR", tmp_path / "run"]
    process = start("train_net.py", "--config", config, *opts)
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size, process)
    process.send_signal(signal.SIGTERM)
    error = process.communicate(timeout=120)[1]
    assert process.returncode == 75, error
    message = re.search(r"^SIGTERM: saved after iteration (\d+); continue by --resume", error, re.M)
    assert message, error
    last = read_checkpoint(tmp_path / "run" / f"model_{int(message[1]):07d}.pth")
    assert last.training["iteration"] == int(message[1])


@pytest.mark.slow
def test_signal_to_one_process_ends_both(config, tmp_path, free_port):
    opts = ["SOLVER.MAX_ITER", 100_000, "TEST.IMS_PER_BATCH", 2, "OUTPUT_DIR", tmp_path / "run"]
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    processes = [
        start("train_net.py", "--config", config, *opts, RANK=rank, LOCAL_RANK=rank, **env)
        for rank in "01"
    ]
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size, processes[0])
    processes[1].send_signal(signal.SIGTERM)
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [75, 75], errors
    saved = [
        re.search(r"saved after iteration \d+; continue by --resume", error)[0] for error in errors
    ]
    assert saved[0] == saved[1]


@pytest.mark.slow
@pytest.mark.parametrize("library", ["_multiarray_umath", "libtorch_cpu", "_C.abi3"])
def test_interrupted_imports_print_no_traceback(config, tmp_path, library):
    process = start("train_net.py", "--config", config, "OUTPUT_DIR", tmp_path)
    mapped = Path(f"/proc/{process.pid}/maps")
    wait_for(lambda: library in mapped.read_text(), process)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=120)[1]
    assert process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in error


@pytest.mark.slow
def test_two_processes_train_one_model(config, tmp_path):
    output = tmp_path / "run"
    opts = ["OUTPUT_DIR", output, "TEST.IMS_PER_BATCH", 2]
    printed = torchrun("train_net.py", "--config", config, *opts)
    assert printed.count("iteration 2") == 1
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2, 2]
    saved = torch.load(output / "model_final.pth", weights_only=True)
    assert len(saved["training"]["rng"]) == 2
    # Both processes evaluated the saved model, including its batch statistics.
    opts = ["MODEL.WEIGHT", output / "model_final.pth", "TEST.IMS_PER_BATCH", 2]
    opts += ["OUTPUT_DIR", tmp_path / "again"]
    assert run("test", "--config", config, *opts) == 0
    assert_same_results(tmp_path / "again", output)


@pytest.mark.slow
def test_deterministic_runs_have_equal_weights(config, tmp_path):
    opts = ["SOLVER.DETERMINISTIC", True, "DATASETS.TEST", "()", "DATALOADER.NUM_WORKERS", 1]
    finals = []
    for name in ("one", "other"):
        output = tmp_path / name
        assert run("train", "--config", config, *opts, "OUTPUT_DIR", output) == 0
        assert not torch.are_deterministic_algorithms_enabled()  # as before the run
        finals.append(read_checkpoint(output / "model_final.pth").model)
    torch.testing.assert_close(*finals, rtol=0, atol=0)


@pytest.mark.slow
def test_torchrun_restarts_after_a_killed_process(config, tmp_path, free_port):
    # With the default rendezvous, all processes restart from the last checkpoint.
    extension = tmp_path / "dying.py"
    extension.write_text(
        "import os, signal\n"
        "from detlite.modeling.rcnn import GeneralizedRCNN\n"
        "losses, calls = GeneralizedRCNN.losses, []\n"
        "def dying(*args):\n"
        "    calls.append(1)\n"
        "    restarts = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "    if (len(calls), os.environ['RANK'], restarts) == (4, os.environ['DYING'], '0'):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return losses(*args)\n"
        "GeneralizedRCNN.losses = dying\n"
    )
    opts = ["SOLVER.MAX_ITER", 5, "SOLVER.CHECKPOINT_PERIOD", 2, "DATASETS.TEST", "()"]
    opts += ["DATALOADER.NUM_WORKERS", 1, "IMPORTS", extension]  # the loader process ends later
    finals = []
    for rank in ("none", "1"):
        output = tmp_path / rank
        rendezvous = ["--max-restarts", "1", "--master-port", str(free_port())]
        args = ["--config", config, *opts, "OUTPUT_DIR", output]
        torchrun("train_net.py", *args, rendezvous=rendezvous, DYING=rank)
        finals.append(read_checkpoint(output / "model_final.pth").model)
        assert ("resumed" in (output / "log.txt").read_text()) == (rank != "none")
    torch.testing.assert_close(*finals, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("command", "opts", "message"),
    [
        ("train", ["DATASETS.TRAIN", "shapes_trian"], "did you mean 'shapes_train'"),
        ("train", ["DATASETS.TRAIN", "()"], "DATASETS.TRAIN is empty"),
        ("train", ["DATASETS.TRAIN", "coco_2014_train"],
         "coco/annotations/instances_train2014.json does not exist (images are expected in"),
        ("train", ["SOLVER.BASE_LR", 1e30, "SOLVER.MAX_ITER", 9, "SOLVER.WARMUP_ITERS", 0],
         "the loss is not finite"),
        ("test", [], "MODEL.WEIGHT is empty"),
        ("test", ["DATASETS.TEST", "()", "MODEL.WEIGHT", "x.pth"], "DATASETS.TEST is empty"),
        ("test", ["MODEL.WEIGHT", "x.pth"], "x.pth: cannot be read"),
        ("test", ["OUTPUT_DIR", __file__, "MODEL.WEIGHT", "x.pth"],
         f"{__file__}: cannot be written to"),
    ],
)  # fmt: skip
def test_invalid_input(config, tmp_path, capsys, command, opts, message):
    """The option `--config-file` is that of maskrcnn-benchmark."""
    assert run(command, "--config-file", config, "OUTPUT_DIR", tmp_path, *opts) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error
    assert not (tmp_path / "model_final.pth").exists()
