"""Operators without a kernel of their own: who gets them, beside the kernels, and in what memory.

The operators' own tests run on them too, see conftest.py.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchgen
import yaml
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from detlite import ops
from detlite.ops import fallback as plain
from detlite.ops.fallback import keypoints as peaks
from detlite.ops.fallback import matching, polygons, windows
from detlite.ops.fallback import nms as suppression
from tests.ops import fuzz
from tests.ops.roi_cases import features, odd_rois, ordinary_rois

ELSEWHERE = ["MPS", "XPU", "PrivateUse1"]


@pytest.fixture
def warnings(caplog) -> Iterator[pytest.LogCaptureFixture]:
    plain._warn_of.cache_clear()
    with caplog.at_level(logging.WARNING):
        yield caplog
    plain._warn_of.cache_clear()


def every_operator() -> dict[str, Tensor | tuple[Tensor, ...]]:
    """The result of each operator of the pipeline on small inputs."""
    x, rois = features().requires_grad_(), torch.cat([ordinary_rois(9), odd_rois()])
    boxes, scores = rois[:9, 1:].contiguous(), torch.linspace(0, 1, 9)
    groups, valid = torch.arange(9) % 2, torch.ones(1, 9, dtype=torch.bool)
    logits = torch.linspace(-3, 3, 8).requires_grad_()
    masks = torch.zeros(4, dtype=torch.float64), *(torch.zeros(1, dtype=torch.int64),) * 2
    index = torch.full((9,), -1)
    align, pool = ops.roi_align(x, rois, 3, 0.25, 2), ops.roi_pool(x, rois, 3, 0.25)
    loss = ops.sigmoid_focal_loss(logits, (logits > 0).float())
    return {
        "roi_align_forward.maps": align,
        "roi_align_backward.maps": torch.autograd.grad(align.sum(), x),
        "roi_pool_forward.maps": pool,
        "roi_pool_backward.maps": torch.autograd.grad(pool.sum(), x),
        "sigmoid_focal_loss_forward": loss,
        "sigmoid_focal_loss_backward": torch.autograd.grad(loss.sum(), logits),
        "match_boxes": ops.match_boxes(boxes[None, :3], valid[:, :3], boxes),
        "nms": ops.nms(boxes, scores, 0.5),
        "batched_nms": ops.batched_nms(boxes, scores, groups, 0.5),
        "padded_nms": ops.padded_nms(boxes[None], scores[None], groups[None], valid, 0.5, 4),
        "crop_masks": ops.crop_masks(
            *masks, torch.zeros(0, 6, dtype=torch.int64), index, boxes, 7, False
        ),
        "heatmap_peaks": ops.heatmap_peaks(torch.rand(9, 2, 8, 8), boxes),
    }


def test_the_cpu_keeps_its_kernels(warnings):
    assert every_operator().keys() == plain.KERNELS.keys()
    assert not warnings.text
    assert ops.has_kernels("cpu")


@pytest.mark.parametrize("key", ELSEWHERE)
@pytest.mark.parametrize("name", plain.KERNELS)
def test_other_backends_have_every_operator(name, key):
    computed = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    assert computed(f"detlite::{name}", key)
    assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"detlite::{name}", key)


def test_there_are_no_kernels_for_mps():
    assert not ops.has_kernels(torch.device("mps"))


def test_one_warning_names_the_device(warnings):
    with plain.instead_of_kernels():
        every_operator()
    assert warnings.text.count("no compiled kernels for cpu") == 1


@pytest.mark.parametrize(("hip", "home"), [(None, "CUDA_HOME"), ("7.0", "ROCM_HOME")])
def test_gpus_can_have_kernels(warnings, monkeypatch, hip, home):
    monkeypatch.setattr(torch.version, "hip", hip)
    plain._warn_of("cuda")
    assert f"a build with {home} set has them" in warnings.text


def test_others_cannot(warnings):
    plain._warn_of("mps")
    assert "no compiled kernels for mps" in warnings.text
    assert "_HOME" not in warnings.text


def test_random_inputs_give_what_the_kernels_give():
    """Maps and masks of any form, boxes anywhere, infinite and NaN, forward and backward."""
    kinds = [fuzz.suppression, fuzz.matching, fuzz.cropping, fuzz.keypoints, fuzz.focal_loss]
    for seed in range(500):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        make = rng.choice([fuzz.pooling, fuzz.pooling, *kinds])
        run = make(rng, plain=True) if make is fuzz.cropping else make(rng)
        wanted = run()
        with plain.instead_of_kernels():
            found = run()
        for a, b in zip(found, wanted, strict=True):
            finite = b.double()[b.double().isfinite()]
            spread = 1 + (finite.abs().max().item() if len(finite) else 0)
            assert not fuzz.differ(a, b, spread), f"seed {seed}: {make.__name__}"


class Called(TorchDispatchMode):
    """Notes the operations of torch's that are called, by the smallest parts."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with self:
            parts = func.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        if func.namespace == "aten":
            self.names.add(str(func).removeprefix("aten.").removesuffix(".default"))
        return func(*args, **(kwargs or {}))


