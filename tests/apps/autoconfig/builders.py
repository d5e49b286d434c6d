"""Machines and statistics of objects for which configs are chosen."""

from dataclasses import replace

import numpy as np

from detlite.apps.autoconfig.dataset_facts import DatasetFacts
from detlite.apps.autoconfig.rules import choose
from detlite.apps.autoconfig.statistics import DatasetStatistics
from detlite.apps.doctor.machine import Resources

CPU = Resources(2, 16_000_000_000, "", 0, "bfloat16", pretrained=False)
GPU = Resources(16, 128_000_000_000, "A GPU", 80_000_000_000, "bfloat16", pretrained=True)
MACHINES = {
    "cpu": CPU, "gpu": GPU, "installed": replace(CPU, pretrained=True),
    "poor gpu": replace(GPU, gpu_memory=2_000_000_000), "one core": replace(CPU, cores=1),
    "poor cpu": replace(CPU, memory=2_000_000_000),
    "schedule free": replace(CPU, schedule_free=True),
}  # fmt: skip


def from_rows(sizes, rows, names, **fields) -> DatasetStatistics:
    """Return statistics of images and rows [N, 6] of (owner, label, x, y, width, height)."""
    count, (owners, labels) = len(rows), rows[:, :2].astype(int).T
    statistics = DatasetStatistics(
        sizes=np.array(sizes, float), boxes=rows[:, 2:], owners=owners, labels=labels,
        areas=rows[:, 4] * rows[:, 5], names=names, with_masks=count, keypoints=[],
        with_keypoints=0, keypoint_objects=0, problems={}, decoding=0.01, top_bottom=np.zeros(32),
    )  # fmt: skip
    return replace(statistics, **fields)


def statistics(
    images=400, size=(480, 640), sides=(20, 200), per_image=5, ratio=1.0, categories=2, masks=1.0,
    keypoints=(), low=0.5, **fields,
):  # fmt: skip
    """Return statistics of objects with log-uniformly distributed sides."""
    count = images * per_image
    side = np.exp(np.linspace(np.log(sides[0]), np.log(sides[1]), count))
    side = np.random.default_rng(0).permutation(side)
    width, height = side / ratio**0.5, side * ratio**0.5
    owners, labels = np.repeat(np.arange(images), per_image), np.arange(count) % categories
    y = low * size[0] - height / 2
    rows = np.stack([owners, labels, np.zeros(count), y, width, height], axis=1)
    result = from_rows(
        [size] * images, rows, [f"c{k}" for k in range(categories)],
        with_masks=int(masks * count), keypoints=list(keypoints),
        with_keypoints=count if keypoints else 0, keypoint_objects=count if keypoints else 0,
        problems={(True, False): (count - int(masks * count), "no mask")},
    )  # fmt: skip
    return replace(result, **fields)


def choices_for(train, machine, val=None, fixed=None, **facts):
    """Return the choices by key."""
    choices = choose(DatasetFacts(train, val, machine, **facts), fixed or {})
    return {choice.key: choice for choice in choices}


def values_for(train, machine, val=None, fixed=None, **facts):
    """Return the chosen values by key, by default with 100 images for evaluation."""
    choices = choices_for(train, machine, val or statistics(images=100), fixed, **facts)
    return {key: choice.value for key, choice in choices.items()}
