"""Test collectives in one process and in two."""

import json
import os
import subprocess
import sys
import textwrap
from datetime import timedelta

import pytest
import torch
from torch import nn

from detlite import distributed
from detlite.config import ConfigError
from detlite.distributed import (
    all_gather_objects,
    barrier,
    broadcast_buffers,
    data_parallel,
    gather_objects,
    is_main,
    process_group,
    rank,
    reduce_mean,
    world_size,
)

TWO_PROCESSES = """
    import json, sys, torch
    import numpy as np
    from torch import nn
    from detlite.config import ConfigError
    from detlite.distributed import *
    from detlite.distributed import process_group

    with process_group("cpu"):
        r = rank()
        layer = nn.Linear(1, 1, bias=False)
        nn.init.constant_(layer.weight, 10.0 + r)
        parallel = data_parallel(layer)
        parallel(torch.tensor([[float(1 + 2 * r)]])).sum().backward()
        try:
            refused = str(data_parallel(nn.Sequential(nn.SyncBatchNorm(1))))
        except ConfigError as error:
            refused = str(error)
        norm = nn.BatchNorm1d(1)
        norm.running_mean.fill_(r + 3.0)
        broadcast_buffers(norm)
        barrier()
        print(json.dumps({
            "rank": r,
            "world_size": world_size(),
            "main": is_main(),
            "max": max_over_processes([r == 1, False]),
            "gathered": all_gather_objects({"part": "x" * r}),
            "on_rank_0": [x.tolist() for x in gather_objects(np.arange(3 * r)) or ()],
            "mean": reduce_mean({"a": float(r), "b": 4.0 * r}),
            "weight": layer.weight.item(),
            "gradient": layer.weight.grad.item(),
            "running_mean": norm.running_mean.item(),
            "refused": refused[:38],
            "threads": torch.get_num_threads(),
        }))
    assert world_size() == 1
"""


def test_one_process_needs_no_initialization(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    layer = nn.BatchNorm1d(2)
    with process_group("auto"):
        assert (rank(), world_size(), is_main()) == (0, 1, True)
        assert all_gather_objects([3]) == [[3]]
        assert gather_objects([3]) == [[3]]
        assert reduce_mean({"a": 2.0}) == {"a": 2.0}
        assert data_parallel(layer) is layer
        broadcast_buffers(layer)
        barrier()
    synchronised = nn.SyncBatchNorm(2)
    with process_group("auto"):
        assert data_parallel(synchronised) is synchronised
    assert torch.equal(layer.running_mean, torch.zeros(2))


@pytest.mark.slow
def test_missing_processes_are_an_error_after_the_timeout(monkeypatch, free_port):
    monkeypatch.setattr(distributed, "_RENDEZVOUS_TIMEOUT", timedelta(seconds=1))
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in {**environment, "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="not all of the 2 processes started within 0:00:01"):
        process_group("cpu").__enter__()


@pytest.mark.slow
def test_two_processes(tmp_path, free_port):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(TWO_PROCESSES))
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    # One core each, unless the environment says otherwise.
    threads = [{"LOCAL_WORLD_SIZE": str(os.cpu_count())}, {"OMP_NUM_THREADS": "2"}]
    processes = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env=env | threads[number] | {"RANK": str(number), "LOCAL_RANK": str(number)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    outputs = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    for number, output in enumerate(outputs):
        assert output == {
            "rank": number,
            "world_size": 2,
            "main": number == 0,
            "max": [1.0, 0.0],
            "gathered": [{"part": ""}, {"part": "x"}],
            "on_rank_0": [] if number else [[], [0, 1, 2]],
            "mean": {"a": 0.5, "b": 2.0},
            "weight": 10.0,  # rank 0's, everywhere
            "gradient": 2.0,  # the mean of 1 and 3
            "running_mean": 3.0,
            "refused": "SyncBN in several processes needs GPUs",
            "threads": (1, min(2, os.cpu_count() or 1))[number],
        }


def test_several_processes_need_a_cpu_or_cuda(monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    with pytest.raises(ConfigError, match="can train on the CPU or CUDA, not on meta"):
        data_parallel(nn.Linear(2, 2, device="meta"))
