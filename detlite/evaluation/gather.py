"""Collect the results of many images and of all processes without extra copies."""

import numpy as np
import torch

from detlite.distributed import all_gather_objects, gather_rows, world_size

from .results import Results


class ResultsCollector:
    """Append the results of one image after another to growing buffers."""

    def __init__(self) -> None:
        self._arrays = Results.from_coco([], ()).arrays()
        self._buffers: dict[str, bytearray] = {}

    def add(self, results: Results) -> None:
        """Append results. All must have the same fields, as the results of one model do."""
        self._arrays = results.arrays()
        for name, array in self._arrays.items():
            self._buffers.setdefault(name, bytearray()).extend(array.tobytes())

    def collected(self) -> Results:
        """Return all results as views of the buffers. Nothing can be added afterwards."""
        arrays = {
            name: np.frombuffer(self._buffers.get(name, bytearray()), like.dtype).reshape(
                -1, *like.shape[1:]
            )
            for name, like in self._arrays.items()
        }
        return Results.from_arrays(arrays)


def gather_results(results: Results) -> Results | None:
    """Gather the results of all processes on rank 0, in order of rank. A collective call.

    The arrays are sent as tensors, without pickling. Other ranks get None.
    """
    if world_size() == 1:
        return results
    arrays = results.arrays()
    layouts = all_gather_objects(
        (len(results), {name: (array.dtype.str, array.shape[1:]) for name, array in arrays.items()})
    )
    # A process without images does not know which fields the model predicts.
    _, layout = max(layouts, key=lambda pair: (pair[0], len(pair[1])))
    gathered = {}
    for name, (dtype, shape) in layout.items():
        array = arrays[name] if len(results) else np.empty((0, *shape), dtype)
        if (combined := gather_rows(torch.from_numpy(array))) is not None:
            gathered[name] = combined.numpy()
    return Results.from_arrays(gathered) if gathered else None
