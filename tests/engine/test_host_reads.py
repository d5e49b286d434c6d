"""The training loop reads no values from the device, except to log and to save.

`tests/modeling/test_family.py` tests the same of each model.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from detlite.engine import run as training

# item, float, int and bool call _local_scalar_dense.
_WAIT = {torch.ops.aten._local_scalar_dense, torch.ops.aten.equal, torch.ops.aten.nonzero}
_METHODS = ("tolist", "numpy", "cpu", "__array__")


class HostReads(TorchDispatchMode):
    """Records the training iterations in which a value is read, and the operator.

    Reads while a batch is loaded do not count.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.iteration, self._is_loading = 0, False
        self.reads: list[tuple[int, str]] = []
        for name in _METHODS:
            patch.setattr(Tensor, name, self._noted(name, getattr(Tensor, name)))
        build_loader = training.build_train_loader
        patch.setattr(training, "build_train_loader", lambda *a: self._batches(build_loader(*a)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in _WAIT:
            self._note(str(func))
        return func(*args, **(kwargs or {}))

    def _note(self, operator: str) -> None:
        if not self._is_loading:
            self.reads.append((self.iteration, operator))

    def _noted(self, name: str, method: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._note(name)
            return method(*args, **kwargs)

        return noted

    def _batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        batches = iter(loader)
        while True:
            self._is_loading = True
            batch = next(batches)
            self._is_loading = False
            self.iteration += 1
            yield batch


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_steps_read_values_only_to_log_and_save(train_toy, monkeypatch, dtype):
    with HostReads(monkeypatch) as recorder:
        train_toy(
            "SOLVER.CLIP_GRAD_NORM", 1.0, "SOLVER.EMA_DECAY", 0.9, "DATASETS.TEST", (),
            "SOLVER.MAX_ITER", 8, "SOLVER.LOG_PERIOD", 3, "SOLVER.CHECKPOINT_PERIOD", 4,
            "DTYPE", dtype,
        )  # fmt: skip
    reads = {n: [name for m, name in recorder.reads if m == n] for n in range(1, 9)}
    # torch's GradScaler skips the optimizer's step on the host.
    scaler = ["aten._local_scalar_dense.default"] * (dtype == "float16")
    assert [reads[n] for n in (1, 2, 5, 7)] == [scaler] * 4
    # All losses since the last log in one transfer.
    assert [reads[n] for n in (3, 6)] == [[*scaler, "tolist"]] * 2
    assert reads[4][len(scaler)] == "tolist"
