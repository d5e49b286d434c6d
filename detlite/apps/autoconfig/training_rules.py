"""Rules of how a model is trained: precision, batch, learning rate, schedule, loading."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from .dataset_facts import Choice, Chosen, Facts, scales

# Pixels of a batch. In a short training many small steps reached more than few large ones of as
# many pictures (docs/recipes.md), and on a CPU they take no longer; a GPU would be idle.
_STEP_PIXELS = {"cpu": 3e5, "gpu": 4e6}
# EfficientNet-lite0-FPN took up to 2400 in bfloat16 (docs/init.md); float32 takes twice as much.
_BYTES_PER_PIXEL = 5000
_EPOCHS = {(True, "cpu"): 6, (True, "gpu"): 12, (False, "cpu"): 12, (False, "gpu"): 36}
# At least so many steps, and in small batches as many pictures as these would have in fours.
_LEAST_ITERATIONS = {True: 200, False: 400}
_LEAST_BATCH = 4
# LVIS repeats categories in fewer than 0.001 of its 57,000 pictures (Gupta et al., 2019). On 135
# pictures half of them, 67, gained most (docs/recipes.md).
_COMMON_PICTURES, _COMMON_SHARE = 60, 0.5


def _trained(facts: Facts, chosen: Chosen) -> int:
    """How many pictures are trained on."""
    empty = facts.train.empty if chosen.get("DATASETS.BACKGROUND_PICTURES") else 0
    return int((facts.train.per_image > 0).sum()) + empty


def precision(facts: Facts, _: Chosen) -> Iterator[Choice]:
    device = facts.machine.gpu or "the CPU"
    yield Choice("DTYPE", "auto", f"{facts.machine.dtype} on {device} of this machine")


def batch(facts: Facts, chosen: Chosen) -> Iterator[Choice]:
    found, machine, place = facts.train, facts.machine, facts.place
    sizes = found.sizes * scales(found, max(chosen["INPUT.MIN_SIZE_TRAIN"]),
                                  chosen["INPUT.MAX_SIZE_TRAIN"])[:, None]  # fmt: skip
    pixels = float(np.median(sizes.prod(axis=1)))
    # Processes share the memory of a machine, each has a GPU of its own.
    memory = machine.gpu_memory if machine.gpu else machine.memory / facts.processes
    fits = memory / 2 / (_BYTES_PER_PIXEL * pixels) if memory else 16.0
    useful = _STEP_PIXELS[place] / pixels
    trained = _trained(facts, chosen)
    size = facts.processes * 2 ** max(round(math.log2(min(max(min(useful, fits), 1), 16))), 0)
    reason = (
        f"an image has {pixels / 1e6:.2f} million pixels, and a step on a {place.upper()} about "
        f"{_STEP_PIXELS[place] / 1e6:g}"
    )
    if useful < 1:
        reason = (
            f"one image has {pixels / 1e6:.2f} million pixels, more than the about "
            f"{_STEP_PIXELS[place] / 1e6:g} of a step on a {place.upper()}"
        )
    if fits < max(useful, 1):
        reason = (
            f"half of the memory ({memory / 1e9:.0f} GB) holds {fits:.0f} images of "
            f"{pixels / 1e6:.2f} million pixels in training"
        )
    if facts.processes > 1:
        reason += f"; for each of {facts.processes} processes"
    if size > trained:
        size = max(trained // facts.processes, 1) * facts.processes
        reason = f"there are {trained} pictures to train on"
    yield Choice("SOLVER.IMS_PER_BATCH", size, reason)


def rate(_: Facts, chosen: Chosen) -> Iterator[Choice]:
    size = chosen["SOLVER.IMS_PER_BATCH"]
    value = float(f"{0.0005 * math.sqrt(size / 4):.2g}") if size < 4 or size > 8 else 0.0005
    yield Choice(
        "SOLVER.BASE_LR",
        value,
        "AdamW's: 0.0005 for batches of 4 to 8, else times the root of a quarter of the batch",
    )


def steps_wanted(facts: Facts, chosen: Chosen) -> tuple[int, str]:
    """How many steps training should have, and why."""
    trained = _trained(facts, chosen)
    size = chosen["SOLVER.IMS_PER_BATCH"]
    pretrained = bool(chosen.get("MODEL.WEIGHT"))
    rounds = _EPOCHS[pretrained, facts.place]
    start = "pretrained" if pretrained else "random"
    least = math.ceil(_LEAST_ITERATIONS[pretrained] * max(_LEAST_BATCH / size, 1))
    end = max(math.ceil(rounds * trained / size), least)
    end = math.ceil(end / 10) * 10
    reason = f"{rounds} rounds of {trained} pictures from {start} weights on a {facts.place}"
    if end * size > 1.2 * rounds * trained:
        reason = f"{least} steps at least, or {end * size / trained:.0f} rounds of {trained}"
    return end, reason.replace("cpu", "CPU").replace("gpu", "GPU")


def _steps_given(facts: Facts, chosen: Chosen) -> int | None:
    """The length of training that is decided already, if it is one of steps."""
    if epochs := chosen.get("SOLVER.MAX_EPOCHS"):
        return math.ceil(epochs * _trained(facts, chosen) / chosen["SOLVER.IMS_PER_BATCH"])
    steps: int | None = chosen.get("SOLVER.MAX_ITER")
    return steps


def schedule(facts: Facts, chosen: Chosen) -> Iterator[Choice]:
    size = chosen["SOLVER.IMS_PER_BATCH"]
    end, reason = steps_wanted(facts, chosen)
    if given := _steps_given(facts, chosen):
        end = given
        yield Choice("SOLVER.WARMUP_ITERS", min(100, end // 10), "a tenth of all, 100 at most")
    elif facts.minutes and facts.step_seconds:
        minutes, timed = facts.minutes
        wanted, end = end, max(int(minutes * 60 / facts.step_seconds), 1)
        yield Choice(
            "SOLVER.MAX_MINUTES",
            minutes,
            f"as asked for: about {end} steps of {facts.step_seconds:.2g} seconds, loading "
            f"included, where {wanted} are wanted ({reason}). {timed}",
        )
        yield Choice("SOLVER.WARMUP_ITERS", min(100, max(end // 10, 1)), "a tenth, 100 at most")
    elif chosen.get("SOLVER.MAX_MINUTES"):
        # Of so many steps as nobody knows: when to evaluate cannot be said.
        reason = f"a fifth of the steps that are wanted ({end})"
        yield from _checkpoints(math.ceil(end / 5), reason)
        return
    else:
        yield Choice("SOLVER.MAX_ITER", end, f"{reason}; more is better, and takes longer")
        yield Choice("SOLVER.WARMUP_ITERS", min(100, end // 10), "a tenth of it, 100 at most")
    fifth = math.ceil(end / 5)
    if facts.measured is None:
        yield from _checkpoints(fifth, "a fifth of it")
        return
    pictures = len(facts.measured.sizes)
    # Inference takes about a third of a training step: the part of training that evaluation takes.
    part = pictures / (3 * end * size)
    times = int(min(0.1 / part, 5))
    metric = "segm/AP" if chosen["MODEL.MASK_ON"] else "bbox/AP"
    if times < 2:
        reason = (
            f"once, at the end: {pictures} pictures take about {part:.0%} of the time that "
            "training takes"
        )
        yield Choice("SOLVER.TEST_PERIOD", 0, reason)
        yield Choice("SOLVER.BEST_METRIC", metric, "model_best.pth is then the last model")
        yield from _checkpoints(fifth, "a fifth of it")
        return
    reason = (
        f"{times} evaluations of {pictures} pictures, in about {times * part:.0%} of the time that "
        "training takes; an interrupted run goes on from the last"
    )
    yield Choice("SOLVER.TEST_PERIOD", math.ceil(end / times), reason)
    yield Choice("SOLVER.BEST_METRIC", metric, "the best of them is kept: model_best.pth")
    yield Choice("SOLVER.CHECKPOINTS_KEPT", 1)


def _checkpoints(period: int, reason: str) -> Iterator[Choice]:
    reason += ": from there an interrupted run goes on"
    yield Choice("SOLVER.CHECKPOINT_PERIOD", period, reason)
    yield Choice("SOLVER.CHECKPOINTS_KEPT", 1)


def rare_categories(facts: Facts, chosen: Chosen) -> Iterator[Choice]:
    found, trained = facts.train, _trained(facts, chosen)
    rarest = min((row for row in found.categories if row[2]), key=lambda row: row[2])
    common = min(_COMMON_PICTURES, _COMMON_SHARE * trained)
    if len(found.categories) > 1 and rarest[2] < common:
        yield Choice(
            "DATALOADER.REPEAT_THRESHOLD",
            float(f"{common / trained:.2g}"),
            f"{rarest[0]} is in {rarest[2]} of {trained} pictures: categories in fewer than "
            f"{math.ceil(common)} are shown more often",
        )


def workers(facts: Facts, chosen: Chosen) -> Iterator[Choice]:
    machine = facts.machine
    decoding = f"reading a picture takes {1000 * facts.train.decoding:.0f} ms"
    if not machine.gpu:
        cores = "the core" if machine.cores == 1 else f"all {machine.cores} cores"
        reason = f"the model is computed on {cores}, and {decoding}"
        yield Choice("DATALOADER.NUM_WORKERS", 0, reason)
        return
    count = max(min(machine.cores - 1, 8), 0)
    cores = "the core" if machine.cores == 1 else f"one of {machine.cores} cores"
    yield Choice("DATALOADER.NUM_WORKERS", count, f"{decoding}; {cores} drives the GPU")
