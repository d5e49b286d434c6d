"""Training steps do not read values from the device, except to log and to save."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from detlite.data import build_train_dataset
from detlite.engine import run as training
from detlite.modeling import detection_model as detector
from detlite.modeling import preprocessing
from detlite.modeling.build import build_model
from detlite.modeling.optimize_for_training import optimize_for_training

aten = torch.ops.aten
# Operators whose results, or their shapes, are needed on the host. item, float, int and bool call
# _local_scalar_dense.
_WAIT = {
    aten._local_scalar_dense, aten.equal, aten.is_nonzero, aten.masked_select, aten.nonzero,
    aten.repeat_interleave, aten.unique_consecutive, aten._unique2,
}  # fmt: skip
_INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
_METHODS = ("tolist", "numpy", "cpu", "__array__")


class HostReads(TorchDispatchMode):
    """Records the training iterations in which a value is read, and the operator.

    Batches and ground truth are checked on the host before they are moved to the device, so reads
    within `on_host` do not count.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.iteration = 0
        self.reads: list[tuple[int, str]] = []
        self._pauses = 0
        for name in _METHODS:
            patch.setattr(Tensor, name, self._noted(name, getattr(Tensor, name)))
        for name in ("check_images", "prepare_targets", "prepare_proposals"):
            patch.setattr(detector, name, self._on_host(getattr(detector, name)))
        patch.setattr(preprocessing, "check_images", self._on_host(preprocessing.check_images))
        build_loader = training.build_train_loader
        patch.setattr(training, "build_train_loader", lambda *a: self._batches(build_loader(*a)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        masks = packet in _INDEXING and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if packet in _WAIT or masks:
            self._note(str(func))
        return func(*args, **(kwargs or {}))

    def _note(self, operator: str) -> None:
        if not self._pauses:
            self.reads.append((self.iteration, operator))

    def _noted(self, name: str, method: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._note(name)
            with self.on_host():  # do not count nested reads
                return method(*args, **kwargs)

        return noted

    def _on_host(self, function: Any) -> Any:
        def paused(*args: Any, **kwargs: Any) -> Any:
            with self.on_host():
                return function(*args, **kwargs)

        return paused

    def _batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        batches = iter(loader)
        while True:
            self.iteration += 1
            with self.on_host():
                batch = next(batches)
            yield batch

    @contextmanager
    def on_host(self) -> Iterator[None]:
        self._pauses += 1
        yield
        self._pauses -= 1


@pytest.fixture
def reads_of(plates_config, monkeypatch):
    """Return a function that trains for 8 iterations and returns the host reads."""

    def start(*opts, static_shapes=True, reads_foreground=False):
        cfg = plates_config(
            "SOLVER.OPTIMIZER", "SGD", "SOLVER.BASE_LR", 1e-3, "SOLVER.CLIP_GRAD_NORM", 1.0,
            "DATASETS.TEST", (), "SOLVER.MAX_ITER", 8, "SOLVER.LOG_PERIOD", 3,
            "SOLVER.CHECKPOINT_PERIOD", 4, *opts,
        )  # fmt: skip
        model, train_set = build_model(cfg), build_train_dataset(cfg)

        def optimize(model):
            optimize_for_training(model).static_shapes = static_shapes
            model.reads_foreground = reads_foreground

        with monkeypatch.context() as patch:
            patch.setattr(training, "optimize_for_training", optimize)
            reads = HostReads(patch)
            with reads:
                training.TrainingRun(cfg, model, train_set, []).train()
        return reads.reads

    return start


@pytest.mark.slow
@pytest.mark.parametrize(
    "opts",
    [
        ["MODEL.CONVENTION", "torchvision", "MODEL.KEYPOINT_ON", True],
        ["MODEL.RPN.BOX_LOSS", "giou", "MODEL.RPN.FPN_POST_NMS_PER_BATCH", True,
         "DTYPE", "bfloat16"],
    ],
    ids=["all heads", "GIoU"],
)  # fmt: skip
def test_steps_read_values_only_to_log_and_save(reads_of, opts):
    """The models are tested in tests/modeling/test_family.py, and the loop here."""
    reads = reads_of(*opts)
    assert {iteration for iteration, _ in reads} <= {3, 4, 6, 8}, reads
    # All losses since the last log in one transfer.
    assert [operator for iteration, operator in reads if iteration in (3, 6)] == ["tolist"] * 2
    assert next(operator for iteration, operator in reads if iteration == 4) == "tolist"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("opts", "reads_foreground"),
    [([], True), (["DTYPE", "float16", "MODEL.MASK_ON", False], False)],
    ids=["foreground samples on a GPU", "scaled float16"],
)
def test_steps_that_read_one_value(reads_of, opts, reads_foreground):
    """torch's GradScaler skips the optimizer's step on the host; bfloat16 needs no scaler."""
    reads = reads_of(*opts, reads_foreground=reads_foreground)
    assert [operator for iteration, operator in reads if iteration in (1, 2, 5, 7)] == [
        "aten._local_scalar_dense.default"
    ] * 4


def test_dynamic_shapes_read_values_in_every_step(reads_of):
    reads = reads_of(static_shapes=False)
    assert {iteration for iteration, _ in reads} == set(range(1, 9))
    assert {"aten.nonzero.default", "aten._local_scalar_dense.default"} < {
        operator for _, operator in reads
    }
