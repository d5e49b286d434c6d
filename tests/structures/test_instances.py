"""Test records: indexing, moving, pytrees and export."""

from dataclasses import FrozenInstanceError

import pytest
import torch
from torch.utils import _pytree as pytree

from detlite.structures.instances import (
    Detections,
    GroundTruth,
    Images,
    PredictedBoxes,
    Proposals,
    Samples,
)
from detlite.structures.masks.packed import PackedMasks

B, N = 2, 5


def boxes() -> torch.Tensor:
    return torch.rand(B, N, 4)


def integers(high: int = 4) -> torch.Tensor:
    return torch.randint(0, high, (B, N))


def some_valid() -> torch.Tensor:
    return torch.tensor([[True, True, True, False, False], [True, False, False, False, False]])


def detections(maps: bool = True) -> Detections:
    actual = Detections(boxes(), torch.rand(B, N), integers(), some_valid())
    if not maps:
        return actual
    return Detections(
        actual.boxes, actual.scores, actual.labels, actual.valid,
        {"class_scores": torch.rand(B, N, 4), "mine": torch.rand(B, N, 6)},
        torch.rand(B, N, 7, 7), boxes(),
        torch.rand(B, N, 3, 3), torch.rand(B, N, 3),
    )  # fmt: skip


def ground_truth() -> GroundTruth:
    masks = PackedMasks.from_bitmaps(torch.randint(0, 2, (B * N, 6, 8), dtype=torch.uint8))
    own = {"mine": torch.rand(B, N, 2)}
    return GroundTruth(boxes(), integers(), masks, torch.rand(B, N, 3, 3), extra_fields=own)


RECORDS = {
    "images": lambda: Images(torch.rand(B, 3, 8, 8), torch.tensor([[8, 8], [5, 6]])),
    "truth": ground_truth,
    "truth of boxes": lambda: GroundTruth(boxes(), integers()),
    "proposals": lambda: Proposals(boxes(), torch.rand(B, N), some_valid()),
    "samples": lambda: Samples(boxes(), integers(), integers()),
    "candidates": lambda: PredictedBoxes(boxes(), torch.rand(B, N), integers(), some_valid()),
    "detections": detections,
    "detections of boxes": lambda: detections(maps=False),
}
each_record = pytest.mark.parametrize("make", RECORDS.values(), ids=RECORDS)


def same(a, b) -> bool:
    pairs = zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True)
    return type(a) is type(b) and all(
        x is y is None or (x.dtype == y.dtype and torch.equal(x, y)) for x, y in pairs
    )


@pytest.mark.parametrize(
    "index",
    [0, -1, slice(1), (slice(None), slice(3)), torch.tensor([1, 0]), (slice(None), slice(0))],
)
def test_indexing_applies_to_every_field(index):
    for maps in (True, False):
        every = detections(maps)
        some = every[index]
        assert some.named_fields().keys() == every.named_fields().keys()
        for name, before in every.named_fields().items():
            assert torch.equal(some.named_fields()[name], before[index])


@each_record
def test_the_host_does_not_wait_for_copies_to_a_gpu(make, monkeypatch):
    record, calls = make(), []

    def noted(name: str) -> object:
        def call(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
            calls.append((name, *args, kwargs))
            return tensor

        return call

    for name in ("pin_memory", "to"):
        monkeypatch.setattr(torch.Tensor, name, noted(name))
    count = sum(leaf is not None for leaf in pytree.tree_leaves(record))
    record.to("cuda")
    assert calls == [("pin_memory", {}), ("to", "cuda", {"non_blocking": True})] * count
    calls.clear()
    record.to("cpu")
    assert calls == [("to", "cpu", {})] * count  # the host reads the values


@each_record
def test_to_moves_every_field(make):
    record = make()
    moved = record.to("meta")
    assert {leaf.device.type for leaf in pytree.tree_leaves(moved) if leaf is not None} == {"meta"}
    assert same(record.to("cpu"), record)


@each_record
def test_records_are_pytrees(make):
    record = make()
    leaves, spec = pytree.tree_flatten({"record": record, "beside": 3})
    assert sum(isinstance(leaf, torch.Tensor) for leaf in leaves) >= 2
    assert same(pytree.tree_unflatten(leaves, spec)["record"], record)
    flipped = pytree.tree_map_only(torch.Tensor, lambda x: x.flip(0), record)
    assert type(flipped) is type(record)
    assert torch.equal(pytree.tree_leaves(flipped)[0], pytree.tree_leaves(record)[0].flip(0))


@each_record
def test_records_are_exported(make):
    record = make()

    class Double(torch.nn.Module):
        def forward(self, given):
            return pytree.tree_map_only(torch.Tensor, lambda x: x * 2, given)

    program = torch.export.export(Double(), (record,))
    assert same(program.module()(record), Double()(record))


def test_records_are_not_changed_and_packed_masks_not_indexed():
    with pytest.raises(FrozenInstanceError):
        detections().boxes = boxes()
    with pytest.raises(TypeError, match="PackedMasks"):
        ground_truth()[0]


def test_per_image_drops_padding():
    actual = detections()
    first, second = actual.per_image()
    assert (len(first.boxes), len(second.boxes)) == (3, 1)
    assert same(first, actual[0][:3])
    assert same(second, actual[1][:1])