def has_kernel(name: str, backend: str, known: dict[str, dict[str, Any]]) -> bool:
    """Whether an operation has a kernel for a backend, or one for all, by torch's own list."""
    entry = known[name]
    if "structured_delegate" in entry:
        return has_kernel(entry["structured_delegate"], backend, known)
    keys = {key.strip() for keys in entry.get("dispatch", {}) for key in keys.split(",")}
    return not keys or backend in keys or any(key.startswith("Composite") for key in keys)


def test_all_operations_that_are_called_have_kernels_for_mps(monkeypatch):
    file = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    entries = yaml.load(file.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    known = {entry["func"].partition("(")[0]: entry for entry in entries}
    assert not has_kernel("linalg_eig", "MPS", known)
    kinds = [fuzz.pooling, fuzz.suppression, fuzz.matching, fuzz.keypoints, fuzz.focal_loss]
    calls = Called()

    def noting(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            with calls:  # around the operator it would see the operator alone
                return kernel(*arguments)

        return run

    kernels = {name: noting(kernel) for name, kernel in plain.KERNELS.items()}
    monkeypatch.setattr(plain, "KERNELS", kernels)
    for seed in range(100):
        torch.manual_seed(seed)
        run = kinds[seed % len(kinds)](random.Random(seed))
        with plain.instead_of_kernels():
            run()
    assert {"bmm", "gather", "nonzero", "sort.stable"} <= calls.names
    assert not [name for name in sorted(calls.names) if not has_kernel(name, "MPS", known)]


class Largest(TorchDispatchMode):
    """Notes the most numbers that a new tensor has."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result


@pytest.mark.parametrize("pool", ["align", "pool"])
def test_chunks_bound_the_memory_and_change_nothing(pool, monkeypatch):
    """40 boxes of a whole map, whose windows are 40 times the map without chunks."""
    maps, rois = [torch.randn(2, 8, 40, 50)], ordinary_rois(240)
    rois[200:] = torch.tensor([1.0, 0, 0, 200, 160])
    where = rois, torch.zeros(240, dtype=torch.int64)
    sizes = [0.25], 2, 2, 2, 8, [40], [50]
    forward, backward = (plain.PLAIN[f"roi_{pool}_{way}.maps"] for way in ("forward", "backward"))

    def results() -> list[Tensor]:
        if pool == "align":
            pooled = forward(maps, *where, [0.25], 2, 2, 2, True)
            return [pooled, *backward(pooled, *where, *sizes, 2, True)]
        pooled, argmax = forward(maps, *where, [0.25], 2, 2, True)
        return [pooled, argmax, *backward(pooled, *where, argmax, *sizes)]

    found = {}
    for most in (1 << 24, 1 << 15):
        monkeypatch.setattr(windows, "_MOST_FEATURES", most)
        with Largest() as largest:
            found[most] = *results(), largest.numbers
    *expected, unbounded = found[1 << 24]
    *in_chunks, bounded = found[1 << 15]
    torch.testing.assert_close(in_chunks, expected, rtol=1e-5, atol=1e-5)
    assert unbounded >= 40 * maps[0][0].numel()
    assert bounded <= max(1 << 15, maps[0].numel())


def test_some_ground_truth_at_a_time_changes_nothing(monkeypatch):
    truth, candidates = ordinary_rois(60)[:, 1:].view(2, 30, 4), ordinary_rois(50)[:, 1:]
    valid = torch.rand(2, 30) > 0.3
    expected = ops.match_boxes(truth, valid, candidates)
    for most in (1, 700, 1 << 22):
        monkeypatch.setattr(matching, "_MOST_OVERLAPS", most)
        with plain.instead_of_kernels():
            found = ops.match_boxes(truth, valid, candidates)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_blocks_of_boxes_change_nothing(monkeypatch):
    """Groups that begin and end anywhere in a block, and chains that go on through many."""
    count = 300
    boxes, scores = ordinary_rois(count)[:, 1:], torch.rand(count)
    groups = torch.arange(count) // 70
    chain = torch.arange(count, dtype=torch.float32)[:, None] * 6
    chain = torch.cat([chain, chain * 0, chain + 10, chain * 0 + 10], dim=1)
    valid = torch.rand(2, count) > 0.2
    batch = boxes.view(1, count, 4).expand(2, -1, -1), torch.rand(2, count), groups.expand(2, -1)

    def results() -> list[Tensor]:
        return [
            ops.nms(chain, scores.sort(descending=True).values, 0.2),
            ops.batched_nms(boxes, scores, groups, 0.1),
            *ops.padded_nms(*batch, valid, 0.1, 100),
        ]

    expected = results()
    for block in (1, 7, 64, 1 << 10):
        monkeypatch.setattr(suppression, "_BLOCK", block)
        with plain.instead_of_kernels():
            found = results()
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_suppression_holds_no_table_of_all_boxes():
    boxes, scores = ordinary_rois(5000)[:, 1:], torch.rand(5000)
    with Largest() as largest:
        kept = plain.PLAIN["nms"](boxes, scores, 0.9)
    assert torch.equal(kept, ops.nms(boxes, scores, 0.9))
    assert 1 << 19 < largest.numbers <= 1 << 20


def test_enlarged_maps_are_never_whole(monkeypatch):
    """A box of 3000 x 3000 pixels."""
    maps, boxes = torch.randn(2, 3, 9, 9), torch.tensor([[0.0, 0, 3000, 3000], [5, 5, 35, 45]])
    expected = ops.heatmap_peaks(maps, boxes)
    monkeypatch.setattr(peaks, "_MOST_NUMBERS", 1 << 15)
    with Largest() as largest:
        found = plain.PLAIN["heatmap_peaks"](maps, boxes)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert 1 << 14 < largest.numbers <= 1 << 15


def test_some_polygons_at_a_time_change_nothing(monkeypatch):
    """Also one that is more than a chunk by itself."""
    random = torch.Generator().manual_seed(0)
    values = 30 * torch.rand(2 * 1000, dtype=torch.float64, generator=random)
    pieces, instances = torch.tensor([0, 900, 1000, 2000]), torch.tensor([0, 1, 3, 3])
    index = torch.randint(-1, 3, (40,), generator=random)
    masks = values, pieces, instances, torch.zeros(3, 6, dtype=torch.int64), index
    boxes = ordinary_rois(40)[:, 1:]
    expected = ops.crop_masks(*masks, boxes, 28, False)
    assert expected.any()
    for most in (1 << 10, 1 << 15, 1 << 22):
        monkeypatch.setattr(polygons, "_MOST_NUMBERS", most)
        with plain.instead_of_kernels():
            assert torch.equal(ops.crop_masks(*masks, boxes, 28, False), expected)


@pytest.mark.parametrize(
    ("cells", "wanted"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 8), (9, 12), (33, 48)]
)
def test_windows_have_few_sizes(cells, wanted):
    assert windows.rounded_up(cells) == wanted
