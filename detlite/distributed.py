"""Distributed training: ranks, collectives and DistributedDataParallel.

This is the only module that uses torch.distributed. Without initialization, all functions work
for a single process of rank 0.
"""

import gc
import importlib
import os
import pickle
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from detlite.errors import ConfigError
from detlite.threads import limit_threads

_RENDEZVOUS_TIMEOUT = timedelta(minutes=5)
# Long, because processes also wait while rank 0 computes COCO metrics.
_COLLECTIVE_TIMEOUT = timedelta(hours=1)


def rank() -> int:
    """Return the rank of this process, 0 <= rank < world_size."""
    return dist.get_rank() if _active() else 0


def world_size() -> int:
    """Return the number of processes that train or evaluate together."""
    return dist.get_world_size() if _active() else 1


def is_main() -> bool:
    """Return True for rank 0, which writes files and prints."""
    return rank() == 0


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Initialize torch.distributed inside a `with` block, from the environment of torchrun.

    Without it, this is a single process. NCCL handles CUDA tensors, gloo the others. If `device`
    (MODEL.DEVICE) is a GPU, "cuda" means the GPU of the local rank. ConfigError if other processes
    are missing.

    At the end, no model returned by `data_parallel` may be referenced, or gloo's threads stay
    alive: use it inside a function that the block calls.
    """
    if not {"WORLD_SIZE", "RANK"} <= os.environ.keys():
        limit_threads()
        yield
        return
    on_cuda = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if on_cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        limit_threads(local_size())
    try:
        store, number, size = next(dist.rendezvous("env://", timeout=_RENDEZVOUS_TIMEOUT))
        store = _rendezvous(store, number, size)
    except RuntimeError as error:
        raise ConfigError(
            f"not all of the {os.environ['WORLD_SIZE']} processes started within "
            f"{_RENDEZVOUS_TIMEOUT}. Check the output of the missing ones, and that their machines "
            "can connect to MASTER_ADDR"
        ) from error
    # Imported later, its default arguments would refer to the group and keep it alive.
    importlib.import_module("torch.distributed.nn")

    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
        store=store,
        rank=number,
        world_size=size,
        timeout=_COLLECTIVE_TIMEOUT,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()
        # gloo's threads release tensors known to Python. A thread that does so while Python shuts
        # down aborts the process; without references, the threads end here.
        gc.collect()


def local_size() -> int:
    """Return the number of processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _rendezvous(store: dist.Store, number: int, size: int) -> dist.Store:
    """Wait for all processes and return a prefix of the store that only they use.

    torchrun keeps its store, with the addresses of dead processes, across restarts, and its agents
    do not agree on a restart number. Therefore rank 0 chooses a random prefix and sends it to each
    process under a random token that the process chose. RuntimeError after the timeout.
    """
    token = uuid.uuid4().hex
    if number > 0:
        store.set(f"hello {number}", token)
        store.wait([f"welcome {token}"], _RENDEZVOUS_TIMEOUT)
        prefix = store.get(f"welcome {token}").decode()
        store.set(f"{prefix} {number}", "")
        store.wait([f"{prefix} all"], _RENDEZVOUS_TIMEOUT)
        return dist.PrefixStore(prefix, store)
    end = time.monotonic() + _RENDEZVOUS_TIMEOUT.total_seconds()
    missing = set(range(1, size))
    while missing:
        if time.monotonic() > end:
            raise RuntimeError(f"ranks {sorted(missing)} are missing")
        for other in missing:  # the process may have died and been replaced
            if store.check([f"hello {other}"]):
                store.set(f"welcome {store.get(f'hello {other}').decode()}", token)
        missing = {other for other in missing if not store.check([f"{token} {other}"])}
        time.sleep(0.02)
    store.set(f"{token} all", "")
    return dist.PrefixStore(token, store)


def barrier() -> None:
    """Wait until every process has called this."""
    if world_size() > 1:
        dist.barrier()


def all_gather_objects(value: Any) -> list[Any]:
    """Gather picklable objects of all processes, by rank."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def gather_objects(value: Any) -> list[Any] | None:
    """Gather picklable objects of all processes, by rank, on rank 0; None on other ranks.

    Arrays are received in place, because the arrays of a dataset are large.
    """
    if world_size() == 1:
        return [value]
    buffers: list[pickle.PickleBuffer] = []
    header = b"" if is_main() else pickle.dumps(value, 5, buffer_callback=buffers.append)
    sent = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    values = [value]
    for source, (head, sizes) in enumerate(all_gather_objects((header, [*map(len, sent)]))):
        received = [np.empty(size, np.uint8) for size in sizes]
        if source == rank():
            for array in filter(len, sent):
                dist.send(torch.from_numpy(array), dst=0)
        elif is_main():
            for array in filter(len, received):
                dist.recv(torch.from_numpy(array), src=source)
            values.append(pickle.loads(head, buffers=received))
    return values if is_main() else None


def max_over_processes(numbers: Sequence[float]) -> list[float]:
    """Return the elementwise maximum over all processes. No device is synchronized."""
    if world_size() == 1:
        return list(numbers)
    values = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return values.tolist()


def broadcast_buffers(model: nn.Module) -> None:
    """Copy rank 0's buffers, such as the statistics of batch norm, to all processes."""
    if world_size() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def reduce_mean(values: dict[str, float]) -> dict[str, float]:
    """Average numbers over all processes, which must pass the same keys."""
    gathered = all_gather_objects(values)
    return {name: sum(part[name] for part in gathered) / len(gathered) for name in values}


def data_parallel(model: nn.Module) -> nn.Module:
    """Wrap a model in DistributedDataParallel; with a single process, return the model.

    ConfigError if torch does not support DDP, or SyncBN, on the model's device.
    """
    if world_size() == 1:
        return model
    device_types = {parameter.device.type for parameter in model.parameters()}
    if not device_types <= {"cpu", "cuda"}:
        raise ConfigError(
            f"{world_size()} processes can train on the CPU or CUDA, not on "
            f"{', '.join(sorted(device_types))}. Start one process, without torchrun"
        )
    has_sync_norms = any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
    if has_sync_norms and "cpu" in device_types:
        raise ConfigError(
            "SyncBN in several processes needs GPUs, because torch has no CPU version. Use NORM BN "
            "(separate statistics in each process), GN, or one process"
        )
    return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)


def _active() -> bool:
    return dist.is_available() and dist.is_initialized()
