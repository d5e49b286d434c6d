"""Results of one image after another, and of all processes, put together in memory only once."""

from __future__ import annotations

import numpy as np
import torch

from detlite.distributed import all_gather_objects, gather_rows, world_size

from .results import Results


class Collector:
    """Appends the results of images to arrays that grow."""

    def __init__(self) -> None:
        self._arrays = Results.from_coco([], ()).arrays()
        self._buffers: dict[str, bytearray] = {}

    def add(self, results: Results) -> None:
        """Appends results that have the same arrays as those before, as those of one model do."""
        self._arrays = results.arrays()
        for name, array in self._arrays.items():
            self._buffers.setdefault(name, bytearray()).extend(array.tobytes())

    def collected(self) -> Results:
        """All that was added, without a copy: nothing can be added afterwards."""
        arrays = {
            name: np.frombuffer(self._buffers.get(name, bytearray()), like.dtype).reshape(
                -1, *like.shape[1:]
            )
            for name, like in self._arrays.items()
        }
        return Results.from_arrays(arrays)


def gather_results(results: Results) -> Results | None:
    """The results of all processes by rank, on rank 0; nothing on the others. All call this.

    Arrays travel as they are, one after another.
    """
    if world_size() == 1:
        return results
    arrays = results.arrays()
    layouts = all_gather_objects(
        (len(results), {name: (array.dtype.str, array.shape[1:]) for name, array in arrays.items()})
    )
    # Of a process without any image it is not known what its model predicts.
    _, layout = max(layouts, key=lambda pair: (pair[0], len(pair[1])))
    gathered = {}
    for name, (kind, shape) in layout.items():
        rows = arrays[name] if len(results) else np.empty((0, *shape), kind)
        if (of_all := gather_rows(torch.from_numpy(rows))) is not None:
            gathered[name] = of_all.numpy()
    return Results.from_arrays(gathered) if gathered else None
