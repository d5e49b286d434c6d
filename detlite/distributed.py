"""Processes: rank, world size, reduce, gather. The only file that asks torch.distributed.

Everything works unchanged in a single process that was never initialised: rank 0 of 1.
"""

from __future__ import annotations

import gc
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from detlite.config import ConfigError

# How long processes wait for each other: to meet; later, as rank 0 computes COCO metrics alone.
_MEETING = timedelta(minutes=5)
_TOGETHER = timedelta(hours=1)


def restarts() -> int:
    """How often torchrun has started the processes anew (`--max-restarts`)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def rank() -> int:
    """Number of this process, 0 <= rank < world_size."""
    return dist.get_rank() if _active() else 0


def world_size() -> int:
    """Number of processes that train or evaluate together."""
    return dist.get_world_size() if _active() else 1


def is_main() -> bool:
    """Whether this is the process that writes files and prints."""
    return rank() == 0


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Joins the processes that torchrun started, for the length of a `with` block.

    Reads torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT); without
    it, this is a single process. CUDA tensors travel by NCCL, all else by gloo. If `device`, the
    config's MODEL.DEVICE, is a GPU, each process takes that of its local rank as the current one,
    so that "cuda" means its own.

    When the block ends, so do gloo's threads, as long as nothing that was made by `data_parallel`
    is referenced any more: keep it inside a function that the block calls.

    Raises:
        ConfigError: the other processes do not come.
    """
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        yield
        return
    on_cuda = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if on_cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        _share_cores()
    try:
        store, number, size = next(dist.rendezvous("env://", timeout=_MEETING))
        store = _meet(store, number, size)
    except RuntimeError as error:
        raise ConfigError(
            f"not all of the {os.environ['WORLD_SIZE']} processes came within {_MEETING}: see what "
            "those that are missing print, and whether their machines reach MASTER_ADDR"
        ) from error
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
        store=store,
        rank=number,
        world_size=size,
        timeout=_TOGETHER,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()
        # gloo's threads let go of tensors that Python knows, after the operation is done. One that
        # does so while the interpreter ends aborts the process; without references, they end here.
        gc.collect()


def torchrun_rank() -> tuple[int, int]:
    """(rank, number) of the processes that torchrun started, where they need nothing of each other.

    They do not meet. Each takes its GPU as the current one, or its share of the cores. Without
    torchrun this is (0, 1).

    Raises:
        ConfigError: RANK and WORLD_SIZE are no rank and number.
    """
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        return 0, 1
    given = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if not (all(map(str.isdecimal, given)) and int(given[0]) < int(given[1])):
        raise ConfigError(f"RANK {given[0]} and WORLD_SIZE {given[1]} are no rank and their number")
    if torch.cuda.is_available():  # which processes may share, as they need no NCCL
        local = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_device(local % torch.cuda.device_count())
    else:
        _share_cores()
    return int(given[0]), int(given[1])


def _share_cores() -> None:
    """Each process of a machine would otherwise start a thread for every core."""
    if "OMP_NUM_THREADS" not in os.environ:
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max((os.cpu_count() or 1) // local_size, 1))


def _meet(store: dist.Store, number: int, size: int) -> dist.Store:
    """A part of the store that only the processes have that are here now: all, once it returns.

    torchrun keeps its store when it starts processes anew, and in it addresses of the dead. Which
    start it is, nobody tells: each of its agents counts restarts by itself. So rank 0 gives each
    process that comes the name of the part, under a name that the process makes up.

    Raises:
        RuntimeError: not all come in time.
    """
    own = uuid.uuid4().hex
    if number > 0:
        store.set(f"hello {number}", own)
        store.wait([f"welcome {own}"], _MEETING)
        together = store.get(f"welcome {own}").decode()
        store.set(f"{together} {number}", "")
        store.wait([f"{together} all"], _MEETING)
        return dist.PrefixStore(together, store)
    end = time.monotonic() + _MEETING.total_seconds()
    missing = set(range(1, size))
    while missing:
        if time.monotonic() > end:
            raise RuntimeError(f"ranks {sorted(missing)} did not come")
        for other in missing:  # who said it may be dead, and another one come
            if store.check([f"hello {other}"]):
                store.set(f"welcome {store.get(f'hello {other}').decode()}", own)
        missing = {other for other in missing if not store.check([f"{own} {other}"])}
        time.sleep(0.02)
    store.set(f"{own} all", "")
    return dist.PrefixStore(own, store)


def barrier() -> None:
    """Waits until every process is here."""
    if world_size() > 1:
        dist.barrier()


def all_gather_objects(value: Any) -> list[Any]:
    """The `value` of every process, by rank; any object that can be pickled."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def gather_rows(rows: Tensor) -> Tensor | None:
    """The rows of every process, by rank, on rank 0, which holds them once; None on the others.

    Args:
        rows: [N, ...] on the CPU, of the same type and shape everywhere but for N, which may be 0.
    """
    counts = all_gather_objects(len(rows))
    if world_size() == 1:
        return rows
    if not is_main():
        if len(rows):
            dist.send(rows.contiguous(), dst=0)
        return None
    gathered = rows.new_empty((sum(counts), *rows.shape[1:]))
    for source, part in enumerate(gathered.split(counts)):
        if source == 0:
            part.copy_(rows)
        elif len(part):
            dist.recv(part, src=source)
    return gathered


def any_process(flag: bool) -> bool:
    """Whether `flag` is set in any process; every process calls it. No device is waited for."""
    return largest([flag])[0] > 0


def largest(numbers: Sequence[float]) -> list[float]:
    """The largest of each number over the processes, all of which pass as many.

    No device is waited for.
    """
    if world_size() == 1:
        return list(numbers)
    values = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return values.tolist()


def broadcast_buffers(model: nn.Module) -> None:
    """Gives every process rank 0's buffers, such as the running statistics of batch norm."""
    if world_size() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def reduce_mean(values: dict[str, float]) -> dict[str, float]:
    """Each number averaged over the processes, all of which pass the same keys."""
    gathered = all_gather_objects(values)
    return {name: sum(part[name] for part in gathered) / len(gathered) for name in values}


def data_parallel(model: nn.Module) -> nn.Module:
    """The model whose gradients are averaged over the processes; alone, the model itself.

    Raises:
        ConfigError: it is neither on the CPU nor on CUDA; or it has synchronised batch norm, which
            torch has for GPUs only, on the CPU.
    """
    if world_size() == 1:
        return model
    kinds = {parameter.device.type for parameter in model.parameters()}
    if not kinds <= {"cpu", "cuda"}:
        raise ConfigError(
            f"{world_size()} processes train on the CPU or CUDA alone, not on "
            f"{', '.join(sorted(kinds))}: start one process, without torchrun"
        )
    synchronised = [module for module in model.modules() if isinstance(module, nn.SyncBatchNorm)]
    if any(buffer.device.type == "cpu" for module in synchronised for buffer in module.buffers()):
        raise ConfigError(
            "SyncBN in several processes needs GPUs: torch has no synchronised batch norm for the "
            "CPU. Use NORM BN (each process has statistics of its own) or GN, or one process"
        )
    return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)


def _active() -> bool:
    return dist.is_available() and dist.is_initialized()
