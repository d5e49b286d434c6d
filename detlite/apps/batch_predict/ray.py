"""Prediction by workers of Ray Data, on several devices or machines."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from detlite.apps.optional_packages import import_optional
from detlite.apps.prediction_files.writer import Entry

_IMAGES_PER_TASK = 64
# A function of images and their ids, that yields their entries.
Predict = Callable[[Sequence[str], Sequence[int]], Iterator[Entry]]


class _Worker:
    """Maps batches {"id", "image"} to {"entry"}; images and entries are JSON."""

    def __init__(self, start: Callable[[], Predict]) -> None:
        self._predict = start()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[str]]:
        images = list(map(json.loads, batch["image"]))
        return {"entry": [*map(json.dumps, self._predict(images, batch["id"].tolist()))]}


def ray_entries(
    start: Callable[[], Predict], images: Sequence[str], ids: Sequence[int], workers: int
) -> Iterator[Entry]:
    """Yield the entry of each image, in order, as workers of Ray Data predict them.

    Ray replaces workers that die. Each has a GPU if there are enough of them.

    Args:
        start: called in each worker; returns its function.
        images, ids: see `predict_images`.
        workers: number of workers.

    Raises:
        ConfigError: Ray is not installed.
    """
    ray, data = (import_optional(name, "detlite[ray]") for name in ("ray", "ray.data"))
    starts = not ray.is_initialized()  # the caller may have connected it to other machines
    if starts:
        ray.init()
    data.DataContext.get_current().execution_options.preserve_order = True
    # Names are JSON, because those of files may not be valid UTF-8.
    rows = [{"image": json.dumps(name), "id": k} for name, k in zip(images, ids, strict=True)]
    entries = data.from_items(rows).map_batches(
        _Worker,
        fn_constructor_args=[start],
        batch_size=_IMAGES_PER_TASK,
        compute=data.ActorPoolStrategy(size=workers),
        num_gpus=int(ray.cluster_resources().get("GPU", 0) >= workers),
    )
    try:
        for row in entries.iter_rows():
            yield json.loads(row["entry"])
    finally:
        if starts:
            ray.shutdown()
